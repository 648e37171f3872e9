"""Questions answered by encoder–decoders: in words of their own, and by pieces of the context."""

from __future__ import annotations

import string
from typing import Any

import pytest
import torch

import transept
from transept import pipeline
from transept.errors import InputError, InputTypeError
from transept.pipelines.tasks.question_answering import GenerativeQuestionAnsweringPipeline, locate

from .writers import VOCABULARY, model, pipe, tokenizer

CONTEXTS = ["Anna lives in New York.", "Wolfgang was born in Berlin in 1970, and works near the river.", string.ascii_letters]
ITEMS = [
    {"question": question, "context": context} for question, context in zip(("Who?", "Where to", "b?"), CONTEXTS, strict=True)
]
WRITERS = ["T5ForConditionalGeneration", "BartForConditionalGeneration", "MBartForConditionalGeneration"]
# All but letters, so that a random model's answers are text.
OTHERS = [index for token, index in VOCABULARY.items() if token not in string.ascii_letters]


def same(ours: Any, theirs: Any) -> None:
    """Equal, scores up to the rounding of sums in batches of another shape."""
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(other, list):
            same(one, other)
        else:
            assert {**one, "score": 0} == {**other, "score": 0}
            assert one["score"] == pytest.approx(other["score"], rel=1e-4)


@pytest.mark.parametrize("name", WRITERS)
def test_writers_answer_in_their_words(name: str) -> None:
    ask = pipe("question-answering", name, suppress_tokens=OTHERS, max_answer_len=1)
    assert isinstance(ask, GenerativeQuestionAnsweringPipeline)
    answers = ask(ITEMS)
    same(answers, [ask(item) for item in ITEMS])
    for item, answer in zip(ITEMS, answers, strict=True):
        assert list(answer) == ["score", "start", "end", "answer"]
        assert len(answer["answer"]) == 1
        place = item["context"].lower().find(answer["answer"].lower())
        assert (answer["start"], answer["end"]) == ((None, None) if place < 0 else (place, place + 1))
    assert answers[2]["start"] is not None


@torch.no_grad()
@pytest.mark.parametrize("name", WRITERS)
def test_the_score_is_how_likely_the_answer_is(name: str) -> None:
    ask = pipe("question-answering", name, suppress_tokens=OTHERS)
    answer = ask(ITEMS[0], max_answer_len=3)
    row = ask.prepare(ITEMS[:1], ask.options)[0][0].inputs["input_ids"]
    ids = [VOCABULARY[letter] for letter in answer["answer"]]
    start = ask.model.config.decoder_start_token_id
    logits = ask.model(torch.tensor([row]), decoder_input_ids=torch.tensor([[start, *ids[:-1]]])).logits
    chances = logits.softmax(-1)[0, range(3), ids]
    assert answer["score"] == pytest.approx(float(chances.prod()), rel=1e-4)


@torch.no_grad()
def test_the_end_of_an_answer_counts_and_what_follows_it_does_not() -> None:
    ask = pipe("question-answering", "BartForConditionalGeneration")
    given = {"input_ids": torch.tensor([[0, 9, 8, 2]] * 2)}
    a, b = 100, 101
    logits = ask.model(**given, decoder_input_ids=torch.tensor([[2, 0, a, b, 2]] * 2)).logits.log_softmax(-1)[0]
    rows = torch.tensor([[2, 0, a, b, 2, 1], [2, 0, a, b, 1, 1]])  # the second ended at its greatest length
    text = float(logits[1, a] + logits[2, b])
    found = ask.chances(given, rows, [2])
    assert found[0] == pytest.approx(torch.tensor(text + float(logits[3, 2])).exp().item(), rel=1e-4)
    assert found[1] == pytest.approx(torch.tensor(text).exp().item(), rel=1e-4)


def test_a_family_says_how_it_is_asked() -> None:
    item = {"question": "Who?", "context": "Anna {0}."}
    for family, text in (("T5", "question: Who? context: Anna {0}.</s>"), ("Bart", "<s>Who?</s></s>Anna {0}.</s>")):
        ask = pipe("question-answering", f"{family}ForConditionalGeneration")
        rows = ask.prepare([item], ask.options)
        assert ask.tokenizer.decode(rows[0][0].inputs["input_ids"]) == text


def test_several_answers_come_best_first() -> None:
    ask = pipe("question-answering", "BartForConditionalGeneration", suppress_tokens=OTHERS, max_answer_len=2)
    several = ask(ITEMS, top_k=4)
    same(several, [ask(item, top_k=4) for item in ITEMS])
    for answers in several:
        assert 1 < len(answers) <= 4
        scores = [answer["score"] for answer in answers]
        assert scores == sorted(scores, reverse=True)
        assert len({answer["answer"].lower() for answer in answers}) == len(answers)


def test_long_contexts_are_cut_where_asked_and_bad_inputs_lose_no_other() -> None:
    ask = pipe("question-answering", "BartForConditionalGeneration", max_answer_len=4)
    with pytest.raises(InputError, match="truncation"):
        ask("Who?", "x" * 600)
    rows = ask.prepare([{"question": "Who?", "context": "x" * 600}], ask.with_options({"truncation": True}))[0]
    assert ask.tokenizer.decode(rows[0].inputs["input_ids"]) == f"<s>Who?</s></s>{'x' * 504}</s>"
    found = ask([ITEMS[0], {"question": "Who?"}, {"question": "", "context": "x"}], on_error="return")
    same(found[:1], [ask(ITEMS[0])])
    assert [type(one) for one in found[1:]] == [InputTypeError, InputError]
    for wrong in ({"top_k": 0}, {"max_answer_len": 0}, {"doc_stride": 3}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            ask(ITEMS[0], **wrong)


def test_the_class_that_a_config_names_decides(tmp_path: Any) -> None:
    for name, written in (("BartForConditionalGeneration", True), ("BartForQuestionAnswering", False)):
        folder = tmp_path / name
        model(name).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        ask = pipeline("question-answering", model=folder)
        assert isinstance(ask, GenerativeQuestionAnsweringPipeline) is written
        assert isinstance(ask.model, transept.BartForConditionalGeneration) is written


@pytest.mark.parametrize(
    ("answer", "context", "place"),
    [
        ("New York", "in new\n york", (3, 12)),
        ("a.c", "abc a.c", (4, 7)),
        ("", "abc", (0, 0)),
        ("İ", "x İ", (2, 3)),
        ("lost", "found", None),
    ],
)
def test_answers_are_found_in_whatever_case_and_spacing(answer: str, context: str, place: tuple[int, int] | None) -> None:
    assert locate(answer, context) == place


@pytest.mark.parametrize("name", [f"{family}ForQuestionAnswering" for family in ("T5", "Bart", "MBart")])
def test_extractive_heads_answer_by_pieces_like_each_alone(name: str) -> None:
    ask = pipe("question-answering", name)
    long = {"question": "When?", "context": " ".join(CONTEXTS * 4)}
    items = [*ITEMS, long]
    options = {"top_k": 4, "max_seq_len": 96, "align_to_words": False}
    together = ask(items, **options)
    same(together, [ask(item, **options) for item in items])
    for item, answers in zip(items, together, strict=True):
        assert len(answers) == 4
        for answer in answers:
            assert item["context"][answer["start"] : answer["end"]] == answer["answer"]
