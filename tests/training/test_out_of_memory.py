"""Updates that are done again with fewer rows at a time, after running out of memory.

Errors are max|difference| / max|reference|: 1e-12 in float64, where only a difference in the mathematics can show.
"""

from __future__ import annotations

import gc
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.models.families import Family
from tests.models.harness import TASKS, error
from transept import Trainer, TrainerCallback, TrainingArguments
from transept.core.model import Model
from transept.errors import TrainingError, TranseptWarning
from transept.models.bert import BertConfig, BertForMaskedLM
from transept.objectives.terms import total
from transept.training.loss import check_sums
from transept.training.objective import count_rows, counts_of, halves
from transept.training.out_of_memory import Halving, ran_out_of_memory

from .small import HEADS, Head, ours, quiet, rows
from .test_counts import _case, _double, _heads

TINY = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 30}
EXACT = 1e-12

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"),
    MemoryError(),
]


@pytest.fixture(scope="module", autouse=True)
def _garbage_of_its_own() -> None:
    """Each halving collects garbage, which takes a second among all that earlier tests of the process have left."""
    gc.collect()
    gc.freeze()


class _Update:
    """The gradients of an update by a model that has memory for so many rows."""

    def __init__(self, error: BaseException, most: int) -> None:
        torch.manual_seed(0)
        config = BertConfig(**TINY, num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        self.model, self.error, self.most = BertForMaskedLM(config).double(), error, most
        self.sizes: list[int] = []
        self.draws: list[float] = []

    def __call__(self, batches: list[dict[str, Any]]) -> float:
        counts: dict[str, Tensor] = {}
        for batch in batches:
            for name, count in (counts_of(self.model, batch) or {}).items():
                counts[name] = counts.get(name, torch.zeros(())) + count
        self.draws.append(random.random())
        loss = 0.0
        for batch in batches:
            self.sizes.append(len(batch["input_ids"]))
            part = total(self.model(**batch).loss_terms, counts)
            part.backward()
            loss += float(part.detach())
            if len(batch["input_ids"]) > self.most:
                raise self.error
        return loss

    def gradient(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])


def _rows() -> list[dict[str, Any]]:
    ids = torch.arange(3, 27).repeat(2).view(8, 6)
    return [{"input_ids": ids, "labels": ids.masked_fill(ids % 3 == 0, -100)}, {"input_ids": ids[:2], "labels": ids[:2]}]


@pytest.mark.parametrize("error", ERRORS)
def test_an_update_is_done_again_with_fewer_rows(error: BaseException) -> None:
    free, full = _Update(error, 100), _Update(error, 2)
    halving = Halving(halves)
    wanted = halving.run(free, _rows(), free.model.zero_grad)
    assert free.sizes == [8, 2]
    with pytest.warns(TranseptWarning, match="too little memory for 8 rows at once.*at most 2. The result stays"):
        found = halving.run(full, _rows(), full.model.zero_grad)
    assert full.sizes == [8, 4, 2, 2, 2, 2, 2]
    assert len(set(full.draws)) == 1
    assert found == pytest.approx(wanted, rel=1e-12)
    torch.testing.assert_close(full.gradient(), free.gradient(), rtol=1e-12, atol=1e-15)
    full.sizes.clear()
    full.model.zero_grad()
    halving.run(full, _rows(), full.model.zero_grad)
    assert full.sizes == [2, 2, 2, 2, 2]  # at once what fitted


def test_a_single_row_that_does_not_fit_is_an_error() -> None:
    update = _Update(ERRORS[0], 0)
    with pytest.raises(TrainingError, match="1 rows, and a single row is too large"):
        Halving(halves).run(update, _rows(), update.model.zero_grad)


def test_what_cannot_be_divided_is_not() -> None:
    update = _Update(ERRORS[0], 2)
    with pytest.raises(TrainingError, match="of 8 rows, and its loss compares rows"):
        Halving(lambda batch: "its loss compares rows").run(update, _rows(), update.model.zero_grad)
    batches = [batch | {"patches": torch.zeros(3)} for batch in _rows()]
    with pytest.raises(TrainingError, match="of 8 rows, and `patches` has 3 entries, which cannot be told apart by rows"):
        Halving(halves).run(lambda _: update(_rows()), batches, update.model.zero_grad)


