"""The engine: requests come in from any thread, and one thread reads and writes for all of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from transept.environment.memory import memory_left
from transept.errors import GenerationError, InputError, TranseptError
from transept.generation.config import GenerationConfig
from transept.generation.prompt import end_tokens
from transept.serving.engine.memory import BLOCK, Memory
from transept.serving.engine.pictures import Pictures
from transept.serving.engine.runner import Part, Runner
from transept.serving.engine.sampler import Choosing, Chosen, Processor, choose, score
from transept.serving.engine.scheduler import Row, Scheduler, Share
from transept.serving.errors import ContextLengthError, EngineDeadError, QueueFullError
from transept.serving.worker import PATIENCE, Worker

Finish = Literal["stop", "length"]
_SHARE = 4  # one of so many parts of the free memory is for keys and values


@dataclass(eq=False)
class Request:
    """A prompt to be written on from.

    Args:
        ids: of the prompt.
        settings: complete ones; ``max_new_tokens`` is how many tokens are written at most, and all ids of
            ``eos_token_id`` end the text.
        take: called in the engine's thread with each token, and with why it is the last one, if it is. Where it gives
            ``True``, nothing more is written.
        fail: called with the error that ends the request, where one does.
        seed, logprobs, processors: those of :class:`transept.serving.engine.sampler.Choosing`.
        salt: requests of another one share no prefix.
        echo: called in the engine's thread with the tokens of the prompt behind the first one and with their
            log-probabilities, as they are read; no prefix is taken from others then, since its scores are gone.
        pictures: of the prompt; their digest is in the salt.
    """

    ids: list[int]
    settings: GenerationConfig
    take: Callable[[Chosen, Finish | None], bool]
    fail: Callable[[TranseptError], object]
    seed: int | None = None
    logprobs: int | None = None
    processors: Sequence[Processor] = ()
    salt: bytes = b""
    echo: Callable[[list[Chosen]], object] | None = None
    pictures: Pictures | None = None
    number: int = field(init=False, default=-1)  # given by the engine
    cached: int = field(init=False, default=0)  # ids of the prompt that were cached already


@dataclass
class _Running:
    request: Request
    row: Row
    choosing: Choosing
    ends: frozenset[int]
    echoed: int = 1  # ids of the prompt that have been told, or have no scores

    def scored(self, count: int) -> int:
        """Behind how many of the ids that are read next the model is to score what follows."""
        request, row = self.request, self.row
        if request.echo is not None and row.read < len(request.ids) - 1:
            return count
        return int(count == row.rest)

    def tell(self, scores: Tensor) -> None:
        """Tell of the prompt's tokens that were scored by the pass, before its ids count as read."""
        request, begin = self.request, self.row.read + 1
        end = min(begin + len(scores), len(request.ids))
        if request.echo is not None and self.echoed < end:
            own = slice(self.echoed - begin, end - begin)
            request.echo(score(scores[own], request.ids[self.echoed : end], request.logprobs or 0))
            self.echoed = end


