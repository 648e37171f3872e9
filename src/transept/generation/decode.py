"""A batch of sequences that a model goes on writing: their ids, mask, positions and cache, and one step of the model.

Strategies ask for the logits of what comes next, choose, and append; this piece knows what the model must be told.

Shapes: R rows, T ids so far, S positions so far (with those of embeddings), D hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.layers.cache import Cache
from transept.layers.context import reaching
from transept.outputs import ModelOutput


class LanguageModel(Protocol):
    """What generation needs of a model: its config, its steps, and its encoder where it has one."""

    config: Any

    def step(self, **inputs: Any) -> Any:
        """Run the forward pass that a step of writing needs."""


@dataclass
class Prompt:
    """What there is to go on from.

    Args:
        ids: (R, T) ids; T may be 0 where there are embeddings.
        mask: (R, S) of bool, true for real positions; ``None`` where all are.
        embeds: (R, S, D) embeddings in the ids' place, for the first step.
        cache: what an earlier call has kept of the first positions.
        inputs: what the model is given at each step beside these, such as ``encoder_outputs``.
        source: (R, T') ids that the encoder has read, where there is one that reads ids.
        kept: whether the cache is the caller's own, who finds in it afterwards what was read.
        full: (1 or R, 1 or H, S, S) of bool or of numbers to add, what each position sees, in the mask's place.
    """

    ids: Tensor
    mask: Tensor | None = None
    embeds: Tensor | None = None
    cache: Cache | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    source: Tensor | None = None
    kept: bool = True
    full: Tensor | None = None


class Decoding:
    """Sequences in the making.

    Args:
        model: the model.
        prompt: what they begin with.
        room: ids that a row may have in the end.
        copies: how often each row is continued; the prompt is read once for all copies.
        use_cache: keep keys and values; else every step reads the whole sequence.
        chunk: positions of the prompt read at a time; all when ``None``.
        extra: further arguments of each call, such as ``output_attentions``.
        compiled: the model's step for one position, compiled; its inputs then have one shape at every step.

    Raises:
        InputError: a cache that already holds all that there is to read, or a prompt without any position.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: Prompt,
        room: int,
        *,
        copies: int = 1,
        use_cache: bool = True,
        chunk: int | None = None,
        extra: dict[str, Any] | None = None,
        compiled: Callable[..., Any] | None = None,
    ) -> None:
        rows, length = prompt.ids.shape
        self.model, self.use_cache, self.chunk, self.extra = model, use_cache, chunk, extra or {}
        self.compiled = compiled
        self.prefix = "decoder_" if model.config.is_encoder_decoder else ""
        self.buffer = prompt.ids.new_zeros((rows, max(room, length)))
        self.buffer[:, :length] = prompt.ids
        self.length, self.cache, self.inputs, self.embeds = length, prompt.cache, prompt.inputs, prompt.embeds
        # Positions before the first id, where embeddings stand in the ids' place.
        self.lead = 0 if prompt.embeds is None else prompt.embeds.shape[1] - length
        self.read = 0 if prompt.cache is None else prompt.cache.get_seq_length()
        self.mask, self.full = None if prompt.mask is None else self._padded(prompt.mask), prompt.full
        backbone = model_backbone(model)
        # What looks at all that is read with it is read at once.
        if prompt.full is not None or (not self.prefix and not backbone.causal):
            self.chunk = None
        self.takes_positions = "position_ids" in backbone.reads and not self.prefix
        self.first_position = getattr(backbone, "first_position", 0)
        self.outputs: ModelOutput | None = None
        self.watch: Callable[[Any], None] | None = None  # told of the output of each call
        self.copies = copies
        if self.positions <= self.read:
            what = f"a cache of {self.read} positions and a prompt of {self.positions}"
            raise InputError(
                f"there is nothing to go on from: {what}.",
                hint="Pass the whole sequence, the cached part and at least one new token." if self.read else None,
            )
        if copies > 1 and self.extra:  # what is shown of the prompt is shown for each row
            self._copy()

    @property
    def rows(self) -> int:
        """R, of all copies."""
        return self.buffer.shape[0] * self.copies

    @property
    def ids(self) -> Tensor:
        """(R, T); a view that the next step does not change."""
        ids = self.buffer[:, : self.length]
        return ids if self.copies == 1 else ids.repeat_interleave(self.copies, dim=0)

    @property
    def positions(self) -> int:
        """S."""
        return self.lead + self.length

    def _padded(self, mask: Tensor) -> Tensor:
        """The mask with room for what will be written, which is real."""
        whole = mask.new_ones((mask.shape[0], self.lead + self.buffer.shape[1]))
        whole[:, : mask.shape[1]] = mask
        return whole

    def logits(self) -> Tensor:
        """(R, V) in float32: the scores of what follows the last position; reads what has not been read."""
        return self.last(1)[:, 0]

    def last(self, keep: int) -> Tensor:
        """(R, keep, V) in float32: the scores of what follows each of the last positions; reads what has not been read."""
        end = self.positions
        start = self.read if self.use_cache else 0
        while start < end:
            stop = min(start + (self.chunk or end), end) if self.use_cache else end
            stop = stop if end - stop >= keep else end  # so that all that is kept comes from one call
            self.outputs = self._call(start if self.use_cache else 0, stop, keep)
            start = stop
        assert self.outputs is not None
        self.read = end
        last: Tensor = self.outputs.logits  # type: ignore[attr-defined]
        # A view would keep the logits of a whole prompt alive, and a compiled step may write its next ones to the same place.
        own = last.shape[1] == keep and self.compiled is None
        logits = last[:, -keep:].to(torch.float32, copy=not own)
        return logits if self.copies == 1 else logits[self._copy()]

    def _copy(self) -> Tensor:
        """Make the copies of each row; the rows (R) that they are of."""
        rows = torch.arange(self.buffer.shape[0], device=self.buffer.device).repeat_interleave(self.copies)
        self.copies = 1
        self.select(rows)
        return rows

    def _call(self, start: int, stop: int, keep: int) -> Any:
        """The model's output for the positions from ``start`` to ``stop``."""
        given: dict[str, Any] = dict(self.inputs, **self.extra)
        ids = f"{self.prefix}input_ids"
        if self.embeds is not None and start < self.embeds.shape[1]:
            given[f"{self.prefix}inputs_embeds"] = self._embedded(start, stop)
        else:
            given[ids] = self.buffer[:, start - self.lead : stop - self.lead]
        if self.mask is not None:
            given[f"{self.prefix}attention_mask"] = self.mask[:, :stop]
        if self.full is not None:
            given["attention_mask"] = continued(self.full, start, stop)
        if self.takes_positions and (self.mask is not None or self.first_position):
            given["position_ids"] = self._counted(start, stop)
        step = self.model.step
        if self.compiled is not None and start > 0 and stop - start == 1 and self.cache is not None and ids in given:
            step = self.compiled
            self._fix(given)
        outputs = step(
            **given,
            past_key_values=self.cache if self.use_cache else None,
            use_cache=self.use_cache,
            logits_to_keep=keep,
            return_dict=True,
        )
        self.cache = outputs.past_key_values if self.use_cache else None
        self.use_cache = self.cache is not None
        if self.watch is not None:
            self.watch(outputs)
        return outputs

    def _fix(self, given: dict[str, Any]) -> None:
        """Give a step's inputs the shape and the strides that they have at every step."""
        assert self.cache is not None
        ids, room = f"{self.prefix}input_ids", self.cache.get_max_length()
        given[ids] = given[ids].clone()
        if self.mask is not None:
            given[f"{self.prefix}attention_mask"] = reaching(self.mask[:, :room], room)
        if self.full is not None:
            seen = given["attention_mask"]
            given["attention_mask"] = F.pad(seen, (0, room - seen.shape[3]), value=_hidden(seen))

    def read_again(self) -> None:
        """Run the model over all positions once more, for hooks to see; the cache stays as it is."""
        twin = copy.copy(self)
        twin.cache, twin.use_cache, twin.watch = None, False, None
        # What was written behind embeddings has none itself.
        twin._call(0, self.positions if self.embeds is None else self.embeds.shape[1], 1)

    def _counted(self, start: int, stop: int) -> Tensor:
        """(1 or R, stop - start) of positions, of real ones only where some are padding."""
        if self.mask is None:
            return torch.arange(start, stop, device=self.buffer.device)[None] + self.first_position
        return (self.mask[:, :stop].long().cumsum(-1) - 1).clamp(min=0)[:, start:] + self.first_position

    def _embedded(self, start: int, stop: int) -> Tensor:
        assert self.embeds is not None
        if stop > self.embeds.shape[1]:
            raise InputError(
                "with `inputs_embeds`, what is written must be cached, since it has no embeddings.",
                hint="Leave `use_cache` on.",
            )
        return self.embeds[:, start:stop]

    def append(self, tokens: Tensor) -> None:
        """Write (R) ids, one to each row."""
        self.buffer[:, self.length] = tokens
        self.length += 1

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (R'), in this order; a row may be taken more than once."""
        self.buffer = self.buffer.index_select(0, rows)
        self.mask = None if self.mask is None else self.mask.index_select(0, rows)
        self.embeds = None if self.embeds is None else self.embeds.index_select(0, rows)
        if self.full is not None and self.full.shape[0] > 1:
            self.full = self.full.index_select(0, rows)
        self.inputs = {name: pick_rows(value, rows) for name, value in self.inputs.items()}
        if self.cache is not None:
            self.cache.reorder_cache(rows)

    def reorder(self, rows: Tensor) -> None:
        """Go on with rows (R) of the same prompts, so that prompts and encoder states stay."""
        self.buffer = self.buffer.index_select(0, rows)
        if self.cache is not None:
            self.cache.reorder_cache(rows)

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` ids; what was read of them stays read."""
        self.length = length
        self.read = min(self.read, self.positions)
        if self.cache is not None:
            self.cache.crop(self.read)


def continued(full: Tensor, start: int, stop: int) -> Tensor:
    """Rows ``start`` to ``stop`` of a mask (..., S, S) that goes on behind the prompt, over all positions up to there.

    New positions see what the prompt's last one sees, and of each other those before them.
    """
    size, device = full.shape[3], full.device
    if stop <= size:
        return full[:, :, start:stop, :stop]
    rows = torch.arange(start, stop, device=device)
    later = torch.arange(size, stop, device=device) > rows[:, None]
    new = full.new_full(later.shape, not full.is_floating_point()).masked_fill(later, _hidden(full))
    return torch.cat([full[:, :, rows.clamp(max=size - 1)], new.expand(*full.shape[:2], -1, -1)], dim=3)


def _hidden(mask: Tensor) -> float:
    """What stands in a mask for what is not seen."""
    return torch.finfo(mask.dtype).min if mask.is_floating_point() else False


def model_backbone(model: Any) -> Any:
    """The network whose ``forward`` says what a model takes."""
    return getattr(model, "backbone", model)


def vocabulary_size(model: Any) -> int:
    """V of what a model writes."""
    return int(model_backbone(model.get_decoder() if model.config.is_encoder_decoder else model).vocab_size)


def pick_rows(value: Any, rows: Tensor) -> Any:
    """The same rows of a tensor, or of all tensors of an output; anything else as it is."""
    if isinstance(value, Tensor):
        return value.index_select(0, rows)
    if isinstance(value, ModelOutput):
        return type(value)(**{name: pick_rows(part, rows) for name, part in value.items()})
    if isinstance(value, tuple):
        return tuple(pick_rows(part, rows) for part in value)
    return value
