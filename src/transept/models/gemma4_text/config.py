"""Settings of Gemma 4's model of texts, and what GGUF files say of them."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np

from transept.config.fields import Count, Experts, Layers, PaddingId, Positive, derived
from transept.kinds.decoder import FULL, SLIDING, DecoderConfig, LayeredConfig
from transept.storage.gguf import GGUF, numbers_of


class Gemma4TextConfig(LayeredConfig, DecoderConfig):
    """Settings of Gemma 4's model of texts.

    Without ``layer_types`` every sixth layer sees all, and the last one always does. Such layers have heads of
    ``global_head_dim`` and, with ``attention_k_eq_v``, ``num_global_key_value_heads`` keys that are values, too. The last
    ``num_kv_shared_layers`` read keys and values of the last layer of their kind before them; ``use_double_wide_mlp`` makes
    their feed-forward layers twice as wide. ``hidden_size_per_layer_input`` is the size of the embeddings for each layer, where
    it is not 0. With ``enable_moe_block`` each layer has experts. ``use_bidirectional_attention`` of ``"all"`` lets a query see
    what follows it, and half of a window and one more on either side; ``"vision"`` is about pictures alone.
    """

    model_type = "gemma4_text"
    default_thetas = {FULL: 1e6, SLIDING: 1e4}

    vocab_size: int = 262144
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: Layers = 30
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    global_head_dim: int = 512
    num_global_key_value_heads: int | None = None
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 131072
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    sliding_window: Count | None = 512
    final_logit_softcapping: Positive | None = None
    use_bidirectional_attention: Literal["all", "vision"] | None = None
    vocab_size_per_layer_input: int = derived(lambda c: c.vocab_size)
    hidden_size_per_layer_input: int = 256
    attention_k_eq_v: bool = False
    num_kv_shared_layers: Layers = 0
    enable_moe_block: bool = False
    use_double_wide_mlp: bool = False
    num_experts: Experts | None = None
    top_k_experts: int | None = None
    moe_intermediate_size: int | None = None

    is_causal = property(lambda self: self.use_bidirectional_attention != "all")
    gguf_keys = {
        "attention.key_length": "global_head_dim",
        "attention.key_length_swa": "head_dim",
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
        "expert_used_count": "top_k_experts",
        # Files have them by layers.
        **dict.fromkeys(("attention.head_count_kv", "feed_forward_length"), ""),
    }

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        kinds, found = values.get("layer_types") or [], dict[str, Any]()
        stated = (gguf.settings.get(f"gemma4.{key}", 0) for key in ("attention.head_count_kv", "feed_forward_length"))
        heads, widths = (
            number.tolist() if isinstance(number, np.ndarray) and len(number) == len(kinds) else [number] * len(kinds)
            for number in stated
        )
        if SLIDING in kinds:
            found["num_key_value_heads"] = heads[kinds.index(SLIDING)]
        if kinds:
            found |= {"intermediate_size": widths[0], "use_double_wide_mlp": widths[-1] != widths[0]}
        keys = [all(f"blk.{i}.attn_{name}.weight" in gguf.tensors for name in "kv") for i in range(len(kinds))]
        if FULL in kinds and not keys[kinds.index(FULL)]:
            found |= {"attention_k_eq_v": True, "num_global_key_value_heads": heads[kinds.index(FULL)]}
        if (table := gguf.tensors.get("per_layer_token_embd.weight")) is not None:
            found["vocab_size_per_layer_input"] = table.shape[0]
        bases = {FULL: "rope.freq_base", SLIDING: "rope.freq_base_swa"}
        rope = {kind: {"rope_theta": gguf.get(f"gemma4.{key}", float, cls.default_thetas[kind])} for kind, key in bases.items()}
        if factors := numbers_of(gguf, "rope_freqs.weight"):
            share = sum(factor == 1 for factor in factors) / len(factors)
            rope[FULL] |= {"rope_type": "proportional", "partial_rotary_factor": share}
        found["final_logit_softcapping"] = values.get("final_logit_softcapping") or None
        found |= {"rope_parameters": rope, "enable_moe_block": "blk.0.ffn_gate_inp.weight" in gguf.tensors}
        return {name: value for name, value in values.items() if not name.startswith(("rope_", "partial_"))} | found

    def in_gguf(self) -> Self:
        heads = (self.num_global_key_value_heads or self.num_key_value_heads) if self.attention_k_eq_v else None
        own: dict[str, Any] = {"num_global_key_value_heads": heads}
        own["use_double_wide_mlp"] = self.use_double_wide_mlp and self.num_kv_shared_layers > 0
        own |= {} if self.enable_moe_block else dict.fromkeys(("num_experts", "top_k_experts", "moe_intermediate_size"))
        own |= {"use_bidirectional_attention": None} if self.use_bidirectional_attention == "vision" else {}
        own |= {} if self.hidden_size_per_layer_input else {"vocab_size_per_layer_input": self.vocab_size}
        return self.with_settings(**own)

    def to_gguf(self) -> dict[str, Any]:
        layers, rope = range(self.num_hidden_layers), self.rope(SLIDING)
        turned = int(self.head_dim * (rope.get("partial_rotary_factor") or 1.0))
        return {
            "attention.head_count_kv": [self.key_sizes(layer)[0] for layer in layers],
            "feed_forward_length": [self.width(layer) for layer in layers],
            "attention.sliding_window_pattern": [kind == SLIDING for kind in self.layer_types],
            "attention.value_length_swa": self.head_dim,
            "final_logit_softcapping": self.final_logit_softcapping or 0.0,
            "rope.dimension_count": self.global_head_dim,
            "rope.dimension_count_swa": turned,
            "rope.freq_base_swa": rope["rope_theta"],
        }

    def width(self, layer: int) -> int:
        """The inner size of a layer's feed-forward layer."""
        return self.intermediate_size * (2 if self.use_double_wide_mlp and self.shares(layer) else 1)

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """What a file says of each layer is for all that see all; a second size of the vocabulary follows the first."""
        if values.get("vocab_size_per_layer_input") == values.get("vocab_size", 262144):
            values.pop("vocab_size_per_layer_input", None)
        by_layer = values.pop("per_layer_config", None) or {}
        own = next(iter(by_layer.values()), None) if isinstance(by_layer, dict) else None
        if isinstance(own, dict):
            names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
            values |= {names[name]: value for name, value in own.items() if name in names}
        return super().upgrade(values)

    @classmethod
    def complete(cls, rope: dict[str, Any]) -> dict[str, Any]:
        usual = {FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25}}
        return super().complete(usual | rope)

    def validate(self) -> None:
        if (types := self.layer_types) and types[-1] != FULL:
            self.layer_types = [*types[:-1], FULL]
        super().validate()
        layers, shared = self.num_hidden_layers, self.num_kv_shared_layers
        if shared and {*self.layer_types} != {*self.layer_types[: layers - shared]}:
            self.fail("num_kv_shared_layers", "must leave a layer of each kind that has keys and values")
        if self.enable_moe_block and not 1 <= (self.top_k_experts or 0) <= (self.num_experts or 0):
            self.fail("top_k_experts", f"must be between 1 and `num_experts` ({self.num_experts})")

    def slides(self, layer: int) -> bool:
        return (layer + 1) % 6 != 0 and layer != self.num_hidden_layers - 1

    def window(self, layer: int) -> int | None:
        window = super().window(layer)
        return window if window is None or self.is_causal else window // 2 + 2

    def shares(self, layer: int) -> bool:
        """Whether a layer reads the keys and values of another."""
        return layer >= self.num_hidden_layers - self.num_kv_shared_layers

    def key_sizes(self, layer: int) -> tuple[int, int]:
        """The number of heads, and their size, of the keys that a layer has, or reads of another."""
        if self.layer_types[layer] != FULL:
            return self.num_key_value_heads, self.head_dim
        heads = self.num_global_key_value_heads if self.attention_k_eq_v else None
        return heads or self.num_key_value_heads, self.global_head_dim
