"""Rows without padding: pipelines answer as they do with padding, in any company, and compute no padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import transept
from transept.adapt.pack import can_pack, pack
from transept.pipelines.base import CPU_BUDGET
from transept.pipelines.batching import Sample, batches
from transept.pipelines.sentence import POOLINGS, SentenceHead
from transept.pipelines.tasks.classification import TextClassificationPipeline, ZeroShotClassificationPipeline
from transept.pipelines.tasks.question_answering import QuestionAnsweringPipeline
from transept.pipelines.tasks.retrieval import TextEmbeddingPipeline, TextRankingPipeline
from transept.pipelines.tasks.tokens import FeatureExtractionPipeline, FillMaskPipeline, TokenClassificationPipeline
from transept.pipelines.text import TextPipeline

from .text_models import CONTEXT, POSITIONS, SIZES, SavedModel, check_close, fill, shuffled

FAMILIES = ["Bert", "Roberta", "XLMRoberta", "MPNet", "DistilBert", "Electra", "ModernBert"]
TEXTS = [*shuffled(20, 40), "", "Paris", "the"]
CONTEXTS = [CONTEXT, "Anna lives in New York.", CONTEXT[:80]]
TASKS: dict[str, tuple[Any, str, Any, dict[str, Any]]] = {
    "embedding": (TextEmbeddingPipeline, "Model", TEXTS, {}),
    "features": (FeatureExtractionPipeline, "Model", TEXTS, {}),
    "classes": (TextClassificationPipeline, "ForSequenceClassification", TEXTS, {"top_k": None}),
    "ranks": (TextRankingPipeline, "ForSequenceClassification", [{"query": "fox", "passages": TEXTS}], {"label": 1}),
    "entailment": (
        ZeroShotClassificationPipeline,
        "ForSequenceClassification",
        TEXTS,
        {"candidate_labels": "sports, new york"},
    ),
    "tokens": (TokenClassificationPipeline, "ForTokenClassification", TEXTS, {"ignore_labels": []}),
    "answers": (
        QuestionAnsweringPipeline,
        "ForQuestionAnswering",
        [{"question": "Where does Anna live?", "context": context} for context in CONTEXTS],
        {"top_k": 3},
    ),
    "masks": (FillMaskPipeline, "ForMaskedLM", ["The {} fox", "{}", "a dog and {} jumps over {} and the lazy dog"], {}),
}


def made(text_model: SavedModel, family: str, head: str, scale: float = 0.1) -> tuple[Any, Any]:
    """A model and a tokenizer of its family."""
    counts = "RoBERTa" if family in ("Roberta", "XLMRoberta", "MPNet") else "Bert"
    tokenizer = transept.AutoTokenizer.from_pretrained(text_model("RobertaModel" if counts == "RoBERTa" else "BertModel"))
    own: dict[str, Any] = SIZES
    if family == "DistilBert":
        own = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}
    elif family == "ModernBert":
        own = SIZES | {"local_attention": 8, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    labels = dict(enumerate(("contradiction", "entailment", "neutral")[: 2 if "Question" in head else 3]))
    cls = getattr(transept, f"{family}{head}")
    config = cls.config_class(
        vocab_size=len(tokenizer.get_vocab()),
        max_position_embeddings=POSITIONS + 2,
        pad_token_id=tokenizer.pad_token_id,
        id2label=labels,
        **own,
    )
    model = cls(config).eval()
    fill(model, scale)
    return model, tokenizer


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
def test_answers_are_those_of_padded_batches(
    monkeypatch: pytest.MonkeyPatch, text_model: SavedModel, task: str, family: str
) -> None:
    kind, head, inputs, options = TASKS[task]
    model, tokenizer = made(text_model, family, head)
    if task == "masks":
        inputs = [text.replace("{}", tokenizer.mask_token) for text in inputs]
    pipe = kind(model, tokenizer, **options)
    read: list[Any] = []
    forward = model.body.forward
    monkeypatch.setattr(model.body, "forward", lambda **given: (read.append(given), forward(**given))[1])
    assert not pipe.padded
    assert pipe.budget == CPU_BUDGET
    ours = pipe(inputs)
    assert all(given.get("attention_mask") is None for given in read)
    assert any(len(set(given.get("lengths") or ())) > 1 for given in read)
    computed = sum(given["input_ids"].numel() for given in read)
    read.clear()
    monkeypatch.setattr(TextPipeline, "padded", True)
    padded = pipe(inputs)
    assert all(given.get("lengths") is None for given in read)
    masks = [given["input_ids"] >= 0 if (mask := given.get("attention_mask")) is None else mask for given in read]
    assert computed == sum(int(mask.sum()) for mask in masks)
    if isinstance(padded, np.ndarray):
        assert np.abs(ours - padded).max() < 1e-6
    else:
        check_close(ours, padded, 2e-6)


@pytest.mark.parametrize("skip", [0, 1, 3])
@pytest.mark.parametrize("how", POOLINGS.values())
def test_pooling(how: str, skip: int) -> None:
    """By each way, with and without a prompt; of the second row, a prompt of three leaves nothing."""
    torch.manual_seed(0)
    head, lengths = SentenceHead((how,)), [7, 3 if how != "max" else 4, 4, 4]
    rows = [torch.randn(length, 8) for length in lengths]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = (torch.arange(7) < torch.tensor(lengths)[:, None]).long()
    found = head(torch.cat(rows)[None], None, skip, lengths)
    torch.testing.assert_close(found, head(padded, mask, skip), rtol=0, atol=1e-6)


@pytest.mark.skipif(not can_pack(), reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_has_the_same_vector_alone_and_in_company(text_model: SavedModel, family: str) -> None:
    model, tokenizer = made(text_model, family, "Model")
    embed = TextEmbeddingPipeline(pack(model), tokenizer)
    together = embed(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        assert np.array_equal(embed(text), vector)


def test_texts_that_hold_the_padding_token_are_padded(monkeypatch: pytest.MonkeyPatch, text_model: SavedModel) -> None:
    """Families that count positions by that token must give it the one that it has in the reference."""
    model, tokenizer = made(text_model, "Roberta", "Model")
    embed, texts = TextEmbeddingPipeline(model, tokenizer), ["the fox <pad> and the dog", "fox"]
    ours = embed(texts)
    monkeypatch.setattr(TextPipeline, "padded", True)
    assert np.array_equal(ours, embed(texts))


@pytest.mark.parametrize(("name", "more"), [("BertModel", {"is_decoder": True}), ("GPT2Model", {})])
def test_decoders_are_padded(text_model: SavedModel, name: str, more: dict[str, Any]) -> None:
    assert transept.pipeline("feature-extraction", text_model(name, **more)).padded


def test_a_budget_counts_real_tokens() -> None:
    samples = [Sample.of([0] * length) for length in (1, 9, 2, 8, 3)]
    assert batches(samples, 12, padded=False) == [[1], [3, 4], [2, 0]]
    assert batches(samples, 12) == [[1], [3], [4, 2, 0]]
    assert batches(samples, 12, 1, padded=False) == [[1], [3], [4], [2], [0]]
