"""SigLIP (Zhai et al. 2023): CLIP's two networks, which learn of each pair by itself whether it belongs together.

Texts are read in both directions and padded to one length, images are pooled by attention. Shapes as for CLIP.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Multiple, derived
from transept.core.model import Backbone
from transept.core.parts import CompositeConfig
from transept.heads.dual import DualEncoder, ForTowerClassification, towers
from transept.layers import MLP, Attention, Context, FusedAttention
from transept.layers.grids import EmbeddedGridPositions, PatchEmbeddings, Patches
from transept.layers.links import Linked, parts
from transept.models.clip import CLIP_BLOCK, ImageTower, ImageTowerConfig, TextTower, TowerConfig
from transept.objectives.contrastive import sigmoid_pairs
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput, ModelOutput


class SiglipTextConfig(TowerConfig):
    """Settings of the text network; the defaults are those of siglip-base-patch16-224."""

    model_type = "siglip_text_model"
    section = "text_config"

    vocab_size: int = 32000
    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 768
    intermediate_size: Count = 3072
    num_attention_heads: Count = 12
    max_position_embeddings: Count = 64
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    pad_token_id: int | None = 1
    bos_token_id: int | None = 49406
    eos_token_id: int | list[int] | None = 49407
    projection_size: int = derived(lambda c: c.hidden_size)


class SiglipVisionConfig(ImageTowerConfig):
    """Settings of the image network; without ``vision_use_head`` nothing is pooled."""

    model_type = "siglip_vision_model"

    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 768
    intermediate_size: Count = 3072
    num_attention_heads: Count = 12
    patch_size: int | list[int] = 16
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6
    vision_use_head: bool = True


class SiglipConfig(CompositeConfig):
    """Settings of SigLIP: those of its two networks."""

    model_type = "siglip"
    parts: ClassVar[dict[str, Any]] = {"text_config": SiglipTextConfig, "vision_config": SiglipVisionConfig}

    text_config: SiglipTextConfig = field(default_factory=SiglipTextConfig)
    vision_config: SiglipVisionConfig = field(default_factory=SiglipVisionConfig)
    initializer_factor: float = 1.0


class JointAttention(FusedAttention):
    """Attention of which PyTorch's own kind has the parameters: one matrix gives queries, then keys, then values."""

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        self.in_proj_weight, self.in_proj_bias = (nn.Parameter(torch.empty(3 * dim, *rest)) for rest in ((dim,), ()))

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.in_proj_bias)

    def queries(self, x: Tensor) -> Tensor:
        size = x.shape[-1]
        return self.split(F.linear(x, self.in_proj_weight[:size], self.in_proj_bias[:size]))

    def keys_of(self, states: Tensor) -> tuple[Tensor, Tensor]:
        size = states.shape[-1]
        k, v = F.linear(states, self.in_proj_weight[size:], self.in_proj_bias[size:]).chunk(2, dim=-1)
        return self.split(k), self.split(v)


class AttentionPool(Linked):
    """A learned query that attends to all states, and a feed-forward layer: (B, T, D) -> (B, D)."""

    def __init__(self, c: SiglipVisionConfig) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, c.hidden_size))
        self.attention = JointAttention(c.hidden_size, c.num_attention_heads)
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.mlp = MLP(c.hidden_size, c.intermediate_size, c.hidden_act)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.probe)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        attention = self.attention
        q, (k, v) = attention.queries(self.probe.expand(len(x), -1, -1)), attention.keys_of(x)
        x, _ = attention.attend(q, k, v, None, False, ctx)
        x = attention.o_proj(x.transpose(1, 2).flatten(2))
        x = x + self.mlp(self.norm(x))
        return x[:, 0]


# New matrices are drawn as wide as if numbers beyond two deviations were cut off, which leaves this much of one.
_CUT = 0.87962566
_BLOCK: Table = {name: CLIP_BLOCK[name] for name in ("layer_norm1", "self_attn", "layer_norm2", "mlp")}


