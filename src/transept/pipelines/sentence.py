"""How a checkpoint makes one vector of a text: the ``modules.json`` of sentence-transformers, and what it names.

Shapes: B batch, T positions, D hidden size, E size of the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.store import open_store
from transept.config.fields import Range
from transept.config.schema import read_typed
from transept.errors import CheckpointError, FormatError, UnsupportedError, nearest
from transept.layers import pool
from transept.layers.context import Rows
from transept.layers.mlp import activation
from transept.storage.files import load_object, plain_name
from transept.storage.source import Source

MODULES, PROMPTS, LENGTHS = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
KINDS = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
ACTIVATIONS = {name: name.lower() for name in ("Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "Mish")}
ACTIVATIONS |= {"Identity": "linear", "LeakyReLU": "leaky_relu"}
MAX_MODULES = 100
# In the order in which the vectors of several are joined.
POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def named_activation(name: str, path: Path | None) -> str:
    """Our name of an activation that a file gives as the path of a PyTorch class; other classes are never run."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("torch.nn") or kind not in ACTIVATIONS:
        raise UnsupportedError(f"names the activation {name!r:.200}.", path=path, hint=nearest(kind, ACTIVATIONS))
    return ACTIVATIONS[kind]


@dataclass(frozen=True)
class Module:
    """One of ``modules.json``."""

    type: str
    path: str | None = None


@dataclass(frozen=True)
class LengthSettings:
    """``sentence_bert_config.json``."""

    max_seq_length: Annotated[int, Range(1)] | None = None
    do_lower_case: bool | None = None


@dataclass(frozen=True)
class PromptSettings:
    """``config_sentence_transformers.json``."""

    prompts: dict[str, str] | None = None
    default_prompt_name: str | None = None
    activation_fn: str | None = None


@dataclass(frozen=True)
class DenseSettings:
    """``config.json`` of a dense layer."""

    activation_function: str | None = "torch.nn.Tanh"
    module_input_name: str = "sentence_embedding"
    use_residual: bool | None = None


S = TypeVar("S")


def settings_of(source: Source, name: str, kind: type[S]) -> tuple[S, Path | None]:
    """The content of a file of settings, those of a file that says nothing where there is none, and its path."""
    path = source.find(name)
    return (kind() if path is None else read_typed(path, kind)), path


