"""The table of what caches take: `python -m tests.memory` writes it into its page, a test checks both."""

from __future__ import annotations

from tests.document_tables import ROOT, written
from transept.config.model import Config
from transept.core.auto import config_class, family, model_types, models_of
from transept.core.model import Backbone
from transept.layers.caches.layer import KeyValues

PAGE = ROOT / "docs/how-to/caches.md"
# Two bytes of a range's start and two of its step, for each group of 64 numbers.
ELEMENTS = {"16 bits": 2, "8 bits": 1 + 4 / 64, "4 bits": 0.5 + 4 / 64}
WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")


def cache_sizes(config: Config) -> tuple[int, int, int]:
    """Layers, key-value heads and head size of what a decoder caches."""

    def first(*names: str) -> int | None:
        return next((value for name in names if (value := getattr(config, name, None)) is not None), None)

    layers = first("num_decoder_layers", "decoder_layers", "num_hidden_layers") or 0
    heads = first("decoder_attention_heads", "num_attention_heads") or 1
    size = first("head_dim", "d_kv") or (first("hidden_size", "d_model") or 0) // heads
    return layers, first("num_key_value_heads") or heads, size


def cache_bytes(config: Config, element: float) -> float:
    """Bytes of a cache for each token, of numbers that take ``element`` bytes."""
    layers, heads, size = cache_sizes(config)
    if hasattr(config, "kv_lora_rank"):  # latents and rotary keys, which all heads share
        return layers * (config.kv_lora_rank + config.qk_rope_head_dim) * element
    if hasattr(config, "key_sizes"):  # layers differ, and some read the keys of others
        own = [config.key_sizes(layer) for layer in range(layers) if not config.shares(layer)]
        return 2 * element * sum(heads * size for heads, size in own)
    return 2 * layers * heads * size * element


def memory() -> str:
    """What caches take, by families with their default settings."""
    titles = ["family", "layers", "key-value heads", "head size", "window", "bytes a token", *(f"{name}" for name in ELEMENTS)]
    rows = [f"| {' | '.join(titles)} |", "|---" + "|--:" * (len(titles) - 1) + "|"]
    for name in model_types():
        found = models_of(family(name))
        base = next((cls for cls in found if issubclass(cls, Backbone)), None)
        ends = {end for cls in found for end in (*WRITERS, "ForMaskedLM") if cls.__name__.endswith(end)}
        if base is None or not ends or "ForMaskedLM" in ends or getattr(base, "keeps", (KeyValues,)) != (KeyValues,):
            continue  # those that fill gaps can be made decoders, but are not written with
        whole = config_class(name)()
        config = whole.get_text_config()
        sizes = [f"{cache_bytes(config, element) * 8192 / 2**20:,.0f} MiB" for element in ELEMENTS.values()]
        numbers = [str(size) for size in cache_sizes(config)]
        cells = [f"`{whole.model_type}`", *numbers, window(config), f"{cache_bytes(config, 2):,.0f}", *sizes]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def window(config: Config) -> str:
    """What layers see, where that is not all."""
    if not hasattr(config, "window"):
        return ""
    layers = cache_sizes(config)[0]
    found = [size for layer in range(layers) if (size := config.window(layer)) is not None]
    return f"{found[0]} in {len(found)} layers" if found else ""


if __name__ == "__main__":
    PAGE.write_text(written(PAGE, "memory", memory()), encoding="utf-8")
