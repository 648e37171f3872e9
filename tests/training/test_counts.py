"""The numbers of items that are known before a forward pass, for every class of every family.

What is counted before equals what the loss counted, and by it parts of a batch give the loss and the gradient of the whole.
Errors are max|difference| / max|reference|: 2e-5 in float32, where both round at every step; 1e-12 in float64.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.families import Family
from tests.models.harness import TASKS, USED, batch, error, labels, settings, shallow
from tests.thorough import in_turn
from transept.core.model import Model
from transept.errors import InputError
from transept.models.bert import BertConfig, BertForSequenceClassification, BertModel
from transept.objectives.terms import LossTerm, means, total
from transept.training.objective import counts_of

pytestmark = pytest.mark.reference

ROUNDED = {torch.float32: 2e-5, torch.float64: 1e-12}
ROWS = [0, 1, 2, 0, 2, 1, 0, 2]  # of the three that there are: eight of different lengths and numbers of labels


def _case(family: Family, cls: type[Model]) -> tuple[Model, dict[str, Any]]:
    """A tiny model, three rows with labels of which some are ignored."""
    inputs = batch(family, cls)
    given: dict[str, Any] = labels(family, cls, inputs)
    if cls.__name__.endswith("ForDepthEstimation"):
        given = {"labels": inputs["pixel_values"][:, 0].abs()}
    torch.manual_seed(0)
    chosen = settings(family, cls)
    return cls(cls.config_class.from_dict(chosen | shallow(chosen))).eval(), inputs | given


def _picked(inputs: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """These rows of the inputs, with their pictures."""
    grids = inputs.get("image_grid_thw")
    found = {}
    for name, value in inputs.items():
        if name == "pixel_values" and grids is not None:
            pictures = value.split(grids.prod(-1).tolist())
            found[name] = torch.cat([pictures[row] for row in rows])
        else:
            found[name] = value[list(rows)] if isinstance(value, Tensor) else [value[row] for row in rows]
    return found


def _additive(output: Any) -> dict[str, LossTerm]:
    return {name: term for name, term in (getattr(output, "loss_terms", None) or {}).items() if term.additive}


def _double(value: Any) -> Any:
    if isinstance(value, list):
        return [{name: _double(each) for name, each in target.items()} for target in value]
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _equal(found: dict[str, Tensor], expected: dict[str, LossTerm]) -> None:
    assert list(found) == list(expected)
    for name, count in found.items():
        assert float(count) == pytest.approx(float(expected[name].count), rel=1e-6), name
        assert count.shape == ()


@pytest.mark.parametrize(("family", "cls"), in_turn(TASKS, 90, whole=USED))
def test_counts_equal_those_of_the_loss(family: Family, cls: type[Model]) -> None:
    model, inputs = _case(family, cls)
    with torch.no_grad():
        rows = [] if "return_loss" in inputs or "sampled_negative_indices" in inputs else range(3)
        for given in (inputs, *(_picked(inputs, [row]) for row in rows)):
            found = counts_of(model, given)
            assert found is not None
            _equal(found, _additive(model(**given)))
    unlabelled = batch(family, cls)
    assert counts_of(model, unlabelled) == {}


def _accumulated(model: Model, inputs: dict[str, Any], parts: list[list[int]]) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the gradients of an update of these rows, in these parts."""
    pieces = [_picked(inputs, rows) for rows in parts]
    counts: dict[str, Tensor] = {}
    for piece in pieces:
        for name, count in (counts_of(model, piece) or {}).items():
            counts[name] = counts.get(name, torch.zeros((), dtype=torch.float64)) + count
    model.zero_grad()
    loss = torch.zeros((), dtype=torch.float64)
    for piece in pieces:
        part = total(model(**piece).loss_terms, counts, len(pieces))
        part.backward()
        loss += part.detach()
    return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _heads() -> list[Any]:
    """The first class of each kind of loss."""
    found: dict[Any, Any] = {}
    for case in TASKS:
        cls = case.values[1]
        written = inspect.unwrap(cls.forward)
        found.setdefault((written, *(getattr(cls, name, None) for name in ("all_terms", "terms", "targets"))), case)
    return list(found.values())


