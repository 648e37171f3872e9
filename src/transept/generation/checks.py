"""What settings and what is made from them share: checks of ranges, token ids and biases, and lists of callables.

Each check raises the kind of error that its caller is about: ``ConfigError`` for a setting, ``InputError`` for an argument.
No torch here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

from transept.errors import InputError, InputTypeError, TranseptError, TranseptWarning
from transept.fields import Range as Range

Kind = type[TranseptError]


# What both a setting and the processor of the same name must keep to.
RANGES = {
    "temperature": Range(0, open="(", remedy="For greedy decoding use do_sample=False."),
    "top_k": Range(0, remedy="Use 0 to keep all tokens."),
    "top_p": Range(0, 1, remedy="Use 1.0 to keep all tokens."),
    "min_p": Range(0, 1, remedy="Use None to keep all tokens."),
    "top_h": Range(0, 1, open="(", remedy="Use None to keep all tokens."),
    "typical_p": Range(0, 1, open="(", remedy="Use 1.0 to keep all tokens."),
    "epsilon_cutoff": Range(0, 1, open=")", remedy="Use 0.0 to keep all tokens."),
    "eta_cutoff": Range(0, 1, open=")", remedy="Use 0.0 to keep all tokens."),
    "repetition_penalty": Range(0, open="(", remedy="Use 1.0 for no penalty."),
    "encoder_repetition_penalty": Range(0, open="(", remedy="Use 1.0 for no penalty."),
    "no_repeat_ngram_size": Range(0, remedy="Use 0 to allow every n-gram."),
    "encoder_no_repeat_ngram_size": Range(0, remedy="Use 0 to allow every n-gram."),
    "min_length": Range(0),
    "min_new_tokens": Range(0),
    "num_beams": Range(1, remedy="Use 1 for no beam search."),
    "num_beam_groups": Range(1, remedy="Use 1 for no groups."),
    "assistant_confidence_threshold": Range(0, 1),
}


def number(name: str, value: Any, allowed: Range | None = None, *, whole: bool = False, kind: Kind = InputError) -> Any:
    """``value`` if it is a number of that range: an ``int`` if ``whole``, else a ``float``.

    Args:
        allowed: the range; that of the setting ``name`` by default.
    """
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    allowed = RANGES[name] if allowed is None else allowed
    if not right or value not in allowed:
        what = "a whole number" if whole else "a number"
        raise kind(f"`{name}` must be {what} {allowed}, but is {str(value)[:80]!r}.", hint=allowed.remedy)
    return value if whole else float(value)


def token_ids(name: str, value: Any, *, kind: Kind = InputError) -> list[int]:
    """An id, or a list, array or tensor of ids, as a list of whole numbers from 0 on."""
    listed = value.tolist() if hasattr(value, "tolist") else value
    ids = [listed] if isinstance(listed, int) else listed
    if isinstance(ids, list | tuple | set | frozenset | range):
        ids = [index.item() if hasattr(index, "item") else index for index in ids]
        if all(isinstance(index, int) and not isinstance(index, bool) and index >= 0 for index in ids):
            return ids
    raise kind(f"`{name}` must be a token id or a list of them, from 0 on, but is {str(value)[:80]!r}.")


def sequences(name: str, value: Any, *, kind: Kind = InputError) -> list[list[int]]:
    """A list of one or more sequences of token ids, none of them empty."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(row, list | tuple) and row for row in value):
        raise kind(f"`{name}` must be a non-empty list of non-empty lists of token ids, but is {str(value)[:80]!r}.")
    return [token_ids(name, row, kind=kind) for row in value]


def biases(name: str, value: Any, *, kind: Kind = InputError) -> dict[tuple[int, ...], float]:
    """Sequences of tokens and what is added to their scores, from a mapping ``{(1, 2): 3.0}`` or a list ``[[[1, 2], 3.0]]``.

    A bias may be infinite, which forces or bans.
    """
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    paired = isinstance(pairs, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs)
    if not paired or not pairs:
        form = "{(1, 2): 3.0} or [[[1, 2], 3.0]]"
        raise kind(f"`{name}` must be of the form {form} and not empty, but is {str(value)[:80]!r}.")
    found = {}
    for ids, bias in pairs:
        if not isinstance(bias, int | float) or isinstance(bias, bool) or math.isnan(bias):
            raise kind(f"`{name}` must hold numbers as biases, but holds {str(bias)[:80]!r} for {str(ids)[:80]}.")
        found[tuple(sequences(name, [ids], kind=kind)[0])] = float(bias)
    return found


T = TypeVar("T")


class Chain(list[T]):
    """Callables that are applied in order to every new token."""

    def with_custom(self, custom: Iterable[T] | None) -> Self:
        """A chain in which the caller's steps take the place of those of the same class, and the others follow.

        Raises:
            InputTypeError: something that cannot be called.
        """
        steps = list(custom or ())
        for step in steps:
            if not callable(step):
                raise InputTypeError(f"{str(step)[:80]!r} of type {type(step).__name__} cannot be called on ids and scores.")
        chosen = {type(step): step for step in reversed(steps)}
        for step in self:
            if type(step) in chosen:
                name = type(step).__name__
                warnings.warn(f"The {name} passed in replaces the one made from the settings.", TranseptWarning, stacklevel=2)
        kept = [chosen.get(type(step), step) for step in self]
        return type(self)([*kept, *(step for step in steps if not any(step is other for other in kept))])
