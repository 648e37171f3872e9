"""Every setting has an effect, is refused by name, or is one that scripts read themselves."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import transept
from tests.training.small import head, ours, quiet
from transept import Seq2SeqTrainingArguments, Trainer, TrainingArguments, logging
from transept.training.arguments.base import LIMITS

from .test_every_field import EFFECTS

SOURCE = Path(transept.__file__).parent
# The trainer does not read them, nor does the reference's: scripts do, and launchers set `local_rank`.
OF_SCRIPTS = {"do_train", "do_eval", "do_predict", "local_rank", "resume_from_checkpoint"}
# Another name of a setting -> the one that is read.
SAME = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
    "auto_find_batch_size": "find_batch_size",
    "deterministic": "full_determinism",
}
READERS = {"args", "arguments"}
SETTINGS = "training/arguments/training.py"


class Effects(ast.NodeTransformer):
    """Takes the checks out of the settings' own module, which are no effect of a setting."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        return None if node.name in ("__post_init__", "check") else node


def reads(tree: ast.AST, readers: set[str]) -> Iterator[tuple[str, int]]:
    """The names that a module reads of its arguments, with their lines: ``args.name`` and ``getattr(args, "name")``.

    Of ``getattr(args, name)`` they are all texts of the function around it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and name_of(node.value) in readers:
            yield node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef):
            parts = [*ast.walk(node)]
            calls = [part for part in parts if isinstance(part, ast.Call) and name_of(part.func) == "getattr"]
            asked = [call.args[1] for call in calls if name_of(call.args[0]) in readers]
            texts = asked if all(isinstance(name, ast.Constant) for name in asked) else parts
            yield from ((str(text.value), text.lineno) for text in texts if isinstance(text, ast.Constant))


def name_of(node: ast.expr) -> str:
    """The last part of a dotted name."""
    if isinstance(node, ast.Call):  # cast("...", args)
        return name_of(node.args[-1]) if node.args else ""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@cache
def places() -> dict[str, list[str]]:
    """Each setting and the places of the source that read it."""
    found: dict[str, list[str]] = {}
    for folder in ("training", "parallel"):
        for path in sorted((SOURCE / folder).rglob("*.py")):
            module, tree = path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())
            own = module == SETTINGS
            for name, line in reads(Effects().visit(tree) if own else tree, READERS | ({"self"} if own else set())):
                found.setdefault(name, []).append(f"{module}:{line}")
    return found


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)])
def test_a_setting_is_honoured_or_refused(name: str) -> None:
    assert name in OF_SCRIPTS or name in LIMITS or name in EFFECTS or places().get(SAME.get(name, name)), (
        f"{name!r} is never read, and not refused"
    )
    assert name not in OF_SCRIPTS or not places().get(name), f"{name!r} is read, and so not one of scripts"


def test_tables_name_settings() -> None:
    known = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
    assert OF_SCRIPTS | {*SAME} | {*SAME.values()} | {*LIMITS} <= known
    assert {field.name for field in dataclasses.fields(TrainingArguments)} <= known


def test_the_level_of_logs_is_that_of_the_process(tmp_path: Path) -> None:
    before = logging.get_verbosity()
    try:
        for level, number in (("info", logging.INFO), ("error", logging.ERROR), ("passive", logging.ERROR)):
            Trainer(ours(head("BertForSequenceClassification")), TrainingArguments(**quiet(tmp_path), log_level=level))
            assert logging.get_verbosity() == number
    finally:
        logging.set_verbosity(before)
