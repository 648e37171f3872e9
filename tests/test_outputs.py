"""Outputs are dictionaries, in the order of their fields, whose values are attributes and have an index."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
import transformers.modeling_outputs as reference
from torch.nn.parallel.scatter_gather import gather

from transept import outputs
from transept.compat import outputs as modeling_outputs
from transept.errors import InputTypeError
from transept.outputs import LogitsOutput, MemoryOutput, ModelOutput, RecurrentOutput

LOGITS, LOSS = torch.arange(6.0).view(2, 3), torch.tensor(0.5)


def test_an_output_is_a_dictionary_in_the_order_of_its_fields() -> None:
    output = LogitsOutput(logits=LOGITS, hidden_states=(LOGITS,))
    output.loss = LOSS
    output["attentions"] = (LOSS,)
    assert isinstance(output, dict)
    assert list(output) == list(output.keys()) == ["loss", "logits", "hidden_states", "attentions"]
    assert dict(output) == {**output} == dict(output.items())
    assert output[0] is output["loss"] is output.loss is LOSS
    assert output[1:3] == (LOGITS, (LOGITS,)) == output.to_tuple()[1:3]
    assert output.past_key_values is None
    assert "past_key_values" not in output
    assert output.get("past_key_values", 5) == 5
    output.loss = None
    assert next(iter(output)) == "logits"
    loss, *_ = LogitsOutput(LOSS, LOGITS).values()
    assert loss is LOSS


def test_an_output_is_made_of_a_mapping_or_of_pairs() -> None:
    """As DataParallel and accelerate make them."""
    given = {"logits": LOGITS, "loss": LOSS}
    for made in (LogitsOutput(given), LogitsOutput(iter(given.items())), LogitsOutput(**given)):
        assert list(made) == ["loss", "logits"]
    with pytest.raises(InputTypeError, match="LogitsOutput has no field 'logit'.*'logits'"):
        LogitsOutput(logit=LOGITS)  # type: ignore[call-arg]


def test_parts_of_several_devices_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.parallel.scatter_gather.Gather.apply", lambda device, dim, *parts: torch.cat(parts, dim))
    parts = [LogitsOutput(logits=LOGITS, hidden_states=(LOGITS,)) for _ in range(2)]
    gathered = gather(parts, "cpu")
    assert type(gathered) is LogitsOutput
    assert gathered.logits.shape == gathered.hidden_states[0].shape == (4, 3)


def test_the_cache_has_its_own_name_among_keys() -> None:
    output = RecurrentOutput(last_hidden_state=LOGITS, past_key_values=(LOSS,))  # type: ignore[arg-type]
    assert list(output) == ["last_hidden_state", "cache_params"]
    assert output.past_key_values == output.cache_params == output["cache_params"] == (LOSS,)  # type: ignore[attr-defined]
    memory = MemoryOutput(last_hidden_state=LOGITS, hidden_states=(LOGITS,), mems=(LOSS,))
    assert list(memory) == ["last_hidden_state", "mems", "hidden_states"]


def test_loss_terms_are_an_attribute_alone() -> None:
    output = LogitsOutput(logits=LOGITS, loss_terms={})
    output["loss_terms"] = {"a": 1}
    assert (list(output), output.loss_terms) == (["logits"], {"a": 1})


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda output: pickle.loads(pickle.dumps(output))])
def test_copies_are_whole(again: Any) -> None:
    output = LogitsOutput(logits=LOGITS, loss=LOSS, loss_terms={"a": 1})  # type: ignore[dict-item]
    made = again(output)
    assert type(made) is LogitsOutput
    assert (list(made), made.loss_terms) == (["loss", "logits"], {"a": 1})
    assert torch.equal(made.logits, LOGITS)


def test_trees_keep_every_field() -> None:
    output = RecurrentOutput(last_hidden_state=LOGITS, hidden_states=(LOSS,))
    leaves, form = pytree.tree_flatten(output)
    assert len(leaves) == 2
    again = pytree.tree_unflatten([leaf + 1 for leaf in leaves], form)
    assert type(again) is RecurrentOutput
    assert torch.equal(again.hidden_states[0], LOSS + 1)


class Small(torch.nn.Module):
    """Makes an output in every way that models do."""

    def forward(self, x: torch.Tensor) -> LogitsOutput:
        output = LogitsOutput(logits=x * 2, hidden_states=(x,))
        output["loss"], output["attentions"] = x.sum(), (output[0],)
        return output


def test_outputs_are_made_in_compiled_graphs_and_exported_ones() -> None:
    plain = Small()(LOGITS)
    file = io.BytesIO()
    torch.export.save(torch.export.export(Small(), (LOGITS,)), file)
    file.seek(0)
    for made in (torch.compile(Small(), fullgraph=True, backend="eager")(LOGITS), torch.export.load(file).module()(LOGITS)):
        assert type(made) is LogitsOutput
        assert list(made) == list(plain) == ["loss", "logits", "hidden_states", "attentions"]
        assert torch.equal(made.logits, plain.logits)


def test_names_of_the_reference_have_its_fields() -> None:
    """Every name here is one of the reference's, and has a place for what that has."""
    for name in modeling_outputs.__all__:
        ours = getattr(modeling_outputs, name)
        assert issubclass(ours, ModelOutput)
        theirs = getattr(getattr(reference, name, None), "__dataclass_fields__", None)
        if theirs is not None:
            lacking = set(theirs) - set(ours.names)
            assert lacking <= {"z_loss", "router_probs", "router_logits"}, (name, lacking)
    assert modeling_outputs.SequenceClassifierOutput is outputs.LogitsOutput
    with pytest.raises(AttributeError, match="no name 'Nothing'"):
        _ = modeling_outputs.Nothing


