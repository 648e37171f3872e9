"""CLIP (Radford et al. 2021): a text network and an image network that learn which texts and images belong together.

Shapes: B batch, C channels, H height, W width, N patches, T positions, D hidden size, P size of the space for comparing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, Multiple, Share
from transept.config.model import Config
from transept.core.inputs import RecordOptions, readable
from transept.core.model import Backbone
from transept.core.parts import CompositeConfig, PartConfig
from transept.errors import TranseptWarning
from transept.heads.dual import DualEncoder, ForTowerClassification, ImageWithProjection, TextWithProjection, towers
from transept.kinds.encoder import UnmaskedLayersStep
from transept.kinds.image import PatchBackbone, check_patches
from transept.kinds.text import CausalBackbone, TextBackbone
from transept.layers import MLP, Attention, Block, Context, Pattern, PreNorm, standard_layers
from transept.layers.grids import EmbeddedGridPositions, PatchEmbeddings, Patches
from transept.layers.links import Step
from transept.objectives.contrastive import softmax_pairs
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput, ModelOutput

_WRONG_END = 2  # what the first files of CLIP name as the end token


class TowerConfig(PartConfig):
    """What the settings of both networks have in common."""

    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 512
    intermediate_size: Count = 2048
    num_hidden_layers: Layers = 12
    num_attention_heads: Count = 8
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    attention_dropout: Share = 0.0


class ImageTowerConfig(TowerConfig):
    """What the settings of networks for images have in common."""

    section = "vision_config"

    num_channels: Count = 3
    image_size: int | list[int] = 224
    patch_size: int | list[int] = 32

    def validate(self) -> None:
        super().validate()
        check_patches(self)


class CLIPTextConfig(TowerConfig):
    """Settings of the text network; the defaults are those of clip-vit-base-patch32."""

    model_type = "clip_text_model"
    section = "text_config"

    vocab_size: int = 49408
    max_position_embeddings: Count = 77
    projection_dim: Count = 512
    initializer_range: Deviation = 0.02
    initializer_factor: float = 1.0
    use_cache: bool = False
    pad_token_id: int | None = 1
    bos_token_id: int | None = 49406
    eos_token_id: int | list[int] | None = 49407


class CLIPVisionConfig(ImageTowerConfig):
    """Settings of the image network; the defaults are those of clip-vit-base-patch32."""

    model_type = "clip_vision_model"

    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 768
    intermediate_size: Count = 3072
    num_attention_heads: Count = 12
    projection_dim: Count = 512
    initializer_range: Deviation = 0.02
    initializer_factor: float = 1.0


class CLIPConfig(CompositeConfig):
    """Settings of CLIP: those of its two networks, and of what they are compared in."""

    model_type = "clip"
    parts: ClassVar[dict[str, Any]] = {"text_config": CLIPTextConfig, "vision_config": CLIPVisionConfig}

    text_config: CLIPTextConfig = field(default_factory=CLIPTextConfig)
    vision_config: CLIPVisionConfig = field(default_factory=CLIPVisionConfig)
    projection_dim: Count = 512
    logit_scale_init_value: float = 2.6592
    initializer_factor: float = 1.0


CLIP_BLOCK: Table = {
    "self_attn": ("self_attn", {**{f"{part}_proj": f"{part}_proj" for part in "kvq"}, "out_proj": "o_proj"}),
    "layer_norm1": "self_attn_norm",
    "mlp": ("mlp", {"fc1": "up_proj", "fc2": "down_proj"}),
    "layer_norm2": "mlp_norm",
}
# What a file of both networks holds beside one of them.
_OTHERS = frozenset({"text_projection", "visual_projection", "logit_scale", "logit_bias", "classifier"})


def tower_layers(c: TowerConfig, *, causal: bool = False) -> nn.ModuleList:
    """The layers of either network."""
    heads, pattern = c.num_attention_heads, Pattern(causal=causal)
    return standard_layers(
        c,
        PreNorm,
        partial(Attention, c.hidden_size, heads, pattern=pattern, dropout=c.attention_dropout),
        partial(MLP, c.hidden_size, c.intermediate_size, c.hidden_act),
        partial(nn.LayerNorm, c.hidden_size, c.layer_norm_eps),
    )


TEXT_EMBEDDINGS: Table = {"token_embedding": "embed_tokens", "position_embedding": "embed_positions"}


class TextEmbeddings(nn.Module):
    """The sum of the embeddings of tokens and of positions: (B, T) ids -> (B, T, D)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(
        self, input_ids: Tensor | None = None, position_ids: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        tokens: Any = self.token_embedding(input_ids) if inputs_embeds is None else inputs_embeds
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None] if position_ids is None else position_ids
        return tokens + self.position_embedding(positions).to(tokens.dtype)


