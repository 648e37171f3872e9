"""What no task over text can answer: one clear error each, by position, that loses no other answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transept import pipeline
from transept.errors import InputError, InputTypeError, TranseptError
from transept.pipelines.base import InputsError

from .text_models import SavedModel, check_close, long_text

MODELS = {
    "feature-extraction": "BertModel",
    "fill-mask": "BertForMaskedLM",
    "question-answering": "BertForQuestionAnswering",
    "text-classification": "BertForSequenceClassification",
    "text-embedding": "BertModel",
    "text-ranking": "BertForSequenceClassification",
    "text-similarity": "BertModel",
    "token-classification": "BertForTokenClassification",
    "zero-shot-classification": "BertModel",
}
BAD = [None, 5, 2.5, b"bytes", "half \ud800 of a pair", object(), {"other": "x"}, ["list", "of", "texts"]]


def whole(task: str, text: Any) -> Any:
    """An input of a task that holds a text."""
    match task:
        case "fill-mask":
            return f"{text} [MASK]" if isinstance(text, str) else text
        case "question-answering":
            return {"question": "who is the fox?", "context": text}
        case "text-ranking":
            return {"query": text, "passages": ["one", "two"]}
        case "text-similarity":
            return (text, "another one")
    return text


@pytest.fixture(params=MODELS)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(text_model: SavedModel, task: str) -> Any:
    settings = {"num_labels": 1} if task == "text-ranking" else {}
    options = {"candidate_labels": ["a", "b"]} if task == "zero-shot-classification" else {}
    return pipeline(task, text_model(MODELS[task], **settings), **options)


def lists(answer: Any) -> Any:
    """Arrays as lists, so that answers of all tasks can be compared."""
    return answer.tolist() if hasattr(answer, "tolist") else answer


def test_what_is_no_text_is_named_by_position_and_loses_nothing(task: str, run: Any) -> None:
    good = [whole(task, "the fox is here"), whole(task, "x")]
    inputs = [good[0], *(whole(task, bad) for bad in BAD), good[1]]
    with pytest.raises(InputsError, match=f"{len(BAD)} of {len(inputs)} inputs .*position 1") as caught:
        run(inputs)
    assert caught.value.positions == list(range(1, len(BAD) + 1))
    answers = caught.value.answers
    for place, item in ((0, good[0]), (-1, good[1])):
        alone = next(iter(run(iter([item]))))
        check_close(lists(answers[place]), lists(alone))
    for answer in answers[1:-1]:
        assert isinstance(answer, InputError)
        assert answer.message


def test_a_stream_names_the_position_and_goes_on(task: str, run: Any) -> None:
    answers = run(iter([whole(task, "one"), whole(task, None), whole(task, "two")]))
    next(answers)
    with pytest.raises(InputTypeError, match="^input 1: "):
        next(answers)
    assert next(answers) is not None


def test_an_empty_text_is_valid_where_special_tokens_make_a_row(task: str, run: Any) -> None:
    if task == "question-answering":
        with pytest.raises(InputError, match="the context is empty"):
            run(whole(task, ""))
    else:
        assert run([whole(task, ""), whole(task, "x")], on_error="return")[0] is not None


def test_a_text_without_tokens_is_an_error(text_model: SavedModel) -> None:
    """No special tokens, no text: there is nothing for the model to read."""
    extract = pipeline("feature-extraction", text_model("GPT2Model"))
    found = extract(["a fox", "", "x"], on_error="return")
    assert [isinstance(answer, InputError) for answer in found] == [False, True, False]
    assert "makes no tokens of it" in str(found[1])
    with pytest.raises(InputError, match="no tokens"):
        pipeline("ner", text_model("GPT2ForTokenClassification"))("")


@pytest.mark.filterwarnings("ignore:a text of .* is cut")
def test_a_long_text_is_an_error_or_is_read_as_the_task_says(task: str, run: Any) -> None:
    answer = run([whole(task, long_text(200)), whole(task, "x")], on_error="return")[0]
    if task in ("feature-extraction", "text-classification", "fill-mask"):
        assert isinstance(answer, InputError)
        assert "tokens, but the model takes 64" in str(answer)
    else:
        assert not isinstance(answer, TranseptError)


def test_a_weight_that_is_no_number_spoils_the_texts_that_use_it_alone(task: str, run: Any) -> None:
    table = run.model.get_input_embeddings().weight
    fox = run.tokenizer.get_vocab()["wolfgang"]
    with torch.no_grad():
        kept = table[fox].clone()
        table[fox] = torch.nan
    try:
        texts = ["a lazy dog", "it is wolfgang here", "paris", "wolfgang wolfgang"]
        with pytest.raises(InputsError, match=r"computes nan.*float32") as caught:
            run([whole(task, text) for text in texts])
        # A tied decoder needs the weight for every text.
        assert caught.value.positions == ([0, 1, 2, 3] if task == "fill-mask" else [1, 3])
    finally:
        with torch.no_grad():
            table[fox] = kept


def test_options_that_do_not_exist_are_named(run: Any) -> None:
    with pytest.raises(InputError, match="has no option 'batchsize'"):
        run("x", batchsize=3)
