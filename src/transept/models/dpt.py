"""DPT (Ranftl et al. 2021): states of several layers of a vision transformer, made into maps of several sizes and fused.

A small head then gives a depth or a class for each pixel. The transformer is a ViT of its own, whose positions are resized to
the image, or another family's. Shapes: B batch, C channels, H height, W width, N patches, T = N + 1 positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Share, Signed, derived
from transept.config.model import Config
from transept.core.parts import CompositeConfig, Part, resolved
from transept.errors import ConfigError, UnsupportedError
from transept.heads.depth import DepthHead, ForDepthEstimation
from transept.heads.segment import ForSemanticSegmentation
from transept.heads.task import Task
from transept.kinds.encoder import EncoderConfig, LayersStep
from transept.kinds.feature_maps import FeatureMaps
from transept.kinds.image import check_patches
from transept.layers.grids import GridPositions, PatchEmbeddings, Patches, learned_tokens
from transept.layers.links import Linked, Step
from transept.layers.reassemble import Neck, stretched
from transept.models.vit import VIT_ATTENTION_FILES, VIT_EMBEDDINGS, ViTConfig, ViTModel


class NeckConfig(CompositeConfig):
    """Settings of what reads the states of another network, ``backbone_config``, and makes maps of them.

    Each of its feature maps, which must stay states (B, T, D), becomes one of ``neck_hidden_sizes`` channels,
    ``reassemble_factors`` times as large. ``head_in_index`` says which of the fused maps the head reads.
    """

    backbone_config: Config | None = None
    reassemble_factors: list[int | float] = field(default_factory=lambda: [4, 2, 1, 0.5])
    neck_hidden_sizes: list[Count] = field(default_factory=lambda: [96, 192, 384, 768])
    fusion_hidden_size: Count = 256
    head_in_index: Signed = -1
    initializer_range: Deviation = 0.02

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("backbone_config") is None and isinstance(name := values.get("backbone"), str):
            hint = "Give its settings as `backbone_config`."
            raise ConfigError(f"`backbone` of {cls.__name__} names another repository, {name[:80]!r}.", hint=hint)
        return super().upgrade(values)

    @property
    def states_read(self) -> int:
        """Of how many layers the states are read."""
        assert self.backbone_config is not None
        return len(self.backbone_config.out_indices)

    def check_read(self) -> None:
        """Require what a model needs: a size for each of the states that are read."""
        if len(self.neck_hidden_sizes) != self.states_read:
            self.fail("neck_hidden_sizes", f"must have as many numbers as states are read ({self.states_read})")

    def validate(self) -> None:
        super().validate()
        factors = self.reassemble_factors
        if not all(float(each if each >= 1 else 1 / each).is_integer() if each > 0 else False for each in factors):
            self.fail("reassemble_factors", "must hold whole numbers, or 1 divided by one")
        inner, maps = self.backbone_config, len(self.neck_hidden_sizes)
        if inner is not None and not isinstance(getattr(inner, "out_indices", None), list):
            self.fail("backbone_config", f"must be of a family that gives feature maps, not of {inner.model_type!r}")
        if inner is not None and getattr(inner, "reshape_hidden_states", True):
            self.fail("backbone_config", "must have `reshape_hidden_states=False`", "Other networks than DINOv2 are not read.")
        if maps > len(factors):
            self.fail("neck_hidden_sizes", f"must have no more numbers than `reassemble_factors` ({len(factors)})")
        if not -maps <= self.head_in_index < maps:
            self.fail("head_in_index", f"must be the number of one of {maps} maps")


class DPTConfig(NeckConfig, EncoderConfig):
    """Settings of DPT; the defaults are those of dpt-large but for its size.

    Without ``backbone_config`` the transformer is a ViT of these settings, and the states after the layers
    ``backbone_out_indices``, from 0, are read; numbers beyond the layers are passed over. ``readout_type`` says what becomes
    of the class token.
    """

    model_type = "dpt"
    parts = {"backbone_config": {"model_type": "dinov2", "reshape_hidden_states": False}}

    hidden_size: Count = 768
    hidden_dropout_prob: Share = 0.0
    attention_probs_dropout_prob: Share = 0.0
    image_size: int | list[int] = 384
    patch_size: int | list[int] = 16
    num_channels: Count = 3
    is_hybrid: Literal[False] = False
    qkv_bias: bool = True
    backbone_out_indices: list[int] = field(default_factory=lambda: [2, 5, 8, 11])
    readout_type: Literal["ignore", "add", "project"] = "project"
    use_batch_norm_in_fusion_residual: bool = False
    use_bias_in_fusion_residual: bool | None = None
    add_projection: bool = False
    use_auxiliary_head: bool = True
    auxiliary_loss_weight: float = 0.4
    semantic_loss_ignore_index: int = 255
    semantic_classifier_dropout: Share = 0.1
    pooler_output_size: int = derived(lambda c: c.hidden_size)
    pooler_act: str = "tanh"

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("is_hybrid"):
            what = "the hybrid DPT, over a BiT network of convolutions, is not here."
            raise UnsupportedError(what, hint="Use one with a vision transformer alone, such as Intel/dpt-large.")
        values = {key: value for key, value in values.items() if key not in ("backbone_featmap_shape", "neck_ignore_stages")}
        if values.get("backbone_config") is None:
            return super().upgrade(values) | {"backbone_config": None}  # a ViT of its own
        # Files have no values for what a ViT of its own would need.
        return super().upgrade({key: value for key, value in values.items() if value is not None})

    @property
    def states_read(self) -> int:
        return len(self.layers_read) if self.backbone_config is None else super().states_read

    @property
    def layers_read(self) -> list[int]:
        """The layers of a ViT of its own whose states are read, from 0."""
        return [layer for layer in self.backbone_out_indices if layer < self.num_hidden_layers]

    def validate(self) -> None:
        super().validate()
        if self.backbone_config is not None:
            return  # there is no ViT of its own
        check_patches(self)
        read = self.backbone_out_indices
        if sorted(set(read)) != read or read[:1] < [0]:
            rule = "must be numbers of layers from 0, each once and in their order"
            self.fail("backbone_out_indices", rule)

    def check_model(self) -> None:
        super().check_model()
        if self.backbone_config is None:
            self.divided("hidden_size", "num_attention_heads")


# The names that ViT's modules once had.
_BLOCK: Table = {
    "attention": ("self_attn", VIT_ATTENTION_FILES),
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "layernorm_before": "self_attn_norm",
    "layernorm_after": "mlp_norm",
}


class DPTModel(ViTModel):
    """The ViT of DPT, without a head: its positions are resized bilinearly to images of any size."""

    config_class = DPTConfig  # type: ignore[assignment]
    base_model_prefix = "dpt"
    reads = ("pixel_values", "labels")  # type: ignore[assignment]
    names = replace(
        ViTModel.names,
        table={
            "embeddings": ("embeddings", VIT_EMBEDDINGS),
            "encoder.layer.*": ("layers.*", _BLOCK),
            "layernorm": "norm",
            "pooler": "pooler",
        },
        files={},
        heads=frozenset({"neck", "head", "auxiliary_head"}),
    )
    config: DPTConfig

    def __init__(self, config: DPTConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)  # type: ignore[arg-type]

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"encoder": LayersStep}

    def make_embeddings(self, c: ViTConfig, mask_token: nn.Parameter | None) -> PatchEmbeddings:
        """Patches of images of any size, a class token before them, learned positions, dropout."""
        patches = Patches(c.num_channels, c.hidden_size, self.patch_size)
        grid, resize = patches.grid(*self.image_size), partial(F.interpolate, mode="bilinear", align_corners=False)
        return PatchEmbeddings(
            patches,
            tokens=learned_tokens(c.hidden_size, "cls_token"),
            positions=GridPositions(grid, c.hidden_size, first=1, resize=resize),
            dropout=c.hidden_dropout_prob,
        )


class _DPTStates(FeatureMaps, DPTModel):
    """The ViT of DPT that gives the states (B, T, D) after some layers."""

    @property
    def stage_names(self) -> list[str]:
        return [str(layer) for layer in range(-1, self.config.num_hidden_layers)]  # the first are those before all layers

    @property
    def out_features(self) -> list[str]:
        return [str(layer) for layer in self.config.layers_read]


_UNIT = {f"{long}{i}": f"{short}{i}" for long, short in (("convolution", "conv"), ("batch_norm", "norm")) for i in (1, 2)}
_FUSION: Table = {"projection": "project", "residual_layer1": ("skip", _UNIT), "residual_layer2": ("unit", _UNIT)}
# The names of a neck; the first fusion has nothing to add, and some files lack the part for it.
NECK = Names(
    {
        "neck.reassemble_stage.layers.*": ("neck.reassemble.*", {"projection": "project", "resize": "resize"}),
        "neck.reassemble_stage.readout_projects.*.0": "neck.reassemble.*.readout",
        "neck.convs": "neck.convs",
        "neck.fusion_stage.layers.*": ("neck.fusions.*", _FUSION),
    },
    absent=("neck.fusions.0.skip",),
)


class _DPTTask(Task[_DPTStates]):
    """What both tasks share: which network is read, and the neck over its states."""

    @classmethod
    def backbone_part(cls, config: Config) -> Part:
        part = super().backbone_part(config)
        if config.backbone_config is None:
            return replace(part, place="dpt")
        return replace(part, kind=resolved("Backbone"), field="backbone_config", place="backbone")

    def make_neck(self, c: DPTConfig) -> Neck:
        c.check_read()
        norm, bias = c.use_batch_norm_in_fusion_residual, c.use_bias_in_fusion_residual
        sizes = self.backbone.dim, c.fusion_hidden_size, c.neck_hidden_sizes, c.reassemble_factors
        bias = not norm if bias is None else bias
        return Neck(*sizes, readout=c.readout_type, act=c.hidden_act, norm=norm, bias=bias)

    def fused(self, states: Any, size: Sequence[int]) -> list[Tensor]:
        """The maps of a neck, of the backbone's output and the size of the images."""
        maps: list[Tensor] = self.neck(states.feature_maps, self.backbone.prefix_tokens, self.backbone.grid(*size))
        return maps


