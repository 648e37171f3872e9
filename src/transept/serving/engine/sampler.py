"""Tokens for many rows, each with settings of its own, from the scores of what follows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transept.errors import GenerationError, TranseptError
from transept.generation.config import GenerationConfig
from transept.generation.logits_processors import FiniteLogitsCheck, LogitsProcessor, LogitsProcessorList
from transept.generation.run import build_processors
from transept.serving.errors import NoTokenError

Processor = Callable[[Tensor, Tensor], Tensor]
_AT_ONCE = 64  # positions whose log-probabilities are in memory at a time


class Chosen(NamedTuple):
    """A token, and what the model thought of it and of the likeliest ones, where that was asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Choosing:
    """How the tokens of a row are chosen.

    Args:
        settings: complete ones.
        prompt, limit: ids of the prompt, and of the row in all.
        seed: of the drawing; one of the system's where absent.
        logprobs: how many of the likeliest tokens are told with their log-probabilities; ``None`` for none, and not the
            token's own.
        processors: change scores (1, V) after what the settings ask for that looks at ids.
    """

    def __init__(
        self,
        settings: GenerationConfig,
        prompt: int,
        limit: int,
        *,
        seed: int | None = None,
        logprobs: int | None = None,
        processors: Sequence[Processor] = (),
    ) -> None:
        self.logprobs = logprobs
        made = [each for each in build_processors(settings, prompt, limit) if not isinstance(each, FiniteLogitsCheck)]
        own = next((place for place in reversed(range(len(made))) if _reads_ids(made[place])), -1) + 1
        self.rules = LogitsProcessorList([*made[:own], *processors])
        self.warpers = LogitsProcessorList(made[own:])
        # Of rows with the same key, what does not look at their ids is computed at once.
        self.key = tuple((type(each).__name__, *sorted(vars(each).items())) for each in self.warpers)
        self.generator: torch.Generator | None = None
        if settings.do_sample:
            seed = random.SystemRandom().getrandbits(63) if seed is None else seed
            self.generator = torch.Generator().manual_seed(seed)


def _reads_ids(processor: Any) -> bool:
    return processor.reads_ids if isinstance(processor, LogitsProcessor) else True


def choose(logits: Tensor, ids: Sequence[list[int]], rows: Sequence[Choosing]) -> list[Chosen | TranseptError]:
    """The next token of each row, from the model's logits (R, V) in float32 and the ids so far.

    A row whose scores are no numbers, or allow nothing, gets the error that says so; others go on.
    """
    found: list[Any] = [None] * len(rows)
    largest, best = (column.tolist() for column in logits.max(dim=-1))
    groups: dict[Any, list[tuple[int, Tensor]]] = {}
    for number, row in enumerate(rows):
        scores = logits[number : number + 1]
        if not math.isfinite(largest[number]):
            found[number] = GenerationError("The model's scores of the next token are no numbers.")
            continue
        try:
            scores = row.rules(torch.tensor([ids[number]], device=logits.device), scores) if row.rules else scores
        except Exception as error:  # of a processor that came with the request
            own = error if isinstance(error, TranseptError) else None
            found[number] = own or GenerationError(f"The scores could not be processed: {type(error).__name__}.")
            continue
        if row.generator is None and not row.rules:
            found[number] = best[number]
        elif not bool(scores.amax().isfinite()):
            found[number] = NoTokenError("The settings of the request allow no token that could come next.")
        elif row.generator is None:
            found[number] = int(scores.argmax())
        else:
            groups.setdefault(row.key, []).append((number, scores))
    for members in groups.values():
        numbers, scored = [number for number, _ in members], torch.cat([scores for _, scores in members])
        for number, token in zip(numbers, _drawn(scored, [rows[number] for number in numbers]), strict=True):
            found[number] = token
    return [
        token if isinstance(token, TranseptError) else _told(token, logits[number], row.logprobs)
        for number, (token, row) in enumerate(zip(found, rows, strict=True))
    ]


def _drawn(scores: Tensor, rows: Sequence[Choosing]) -> list[int | TranseptError]:
    """Tokens that rows of equal settings draw by their scores (R, V)."""
    try:
        # Warpers take ids, which those of this kind do not look at.
        chances = rows[0].warpers(scores.new_empty(len(rows), 0), scores).softmax(dim=-1).cpu()
    except Exception as error:  # of these settings
        return [GenerationError(f"The scores could not be processed: {type(error).__name__}.")] * len(rows)
    found: list[int | TranseptError] = []
    for each, row in zip(chances, rows, strict=True):
        if bool(each.isfinite().all()):
            found.append(int(torch.multinomial(each, 1, generator=row.generator)))
        else:  # such as of a temperature that makes all scores infinite
            found.append(NoTokenError("The settings of the request allow no token that could come next."))
    return found


def _told(token: int, logits: Tensor, count: int | None) -> Chosen:
    """A token with log-probabilities, if so many are asked for."""
    if count is None:
        return Chosen(token)
    return score(logits[None], [token], count)[0]


def score(logits: Tensor, tokens: Sequence[int], count: int) -> list[Chosen]:
    """Tokens that are there already, with their log-probabilities and so many of the likeliest ones instead of each.

    Args:
        logits: what the model gives in the place of each token (T, V).
        tokens, count: T ids, and how many of the likeliest are told.

    Raises:
        GenerationError: the scores are no numbers.
    """
    found: list[Chosen] = []
    given = torch.tensor(tokens, device=logits.device)
    for scores, ids in zip(torch.split(logits, _AT_ONCE), torch.split(given, _AT_ONCE), strict=True):
        logprobs = scores.log_softmax(dim=-1)
        if bool(logprobs.isnan().any()):
            raise GenerationError("The model's scores of the prompt are no numbers.")
        values, places = logprobs.topk(min(count, logprobs.shape[1]))
        own = logprobs.gather(1, ids[:, None])[:, 0]
        likeliest = (tuple(zip(*each, strict=True)) for each in zip(places.tolist(), values.tolist(), strict=True))
        found += map(Chosen, ids.tolist(), own.tolist(), likeliest)
    return found
