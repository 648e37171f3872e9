"""What all pipelines share: windows, batches, kinds of inputs, errors by position, streams, options and progress."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import UserDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pytest
import torch

from transept import pipeline
from transept.core.model import Model
from transept.errors import InputError, TranseptError
from transept.pipelines.base import PADDED_CPU_BUDGET, InputsError, TaskPipeline, check_choice, check_count, to_numpy
from transept.pipelines.batching import FIRST_READ, MOST_READ, Sample, batches, halving, read_ahead
from transept.pipelines.components import Components

from .text_models import SavedModel, shuffled


@dataclass(frozen=True)
class Times:
    """Multiplies numbers."""

    times: int = 1


class Numbers(TaskPipeline[Times]):
    """Each number n is a row of n positions; negative ones cannot be prepared, 13 spoils its batch, 17 its answer."""

    task, options_class = "numbers", Times

    def __init__(self, **batching: Any) -> None:
        super().__init__(_Model(), **batching)
        self.seen: list[list[int]] = []

    @classmethod
    def build(cls, parts: Components, **given: Any) -> Self:
        return cls(**given)

    def prepare(self, items: Sequence[int], options: Times) -> list[list[Sample] | TranseptError]:
        return [InputError(f"{item} is negative.") if item < 0 else [Sample({"n": item}, item)] for item in items]

    def forward(self, samples: Sequence[Sample], options: Times) -> Sequence[int]:
        numbers = [sample.inputs["n"] for sample in samples]
        self.seen.append(numbers)
        if 13 in numbers:
            raise InputError("13 is unlucky.")
        return [number * options.times for number in numbers]

    def answer(self, item: int, samples: Sequence[Sample], results: Sequence[int], options: Times) -> int:
        if item == 17:
            raise InputError("17 has no answer.")
        return results[0]


class _Model(Model):
    def __init__(self) -> None:
        torch.nn.Module.__init__(self)

    def built(self) -> None:
        """Nothing to initialise."""


# --- windows and batches -------------------------------------------------------------------------------------------------


def test_windows_of_a_stream_grow_and_lose_nothing() -> None:
    found = list(read_ahead(iter(range(5000))))
    assert [len(read) for read in found] == [64, 128, 256, 512, 1024, 1024, 1024, 968]
    assert list(itertools.chain.from_iterable(found)) == list(range(5000))
    assert [len(read) for read in read_ahead(range(2048))] == [MOST_READ, MOST_READ]
    assert list(read_ahead([])) == list(read_ahead(iter(()))) == []


def test_what_a_failing_source_gave_comes_before_its_error() -> None:
    def source() -> Iterator[int]:
        yield from range(20, 90)
        raise OSError("the line is dead")

    found = []
    with pytest.raises(OSError, match="the line is dead"):
        for read in read_ahead(source()):
            found += read
    assert found == list(range(20, 90))
    answered = []
    with pytest.raises(OSError, match="the line is dead"):
        for answer in Numbers()(source()):
            answered.append(answer)  # noqa: PERF402 (the error comes after some)
    assert answered == list(range(20, 90))


def test_batches_hold_every_row_once_and_keep_to_the_budget() -> None:
    stream = np.random.RandomState(0)
    samples = [Sample({}, int(length)) for length in stream.randint(0, 300, 500)]
    found = batches(samples, 1000)
    assert sorted(itertools.chain.from_iterable(found)) == list(range(500))
    for batch in found:
        assert len(batch) * max(samples[i].length for i in batch) <= 1000
    lengths = [samples[i].length for batch in found for i in batch]
    assert lengths == sorted(lengths, reverse=True)
    padded = sum(len(batch) * samples[batch[0]].length for batch in found)
    assert padded < 1.05 * sum(lengths)


def test_a_row_above_the_budget_is_a_batch_of_its_own() -> None:
    assert batches([Sample({}, 5000), Sample({}, 10), Sample({}, 6000)], 1000) == [[2], [0], [1]]
    assert batches([], 1000) == []


def test_rows_of_different_groups_are_never_in_one_batch() -> None:
    samples = [Sample({}, 10, group=i % 3) for i in range(30)]
    for batch in batches(samples, 1000):
        assert len({samples[i].group for i in batch}) == 1
    assert max(map(len, batches(samples, 1000, most_rows=4))) == 4


# --- kinds of inputs ------------------------------------------------------------------------------------------------------


class Indexed:
    """A data set as PyTorch's are: it has a length and indices, and is not iterable."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        return index * 2 + 100


