"""Sequences in the making, one step of the model, and greedy search and sampling.

Strategies ask a :class:`Decoding` for the logits of what comes next, choose, and append; it knows what the model must be told.

Shapes: R rows, T ids so far, S positions so far (with those of embeddings), D hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.environment.memory import check_memory
from transept.errors import refuse
from transept.generation.compiled import compiled_step
from transept.generation.config import GenerationConfig
from transept.generation.logits_processors import LogitsProcessorList
from transept.generation.prompt import (
    BLOCKS,
    BY_POSITION,
    Prompt,
    accepted,
    counted,
    decoder_prefix,
    model_backbone,
    takes_positions,
    vocabulary_size,
)
from transept.layers.caches.cache import Cache
from transept.layers.caches.layer import GROWTH
from transept.layers.context import reaching
from transept.outputs import ModelOutput
from transept.quantized.fused import fuse

_SCORES = 2  # of (R, V), which every strategy but greedy search holds at once, at least
Choice = Callable[[Tensor, Tensor], Tensor]  # (scores (R', V), which of the prompts' rows these are (R')) -> (R') tokens


@dataclass(frozen=True)
class Step:
    """What one step wrote."""

    rows: Tensor  # (R') the prompts' rows that were still being written
    tokens: Tensor  # (R') what they got
    done: Tensor  # (R') those that end with it
    logits: Tensor  # (R', V) what the tokens were chosen by, before the processors
    scores: Tensor  # (R', V) and after them


class Decoding:
    """Sequences in the making.

    Args:
        prompt: what they begin with.
        settings: what is kept and shown, how much of a prompt is read at a time, whether steps are compiled.
        copies: how often each row is continued; the prompt is read once for all copies.
    """

    processors: LogitsProcessorList  # for scores (R, V)
    stopping: Callable[[Tensor], Tensor]  # ids (R, T) -> (R) of bool: rows that are done

    def __init__(self, model: Any, prompt: Prompt, settings: GenerationConfig, copies: int = 1) -> None:
        self.model, self.copies, self.use_cache = model, copies, settings.use_cache is not False
        # The model's step for one position, compiled; its inputs then have one shape at every step.
        self.compiled = compiled_step(model, settings, prompt.cache)
        fuse(model)
        shown = ("output_attentions", "output_hidden_states") if settings.return_dict_in_generate else ()
        self.extra = {name: True for name in shown if getattr(settings, name)}  # further arguments of each call
        self.prefix = decoder_prefix(model)
        self.buffer, self.length = prompt.ids.clone(), prompt.ids.shape[1]
        self.cache, self.embeds, self.mask, self.full = prompt.cache, prompt.embeds, prompt.mask, prompt.full
        # Positions before the first id, where embeddings stand in the ids' place.
        self.lead = 0 if prompt.embeds is None else prompt.embeds.shape[1] - self.length
        self.read = 0 if prompt.cache is None else prompt.cache.get_seq_length()
        self.passes = 0 if prompt.cache is None else prompt.cache.passes
        backbone, self.inputs = model_backbone(model), prompt.inputs
        # What looks at all that is read with it is read at once.
        whole = prompt.full is not None or BLOCKS in self.inputs or not (self.prefix or backbone.causal)
        self.chunk: int | None = None if whole else settings.prefill_chunk_size
        if takes_positions(model) and (self.mask is not None or getattr(backbone, "first_position", 0) > 0):
            mask = self.buffer.new_ones((len(self.buffer), self.positions)) if self.mask is None else self.mask
            self.inputs = {"position_ids": counted(mask, model)} | self.inputs
        self.by_position = [name for name in BY_POSITION if name in self.inputs and name not in accepted(type(model).step)]
        self.switch = self._switch(backbone)
        self.outputs: ModelOutput | None = None
        self.watch: Callable[[Any], None] | None = None  # told of the output of each call
        self.numbers = torch.arange(self.rows, device=prompt.ids.device)  # which of the first rows the present ones are
        self.complete: list[tuple[Tensor, Tensor]] = []  # numbers and ids of rows that have left
        what = f"there is nothing to go on from: a cache of {self.read} positions and a prompt of {self.positions}."
        refuse(self.positions <= self.read, what, "Pass the whole sequence, the cached part and at least one new token.")
        if copies > 1 and self.extra:  # what is shown of the prompt is shown for each row
            self._copy()

    def _switch(self, backbone: Any) -> int | None:
        """S of the longest sequences that turn as shorter ones do (see ``TextBackbone.switches_at``)."""
        if (at := getattr(backbone, "switches_at", None)) is None or self.lead:  # what has no ids cannot be read again
            return None
        counts = self.inputs.get("position_ids")
        return int(at if counts is None else at + self.positions - 1 - int(counts.max()))  # the longest row may be padded

    @property
    def rows(self) -> int:
        return self.buffer.shape[0] * self.copies

    @property
    def ids(self) -> Tensor:
        """(R, T); a view that the next step does not change."""
        ids = self.buffer[:, : self.length]
        return ids if self.copies == 1 else ids.repeat_interleave(self.copies, dim=0)

    @property
    def positions(self) -> int:
        return self.lead + self.length

    def logits(self) -> Tensor:
        return self.last(1)[:, 0]

    def last(self, keep: int) -> Tensor:
        """(R, keep, V) in float32: the scores of what follows each of the last positions; reads what has not been read."""
        end, start, chunk = self.positions, self.read if self.use_cache else 0, self.chunk
        if self.switch is not None and start <= self.switch < end:  # what was read before turned otherwise
            start, chunk = 0, None
            if self.cache is not None:
                self.cache.reset()
        while start < end:
            stop = min(start + (chunk or end), end) if self.use_cache else end
            stop = stop if end - stop >= keep else end  # so that all that is kept comes from one call
            self.outputs = self._call(start, stop, keep)
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
        given: dict[str, Any] = self.inputs | self.extra
        ids, cached, step = f"{self.prefix}input_ids", self.cache if self.use_cache else None, self.model.step
        if self.embeds is not None and start < self.embeds.shape[1]:
            given[f"{self.prefix}inputs_embeds"] = self._embedded(start, stop)
        else:
            given[ids] = self.buffer[:, start - self.lead : stop - self.lead]
        if self.mask is not None:
            given[f"{self.prefix}attention_mask"] = reaching(self.mask[:, :stop], stop)
        if self.full is not None:
            given["attention_mask"] = continued(self.full, start, stop)
        for name in self.by_position:
            values = _by_position(self.inputs[name], start, stop, name.endswith("position_ids"))
            given[name] = values.movedim(-1, 0) if values.ndim == 3 else values  # models have the axes of positions first
        if self.compiled is not None and start > 0 and stop - start == 1 and cached is not None and ids in given:
            step = self.compiled
            self._fix(given, cached)
        if (prepare := vars(self.model).get("prepare_inputs_for_generation")) is not None:  # replaced by who wraps the model
            whole = self.buffer[:, : stop - self.lead] if given.pop(ids, None) is not None else None
            given = prepare(whole, next_sequence_length=stop - start, past_key_values=cached, **given)
            cached = given.pop("past_key_values", None)
        fixed = {"use_cache": self.use_cache, "logits_to_keep": keep, "return_dict": True}
        with nullcontext() if cached is None else cached.in_use(self.passes):
            outputs = step(**given | fixed, past_key_values=cached)
        self.cache = outputs.past_key_values if self.use_cache else None
        self.use_cache, self.passes = self.cache is not None, 0 if self.cache is None else self.cache.passes
        if self.watch is not None:
            self.watch(outputs)
        return outputs

    def _embedded(self, start: int, stop: int) -> Tensor:
        """Embeddings of positions that begin among those of the prompt; of written ids where the prompt has ids, too."""
        assert self.embeds is not None
        if stop <= (size := self.embeds.shape[1]):
            return self.embeds[:, start:stop]
        what = "with `inputs_embeds`, what is written must be cached, since it has no embeddings."
        refuse(self.lead > 0, what, "Leave `use_cache` on.")
        new = self.model.get_input_embeddings()(self.buffer[:, size:stop])
        return torch.cat([self.embeds[:, start:], new], dim=1)

    def _fix(self, given: dict[str, Any], cache: Cache) -> None:
        """Give a step's inputs the shape and the strides that they have at every step."""
        room = cache.get_max_length()
        for name in (f"{self.prefix}input_ids", *self.by_position):
            given[name] = given[name].flatten().clone()[:, None]
        if self.mask is not None:
            given[f"{self.prefix}attention_mask"] = reaching(self.mask, room)
        if self.full is not None:
            seen = given["attention_mask"]
            given["attention_mask"] = F.pad(seen, (0, room - seen.shape[3]), value=_hidden(seen))

    def read_again(self) -> None:
        """Run the model over all positions once more, for hooks to see; the cache stays as it is."""
        twin = copy.copy(self)
        twin.cache, twin.use_cache, twin.watch = None, False, None
        # What was written behind embeddings has none itself.
        twin._call(0, self.positions if self.embeds is None else self.embeds.shape[1], 1)

    def append(self, tokens: Tensor) -> None:
        """Write ids (R), one to each row, or several (R, N)."""
        tokens = tokens[:, None] if tokens.ndim == 1 else tokens
        end = self.length + tokens.shape[1]
        self.buffer = grown(self.buffer, end)
        self.buffer[:, self.length : end] = tokens
        self.length = end

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (R'), in this order; a row may be taken more than once.

        Raises:
            InputError: there is no memory for so many.
        """
        if len(rows) > (prompts := len(self.buffer)):
            held = (self.mask, self.embeds, self.full, *self.inputs.values())
            kept = sum(part.nbytes for part in held if isinstance(part, Tensor))
            kept += 0 if self.cache is None else self.cache.footprint_at(self.positions + GROWTH)
            check_rows(self.model, self.buffer, len(rows) // prompts, kept)
        self.mask, self.embeds = pick_rows(self.mask, rows), pick_rows(self.embeds, rows)
        if self.full is not None and self.full.shape[0] > 1:
            self.full = self.full.index_select(0, rows)
        self.inputs = {name: pick_rows(value, rows) for name, value in self.inputs.items()}
        self.reorder(rows)

    def reorder(self, rows: Tensor) -> None:
        """Go on with rows (R) of the same prompts, so that prompts and encoder states stay."""
        self.buffer = self.buffer.index_select(0, rows)
        if self.cache is not None:
            self.cache.reorder_cache(rows)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows (R') alone; the others are complete."""
        gone = torch.ones_like(self.numbers, dtype=torch.bool).index_fill(0, rows, False)
        self.complete.append((self.numbers[gone], self.ids[gone]))
        self.numbers = self.numbers[rows]
        self.select(rows)

    def sequences(self, filler: int) -> Tensor:
        """(R, T) of all rows, with the filler behind those that were complete before others."""
        parts = [*self.complete, (self.numbers, self.ids)]
        found = self.buffer.new_full((sum(len(numbers) for numbers, _ in parts), self.length), filler)
        for numbers, ids in parts:
            found[numbers, : ids.shape[1]] = ids
        return found

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` ids; what was read of them stays read."""
        self.length = length
        self.read = min(self.read, self.positions)
        if self.cache is not None:
            self.cache.crop(self.read)


def check_rows(model: Any, prompts: Tensor, copies: int, kept: int = 0) -> None:
    """Refuse so many copies of each prompt (B, T) if there is no memory for them (``InputError``).

    ``kept`` are the bytes that are kept of all prompts beside their ids. Prompts without copies are the caller's affair.
    """
    if copies == 1:
        return
    count, length = prompts.shape
    of_row = _SCORES * torch.float32.itemsize * vocabulary_size(model) + (length + GROWTH) * prompts.itemsize
    what = f"writing {count * copies} rows at once ({count} prompts, {copies} rows each)"
    hint = "Set `num_beams`, `num_return_sequences` or, in contrastive search, `top_k` lower, or pass fewer prompts at once."
    check_memory(copies * (count * of_row + kept), prompts.device, what, hint)


def greedy(scores: Tensor, rows: Tensor) -> Tensor:
    """The most likely tokens (R)."""
    return scores.argmax(dim=-1)


class Sampler:
    """Draws tokens by their probabilities, with one generator for each row, which makes rows independent, or one for all."""

    def __init__(self, seed: int | Sequence[int] | None, rows: int, device: torch.device) -> None:
        seeds = [] if seed is None else [seed] if isinstance(seed, int) else seed
        self.generators = [torch.Generator(device).manual_seed(number) for number in seeds]
        self.independent = isinstance(seed, Sequence)
        wrong = self.independent and len(seeds) != rows
        refuse(wrong, f"there are {len(seeds)} seeds for {rows} rows.", "Pass one for each row, or one number.")

    def __call__(self, scores: Tensor, rows: Tensor) -> Tensor:
        chances = scores.softmax(dim=-1)
        if not self.independent:
            return torch.multinomial(chances, 1, generator=next(iter(self.generators), None)).squeeze(1)
        own = [self.generators[row] for row in rows.tolist()]
        return torch.cat([torch.multinomial(line, 1, generator=each) for line, each in zip(chances, own, strict=True)])


def write(decoding: Decoding, choose: Choice, *, filler: int, shrink: bool) -> Iterator[Step]:
    """Greedy search, or sampling: token after token until every row is done.

    Rows that are done get the filler, or ``shrink`` the batch, for choices and processors that treat rows alone.
    """
    open_ = torch.ones_like(decoding.numbers, dtype=torch.bool)
    while True:
        rows, logits = decoding.numbers, decoding.logits()
        scores = decoding.processors(decoding.ids, logits)
        tokens = choose(scores, rows)
        tokens = tokens if shrink else torch.where(open_, tokens, filler)
        decoding.append(tokens)
        open_ = open_ & ~decoding.stopping(decoding.ids)
        yield Step(rows, tokens, ~open_, logits, scores)
        if not open_.any():
            return
        if shrink and not open_.all():
            left = open_.nonzero()[:, 0]
            open_ = open_[left]
            decoding.keep(left)
            decoding.processors.select(left)


def grown(buffer: Tensor, length: int) -> Tensor:
    """A buffer (R, T, ...) itself where it has room for so many positions, else a copy with more room than that."""
    if length <= (size := buffer.shape[1]):
        return buffer
    more = buffer.new_empty((buffer.shape[0], max(length - size, size // 2, 64), *buffer.shape[2:]))
    return torch.cat([buffer, more], dim=1)


def _by_position(values: Tensor, start: int, stop: int, rising: bool) -> Tensor:
    """Values (R, S) of positions, gone on with behind the last one: rising by one each, or as it is.

    Of positions on several axes (R, S, axes) all go on behind the largest.
    """
    places, last = torch.arange(start, stop, device=values.device), values.shape[1] - 1
    found, more = values[:, places.clamp(max=last)], (places - last).clamp(min=0) * rising
    if values.ndim == 2:
        return found + more
    return torch.where(more[:, None] > 0, values.amax(dim=(1, 2), keepdim=True) + more[:, None], found)


def continued(full: Tensor, start: int, stop: int) -> Tensor:
    """Rows ``start`` to ``stop`` of a mask (..., S, S) that goes on behind the prompt, over all positions up to there.

    New positions see what the prompt's last one sees, and of each other those before them.
    """
    size, rows = full.shape[3], torch.arange(start, stop, device=full.device)
    if stop <= size:
        return full[:, :, start:stop, :stop]
    later = torch.arange(size, stop, device=full.device) > rows[:, None]
    new = full.new_full(later.shape, not full.is_floating_point()).masked_fill(later, _hidden(full))
    return torch.cat([full[:, :, rows.clamp(max=size - 1)], new.expand(*full.shape[:2], -1, -1)], dim=3)


def _hidden(mask: Tensor) -> float:
    """What stands in a mask for what is not seen."""
    return torch.finfo(mask.dtype).min if mask.is_floating_point() else False


def pick_rows(value: Any, rows: Tensor) -> Any:
    """The same rows of a tensor, or of all tensors of an output; anything else as it is."""
    if isinstance(value, Tensor):
        return value.index_select(0, rows)
    if isinstance(value, ModelOutput):
        return type(value)(**{name: pick_rows(part, rows) for name, part in value.items()})
    if isinstance(value, tuple):
        return tuple(pick_rows(part, rows) for part in value)
    return value
