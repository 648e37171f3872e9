"""AST (Gong et al. 2021): DeiT over a spectrogram, of which it takes overlapping patches, as classes of sounds are told.

Shapes: B batch, T frames, F mel bins, N patches, D hidden size, C classes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Unpack

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count, Share
from transept.config.model import Config
from transept.core.inputs import RecordOptions
from transept.heads.task import Task
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.image import pair
from transept.kinds.spectrograms import SpectrogramBackbone
from transept.layers import PreNorm
from transept.layers.context import Context, read_mask
from transept.layers.grids import GridPositions, PatchEmbeddings, Patches, learned_tokens
from transept.models.vit import VIT_BLOCK, VIT_EMBEDDINGS, ViTModel
from transept.outputs import BackboneOutput, LogitsOutput, ModelOutput


class ASTConfig(EncoderConfig):
    """Settings of AST; the defaults are those of ast-finetuned-audioset-10-10-0.4593."""

    model_type = "audio-spectrogram-transformer"

    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    patch_size: int | list[int] = 16
    qkv_bias: bool = True
    frequency_stride: Count = 10
    time_stride: Count = 10
    max_length: Count = 1024
    num_mel_bins: Count = 128

    def validate(self) -> None:
        super().validate()
        if isinstance(self.patch_size, list) and len(self.patch_size) != 2:
            self.fail("patch_size", "must be one number or [bins, frames]")
        for patch, name in zip(pair(self.patch_size), ("num_mel_bins", "max_length"), strict=True):
            if not 1 <= patch <= getattr(self, name) <= 2**16:
                self.fail("patch_size", f"must fit into `{name}` ({getattr(self, name)})")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows (of frequencies) and columns (of time) of patches."""
        high, wide = pair(self.patch_size)
        return (self.num_mel_bins - high) // self.frequency_stride + 1, (self.max_length - wide) // self.time_stride + 1


class SpectrogramPatches(Patches):
    """Patches of spectrograms (B, T, F), of which the frequencies are the rows."""

    def forward(self, input_values: Tensor) -> Tensor:
        return super().forward(input_values.transpose(1, 2)[:, None])

    def grid(self, height: int, width: int) -> tuple[int, int]:
        return super().grid(width, height)


_TOKENS = ("cls_token", "distillation_token")


class ASTModel(SpectrogramBackbone):
    """AST without a head; ``pooler_output`` (B, D) is the mean of the class token and the distillation token."""

    config_class = ASTConfig
    base_model_prefix = "audio_spectrogram_transformer"
    reads = ("input_values", "labels", "attention_mask")
    axes = "(batch, frames, bins)"
    names = Names(
        {
            "embeddings": ("embeddings", {**dict(zip(_TOKENS, _TOKENS)), **VIT_EMBEDDINGS}),
            "layers.*": ("layers.*", VIT_BLOCK),
            "layernorm": "norm",
        },
        files=ViTModel.names.files,
    )

    def __init__(self, config: ASTConfig) -> None:
        super().__init__(config)
        c = config
        self.embeddings = self.make_embeddings(c)
        self.layers = encoder_layers(c, PreNorm, qkv_bias=c.qkv_bias)
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)

    def make_embeddings(self, c: ASTConfig) -> PatchEmbeddings:
        """Patches that overlap, two tokens before them, learned positions, dropout."""
        return PatchEmbeddings(
            SpectrogramPatches(1, c.hidden_size, pair(c.patch_size), (c.frequency_stride, c.time_stride)),
            tokens=learned_tokens(c.hidden_size, *_TOKENS),
            positions=GridPositions(c.grid, c.hidden_size, first=2),
            dropout=c.hidden_dropout_prob,
        )

    @property
    def spectrogram_size(self) -> tuple[int, int]:
        return self.config.max_length, self.config.num_mel_bins

    def freeze_feature_encoder(self) -> None:
        self.embeddings.patches.requires_grad_(False)

    def embedding_table(self) -> nn.Module:
        return self.embeddings.patches

    def replace_embedding_table(self, table: nn.Module) -> None:
        self.embeddings.patches = table  # type: ignore[assignment]

    def begin(
        self, input_values: Tensor | None = None, attention_mask: Tensor | None = None, **options: Unpack[RecordOptions]
    ) -> tuple[Tensor, Context]:
        """Embed the patches of spectrograms (B, T, F), two tokens before them; a mask may be (B, 2 + N), or as for text."""
        x = self.embeddings(self.check_spectrograms(input_values))
        ctx = self.context(**options)
        if attention_mask is not None:
            ctx.padding, ctx.full_mask = read_mask(attention_mask, x.shape[0], x.shape[1], x.shape[1])
        return x, ctx

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        out = self.finalize(x)
        return self.recorded(BackboneOutput(last_hidden_state=out, pooler_output=out[:, :2].mean(dim=1)), x, ctx)


class ASTForAudioClassification(Task[ASTModel]):
    """Classes of sounds, by the normed mean of two tokens: ``logits`` (B, C).

    ``labels`` are (B) integers, (B, C) for several labels at once, or numbers for regression; see ``problem_type``.
    """

    names = Names({"classifier": "head"})
    output_class = LogitsOutput

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        dim, classes = self.backbone.dim, config.num_labels
        norm, last = nn.LayerNorm(dim, config.layer_norm_eps), nn.Linear(dim, classes) if classes else nn.Identity()
        self.head = nn.Sequential(OrderedDict(layernorm=norm, dense=last))

    def predict(self, states: BackboneOutput, inputs: dict[str, Any]) -> ModelOutput:
        return LogitsOutput(logits=self.head(states.pooler_output))