@pytest.mark.parametrize(("family", "cls"), in_turn(_heads(), 18))
def test_parts_of_an_update_make_the_whole(family: Family, cls: type[Model]) -> None:
    model, inputs = _case(family, cls)
    output = model(**inputs)
    if not getattr(output, "loss_terms", None) or not all(term.additive for term in output.loss_terms.values()):
        return  # declared as such: each part is a task of its own
    for dtype, allowed in ROUNDED.items():
        if dtype == torch.float64:
            model, inputs = model.double(), {name: _double(value) for name, value in inputs.items()}
        rows = ROWS if "input_ids" in inputs else ROWS[:4]  # media cost more
        wanted, gradients = _accumulated(model, inputs, [rows])
        largest = max(float(gradient.abs().max()) for gradient in gradients.values())
        for size in (1, 2, 4)[: len(rows) // 3 + 1]:
            parts = [rows[start : start + size] for start in range(0, len(rows), size)]
            found, others = _accumulated(model, inputs, parts)
            assert error(found, wanted) <= allowed
            for name, gradient in gradients.items():
                assert float((others[name] - gradient).abs().max()) <= allowed * largest, name


@pytest.mark.parametrize(("family", "cls"), _heads())
def test_an_update_without_items_has_no_loss_and_no_gradient(family: Family, cls: type[Model]) -> None:
    model, inputs = _case(family, cls)
    kinds = inputs.keys() & _LABELS - ({"bool_masked_pos"} if "labels" in inputs else set())
    nothing = {name: _ignored(name, inputs[name], 255 if "Segmentation" in cls.__name__ else -100) for name in kinds}
    counts = counts_of(model, inputs | nothing) or {}
    empty = {name: count for name, count in counts.items() if float(count) == 0}
    if not empty:
        return  # such as a number for each row
    terms = model(**inputs | nothing).loss_terms
    loss = total({name: terms[name] for name in empty}, empty)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(float(p.grad.abs().sum()) == 0.0 for p in model.parameters() if p.grad is not None)


_LABELS = {"labels", "next_sentence_label", "start_positions", "end_positions", "mc_labels", "is_impossible", "bool_masked_pos"}


def _ignored(name: str, value: Any, ignored: int) -> Any:
    """Labels of which nothing counts."""
    if isinstance(value, list):
        return [{kind: each[:0] for kind, each in target.items()} for target in value]
    if name == "bool_masked_pos":
        return torch.zeros_like(value)
    if name == "labels" and value.ndim == 3 and value.is_floating_point():
        return value
    return torch.full_like(value, 99 if name.endswith("positions") else ignored)


def test_no_known_depth_is_no_loss() -> None:
    from transept.objectives.depth import scale_invariant

    predicted = torch.rand(2, 3, 4, requires_grad=True)
    loss = total({"depth": scale_invariant(predicted, torch.zeros(2, 3, 4))}, {}, parts=2)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert predicted.grad is not None
    assert float(predicted.grad.abs().sum()) == 0.0


def test_terms_that_are_not_additive_are_divided_by_the_parts() -> None:
    terms = {
        "own": LossTerm(torch.tensor(6.0), torch.tensor(2), additive=False),
        "sum": LossTerm(torch.tensor(5.0), torch.tensor(7), weight=0.5, averaged=False),
        "mean": LossTerm(torch.tensor(8.0), torch.tensor(2)),
        "boxes": LossTerm(torch.tensor(0.0), torch.tensor(0), least=1.0),
    }
    found = means(terms, {"mean": 4, "sum": 7, "boxes": 0}, parts=3)
    assert {name: float(value) for name, value in found.items()} == {"own": 1.0, "sum": 2.5, "mean": 2.0, "boxes": 0.0}
    with pytest.raises(InputError, match="no number for the term 'mean'"):
        total(terms, {"sum": 7, "boxes": 0})


def _small() -> BertForSequenceClassification:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 11}
    return BertForSequenceClassification(BertConfig(**sizes))


def test_wrappers_are_looked_into() -> None:
    import peft

    inputs = {"input_ids": torch.ones(3, 4, dtype=torch.long), "labels": torch.tensor([0, -100, 1])}
    adapted = peft.get_peft_model(_small(), peft.LoraConfig(target_modules=["query"], task_type="SEQ_CLS"))
    for model in (_small(), nn.DataParallel(_small()), torch.compile(_small()), adapted, torch.compile(adapted)):
        counts = counts_of(model, inputs)  # type: ignore[arg-type]
        assert counts is not None
        assert {name: int(count) for name, count in counts.items()} == {"classification": 2}
    assert counts_of(_small().body, inputs) == {}


def test_foreign_models_are_not_guessed_at() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel(_small().config)

    assert counts_of(Own(), {"labels": torch.zeros(2)}) is None
    assert counts_of(nn.Linear(2, 2), {}) is None