class Engine(Worker):
    """Reads prompts and writes on from them, all rows in one pass.

    Each row is computed as if it were alone, up to rounding in products of other sizes (none, with packed weights). A row that
    fails fails alone.

    Args:
        model: a causal language model in evaluation mode.
        max_rows: rows that run at once.
        max_waiting: rows that wait at most.
        budget: positions of prompts that are read in a pass.
        cache_bytes: memory for keys and values, a quarter of what is free where absent.
        keeps_prefixes: whether what was read is kept for prompts that begin alike.
        exact: cut prompts at multiples of 32 positions alone, so that a row has the same bits with a kept prefix or not.
        context: ids of a row at most, fewer than the model's own.

    Raises:
        InputError: the model is in training mode, or writes no text.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_rows: int = 32,
        max_waiting: int = 256,
        budget: int = 512,
        cache_bytes: int | None = None,
        keeps_prefixes: bool = True,
        exact: bool = False,
        context: int | None = None,
    ) -> None:
        if model.training or not model.can_generate() or model.config.is_encoder_decoder:
            what = f"{type(model).__name__} is no causal language model in evaluation mode."
            raise InputError(what, hint="Call model.eval(), and serve encoder-decoders as tasks.")
        super().__init__("transept-engine")
        self.model, self.max_waiting = model, max_waiting
        self.runner = Runner(model)
        self.bytes_per_position = self._measure()
        left = memory_left(model.device) if cache_bytes is None else None
        cache_bytes = (left or 2**32) // _SHARE if cache_bytes is None else cache_bytes
        keeps = keeps_prefixes and self.runner.together
        self.memory = Memory(
            cache_bytes // self.bytes_per_position, keeps=keeps, forget=lambda number: self.runner.forget(number)
        )
        self.scheduler = Scheduler(self.memory, max_rows=max_rows, budget=budget, cut=BLOCK if exact else 1)
        # A row that is longer than that would have to be read anew, since all its positions turn otherwise.
        most = (context, model.body.trained_positions, model.body.switches_at)
        self.context: int | None = min(filter(None, most), default=None)
        self.running: dict[int, _Running] = {}
        self.after_pass: Callable[[], object] = lambda: None  # called in the engine's thread
        self._numbers = itertools.count()
        self._inbox: list[_Running | int] = []  # requests, and numbers of those that are cancelled
        self._strikes = 0  # passes that failed one after the other, though each row alone did not

    def submit(self, request: Request) -> int:
        """Take a request, from any thread; gives its number.

        Raises:
            InputError, ContextLengthError: it cannot be answered.
            BusyError: it cannot be answered now.
        """
        ids, settings = request.ids, request.settings
        new = settings.max_new_tokens or 1
        vocabulary = self.model.body.vocab_size
        if not ids or min(ids) < 0 or max(ids) >= vocabulary:
            raise InputError(f"a prompt needs ids from 0 to {vocabulary - 1}, one or more.")
        limit = len(ids) + new
        if self.context is not None and limit > self.context + 1:
            what = f"the prompt has {len(ids)} tokens and {new} are to be written, but the context has {self.context}."
            raise ContextLengthError(what, hint="Shorten the prompt, or lower max_tokens.")
        if not self.memory.fits(limit):
            what = f"{limit} positions are more than the memory for keys and values has, {self.memory.positions}."
            raise ContextLengthError(what, hint="Shorten the prompt or lower max_tokens, or serve with more memory.")
        choosing = Choosing(
            settings, len(ids), limit, seed=request.seed, logprobs=request.logprobs, processors=request.processors
        )
        row = Row(next(self._numbers), list(ids), limit, request.salt, time.monotonic())
        if request.echo is not None:
            row.digests = []  # it takes no prefix of another row, whose scores are gone
        running = _Running(request, row, choosing, frozenset(end_tokens(settings)))
        with self._changed:
            self.check_open()
            if self.waiting >= self.max_waiting:
                raise QueueFullError(f"{self.waiting} rows wait already.", self.seconds_for(self.waiting))
            request.number = row.number
            self._inbox.append(running)
            self._changed.notify()
        return row.number

    @property
    def waiting(self) -> int:
        """Rows that wait."""
        return len(self.scheduler.waiting) + sum(isinstance(each, _Running) for each in tuple(self._inbox))

    def cancel(self, number: int) -> None:
        """Let a request write nothing more, from any thread; it is told nothing more."""
        with self._changed:
            self._inbox.append(number)
            self._changed.notify()

    def _run(self) -> None:
        while not self._over and (self._open or self.running or self._inbox):
            with self.in_turn():
                worked = self.step()
            self.after_pass()
            if not worked:
                with self._changed:
                    self._changed.wait_for(lambda: self._inbox or not self._open, PATIENCE)

    def close(self, grace: float = 0.0) -> None:
        super().close(grace)
        if not self._thread.is_alive():
            self.runner.close()

    def _fail_all(self, error: TranseptError) -> None:
        self._read_inbox()
        for running in tuple(self.running.values()):
            self._fail(running, error)
        self.after_pass()

    def step(self) -> bool:
        """One pass, in the thread that owns the engine; ``False`` where there is nothing to do."""
        self._read_inbox()
        for row in self.scheduler.admit():
            self._begin(row)
        shares = self.scheduler.plan()
        if not shares:
            return bool(self.scheduler.waiting)
        for share in shares:
            self.runner.reserve(share.row.number, self.memory.room(share.row.number))
        try:
            self._pass(shares)
            self._strikes = 0
        except Exception as error:  # whatever a model raises is one row's affair, if that row is found
            self._one_by_one(shares, error)
        return True

    @torch.inference_mode()
    def _measure(self) -> int:
        """Bytes that a position takes in the cache."""
        self.runner.begin(-1, 1)
        self.runner.run([Part(-1, [0], 1)])
        positions = 1024
        size = self.runner.caches[-1].footprint_at(positions)
        self.runner.forget(-1)
        return max(size // positions, 1)

    def _read_inbox(self) -> None:
        with self._changed:
            inbox, self._inbox = self._inbox, []
        for each in inbox:
            if isinstance(each, _Running):
                self.running[each.row.number] = each
                self.scheduler.add(each.row)
            elif (gone := self.running.get(each)) is not None:
                self._end(gone)

    def _begin(self, row: Row) -> None:
        prefix = self.memory.match(row.digests)
        self.runner.begin(row.number, self.memory.room(row.number), prefix)
        row.read = self.running[row.number].request.cached = 0 if prefix is None else prefix[1]

    def _pass(self, shares: Sequence[Share]) -> None:
        """Read what the shares say, and write a token of each row that has read all."""
        scored = [self.running[row.number].scored(count) for row, count in shares]
        parts = [
            Part(row.number, row.ids[row.read : row.read + count], places, self.running[row.number].request.pictures)
            for (row, count), places in zip(shares, scored, strict=True)
        ]
        logits = self.runner.run(parts)
        for (row, _), scores in zip(shares, torch.split(logits, scored), strict=True):
            self.running[row.number].tell(scores)
        for row, count in shares:
            row.read += count
        rows = [row for row, _ in shares if not row.rest]
        if len(logits) > len(rows):
            logits = logits[[end - 1 for (row, _), end in zip(shares, accumulate(scored), strict=True) if not row.rest]]
        own = [self.running[row.number] for row in rows]
        for running, chosen in zip(
            own, choose(logits, [row.ids for row in rows], [each.choosing for each in own]), strict=True
        ):
            if isinstance(chosen, TranseptError):
                self._fail(running, chosen)
            else:
                self._write(running, chosen)

    def _write(self, running: _Running, chosen: Chosen) -> None:
        row = running.row
        row.ids.append(chosen.token)
        is_end = chosen.token in running.ends
        finish: Finish | None = "stop" if is_end else "length" if len(row.ids) >= row.limit else None
        try:
            stops = running.request.take(chosen, finish)
        except Exception as error:  # of what makes text of tokens
            return self._fail(running, GenerationError(f"the text of this request cannot be made: {type(error).__name__}."))
        if stops or finish is not None:
            self._end(running)
        return None

    def _end(self, running: _Running) -> None:
        """Forget a request; what its row has read is kept as a prefix."""
        row = running.row
        del self.running[row.number]
        self.ended.append(time.monotonic())
        self.scheduler.remove(row)
        self.memory.keep(row.number, row.ids[: row.read], row.salt)

    def _fail(self, running: _Running, error: TranseptError) -> None:
        """End a request with an error; nothing of its row is kept."""
        row = running.row
        if self.running.pop(row.number, None) is None:
            return  # another thread ends all of them, since this one hangs
        self.scheduler.remove(row)
        self.memory.release(row.number)
        running.request.fail(error)

    def _one_by_one(self, shares: Sequence[Share], error: Exception) -> None:
        """Run the rows of a pass that failed by themselves, and end those that fail again.

        Raises the error where no row is to blame, twice in a row.
        """
        left = []
        for row, count in shares:
            read, row.read = row.read, self.runner.go_back(row.number, row.read)
            if row.read == read:  # else its states are lost, and it reads again from the beginning in the next pass
                left.append(Share(row, count))
        failures = 0
        for share in left:
            try:
                self._pass([share])
            except EngineDeadError:
                raise
            except Exception as own:
                failures += 1
                what = f"this request cannot be answered: the model failed with {type(own).__name__}."
                self._fail(self.running[share.row.number], GenerationError(what))
        self._strikes = 0 if failures else self._strikes + 1
        if self._strikes > 1:
            raise error
