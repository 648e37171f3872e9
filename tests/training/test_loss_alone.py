"""Losses without logits: the same numbers, for which logits are made at labelled positions alone, some at a time.

Errors are max|difference| / max|reference| in float64, 1e-10: sums over a vocabulary are the same sums.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models.families import Family
from tests.models.harness import DOUBLE, TASKS, USED, batch, error, gradients, labels, settings, shallow, whole_loss
from tests.thorough import crossed
from transept.core.model import Model
from transept.errors import InputError
from transept.heads.task import loss_alone
from transept.models.bert import BertConfig, BertForMaskedLM
from transept.objectives import classification
from transept.objectives.classification import Unscored

pytestmark = pytest.mark.reference

WRITERS = [
    case
    for case in TASKS
    if case.id.endswith(("LM", "LMHeadModel", "Generation", "MTModel", "ForPreTraining", "DoubleHeadsModel"))
]
KEEP = ("ElectraForPreTraining", "FunnelForPreTraining", "Wav2Vec2ForPreTraining")  # which have none over a vocabulary


def _case(family: Family, cls: type[Model]) -> tuple[Model, dict[str, Any]]:
    torch.manual_seed(0)
    chosen = settings(family, cls)
    model = cls(cls.config_class.from_dict(chosen | shallow(chosen))).eval().double()
    inputs = batch(family, cls)
    inputs |= labels(family, cls, inputs)
    return model, {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}


@pytest.mark.parametrize(("family", "cls", "chunk"), crossed(WRITERS, [1000, 200], 120, whole=USED))
def test_a_loss_alone_is_the_same(family: Family, cls: type[Model], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "KEPT", 1e4 if chunk == 1000 else 0)
    monkeypatch.setattr(classification, "CHUNK", chunk)
    model, inputs = _case(family, cls)
    whole = model(**inputs)
    wanted = gradients(model, whole_loss(whole))
    with loss_alone():
        alone = model(**inputs)
        found = gradients(model, whole_loss(alone))
    assert alone.get("logits") is None or cls.__name__ in KEEP
    assert error(alone.loss, whole.loss) <= DOUBLE
    assert alone.loss_terms.keys() == whole.loss_terms.keys()
    assert all(torch.equal(alone.loss_terms[name].count, term.count) for name, term in whole.loss_terms.items())
    assert found.keys() == wanted.keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    assert all(float((found[name] - gradient).abs().max()) <= DOUBLE * largest for name, gradient in wanted.items())


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 30}


def _bert() -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**SIZES)).eval()


def test_logits_are_left_out_of_losses_alone() -> None:
    ids = torch.arange(5, 11).view(2, 3)
    model = _bert()
    with loss_alone():
        assert list(model(ids, labels=ids)) == ["loss"]
        assert list(model(ids)) == ["logits"]
    assert list(model(ids, labels=ids)) == ["loss", "logits"]


def test_no_more_logits_are_made_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "KEPT", 60)
    monkeypatch.setattr(classification, "CHUNK", 90)
    ids, model, seen = torch.arange(5, 21).view(2, 8), _bert(), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    labels = ids.masked_fill(ids % 2 == 0, -100)
    with loss_alone():
        model(ids, labels=labels).loss.backward()
    assert [shape[0] for shape in seen] == [0, 3, 3, 2, 2, 3, 3]  # for the shape, for the loss, and again in the backward pass


def test_nothing_labelled_has_gradients_of_zero() -> None:
    ids, model = torch.arange(5, 11).view(2, 3), _bert()
    with loss_alone():
        term = model(ids, labels=torch.full_like(ids, -100)).loss_terms["masked_lm"]
    term.share(0).backward()
    assert float(term.sum.detach()) == 0.0
    assert all(float(p.grad.abs().sum()) == 0.0 for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("wrong", [torch.tensor([[5, 30, 6], [1, 2, 3]]), torch.ones(2, 4, dtype=torch.long)])
def test_wrong_labels_are_found_as_ever(wrong: torch.Tensor) -> None:
    ids, model, said = torch.arange(5, 11).view(2, 3), _bert(), []
    for context in (loss_alone, torch.no_grad):
        with context(), pytest.raises(InputError) as caught:
            model(ids, labels=wrong)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_mixed_precision_keeps_the_gradients_of_the_head() -> None:
    ids, model = torch.arange(5, 11).view(2, 3), _bert()
    with loss_alone(), torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ids, labels=ids).loss
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "pooler" not in name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_kept_in_place_of_logits(smoothing: float) -> None:
    torch.manual_seed(0)
    states, labels = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 6, -100, 3, -100, 1])
    layer = torch.nn.Linear(4, 7, dtype=torch.float64)
    values = []
    for logits in (layer(states), Unscored(layer, states)):
        term = classification.cross_entropy(logits, labels, smoothing=smoothing)
        values.append((term.sum, *torch.autograd.grad(3 * term.sum, (states, layer.weight), retain_graph=True)))
    assert error(values[1], values[0]) <= DOUBLE


def test_logits_that_are_not_made_tell_their_shape() -> None:
    assert Unscored(torch.nn.Linear(4, 7), torch.zeros(2, 3, 4)).shape == (2, 3, 7)
