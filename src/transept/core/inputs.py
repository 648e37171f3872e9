"""What models of every kind accept: their explicit signatures, how tensors are checked, and batches that are packed.

Shapes: B batch, T positions, R texts, N real positions of all texts, D hidden size.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transept.errors import InputError, InputTypeError, nearest
from transept.layers.context import within
from transept.outputs import ModelOutput

_QUOTED = re.compile(r"`(\w+)`")
# Names of inputs: one number or vector for each token, and what an encoder gives.
PER_TOKEN = ("token_type_ids", "position_ids", "inputs_embeds")
ENCODER = ("encoder_hidden_states", "encoder_attention_mask")
# What else tells where the texts of a packed batch stand, as the kernels of the reference are told.
BOUNDS = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
# What was an argument of the reference once, and what to do in its place.
GONE = {
    "cache_position": "Leave it out: positions follow from the cache, or pass `position_ids`.",
    "head_mask": "Leave it out: heads cannot be masked; remove their weights in place of it.",
}


def explicit(forward: Callable[..., Any], names: Sequence[str], more: Sequence[str] | None) -> Callable[..., Any]:
    """The forward pass with arguments ``names``, by position too, and ``more`` by keyword; it is given all by keyword.

    Without ``more`` it takes any others.
    """
    known, most = {*names, *(more or ())}, len(names)

    @functools.wraps(forward)
    def call(self: Any, *args: Any, **inputs: Any) -> Any:
        if len(args) > most:
            raise InputTypeError(f"{type(self).__name__} takes {most} inputs by position, but got {len(args)}.")
        for name, value in zip(names, args):
            if name in inputs:
                raise InputTypeError(f"{type(self).__name__} got `{name}` twice: by position and by name.")
            inputs[name] = value
        if more is not None and not inputs.keys() <= known:
            name = next(name for name in inputs if name not in known)
            raise InputTypeError(f"{type(self).__name__} takes no input `{name}`.", hint=GONE.get(name) or nearest(name, known))
        return forward(self, **inputs)

    kind, others = inspect.Parameter.POSITIONAL_OR_KEYWORD, [name for name in dict.fromkeys(more or ()) if name not in names]
    usual = [inspect.Parameter(name, kind, default=None) for name in names]
    rest = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in others]
    rest += [inspect.Parameter("more", inspect.Parameter.VAR_KEYWORD)] if more is None else []
    call.__signature__ = inspect.Signature([inspect.Parameter("self", kind), *usual, *rest])  # type: ignore[attr-defined]
    return call


# What a decoder calls what an encoder–decoder is given for it.
OF_DECODER = {name: f"decoder_{name}" for name in ("input_ids", "attention_mask", "inputs_embeds", "position_ids")}
OF_DECODER |= {"encoder_hidden_states": "encoder_outputs", "encoder_attention_mask": "attention_mask"}


def calling(names: Mapping[str, str]) -> AbstractContextManager[None]:
    """Within it, errors about inputs call them as the caller of a model does, and not as a model within does.

    Args:
        names: the caller's name of an input, by the model's within.
    """
    return nullcontext() if torch.compiler.is_compiling() else _calling(names)


@contextmanager
def _calling(names: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        error.message = _QUOTED.sub(lambda found: f"`{names.get(found[1], found[1])}`", error.message)
        raise


class RecordOptions(TypedDict, total=False):
    """What every backbone accepts beside its inputs, by the config when absent; ``return_dict=False`` asks for a tuple."""

    output_attentions: bool | None
    output_hidden_states: bool | None
    return_dict: bool | None


INTEGERS = (torch.int64, torch.int32)
TOKENIZE = 'Turn text into ids first: tokenizer(text, return_tensors="pt").'


def check_tensor(name: str, given: Any, dtypes: Sequence[torch.dtype], axes: str, hint: str | None = None) -> Tensor:
    """Require a dense tensor with values, of one of some types, with the axes that a text names, such as ``(batch, size)``.

    Without types, it may be of any floating-point one, and empty. What is no tensor is an ``InputTypeError``, all else an
    ``InputError``.
    """
    if not isinstance(given, Tensor):
        raise InputTypeError(f"`{name}` must be a tensor, but is {type(given).__name__}: {str(given)[:60]!r}.", hint=hint)
    if given.layout != torch.strided:
        raise InputError(f"`{name}` must be a dense tensor, but is {given.layout}.", hint=f"Pass {name}.to_dense().")
    fits = given.dtype in dtypes if dtypes else given.is_floating_point()
    if not fits or given.ndim != axes.count(",") + 1:
        kinds = " or ".join(str(kind).removeprefix("torch.") for kind in dtypes) or "floats"
        remedy = f"Pass {name}.to({dtypes[0]})." if dtypes and given.ndim == axes.count(",") + 1 else hint
        raise InputError(f"`{name}` must be {axes} of {kinds}, but is {tuple(given.shape)} of {given.dtype}.", hint=remedy)
    if dtypes and 0 in given.shape:
        raise InputError(f"`{name}` is empty: its shape is {tuple(given.shape)}.", hint="Leave empty batches and rows out.")
    return given


def check_by_position(name: str, given: Any, x: Tensor) -> None:
    """Require integers (1 or B, T), for embeddings (B, T, D); other types and shapes are an ``InputError``."""
    if not isinstance(given, Tensor) or given.dtype not in INTEGERS:
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise InputTypeError(f"`{name}` must be a tensor of integers, but is {kind}.")
    if given.ndim != 2 or given.shape[0] not in (1, x.shape[0]) or given.shape[1] != x.shape[1]:
        raise InputError(f"`{name}` has the shape {tuple(given.shape)}, but the inputs are {tuple(x.shape[:2])}.")


def check_range(name: str, values: Tensor, size: int, rule: str, hint: str) -> None:
    """Refuse numbers below 0 and from ``size`` on, where they can be looked at (``InputError``)."""
    if torch.compiler.is_compiling() or values.device.type != "cpu" or not values.numel():
        return  # reading values would break the graph or wait for the device
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        place = (values == wrong).nonzero()[0].tolist()
        raise InputError(f"`{name}` holds {wrong} at {place}, but {rule} {size - 1}.", hint=hint)


def check_finite(values: Tensor, name: str) -> None:
    """Refuse infinite values and those that are not numbers, with the place of the first, where they can be looked at."""
    if torch.compiler.is_compiling() or values.device.type != "cpu":
        return
    if bool(values.detach().sum().isfinite()):  # in one pass; a sum that is too large for its type is looked at again
        return
    if not (finite := values.isfinite()).all():
        place = (~finite).nonzero()[0].tolist()
        raise InputError(f"`{name}` holds {float(values[tuple(place)])} at {place}.", hint="Check the file it was read from.")


def packed_positions(inputs: Mapping[str, Any], first: int) -> Tensor | None:
    """``position_ids`` (1 or B, T), or those that ``seq_idx`` (1 or B, T) or ``cu_seq_lens_q`` (texts + 1) stand for.

    ``seq_idx`` are numbers of texts, and ``cu_seq_lens_q`` the places in the only row where texts begin and the last ends.
    """
    positions, texts, bounds = (inputs.get(name) for name in ("position_ids", "seq_idx", "cu_seq_lens_q"))
    if isinstance(positions, Tensor):
        return positions
    if isinstance(texts, Tensor) and texts.ndim == 2:
        places = torch.arange(texts.shape[1], device=texts.device).expand_as(texts)
        begins = torch.cat([torch.ones_like(texts[:, :1]), torch.diff(texts, dim=1)], dim=1) != 0
        return places - torch.where(begins, places, 0).cummax(dim=1).values + first
    if isinstance(bounds, Tensor) and bounds.ndim == 1:
        lengths = torch.diff(bounds).long()
        return (torch.arange(int(bounds[-1]), device=bounds.device) - bounds[:-1].repeat_interleave(lengths) + first)[None]
    return None


@dataclass(frozen=True)
class Packing:
    """Where the texts of a packed batch stand: several behind one another in a row, where positions begin anew.

    Texts of a row never see each other.
    """

    shape: tuple[int, int]  # B and T
    places: Tensor  # (N) of the real positions among the B * T
    lengths: tuple[int, ...]  # of the texts
    leading: Tensor  # (B) numbers of the texts that begin the rows

    @classmethod
    def find(cls, inputs: Mapping[str, Any], first: int) -> Packing | None:
        """How a batch of inputs is packed; ``None`` where each row is one text, whose first position is ``first``."""
        positions, mask = inputs.get("position_ids"), inputs.get("attention_mask")
        given = inputs.get("inputs_embeds") if inputs.get("input_ids") is None else inputs["input_ids"]
        if not isinstance(positions, Tensor) or not isinstance(given, Tensor) or inputs.get("lengths") is not None:
            return None
        masked = isinstance(mask, Tensor) and mask.shape != given.shape[:2]
        if masked or positions.ndim != 2 or given.ndim < 2 or positions.shape[1] != given.shape[1]:
            return None
        begins = positions == first
        if not begins[:, 1:].any():
            return None
        begins = begins.expand(given.shape[0], -1)
        real = torch.ones_like(begins) if mask is None else mask != 0
        places = real.flatten().nonzero()[:, 0]
        row = places // begins.shape[1]
        new_row = torch.cat([row.new_ones(1) != 0, row[1:] != row[:-1]])
        starts = (begins.flatten()[places] | new_row).nonzero()[:, 0]
        if len(starts) == int(new_row.sum()) or int(new_row.sum()) < len(begins):
            return None
        lengths = torch.diff(starts, append=starts.new_tensor([len(places)]))
        return cls((len(begins), begins.shape[1]), places, tuple(lengths.tolist()), new_row[starts].nonzero()[:, 0])

    @classmethod
    def of_padded(cls, mask: Tensor) -> Packing | None:
        """The rows of a mask (B, T) as texts without their padding; ``None`` where a row has some before or between tokens."""
        real = mask != 0
        if mask.ndim != 2 or not real[:, 0].all() or (real[:, 1:] & ~real[:, :-1]).any():
            return None
        rows = torch.arange(len(real), device=mask.device)
        return cls((real.shape[0], real.shape[1]), real.flatten().nonzero()[:, 0], tuple(real.sum(dim=1).tolist()), rows)

    def flat(self, x: Tensor) -> Tensor:
        """(1 or B, T, ...) -> (1, N, ...)."""
        return x.expand(self.shape[0], *x.shape[1:]).flatten(0, 1)[self.places][None]

    def padded(self, x: Tensor) -> Tensor:
        """(1 or B, T, ...) -> (R, longest, ...), filled up with zeros."""
        return pad_sequence(list(torch.split(self.flat(x)[0], list(self.lengths))), batch_first=True)

    def mask(self, device: torch.device) -> Tensor:
        """(R, longest): true for what is real in a padded tensor."""
        return within(torch.tensor(self.lengths, device=device), max(self.lengths))

    def restore(self, x: Tensor) -> Tensor:
        """(1, N, D), or padded (R, longest, D) -> (B, T, D), with zeros where nothing is real."""
        flat = x[0] if x.shape[0] == 1 and x.shape[1] == len(self.places) else x[self.mask(x.device)]
        out = flat.new_zeros(self.shape[0] * self.shape[1], *flat.shape[1:])
        return out.index_copy(0, self.places, flat).view(*self.shape, *flat.shape[1:])

    def restored(self, output: ModelOutput) -> ModelOutput:
        """A backbone's output, in which all states stand where they stood in the batch."""
        output["last_hidden_state"] = self.restore(output["last_hidden_state"])
        if "hidden_states" in output:
            output["hidden_states"] = tuple(map(self.restore, output["hidden_states"]))
        if "pooler_output" in output:
            output["pooler_output"] = output["pooler_output"][self.leading]
        return output
