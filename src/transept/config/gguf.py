"""What a GGUF file says of its model, under the names of the family's config. No torch here.

The format has one list of keys for all families, each below the name of the architecture (``llama.block_count``), and a few
that only some have. What it does not say has the default of the family's config.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from transept.config.fields import specs
from transept.errors import FormatError
from transept.storage.gguf import GGUF, numbers_of

# Keys without the architecture -> names of settings, of which the first that a config has is meant.
_KEYS: dict[str, tuple[str, ...]] = {
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "attention.sliding_window": ("sliding_window",),
    "rope.freq_base": ("rope_theta",),
    "rope.freq_base_swa": ("rope_local_base_freq",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_shared_count": ("n_shared_experts", "moe_num_shared_experts"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_weights_norm": ("norm_topk_prob",),
    "leading_dense_block_count": ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "ssm.conv_kernel": ("conv_kernel",),
    "ssm.state_size": ("state_size",),
    "ssm.time_step_rank": ("time_step_rank",),
    "ssm.inner_size": ("intermediate_size",),
}
SOFTMAX, SIGMOID = 1, 2  # the format's numbers for how routers choose
SLIDING, FULL = "sliding_attention", "full_attention"
_TOKENS = {"bos": "bos", "padding": "pad"}
_ENDS = ("eos", "eot", "eom")
# Texts of tokens that end an answer in every model that has them, whether a file says so or not.
_END_TEXTS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "<|return|>"}
)
_CONTROL = 3  # the kind of token that is no text
# Names of rotary scalings in the format -> in configs; of others the name is the same.
_SCALINGS = {"none": "default"}
_FACTORS = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


def settings_of(gguf: GGUF, kind: Any) -> dict[str, Any]:
    """The settings of a file, as a ``config.json`` of a family with this class would have them.

    Raises:
        FormatError: the file lacks a setting or has one of another type.
    """
    values: dict[str, Any] = {}
    for key, names in _keys(kind).items():
        name = next((name for name in names if _has(kind, name)), None)
        if name is not None and (value := _own(gguf, key)) is not None:
            usual = (name == "n_inner" and value == 4 * values.get("hidden_size", 0)) or (
                value == 0 and name == "sliding_window"
            )
            values[name] = None if usual else value
    if isinstance(count := values.get("num_hidden_layers"), int):  # behind these stand layers that predict more tokens
        values["num_hidden_layers"] = count - gguf.get(f"{gguf.architecture}.nextn_predict_layers", int, 0)
    pattern = gguf.settings.get(f"{gguf.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray) and pattern.dtype == bool and _has(kind, "layer_types"):
        values["layer_types"] = [SLIDING if slides else FULL for slides in pattern]
    for role, name in _TOKENS.items():
        values[f"{name}_token_id"] = gguf.get(f"tokenizer.ggml.{role}_token_id", int)
    values["eos_token_id"] = _ends(gguf)
    if (embeddings := gguf.tensors.get("token_embd.weight")) is None:
        raise FormatError("holds no tensor `token_embd.weight`.", path=gguf.paths[0], hint="It may be no language model.")
    values |= {"vocab_size": embeddings.shape[0], "tie_word_embeddings": "output.weight" not in gguf.tensors}
    if (types := gguf.tensors.get("token_types.weight")) is not None and _has(kind, "type_vocab_size"):
        values["type_vocab_size"] = types.shape[0]
    if _has(kind, "rope_parameters"):
        values |= dict(_rotary(gguf, values))
    found: dict[str, Any] = kind.from_gguf(gguf, values | {"dtype": _dtype(gguf)})
    return found


def _ends(gguf: GGUF) -> int | list[int] | None:
    """The tokens that end a text or a turn of a chat."""
    stated = (gguf.get(f"tokenizer.ggml.{role}_token_id", int) for role in _ENDS)
    tokens, kinds = (gguf.settings.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    ends = dict.fromkeys(number for number in stated if number is not None)
    if isinstance(tokens, list) and isinstance(kinds, np.ndarray):
        ends |= {int(i): None for i in np.flatnonzero(kinds[: len(tokens)] == _CONTROL) if tokens[i] in _END_TEXTS}
    return [*ends] if len(ends) > 1 else next(iter(ends), None)


def values_of(config: Any) -> dict[str, Any]:
    """The settings of a file for a config, under keys without an architecture: the other way of :func:`settings_of`.

    What such files have no key for is left out; who writes one reads it again and compares.
    """
    kind, values = type(config), dict[str, Any]()
    for key, names in _keys(kind).items():
        name = next((name for name in names if _has(kind, name)), None)
        value = None if name is None else getattr(config, name, None)
        if isinstance(value, int | float):
            values[key] = value
        elif name == "sliding_window" and name in specs(kind) and specs(kind)[name].default() is not None:
            values[key] = 0  # no window, where the family has one by default
    values = {
        "context_length": getattr(config, "seq_length", 2048),
        "feed_forward_length": 4 * values["embedding_length"],
    } | values
    size = values.get("attention.key_length") or values["embedding_length"] // values.get("attention.head_count", 1)
    values |= {"attention.key_length": size, "attention.value_length": size, "vocab_size": config.vocab_size}
    if rope := getattr(config, "rope_parameters", None):
        kinds = getattr(config, "scaled_kinds", None) or rope
        rope = next((rope[kind] for kind in kinds if isinstance(rope.get(kind), dict)), rope)
        values["rope.freq_base"] = rope["rope_theta"]
        values["rope.dimension_count"] = int(size * (rope.get("partial_rotary_factor") or 1.0))
        if rope["rope_type"] in ("linear", "yarn", "longrope"):
            values["rope.scaling.type"] = rope["rope_type"]
            values |= {f"rope.scaling.{key}": rope[name] for key, name in _FACTORS.items() if rope.get(name) is not None}
    own: dict[str, Any] = config.to_gguf()
    return values | own


def _keys(kind: Any) -> dict[str, tuple[str, ...]]:
    """Keys -> names of settings, of a class of configs."""
    keeps_states = _has(kind, "state_size")
    usual = {key: names for key, names in _KEYS.items() if keeps_states or not key.startswith("ssm.")}
    return usual | {key: (name,) for key, name in kind.gguf_keys.items()}


def by_layers(gguf: GGUF, key: str) -> list[bool] | None:
    """Which layers have something, such as heads of keys; ``None`` where a file says it of all or not at all."""
    values = gguf.settings.get(f"{gguf.architecture}.{key}")
    return [bool(value) for value in values] if isinstance(values, np.ndarray) else None


def _own(gguf: GGUF, key: str) -> Any:
    """A setting of the architecture; where each layer has one, those that are not 0 must be alike."""
    value = gguf.settings.get(f"{gguf.architecture}.{key}")
    if not isinstance(value, np.ndarray):
        return value
    if value.size and not (value := value[value != 0]).size:
        return None
    if not value.size or (value != value[0]).any():
        raise FormatError(f"has `{gguf.architecture}.{key}` by layers, {value[:8].tolist()} ..., which is not read.")
    return value[0].item()


def _has(kind: Any, name: str) -> bool:
    return name in specs(kind) or name in kind.aliases or isinstance(getattr(kind, name, None), property)


def _rotary(gguf: GGUF, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The rotary settings: factors of each frequency are tensors of the file."""
    rope: dict[str, Any] = {}
    if named := isinstance(scaling := _own(gguf, "rope.scaling.type"), str):
        rope["rope_type"] = _SCALINGS.get(scaling, scaling)
    if named or "rope_factors_long.weight" in gguf.tensors:  # where files of Phi-3 name no type
        rope |= {name: value for key, name in _FACTORS.items() if (value := _own(gguf, f"rope.scaling.{key}")) is not None}
    whole = numbers_of(gguf, "rope_freqs.weight")
    long, short = (numbers_of(gguf, f"rope_factors_{name}.weight") or whole for name in ("long", "short"))
    if long is not None and short is not None:
        original = rope.get("original_max_position_embeddings", values.get("max_position_embeddings"))
        rope |= {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        rope["original_max_position_embeddings"] = original
        if whole is not None:  # Llama 3's, which change no attention
            rope["attention_factor"] = 1.0
    if rope.get("rope_type", "default") != "default":
        yield "rope_scaling", rope  # which is for the layers that the family scales
    size, heads, turned = values.get("hidden_size"), values.get("num_attention_heads"), _own(gguf, "rope.dimension_count")
    each = _own(gguf, "attention.key_length") or (size // heads if type(size) is type(heads) is int and heads > 0 else None)
    if type(turned) is int and type(each) is int and 0 < turned < each:
        yield "partial_rotary_factor", turned / each


def _dtype(gguf: GGUF) -> str:
    """The type of most of the weights; that of unpacked ones is float32."""
    sizes: dict[str, int] = {}
    for stored in gguf.tensors.values():
        sizes[stored.encoding.name] = sizes.get(stored.encoding.name, 0) + stored.size
    return {"F16": "float16", "BF16": "bfloat16"}.get(max(sizes, key=lambda name: sizes[name]), "float32")
