"""Translated glossaries are kept in step with the English one: terms, code, links and names of the API."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
LANGUAGES = sorted(page.parent.name for page in DOCS.glob("*/glossary.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(#([^)]+)\)")


@dataclass
class Section:
    """What a term's section has in every language: its heading, its code, the names and the terms that it mentions."""

    title: str
    code: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)


def anchor(heading: str) -> str:
    """The anchor that GitHub and MyST give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower().replace(" ", "-"))


def english(heading: str, translated: bool) -> str:
    """The English term of a heading: `Canal (channel)`, `… (masked language modeling, MLM)`."""
    if not translated:
        return heading.lower()
    found = re.search(r"\(([^()]+)\)$", heading)
    assert found, f"the English term in parentheses is missing: {heading}"
    return re.sub(r", ([^,]+)$", r" (\1)", found[1]).lower()


def sections(text: str, *, translated: bool) -> list[Section]:
    """The sections of the terms in order."""
    assert not re.findall(r"^## (?!.$).*$", text, flags=re.MULTILINE), "each section is a letter's"
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    headings = parts[1::2]
    terms = {anchor(heading): english(heading, translated) for heading in headings}
    assert len(terms) == len(headings)
    found = []
    for heading, part in zip(["", *headings], parts[::2], strict=True):
        code = [ast.unparse(ast.parse(block)) for block in BLOCK.findall(part)]
        prose = BLOCK.sub("", part)
        links = [terms[link] for link in LINK.findall(prose)]  # a link that leads nowhere is a KeyError
        title = english(heading, translated) if heading else ""
        found.append(Section(title, code, sorted(CODE.findall(prose)), sorted(links)))
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_translation_is_in_step(language: str) -> None:
    ours = sections((DOCS / "glossary.md").read_text(encoding="utf-8"), translated=False)
    theirs = sections((DOCS / language / "glossary.md").read_text(encoding="utf-8"), translated=True)
    assert [section.title for section in theirs] == [section.title for section in ours]
    for translated, section in zip(theirs, ours, strict=True):
        assert translated == section


def test_the_translations_are_there() -> None:
    assert LANGUAGES == ["ar", "es"]


def test_a_term_that_one_language_lacks_is_found() -> None:
    text = (DOCS / "es/glossary.md").read_text(encoding="utf-8")
    without = re.sub(r"^### Canal .*?(?=^### )", "", text, flags=re.MULTILINE | re.DOTALL)
    other_code = text.replace('num_hidden_layers": 2', 'num_hidden_layers": 3')
    whole = sections(text, translated=True)
    assert without != text != other_code
    assert sections(without, translated=True) != whole != sections(other_code, translated=True)


def test_arabic_runs_from_right_to_left_and_its_code_from_left_to_right() -> None:
    text = (DOCS / "ar/glossary.md").read_text(encoding="utf-8")
    assert text.startswith('<div dir="rtl" lang="ar">\n\n# ')
    assert text.endswith("\n\n</div>\n")
    assert len(re.findall(r'^<div dir="ltr">\n\n```python\n', text, re.MULTILINE)) == len(BLOCK.findall(text)) > 20
    assert text.count("<div") == text.count("</div>")
    # Code that begins or ends with a mark would have it on the wrong side.
    bare = re.sub(r'<span dir="ltr">.*?</span>', "", BLOCK.sub("", text))
    assert not [code for code in CODE.findall(bare) if not re.fullmatch(r"\w.*\w", code)]
