"""Every regular expression of the package in linear time: eleven advisories against one library were of this kind.

CVE-2024-12720, CVE-2025-1194, -2099, -3262, -3263, -3264, -3933, -5197, -6051, -6638, -6921: each a pattern of the library
itself over text from outside. Patterns are found in the source, so a new one is tested by being written.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import transept
from tests.pace import slowness

SOURCE = Path(transept.__file__).parent
FUNCTIONS = {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
# Over text that is part of the installation, not of a model.
TRUSTED = {"__init__.py", "installation.py"}
# Alternatives of plain texts repeat nothing; words with white space between them repeat that alone, which no word begins with.
PLAIN = ("'|'.join(map(re.escape, ", "'\\\\s+'.join(map(re.escape, ")
LENGTH = 100_000


def patterns() -> Iterator[tuple[str, str, int, list[str]]]:
    """Place, pattern, flags and uses of every call of `re` with a literal pattern."""
    for path in sorted(SOURCE.rglob("*.py")):
        name, text = path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8")
        if "import re\n" not in text:  # the only way to the name that is looked for below
            continue
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in FUNCTIONS:
                continue
            if not isinstance(node.func.value, ast.Name) or node.func.value.id != "re" or name in TRUSTED:
                continue
            if ast.unparse(node.args[0]).startswith(PLAIN):
                continue
            pattern = _text(node.args[0])
            flags = sum(getattr(re, f.attr) for arg in ast.walk(node) if (f := arg) and _is_flag(f))
            yield f"{name}:{node.lineno}", pattern, flags, _uses(tree, node, node.func.attr)


def _uses(tree: ast.AST, call: ast.Call, function: str) -> list[str]:
    """Whether a pattern is looked for anywhere in a text, at its start, or must be all of it."""
    used = {function}
    if function == "compile":
        owners = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and call in ast.walk(node)]
        names = {target.id for node in owners for target in node.targets if isinstance(target, ast.Name)}
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
        } & FUNCTIONS
    if not used:
        return ["fullmatch", "match", "search"]
    return sorted({use if use in ("fullmatch", "match") else "search" for use in used})


def _is_flag(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re" and node.attr.isupper()
    )


def _text(node: ast.expr) -> str:
    """A literal, or an f-string with `x` for what it fills in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    raise AssertionError(f"line {node.lineno}: patterns are literals, so that they can be tested")


def attacks(pattern: str) -> list[str]:
    """Long texts that come near to a match: repeated parts of the pattern's own characters, with and without an end."""
    letters = sorted(set(re.sub(r"\\[A-Za-z]", "", pattern)) - set("\\"))
    pieces = ["a", "1", " ", "\n", "-", "_", ".", "/", "//", "aA", "a ", "a.", "a-", "1 ", "Bearer ", "hf_", "//a", *letters]
    return [piece * (LENGTH // len(piece)) + end for piece in pieces for end in ("", "!", "\0")]


@pytest.mark.parametrize(("pattern", "flags", "uses"), [pytest.param(*what, id=place) for place, *what in patterns()])
def test_time_grows_with_the_text(pattern: str, flags: int, uses: list[str]) -> None:
    compiled = re.compile(pattern, flags)
    for text in attacks(pattern):
        for attempt in (getattr(compiled, use) for use in uses):
            best = _seconds(attempt, text)
            if best > 0.1:  # a machine may be slow, but only a bad pattern takes more than twice as long for twice as much
                best = min(best, _seconds(attempt, text))
                half = min(_seconds(attempt, text[: LENGTH // 2]) for _ in range(3))
                assert best < 0.5 * slowness()
                assert best <= 3 * half, text[:20]


def _seconds(attempt: object, text: str) -> float:
    start = time.process_time()
    attempt(text)  # type: ignore[operator]
    return time.process_time() - start


def test_patterns_are_found_and_a_bad_one_would_be() -> None:
    assert len(list(patterns())) >= 5
    bad = re.compile(r"^(\w+\s?)*$").search
    assert _seconds(bad, "a" * 21 + "!") > 3 * min(_seconds(bad, "a" * 17 + "!") for _ in range(3))
