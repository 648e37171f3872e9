"""The weights of GGUF files: unpacked when they are read, under names that one table gives for all families.

The format calls the same part by the same name in every family, as our own names do (:mod:`transept.checkpoint.names`), so a
family states only what it has otherwise: another name, or numbers in another order.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from transept.checkpoint import blocks as encodings
from transept.checkpoint.keys import Stacked, Table, flattened, made_for
from transept.checkpoint.names import Names
from transept.errors import FileError, UnsupportedError
from transept.quantized.weights import GroupedWeight
from transept.storage.files import open_regular
from transept.storage.gguf import GGUF, Stored

T = TypeVar("T")

SAVE_PLAIN = "Save the model as safetensors, with save_pretrained."  # what to do with what the format cannot say
# Numbers that are unpacked at a time: few enough for what stands between to stay in a core's caches.
_STEP = 2**17
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_EXPERTS = "_exps.weight"

LAYER: Table = {
    "attn_norm": "self_attn_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_sinks.weight": "self_attn.sinks",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_norm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj",
    "attn_kv_a_norm": "self_attn.kv_a_norm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "self_attn_post_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "mlp_post_norm",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_inp_shexp": "mlp.shared.share",
    "ffn_gate_shexp": "mlp.shared.gate_proj",
    "ffn_up_shexp": "mlp.shared.up_proj",
    "ffn_down_shexp": "mlp.shared.down_proj",
    "exp_probs_b.bias": "mlp.router.correction_bias",
    "ffn_gate_exps.*.weight": Stacked("mlp.experts.gate_up_proj", 0, 2),
    "ffn_up_exps.*.weight": Stacked("mlp.experts.gate_up_proj", 1, 2),
    "ffn_down_exps.*.weight": Stacked("mlp.experts.down_proj"),
}
_WHOLE: Table = {
    "token_embd": "embed_tokens",
    "token_types": "embed_types",
    "position_embd": "embed_positions",
    "token_embd_norm": "embed_norm",
    "output_norm": "norm",
}
_NEVER_READ = ("rope_freqs", "rope_factors_long", "rope_factors_short")


@dataclass(frozen=True)
class Change:
    """How the numbers of a tensor in a file differ from ours: a function of the tensor and the config for each direction.

    ``by_rows`` tells that rows are put in another order at most, so that a matrix of few bits may be changed as it is stored.
    """

    read: Callable[[Tensor, Any], Tensor]
    write: Callable[[Tensor, Any], Tensor]
    by_rows: bool = True


@dataclass(frozen=True)
class Joined:
    """A tensor of ours that a file has as several: their names, of a layer, and a function for each direction.

    ``rows``, where given, puts together the rows (out, n) of one expert's matrices, which may be changed as they are stored.
    """

    parts: tuple[str, ...]
    read: Callable[[Sequence[Tensor], Any], Tensor]
    write: Callable[[Tensor, Any], Sequence[Tensor]]
    rows: Callable[[Sequence[Tensor]], Tensor] | None = None


def side_by_side(*parts: str) -> Joined:
    """A matrix whose rows a file has in as many equal tensors."""
    return Joined(parts, lambda tensors, config: torch.cat([*tensors]), lambda tensor, config: tensor.chunk(len(parts)))


@dataclass(frozen=True)
class Layout:
    """What a family has otherwise than most in GGUF files.

    Args:
        layer: names of the parts of a layer -> ours, in place of the usual ones, or functions of the config that give them;
            ``None`` for one that the family lacks.
        whole: the same for what stands beside the layers, which are ``blk.*``.
        changes: names of tensors, of a layer without its number -> how their numbers differ.
        joined: names that no file has, which ``layer`` gives ours for -> what stands for such a tensor in files.
        numbers: settings of files that have a number for each layer -> ours, tensors of one number.
        architecture: the name of the architecture in files, where it is not that of the model type.
    """

    layer: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Change] = field(default_factory=dict)
    joined: Mapping[str, Joined] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    architecture: str = ""

    def table(self) -> Table:
        """The names in a file -> ours, of the network without its head."""
        layer = dict(LAYER) | dict(self.layer) | dict(self.numbers)
        blocks = "layers.*", {name: ours for name, ours in layer.items() if ours is not None}
        whole = dict(_WHOLE) | {"blk.*": blocks} | dict(self.whole)
        return {name: ours for name, ours in whole.items() if ours is not None}


def of_matrix(name: str, change: Change) -> dict[str, Change]:
    """The same change for a matrix and its bias."""
    return {f"{name}.weight": change, f"{name}.bias": change}


def in_pairs(heads: str) -> Change:
    """The rows of each head stand in pairs of those that turn together, where ours has all first ones, then all second ones.

    ``heads`` is the setting that says how many heads there are.
    """
    return Change(
        lambda tensor, config: _swapped(tensor, (getattr(config, heads), -1, 2), 1),
        lambda tensor, config: _swapped(tensor, (getattr(config, heads), 2, -1), 1),
    )


def by_head(heads: str) -> Change:
    """The file has all queries, all keys and all values, where ours has those of one head after those of another."""
    return Change(
        lambda tensor, config: _swapped(tensor, (3, getattr(config, heads), -1), 0),
        lambda tensor, config: _swapped(tensor, (getattr(config, heads), 3, -1), 0),
    )


def _swapped(tensor: Tensor, sizes: tuple[int, int, int], axis: int) -> Tensor:
    """The rows as three axes of these sizes, of which one changes places with the next."""
    return tensor.reshape(*sizes, *tensor.shape[1:]).transpose(axis, axis + 1).reshape(tensor.shape)


FLAT_CONV = Change(lambda tensor, config: tensor.unsqueeze(1), lambda tensor, config: tensor.squeeze(1))
"""The file has no axis for the one input of each channel of a convolution."""
STATES = {
    "ssm_a": Change(lambda tensor, config: (-tensor).log(), lambda tensor, config: -tensor.exp()),
    "ssm_conv1d.weight": FLAT_CONV,
}
"""Decays of state spaces are stored as they are, where ours are logarithms of their absolute values."""
NORMS = tuple(
    f"{name}.weight"
    for name in ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm", "output_norm")
)
PLUS_ONE = Change(lambda tensor, config: tensor - 1, lambda tensor, config: tensor + 1)
"""The file has one more than ours: of norms that multiply by one more than their weight."""


POST_NORM = Layout({"attn_norm": None, "ffn_norm": None, "attn_output_norm": "self_attn_norm", "layer_output_norm": "mlp_norm"})
"""Layers whose norms stand behind what they norm, as in BERT."""


NORMED_OUTPUTS = Layout(
    {"attn_norm": None, "ffn_norm": None, "post_attention_norm": "self_attn_norm", "post_ffw_norm": "mlp_norm"}
)
"""Layers whose norms are of what sublayers give, as in OLMo 2."""


def file_names(model: Any) -> Names | None:
    """The names of a model's tensors in such files; ``None`` where its family states no layout."""
    names, body = model.checkpoint_names(), model.body
    if "gguf" not in vars(type(body)):  # a family that inherits a layout may have its own in these files
        return None
    table: dict[str, Any] = {"output": "lm_head"} if body is not model else {}
    inner = "backbone." if body is not model else ""
    for stored, rule in flattened(made_for(body.gguf.table(), body.config)).items():
        targets = tuple(names.public(inner + target) for target in rule.targets)
        table[stored] = replace(rule, stored="", targets=targets)
    nothing: Any = {"files": {}, "legacy": {}, "children": (), "base": ""}
    found: Names = replace(names, table=table, ties=names.tied, ignore=(*names.ignore, *_NEVER_READ), **nothing)
    return found