class _Siglip(Backbone):
    """How both networks begin: by the sizes of each layer."""

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.dim**-0.5)
        elif isinstance(module, nn.Linear) and self.is_within(module):
            nn.init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(module.weight, std=module.weight[0].numel() ** -0.5 / _CUT)

    def is_within(self, module: nn.Linear) -> bool:
        """Whether a layer is one of an attention or of a feed-forward layer, but for an attention that pools."""
        wholes = (part for part in self.modules() if isinstance(part, Attention | MLP) and not isinstance(part, JointAttention))
        return any(module is each for whole in wholes for each in parts(whole).values())

    def deviations(self) -> dict[nn.Module, float]:
        return {}


class SiglipTextModel(_Siglip, TextTower):
    """SigLIP's text network: ``pooler_output`` (B, P) is made of the last state, padding or not."""

    config_class = SiglipTextConfig
    names = TextTower.names | Names({"encoder.layers.*": ("layers.*", _BLOCK), "head": "head"})

    def __init__(self, config: SiglipTextConfig) -> None:
        super().__init__(config)
        self.head = nn.Linear(config.hidden_size, config.projection_size)

    def pool(self, x: Tensor, ctx: Context) -> Tensor:
        return self.head(x[:, -1])


class SiglipVisionModel(_Siglip, ImageTower):
    """SigLIP's image network, without a class token; ``pooler_output`` (B, D) is gathered by attention over all patches."""

    config_class = SiglipVisionConfig
    names = ImageTower.names | Names(
        {
            "encoder.layers.*": ("layers.*", _BLOCK),
            "head": (
                "head",
                {
                    "attention": ("attention", {"out_proj": "o_proj"}),
                    "layernorm": "norm",
                    "mlp": ("mlp", {"fc1": "up_proj", "fc2": "down_proj"}),
                },
            ),
        },
        optional=("head",),
    )

    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__(config)
        self.head = AttentionPool(config) if config.vision_use_head else None

    def make_embeddings(self, c: SiglipVisionConfig) -> PatchEmbeddings:
        """Patches and learned positions."""
        patches = Patches(c.num_channels, c.hidden_size, self.patch_size)
        positions = EmbeddedGridPositions(patches.grid(*self.image_size), c.hidden_size)
        return PatchEmbeddings(patches, positions=positions, image_size=self.image_size)

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        out = self.finalize(x)
        pooled = None if self.head is None else self.head(out, ctx)
        return self.recorded(BackboneOutput(last_hidden_state=out, pooler_output=pooled), x, ctx)


class SiglipModel(DualEncoder):
    """SigLIP: ``logits_per_image`` (M, N), whose sigmoids say how likely each text fits each image."""

    config_class = SiglipConfig
    base_model_prefix = "siglip"
    parts = towers(SiglipTextModel, SiglipVisionModel)
    names = Names(ignore=("embeddings.position_ids",), heads=frozenset({"classifier"}))
    text_padding = "max_length"

    def __init__(self, config: SiglipConfig) -> None:
        super().__init__(config)
        if config.text_config.projection_size != (size := config.vision_config.hidden_size):
            config.text_config.fail("projection_size", f"must be {size}, the size that images are compared in")
        self.logit_scale = nn.Parameter(torch.empty(1))
        self.logit_bias = nn.Parameter(torch.empty(1))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.logit_scale)
        nn.init.zeros_(self.logit_bias)

    def logits(self, cosines: Tensor) -> Tensor:
        return cosines * self.logit_scale.exp() + self.logit_bias

    def probabilities(self, logits: Tensor) -> Tensor:
        """Each text fits or does not, whatever the others."""
        return logits.sigmoid()

    def terms(self, logits: Tensor) -> dict[str, LossTerm]:
        return {"contrastive": sigmoid_pairs(logits)}


class SiglipForImageClassification(ForTowerClassification[SiglipVisionModel]):
    config_class = SiglipConfig
