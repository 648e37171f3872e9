"""Forward passes take the reference's arguments, by name and by position, and show them to `inspect`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from transept.core.model import Model
from transept.errors import InputTypeError
from transept.models.bert import BertConfig, BertForSequenceClassification, BertModel

from .families import TEXT, Family
from .harness import EVERY

CONFIG = BertConfig(**TEXT, intermediate_size=37)
# The last of the inputs that people pass by position.
LAST = (
    "labels",
    "inputs_embeds",
    "end_positions",
    "mc_labels",
    "next_sentence_label",
    "sampled_negative_indices",
    "mask_time_indices",
)
# What only the reference's own models pass to their parts.
INNER = {
    "BioGptForSequenceClassification": ("logits_to_keep",),  # which have no meaning for one answer
    "Zamba2ForSequenceClassification": ("logits_to_keep",),
    "Gemma4TextModel": ("logits_to_keep",),
    "BlipTextModel": ("encoder_embeds", "is_decoder"),
    "BlipTextLMHeadModel": ("return_logits", "is_decoder", "reduction"),
}


def parameters(forward: Any) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(forward).parameters)
    return {name: each for name, each in found.items() if name != "self" and each.kind is not each.VAR_KEYWORD}


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls"), EVERY)
def test_inputs_are_the_references_by_name_and_by_position(family: Family, cls: type[Model]) -> None:
    import transformers

    theirs, ours = list(parameters(getattr(transformers, cls.__name__).forward)), parameters(cls.forward)
    last = max((place for place, name in enumerate(theirs) if name in LAST), default=len(theirs) - 1)
    by_position = [name for name, each in ours.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert by_position[: last + 1] == theirs[: last + 1]
    theirs = [name for name in theirs if name not in INNER.get(cls.__name__, ())]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(cls.forward).parameters.values())
    assert takes_any or set(theirs) <= set(ours)


def test_by_position_and_by_name_are_the_same() -> None:
    model, ids = BertForSequenceClassification(CONFIG).eval(), torch.randint(5, 99, (2, 7))
    mask, types, labels = torch.ones(2, 7), torch.ones(2, 7, dtype=torch.long), torch.tensor([0, 1])
    named = model(input_ids=ids, attention_mask=mask, token_type_ids=types, labels=labels)
    assert torch.equal(model(ids, mask, types, None, None, labels).loss, named.loss)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"token_type_id": None}, "takes no input `token_type_id`.*token_type_ids"),
        ({"head_mask": None}, "heads cannot be masked"),
    ],
)
def test_unknown_inputs_say_what_to_do(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputTypeError, match=message):
        BertModel(CONFIG)(torch.tensor([[5, 6]]), **inputs)


def test_places_in_the_cache_are_taken_and_follow_from_it() -> None:
    model, ids = BertModel(CONFIG).eval(), torch.tensor([[5, 6]])
    assert torch.equal(model(ids, cache_position=torch.arange(2))[0], model(ids)[0])


def test_too_many_inputs_and_one_given_twice() -> None:
    model, ids = BertModel(CONFIG), torch.tensor([[5, 6]])
    with pytest.raises(InputTypeError, match="takes 9 inputs by position, but got 10"):
        model(*[ids] * 10)
    with pytest.raises(InputTypeError, match="`input_ids` twice"):
        model(ids, input_ids=ids)
