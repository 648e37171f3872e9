"""LFM2 (Liquid AI 2025): short convolutions between two gates, and a few layers of attention with normed heads."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from torch import Tensor, nn

from transept.checkpoint.gguf import FLAT_CONV, Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Layers, PaddingId, derived
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import FULL, GroupedConfig
from transept.kinds.hybrid import CONV, HeadsByLayer, HybridBackbone
from transept.layers import Context, GatedMLP, RMSNorm
from transept.layers.caches.layer import States
from transept.layers.links import Linked
from transept.layers.recurrent import causal_conv, real_positions
from transept.models.llama import LlamaModel
from transept.storage.gguf import GGUF


class ConvConfig(GroupedConfig, HeadsByLayer):
    """What decoders with short convolutions of ``conv_L_cache`` positions have in common."""

    default_theta = 1e6
    kinds = (CONV, FULL)
    aliases = {"tie_embedding": "tie_word_embeddings", "rms_norm_eps": "norm_eps"}

    vocab_size: int = 65536
    num_hidden_layers: Layers = 32
    num_key_value_heads: int = 8
    max_position_embeddings: int = 128000
    norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = True
    conv_bias: bool = False
    conv_L_cache: Count = 3  # noqa: N815 (the reference's name)
    gguf_keys = {"shortconv.l_cache": "conv_L_cache"}


class Lfm2Config(ConvConfig):
    """Settings of LFM2; without ``layer_types``, the layers of ``full_attn_idxs`` have attention, by default all.

    With ``block_auto_adjust_ff_dim`` the inner size of feed-forward layers is two thirds of ``intermediate_size``, times
    ``block_ffn_dim_multiplier``, and rounded up to a multiple of ``block_multiple_of``.
    """

    model_type = "lfm2"
    aliases = {"block_ff_dim": "intermediate_size"}

    hidden_size: int = 2560
    intermediate_size: int = 12288
    block_multiple_of: Count = 256
    block_ffn_dim_multiplier: float = 1.0
    block_auto_adjust_ff_dim: bool = True
    full_attn_idxs: list[int] | None = None
    layer_types: list[str] = derived(
        lambda c: [FULL if c.full_attn_idxs is None or i in c.full_attn_idxs else CONV for i in range(c.num_hidden_layers)]
    )

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        return super().from_gguf(gguf, values) | {"block_auto_adjust_ff_dim": False}  # files have the inner size itself

    def in_gguf(self) -> Self:
        """With the inner size itself."""
        own = {"layer_types": self.layer_types, "full_attn_idxs": None, "intermediate_size": self.inner_size}
        usual = {"block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False}
        return self.with_settings(**own, **usual)

    @property
    def inner_size(self) -> int:
        size = self.intermediate_size
        if self.block_auto_adjust_ff_dim:
            size = int(self.block_ffn_dim_multiplier * int(2 * size / 3))
            size += -size % self.block_multiple_of
        return size


class ShortConv(Linked):
    """A convolution over a few positions, of inputs that a gate lets through; another gate lets its outputs through."""

    def __init__(self, c: ConvConfig) -> None:
        super().__init__()
        dim = c.hidden_size
        self.conv = nn.Conv1d(dim, dim, c.conv_L_cache, groups=dim, bias=c.conv_bias)
        self.in_proj, self.out_proj = nn.Linear(dim, 3 * dim, c.conv_bias), nn.Linear(dim, dim, c.conv_bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D); padding counts as zeros."""
        real, kept = real_positions(x, ctx), ctx.kept(States)
        before, after, x = self.in_proj(x if real is None else x * real).mT.chunk(3, dim=1)
        given = before * x if real is None else before * x * real.mT
        out, last = causal_conv(given, self.conv.weight, self.conv.bias, kept.get("conv") if kept else None)
        if kept is not None:
            kept.keep(x.shape[2], conv=last)
        return self.out_proj((after * out).mT)


CONV_BLOCK: Table = {
    "self_attn": (
        "self_attn",
        {
            **{name: name for name in ("q_proj", "k_proj", "v_proj")},
            "out_proj": "o_proj",
            "q_layernorm": "q_norm",
            "k_layernorm": "k_norm",
        },
    ),
    "conv": ("mixer", {name: name for name in ("conv", "in_proj", "out_proj")}),
    "feed_forward": ("mlp", {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}),
    "operator_norm": "self_attn_norm",
    "ffn_norm": "mlp_norm",
}


CONV_FILES = Layout(
    {f"shortconv.{name}": f"mixer.{name}" for name in ("conv", "in_proj", "out_proj")},
    {"output_norm": None, "token_embd_norm": "norm"},
    {"shortconv.conv.weight": FLAT_CONV},
)


class Lfm2Model(HybridBackbone, LlamaModel):
    config_class: ClassVar[type[ConvConfig]] = Lfm2Config
    names = LlamaModel.names | Names({"layers.*": ("layers.*", CONV_BLOCK), "embedding_norm": "norm"})
    gguf = CONV_FILES
    qk_norm_class = RMSNorm
    config: ConvConfig

    def mixer(self, layer: int) -> nn.Module:
        return ShortConv(self.config)

    def feed_forward(self, layer: int) -> nn.Module:
        c: Any = self.config
        return GatedMLP(c.hidden_size, c.inner_size, "silu", chunk_size=c.chunk_size_feed_forward)


class Lfm2ForCausalLM(ForCausalLM[Lfm2Model]): ...