class Dense(nn.Module):
    """A linear layer with an activation, maybe added to its input, from its ``config.json`` and its weights."""

    def __init__(self, settings: DenseSettings, state: dict[str, Tensor], path: Path) -> None:
        super().__init__()
        if settings.module_input_name != "sentence_embedding":
            raise UnsupportedError("has a dense layer over tokens, but vectors are made of texts here.", path=path)
        act = settings.activation_function
        self.act = activation("linear" if act is None else named_activation(act, path))
        self.linear = _linear("linear", state, path)
        self.residual: nn.Module | None = None
        if settings.use_residual:
            square = self.linear.in_features == self.linear.out_features
            self.residual = nn.Identity() if square else _linear("residual", state, path)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in) -> (B, out)."""
        x = x.to(self.linear.weight.dtype)
        out: Tensor = self.act(self.linear(x))
        return out if self.residual is None else out + self.residual(x)


def normalize(x: Tensor) -> Tensor:
    """Vectors (B, E) of length one."""
    return F.normalize(x.float(), dim=-1)


def _linear(name: str, state: dict[str, Tensor], path: Path) -> nn.Linear:
    weight, bias = state.get(f"{name}.weight"), state.get(f"{name}.bias")
    if weight is None or weight.ndim != 2 or not weight.numel() or (bias is not None and bias.shape != weight.shape[:1]):
        raise CheckpointError(f"does not hold the weights of a layer {name!r}.", path=path, missing=[f"{name}.weight"])
    given = {"weight": weight} | ({} if bias is None else {"bias": bias})
    if (odd := next((tensor.dtype for tensor in given.values() if tensor.dtype not in _DTYPES), None)) is not None:
        raise CheckpointError(f"holds weights of {odd} for the layer {name!r}, which cannot be used.", path=path)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    layer.load_state_dict(given)
    return layer


@dataclass
class SentenceHead:
    """From states (B, T, D), or (1, N, D) of rows without padding, to vectors (B, E).

    Args:
        poolings, layers: ways of pooling, whose vectors are joined, and what follows, in order.
        folder: where the transformer's files are, below the checkpoint's directory.
        max_length, lower: tokens of a text at most; whether it is written in small letters first.
        prompts, default_prompt: texts to put before texts, by name, and the name of the usual one.
        pools_prompt: whether the prompt's tokens are pooled with the others.
    """

    poolings: tuple[str, ...] = ("mean",)
    layers: list[Callable[[Tensor], Tensor]] = field(default_factory=list)
    folder: str = ""
    max_length: int | None = None
    lower: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    pools_prompt: bool = True

    def __call__(self, hidden: Tensor, mask: Tensor | None, skip: int = 0, lengths: Sequence[int] | None = None) -> Tensor:
        """Pool states (B, T, D) from token ``skip`` on, project and normalise.

        ``mask`` (B, T) has 1 for real tokens, which come first; ``lengths`` are those of rows one behind the other, (1, N, D).
        """
        states = hidden.float()
        # Each row alone, so that its vector is the same in any company.
        rows = [states] if lengths is None else [row[None] for row in Rows(tuple(lengths)).split(states)]
        vectors = torch.cat([torch.cat([pooled(row, mask, how, skip) for how in self.poolings], dim=-1) for row in rows])
        for layer in self.layers:
            vectors = layer(vectors)
        return vectors.float()

    def size(self, dim: int) -> int:
        """E, for states of size D; a ``CheckpointError`` where a dense layer reads vectors of another size."""
        size = dim * len(self.poolings)
        for linear in (layer.linear for layer in self.layers if isinstance(layer, Dense)):
            if (wanted := linear.in_features) != size:
                raise CheckpointError(f"a dense layer over vectors of size {wanted} stands behind vectors of size {size}.")
            size = linear.out_features
        return size

    def prompt(self, name: str | None) -> str:
        """The prompt of that name, the default one for ``None``; an ``UnsupportedError`` where there is no such prompt."""
        name = name or self.default_prompt
        if name is not None and name not in self.prompts:
            hint = nearest(name, self.prompts) if self.prompts else "It has none."
            raise UnsupportedError(f"the checkpoint has no prompt {name!r}.", hint=hint)
        return "" if name is None else self.prompts[name]


def pooled(hidden: Tensor, mask: Tensor | None, how: str, skip: int) -> Tensor:
    """(B, T, D) -> (B, D) by one way of pooling of what is real by the mask (B, T), from token ``skip`` on."""
    if how == "mean" and not skip:
        return pool.mean(hidden, mask)
    real = torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device) if mask is None else mask.clone()
    real[:, :skip] = 0
    if how == "cls":
        return hidden[torch.arange(len(hidden), device=hidden.device), real.argmax(dim=1)]
    if how == "lasttoken":
        return pool.last(hidden, None, real, None)
    if how == "max":
        return hidden.masked_fill(real[:, :, None] == 0, -torch.inf).amax(dim=1)
    if how == "weightedmean":
        return pool.mean(hidden, real * torch.arange(1, real.shape[1] + 1, device=real.device))
    mean = pool.mean(hidden, real)
    return mean if how == "mean" else mean * real.sum(dim=1, keepdim=True) ** 0.5  # mean_sqrt_len_tokens


def read_sentence_head(source: Source, device: torch.device) -> SentenceHead:
    """Read ``modules.json`` and what it names; a checkpoint without it is pooled by the mean."""
    path = source.find(MODULES)
    if path is None:
        return SentenceHead()
    modules: list[Module] = read_typed(path, list[Module])
    if len(modules) > MAX_MODULES:
        raise FormatError(f"lists {len(modules)} modules, more than the {MAX_MODULES} allowed.", path=path)
    head = SentenceHead()
    for module in modules:
        _add_module(head, source, module, path, device)
    lengths, _ = settings_of(source, f"{head.folder}/{LENGTHS}" if head.folder else LENGTHS, LengthSettings)
    head.max_length, head.lower = lengths.max_seq_length, lengths.do_lower_case is True
    settings, path = settings_of(source, PROMPTS, PromptSettings)
    prompts, default = settings.prompts or {}, settings.default_prompt_name
    if default is not None and default not in prompts:
        raise FormatError(f"`default_prompt_name` is {default[:80]!r}, which is none of its prompts.", path=path)
    head.prompts, head.default_prompt = prompts, default
    return head


def _add_module(head: SentenceHead, source: Source, module: Module, path: Path, device: torch.device) -> None:
    kind, folder = module.type.rpartition(".")[2], module.path or ""
    if folder:
        plain_name(folder, path)
    if kind not in KINDS:
        raise UnsupportedError(f"names the module {kind!r:.80}.", path=path, hint=nearest(kind, KINDS))
    if kind == "Transformer":
        head.folder = folder
    elif kind == "Normalize":
        head.layers.append(normalize)
    elif kind == "Pooling":
        file = source.need(f"{folder}/config.json")
        settings = load_object(file)
        head.poolings, head.pools_prompt = _poolings(settings, file), settings.get("include_prompt") is not False
    elif kind == "Dense":
        file = source.need(f"{folder}/config.json")
        below = replace(source, subfolder=f"{source.subfolder}/{folder}" if source.subfolder else folder)
        layer = Dense(read_typed(file, DenseSettings), dict(open_store(below)), file.parent)
        head.layers.append(layer.eval().to(device))


def _poolings(settings: dict[str, Any], path: Path) -> tuple[str, ...]:
    """The ways of pooling that a file names, in one of two layouts."""
    named = settings.get("pooling_mode")
    if named is None:
        named = [how for key, how in POOLINGS.items() if settings.get(key)]
    names = tuple(named) if isinstance(named, list) else (named,)
    if (wrong := next((name for name in names if name not in POOLINGS.values()), None)) is not None:
        raise UnsupportedError(f"names the pooling {wrong!r}.", path=path, hint=nearest(str(wrong), POOLINGS.values()))
    return names or ("mean",)
