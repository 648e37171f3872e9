"""Steps of layers, of networks and of heads give what the reference's modules at the same places give, and may take part."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transept
from tests.thorough import in_turn
from transept.core.model import Model
from transept.errors import UnsupportedError
from transept.layers.links import Step

from .families import Family
from .harness import EVERY, FIRST, batch, error, pair

pytestmark = pytest.mark.reference


def places(model: nn.Module) -> list[str]:
    return [path for path, module in model.named_modules() if isinstance(module, Step)]


def first(value: Any) -> Tensor:
    """What a module gives, or the first that it gives."""
    while not isinstance(value, Tensor):
        value = value[0]
    return value


def seen(model: nn.Module, paths: list[str], inputs: dict[str, Tensor]) -> list[Tensor]:
    """What goes into the modules at some paths, and what comes out, in a pass."""
    found: list[Tensor] = []

    def look(module: nn.Module, given: Any, named: dict[str, Any], out: Any) -> None:
        found.extend([first(out), given[0] if given else named.get("hidden_states", named.get("inputs_embeds"))])

    handles = [model.get_submodule(path).register_forward_hook(look, with_kwargs=True) for path in paths]
    with torch.no_grad():
        found.append(first(model(**inputs)))
    for handle in handles:
        handle.remove()
    return found


_FAMILIES = ("Bert", "Roberta", "Electra", "DistilBert", "MPNet", "T5", "CLIP", "Siglip", "BlipText", "Dinov2", "DPTModel")
WITH_STEPS = [
    case for case in EVERY if case.id.startswith(_FAMILIES) and not case.id.startswith(("RobertaPreLayerNorm", "T5Gemma"))
]


@pytest.mark.parametrize(("family", "cls"), in_turn(WITH_STEPS, 13, whole=FIRST))
def test_hooks_see_what_they_see_in_the_reference(family: Family, cls: type[Model]) -> None:
    ours, theirs = pair(family, cls)
    inputs = batch(family, cls)
    paths = places(ours)
    assert paths
    for path in paths:
        mine, wanted = seen(copy.deepcopy(ours), [path], inputs), seen(theirs, [path], inputs)
        assert len(mine) == len(wanted), path
        assert max(error(one, other) for one, other in zip(mine, wanted, strict=True)) <= 1e-5, path
    assert len(seen(ours, paths, inputs)) > len(paths)


SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SIZES |= {"vocab_size": 40, "max_position_embeddings": 32}
IDS = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 1]])


def bert(cls: Any = None, **more: Any) -> Any:
    return (cls or transept.BertModel)(transept.BertConfig(**SIZES, **more)).eval()


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        return 2 * self.inner(hidden_states, input_tensor)  # type: ignore[no-any-return]


def test_what_takes_the_place_of_a_step_computes() -> None:
    model = bert()
    before = model(IDS)[0]
    layer = model.encoder.layer[1]
    assert not layer.by_steps
    layer.output = Doubled(layer.output)
    assert torch.allclose(model(IDS)[0], 2 * before)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(IDS)[0], model(IDS)[0])
        nn.init.zeros_(twin.encoder.layer[1].output.inner.LayerNorm.weight)
        assert not torch.equal(twin(IDS)[0], model(IDS)[0])
    assert torch.allclose(torch.compile(model, backend="eager", fullgraph=True)(IDS)[0], 2 * before, atol=1e-6)


def test_hooks_and_other_forwards_change_what_is_computed() -> None:
    model = bert()
    before = model(IDS)[0]
    handle = model.encoder.register_forward_hook(lambda module, given, out: (out[0] + 1,))
    assert torch.allclose(model(IDS)[0], before + 1)
    handle.remove()
    assert torch.equal(model(IDS)[0], before)
    step = model.encoder.layer[1].attention
    step.forward = lambda states, *others: (torch.zeros_like(states), None)
    assert not torch.allclose(model(IDS)[0], before)


def test_settings_that_a_step_lends_are_the_owners() -> None:
    layer = bert(hidden_dropout_prob=0.5).encoder.layer[0]
    assert layer.attention.self.num_attention_heads == 2
    assert layer.output.dropout is layer.mlp_dropout
    layer.intermediate.intermediate_act_fn = nn.ReLU()
    assert isinstance(layer.mlp.act, nn.ReLU)
    layer.output.train()
    assert layer.mlp_dropout.training
    assert not layer.dropout.training
    with pytest.raises(AttributeError, match="nothing"):
        _ = layer.output.nothing


def test_steps_of_a_layer_that_processes_share_are_refused() -> None:
    model = bert()
    model.encoder.layer[0].is_split = True
    model.encoder.layer[0].output.register_forward_hook(lambda *given: None)
    with pytest.raises(UnsupportedError, match="that processes share cannot have hooks"):
        model(IDS)


def test_dropout_of_attention_is_turned_off_by_its_module() -> None:
    model = bert(attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.5).train()
    attention = model.encoder.layer[0].self_attn
    assert model.encoder.layer[0].attention.self.dropout.p == attention.dropout == 0.5
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert attention.dropout == 0.0
    assert torch.equal(model(IDS)[0], model.eval()(IDS)[0])
    twin = copy.deepcopy(model)
    twin.encoder.layer[0].attention.self.dropout.p = 0.25
    assert (attention.dropout, twin.encoder.layer[0].self_attn.dropout) == (0.0, 0.25)


def test_hooks_on_all_modules_may_be_registered() -> None:
    model = transept.T5Model(transept.T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, vocab_size=40)).eval()
    before, seen = model(IDS, decoder_input_ids=IDS)[0], []
    for module in model.modules():
        module.register_forward_hook(lambda module, given, out: seen.append(type(module)))
    assert torch.equal(model(IDS, decoder_input_ids=IDS)[0], before)
    assert any(issubclass(kind, Step) for kind in seen)
