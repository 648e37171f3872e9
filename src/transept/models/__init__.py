"""Families, a file each, and model types that are a family's by another name: camembert is RoBERTa, mt5 is T5.

The classes of an alias are those of the family, with a ``model_type`` and defaults of their own; they are made when they are
asked for, and are attributes of this package.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from transept.storage.gguf import GGUF


@dataclass(frozen=True)
class Alias:
    """A model type that is a family's by another name.

    Args:
        family: the name of its file.
        names: what the names of its classes begin with there, and what in their place here.
        defaults: the settings whose defaults are others.
        prefix: where task checkpoints keep the backbone, where that is another place.
        heads_first: whether the parameters of heads come before those of the backbone.
    """

    family: str
    names: tuple[str, str]
    defaults: dict[str, Any]
    prefix: str | None = None
    heads_first: bool = False


GGUF_TYPES: dict[str, Callable[[GGUF], str]] = {
    "llama": lambda gguf: "mixtral" if gguf.settings.get("llama.expert_count") else "llama",
    "gemma3": lambda gguf: "gemma3_text",
    "gemma4": lambda gguf: "gemma4_text",
    "command-r": lambda gguf: "cohere",
    "phi2": lambda gguf: "phi",
    "starcoder": lambda gguf: "gpt_bigcode",
    "mamba": lambda gguf: "falcon_mamba" if gguf.settings.get("mamba.ssm.dt_b_c_rms") else "mamba",
    "granitemoe": lambda gguf: (
        "granitemoe" + ("shared" if gguf.settings.get("granitemoe.expert_shared_feed_forward_length") else "")
    ),
    "deepseek2": lambda gguf: "deepseek_v3" if any("exp_probs_b" in name for name in gguf.tensors) else "deepseek_v2",
    "granitehybrid": lambda gguf: "granitemoehybrid",
    "qwen35": lambda gguf: "qwen3_5_text",
    "qwen35moe": lambda gguf: "qwen3_5_moe_text",
    "llama4": lambda gguf: "llama4_text",
    "nemotron_h_moe": lambda gguf: "nemotron_h",
    "chatglm": lambda gguf: "glm",
    "mistral3": lambda gguf: (
        "ministral3" if gguf.settings.get("mistral3.attention.temperature_scale", not gguf.settings) else "llama"
    ),
    "jina-bert-v3": lambda gguf: "jina_embeddings_v3",
    "hunyuan-moe": lambda gguf: "hunyuan_v1_moe",
    "hunyuan-dense": lambda gguf: "hunyuan_v1_dense",
    "t5": lambda gguf: "umt5" if "enc.blk.1.attn_rel_b.weight" in gguf.tensors else "t5",
    "t5encoder": lambda gguf: "umt5" if "enc.blk.1.attn_rel_b.weight" in gguf.tensors else "t5",
}
"""Architectures of GGUF files -> model types, where they are not the same but for ``-`` and ``_``."""
GGUF_NAMES = {"mistral": "llama", "mixtral": "llama", "falcon_mamba": "mamba", "granitemoeshared": "granitemoe"}
GGUF_NAMES |= dict.fromkeys(("t5", "mt5", "umt5"), "t5")
GGUF_NAMES |= {"deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2"}
"""Model types -> architectures of GGUF files that are written for them, where those are read as another type at first."""
_MT5 = {"vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"}
ALIASES = {
    "camembert": Alias("roberta", ("Roberta", "Camembert"), {"vocab_size": 30522}, heads_first=True),
    "data2vec-text": Alias("roberta", ("Roberta", "Data2VecText"), {"vocab_size": 30522}, prefix="data2vec_text"),
    "mt5": Alias("t5", ("T5", "MT5"), _MT5 | {"decoder_start_token_id": 0, "scale_decoder_outputs": False}),
    "xlm-roberta": Alias("roberta", ("Roberta", "XLMRoberta"), {"vocab_size": 30522}, heads_first=True),
}


@cache
def renamed(model_type: str, source: ModuleType) -> ModuleType:
    """The classes of an alias, made of those of its family's module."""
    from transept.config.model import Config
    from transept.core.model import Backbone
    from transept.core.task import TaskModel

    alias = ALIASES[model_type]
    (old, new), made = alias.names, ModuleType(__name__)
    for name, cls in tuple(vars(source).items()):
        if not (name.startswith(old) and isinstance(cls, type) and issubclass(cls, Config | Backbone | TaskModel)):
            continue
        said = f":class:`~{cls.__module__}.{cls.__name__}` for the model type ``{model_type}``."
        body: dict[str, Any] = {"__module__": __name__, "__doc__": said}
        options: dict[str, Any] = {}
        if issubclass(cls, Config):
            hints = typing.get_type_hints(cls, include_extras=True)
            kinds = {setting: hints[setting] for setting in alias.defaults}
            body |= {"model_type": model_type, "__annotations__": kinds, **alias.defaults}
        else:
            body["base_model_prefix"] = alias.prefix or cls.base_model_prefix
            body |= {"gguf": vars(cls)["gguf"]} if "gguf" in vars(cls) else {}
            if issubclass(cls, TaskModel):
                body["heads_first"] = alias.heads_first
                options["backbone"] = getattr(made, cls.backbone_class.__name__.replace(old, new, 1))
            else:
                body["config_class"] = getattr(made, f"{new}Config")
        other = name.replace(old, new, 1)
        setattr(made, other, type(other, (cls,), body, **options))
    return made


def __getattr__(name: str) -> Any:
    from transept.core.auto import family

    for model_type, alias in ALIASES.items():
        if name.startswith(alias.names[1]) and hasattr(found := family(model_type), name):
            return getattr(found, name)
    if find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from transept.core.auto import family

    return [*globals(), *(name for each in ALIASES for name in vars(family(each)) if name[0] != "_")]
