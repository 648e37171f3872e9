"""Every Python snippet of the documents runs, page by page, hidden set-up (`<!-- python ... -->`) included."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
