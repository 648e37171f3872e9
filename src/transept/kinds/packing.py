"""Backbones that read several texts in one row, none of which sees another.

Shapes: B batch, T positions, R texts, N real positions of all texts, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from transept.core.inputs import (
    BOUNDS,
    Packing,
    check_by_position,
    declared_texts,
    given_states,
    inferred_texts,
    places_within,
    readable,
)
from transept.core.model import Backbone
from transept.errors import InputError
from transept.layers.caches.cache import Cache
from transept.layers.caches.rows import RowCaches
from transept.layers.context import Context, Rows
from transept.layers.pool import pooled_alone

# What has one row for each text.
_NOT_RAGGED = ("encoder_hidden_states", "block_sequence_ids")


class PackableBackbone(Backbone):
    """A network whose rows may hold several texts: they are told apart by the inputs, or inferred from positions."""

    # Whether texts of different lengths can stand one behind the other, without padding.
    ragged: ClassVar[bool] = True
    # Whether positions alone tell texts apart, where there is neither a mask nor a cache, as in the reference.
    infers_texts: ClassVar[bool] = False
    # The inputs that have something for each position.
    by_position: ClassVar[tuple[str, ...]] = ("input_ids", "inputs_embeds", "token_type_ids", "position_ids")

    @property
    def can_continue_rows(self) -> bool:
        """Whether rows without padding can go on from caches of their own, which are computed as if each were alone."""
        return False

    @property
    def first_position(self) -> int:
        """The number of the first position, as ``position_ids`` count."""
        return 0

    def makes_cache(self, asked: bool | None) -> bool:
        """Whether a pass that was given no cache makes one, where the caller ``asked`` for it, or for none, or said nothing."""
        raise NotImplementedError

    def find_packing(self, inputs: dict[str, Any]) -> Packing | None:
        """Where the texts of packed rows stand; of the inputs, what told of them becomes positions.

        Where the texts can be told apart by a mask alone, ``seq_idx`` stays among the inputs and the result is ``None``.

        Raises:
            InputError: what tells of texts does not fit the inputs, or others that are not for packed rows.
        """
        texts = self.find_texts(inputs)
        if texts is None or not (torch.compiler.is_compiling() or texts.any()):
            return None  # each row is one text
        pairs = any(inputs.get(name) is not None for name in ("encoder_hidden_states", "block_sequence_ids"))
        by_mask = self.ragged and (torch.compiler.is_compiling() or pairs or self.asks(inputs, "output_attentions"))
        rows: Any = given_states(inputs)
        packing = None if by_mask else Packing.of_texts(texts.expand(len(rows), -1), inputs.get("attention_mask"))
        if packing is None and not self.ragged:
            raise InputError("`attention_mask` hides all of a row that holds several texts.", hint="Leave such rows out.")
        if packing is None:
            inputs["seq_idx"] = texts
        return packing

    def find_texts(self, inputs: dict[str, Any]) -> Tensor | None:
        """(1 or B, T) numbers of the texts in packed rows, told or inferred; ``None`` where nothing says that there are some.

        Of the inputs, what told of texts is taken away, and positions are put in where there are none.
        """
        texts, positions, given = declared_texts(inputs), inputs.get("position_ids"), given_states(inputs)
        if texts is not None:
            self._check_packed(inputs)
        for name in BOUNDS:
            inputs.pop(name, None)
        if "position_ids" in self.reads:
            if texts is not None and positions is None:
                inputs["position_ids"] = places_within(texts) + self.first_position
            uncached = self.cache_matters(inputs) and not self.makes_cache(inputs.get("use_cache"))
            if texts is None and given is not None and uncached:
                texts = inferred_texts(check_by_position("position_ids", positions, given))
        elif inputs.pop("position_ids", None) is not None and given is not None:
            self._check_counted(positions, given.new_zeros(1, given.shape[1]) if texts is None else texts)
        return texts

    def cache_matters(self, inputs: Mapping[str, Any]) -> bool:
        """Whether texts would be inferred from positions, were there no cache."""
        absent = all(inputs.get(name) is None for name in ("attention_mask", "past_key_values", "lengths"))
        return self.infers_texts and absent and inputs.get("position_ids") is not None

    def _check_packed(self, inputs: Mapping[str, Any]) -> None:
        """Refuse inputs that are not for rows of several texts."""
        bound, given = next(name for name in BOUNDS if inputs.get(name) is not None), given_states(inputs)
        names = ("past_key_values", "encoder_hidden_states", "pixel_values", "mems", "perm_mask", "target_mapping", "lengths")
        wrong = [name for name in names if inputs.get(name) is not None] + ["use_cache"] * bool(inputs.get("use_cache"))
        if wrong:
            what = f"`{bound}` tells that rows hold several texts, which `{wrong[0]}` cannot be for."
            raise InputError(what, hint=f"Pass one text in each row, without `{bound}`.")
        mask = inputs.get("attention_mask")
        if mask is not None and (not isinstance(mask, Tensor) or given is None or mask.shape != given.shape[:2]):
            shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise InputError(f"`attention_mask` must be (batch, positions) beside `{bound}`, but is {shape}.")

    def _check_counted(self, positions: Any, texts: Tensor) -> None:
        """Refuse positions other than those that the family counts itself, where they can be looked at."""
        if not isinstance(positions, Tensor) or not readable(positions):
            return
        counted = places_within(texts) + self.first_position
        if positions.shape[1:] != counted.shape[1:] or bool((positions != counted).any()):
            what = f"{type(self).__name__} counts positions itself, and `position_ids` are others."
            raise InputError(what, hint="Leave them out, and tell texts that are packed into a row by `seq_idx`.")

    def forward_packed(self, packing: Packing, inputs: dict[str, Any], forward: Callable[..., Any]) -> Any:
        """The output for a packed batch, of a forward pass that sees each text as a row."""
        arrange = packing.flat if self.ragged else packing.padded
        arranged = {name: arrange(inputs[name]) for name in self.by_position if inputs.get(name) is not None}
        options: dict[str, Any] = {"attention_mask": None if self.ragged else packing.mask(packing.places.device)}
        options |= {"use_cache": False, "return_dict": True} | ({"lengths": packing.lengths} if self.ragged else {})
        with pooled_alone(False):  # all states go back to where they stood
            output = packing.restored(forward(**inputs | arranged | options))
        return output if self.asks(inputs, "return_dict") else output.to_tuple()

    def read_lengths(self, shape: tuple[int, int], mask: Any, ctx: Context, options: Mapping[str, Any]) -> None:
        """The rows of a batch without padding, which come without what is for padded batches, or with caches of their own."""
        if not self.ragged:
            raise InputError(f"{type(self).__name__} takes no `lengths`.", hint="Pass a padded batch with its mask.")
        lengths, cache = tuple(options["lengths"] or ()), options.get("past_key_values")
        if shape != (1, sum(lengths)) or min(lengths, default=0) < 1:
            raise InputError(f"`lengths` add up to {sum(lengths)} positions, but the inputs are {shape}.")
        given = {"attention_mask": mask, **{name: options.get(name) for name in _NOT_RAGGED}}
        given |= {} if isinstance(cache, RowCaches) else {"past_key_values": cache}
        for name in [name for name, value in given.items() if value is not None]:
            hint = "Pass transept.layers.caches.rows.RowCaches." if name == "past_key_values" else f"Leave `{name}` out."
            raise InputError(f"`lengths` and `{name}` exclude each other.", hint=hint)
        if ctx.attentions is not None:
            raise InputError("`output_attentions` cannot be shown for rows without padding.", hint="Pass a padded batch.")
        if options.get("use_cache") and cache is None:
            hint = "Pass transept.layers.caches.rows.RowCaches of as many rows, or a padded batch."
            raise InputError("`use_cache` is true, but rows without padding have no cache.", hint=hint)
        past = (0,) * len(lengths) if cache is None else self._continue_rows(lengths, cache, ctx)
        ctx.rows = Rows(lengths, past)
        ctx.queries, ctx.keys = max(lengths), max(before + new for before, new in zip(past, lengths, strict=True))
        self.check_length(ctx.keys)

    def _continue_rows(self, lengths: tuple[int, ...], cache: RowCaches, ctx: Context) -> tuple[int, ...]:
        """Let rows go on from their caches; gives the numbers of positions that these hold."""
        if not self.can_continue_rows:
            what = f"rows of {type(self).__name__} cannot go on from caches of their own in one batch."
            raise InputError(what, hint="Pass a padded batch with one cache.")
        self.check_cache(cache, len(lengths))
        ctx.cache, past = cache, tuple(row.get_seq_length() for row in cache.rows)
        for row, new, before in zip(cache.rows, lengths, past, strict=True):
            ctx.alone.append(Context(ctx.kernel, past=before, queries=new, keys=before + new, cache=row))
        return past

    def check_length(self, length: int) -> None:
        """Require positions for so long a sequence (``InputError``)."""
        raise NotImplementedError

    def check_cache(self, cache: Any, batch: int) -> Cache | None:
        """Require a cache, if there is one, of this network and so many rows."""
        raise NotImplementedError

    def asks(self, inputs: Mapping[str, Any], name: str) -> bool:
        """What the caller says of an output, or the config where the caller says nothing."""
        asked = inputs.get(name)
        return bool(getattr(self.config, name) if asked is None else asked)