class DPTForDepthEstimation(_DPTTask, ForDepthEstimation[_DPTStates]):
    """DPT that estimates depths, in twice the size of a fused map."""

    names = NECK | Names(
        {"head": ("head", {"projection": "project"} | {f"head.{2 * i}": f"conv{i + 1}" for i in range(3)})},
    )

    def __init__(self, config: DPTConfig) -> None:
        super().__init__(config)
        self.neck = self.make_neck(config)
        self.head = DepthHead(config.fusion_hidden_size, projects=config.add_projection)

    def depth(self, states: Any, size: Sequence[int]) -> Tensor:
        x = self.fused(states, size)[self.config.head_in_index]
        out: Tensor = self.head(x, (2 * x.shape[2], 2 * x.shape[3]))
        return out


class PixelClassifier(Linked):
    """A convolution, a norm over the batch and a classifier, (B, C, H, W) -> (B, K, H, W)."""

    def __init__(self, channels: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm, self.dropout = nn.BatchNorm2d(channels), nn.Dropout(dropout)
        self.classifier = nn.Conv2d(channels, classes, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.dropout(F.relu(self.norm(self.conv(x)))))
        return out


_CLASSIFIER = {"head.0": "conv", "head.1": "norm", "head.4": "classifier"}


class DPTForSemanticSegmentation(_DPTTask, ForSemanticSegmentation[_DPTStates]):
    """DPT that gives a class for each pixel; the config may ask for another head in training, over the last fused map."""

    names = NECK | Names({"head": ("head", _CLASSIFIER), "auxiliary_head": ("auxiliary", _CLASSIFIER)})

    def __init__(self, config: DPTConfig) -> None:
        super().__init__(config)
        self.neck = self.make_neck(config)

    def make_head(self, config: Config) -> nn.Module:
        return PixelClassifier(config.fusion_hidden_size, config.num_labels, config.semantic_classifier_dropout)

    def make_auxiliary(self, config: Config) -> nn.Module | None:
        return PixelClassifier(config.fusion_hidden_size, config.num_labels, 0.1) if config.use_auxiliary_head else None

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        return self.backbone(return_dict=True, **inputs)

    def maps(self, states: Any, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
        return tuple(self.fused(states, inputs["pixel_values"].shape[2:]))

    def logits(self, maps: tuple[Tensor, ...]) -> Tensor:
        logits = self.head(maps[self.config.head_in_index])
        return stretched(logits, (2 * logits.shape[2], 2 * logits.shape[3]))
