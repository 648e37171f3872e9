"""Freezing by name and by depth, layer groups of every family, and states of a frozen backbone that are computed once."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import transept
from tests.models.families import Family
from tests.models.harness import EVERY, TASKS, USED, batch, error, labels, noise_of, originals, whole_loss
from tests.thorough import in_turn
from transept.adapt.freeze import freeze, gradual_unfreezing, layer_groups, unfreeze, unfreeze_until
from transept.core.model import Backbone, Model
from transept.core.task import TaskModel
from transept.errors import InputError, InputTypeError, UnsupportedError
from transept.layers.links import parts

IDS = torch.arange(5, 37).reshape(4, 8)
LABELS = torch.tensor([0, 2, 1, 0])


def bert(**more: Any) -> transept.BertForSequenceClassification:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    return transept.BertForSequenceClassification(transept.BertConfig(**sizes, intermediate_size=37, num_labels=3, **more))


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls"), in_turn(EVERY, 200, whole=USED))
def test_every_parameter_is_in_one_group(family: Family, cls: type[Model]) -> None:
    model = originals(family, cls)[0]
    groups = layer_groups(model)
    flat = [name for group in groups for name in group]
    assert sorted(flat) == sorted(name for name, _ in model.named_parameters())
    depths = [len({*stack.layers}) for stack in model.stacks]  # several steps may share a layer
    assert len(groups) == 2 + sum(depths)
    assert all(groups[1:-1])
    seen = set[int]()  # what layers share is with the first of them
    for number, (stack, depth) in enumerate(zip(model.stacks, depths, strict=True)):
        first = 1 + sum(depths[:number])
        for index, layer in enumerate(dict.fromkeys(stack.layers)):
            own = {id(parameter) for part in (layer, *parts(layer).values()) for parameter in part.parameters()} - seen
            seen |= own
            found = {id(model.get_parameter(name)) for name in groups[first + index]}
            assert own <= found
            assert index == depth - 1 or own == found
    tables = {id(p) for stack in model.stacks for n, p in stack.named_parameters() if n.startswith(("embed_", "feature_"))}
    assert {id(model.get_parameter(name)) for name in groups[0]} >= tables - {
        id(p) for stack in model.stacks for layer in stack.layers for p in layer.parameters()
    }
    if isinstance(model, TaskModel):
        assert not [name for name in groups[-1] if name.startswith(f"{model.base_model_prefix}.")]
    if isinstance(model, Backbone):
        assert not groups[-1]


def test_groups_by_hand() -> None:
    groups = layer_groups(bert())
    assert [len(group) for group in groups] == [5, 16, 16, 18, 2]  # the last layer has the pooler
    assert groups[0][0] == "bert.embeddings.word_embeddings.weight"
    assert groups[-1] == ["classifier.weight", "classifier.bias"]


def frozen(model: Model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def test_what_can_be_frozen() -> None:
    groups = layer_groups(bert())
    cases: list[tuple[Any, list[list[str]]]] = [
        ("embeddings", groups[:1]),
        ("backbone", groups[:-1]),
        ("head", groups[-1:]),
        (0, groups[:1]),
        (2, groups[:3]),
        (-1, groups[:3]),
        (["embeddings", "backbone.layers.1"], [groups[0], groups[2]]),
        ("bert.encoder.layer.0", [groups[1]]),
        ("encoder.layer.*", [groups[1], groups[2], [n for n in groups[3] if "pooler" not in n]]),
        ("layers.*.mlp.up_proj.bias", [[f"bert.encoder.layer.{i}.intermediate.dense.bias"] for i in range(3)]),
    ]
    for what, expected in cases:
        model = bert()
        assert set(freeze(model, what)) == {name for group in expected for name in group} == frozen(model), what
        assert set(unfreeze(model)) == set(dict(model.named_parameters()))
        assert not frozen(model)
    model = bert()
    assert len(freeze(model)) == len(frozen(model)) == 57
    assert set(unfreeze(model, 1)) == {*groups[-1], *groups[-2]}
    for wrong in ("encoders", 4, -4):
        with pytest.raises(InputError, match="no parameters|3 layers"):
            freeze(model, wrong)
    for wrong in (True, 1.5, None):
        with pytest.raises(InputTypeError):
            freeze(model, wrong)  # type: ignore[arg-type]


def test_frozen_modules_stay_in_evaluation_mode() -> None:
    model = bert().train()
    freeze(model, "backbone")
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.nn.Sequential(model)[0]):
        twin.eval()
        twin.train()
        assert not any(module.training for module in twin.backbone.modules())
        assert twin.head.dropout.training
    unfreeze(model, 1)
    assert [layer.training for layer in model.backbone.layers] == [False, False, True]
    assert all(module.training for module in model.backbone.layers[2].modules())
    unfreeze(model)
    assert all(module.training for module in model.modules())
    freeze(model, "backbone", evaluation=False)
    assert model.train().backbone.layers[0].training


def test_frozen_bytes_stay_and_cost_no_backward_pass() -> None:
    model = bert()
    freeze(model, 2)
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seen: list[int] = []
    for number, layer in enumerate(model.backbone.layers):
        layer.register_forward_hook(lambda m, i, out, number=number: seen.append(number) if out.requires_grad else None)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(IDS, labels=LABELS).loss.backward()
        optimizer.step()
    assert set(seen) == {2}
    for name, tensor in model.state_dict().items():
        deep = name.startswith(("bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1"))
        assert torch.equal(tensor, before[name]) == deep, name
    assert not [state for parameter, state in optimizer.state.items() if not parameter.requires_grad]


def test_gradual_unfreezing() -> None:
    model = bert()
    freeze(model)
    schedule = gradual_unfreezing(model)
    assert schedule == {0: 0, 1: 1, 2: 2, 3: 3, 4: ["embeddings"]}
    groups = layer_groups(model)
    for epoch in range(5):
        assert set(unfreeze_until(model, schedule, epoch)) == set(groups[-1 - epoch])
    assert not frozen(model)
    again = bert()  # a run that is resumed in the third epoch
    freeze(again)
    unfreeze_until(again, {"0": "head", "2": 2, "7": "backbone"}, 2.5)
    assert frozen(again) == {name for group in groups[:2] for name in group}
    assert gradual_unfreezing(model, 2)[4] == 2
    with pytest.raises(InputError, match="numbers of epochs"):
        unfreeze_until(model, {"first": 1}, 1)
    with pytest.raises(InputError, match="at least 1"):
        gradual_unfreezing(model, 0)


def test_positions_that_are_computed_are_never_trained() -> None:
    config = transept.DistilBertConfig(vocab_size=99, dim=32, n_layers=1, n_heads=4, hidden_dim=37, sinusoidal_pos_embds=True)
    model = transept.DistilBertModel(config)
    before = frozen(model)
    freeze(model)
    unfreeze(model)
    assert frozen(model) == before


# What is no backbone with a head, or has a forward pass of its own.
WHOLE = (
    "GPT2DoubleHeadsModel",
    "OpenAIGPTDoubleHeadsModel",
    "XLNetForQuestionAnswering",
    "XLMForQuestionAnswering",
    "FlaubertForQuestionAnswering",
    "TapasForQuestionAnswering",
    "BlipForImageTextRetrieval",
    "BlipForConditionalGeneration",
    "DetrForSegmentation",
)


def _rows(values: dict[str, Any], rows: slice) -> dict[str, Any]:
    return {name: value[rows] if isinstance(value, Tensor | list) else value for name, value in values.items()}


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls"), in_turn(TASKS, 60))
def test_a_head_learns_from_kept_states_as_from_the_whole_model(family: Family, cls: type[Model]) -> None:
    model = copy.deepcopy(originals(family, cls)[0]).eval()
    inputs = batch(family, cls) | labels(family, cls, batch(family, cls))
    freeze(model, "backbone")
    if not isinstance(model, TaskModel) or cls.__name__ in WHOLE:
        with pytest.raises(UnsupportedError):
            transept.precompute(model, [inputs])  # type: ignore[arg-type]
        return
    if family.modality in ("pictures", "document"):
        pieces = [inputs]
    else:
        pieces = [_rows(inputs, slice(0, 2)), _rows(inputs, slice(2, 3))]
    features, head = transept.precompute(model, pieces)
    assert len(features) == 3
    whole = model(**inputs)
    few = head(**features.collate(features[:]))
    name = "logits" if "logits" in whole else next(iter(few))
    seen = inputs.get("attention_mask") if whole[name].ndim == 3 else None
    if seen is not None and seen.shape == whole[name].shape[:2]:
        assert error(few[name][seen.bool()], whole[name][seen.bool()]) <= 1e-5
    else:
        assert error(few[name], whole[name]) <= 1e-5
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained or "loss" not in whole:
        return
    expected = torch.autograd.grad(whole_loss(whole), list(trained.values()), allow_unused=True)
    found = torch.autograd.grad(whole_loss(few), list(trained.values()), allow_unused=True)
    largest = max(float(g.norm()) for g in expected if g is not None)
    for name, one, other in zip(trained, found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            least = max(1e-4 * max(float(other.norm()), 1e-3 * largest), noise_of(cls, name, other))
            assert float((one - other).norm()) <= least, name


def test_kept_states_give_the_same_training() -> None:
    model = bert(hidden_dropout_prob=0.1, classifier_dropout=0.0)
    freeze(model, "backbone")
    twin, mask = copy.deepcopy(model).train(), (torch.arange(8) < torch.tensor([8, 5, 3, 6])[:, None]).long()
    batches = [{"input_ids": IDS[i : i + 2], "attention_mask": mask[i : i + 2], "labels": LABELS[i : i + 2]} for i in (0, 2)]
    features, head = transept.precompute(model.train(), batches)
    assert features.nbytes == 4 * (4 * 32 + 8)
    assert not model.backbone.training
    assert model.training
    one, other = (torch.optim.AdamW(m.parameters(), 1e-2) for m in (model, twin))
    loader = torch.utils.data.DataLoader(features, batch_size=2, collate_fn=features.collate)  # type: ignore[arg-type]
    for _ in range(3):
        for kept, given in zip(loader, batches, strict=True):
            losses = [head(**kept).loss, twin(**given).loss]
            for loss, optimizer in zip(losses, (one, other), strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            assert abs(float(losses[0].detach() - losses[1].detach())) <= 1e-6
    assert error(model.head.out_proj.weight, twin.head.out_proj.weight) <= 1e-5
    assert isinstance(head(**features.collate(features[:1]), return_dict=False), tuple)


def test_what_cannot_be_kept() -> None:
    model = bert()
    with pytest.raises(InputError, match="not frozen"):
        transept.precompute(model, [{"input_ids": IDS}])
    freeze(model, "backbone")
    with pytest.raises(InputError, match="no batches"):
        transept.precompute(model, [])
    with pytest.raises(UnsupportedError):
        transept.precompute(model.backbone, [])  # type: ignore[arg-type]
