"""Every Python snippet of the documents runs, page by page, hidden set-up (`<!-- python ... -->`) included."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from transept.cli.main import main

ROOT = Path(__file__).parent.parent
# Translations have the code of the English page: tests/test_translations.py.
PAGES = sorted({*(ROOT / "docs").rglob("*.md")} - {*(ROOT / "docs").glob("??/*.md")})
SNIPPET = re.compile(r"^```python\n(.*?)^```|^<!-- python\n(.*?)^-->", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    text = page.read_text(encoding="utf-8")
    for found in SNIPPET.finditer(text):
        line = text[: found.start()].count("\n") + 1
        source = "\n" * line + (found.group(1) or found.group(2))
        exec(compile(source, str(page), "exec"), names)


SHOWN = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMENTS = re.compile(r"^# .*\n(?=(?:# .*\n)*\Z)", re.MULTILINE)
TIMES = re.compile(r"^\{'train_runtime'.*\n", re.MULTILINE)  # what a training run prints at its end
FIGURE = re.compile(r"\d+\.\d*")


class Terminal(io.StringIO):
    """Standard output of somebody who looks at it."""

    def isatty(self) -> bool:
        return True


def written(act: Callable[..., object], *arguments: object) -> str:
    with redirect_stdout(Terminal()) as out:
        act(*arguments)
    return out.getvalue()


def same(found: str, shown: str) -> bool:
    """Whether two outputs have the same words, and figures that are nearly the same on any processor."""
    found = TIMES.sub("", found)
    apart = (abs(float(a) - float(b)) for a, b in zip(FIGURE.findall(found), FIGURE.findall(shown)))
    return FIGURE.sub("#", found).split() == FIGURE.sub("#", shown).split() and all(each < 0.02 for each in apart)


def test_the_readme_shows_real_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a snippet prints stands in comments at its end, and what a command prints below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "texts.txt").write_text("A cat sleeps.\nA kitten naps.\nThe stock market fell.\n")
    names: dict[str, object] = {}
    blocks = SHOWN.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) > 2
    for kind, source in blocks:
        if kind == "python":
            shown = "".join(COMMENTS.findall(source)).replace("# ", "")
            assert same(written(exec, source, names), shown)
            continue
        for command in re.split(r"^\$ transept ", source, flags=re.MULTILINE)[1:]:
            line, _, shown = command.partition("\n")
            assert same(written(main, shlex.split(line)), shown)


TERMS = """
attention mask; autoencoding models; autoregressive models; backbone; causal language modeling; channel; connectionist
temporal classification (CTC); convolution; DataParallel (DP); decoder input IDs; decoder models; deep learning (DL);
encoder models; feature extraction; feed forward chunking; finetuned models; head; image patch; inference; input IDs;
labels; large language models (LLM); masked language modeling (MLM); multimodal; natural language generation (NLG);
natural language processing (NLP); natural language understanding (NLU); pipeline; PipelineParallel (PP); pixel values;
pooling; position IDs; preprocessing; pretrained model; recurrent neural network (RNN); representation learning;
sampling rate; self-attention; self-supervised learning; semi-supervised learning; sequence-to-sequence (seq2seq);
Sharded DDP; stride; supervised learning; Tensor Parallelism (TP); token; token type IDs; transfer learning;
transformer; unsupervised learning; Zero Redundancy Optimizer (ZeRO)
"""


def test_the_glossary_has_every_term() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    headings = [heading.lower() for heading in re.findall(r"^### (.+)$", text, re.MULTILINE)]
    assert sorted(headings) == sorted(" ".join(term.split()).lower() for term in TERMS.split(";"))
