"""How a checkpoint makes one vector of a text: the ``modules.json`` of sentence-transformers.

It lists a transformer, a pooling, and maybe dense layers and a normalisation, each with a small file of settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.store import open_store
from transept.errors import FormatError, UnsupportedError, nearest
from transept.files import load_json, load_object
from transept.layers import pool
from transept.layers.activation import activation
from transept.source import Source

_ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Identity": "linear", "Sigmoid": "sigmoid", "SiLU": "silu"}
POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_lasttoken": "last",
}


class Dense(nn.Module):
    """A linear layer with an activation, as sentence-transformers stores them."""

    def __init__(self, settings: dict[str, Any], state: dict[str, Tensor]) -> None:
        super().__init__()
        name = str(settings.get("activation_function", "Tanh")).rpartition(".")[2]
        if name not in _ACTIVATIONS:
            raise UnsupportedError(f"there is no activation {name!r} for a dense layer.", hint=nearest(name, _ACTIVATIONS))
        self.act = activation(_ACTIVATIONS[name])
        weight, bias = state["linear.weight"], state.get("linear.bias")
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        self.linear.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))

    def forward(self, x: Tensor) -> Tensor:
        """(B, in) -> (B, out)."""
        return self.act(self.linear(x))


@dataclass
class SentenceHead:
    """From states (B, T, D) to vectors (B, E).

    ``poolings`` are joined side by side; ``max_length`` and ``prompts`` are what the checkpoint was trained with.
    """

    poolings: tuple[str, ...] = ("mean",)
    dense: list[Dense] = field(default_factory=list)
    normalize: bool = False
    max_length: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Pool, project and normalise; ``mask`` (B, T) has 1 for real tokens."""
        vectors = torch.cat([pooled(hidden, mask, how) for how in self.poolings], dim=-1)
        for layer in self.dense:
            vectors = layer(vectors.to(layer.linear.weight.dtype))
        return F.normalize(vectors.float(), dim=-1) if self.normalize else vectors.float()


def pooled(hidden: Tensor, mask: Tensor | None, how: str) -> Tensor:
    """(B, T, D) -> (B, D) by one way of pooling."""
    match how:
        case "cls":
            return pool.first(hidden)
        case "last":
            return pool.last(hidden, None, torch.ones(hidden.shape[:2], device=hidden.device) if mask is None else mask, None)
        case "max":
            return (hidden if mask is None else hidden.masked_fill(mask[:, :, None] == 0, -1e9)).amax(dim=1)
        case "mean_sqrt_len":
            length = hidden.shape[1] if mask is None else mask.sum(dim=1, keepdim=True).to(hidden.dtype)
            return pool.mean(hidden, mask) * length**0.5
    return pool.mean(hidden, mask)


def read_sentence_head(source: Source, device: torch.device) -> SentenceHead:
    """Read ``modules.json`` and what it names; a checkpoint without it is pooled by the mean.

    Raises:
        FormatError, UnsupportedError: naming the file and what it holds.
    """
    path = source.find("modules.json")
    if path is None:
        return SentenceHead()
    head = SentenceHead(poolings=())
    modules = load_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise FormatError("must hold a list of modules.", path=path)
    for module in modules:
        _add_module(head, source, str(module.get("type", "")).rpartition(".")[2], str(module.get("path", "")), device)
    if not head.poolings:
        head.poolings = ("mean",)
    settings = source.find("sentence_bert_config.json")
    if settings is not None and isinstance(length := load_object(settings).get("max_seq_length"), int):
        head.max_length = length
    _read_prompts(head, source)
    return head


def _add_module(head: SentenceHead, source: Source, kind: str, folder: str, device: torch.device) -> None:
    match kind:
        case "Transformer":
            return
        case "Normalize":
            head.normalize = True
        case "Pooling":
            settings = load_object(source.need(f"{folder}/config.json"))
            head.poolings = tuple(how for key, how in POOLINGS.items() if settings.get(key)) or _named_pooling(settings)
        case "Dense":
            settings = load_object(source.need(f"{folder}/config.json"))
            store = open_store(source.below(folder))
            head.dense.append(Dense(settings, dict(store)).eval().to(device))
        case _:
            known = ("Transformer", "Pooling", "Dense", "Normalize")
            raise UnsupportedError(f"modules.json names {kind!r}.", path=source.name, hint=nearest(kind, known))


def _named_pooling(settings: dict[str, Any]) -> tuple[str, ...]:
    name = settings.get("pooling_mode", "mean")
    name = {"cls_token": "cls", "lasttoken": "last", "max_tokens": "max"}.get(name, name)
    if name not in POOLINGS.values():
        raise UnsupportedError(f"there is no pooling {name!r}.", hint=nearest(str(name), POOLINGS.values()))
    return (name,)


def _read_prompts(head: SentenceHead, source: Source) -> None:
    path = source.find("config_sentence_transformers.json")
    if path is None:
        return
    settings = load_object(path)
    prompts = settings.get("prompts")
    if isinstance(prompts, dict):
        head.prompts = {str(name): str(text) for name, text in prompts.items()}
    default = settings.get("default_prompt_name")
    head.default_prompt = default if isinstance(default, str) else None


def prompted(texts: Sequence[str], head: SentenceHead, name: str | None) -> list[str]:
    """Texts with the prompt of that name before them; the checkpoint's default one when ``None``.

    Raises:
        UnsupportedError: the checkpoint has no such prompt.
    """
    name = name or head.default_prompt
    if name is None:
        return list(texts)
    if name not in head.prompts:
        raise UnsupportedError(f"the checkpoint has no prompt {name!r}.", hint=nearest(name, head.prompts))
    return [head.prompts[name] + text for text in texts]