def stated_for(name: str, stated: Mapping[str, T]) -> T | None:
    """What a layout states for a tensor of a file, by its name without the number of its layer."""
    head, _, rest = name.partition(".")
    return stated.get(rest.partition(".")[2] if head == "blk" else name)


class GGUFStore(Mapping[str, Tensor]):
    """The tensors of a file by name; those of experts row by row, each under a name of its own.

    What is packed is unpacked when it is asked for by :meth:`passing`; before, a tensor without memory tells type and shape.
    """

    def __init__(self, gguf: GGUF) -> None:
        self.gguf, self.files = gguf, gguf.paths
        self._maps: dict[Path, Tensor] = {}
        self._rows: dict[str, tuple[Stored, int | None]] = {}
        self._joined: dict[str, tuple[Joined, tuple[Stored, ...]]] = {}
        self._single: dict[str, Tensor] = {}
        self._changes: Mapping[str, Change] = {}
        self._config: Any = None
        for name, stored in gguf.tensors.items():
            if name.endswith(_EXPERTS) and len(stored.shape) == 3:
                stem = name.removesuffix(".weight")
                self._rows |= {f"{stem}.{row}.weight": (stored, row) for row in range(stored.shape[0])}
            else:
                self._rows[name] = stored, None

    def names(self, model: Any) -> Names:
        """The names of a model's tensors in the file, with which :meth:`passing` gives numbers in the order of the model."""
        if (names := file_names(model)) is None:
            what = f"holds weights for {self.gguf.architecture!r}, but no layout of such files is known for"
            hint = "Load the safetensors that the file was made of."
            raise UnsupportedError(f"{what} {type(model.body).__name__}.", path=str(self.files[0]), hint=hint)
        self._changes, self._config = model.body.gguf.changes, model.body.config
        # Layers behind the last one predict more tokens at a time.
        stated = self.gguf.get(f"{self.gguf.architecture}.block_count", int, 0)
        count = min(stated, len(self.gguf.tensors))
        more = range(getattr(self._config, "num_hidden_layers", count), count)
        for layer in range(count):
            for name, joined in model.body.gguf.joined.items():
                if {*(parts := [f"blk.{layer}.{part}" for part in joined.parts])} <= self.gguf.tensors.keys():
                    self._joined[f"blk.{layer}.{name}"] = joined, tuple(self.gguf.tensors[part] for part in parts)
        apart = {id(stored) for _, parts in self._joined.values() for stored in parts}
        self._rows = {name: place for name, place in self._rows.items() if id(place[0]) not in apart}
        self._split_products(names, model)
        for key in model.body.gguf.numbers:
            for layer, number in enumerate(self.gguf.get(key, np.ndarray, ())[:count]):
                self._single[f"blk.{layer}.{key}"] = torch.tensor([float(number)])
        return replace(names, ignore=(*names.ignore, *(f"blk.{layer}" for layer in more)))

    def _split_products(self, names: Names, model: Any) -> None:
        """Find the rows of queries, keys and values, where a file has one matrix for them and the model three."""
        if not (products := [name for name in self._rows if ".attn_qkv." in name]):
            return
        counts = {names.keys.recipe(name).stored: len(tensor) for name, tensor in model.state_dict().items() if tensor.ndim}
        for name in products:
            parts = [name.replace("attn_qkv", f"attn_{part}") for part in "qkv"]
            whole, start = self._rows[name][0], 0
            if sum(counts.get(part, 0) for part in parts) != whole.shape[0] or parts[0] not in counts:
                continue
            del self._rows[name]
            for part in parts:
                size = whole.size // whole.shape[0] * counts[part]
                shape = (counts[part], *whole.shape[1:])
                self._rows[part] = replace(whole, shape=shape, start=whole.start + start, size=size), None
                start += size

    def __getitem__(self, name: str) -> Tensor:
        """The tensor as it lies in the file where its type is one of PyTorch's, else one without memory."""
        if name in self._joined:
            joined, parts = self._joined[name]
            return joined.read([torch.empty(part.shape, device="meta") for part in parts], self._config)
        if name in self._single:
            return self.passing(name)
        stored, row = self._rows[name]
        shape = stored.shape if row is None else stored.shape[1:]
        kind, change = _PLAIN.get(stored.encoding.name), stated_for(name, self._changes)
        if kind is None or change is not None:
            like = torch.empty(shape, dtype=kind or torch.float32, device="meta")
            return like if change is None else change.read(like, self._config)
        return self._bytes(stored, row).view(kind).view(shape)

    def passing(self, name: str) -> Tensor:
        """The numbers of a tensor."""
        if name in self._joined:
            joined, parts = self._joined[name]
            return joined.read([self._numbers(part, None) for part in parts], self._config)
        tensor = self._single[name] if name in self._single else self._numbers(*self._rows[name])
        change = stated_for(name, self._changes)
        return tensor if change is None else change.read(tensor, self._config)

    def _numbers(self, stored: Stored, row: int | None) -> Tensor:
        data, kind = self._bytes(stored, row), _PLAIN.get(stored.encoding.name)
        shape = stored.shape if row is None else stored.shape[1:]
        return data.view(kind).view(shape) if kind is not None else _unpacked(stored.encoding.name, data, stored, shape)

    def grouped(self, name: str, expert: int | None = None) -> GroupedWeight | None:
        """A matrix, or that of one of several experts, in its bits, where there are products by such; ``None`` for others."""
        if expert is not None:
            joined, parts = self._joined.get(name, (None, ()))
            weights = [weight for part in parts if (weight := self._grouped(part, expert)) is not None]
            if joined is None or joined.rows is None or len(weights) < len(parts):
                return None
            return GroupedWeight.joined(weights, joined.rows)
        stored, row = self._rows.get(name, (None, None))
        change = stated_for(name, self._changes)
        if stored is None or not (change is None or change.by_rows) or (weight := self._grouped(stored, row)) is None:
            return None
        return weight if change is None else weight.map_rows(lambda part: change.read(part, self._config))

    def _grouped(self, stored: Stored, row: int | None) -> GroupedWeight | None:
        shape = stored.shape if row is None else stored.shape[1:]
        if len(shape) != 2:
            return None
        return encodings.grouped(stored.encoding.name, self._bytes(stored, row).view(-1, stored.encoding.size), shape[0])

    def reading_order(self, names: Iterable[str]) -> list[str]:
        """Names by their places in the file."""
        order = {path: number for number, path in enumerate(self.files)}
        places = self._rows | {name: (parts[0], None) for name, (_, parts) in self._joined.items()}
        found = {name: (order[stored.path], stored.start, row or 0) for name, (stored, row) in places.items()}
        return sorted(names, key=lambda name: found.get(name, (0, 0, 0)))

    def metadata(self, path: Path) -> dict[str, str]:
        """Nothing: what the file says beside its tensors is in its settings."""
        return {}

    def __iter__(self) -> Iterator[str]:
        return iter([*self._rows, *self._joined, *self._single])

    def __len__(self) -> int:
        return len(self._rows) + len(self._joined) + len(self._single)

    def _bytes(self, stored: Stored, row: int | None) -> Tensor:
        """The bytes of a tensor or of one row of it, in the mapped file."""
        if stored.path not in self._maps:
            with open_regular(stored.path) as file:  # a private map, which PyTorch may take for one that can be written to
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._maps[stored.path] = torch.frombuffer(data, dtype=torch.uint8)
        size = stored.size if row is None else stored.size // stored.shape[0]
        if len(self._maps[stored.path]) < stored.start + stored.size:
            raise FileError("was replaced while the model was loaded.", path=stored.path, hint="Load the model again.")
        return self._maps[stored.path].narrow(0, stored.start + size * (row or 0), size)


def _unpacked(name: str, data: Tensor, stored: Stored, shape: tuple[int, ...]) -> Tensor:
    blocks = data.view(-1, stored.encoding.size)
    numbers = torch.empty(len(blocks), stored.encoding.block)
    step = _STEP // stored.encoding.block
    for start in range(0, len(blocks), step):
        numbers[start : start + step] = encodings.decode(name, blocks[start : start + step])
    return numbers.view(shape)
