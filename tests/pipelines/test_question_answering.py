"""Answers as pieces of a context: those of the reference's 4.57, the last with this task, and of their definition."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import transept
from transept import pipeline
from transept.errors import InputError, InputTypeError
from transept.pipelines.base import InputsError
from transept.pipelines.tasks.question_answering import best_spans

from .text_models import CONTEXT, SavedModel, check_close, long_text

CONTEXTS = {
    "short": CONTEXT,
    "long": long_text(120, 3),
    "accents": "Zoë's café — naïve 🙂 Straße in Zürich, 1970. 東京",
}
QUESTIONS = {"short": "Where was Wolfgang born?", "long": "Who sells old maps in New York", "accents": "when"}
KEPT = json.loads(Path(__file__).with_name("question_answering_4_57.json").read_text(encoding="utf-8"))
NAME = "BertForQuestionAnswering"


@pytest.fixture(scope="module")
def ask(text_model: SavedModel) -> Any:
    return pipeline("question-answering", text_model(NAME))


@pytest.mark.parametrize("name", ["BertForQuestionAnswering", "RobertaForQuestionAnswering"])
@pytest.mark.parametrize("kind", CONTEXTS)
def test_answers_are_the_references(text_model: SavedModel, name: str, kind: str) -> None:
    """Kept from 4.57.6 with tokenizers 0.22.2: ``pipeline("question-answering")(question=..., context=..., **options)``."""
    answer = pipeline("question-answering", text_model(name))
    cases = [case for case in KEPT if (case["model"], case["context"]) == (name, kind)]
    assert len(cases) == 7
    for case in cases:
        check_close(answer(question=QUESTIONS[kind], context=CONTEXTS[kind], **case["options"]), case["answers"])


@pytest.mark.parametrize("longest", [1, 3, 15])
def test_the_best_answer_is_that_of_the_definition(text_model: SavedModel, ask: Any, longest: int) -> None:
    """Of all spans of a short context, the one with the highest product of two softmaxes, tried one by one."""
    model = transept.BertForQuestionAnswering.from_pretrained(text_model(NAME))
    question, context = "where?", "Anna lives in New York, unbelievably."
    encoded = ask.tokenizer(question, context, return_offsets_mapping=True)
    with torch.inference_mode():
        output = model(torch.tensor([encoded["input_ids"]]), token_type_ids=torch.tensor([encoded["token_type_ids"]]))
    inside = [i for i, of in enumerate(encoded.sequence_ids(0)) if of == 1]
    shares = [0, *inside]  # the class token is for questions without an answer
    start = dict(zip(shares, output.start_logits[0, shares].softmax(0).tolist(), strict=True))
    end = dict(zip(shares, output.end_logits[0, shares].softmax(0).tolist(), strict=True))
    spans = [(start[s] * end[e], s, e) for s, e in itertools.product(inside, inside) if s <= e < s + longest]
    score, first, last = max(spans)
    begin, behind = encoded["offset_mapping"][first][0], encoded["offset_mapping"][last][1]
    ours = ask(question, context, max_answer_len=longest, align_to_words=False)
    check_close(ours, {"score": score, "start": begin, "end": behind, "answer": context[begin:behind]})
    null = ask(question, context, handle_impossible_answer=True, top_k=500)
    assert {"score": pytest.approx(start[0] * end[0], abs=1e-6), "start": 0, "end": 0, "answer": ""} in null


def test_a_long_context_is_read_to_its_end(ask: Any) -> None:
    context = long_text(400, 5)
    answers = ask("where", context, top_k=300, doc_stride=8, max_seq_len=32)
    assert max(answer["end"] for answer in answers) > len(context) * 0.95
    assert min(answer["start"] for answer in answers) < len(context) * 0.05
    for answer in answers:
        assert context[answer["start"] : answer["end"]] == answer["answer"]


def test_ways_to_call(ask: Any) -> None:
    question, context = QUESTIONS["short"], CONTEXT
    item = {"question": question, "context": context}
    expected = ask(item)
    assert set(expected) == {"score", "start", "end", "answer"}
    for answer in (ask(question, context), ask(question=question, context=context), ask([item]), ask([question], [context])):
        check_close(answer, expected)
    several = ask(question=[question, "Who?"], context=context)
    check_close(several[0], expected)
    check_close(ask(question=[question, "Who?"], context=[context, "Anna and Peter."])[1], ask("Who?", "Anna and Peter."))
    check_close(ask([item, item]), [expected, expected])
    check_close(list(ask(item for _ in range(3))), [expected] * 3)


def test_bad_calls_say_what_is_missing(ask: Any) -> None:
    with pytest.raises(InputError, match="2 questions, but 1 contexts"):
        ask(question=["a", "b"], context=["c"])
    with pytest.raises(InputError, match="needs a context"):
        ask(question="a")
    with pytest.raises(InputError, match="needs a context"):
        ask()
    with pytest.raises(InputTypeError, match="texts or lists of texts"):
        ask(question=5, context="c")
    with pytest.raises(InputTypeError, match='"question"'):
        ask("only a question")


def test_bad_inputs_keep_the_others_answers(ask: Any) -> None:
    good = {"question": "Who?", "context": "Anna."}
    bad = [
        {"question": "", "context": "x"},
        {"question": "x", "context": ""},
        {"question": "x"},
        {"question": 1, "context": "x"},
    ]
    with pytest.raises(InputsError) as caught:
        ask([good, *bad, good])
    assert caught.value.positions == [1, 2, 3, 4]
    check_close(caught.value.answers[0], ask(good))
    check_close(caught.value.answers[5], ask(good))
    assert [str(error)[:24] for error in caught.value.answers[1:3]] == ["the question is empty.", "the context is empty."]


def test_a_question_that_leaves_no_room_is_an_error_until_it_is_cut(ask: Any) -> None:
    question = long_text(80)
    with pytest.raises(InputError, match="no room for windows"):
        ask(question, CONTEXT)
    assert ask(question, CONTEXT, max_question_len=10)["answer"] in CONTEXT
    assert ask("a b c d", CONTEXT, max_question_len=3) == ask("a b c", CONTEXT)


@pytest.mark.parametrize("name", ["top_k", "max_answer_len", "max_seq_len", "max_question_len"])
def test_options_are_checked(ask: Any, name: str) -> None:
    with pytest.raises(InputError, match=name):
        ask("Who?", "Anna.", **{name: 0})


def test_best_spans_are_those_of_a_plain_search() -> None:
    stream = np.random.default_rng(0)
    for size, longest, most in ((1, 1, 1), (7, 3, 4), (30, 5, 12), (30, 40, 2000)):
        start, end = (stream.random(size).astype(np.float32) * (stream.random(size) > 0.3) for _ in range(2))
        plain = [(start[s] * end[e], s, e) for s in range(size) for e in range(s, min(size, s + longest))]
        expected = sorted((span for span in plain if span[0] > 0), reverse=True)[:most]
        found = best_spans(start.astype(np.float32), end.astype(np.float32), longest, most)
        assert [score for score, _, _ in found] == pytest.approx([float(score) for score, _, _ in expected])
        assert {span[1:] for span in found} == {span[1:] for span in expected}


def test_a_model_that_pads_on_the_left_reads_the_context_first(text_model: SavedModel) -> None:
    answer = pipeline("question-answering", text_model("GPT2ForQuestionAnswering"))
    answer.tokenizer.padding_side = "left"
    found = answer("Who works in Paris?", CONTEXT, top_k=5)
    assert all(CONTEXT[one["start"] : one["end"]] == one["answer"] for one in found)
    rows = answer.prepare([{"question": "Who?", "context": "Anna."}], answer.options)[0]
    assert answer.tokenizer.decode(rows[0].inputs["input_ids"]) == "Anna.Who?"
