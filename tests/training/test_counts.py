"""The numbers of items that are known before a forward pass, for every class of every family.

What is counted before equals what the loss counted, and by it parts of a batch give the loss and the gradient of the whole.
Errors are max|difference| / max|reference|: 2e-5 in float32, where both round at every step; 1e-12 in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.families import Family
from tests.models.harness import TASKS, batch, error, labels, settings, shallow
from transept.core.model import Model
from transept.objectives.terms import LossTerm, total
from transept.training.counts import counts_of

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


@pytest.mark.parametrize(("family", "cls"), TASKS)
def test_counts_equal_those_of_the_loss(family: Family, cls: type[Model]) -> None:
    model, inputs = _case(family, cls)
    with torch.no_grad():
        for given in (inputs, *(_picked(inputs, [row]) for row in range(3) if "return_loss" not in inputs)):
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


@pytest.mark.parametrize(("family", "cls"), TASKS)
def test_parts_of_an_update_make_the_whole(family: Family, cls: type[Model]) -> None:
    model, inputs = _case(family, cls)
    output = model(**inputs)
    if not getattr(output, "loss_terms", None) or not all(term.additive for term in output.loss_terms.values()):
        return  # declared as such: each part is a task of its own
    for dtype, allowed in ROUNDED.items():
        if dtype == torch.float64:
            model, inputs = model.double(), {name: _double(value) for name, value in inputs.items()}
        wanted, gradients = _accumulated(model, inputs, [ROWS])
        largest = max(float(gradient.abs().max()) for gradient in gradients.values())
        for size in (1, 2, 4):
            parts = [ROWS[start : start + size] for start in range(0, len(ROWS), size)]
            found, others = _accumulated(model, inputs, parts)
            assert error(found, wanted) <= allowed
            for name, gradient in gradients.items():
                assert float((others[name] - gradient).abs().max()) <= allowed * largest, name