def test_any_kind_of_input() -> None:
    run = Numbers()
    assert run(5) == 5
    assert run([3, 1, 2]) == [3, 1, 2]
    assert run((3, 1, 2)) == [3, 1, 2]
    assert run(range(3)) == [0, 1, 2]
    assert run([]) == []
    assert list(run(n for n in (3, 1, 2))) == [3, 1, 2]
    assert list(run({4: 1, 5: 2}.keys())) == [4, 5]
    assert list(run(np.array([6, 4]))) == [6, 4]
    assert list(run(Indexed())) == [100 + 2 * i for i in range(100)]
    assert run.is_one(UserDict())


def test_a_stream_is_read_lazily_and_never_far_ahead() -> None:
    read = 0

    def source() -> Iterator[int]:
        nonlocal read
        for n in itertools.count(20):
            read += 1
            yield n

    answers = Numbers()(source())
    assert read == 0
    assert next(answers) == 20
    assert read == FIRST_READ
    for _ in range(10_000):
        next(answers)
    assert read - 10_001 <= MOST_READ


def test_an_endless_stream_keeps_nothing() -> None:
    class Number(float):
        """A number that can be watched."""

    alive: weakref.WeakSet[Number] = weakref.WeakSet()
    most = 0

    def source() -> Iterator[Number]:
        for n in itertools.count(20):
            number = Number(n)
            alive.add(number)
            yield number

    run = Numbers()
    run.seen = deque(maxlen=1)  # type: ignore[assignment]
    for _ in itertools.islice(run(source()), 20_000):
        most = max(most, len(alive))
    assert most <= 3 * MOST_READ


# --- errors ----------------------------------------------------------------------------------------------------------------


def test_a_failed_input_is_named_and_the_others_are_answered() -> None:
    inputs = [5, -1, 13, 7, 17, 9]
    with pytest.raises(InputsError, match=r"3 of 6 inputs .*\(the first at position 1\): -1 is negative") as caught:
        Numbers()(inputs)
    assert caught.value.positions == [1, 2, 4]
    assert [caught.value.answers[i] for i in (0, 3, 5)] == [5, 7, 9]
    assert [str(caught.value.answers[i]) for i in (1, 2, 4)] == ["-1 is negative.", "13 is unlucky.", "17 has no answer."]
    found = Numbers()(inputs, on_error="return")
    assert [type(answer) for answer in found] == [int, InputError, InputError, int, InputError, int]
    with pytest.raises(InputsError, match="input 1 cannot be answered: -1"):
        Numbers()([5, -1])


def test_a_single_failed_input_raises_its_own_error() -> None:
    with pytest.raises(InputError, match="^13 is unlucky"):
        Numbers()(13)
    assert str(Numbers()(13, on_error="return")) == "13 is unlucky."


def test_a_stream_goes_on_after_an_error() -> None:
    answers = Numbers()(iter([5, -1, 7, 13, 9]))
    found: list[Any] = []
    while True:
        try:
            found.append(next(answers))
        except StopIteration:
            break
        except InputError as error:
            found.append(str(error))
    assert found == [5, "input 1: -1 is negative.", 7, "input 3: 13 is unlucky.", 9]
    returned = list(Numbers()(iter([5, -1, 7]), on_error="return"))
    assert isinstance(returned[1], InputError)


def test_a_bad_row_is_found_by_halving() -> None:
    run = Numbers()
    run([13, *range(20, 34)], on_error="return")
    assert len(run.seen) <= 9  # the whole, and two halves on each of four levels
    assert [13] in run.seen


