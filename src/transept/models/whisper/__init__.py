"""Whisper (Radford et al. 2022): an encoder of 30 seconds of sound and a decoder that writes what is said, in many languages.

Two convolutions make a state of two frames of a mel spectrogram, to which sinusoids are added. Padding is silence, which the
encoder sees, so that there is no mask over frames. Shapes: B batch, F mel bins, T' frames, T positions of the decoder, D size.
"""

from __future__ import annotations

import math
from dataclasses import field
from functools import partial
from typing import Annotated, Any, ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, Multiple, PaddingId, Share
from transept.core.inputs import RecordOptions
from transept.errors import InputError
from transept.heads.audio import ForAudioClassification
from transept.heads.language import ForCausalLM
from transept.heads.seq2seq import ForConditionalGeneration, StackForCausalLM
from transept.kinds.augment import SpecAugment
from transept.kinds.seq2seq import DecoderStack, EncoderDecoderBackbone, Seq2SeqConfig, as_output
from transept.kinds.spectrograms import SpectrogramBackbone
from transept.layers import MLP, Attention, Context, Pattern, PreNorm, standard_layers
from transept.layers.conv import N, conv_length
from transept.models.bart import BART_BLOCK
from transept.models.whisper.generate import Transcribes
from transept.outputs import BackboneOutput


class WhisperConfig(Seq2SeqConfig):
    """Settings of Whisper; the defaults are those of whisper-tiny."""

    model_type = "whisper"
    aliases = {"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads"}
    aliases |= {"num_hidden_layers": "encoder_layers", "initializer_range": "init_std"}

    vocab_size: int = 51865
    num_mel_bins: Count = 80
    encoder_layers: Layers = 4
    encoder_attention_heads: int = 6
    decoder_layers: Layers = 4
    decoder_attention_heads: int = 6
    decoder_ffn_dim: int = 1536
    encoder_ffn_dim: int = 1536
    encoder_layerdrop: Share = 0.0
    decoder_layerdrop: Share = 0.0
    activation_function: str = "gelu"
    d_model: Annotated[int, Multiple("encoder_attention_heads"), Multiple("decoder_attention_heads")] = 384
    dropout: Share = 0.0
    attention_dropout: Share = 0.0
    activation_dropout: Share = 0.0
    init_std: Deviation = 0.02
    scale_embedding: bool = False
    max_source_positions: Count = 1500
    max_target_positions: Count = 448
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = field(default_factory=lambda: [220, 50256])
    use_weighted_layer_sum: bool = False
    classifier_proj_size: Count = 256
    apply_spec_augment: bool = False
    mask_time_prob: float = 0.05
    mask_time_length: Count = 10
    mask_time_min_masks: int = 2
    mask_feature_prob: float = 0.0
    mask_feature_length: Count = 10
    mask_feature_min_masks: int = 0
    median_filter_width: int = 7
    pad_token_id: PaddingId | None = 50256
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    decoder_start_token_id: int | None = 50257

    def validate(self) -> None:
        super().validate()
        if self.d_model % 2 or self.d_model < 4:
            self.fail("d_model", "must be even and at least 4, for pairs of a sine and a cosine")


def sinusoids(length: int, channels: int, max_timescale: float = 10000) -> Tensor:
    """Sines, and behind them cosines, of positions: (``length``, ``channels``), of wavelengths from 2 pi on."""
    steps = torch.arange(channels // 2) / (channels // 2 - 1)
    angles = torch.arange(length)[:, None] * torch.exp(-math.log(max_timescale) * steps)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Waves(nn.Module):
    """Sines, and behind them cosines, of positions: wavelengths from 2 pi to 20000 pi, stored and not trained."""

    def __init__(self, positions: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions, dim), requires_grad=False)

    def reset_parameters(self) -> None:
        with torch.device(self.weight.device):
            self.weight.copy_(sinusoids(*self.weight.shape))


