"""Settings of decoders with grouped heads and rotary positions, and the sublayers that follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from transept.config.fields import Count, Deviation, Layers, PaddingId, Share, derived
from transept.config.rotary import RotaryConfig
from transept.layers import MLP, Attention, GatedMLP, Pattern, RMSNorm
from transept.layers.attention.latent import LatentAttention, LatentSizes
from transept.storage.gguf import GGUF

FULL, SLIDING = "full_attention", "sliding_attention"
CAUSAL_ONLY = "must be false or null: this family's masks are causal"


class GroupedConfig(RotaryConfig):
    """What these families have in common; each adds its activation, its norms, the settings of its own and its defaults.

    ``attention_bias`` and ``mlp_bias`` are settings in the families that have such biases, and false in the others.
    """

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: Layers = 32
    num_attention_heads: int = 32
    pad_token_id: PaddingId | None = None
    num_key_value_heads: int = derived(lambda c: c.num_attention_heads)
    head_dim: int = derived(lambda c: c.divided("hidden_size", "num_attention_heads"))
    max_position_embeddings: int = 2048
    initializer_range: Deviation = 0.02
    tie_word_embeddings: bool = False
    attention_dropout: Share = 0.0
    classifier_dropout: Share | None = None
    attention_bias = mlp_bias = False
    is_causal = True  # whether a query sees only what is before it
    is_chunked = False  # whether windows stand still, as chunks of texts

    def validate(self) -> None:
        super().validate()
        self.divided("num_attention_heads", "num_key_value_heads")

    def window(self, layer: int) -> int | None:
        """How many positions a layer's queries see, themselves included; ``None`` for all before them."""
        return None


class DecoderConfig(GroupedConfig):
    """Settings of a decoder whose norms are root-mean-square norms."""

    rms_norm_eps: float = 1e-6


class SwitchedConfig(DecoderConfig):
    """A decoder whose layers may have a window of ``sliding_window`` positions, with ``use_sliding_window`` alone."""

    use_sliding_window: bool = False
    sliding_window: Count | None = derived(lambda c: 4096 if c.use_sliding_window else None)

    def validate(self) -> None:
        if not self.use_sliding_window:
            self.sliding_window = None
        super().validate()


class LayeredConfig(GroupedConfig):
    """A decoder in which some layers see all that comes before, and others a window of ``sliding_window`` positions.

    ``layer_types`` names each layer's kind, ``full_attention`` or ``sliding_attention``; when absent, ``slides`` tells.
    """

    sliding_window: Count | None = 4096
    layer_types: list[str] = derived(lambda c: [SLIDING if c.slides(i) else FULL for i in range(c.num_hidden_layers)])

    def slides(self, layer: int) -> bool:
        """Whether a layer sees a window, by the family's rule."""
        raise NotImplementedError

    def validate(self) -> None:
        super().validate()
        layers = self.num_hidden_layers
        if len(self.layer_types) != layers or set(self.layer_types) - {FULL, SLIDING}:
            self.fail("layer_types", f"must name {FULL!r} or {SLIDING!r} for each of {layers} layers")
        if self.sliding_window is None and SLIDING in self.layer_types:
            self.fail("sliding_window", f"must be a number where `layer_types` has {SLIDING!r}")

    def window(self, layer: int) -> int | None:
        return self.sliding_window if self.layer_types[layer] == SLIDING else None


def grouped_attention(
    c: GroupedConfig,
    layer: int,
    *,
    kind: Callable[..., Attention] = Attention,
    bias: bool = False,
    bounds_blocks: bool = False,
    **more: Any,
) -> Attention:
    """A layer's self-attention, made by ``kind``.

    ``bounds_blocks`` is that of the :class:`transept.layers.context.Pattern`, the others are as for
    :class:`transept.layers.attention.Attention`.
    """
    rotary = c.rope_kind(layer)
    sizes = {"kv_heads": c.num_key_value_heads, "head_dim": c.head_dim, "dropout": c.attention_dropout}
    pattern = Pattern(causal=c.is_causal, window=c.window(layer), bounds_blocks=bounds_blocks, chunked=c.is_chunked)
    return kind(c.hidden_size, c.num_attention_heads, **sizes, bias=bias, pattern=pattern, rotary=rotary, **more)


def gated_mlp(c: GroupedConfig, act: str, kind: Callable[..., MLP] = GatedMLP) -> MLP:
    """The feed-forward layer, with the activation of that name; it is gated, or of another ``kind``."""
    return kind(c.hidden_size, c.intermediate_size, act, bias=c.mlp_bias, chunk_size=c.chunk_size_feed_forward)


class LatentConfig(DecoderConfig):
    """A decoder with latent attention (:class:`transept.layers.attention.latent.LatentAttention`).

    Queries and keys have ``qk_nope_head_dim`` elements that do not turn and ``qk_rope_head_dim`` that do; the latter is
    ``head_dim`` too, which rotary tables are made for.
    """

    kv_lora_rank: int = 512
    q_lora_rank: int | None = 1536
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    qk_head_dim: int = derived(lambda c: c.qk_nope_head_dim + c.qk_rope_head_dim, fixed=True)
    head_dim: int = derived(lambda c: c.qk_rope_head_dim, fixed=True)
    gguf_head: ClassVar[str] = "attention.key_length"  # the key of the size of a head in GGUF files

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        keys = ("rope.dimension_count", cls.gguf_head)
        turning, whole = (gguf.get(f"{gguf.architecture}.{key}", int, 0) for key in keys)
        found = {"qk_rope_head_dim": turning, "qk_nope_head_dim": whole - turning} if 0 < turning < whole else {}
        rest = {name: value for name, value in values.items() if name not in ("head_dim", "partial_rotary_factor")}
        return super().from_gguf(gguf, rest | found)

    def to_gguf(self) -> dict[str, Any]:
        sizes = {"attention.value_length": self.v_head_dim, self.gguf_head: self.qk_head_dim}
        return super().to_gguf() | sizes | {"rope.dimension_count": self.qk_rope_head_dim}


def latent_attention(c: LatentConfig, layer: int, *, interleaved: bool = True) -> LatentAttention:
    """A layer's causal self-attention with latents; scalings of positions may scale scores, too (Peng et al. 2023)."""
    rope, scale = c.rope(), c.qk_head_dim**-0.5
    weight, factor = rope.get("mscale_all_dim"), rope.get("factor", 1.0)
    if rope["rope_type"] != "default" and weight and factor > 1:
        scale *= (0.1 * weight * math.log(factor) + 1.0) ** 2
    sizes = LatentSizes(c.kv_lora_rank, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim, c.q_lora_rank)
    options = {"bias": c.attention_bias, "dropout": c.attention_dropout, "scale": scale, "rotary": c.rope_kind(layer)}
    pattern = Pattern(causal=True, window=c.window(layer))
    return LatentAttention(
        c.hidden_size, c.num_attention_heads, sizes, RMSNorm, interleaved=interleaved, pattern=pattern, **options
    )
