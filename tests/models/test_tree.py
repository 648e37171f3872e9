"""The tree of modules has the reference's names, in its order, and what is found by such a name is what computes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import transept
from tests.thorough import in_turn
from transept.core.model import Model
from transept.core.task import TaskModel
from transept.errors import UnsupportedError

from .families import Family
from .harness import BACKBONES, EVERY, USED, batch, error, labels, pair, reference_class, settings, whole_loss

pytestmark = pytest.mark.reference


def shapes(model: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]


@pytest.mark.parametrize(("family", "cls"), EVERY)
def test_names_shapes_and_order_are_the_references(family: Family, cls: type[Model]) -> None:
    theirs: Any = reference_class(cls)
    with torch.device("meta"):
        ours = cls(cls.config_class(**settings(family, cls)))
        other = theirs(theirs.config_class(**settings(family, cls)))
    assert shapes(ours) == shapes(other)
    assert list(ours.state_dict()) == list(other.state_dict())
    modules = dict(ours.named_modules())
    assert not [name for name, module in other.named_modules() if module._parameters and name not in modules]


@pytest.mark.parametrize(("family", "cls"), in_turn(EVERY, 150, whole=USED))
def test_parts_of_tasks_are_the_references(family: Family, cls: type[Model]) -> None:
    """What holds tensors, in the reference's order; what only computes is told of by `modules()`, and learns of modes."""
    theirs: Any = reference_class(cls)
    with torch.device("meta"):
        ours = cls(cls.config_class(**settings(family, cls)))
        other = theirs(theirs.config_class(**settings(family, cls)))
    held = [name for name, part in other.named_children() if next(part.parameters(), None) is not None]
    assert [name for name, part in ours.named_children() if next(part.parameters(), None) is not None] == held
    if isinstance(ours, TaskModel):
        assert {name for name, _ in ours.named_children()} <= {name for name, _ in other.named_children()}
    assert not any(module.training for module in ours.train().eval().modules())
    assert all(module.training for module in ours.train().modules())


@pytest.mark.parametrize(("family", "cls"), in_turn(EVERY, 80, whole=USED))
def test_states_and_optimizers_pass_from_one_to_the_other(family: Family, cls: type[Model]) -> None:
    ours, theirs = pair(family, cls)
    for model in (ours, theirs):
        model.requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1) for model in (theirs, ours)]
    for model, optimizer in zip((theirs, ours), optimizers, strict=True):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        if model is theirs:
            optimizer.step()
            ours.load_state_dict(theirs.state_dict())
            optimizers[1].load_state_dict(copy.deepcopy(optimizer.state_dict()))
            generator.manual_seed(1)
    generator.manual_seed(1)
    for parameter in theirs.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    for optimizer in optimizers:
        optimizer.step()
    expected = theirs.state_dict()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(1)
    theirs.load_state_dict(ours.state_dict())
    assert all(torch.equal(tensor, ours.state_dict()[name]) for name, tensor in theirs.state_dict().items())