def test_other_errors_are_left_alone() -> None:
    def wrong(batches: list[dict[str, Any]]) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        Halving(halves).run(wrong, _rows(), lambda: None)
    assert not ran_out_of_memory(ValueError("out of memory"))


def test_halves_of_uneven_batches() -> None:
    batch = {"x": torch.arange(5), "targets": [1, 2, 3, 4, 5], "scale": torch.tensor(2.0), "flag": True}
    found = halves(batch)
    assert not isinstance(found, str)
    assert [half["x"].tolist() for half in found] == [[0, 1, 2], [3, 4]]
    assert [half["targets"] for half in found] == [[1, 2, 3], [4, 5]]
    assert all(half["scale"] is batch["scale"] and half["flag"] for half in found)
    assert halves({"x": torch.zeros(1, 2)}) == "a single row is too large"
    states = ((torch.arange(4), torch.arange(4, 8)), (torch.arange(8, 12), torch.arange(12, 16)))
    nested = {
        "x": np.arange(4),
        "inner": {"y": torch.arange(8).view(4, 2), "n": 3},
        "states": states,
        "names": ("a", "b", "c", "d"),
    }
    found = halves(nested)
    assert not isinstance(found, str)
    assert found[1]["x"].tolist() == [2, 3]
    assert found[1]["inner"]["y"].tolist() == [[4, 5], [6, 7]]
    assert found[1]["inner"]["n"] == 3
    assert [each.tolist() for pair in found[1]["states"] for each in pair] == [[2, 3], [6, 7], [10, 11], [14, 15]]
    assert found[1]["names"] == ("c", "d")
    assert halves(nested | {"inner": {"y": torch.zeros(3)}}) == "`inner` has 3 entries, which cannot be told apart by rows"


def test_a_real_allocation_that_is_too_large_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert ran_out_of_memory(caught.value)


# --- every kind of batch ----------------------------------------------------------------------------------------------------


def _gradients(model: Model, batches: list[Any], most: int) -> tuple[list[Any], float, dict[str, Tensor]]:
    """The parts that an update came to, of a model that has memory for so many rows, its loss and its gradients."""
    counts: dict[str, Tensor] = {}
    for each in batches:
        for name, count in (counts_of(model, each) or {}).items():
            counts[name] = counts.get(name, torch.zeros((), dtype=torch.float64)) + count
    tried: list[list[Any]] = []
    halving = Halving(partial(halves, task=model), partial(count_rows, task=model))

    def update(parts: list[Any]) -> float:
        tried.append(parts)
        found = 0.0
        for part in parts:
            terms = model(**part).loss_terms
            if halving.limit is not None:
                check_sums(terms)
            loss = total(terms, counts, len(batches))
            loss.backward()
            found += float(loss.detach())
            if halving.rows(part) > most:
                raise torch.OutOfMemoryError("out of memory")
        return found

    model.zero_grad()
    loss = halving.run(update, batches, model.zero_grad)
    return tried[-1], loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls"), _heads())
def test_every_batch_of_a_loss_that_is_a_sum_is_divided(family: Family, cls: type[Model]) -> None:
    model, inputs = _case(family, cls)
    model, inputs = model.double(), {name: _double(value) for name, value in inputs.items()}
    terms = getattr(model(**inputs), "loss_terms", None)
    if not terms:
        return  # nothing to train
    if not all(term.additive for term in terms.values()):
        with pytest.raises(TrainingError, match="is no sum over rows"):
            _gradients(model, [inputs], 2)
        return
    whole, wanted, gradients = _gradients(model, [inputs], 3)
    with pytest.warns(TranseptWarning, match="at most 1"):
        parts, found, others = _gradients(model, [inputs], 1)
    assert (len(whole), len(parts)) == (1, 3)
    assert found == pytest.approx(wanted, rel=EXACT)
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert float((others[name] - gradient).abs().max()) <= EXACT * largest, name


def _named(name: str) -> Any:
    return next(case.values for case in TASKS if case.values[1].__name__ == name)