class _Tower(Backbone):
    """What both networks have in common: their names in files, and how they begin."""

    beside: ClassVar[frozenset[str]] = frozenset()

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"encoder": UnmaskedLayersStep}

    @classmethod
    def names_of(cls, config: Config) -> Names:
        # A file of both networks is read by one of them.
        return super().names_of(config) | Names(heads=_OTHERS | cls.beside, ignore=("embeddings.position_ids",))

    def checkpoint_names(self) -> Names:
        """Alone, a network is stored under its name in the whole model; files without that are read too."""
        names = self.tree_names(self.config)
        return (names.below("", self.base_model_prefix, loose=True, tree="") | Names(heads=names.heads)).placed()

    def deviations(self) -> dict[nn.Module, float]:
        """The standard deviations of new matrices."""
        c = self.config
        wide, deep = c.hidden_size**-0.5, (2 * c.num_hidden_layers) ** -0.5
        found: dict[nn.Module, float] = {}
        for layer in self.layers:
            assert isinstance(layer, Block)
            attention, mlp = layer.self_attn, layer.mlp
            assert isinstance(mlp, MLP)
            found |= dict.fromkeys((attention.q_proj, attention.k_proj, attention.v_proj, mlp.down_proj), wide * deep)
            found |= {attention.o_proj: wide, mlp.up_proj: 2**-0.5 * wide}
        return found

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if (std := self.deviations().get(module)) is not None:
            nn.init.normal_(module.get_parameter("weight"), std=std * self.config.initializer_factor)


