"""Dataclasses as options, compared with the reference; and YAML."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from typing import Literal

import pytest

from transept.cli.dataclass_parser import HfArg, HfArgumentParser
from transept.errors import FormatError, InputError, InputTypeError
from transept.storage.yaml_file import load_yaml


class Colour(Enum):
    RED = "red"
    BLUE = "blue"
    FOUR = 4


@dataclasses.dataclass
class Basic:
    foo: int
    bar: float
    long_name: str
    flag: bool


@dataclasses.dataclass
class Defaults:
    foo: int = 42
    name: str | None = "x"
    flag: bool = True
    other: bool = False
    maybe: bool | None = None
    sure: bool | None = True
    rate: float | None = None
    colour: Colour = "red"
    mode: Literal["a", "b", 3] = "a"
    words: list[str] = dataclasses.field(default_factory=list)
    numbers: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    many: list[float] | None = None
    mixed: str | float = 0.25
    short: int = HfArg(default=3, aliases=["-s", "--shorter"], help="a number of 100 % (percent)".replace("%", "%%"))


REQUIRED = ["--foo", "1", "--bar", "0.5", "--long_name", "x"]
LINES = [
    (Basic, [*REQUIRED]),
    (Basic, ["--foo", "1", "--bar", "1e-3", "--long-name", "a b", "--flag"]),
    (Basic, [*REQUIRED, "--flag", "no"]),
    (Defaults, []),
    (Defaults, ["--no_flag", "--other"]),
    (Defaults, ["--no-flag", "--other", "True", "--maybe", "t", "--no_sure"]),
    (Defaults, ["--flag", "0", "--sure", "--rate", "3e-5", "--name", "", "--foo", "-7"]),
    (Defaults, ["--colour", "blue", "--mode", "3", "--words", "a", "b", "--numbers", "3", "--many", "1", "2.5"]),
    (Defaults, ["--colour", "4", "--mixed", "0.5", "-s", "9"]),
    (Defaults, ["--shorter=9", "--words", "x", "--foo=8"]),
]


@pytest.mark.reference
@pytest.mark.parametrize(("cls", "words"), LINES)
def test_equal_to_the_reference(cls, words):
    from transformers import HfArgumentParser as Theirs

    (own,) = HfArgumentParser(cls).parse_args_into_dataclasses(words, look_for_args_file=False)
    (theirs,) = Theirs(cls).parse_args_into_dataclasses(words, look_for_args_file=False)
    assert own == theirs


@pytest.mark.parametrize(
    "words",
    [
        *([], ["--foo", "x", *REQUIRED[2:]], [*REQUIRED, "--flag", "maybe"], ["--foo"]),
    ],
)
def test_wrong_options_end_the_program(words, capsys):
    with pytest.raises(SystemExit):
        HfArgumentParser(Basic).parse_args_into_dataclasses(words, look_for_args_file=False)
    assert "error" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        HfArgumentParser(Defaults).parse_args_into_dataclasses(["--colour", "green"], look_for_args_file=False)


@dataclasses.dataclass
class Second:
    _argument_group_name = "second"
    depth: int = 1
    hidden: int = dataclasses.field(default=5, init=False)


def test_several_classes_and_rest(capsys):
    parser = HfArgumentParser((Defaults, Second))
    parser.add_argument("--extra")
    first, second, more, rest = parser.parse_args_into_dataclasses(
        ["--depth", "3", "--extra", "e", "--unknown", "u"], return_remaining_strings=True, look_for_args_file=False
    )
    assert (first, second, more.extra, rest) == (Defaults(), Second(3), "e", ["--unknown", "u"])
    with pytest.raises(InputError, match=r"no options: --dept 3. Did you mean '--depth'"):
        HfArgumentParser(Second, allow_abbrev=False).parse_args_into_dataclasses(["--dept", "3"], look_for_args_file=False)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "second:" in (told := capsys.readouterr().out)
    assert "(default: 3)" in told
    assert "100 % (percent)" in told


def test_options_from_files(tmp_path, monkeypatch):
    (tmp_path / "script.args").write_text("--foo 1\n--other")
    (tmp_path / "more.args").write_text("--foo 2 --words a")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "script.py"), "--foo", "9"])
    parser = HfArgumentParser(Defaults)
    assert parser.parse_args_into_dataclasses()[0] == Defaults(foo=9, other=True)
    assert parser.parse_args_into_dataclasses([])[0] == Defaults(foo=1, other=True)
    assert parser.parse_args_into_dataclasses([], args_filename=str(tmp_path / "more.args"))[0] == Defaults(foo=2, words=["a"])
    words = ["--args", str(tmp_path / "more.args"), "--mode", "b"]
    assert parser.parse_args_into_dataclasses(words, args_file_flag="--args")[0] == Defaults(
        2, other=True, words=["a"], mode="b"
    )


def test_values_from_documents(tmp_path):
    values = {"foo": 7, "rate": 3e-5, "words": ["a"]}
    parser = HfArgumentParser(Defaults)
    expected = (Defaults(**values),)
    assert parser.parse_dict(values) == expected
    (tmp_path / "a.json").write_text(json.dumps(values))
    assert parser.parse_json_file(tmp_path / "a.json") == expected
    (tmp_path / "a.yaml").write_text("foo: 7\nrate: 3e-5\nwords: [a]\n")
    assert parser.parse_yaml_file(tmp_path / "a.yaml") == expected
    assert parser.parse_dict({**values, "fooo": 1}, allow_extra_keys=True) == expected
    with pytest.raises(InputError, match="no fields: fooo. Did you mean 'foo'"):
        parser.parse_dict({"fooo": 1})
    (tmp_path / "a.yaml").write_text("- 1\n")
    with pytest.raises(FormatError, match="must hold values by name"):
        parser.parse_yaml_file(tmp_path / "a.yaml")


def test_wrong_classes():
    @dataclasses.dataclass
    class Several:
        value: int | float = 1

    for wrong in (Several, dict, [3]):
        with pytest.raises(InputTypeError):
            HfArgumentParser(wrong)


YAML = "a: 3e-5\nb: no\nc: [1, 1.5, true, ~, 'no', -2]\nd: 2024-01-01\ne: 012\n"


def test_yaml_as_version_1_2_reads_it(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(YAML)
    assert load_yaml(path) == {"a": 3e-5, "b": "no", "c": [1, 1.5, True, None, "no", -2], "d": "2024-01-01", "e": 12}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [1]\nb: *x\n", "a.yaml:1: .*anchor"),
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3: .*'a' comes twice"),
        ("a: !!python/object/apply:os.system [ls]\n", "a.yaml:1: .*could not determine a constructor"),
        ("a: [1\n", "a.yaml:2"),
        ("- " * 40 + "1\n", "more than 32 levels"),
        ("? [1]\n: 2\n", "is no name"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2"),
        ("x" * (2**20 + 1), "larger than"),
    ],
)
def test_hostile_yaml(text, message, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        load_yaml(path)
