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
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transept.errors import InputError, InputTypeError, nearest
from transept.layers.context import within
from transept.layers.tensors import check_tensors
from transept.outputs import ModelOutput

_QUOTED = re.compile(r"`(\w+)`")
# Names of inputs: one number or vector for each token, and what an encoder gives.
PER_TOKEN = ("token_type_ids", "position_ids", "inputs_embeds")
ENCODER = ("encoder_hidden_states", "encoder_attention_mask")
# What else tells where the texts of a packed batch stand, as the kernels of the reference are told.
BOUNDS = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
# What was an argument of the reference once, and what to do in its place.
GONE = {
    "head_mask": "Leave it out: heads cannot be masked; remove their weights in place of it.",
}


def explicit(forward: Callable[..., Any], names: Sequence[str], more: Sequence[str] | None) -> Callable[..., Any]:
    """The forward pass with arguments ``names``, by position too, and ``more`` by keyword; it is given all by keyword.

    Without ``more`` it takes any others.
    """
    known, most = {*names, *(more or ())}, len(names)

    @functools.wraps(forward)
    def call(self: Any, *args: Any, **inputs: Any) -> Any:
        inputs.pop("cache_position", None)  # the reference took it once: the cache tells
        if len(args) > most:
            raise InputTypeError(f"{type(self).__name__} takes {most} inputs by position, but got {len(args)}.")
        for name, value in zip(names, args):
            if name in inputs:
                raise InputTypeError(f"{type(self).__name__} got `{name}` twice: by position and by name.")
            inputs[name] = value
        if more is not None and not inputs.keys() <= known:
            name = next(name for name in inputs if name not in known)
            raise InputTypeError(f"{type(self).__name__} takes no input `{name}`.", hint=GONE.get(name) or nearest(name, known))
        if not torch.compiler.is_compiling():
            check_tensors(inputs, self)
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


def check_by_position(name: str, given: Any, x: Tensor) -> Tensor:
    """Require integers (1 or B, T), for embeddings (B, T, D); other types and shapes are an ``InputError``."""
    if not isinstance(given, Tensor) or given.dtype not in INTEGERS:
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise InputTypeError(f"`{name}` must be a tensor of integers, but is {kind}.")
    if given.ndim != 2 or given.shape[0] not in (1, x.shape[0]) or given.shape[1] != x.shape[1]:
        raise InputError(f"`{name}` has the shape {tuple(given.shape)}, but the inputs are {tuple(x.shape[:2])}.")
    return given


def readable(values: Tensor) -> bool:
    """Whether values can be looked at, which would break a graph that is being made, or wait for a device."""
    return not torch.compiler.is_compiling() and values.device.type == "cpu"


def check_range(name: str, values: Tensor, size: int, rule: str, hint: str) -> None:
    """Refuse numbers below 0 and from ``size`` on, where they can be looked at (``InputError``)."""
    if not readable(values) or not values.numel():
        return
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        place = (values == wrong).nonzero()[0].tolist()
        raise InputError(f"`{name}` holds {wrong} at {place}, but {rule} {size - 1}.", hint=hint)


def check_finite(values: Tensor, name: str) -> None:
    """Refuse infinite values and those that are not numbers, with the place of the first, where they can be looked at."""
    if not readable(values):
        return
    if bool(values.detach().sum().isfinite()):  # in one pass; a sum that is too large for its type is looked at again
        return
    if not (finite := values.isfinite()).all():
        place = (~finite).nonzero()[0].tolist()
        raise InputError(f"`{name}` holds {float(values[tuple(place)])} at {place}.", hint="Check the file it was read from.")


def given_states(inputs: Mapping[str, Any]) -> Tensor | None:
    """The ids (B, T) or embeddings (B, T, D) among inputs; ``None`` where there are none of such a shape."""
    given = inputs.get("inputs_embeds") if inputs.get("input_ids") is None else inputs["input_ids"]
    return given if isinstance(given, Tensor) and given.ndim > 1 else None


