"""Questions about pages: as the reference answers them, from words that are given, and from words that are read."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.harness import REPEATED
from transept import pipeline
from transept.core.auto import AutoModelForDocumentQuestionAnswering
from transept.errors import InputError, MissingExtraError, TranseptError
from transept.pipelines.base import InputsError
from transept.pipelines.tasks.document import DocumentQuestionAnsweringPipeline

from .document_models import INVOICE, page, save, tiny_processor, tiny_reader

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("ignore")]

SHORT, LONG = page(INVOICE), page(INVOICE * 3, seed=1)
QUESTIONS = ["What is the total?", "Who  is it for"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 4, "max_answer_len": 6},
    {"top_k": 3, "handle_impossible_answer": True, "max_seq_len": 90, "doc_stride": 20},
    {"top_k": 2, "max_seq_len": 60, "max_answer_len": 30},
]


def reference(directory: Path) -> Any:
    """The reference's pipeline, made to show its model the pictures, which it passes under a name that no model reads."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    processor = transformers.LayoutLMv3ImageProcessorPil.from_pretrained(directory)
    theirs = transformers.pipeline("document-question-answering", model=str(directory), image_processor=processor, device="cpu")

    def seen(model: Any, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        picture = inputs.pop("image", None)
        return args, inputs | ({} if picture is None else {"pixel_values": picture})

    def cut(model: Any, args: Any, inputs: dict[str, Any], output: Any) -> Any:
        for name in ("start_logits", "end_logits"):
            output[name] = output[name][:, : inputs["input_ids"].shape[1]]
        return output

    theirs.model.register_forward_pre_hook(seen, with_kwargs=True)
    theirs.model.register_forward_hook(cut, with_kwargs=True)
    return theirs


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    save(folder, apply_ocr=False)
    return folder


@pytest.fixture(scope="module")
def both(directory: Path) -> tuple[Any, Any]:
    return pipeline("document-question-answering", directory), reference(directory)


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other | {"score": pytest.approx(other["score"], rel=1e-4)}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shown", [True, False], ids=["picture", "words alone"])
def test_answers_equal_the_reference(both: tuple[Any, Any], options: dict[str, Any], shown: bool) -> None:
    ours, theirs = both
    pages = [
        {"question": question, "word_boxes": words} | ({"image": picture} if shown else {})
        for picture, words in (SHORT, LONG)
        for question in QUESTIONS
    ]
    found = ours(pages, **options)
    for each, answers in zip(pages, found, strict=True):
        same(answers, theirs(dict(each), **options))
    same(ours(pages[0], **options), found[0])
    if len(options) > 2:  # the windows of a page count together
        assert len(LONG[1]) * 4 > options["max_seq_len"]


def test_a_page_and_its_question_by_name_and_by_place(directory: Path) -> None:
    ask = pipeline("document-question-answering", directory)
    picture, words = SHORT
    whole = ask({"image": picture, "question": QUESTIONS[0], "word_boxes": words})
    assert ask(picture, QUESTIONS[0], words) == whole
    assert ask(image=picture, question=QUESTIONS[0], word_boxes=words) == whole
    assert ask(picture, QUESTIONS, words)[0][0]["answer"] == whole[0]["answer"]
    (answer,) = whole
    assert answer["answer"] == " ".join(word for word, _ in words[answer["start"] : answer["end"] + 1])
    assert ask(None, QUESTIONS[0], words) != whole  # the picture counts


def test_the_task_is_told_by_the_model(directory: Path) -> None:
    assert type(pipeline(model=directory)) is DocumentQuestionAnsweringPipeline
    parts = tiny_processor(apply_ocr=False)
    ask = pipeline("document-question-answering", tiny_reader(), processor=parts)
    (found,), (again,) = (each(SHORT[0], QUESTIONS[0], SHORT[1]) for each in (ask, pipeline(model=directory)))
    assert found | {"score": 0} == again | {"score": 0}
    assert found["score"] == pytest.approx(again["score"], rel=REPEATED)
    assert type(AutoModelForDocumentQuestionAnswering.from_pretrained(directory)) is type(tiny_reader())


def test_words_are_read_where_none_are_given(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    module = types.ModuleType("pytesseract")

    def image_to_data(image: Any, lang: Any, output_type: str, config: str) -> dict[str, list[Any]]:
        asked.append((image.size, lang, config))
        sides = [box for _, box in SHORT[1]]
        across, down = image.width / 1000, image.height / 1000
        found: dict[str, list[Any]] = {"text": [word for word, _ in SHORT[1]]}
        found |= {"left": [(x0 + 0.5) * across for x0, *_ in sides], "top": [(y0 + 0.5) * down for _, y0, *_ in sides]}
        found["width"] = [(x1 - x0) * across for x0, _, x1, _ in sides]
        return found | {"height": [(y1 - y0) * down for _, y0, _, y1 in sides]}

    module.image_to_data = image_to_data  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pytesseract", module)
    for settings in ({"apply_ocr": True, "ocr_lang": "deu"}, {"apply_ocr": False}):
        ask = pipeline("document-question-answering", tiny_reader(), processor=tiny_processor(**settings))
        given = ask(SHORT[0], QUESTIONS[0], SHORT[1])
        assert not asked
        assert ask(SHORT[0], QUESTIONS[0]) == given
        assert asked == [((420, 300), settings.get("ocr_lang"), "")]
        asked.clear()
        ask(SHORT[0], QUESTIONS[0], lang="fra", tesseract_config="--psm 6")
        assert asked == [((420, 300), "fra", "--psm 6")]
        asked.clear()
    monkeypatch.setitem(sys.modules, "pytesseract", None)
    with pytest.raises(MissingExtraError, match="pytesseract"):
        ask(SHORT[0], QUESTIONS[0])


def test_long_questions_are_cut_by_words(directory: Path) -> None:
    ask = pipeline("document-question-answering", directory)
    for most, kept in ((12, "What is the"), (5, "What"), (1, "What"), (100, QUESTIONS[0])):
        assert ask(None, QUESTIONS[0], SHORT[1], max_question_len=most) == ask(None, kept, SHORT[1])


def test_blank_pages_hold_no_answer(directory: Path) -> None:
    ask = pipeline("document-question-answering", directory)
    assert ask(SHORT[0], QUESTIONS[0], []) == []
    (answer,) = ask(SHORT[0], QUESTIONS[0], [], handle_impossible_answer=True)
    assert answer == {"score": pytest.approx(1.0), "answer": "", "start": 0, "end": 0}


WRONG: list[tuple[Any, str]] = [
    ("page.png", "a page and a question"),
    ({"image": SHORT[0]}, "a page and a question"),
    ({"question": "What?"}, "neither a picture nor words"),
    ({"question": " ", "word_boxes": SHORT[1]}, "the question is empty"),
    ({"question": 5, "word_boxes": SHORT[1]}, "a text was"),
    ({"question": "What?", "word_boxes": "abc"}, "a list of pairs"),
    ({"question": "What?", "word_boxes": ["abc"]}, "no word with its box at 0"),
    ({"question": "What?", "word_boxes": [("abc", [0, 0, 5000, 1])]}, "word 0 of page 0"),
    ({"question": "What?", "word_boxes": [("abc", [10, 0, 5, 1])]}, "negative width"),
    ({"question": "What?" * 60, "word_boxes": SHORT[1]}, "no room for windows"),
    ({"question": "What?", "image": "absent.png", "word_boxes": SHORT[1]}, "absent.png"),
    ({"question": "What?", "image": torch.zeros(3, 0, 5), "word_boxes": SHORT[1]}, ""),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG, ids=[str(place) for place in range(len(WRONG))])
def test_wrong_pages_are_named(directory: Path, wrong: Any, told: str) -> None:
    ask = pipeline("document-question-answering", directory)
    with pytest.raises(TranseptError, match=told):
        ask(wrong)
    good = {"question": QUESTIONS[0], "word_boxes": SHORT[1]}
    with pytest.raises(InputsError) as caught:
        ask([good, wrong])
    assert caught.value.positions == [1]
    assert caught.value.answers[0] == ask(good)


def test_wrong_options_and_models(directory: Path) -> None:
    ask = pipeline("document-question-answering", directory)
    for wrong in ({"top_k": 0}, {"max_answer_len": 0}, {"doc_stride": -1}, {"topk": 1}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            ask(SHORT[0], "What?", SHORT[1], **wrong)
    with pytest.raises(InputError, match="no room for windows that share 80"):
        ask(None, "What?", LONG[1], max_seq_len=60, doc_stride=80)
