"""Constraints allow what they describe and nothing else, and refuse what cannot be compiled."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from tests.pace import within
from tests.serving.test_writer import TOKENIZERS
from transept.errors import InputError
from transept.serving.engine.constraint import Constraint, Grammars, schema_of

TOKENIZER = TOKENIZERS["byte level"]
END = TOKENIZER.eos_token_id
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER, [END])


def drawn(constraint: Constraint, seed: int, tokenizer: Any = TOKENIZER, most: int = 400) -> str | None:
    """A random answer within a constraint, or ``None`` where it does not end."""
    pick, ids = torch.Generator().manual_seed(seed), list[int]()
    for _ in range(most):
        allowed = constraint.allowed(len(tokenizer) + 5)
        assert not bool(allowed[len(tokenizer) :].any())  # ids that the tokenizer has not
        index = int(torch.multinomial(allowed.float(), 1, generator=pick))
        if index == tokenizer.eos_token_id:
            assert constraint.is_fulfilled
            return str(tokenizer.decode(ids, skip_special_tokens=False))
        constraint.accept(index)
        ids.append(index)
    return None


@pytest.mark.parametrize("seed", range(8))
def test_random_answers_are_of_the_form(grammars: Grammars, seed: int) -> None:
    text = drawn(grammars.json_schema(SCHEMA), seed)
    assert text is not None
    assert " " not in text
    value = json.loads(text)
    assert value.keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined]
    assert value["a"] in ("x", "yy")
    found = drawn(grammars.json_schema({"type": "string", "pattern": "^[ab]{2,5}c$"}), seed)
    assert found is not None
    assert re.fullmatch('"[ab]{2,5}c"', found)


def test_rows_of_one_constraint_go_their_own_ways(grammars: Grammars) -> None:
    scores, one = torch.randn(1, len(TOKENIZER)), grammars.json_schema({"enum": [12, 13]})
    digit = {digit: TOKENIZER.convert_tokens_to_ids(digit) for digit in "123"}
    found = one(scores, scores)
    assert (found[0] > -torch.inf).nonzero().flatten().tolist() == [digit["1"]]
    one.accept(digit["1"])
    other, thinks = one.of_row(bool), one.of_row(lambda: True)
    assert thinks(scores, scores) is scores
    other.accept(digit["2"])
    assert other.is_fulfilled
    assert not one.is_fulfilled
    with pytest.raises(InputError, match="is not allowed here"):
        one.accept(digit["1"])


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nothing"}, "the schema cannot be used: .*nothing"),
        ({"$ref": "https://example.com/a.json"}, "outside itself"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "outside itself"),
        ({"$ref": "#/$defs/none"}, "the schema cannot be used"),
        ({"type": "string", "pattern": "("}, "the schema cannot be used"),
        ({"type": "string", "description": "x" * 2**18}, "bytes, but may have"),
        (deep(80), "deeper than 64"),
        ([], "must be an object"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused_at_once(grammars: Grammars, schema: Any, message: str) -> None:
    with within(2), pytest.raises(InputError, match=message):
        grammars.json_schema(schema)


def test_other_mistakes_are_told(grammars: Grammars) -> None:
    with pytest.raises(InputError, match="an id that ends it"):
        Grammars(TOKENIZER, [])


def test_functions_have_the_arguments_that_they_name() -> None:
    one = {"properties": {"a": {"type": "integer"}}}
    assert schema_of({"parameters": one}) == one | {"type": "object", "additionalProperties": False}
    assert schema_of({"parameters": one | {"additionalProperties": True}})["additionalProperties"] is True
    assert "additionalProperties" not in schema_of({"parameters": {"anyOf": [one]}})
    assert schema_of({}) == {"type": "object", "properties": {}, "additionalProperties": False}