class TextTower(_Tower, TextBackbone):
    """A network over tokens with learned positions and one pooled state for each text."""

    base_model_prefix = "text_model"
    beside = frozenset({"vision_model"})
    reads = ("input_ids", "attention_mask", "position_ids")
    accepts: ClassVar[type] = RecordOptions  # neither caches nor rows without padding
    ragged = False
    names = Names(
        {
            "embeddings": ("", TEXT_EMBEDDINGS),
            "encoder.layers.*": ("layers.*", CLIP_BLOCK),
            "final_layer_norm": "norm",
        }
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        c = config
        self.embeddings = TextEmbeddings(c)
        for stored, own in TEXT_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        self.layers = tower_layers(c, causal=self.causal)  # type: ignore[arg-type]
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.embeddings(inputs_embeds=x, position_ids=positions)

    def infer_mask(self, ids: Tensor) -> None:
        """Texts were padded with ids that mean something elsewhere, and read without a mask."""
        return

    def pool(self, x: Tensor, ctx: Context) -> Tensor:
        """The state (B, D) of each text, of the normed ones (B, T, D)."""
        raise NotImplementedError

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        out = self.finalize(x)
        return self.recorded(BackboneOutput(last_hidden_state=out, pooler_output=self.pool(out, ctx)), x, ctx)


class ImageTower(_Tower, PatchBackbone):
    """A network over patches of images, with learned positions and one pooled state for each image."""

    base_model_prefix = "vision_model"
    beside = frozenset({"text_model"})
    reads = ("pixel_values", "labels", "interpolate_pos_encoding")
    names = Names(
        {
            "embeddings": (
                "embeddings",
                {
                    "class_embedding": "cls_token",
                    "patch_embedding": "patches.projection",
                    "position_embedding": "positions.table",
                },
            ),
            "pre_layrnorm": "embed_norm",
            "encoder.layers.*": ("layers.*", CLIP_BLOCK),
            "post_layernorm": "norm",
        }
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embeddings = self.make_embeddings(config)
        self.layers = tower_layers(config)  # type: ignore[arg-type]
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def make_embeddings(self, c: Any) -> PatchEmbeddings:
        """What makes the states that go into the first layer."""
        raise NotImplementedError


class CLIPTextModel(TextTower, CausalBackbone):
    """CLIP's text network: ``pooler_output`` (B, D) is the normed state of the first end token of each text.

    Where a text has none, it is the first state, with a warning.
    """

    config_class = CLIPTextConfig

    def deviations(self) -> dict[nn.Module, float]:
        return super().deviations() | dict.fromkeys((self.embed_tokens, self.embed_positions), 0.02)

    def begin(self, input_ids: Tensor | None = None, **inputs: Any) -> tuple[Tensor, Context]:  # type: ignore[override]
        """Embed texts (B, T), and note where they end."""
        x, ctx = super().begin(input_ids, **inputs)
        assert input_ids is not None
        ctx.own = self.ends(input_ids)
        return x, ctx

    def ends(self, ids: Tensor) -> Tensor:
        """(B) places of the ends of texts (B, T)."""
        end = self.config.eos_token_id
        end = next(iter(end), None) if isinstance(end, list) else end
        if end == _WRONG_END:
            return ids.argmax(dim=-1)  # the end token is the largest id then
        marked = ids == (-1 if end is None else end)
        if readable(ids) and not (has := marked.any(dim=-1)).all():
            what = f"row {int((~has).nonzero()[0])} of `input_ids` has no end token ({end}), whose state stands for the text"
            warnings.warn(f"{what}: the first state is taken.", TranseptWarning, stacklevel=2)
        return marked.int().argmax(dim=-1)

    def pooled_places(self, x: Tensor, ctx: Context[Tensor]) -> Tensor | None:
        return ctx.firsts(x) + ctx.own.to(x.device)

    def pool(self, x: Tensor, ctx: Context[Tensor]) -> Tensor:
        if ctx.pooled is not None:
            return x[:, 0]
        return x[torch.arange(len(x), device=x.device), ctx.own.to(x.device)]


class CLIPVisionModel(ImageTower):
    """CLIP's image network: ``pooler_output`` (B, D) is the normed state of the class token; the others are not normed."""

    config_class = CLIPVisionConfig

    def __init__(self, config: CLIPVisionConfig) -> None:
        super().__init__(config)
        self.embed_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def make_embeddings(self, c: CLIPVisionConfig) -> PatchEmbeddings:
        """Patches by a projection without bias, a class token before them, learned positions."""
        patches = Patches(c.num_channels, c.hidden_size, self.patch_size, bias=False)
        return PatchEmbeddings(
            patches,
            tokens={"cls_token": nn.Parameter(torch.empty(c.hidden_size))},
            positions=EmbeddedGridPositions(patches.grid(*self.image_size), c.hidden_size, first=1),
            image_size=self.image_size,
            initialize=partial(nn.init.normal_, std=c.hidden_size**-0.5 * c.initializer_factor),
        )

    def deviations(self) -> dict[nn.Module, float]:
        tables: Any = self.embeddings.patches.projection, self.embeddings.positions.table  # type: ignore[union-attr]
        return super().deviations() | dict.fromkeys(tables, self.config.initializer_range)

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        x, ctx = super().begin(*args, **inputs)
        return self.embed_norm(x), ctx

    def pooled_places(self, x: Tensor, ctx: Context) -> Tensor | None:
        return ctx.firsts(x)

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        return self.recorded(BackboneOutput(last_hidden_state=x, pooler_output=self.finalize(x[:, 0])), x, ctx)


class CLIPModel(DualEncoder):
    """CLIP: ``logits_per_image`` (M, N) are the scaled cosines of images and texts; see :class:`DualEncoder`."""

    config_class = CLIPConfig
    base_model_prefix = "clip"
    parts = towers(CLIPTextModel, CLIPVisionModel)
    names = Names(
        {"visual_projection": "visual_projection", "text_projection": "text_projection"},
        ignore=("embeddings.position_ids",),
        heads=frozenset({"classifier"}),
    )

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__(config)
        self.text_projection = nn.Linear(self.text_model.dim, config.projection_dim, bias=False)
        self.visual_projection = nn.Linear(self.vision_model.dim, config.projection_dim, bias=False)
        self.logit_scale = nn.Parameter(torch.empty(()))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.logit_scale, self.config.logit_scale_init_value)

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        for projection in (self.text_projection, self.visual_projection):
            if module is projection:
                nn.init.normal_(projection.weight, std=projection.in_features**-0.5 * self.config.initializer_factor)

    @property
    def vector_size(self) -> int:
        return int(self.config.projection_dim)

    def text_vector(self, pooled: Tensor) -> Tensor:
        return self.text_projection(pooled)

    def image_vector(self, pooled: Tensor) -> Tensor:
        return self.visual_projection(pooled)

    def logits(self, cosines: Tensor) -> Tensor:
        return cosines * self.logit_scale.exp()

    def terms(self, logits: Tensor) -> dict[str, LossTerm]:
        return {"contrastive": softmax_pairs(logits)}


class CLIPTextModelWithProjection(TextWithProjection[CLIPTextModel]): ...


class CLIPVisionModelWithProjection(ImageWithProjection[CLIPVisionModel]): ...


class CLIPForImageClassification(ForTowerClassification[CLIPVisionModel]):
    config_class = CLIPConfig
