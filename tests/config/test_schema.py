"""What comes out of a JSON file is of the kind that its reader declares, or one error says which key is not."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import pytest

from tests.fuzz.mutate import mutated, value
from transept.config.fields import Range
from transept.config.schema import Length, kind_of, read_typed, typed
from transept.errors import FormatError


class Kind(StrEnum):
    ONE = "one"
    TWO = "two"


@dataclass(frozen=True)
class Entry:
    size: Annotated[int, Range(0)]
    digest: str = field(metadata={"key": "sha256"})


@dataclass(frozen=True)
class Document:
    step: int
    files: dict[str, Entry]
    rate: Annotated[float, Range(0)] | None = None
    kind: Kind = Kind.ONE
    form: Literal["a", "b"] = "a"
    place: tuple[int, str] = (0, "")
    rows: Annotated[list[int], Length(0, 3)] = field(default_factory=list)
    more: Any = None


WHOLE: dict[str, Any] = {
    "step": 3,
    "files": {"a/b.json": {"size": 0, "sha256": "00", "new": 1}},
    "rate": 1,
    "kind": "two",
    "form": "b",
    "place": [1, "x"],
    "rows": [1, 2],
    "more": {"x": None},
    "unknown": [],
}


def test_a_document_becomes_its_kind(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(WHOLE))
    found = read_typed(tmp_path / "x.json", Document)
    assert found == Document(3, {"a/b.json": Entry(0, "00")}, 1, Kind.TWO, "b", (1, "x"), [1, 2], {"x": None})
    assert type(found.kind) is Kind
    assert typed({"step": 1, "files": {}}, Document) == Document(1, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": True}, "`step` must be an integer, but is True."),
        ({"step": 2.0}, "`step` must be an integer, but is 2.0."),
        ({"step": 2**63}, "`step` must be an integer, but is 9223372036854775808."),
        ({"step": None}, "`step` must be an integer, but is None."),
        ({"files": []}, "`files` must be an object, but is []."),
        ({"files": {"a/b": {"size": -1, "sha256": ""}}}, "`files['a/b'].size` must be at least 0, but is -1."),
        ({"files": {"ab": {"size": 1}}}, "`files.ab.sha256` is missing, but must be a text."),
        ({"rate": "x"}, "`rate` must be a number or null, but is 'x'."),
        ({"rate": -1}, "`rate` must be at least 0, but is -1."),
        ({"kind": "three"}, "`kind` must be one of 'one', 'two', but is 'three'."),
        ({"kind": ["one"]}, "`kind` must be one of 'one', 'two', but is ['one']."),
        ({"form": 1}, "`form` must be one of 'a', 'b', but is 1."),
        ({"place": [1]}, "`place` must be a list of 2 values, but is [1]."),
        ({"place": [1, 2]}, "`place[1]` must be a text, but is 2."),
        ({"rows": [1, 2, "x"]}, "`rows[2]` must be an integer, but is 'x'."),
        ({"rows": [1] * 4}, "`rows` must be 0 to 3 long, but is [1, 1, 1, 1]."),
    ],
    ids=lambda each: str(each)[:40],
)
def test_an_error_names_the_file_the_key_and_the_value(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(WHOLE | change))
    with pytest.raises(FormatError) as caught:
        read_typed(path, Document, hint="Take another one.")
    assert str(caught.value) == f"{path}: {message} Take another one."


def test_an_error_is_short_whatever_the_keys_and_values() -> None:
    for document in ({"x" * 10**6: 1}, {"x": "y" * 10**6}):
        with pytest.raises(FormatError) as caught:
            typed(document, dict[str, None])
        assert len(str(caught.value)) < 500
    with pytest.raises(FormatError, match=r"the document must be an object, but is \[\]"):
        typed([], Document)


def test_checks_of_a_class_of_its_own_are_about_the_file(tmp_path: Path) -> None:
    @dataclass
    class Pair:
        low: int
        high: int

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise FormatError("`low` is above `high`.")

    with pytest.raises(FormatError, match="`low` is above `high`") as caught:
        typed({"low": 2, "high": 1}, Pair, path="x.json")
    assert caught.value.path == "x.json"


STATE = {
    "betas": (0.9, 0.999),
    "amsgrad": False,
    "foreach": None,
    "base_lrs": [5e-5, 1],
    "last_epoch": 2,
    "mode": "min",
    3: "x",
}


def test_an_example_tells_what_can_stand_in_its_place() -> None:
    example = {key: each for key, each in STATE.items() if isinstance(key, str)}
    kind = kind_of(example)
    assert typed(example, kind) == example
    assert typed(example | {"foreach": "x", "last_epoch": 0.5, "base_lrs": []}, kind)
    assert typed(STATE, kind_of(STATE)) == STATE  # keys that are no names: an object, whatever it holds
    for name, wrong in (("betas", (1,)), ("amsgrad", 0), ("last_epoch", False), ("mode", None), ("base_lrs", ["x"])):
        with pytest.raises(FormatError, match=f"`{name}"):
            typed(example | {name: wrong}, kind)
    with pytest.raises(FormatError, match="`base_lrs` must be 2 to 2 long"):
        typed(example | {"base_lrs": [1.0]}, kind_of(example, lengths=True))


def test_mutated_documents_are_of_their_kind_or_end_in_that_error() -> None:
    def places(found: Document) -> Iterator[bool]:
        yield type(found.step) is int
        yield all(type(each) is Entry and type(each.size) is int and type(each.digest) is str for each in found.files.values())
        yield found.rate is None or type(found.rate) in (int, float)
        yield type(found.kind) is Kind
        yield found.form in ("a", "b")
        yield type(found.place) is tuple and [*map(type, found.place)] == [int, str]
        yield len(found.rows) <= 3 and all(type(row) is int for row in found.rows)

    refused = 0
    for number in range(500):
        noise = Random(number)
        document = mutated(WHOLE, noise) if noise.random() < 0.9 else value(noise)
        before = copy.deepcopy(document)
        try:
            assert all(places(typed(document, Document)))
        except FormatError as error:
            refused += 1
            assert len(str(error)) < 500
        assert repr(document) == repr(before)
    assert 100 < refused < 400
