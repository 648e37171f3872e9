"""Tasks over pictures: answers equal to the reference's, any kind of input, and errors that name their input."""

from __future__ import annotations

import io
import itertools
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from transept import pipeline
from transept.errors import FileError, FormatError, InputError, InputTypeError, TranseptError, UnsupportedError
from transept.pipelines.base import InputsError
from transept.pipelines.batching import read_ahead
from transept.pipelines.media import MOST_ITEMS
from transept.pipelines.tasks.classification import scores
from transept.pipelines.tasks.tokens import ImageFeatureExtractionPipeline
from transept.preprocess.image.vit import ViTImageProcessor

from .media_models import picture, png, save_image_model

SHARED = Path(__file__).resolve().parents[3] / "shared/data"
IMAGE = Image.fromarray(picture())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save_image_model(tmp_path_factory.mktemp("picture"))


@pytest.fixture(scope="module")
def classify(checkpoint) -> Any:
    return pipeline("image-classification", checkpoint)


def reference(task: str, directory: Path) -> Any:
    """The reference's pipeline; its own PIL backend, which ours is compared with bit by bit elsewhere."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    processor = transformers.ViTImageProcessorPil.from_pretrained(directory)
    return transformers.pipeline(task, model=str(directory), image_processor=processor)


def check_labels(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], tolerance: float = 1e-5) -> None:
    assert [answer["label"] for answer in ours] == [answer["label"] for answer in theirs]
    assert [answer["score"] for answer in ours] == pytest.approx([answer["score"] for answer in theirs], abs=tolerance)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": 2}, {"top_k": 100}, *({"function_to_apply": name} for name in ("softmax", "sigmoid", "none"))],
    ids=str,
)
def test_classification_equals_the_reference(checkpoint, classify, options):
    theirs = reference("image-classification", checkpoint)(IMAGE, **options)
    check_labels(classify(IMAGE, **options), theirs)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("classes", "problem"),
    [(7, "multi_label_classification"), (7, "single_label_classification"), (1, None), (1, "regression"), (3, "regression")],
)
def test_scores_by_the_kind_of_problem_equal_the_reference(tmp_path, classes, problem):
    save_image_model(tmp_path, classes=classes, problem_type=problem)
    check_labels(pipeline("image-classification", tmp_path)(IMAGE), reference("image-classification", tmp_path)(IMAGE))


def test_scores_of_large_logits_are_finite():
    logits = np.float32([-1e4, 0, 1e4])
    assert scores(logits, "sigmoid").tolist() == [0, 0.5, 1]
    assert scores(logits, "softmax").tolist() == [0, 0, 1]


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"pool": True}, {"image_processor_kwargs": {"image_mean": [0.1, 0.2, 0.3]}}], ids=str)
def test_features_equal_the_reference(tmp_path, options):
    save_image_model(tmp_path, "ViTModel")
    ours = pipeline("image-feature-extraction", tmp_path)(IMAGE, **options)
    theirs = reference("image-feature-extraction", tmp_path)(IMAGE, **options)
    assert np.shape(ours) == np.shape(theirs) == ((1, 32) if options.get("pool") else (1, 5, 32))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)  # of values up to 3


def test_features_of_a_classifier_have_no_pooler_that_was_never_trained(checkpoint):
    extract = pipeline("image-feature-extraction", checkpoint)  # and no warning, since none is needed
    assert isinstance(extract, ImageFeatureExtractionPipeline)
    states = extract(IMAGE, return_tensors=True)
    assert isinstance(states, torch.Tensor)
    assert states.shape == (1, 5, 32)
    with pytest.raises(InputError, match="no trained pooler"):
        extract(IMAGE, pool=True)


def test_every_kind_of_input_gives_the_same_answer(classify, tmp_path):
    data = png(picture())
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    kinds = [IMAGE, path, str(path), data, io.BytesIO(data), {"bytes": data}, {"path": str(path)}, picture()]
    kinds += [torch.from_numpy(picture()), picture().transpose(2, 0, 1)]
    expected = classify(IMAGE)
    assert len(expected) == 5
    for kind in kinds:
        assert classify(kind) == expected
    kinds[4].seek(0)
    assert classify(kinds) == [expected] * len(kinds)


def test_an_array_of_several_pictures_is_a_list(classify):
    batch = np.stack([picture(seed) for seed in range(3)])
    answers = classify(batch)
    assert isinstance(answers, list)
    for answer, one in zip(answers, batch, strict=True):
        check_labels(answer, classify(one), 1e-6)


def test_batches_equal_one_by_one_in_any_order(classify):
    pictures = [picture(seed, 20 + 7 * (seed % 5), 30 + 11 * (seed % 3)) for seed in range(70)]
    alone = [classify(one) for one in pictures]
    order = np.random.default_rng(0).permutation(len(pictures)).tolist()
    for shown in (range(len(pictures)), order):
        for answer, index in zip(classify([pictures[i] for i in shown]), shown, strict=True):
            check_labels(answer, alone[index], 1e-6)  # rounding of another batch size
    for answer, index in zip(classify((pictures[i] for i in order), top_k=5), order, strict=True):
        check_labels(answer, alone[index], 1e-6)


def test_flat_images_several_sizes_are_batched_by_size(tmp_path):
    save_image_model(tmp_path, "ViTModel")
    processor = ViTImageProcessor(do_resize=False)
    extract = pipeline("image-feature-extraction", tmp_path, image_processor=processor)
    with pytest.raises(InputsError) as caught:
        extract([picture(0, 30, 30), picture(1, 45, 30), picture(2, 30, 30)])
    assert caught.value.positions == [1]  # the model is for 30 x 30
    assert "45 x 30" in str(caught.value)


@pytest.mark.filterwarnings("ignore:These images hold fractions")
def test_bad_pictures_are_reported_by_position_and_lose_no_answer(classify, tmp_path):
    data = png(picture())
    (tmp_path / "notes.txt").write_text("no picture")
    bad = {
        1: (data[: len(data) // 2], FormatError, "truncated"),
        2: (str(tmp_path / "missing.png"), FileError, "no such image"),
        4: (str(tmp_path / "notes.txt"), FormatError, "not read"),
        5: (b"", FormatError, "not read"),
        6: ("https://example.com/cat.png", InputError, "URL"),
        8: (17, InputTypeError, "int"),
        9: (np.zeros((0, 4, 3), np.uint8), InputError, "cannot be used"),
        10: (np.full((8, 8, 3), np.nan), InputError, "nan"),
        11: ([IMAGE, IMAGE], InputError, "flat list"),
        12: (str(tmp_path), FileError, "no such image"),
    }
    inputs = [bad[i][0] if i in bad else IMAGE for i in range(14)]
    with pytest.raises(InputsError) as caught:
        classify(inputs)
    assert caught.value.positions == sorted(bad)
    expected = classify(IMAGE)
    for answers in (caught.value.answers, classify(inputs, on_error="return")):
        for index, answer in enumerate(answers):
            if index in bad:
                assert isinstance(answer, bad[index][1])
                assert bad[index][2] in str(answer)
            else:
                check_labels(answer, expected, 1e-6)
    with pytest.raises(FormatError, match="truncated"):
        classify(bad[1][0])
    stream = classify(iter(inputs))
    check_labels(next(stream), expected, 1e-6)
    with pytest.raises(FormatError, match="input 1"):
        next(stream)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topk": 3}, "'top_k'"),
        ({"top_k": 0}, "`top_k`"),
        ({"top_k": True}, "`top_k`"),
        ({"top_k": "3"}, "`top_k`"),
        ({"function_to_apply": "softmx"}, "'softmax'"),
        ({"on_error": "ignore"}, "on_error"),
    ],
    ids=str,
)
def test_wrong_options_are_named(classify, options, message):
    with pytest.raises(InputError, match=message):
        classify(IMAGE, **options)


def test_an_option_of_the_processor_is_checked_for_each_picture(checkpoint):
    extract = pipeline("image-feature-extraction", checkpoint)
    with pytest.raises(InputError, match="image_mean"):
        extract(IMAGE, image_processor_kwargs={"image_mena": 0.5})


def test_models_that_read_something_else_are_refused(checkpoint, tmp_path, classify):
    from transept.models.bert import BertConfig, BertForSequenceClassification

    tiny = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    text = BertForSequenceClassification(tiny)
    with pytest.raises(InputTypeError, match=r"BertForSequenceClassification.*ForImageClassification"):
        pipeline("image-classification", text, image_processor=classify.image_processor)
    with pytest.raises(InputTypeError, match="`image_processor` must be passed"):
        pipeline("image-classification", classify.model)
    text.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="ForImageClassification"):
        pipeline("image-classification", tmp_path)
    with pytest.raises(InputError, match="no default model"):
        pipeline("image-classification")
    (checkpoint / "preprocessor_config.json").rename(checkpoint / "hidden.json")
    try:
        with pytest.raises(FileError, match="preprocessor_config"):
            pipeline("image-classification", checkpoint)
    finally:
        (checkpoint / "hidden.json").rename(checkpoint / "preprocessor_config.json")


def test_a_stream_is_consumed_lazily_and_forgotten(classify):
    alive: list[weakref.ref[Any]] = []

    def endless():
        for seed in itertools.count():
            one = picture(seed)
            alive.append(weakref.ref(one))
            yield one

    stream = classify(endless())
    assert not alive
    next(stream)
    assert len(alive) == MOST_ITEMS
    for _ in range(5 * MOST_ITEMS):
        next(stream)
    assert len(alive) <= 7 * MOST_ITEMS
    assert sum(ref() is not None for ref in alive) <= 2 * MOST_ITEMS


def test_pieces_end_early_where_inputs_are_large():
    sizes = [len(piece) for piece in read_ahead([bytes(40)] * 10, most=4, most_bytes=100)]
    assert sizes == [3, 3, 3, 1]
    assert [len(piece) for piece in read_ahead(["no such file"] * 10, most=4, most_bytes=100)] == [4, 4, 2]


def test_progress_is_shown_on_a_terminal_only(classify, capsys, monkeypatch):
    classify([IMAGE] * 3)
    assert capsys.readouterr().err == ""
    classify([IMAGE] * 3, progress=True)
    assert "image-classification" in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    classify([IMAGE] * 3, progress=False)
    assert capsys.readouterr().err == ""


def test_no_input_gives_no_answer(classify):
    assert classify([]) == []
    assert list(classify(iter([]))) == []


def test_bfloat16_answers_are_near(checkpoint, classify):
    rounded = pipeline("image-classification", checkpoint, dtype="bfloat16")
    assert rounded.model.dtype == torch.bfloat16
    check_labels(sorted(rounded(IMAGE, top_k=None), key=str), sorted(classify(IMAGE, top_k=None), key=str), 0.05)
    extract = pipeline("image-feature-extraction", checkpoint, dtype="bfloat16")
    assert np.shape(extract(IMAGE)) == (1, 5, 32)


@pytest.mark.real_data
def test_real_photographs(classify):
    if not (SHARED / "images").is_dir():
        pytest.skip(f"real photographs are missing: {SHARED / 'images'}")
    paths = sorted(path for path in (SHARED / "images").rglob("*") if path.suffix in (".png", ".jpg", ".webp", ".gif"))
    answers = classify(paths, on_error="return")
    failed = [path.name for path, answer in zip(paths, answers, strict=True) if isinstance(answer, TranseptError)]
    assert len(paths) > 20
    assert failed == ["truncated_image.png"]
    alone = [classify(path) for path in paths[:10]]
    for ours, one in zip(answers[:10], alone, strict=True):
        check_labels(ours, one, 1e-6)
