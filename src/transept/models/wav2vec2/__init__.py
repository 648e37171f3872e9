"""Wav2Vec2 (Baevski et al. 2020): convolutions over the waveform, then a transformer encoder with convolutional positions.

Base models norm after each sublayer, and each channel of a recording in the first convolution, so that padding moves their
results; large ones norm before. Shapes: B batch, S samples, T frames, C features, D hidden size.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Layers, Share, derived
from transept.core.inputs import RecordOptions
from transept.errors import InputError
from transept.heads.audio import ForAudioClassification, ForAudioFrameClassification, ForMultilingualCTC, ForXVector
from transept.kinds.audio import AudioBackbone, WaveConfig
from transept.kinds.augment import SpecAugment
from transept.layers import MLP, Attention, PostNorm, PreNorm, standard_layers
from transept.layers.context import Context, within
from transept.layers.conv import N, PositionalConv, WaveEncoder, conv_length
from transept.layers.links import Linked
from transept.models.wav2vec2.pretraining import ForContrastivePreTraining
from transept.outputs import AudioOutput, ModelOutput


class Wav2Vec2Config(WaveConfig):
    """Settings of Wav2Vec2; the defaults are those of wav2vec2-base-960h."""

    model_type = "wav2vec2"

    feat_quantizer_dropout: Share = 0.0
    num_codevectors_per_group: int = 320
    num_codevector_groups: int = 2
    contrastive_logits_temperature: float = 0.1
    num_negatives: int = 100
    codevector_dim: int = 256
    proj_codevector_dim: int = 256
    diversity_loss_weight: float = 0.1
    tdnn_dim: list[Count] = field(default_factory=lambda: [512, 512, 512, 512, 1500])
    tdnn_kernel: list[Count] = field(default_factory=lambda: [5, 3, 3, 1, 1])
    tdnn_dilation: list[Count] = field(default_factory=lambda: [1, 2, 3, 1, 1])
    xvector_output_dim: int = 512
    add_adapter: bool = False
    adapter_kernel_size: Count = 3
    adapter_stride: Count = 2
    num_adapter_layers: Layers = 3
    output_hidden_size: int = derived(lambda c: c.hidden_size)
    adapter_attn_dim: int | None = None

    def validate(self) -> None:
        super().validate()
        self.check_equally_many("tdnn_dim", "tdnn_kernel", "tdnn_dilation")


class AdaptedBlock(PreNorm):
    """Norms before each sublayer and, for a language each (MMS, Pratap et al. 2023), a small third one."""

    adapter: nn.Module
    adapter_norm: nn.Module

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        x = super().whole(x, ctx)
        return x if (adapter := getattr(self, "adapter", None)) is None else x + adapter(self.adapter_norm(x))


def make_layers(c: WaveConfig, attention: Callable[..., Attention] = Attention) -> nn.ModuleList:
    """All blocks, with this kind of attention."""
    kind = AdaptedBlock if c.do_stable_layer_norm else PostNorm
    return standard_layers(
        c,
        partial(kind, dropout=c.hidden_dropout, layerdrop=c.layerdrop),
        partial(attention, c.hidden_size, c.num_attention_heads, dropout=c.attention_dropout),
        partial(MLP, c.hidden_size, c.intermediate_size, c.hidden_act, dropout=c.activation_dropout),
        partial(nn.LayerNorm, c.hidden_size, c.layer_norm_eps),
    )


class FeatureProjection(Linked):
    """(B, T, C) features of the convolutions -> hidden states (B, T, D), and the normed features."""

    def __init__(self, c: WaveConfig) -> None:
        super().__init__()
        self.norm: nn.Module = nn.LayerNorm(c.conv_dim[-1], c.layer_norm_eps)
        self.projection, self.dropout = nn.Linear(c.conv_dim[-1], c.hidden_size), nn.Dropout(c.feat_proj_dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.norm(x)
        return self.dropout(self.projection(features)), features


class Wav2Vec2Adapter(Linked):
    """Gated convolutions that make the states of a trained encoder fewer, as a text decoder likes them."""

    def __init__(self, c: Wav2Vec2Config, dim: int) -> None:
        super().__init__()
        resize = dim != c.hidden_size
        self.proj = nn.Linear(c.hidden_size, dim) if resize else nn.Identity()
        self.norm = nn.LayerNorm(dim) if resize else nn.Identity()
        size, stride = c.adapter_kernel_size, c.adapter_stride
        convs = (nn.Conv1d(dim, 2 * dim, size, stride, padding=1) for _ in range(c.num_adapter_layers))
        self.layers = nn.Sequential(*(nn.Sequential(OrderedDict(conv=conv, gate=nn.GLU(dim=1))) for conv in convs))

    def forward(self, x: Tensor) -> Tensor:
        gated: Tensor = self.layers(self.norm(self.proj(x)).transpose(1, 2))
        return gated.transpose(1, 2)


WAV2VEC2_BLOCK: Table = {
    "attention": ("self_attn", {"k_proj": "k_proj", "v_proj": "v_proj", "q_proj": "q_proj", "out_proj": "o_proj"}),
    "layer_norm": "self_attn_norm",
    "feed_forward": ("mlp", {"intermediate_dense": "up_proj", "output_dense": "down_proj"}),
    "final_layer_norm": "mlp_norm",
    "adapter_layer": ("", {"norm": "adapter_norm", "linear_1": "adapter.up_proj", "linear_2": "adapter.down_proj"}),
}


POSITIONS, _WEIGHT = "encoder.pos_conv_embed", "conv.parametrizations.weight.original"
WEIGHTED: tuple[str, Table] = ("embed_positions", {"conv.bias": "bias", f"{_WEIGHT}0": "gain", f"{_WEIGHT}1": "direction"})


class Wav2Vec2Model(AudioBackbone):
    config_class: ClassVar[type[WaveConfig]] = Wav2Vec2Config
    head_dropouts = ("final_dropout",)
    reads = ("input_values", "attention_mask", "mask_time_indices", "labels")
    names = Names(
        {
            "masked_spec_embed": "mask_embed",
            "feature_extractor.conv_layers.*": ("feature_extractor.conv_layers.*", {"layer_norm": "norm"}),
            "feature_projection": ("feature_projection", {"layer_norm": "norm", "projection": "projection"}),
            POSITIONS: WEIGHTED,
            "encoder.layer_norm": lambda c: "norm" if c.do_stable_layer_norm else "embed_norm",
            "encoder.layers.*": ("layers.*", WAV2VEC2_BLOCK),
            "adapter": ("adapter", {"proj": "proj", "proj_layer_norm": "norm", "layers": "layers"}),
        },
        legacy={f"{POSITIONS}.conv.weight_{old}": f"{POSITIONS}.{_WEIGHT}{place}" for place, old in enumerate("gv")},
        optional=("mask_embed", "masked_spec_embed", "adapter"),
        absent=("layers.*.adapter*",),
    )

    def __init__(self, config: WaveConfig) -> None:
        super().__init__(config)
        c, stable = config, config.do_stable_layer_norm
        self.feature_extractor = WaveEncoder(
            c.conv_dim,
            c.conv_kernel,
            c.conv_stride,
            norm=c.feat_extract_norm,
            bias=c.conv_bias,
            act=c.feat_extract_activation,
        )
        self.feature_projection = FeatureProjection(c)
        masks = c.mask_time_prob > 0 or c.mask_feature_prob > 0
        self.mask_embed = nn.Parameter(torch.empty(c.hidden_size)) if masks else None
        self.augment = SpecAugment(c)
        kernel, groups = c.num_conv_pos_embeddings, c.num_conv_pos_embedding_groups
        self.embed_positions: nn.Module = PositionalConv(c.hidden_size, kernel, groups, c.feat_extract_activation)
        self.embed_norm = nn.Identity() if stable else nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout)
        self.layers = self.make_layers(c)
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps) if stable else None
        self.adapter = Wav2Vec2Adapter(c, self.dim) if isinstance(c, Wav2Vec2Config) and c.add_adapter else nn.Identity()

    def make_layers(self, c: WaveConfig) -> nn.ModuleList:
        """The blocks; variants of the family may have others."""
        layers, inner = make_layers(c), c.adapter_attn_dim if isinstance(c, Wav2Vec2Config) else None
        if c.do_stable_layer_norm and inner is not None:
            for layer in layers:
                layer.adapter, layer.adapter_norm = MLP(c.hidden_size, inner, "relu"), nn.LayerNorm(c.hidden_size)
        return layers

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *options: Any) -> None:
        for old, new in self.names.legacy.items():  # PyTorch's own weight normalisation reads them, too
            if (tensor := state_dict.pop(f"{prefix}{old}", None)) is not None:
                state_dict[f"{prefix}{new}"] = tensor
        super()._load_from_state_dict(state_dict, prefix, *options)

    @property
    def dim(self) -> int:
        c = self.config
        return c.output_hidden_size if c.add_adapter and c.output_hidden_size else c.hidden_size

    @property
    def adapted(self) -> bool:
        return self.config.add_adapter

    def state_lengths(self, samples: N) -> N:
        c, frames = self.config, self.feature_lengths(samples)
        for _ in range(c.num_adapter_layers if c.add_adapter else 0):
            frames = conv_length(frames, c.adapter_kernel_size, c.adapter_stride, padding=1)
        return frames

    def initialize_module(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv1d):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                bound = math.sqrt(module.groups / (module.in_channels * module.kernel_size[0]))
                nn.init.uniform_(module.bias, -bound, bound)
        elif module is self.feature_projection.projection:
            module.reset_parameters()
        else:
            super().initialize_module(module)

    def reset_parameters(self) -> None:
        if self.mask_embed is not None:
            nn.init.uniform_(self.mask_embed)

    def begin(
        self,
        input_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        mask_time_indices: Tensor | None = None,
        **options: Unpack[RecordOptions],
    ) -> tuple[Tensor, Context]:
        """Make frames of waveforms; the features (B, T, C) of which they are made are shown too.

        ``input_values`` (B, S) have the sampling rate that the model was trained on (16 kHz), and real samples of
        ``attention_mask`` (B, S) come first in each row. Frames of ``mask_time_indices`` (B, T) are hidden; drawn in training.

        Raises:
            InputError: samples that are too few or not numbers, or shapes that do not fit.
        """
        values = self.check_samples(input_values, attention_mask)
        ctx = self.context(**options)
        x, ctx.features = self.feature_projection(self.feature_extractor(values).transpose(1, 2))
        if mask_time_indices is not None and mask_time_indices.shape != x.shape[:2]:
            given, right = tuple(mask_time_indices.shape), tuple(x.shape[:2])
            raise InputError(f"`mask_time_indices` has the shape {given}, but must be {right}: batch and frames.")
        if attention_mask is not None:
            ctx.padding = within(self.feature_lengths((attention_mask != 0).sum(dim=1)), x.shape[1])
        x = self.augment(x, self.mask_embed, mask_time_indices, ctx.padding)
        if ctx.padding is not None:
            x = x.masked_fill(~ctx.padding[:, :, None], 0.0)
        return self.dropout(self.embed_norm(x + self.embed_positions(x))), ctx

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        output = AudioOutput(last_hidden_state=self.adapter(self.finalize(x)), extract_features=ctx.features)
        return self.recorded(output, x, ctx)


class Wav2Vec2ForCTC(ForMultilingualCTC[Wav2Vec2Model]): ...


class Wav2Vec2ForSequenceClassification(ForAudioClassification[Wav2Vec2Model]): ...


class Wav2Vec2ForAudioFrameClassification(ForAudioFrameClassification[Wav2Vec2Model]): ...


class Wav2Vec2ForXVector(ForXVector[Wav2Vec2Model]): ...


class Wav2Vec2ForPreTraining(ForContrastivePreTraining[Wav2Vec2Model]): ...