def declared_texts(inputs: Mapping[str, Any]) -> Tensor | None:
    """(1 or B, T) numbers, from 0 on, of the texts that a row holds, where ``seq_idx`` or ``cu_seq_lens_q`` tells them.

    ``seq_idx`` (1 or B, T) are numbers that change where a text begins; ``cu_seq_lens_q`` and ``cu_seq_lens_k`` (texts + 1) are
    the places in the only row where texts begin and the last ends.

    Raises:
        InputError: they do not fit the inputs or each other.
    """
    numbers, bounds = inputs.get("seq_idx"), [inputs.get(name) for name in ("cu_seq_lens_q", "cu_seq_lens_k")]
    if (given := given_states(inputs)) is None or (numbers is None and bounds == [None, None]):
        return None
    found = [_texts_between(each, given) for each in bounds if each is not None]
    if numbers is not None:
        check_by_position("seq_idx", numbers, given)
        found.append((numbers != before(numbers)).cumsum(dim=1))
    if readable(given) and any(not torch.equal(found[0].expand_as(each), each) for each in found[1:]):
        raise InputError("`seq_idx`, `cu_seq_lens_q` and `cu_seq_lens_k` tell of different texts.", hint="Pass one of them.")
    return found[-1]


def inferred_texts(positions: Tensor) -> Tensor:
    """(1 or B, T) numbers of the texts of rows: one begins where a position does not follow the one before it."""
    begins = (positions - before(positions) != 1).cumsum(dim=1)
    return begins - begins[:, :1]


def before(x: Tensor) -> Tensor:
    """(B, T): at each position what stands one before it, and at the first what stands there."""
    # Slices of T - 1 would keep exported programs from rows of two positions.
    return x.index_select(1, (torch.arange(x.shape[1], device=x.device) - 1).clamp(min=0))


def _texts_between(bounds: Any, given: Tensor) -> Tensor:
    """(1, T) numbers of the texts between ``bounds`` (texts + 1)."""
    if not isinstance(bounds, Tensor) or bounds.dtype not in INTEGERS or bounds.ndim != 1 or given.shape[0] != 1:
        what = f"{tuple(bounds.shape)} of {bounds.dtype}" if isinstance(bounds, Tensor) else type(bounds).__name__
        rule = "`cu_seq_lens_q` and `cu_seq_lens_k` must be (texts + 1) integers for a batch of one row"
        raise InputError(f"{rule}, but are {what} for {given.shape[0]} rows.", hint="Pass `seq_idx` for several rows.")
    length = given.shape[1]
    if readable(bounds) and (len(bounds) < 2 or bounds[0] != 0 or bounds[-1] != length or bool((torch.diff(bounds) < 1).any())):
        raise InputError(f"`cu_seq_lens_q` must rise from 0 to {length}, the length of the row, but is {bounds.tolist()[:20]}.")
    return torch.searchsorted(bounds, torch.arange(length, device=bounds.device, dtype=bounds.dtype), right=True)[None] - 1


def places_within(texts: Tensor) -> Tensor:
    """(1 or B, T) numbers of the positions within their texts, by numbers of these."""
    places = torch.arange(texts.shape[1], device=texts.device).expand_as(texts)
    return places - torch.where(texts != before(texts), places, 0).cummax(dim=1).values


@dataclass(frozen=True)
class Packing:
    """Where the texts of a packed batch stand: several behind one another in a row. Texts of a row never see each other."""

    shape: tuple[int, int]  # B and T
    places: Tensor  # (N) of the real positions among the B * T
    lengths: tuple[int, ...]  # of the texts
    leading: Tensor  # (B) numbers of the texts that begin the rows

    @classmethod
    def of_texts(cls, texts: Tensor, mask: Tensor | None) -> Packing | None:
        """How rows hold texts of these numbers (B, T), but for what a mask (B, T) hides; ``None`` where a row is all hidden."""
        real = torch.ones_like(texts, dtype=torch.bool) if mask is None else mask != 0
        places = real.flatten().nonzero()[:, 0]
        row, number = places // texts.shape[1], texts.flatten()[places]
        new_row = F.pad(torch.diff(row) != 0, (1, 0), value=True)
        starts = (new_row | F.pad(torch.diff(number) != 0, (1, 0))).nonzero()[:, 0]
        if not real.any(dim=1).all():
            return None
        lengths = torch.diff(starts, append=starts.new_tensor([len(places)]))
        return cls((len(texts), texts.shape[1]), places, tuple(lengths.tolist()), new_row[starts].nonzero()[:, 0])

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