# --- outputs of users, decorated as dataclasses ----------------------------------------------------------------------------


@dataclass
class Decorated(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    states: tuple[torch.Tensor, ...] | None = None


@dataclass
class DecoratedAgain(Decorated):
    more: torch.Tensor | None = None


@dataclass
class OfOurs(modeling_outputs.BaseModelOutputWithPooling):  # whose first field has no default
    extra: torch.Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen = True


def test_a_decorated_output_is_as_any_other() -> None:
    output = Decorated(logits=LOGITS)
    assert output.loss is None
    assert Decorated.loss is None
    assert output.logits is output["logits"] is output[0] is LOGITS
    assert list(output) == ["logits"]
    assert output.to_tuple() == (LOGITS,)
    output.loss = LOSS
    assert output[:2] == (LOSS, LOGITS)
    assert list(Decorated(LOSS, LOGITS)) == list(Decorated({"logits": LOGITS, "loss": LOSS})) == ["loss", "logits"]
    assert [field.name for field in fields(Decorated)] == ["loss", "logits", "states"]
    changed = replace(output, states=(LOSS,))
    assert (type(changed), list(changed)) == (Decorated, ["loss", "logits", "states"])
    assert list(DecoratedAgain(LOSS, more=LOGITS)) == ["loss", "more"]
    with pytest.raises(InputTypeError, match="Decorated has no field 'logit'"):
        Decorated(logit=LOGITS)  # type: ignore[call-arg]


def test_a_decorated_output_is_copied_pickled_and_a_tree() -> None:
    output = OfOurs(last_hidden_state=LOGITS, extra=LOSS)
    assert (list(output), output.seen, output.pooler_output) == (["last_hidden_state", "extra"], True, None)
    for twin in (copy.deepcopy(output), pickle.loads(pickle.dumps(output)), pytree.tree_map(torch.clone, output)):
        assert type(twin) is OfOurs
        assert list(twin) == ["last_hidden_state", "extra"]
        assert torch.equal(twin.extra, LOSS)
        assert torch.equal(twin[0], LOGITS)