class WhisperAttention(Attention):
    """Attention whose keys have no bias."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        pattern: Pattern = Pattern(),  # noqa: B008 (immutable)
        dropout: float = 0.0,
        cross: bool | int = False,
    ) -> None:
        super().__init__(dim, heads, pattern=pattern, dropout=dropout, cross=cross)
        self.k_proj = nn.Linear(dim, dim, bias=False)


def make_layers(c: WhisperConfig, side: str) -> nn.ModuleList:
    """The blocks of the ``encoder`` or the ``decoder``."""
    heads, inner, layerdrop, count = (getattr(c, f"{side}_{x}") for x in ("attention_heads", "ffn_dim", "layerdrop", "layers"))
    decodes = side == "decoder"
    attention = partial(WhisperAttention, c.d_model, heads, dropout=c.attention_dropout)
    return standard_layers(
        c,
        partial(PreNorm, dropout=c.dropout, layerdrop=layerdrop, bounds=not decodes),
        partial(attention, pattern=Pattern(causal=decodes)),
        partial(MLP, c.d_model, inner, c.activation_function, dropout=c.activation_dropout),
        partial(nn.LayerNorm, c.d_model),
        cross=partial(attention, cross=True) if decodes else None,
        count=count,
    )


STACK: Table = {"embed_positions": "embed_positions", "layers.*": ("layers.*", BART_BLOCK), "layer_norm": "norm"}


class WhisperEncoder(SpectrogramBackbone):
    config_class = WhisperConfig
    base_model_prefix = "model.encoder"
    reads = ("input_features", "attention_mask", "labels")
    names = Names(
        {"conv1": "conv1", "conv2": "conv2", **STACK}, fixed=("embed_positions.weight",), ignore=("decoder", "proj_out")
    )
    table_name = "conv1"

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__(config)
        c = config
        self.conv1 = nn.Conv1d(c.num_mel_bins, c.d_model, 3, padding=1)
        self.conv2 = nn.Conv1d(c.d_model, c.d_model, 3, stride=2, padding=1)
        self.embed_positions = Waves(c.max_source_positions, c.d_model)
        self.dropout, self.norm = nn.Dropout(c.dropout), nn.LayerNorm(c.d_model)
        self.layers = make_layers(c, "encoder")

    @property
    def spectrogram_size(self) -> tuple[int, int]:
        return self.config.num_mel_bins, 2 * self.config.max_source_positions

    def state_lengths(self, samples: N) -> N:
        return conv_length(samples, 3, 2, padding=1)

    def freeze_feature_encoder(self) -> None:
        for conv in (self.conv1, self.conv2):
            conv.requires_grad_(False)

    def begin(
        self,
        input_features: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **options: Unpack[RecordOptions],
    ) -> tuple[Tensor, Context]:
        """Make states of spectrograms (B, F, T'), which have twice as many frames as there are positions; no mask is read."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(self.check_spectrograms(input_features)))))
        return self.dropout(x.transpose(1, 2) + self.embed_positions.weight), self.context(**options)


class WhisperDecoder(DecoderStack):
    config_class = WhisperConfig
    base_model_prefix = "model.decoder"
    infers_texts = True
    reads: ClassVar[tuple[str, ...]] = (*DecoderStack.reads, "position_ids")
    names = Names({"embed_tokens": "embed_tokens", **STACK}, ignore=("encoder",))
    max_positions = property(lambda self: self.config.max_target_positions)

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = nn.Embedding(config.max_target_positions, config.d_model)
        self.dropout, self.norm = nn.Dropout(config.dropout), nn.LayerNorm(config.d_model)
        self.layers = make_layers(config, "decoder")

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.dropout(x + self.embed_positions(positions))


class WhisperModel(EncoderDecoderBackbone):
    """Whisper without a head; in training it hides parts of the spectrograms where ``apply_spec_augment`` says so."""

    config_class = WhisperConfig
    encoder_class, decoder_class = WhisperEncoder, WhisperDecoder
    base_model_prefix = "model"
    reads = (
        *("input_features", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs"),
        *("past_key_values", "decoder_inputs_embeds", "decoder_position_ids", "labels", "use_cache"),
    )

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__(config)
        self.augment = SpecAugment(config)

    def encode(self, inputs: dict[str, Any], asked: dict[str, Any]) -> tuple[BackboneOutput, Tensor | None]:
        if (encoded := inputs.get("encoder_outputs")) is None:
            features = self.augmented(inputs.get("input_features"), inputs.get("attention_mask"))
            encoded = self.encoder(input_features=features, **asked)
        return as_output(encoded), None

    def augmented(self, features: Any, mask: Tensor | None) -> Any:
        """Spectrograms (B, F, T'), in training with hidden parts, which lie in the real frames of a mask (B, T')."""
        if not (self.training and self.config.apply_spec_augment and isinstance(features, Tensor) and features.ndim == 3):
            return features
        if mask is not None and mask.shape != features.shape[::2]:
            shapes = tuple(mask.shape), tuple(features.shape)
            raise InputError(f"`attention_mask` has the shape {shapes[0]}, but `input_features` has {shapes[1]}.")
        padding = None if mask is None else mask != 0
        return self.augment(features.transpose(1, 2), features.new_zeros(1), None, padding).transpose(1, 2)

    def state_lengths(self, frames: N) -> N:
        """Numbers of the encoder's states made of so many frames."""
        return self.encoder.state_lengths(frames)

    def freeze_encoder(self) -> None:
        """Train the decoder only."""
        self.encoder.requires_grad_(False)


_HEAD = Names({"proj_out": "lm_head"})


class WhisperForConditionalGeneration(Transcribes, ForConditionalGeneration[WhisperModel]):
    names = _HEAD

    def freeze_encoder(self) -> None:
        """Train the decoder and the head only."""
        self.backbone.freeze_encoder()


class WhisperForAudioClassification(ForAudioClassification[WhisperEncoder]):
    base_model_prefix = "encoder"
    reads = ("input_features", "encoder_outputs", "labels")

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        given, _ = inputs.pop("encoder_outputs", None), inputs.pop("attention_mask", None)
        return super().encode(inputs, labels) if given is None else self.mixed(as_output(given), inputs)

    def freeze_encoder(self) -> None:
        """Train the head only."""
        self.freeze_base_model()


class WhisperForCausalLM(StackForCausalLM[WhisperDecoder]):
    """The decoder by itself, which may read ``encoder_outputs``: an encoder's output, or its states (B, T', D)."""

    names = _HEAD | Names(ties=ForCausalLM.names.ties)
    reads = (*("input_ids", "attention_mask", "encoder_outputs", "past_key_values", "inputs_embeds", "labels", "use_cache"),)

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        if (given := inputs.pop("encoder_outputs", None)) is not None:
            inputs["encoder_hidden_states"] = given if isinstance(given, Tensor) else as_output(given).last_hidden_state
        return super().encode(inputs, labels)