@pytest.mark.reference
@pytest.mark.parametrize("name", ["LlavaForConditionalGeneration", "Qwen2VLForConditionalGeneration"])
def test_pictures_go_with_the_rows_that_name_them(name: str) -> None:
    """Of three rows the first has the pictures of the first two as well, the second none: as many pictures as rows."""
    family, cls = _named(name)
    model, inputs = _case(family, cls)
    model = model.double()
    inputs = {name: _double(value) for name, value in inputs.items()}
    first, second = halves(inputs, model)
    assert len(first["input_ids"]) == 2
    again = halves(first, model)
    assert not isinstance(again, str)
    ids = torch.cat([again[0]["input_ids"], again[1]["input_ids"]], dim=1)
    pictures = {name: torch.cat([first[name], second[name]]) for name in ("pixel_values", "image_grid_thw") if name in first}
    text = torch.full_like(ids, 5)
    batch: dict[str, Any] = {
        "input_ids": torch.cat([ids, text, torch.cat([second["input_ids"], text[:, 9:]], dim=1)[:, : ids.shape[1]]])
    }
    batch |= pictures
    batch["attention_mask"], batch["labels"] = torch.ones_like(batch["input_ids"]), batch["input_ids"]
    _, wanted, gradients = _gradients(model, [batch], 3)
    with pytest.warns(TranseptWarning):
        parts, found, others = _gradients(model, [batch], 1)
    assert [None if part["pixel_values"] is None else len(part["pixel_values"]) > 0 for part in parts] == [True, None, True]
    assert found == pytest.approx(wanted, rel=EXACT)
    assert (
        max(error(others[name], gradient) for name, gradient in gradients.items() if float(gradient.abs().max()) > 1e-9) <= 1e-9
    )


@pytest.mark.reference
def test_visual_tokens_go_with_the_rows_that_hide_them() -> None:
    model, inputs = _case(*_named("BeitForMaskedImageModeling"))
    hidden = torch.zeros_like(inputs["bool_masked_pos"])
    hidden[0, :3], hidden[2, 4] = True, True
    batch = inputs | {"bool_masked_pos": hidden, "labels": torch.tensor([1, 2, 3, 4])}
    found = halves(batch, model)
    assert not isinstance(found, str)
    assert [half["labels"].tolist() for half in found] == [[1, 2, 3], [4]]
    again = halves(found[0], model)
    assert not isinstance(again, str)
    assert [half["labels"].tolist() for half in again] == [[1, 2, 3], []]


# --- the trainer ------------------------------------------------------------------------------------------------------------


class _Full:
    """Lets passes of more rows than ``most`` run out of memory, at their end."""

    def __init__(self, model: nn.Module, most: int) -> None:
        self.most, self.sizes = most, list[int]()
        model.register_forward_hook(self._end, with_kwargs=True)

    def _end(self, model: nn.Module, args: Any, inputs: dict[str, Any], output: Any) -> None:
        self.sizes.append(len(next(iter(inputs.values()))))
        if self.sizes[-1] > self.most:
            raise torch.OutOfMemoryError("out of memory")


def _trained(
    case: Head, folder: Path, most: int, trainer: type[Trainer] = Trainer, **settings: Any
) -> tuple[Trainer, list[int]]:
    model = ours(case).double()
    data = [{n: v.double() if v.is_floating_point() else v for n, v in row.items()} for row in rows(case.rows, 12)]
    full = _Full(model, most)
    given = quiet(folder, per_device_train_batch_size=4, gradient_accumulation_steps=2, auto_find_batch_size=True, optim="sgd")
    made = trainer(
        model, TrainingArguments(**given | {"num_train_epochs": 1, "learning_rate": 0.1} | settings), train_dataset=data
    )
    made.train()
    return made, full.sizes


@pytest.mark.parametrize("case", HEADS, ids=lambda case: case.name)
def test_a_run_with_too_little_memory_ends_as_one_with_enough(case: Head, tmp_path: Path) -> None:
    whole, sizes = _trained(case, tmp_path, 8)
    with pytest.warns(TranseptWarning, match="too little memory for . rows at once") as caught:
        other, halved = _trained(case, tmp_path, 2)
    assert len(caught) == 1
    assert max(sizes) > 2
    assert sum(size <= 2 for size in halved) >= 6
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[name], weight, rtol=0, atol=EXACT, msg=name)
    losses = [log["loss"] for log in whole.state.log_history if "loss" in log]
    assert [log["loss"] for log in other.state.log_history if "loss" in log] == pytest.approx(losses, rel=EXACT)