def test_a_batch_above_the_memory_is_halved() -> None:
    sizes: list[int] = []

    def function(items: list[int]) -> list[int]:
        sizes.append(len(items))
        if len(items) > 3:
            raise torch.OutOfMemoryError("no room")
        return items

    told: list[int] = []
    assert halving(function, list(range(10)), told.append) == list(range(10))
    assert max(sizes[1:]) == 5
    assert told == [10, 5, 5]
    assert "not enough memory for this input alone" in str(halving(lambda items: function([0] * 9), [1])[0])
    assert halving(function, []) == []


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        halving(lambda items: [1 // 0 for _ in items], [1, 2])


def test_values_that_are_not_finite_are_errors_of_their_rows() -> None:
    def function(items: list[float]) -> Any:
        return to_numpy(torch.tensor(items)[:, None])

    found = halving(function, [1.0, float("nan"), 2.0, float("inf")])
    assert [isinstance(one, InputError) for one in found] == [False, True, False, True]
    assert "computes nan for this input" in str(found[1])
    assert "computes inf" in str(found[3])


# --- options ---------------------------------------------------------------------------------------------------------------


def test_options_of_a_call() -> None:
    run = Numbers()
    assert run([1, 2], times=3) == [3, 6]
    assert run([1, 2]) == [1, 2]
    with pytest.raises(InputError, match=r"'numbers' has no option 'time'\. Did you mean 'times'"):
        run(1, time=3)
    with pytest.raises(InputError, match="`on_error` is 'ignore', but must be one of 'raise', 'return'"):
        run(1, on_error="ignore")


def test_rows_of_a_batch() -> None:
    run = Numbers()
    run(range(20, 40), batch_size=3)
    assert max(map(len, run.seen)) == 3
    assert run.batch_size is None
    run.seen.clear()
    run(range(20, 40))
    assert len(run.seen) == 1
    fixed = Numbers(batch_size=2, budget=10**6)
    fixed(range(20, 30))
    assert max(map(len, fixed.seen)) == 2
    assert Numbers().budget == PADDED_CPU_BUDGET
    for wrong in (0, -1, 2.5, True, "8"):
        with pytest.raises(InputError, match="`batch_size` must be a whole number from 1"):
            Numbers()([1], batch_size=wrong)
        with pytest.raises(InputError, match="budget"):
            Numbers(budget=wrong)


def test_checks_name_the_option_and_its_value() -> None:
    with pytest.raises(InputError, match="`n` must be a whole number from 0, or None, but is -1"):
        check_count("n", -1, optional=True, least=0)
    check_count("n", None, optional=True)
    with pytest.raises(InputError, match="`kind` is 'c', but must be one of 'a', 'b'"):
        check_choice("kind", "c", ("a", "b"))


# --- progress --------------------------------------------------------------------------------------------------------------


def test_progress_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Numbers()(range(20, 3000))
    assert capsys.readouterr() == ("", "")
    Numbers()(range(20, 3000), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "numbers" in shown.err
    assert "2980" in shown.err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    Numbers()(range(20, 3000))
    assert capsys.readouterr().err.strip("\r ") == ""  # short work shows none
    Numbers()(range(20, 3000), progress=False)
    assert capsys.readouterr().err == ""


# --- with a real network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["BertModel", "RobertaModel", "GPT2Model"])
def test_shuffled_lengths_give_the_answers_one_by_one(text_model: SavedModel, name: str) -> None:
    embed = pipeline("text-embedding", text_model(name))
    texts = shuffled(150, 60)
    together = embed(texts)
    alone = np.stack([embed(text) for text in texts])
    assert np.abs(together - alone).max() < 1e-5
    assert np.abs(np.stack(list(embed(iter(texts)))) - alone).max() < 1e-5
    assert np.abs(embed(texts, batch_size=7) - alone).max() < 1e-5


def test_padding_is_the_only_thing_that_masks(text_model: SavedModel) -> None:
    """The text of the padding token is a token like any other, as for the reference."""
    embed = pipeline("text-embedding", text_model("BertModel"))
    texts = ["a [PAD] fox", "[PAD]", "a fox [PAD]", "x"]
    assert np.abs(embed(texts) - np.stack([embed(text) for text in texts])).max() < 1e-5
    assert np.abs(embed("a fox [PAD]") - embed("a fox")).max() > 1e-3


def test_answers_are_made_without_gradients(text_model: SavedModel) -> None:
    embed = pipeline("text-embedding", text_model("BertModel"), packed=False)
    embed("one")
    assert not embed.model.training
    assert all(parameter.grad is None for parameter in embed.model.parameters())
    assert torch.is_grad_enabled()