def answer(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """One number that depends on all that a model computes."""
    torch.manual_seed(0)
    output = model(**inputs)
    if "loss" in output or "logits" in output:
        return whole_loss(output)
    states = next(value if isinstance(value, torch.Tensor) else value[-1] for value in output.values())
    return (states * torch.randn(states.shape, generator=torch.Generator().manual_seed(0))).sum()


@pytest.mark.parametrize(("family", "cls"), in_turn(EVERY, 80, whole=USED, start=3))
def test_a_part_that_is_replaced_by_its_path_computes(family: Family, cls: type[Model]) -> None:
    ours, _ = pair(family, cls)
    inputs = batch(family, cls)
    inputs |= labels(family, cls, inputs)
    before = answer(ours, inputs)
    before.backward()
    parts = [
        (path, module)
        for path, module in ours.named_modules()
        if not [*module.children()] and any(p.grad is not None and p.grad.abs().max() > 1e-4 for p in module.parameters())
    ]
    for path, module in (parts[len(parts) // 3], parts[2 * len(parts) // 3]):
        fresh, (parent, _, name) = copy.deepcopy(module), path.rpartition(".")
        with torch.no_grad():
            for parameter in fresh.parameters():
                parameter.copy_(torch.randn_like(parameter))
        setattr(ours.get_submodule(parent), name, fresh)
        assert ours.get_submodule(path) is fresh
        assert not torch.equal(answer(ours, inputs), before), path
        setattr(ours.get_submodule(parent), name, module)


PATCHES = [case for case in BACKBONES if hasattr(case.values[1], "make_embeddings") and case.id.endswith("Model")]


@pytest.mark.parametrize(("family", "cls"), PATCHES)
def test_embeddings_of_patches_compute_where_the_tree_has_them(family: Family, cls: type[Model]) -> None:
    ours, theirs = pair(family, cls)
    inputs, seen = batch(family, cls), []
    ours.embeddings.register_forward_hook(lambda module, given, out: seen.append(out))
    with torch.no_grad():
        expected = theirs.embeddings(inputs[ours.main_input_name])
        ours(**inputs)
        found = ours.embeddings(inputs[ours.main_input_name])
    expected = getattr(expected, "last_hidden_states", expected)
    assert max(error(mine, expected) for mine in (seen[0], found)) <= 1e-5


TEXT: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.arange(8)[None]


def bert(cls: Any = None, **more: Any) -> Any:
    kind = cls or transept.BertForSequenceClassification
    return kind(transept.BertConfig(**TEXT, intermediate_size=37, **more)).eval()


def test_paths_lead_to_the_parts_that_compute() -> None:
    model = bert()
    assert model.bert is model.backbone
    query = model.bert.encoder.layer[0].attention.self.query
    assert query is model.backbone.layers[0].self_attn.q_proj
    assert model.get_submodule("bert.encoder.layer.0.attention.self.query") is query
    assert model.get_parameter("bert.encoder.layer.0.attention.self.query.weight") is query.weight
    assert model.bert.encoder.layer[-1].output.dense is model.backbone.layers[1].mlp.down_proj
    model.bert.encoder.layer[0].attention.self.query = fresh = nn.Linear(32, 32)
    assert model.backbone.layers[0].self_attn.q_proj is fresh
    model.backbone.layers[0].self_attn.q_proj = query
    assert model.bert.encoder.layer[0].attention.self.query is query
    model.bert.embeddings.word_embeddings = table = nn.Embedding(50, 32)
    assert model.get_input_embeddings() is table
    del model.backbone.layers[0].self_attn.q_proj
    assert not hasattr(model.bert.encoder.layer[0].attention.self, "query")
    assert not hasattr(model, "nonsense")


def test_numbers_of_parts_are_the_references_where_some_are_missing() -> None:
    config = transept.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic")
    model = transept.ResNetForImageClassification(config).eval()
    head: Any = model.classifier
    assert head[-1] is head[1]
    head[1] = nn.Linear(8, 7)
    assert model(torch.rand(1, 3, 32, 32)).logits.shape == (1, 7)
    with pytest.raises(IndexError):
        head[0]


def test_layers_may_be_sliced_hooked_and_called() -> None:
    model, seen = bert(), []
    whole = model(IDS, output_hidden_states=True).hidden_states
    model.bert.encoder.layer = model.bert.encoder.layer[:1]
    assert len(model.backbone.layers) == 1
    handle = model.bert.encoder.layer[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    states = model(IDS, output_hidden_states=True).hidden_states
    assert len(states) == 2
    assert torch.equal(states[1], whole[1])
    assert torch.equal(seen[0], whole[1])
    handle.remove()


def test_containers_say_that_they_compute_nothing() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    convs = {"conv_dim": (8,), "conv_kernel": (4,), "conv_stride": (2,), "num_conv_pos_embeddings": 4}
    config = transept.Wav2Vec2Config(**sizes, **convs, num_conv_pos_embedding_groups=2)
    model = transept.Wav2Vec2Model(config)
    for ask in (
        lambda: model.encoder(IDS),
        lambda: model.encoder.register_forward_hook(print),
        lambda: setattr(model.encoder, "forward", print),
        lambda: setattr(model, "encoder", nn.Linear(32, 32)),
    ):
        with pytest.raises(UnsupportedError, match=r"only holds|holds parts"):
            ask()


def test_a_subclass_may_set_parts_in_its_constructor() -> None:
    class Own(transept.BertForSequenceClassification):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.classifier = nn.Linear(32, 7)

    model = bert(Own)
    assert model(IDS).logits.shape == (1, 7)
    assert [name for name, _ in model.named_parameters()][-2:] == ["classifier.weight", "classifier.bias"]


def test_copies_have_trees_of_their_own() -> None:
    model = bert()
    expected = model(IDS).logits
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(IDS).logits, expected)
        nn.init.zeros_(twin.bert.encoder.layer[1].output.LayerNorm.weight)
        assert not torch.equal(twin(IDS).logits, expected)
    assert torch.equal(model(IDS).logits, expected)
    zeros = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    assert not torch.func.functional_call(model, zeros, (IDS,)).logits.any()
