"""What collators draw follows from the place of a batch: the same after a resume, and with any workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.training.collate.texts import both, restoring, texts
from transept.training.collate.language import (
    DataCollatorForLanguageModeling,
    DataCollatorForNextSentencePrediction,
    DataCollatorForPermutationLanguageModeling,
    DataCollatorForWholeWordMask,
)
from transept.training.collate.media import DataCollatorForPatchMasking, DataCollatorForWav2Vec2Pretraining
from transept.training.collate.rows import DrawingCollator
from transept.training.collate.spans import DataCollatorForDenoising, DataCollatorForSpanCorruption
from transept.training.data.loader import Columns, begin_epoch, make_loader
from transept.training.data.order import EpochSampler

TOKENS, WHOLE = both()[0], restoring()
WORDS = [{"input_ids": ids} for ids in TOKENS(texts(12))["input_ids"]]
SYLLABLES = [{"input_ids": list(range(40, 60 + n))} for n in range(12)]
PAIRS = [{"first": one, "second": two} for one, two in zip(texts(12), texts(12, seed=1))]
PICTURES = [{"pixel_values": torch.zeros(3, 32, 32)} for _ in range(12)]
WAVES = [{"input_values": [0.0] * 30} for _ in range(12)]


class Waves:
    """What draws of a model, and what pads for it."""

    model_input_names = ("input_values",)

    def sample_targets(self, values: Any, mask: Any, generator: Any) -> dict[str, torch.Tensor]:
        return {"mask_time_indices": torch.rand(values.shape, generator=generator)}

    def pad(self, rows: Any, **options: Any) -> dict[str, Any]:
        return {"input_values": [row["input_values"] for row in rows]}


CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "language": (lambda **how: DataCollatorForLanguageModeling(TOKENS, **how), WORDS),
    "words": (lambda **how: DataCollatorForWholeWordMask(TOKENS, **how), WORDS),
    "permutation": (lambda **how: DataCollatorForPermutationLanguageModeling(TOKENS, **how), WORDS),
    "spans": (lambda **how: DataCollatorForSpanCorruption(WHOLE, **how), SYLLABLES),
    "denoising": (lambda **how: DataCollatorForDenoising(WHOLE, **how), SYLLABLES),
    "sentences": (lambda **how: DataCollatorForNextSentencePrediction(TOKENS, **how), PAIRS),
    "patches": (lambda **how: DataCollatorForPatchMasking(8, **how), PICTURES),
    "sounds": (lambda **how: DataCollatorForWav2Vec2Pretraining(Waves(), Waves(), **how), WAVES),
}


def batches(case: str, start: int = 0, workers: int = 0, **how: Any) -> list[str]:
    """The batches of two epochs from one on, by a new loader with a new collator."""
    make, rows = CASES[case]
    options: dict[str, Any] = {"seed": 3, "batch_size": 3, "drop_last": False, "num_workers": workers}
    loader = make_loader(rows, EpochSampler(12, 1), make(**how), Columns(None), **options)
    found = [batch for epoch in range(2) for batch in begin_epoch(loader, epoch, start if not epoch else 0)]
    return [repr({name: value.tolist() for name, value in batch.items()}) for batch in found]


@pytest.mark.parametrize("case", CASES)
def test_what_is_drawn_follows_from_the_place(case: str) -> None:
    assert isinstance(CASES[case][0](), DrawingCollator)
    whole = batches(case, seed=7)
    assert whole[:4] != whole[4:]
    assert batches(case, start=2, seed=7) == whole[2:]
    assert batches(case, start=1, workers=2, seed=7) == whole[1:]
    assert batches(case, seed=8) != whole
    assert batches(case) == batches(case, workers=1)
    assert batches(case, generator=torch.Generator()) == batches(case, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("case", CASES)
def test_a_seed_alone_tells_what_is_drawn(case: str) -> None:
    make, rows = CASES[case]
    one, other = make(seed=7), make(seed=7)
    found = [repr(one(rows)), repr(one(rows))]
    torch.manual_seed(5)
    assert [repr(other(rows)), repr(other(rows))] == found
    assert found[0] != found[1]