def test_callbacks_hear_of_each_micro_batch_once(tmp_path: Path) -> None:
    """The second one of the first update has too little memory, which is made again from the first one on."""
    heard: list[tuple[int, str]] = []

    class Hears(TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            heard.append((state.global_step, "substep"))

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            heard.append((state.global_step, "step"))

    model = ours(TEXTS)
    full = _Full(model, 8)
    given = quiet(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=3, auto_find_batch_size=True)
    args = TrainingArguments(**given | {"num_train_epochs": 1})
    calls = full.sizes
    model.register_forward_pre_hook(lambda *_: setattr(full, "most", 2 if len(calls) == 1 else 8))
    with pytest.warns(TranseptWarning, match="too little memory for 4 rows at once"):
        Trainer(model, args, train_dataset=rows(TEXTS.rows, 24), callbacks=[Hears()]).train()
    assert heard == [(0, "substep"), (0, "substep"), (1, "step"), (1, "substep"), (1, "substep"), (2, "step")]


class _OwnLoss(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        outputs = model(**inputs)
        loss = outputs.loss if num_items_in_batch is None else total(outputs.loss_terms, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


class _OwnSum(_OwnLoss):
    loss_is_scaled_for_ga = True


class _OwnStep(Trainer):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        return super().training_step(model, inputs, num_items_in_batch)


PICTURES = next(case for case in HEADS if case.rows == "picture")
TEXTS = HEADS[0]


def test_an_own_loss_that_divides_by_the_items_is_divided(tmp_path: Path) -> None:
    whole, _ = _trained(PICTURES, tmp_path, 8, _OwnSum)
    with pytest.warns(TranseptWarning, match="at most 2"):
        other, _ = _trained(PICTURES, tmp_path, 2, _OwnSum)
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[name], weight, rtol=0, atol=EXACT, msg=name)


@pytest.mark.parametrize(
    ("trainer", "settings", "why"),
    [
        (_OwnLoss, {}, "its loss is not known to be a sum over rows"),
        (_OwnStep, {}, "`training_step` is overridden"),
        (Trainer, {"adversarial": {"kind": "virtual"}}, "the loss of 'virtual' adversarial training is no sum over rows"),
    ],
)
def test_what_may_need_all_rows_is_one_error(trainer: type[Trainer], settings: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=f"too little memory for a micro-batch of 4 rows, and {why}.*Use a smaller"):
        _trained(TEXTS, tmp_path, 2, trainer, **settings)


def test_batch_normalisation_is_named(tmp_path: Path) -> None:
    import transept

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic", "num_labels": 3}
    model = transept.ResNetForImageClassification(transept.ResNetConfig(**sizes))
    _Full(model, 2)
    args = TrainingArguments(**quiet(tmp_path, per_device_train_batch_size=4, auto_find_batch_size=True))
    with pytest.raises(TrainingError, match=r"the batch normalisation '\S+' reads all of them"):
        Trainer(model, args, train_dataset=rows("picture", 4)).train()


def test_losses_of_adversarial_answers_do_not_grow_with_micro_batches(tmp_path: Path) -> None:
    """The further loss is the mean over the micro-batches, not their sum; they are alike here."""
    found = []
    for size in (4, 1):
        torch.manual_seed(0)
        data = rows(TEXTS.rows, 1) * 4
        given = quiet(tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=4 // size, max_steps=1)
        settings = {"adversarial": {"kind": "virtual", "epsilon": 1e-3, "weight": 1e6}, "learning_rate": 0.0}
        trainer = Trainer(ours(TEXTS), TrainingArguments(**given, **settings), train_dataset=data)
        trainer.train()
        found.append(trainer.state.log_history[0]["loss"])
    assert found[1] == pytest.approx(found[0], rel=0.5)
