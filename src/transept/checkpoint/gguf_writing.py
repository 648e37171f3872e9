"""The tensors of GGUF files as they are written: which there are, in which encoding each is stored, and their bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transept.checkpoint.block_writing import encode
from transept.checkpoint.few_bits_writing import slots_of, written_state
from transept.checkpoint.gguf import SAVE_PLAIN, Layout, file_names, stated_for
from transept.checkpoint.keys import KeyMap
from transept.errors import UnsupportedError
from transept.quantized.linear import few_bits
from transept.storage.gguf_encodings import Encoding, Mix

Shape = tuple[int, ...]
Parts = tuple[Callable[[], Tensor], ...]

_STEP = 2**20  # numbers that are rounded at a time
_EXPERT = re.compile(r"(?P<stem>.+_exps)\.\d+\.weight")


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its shape, its encoding, and its numbers, in parts that stand below each other."""

    shape: Shape
    encoding: Encoding
    parts: Parts

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) // self.encoding.block * self.encoding.size

    def pieces(self) -> Iterator[Tensor]:
        """The bytes, some rows at a time."""
        for part in self.parts:
            tensor = part()
            rows = tensor.reshape(-1, tensor.shape[-1])
            for some in torch.split(rows, max(_STEP // rows.shape[1], 1)):
                yield encode(self.encoding.name, some).flatten()


@torch.no_grad()
def entries_of(model: Any, mix: Mix) -> dict[str, Entry]:
    """The tensors of a model by their names in a file, in their order.

    Raises:
        UnsupportedError: the format has no names for them.
    """
    if (names := file_names(model)) is None:
        what = f"no layout of GGUF files is known for {type(model.body).__name__}."
        raise UnsupportedError(what, hint=SAVE_PLAIN)
    stored = _stored(model, names.keys, written_state(model))
    layers, config = getattr(model.config, "num_hidden_layers", 0), model.body.config
    output = "output.weight" if "output.weight" in stored else "token_embd.weight"
    entries = {}
    for ours, (whole, reads) in stored.items():
        for name, shape, parts in _in_file(ours, whole, reads, model.body.gguf, config):
            entries[name] = Entry(shape, mix.encoding(name, shape, layers, is_output=name == output), parts)
    return entries


def take_numbers(entries: dict[str, Entry], layout: Layout) -> dict[str, list[float]]:
    """Take out the tensors that are settings of a file, with a number for each layer."""
    numbers = dict[str, list[float]]()
    for name in [*entries]:
        if (key := name.split(".", 2)[-1]) in layout.numbers:
            numbers.setdefault(key, []).append(entries.pop(name).parts[0]().item())
    return numbers


def _in_file(name: str, shape: Shape, parts: Parts, layout: Layout, config: Any) -> Iterator[tuple[str, Shape, Parts]]:
    """What stands for a tensor in a file, as the layout has it."""
    like = torch.empty(shape, device="meta")
    if (joined := stated_for(name, layout.joined)) is not None:
        for place, (part, piece) in enumerate(zip(joined.parts, joined.write(like, config), strict=True)):
            read = partial(_piece, parts[0], joined.write, config, place)
            yield ".".join([*name.split(".")[:2], part]), tuple(piece.shape), (read,)
    elif (change := stated_for(name, layout.changes)) is not None:
        changed = tuple(partial(_changed, part, change.write, config) for part in parts)
        yield name, tuple(change.write(like, config).shape), changed
    else:
        yield name, shape, parts


def _changed(part: Callable[[], Tensor], write: Callable[[Tensor, Any], Tensor], config: Any) -> Tensor:
    return write(part(), config)


def _piece(part: Callable[[], Tensor], write: Callable[[Tensor, Any], Sequence[Tensor]], config: Any, place: int) -> Tensor:
    return write(part(), config)[place]


def _stored(model: Any, keys: KeyMap, state: dict[str, Tensor]) -> dict[str, tuple[Shape, Parts]]:
    """Shapes and parts of tensors by name; what has few bits is unpacked when it is asked for."""
    slots, kept = keys.slots(state), few_bits(model).items()
    weights = {slot: layer for name, weight in kept for slot, layer in slots_of(name, weight, keys).items()}
    shapes, parts = dict[str, tuple[int, ...]](), dict[str, list[Any]]()

    def dense(slot: str) -> Tensor:
        return weights[slot].dequantized() if slots[slot].is_meta else slots[slot]

    done = set[str]()
    for slot in slots:
        recipe = keys.recipe(slot)
        if recipe.stored == slot:
            hint = SAVE_PLAIN
            if ".pooler." in f".{slot}":
                hint = "Load the model with add_pooling_layer=False."
            elif model.body is not model and not slot.startswith(f"{model.base_model_prefix}."):
                hint = "Load the model with AutoModel, which leaves out the head."
            raise UnsupportedError(f"GGUF files have no name for {slot!r} of {type(model).__name__}.", hint=hint)
        if recipe.stored in done:
            continue
        done.add(recipe.stored)
        sources = recipe.parts or (slot,)
        shape = tuple(recipe.stored_shape([slots[part].shape for part in sources]))
        found = _EXPERT.fullmatch(recipe.stored)
        name = recipe.stored if found is None else f"{found['stem']}.weight"
        parts.setdefault(name, []).append(partial(lambda r, of: r.join([dense(part) for part in of]), recipe, sources))
        shapes[name] = shape if found is None else (len(parts[name]), *shape)
    return {name: (shapes[name], tuple(parts[name])) for name in shapes}
