"""Boxes, segments and depth of pictures: their form, batches, errors, and what a model and its processor must have."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from transept import pipeline
from transept.core.auto import (
    AutoModelForDepthEstimation,
    AutoModelForImageSegmentation,
    AutoModelForObjectDetection,
    AutoModelForSemanticSegmentation,
)
from transept.errors import FormatError, InputError, InputTypeError, UnsupportedError
from transept.pipelines.base import InputsError
from transept.pipelines.draw import draw
from transept.preprocess.image.detr import DetrImageProcessor
from transept.preprocess.image.dpt import DPTImageProcessor
from transept.preprocess.image.segformer import SegformerImageProcessor
from transept.preprocess.image.vit import ViTImageProcessor

from .media_models import picture, png, save_image_model
from .vision_models import LABELS, tiny_depth_anything, tiny_detr, tiny_dpt, tiny_segformer

SIZE = {"height": 48, "width": 64}
PICTURES = [picture(seed, 30 + 7 * (seed % 5), 40 + 11 * (seed % 3)) for seed in range(12)]


@pytest.fixture(scope="module")
def detect() -> Any:
    return pipeline("object-detection", tiny_detr(), image_processor=DetrImageProcessor(size=SIZE), threshold=0.3)


@pytest.fixture(scope="module")
def segment() -> Any:
    model = tiny_detr("DetrForSegmentation")
    return pipeline("image-segmentation", model, image_processor=DetrImageProcessor(size=SIZE), threshold=0.3)


@pytest.fixture(scope="module")
def classes() -> Any:
    return pipeline("image-segmentation", tiny_segformer(), image_processor=SegformerImageProcessor(size=SIZE))


@pytest.fixture(scope="module")
def depth() -> Any:
    return pipeline("depth-estimation", tiny_dpt(), image_processor=DPTImageProcessor(size={"height": 48, "width": 48}))


@pytest.fixture(params=["detect", "segment", "classes", "depth"])
def pipe(request) -> Any:
    return request.getfixturevalue(request.param)


def same(ours: Any, theirs: Any) -> bool:
    """Whether two answers are equal but for the rounding of another batch size."""
    if isinstance(ours, dict) and "box" in ours:
        near = all(abs(side - theirs["box"][name]) <= 1 for name, side in ours["box"].items())
        return near and ours["label"] == theirs["label"] and ours["score"] == pytest.approx(theirs["score"], abs=1e-4)
    if isinstance(ours, dict) and "mask" in ours:
        scores, masks = [each["score"] or 0.0 for each in (ours, theirs)], [np.asarray(each["mask"]) for each in (ours, theirs)]
        if ours["label"] != theirs["label"] or masks[0].shape != masks[1].shape:
            return False
        return scores[0] == pytest.approx(scores[1], abs=1e-4) and (masks[0] != masks[1]).mean() < 0.01
    if isinstance(ours, dict):
        maps = ours["predicted_depth"], theirs["predicted_depth"]
        return maps[0].shape == maps[1].shape and torch.allclose(*maps, atol=1e-3)
    return len(ours) == len(theirs) and all(map(same, ours, theirs))


def test_boxes_have_scores_labels_and_whole_numbers(detect):
    found = detect(PICTURES[0], threshold=0)
    assert len(found) == 6
    for each in found:
        assert list(each) == ["score", "label", "box"]
        assert isinstance(each["score"], float)
        assert each["label"] in LABELS.values()
        assert list(each["box"]) == ["xmin", "ymin", "xmax", "ymax"]
        assert all(type(side) is int for side in each["box"].values())
        assert each["box"]["xmin"] <= each["box"]["xmax"]
    middle = sorted(each["score"] for each in found)[3]
    assert [each["score"] for each in detect(PICTURES[0], threshold=middle)] == [
        each["score"] for each in found if each["score"] > middle
    ]
    assert detect(PICTURES[0], threshold=1) == []


def test_boxes_are_in_pixels_of_the_picture_as_it_came(detect):
    image = Image.fromarray(PICTURES[0])
    (one, *_), (other, *_) = detect([image, image.resize((10 * image.width, 10 * image.height), 0)], threshold=0)
    for side in one["box"]:
        assert other["box"][side] == pytest.approx(10 * one["box"][side], abs=40)


@pytest.mark.parametrize("subtask", ["panoptic", "instance"])
def test_segments_have_a_score_a_label_and_a_mask(segment, subtask):
    found = segment(PICTURES[0], subtask=subtask)
    assert found
    covered = np.zeros(PICTURES[0].shape[:2], int)
    for each in found:
        assert list(each) == ["score", "label", "mask"]
        assert 0.3 < each["score"] <= 1
        assert (each["mask"].mode, each["mask"].size) == ("L", PICTURES[0].shape[1::-1])
        assert set(np.unique(each["mask"])) <= {0, 255}
        covered += np.asarray(each["mask"]) > 0
    assert covered.max() == 1  # a pixel belongs to one segment


def test_where_nothing_is_sure_enough_there_are_no_segments(segment):
    assert segment(PICTURES[0], threshold=1) == []


def test_semantic_segments_are_classes_without_scores(classes):
    found = classes(PICTURES[0])
    labels = [each["label"] for each in found]
    assert len(set(labels)) == len(labels) > 1
    assert [each["score"] for each in found] == [None] * len(found)
    assert sum(np.asarray(each["mask"]).astype(int) for each in found).tolist() == np.full((30, 40), 255).tolist()


def test_maps_that_wait_for_their_answers_are_small():
    from transept.pipelines.tasks import vision

    numbers = [torch.tensor([[0, 200]]), torch.tensor([[-1, 3]]), torch.tensor([[-1, 200]]), torch.tensor([[0, 70000]])]
    found = [vision.small(each) for each in numbers]
    assert [each.dtype.itemsize for each in found] == [1, 2, 2, 4]
    assert [each.tolist() for each in found] == [each.tolist() for each in numbers]


def test_the_first_subtask_that_can_be_done_is_the_default(segment, classes):
    assert segment.subtasks == ["panoptic", "instance", "semantic"]
    assert same(segment(PICTURES[0]), segment(PICTURES[0], subtask="panoptic"))
    assert classes.subtasks == ["semantic"]
    with pytest.raises(InputError, match=r"'instance', which Segformer.* cannot do.*They can do: semantic"):
        classes(PICTURES[0], subtask="instance")
    with pytest.raises(InputError, match="'panoptic'"):
        segment(PICTURES[0], subtask="everything")
    other = pipeline("image-segmentation", tiny_segformer(), image_processor=DetrImageProcessor(size=SIZE))
    assert other.subtasks == ["semantic"]  # a model of classes finds no objects, whatever its processor could do
    with pytest.raises(InputError, match="these outputs have no 'pred_masks'"):
        other(PICTURES[0])


def test_depth_is_a_tensor_and_a_gray_picture(depth):
    found = depth(PICTURES[0])
    values = found["predicted_depth"]
    assert isinstance(values, torch.Tensor)
    assert values.shape == PICTURES[0].shape[:2]
    gray = np.asarray(found["depth"])
    assert (found["depth"].mode, gray.min(), gray.max()) == ("L", 0, 255)
    assert gray.ravel()[values.argmin()] == 0
    assert gray.ravel()[values.argmax()] == 255


def test_a_constant_depth_is_no_division_by_zero(depth):
    found = depth.answer(None, [], [torch.full((4, 5), 2.5)], depth.options)
    assert not np.asarray(found["depth"]).any()


def test_batches_equal_one_by_one_in_order(pipe):
    alone = [pipe(one) for one in PICTURES]
    assert not all(same(alone[0], other) for other in alone[1:])
    assert all(map(same, pipe(PICTURES), alone))
    assert all(map(same, pipe(iter(PICTURES[::-1])), alone[::-1]))
    assert all(map(same, pipe(PICTURES, batch_size=5), alone))


def test_pictures_are_batched_by_their_processed_size(detect):
    raw = pipeline("object-detection", detect.model, image_processor=DetrImageProcessor(do_resize=False), threshold=0.3)
    sizes: list[Any] = []
    run = raw.run
    raw.run = lambda batch: sizes.append(batch["pixel_values"].shape) or run(batch)
    found = raw([picture(seed, *((40, 60) if seed % 2 else (64, 48))) for seed in range(6)])
    assert sorted(sizes) == [(3, 3, 40, 60), (3, 3, 64, 48)]
    assert all(same(found[seed], raw(picture(seed, *((40, 60) if seed % 2 else (64, 48))))) for seed in range(6))


SIZES = (40, 60), (64, 48), (60, 40), (33, 90), (40, 60), (90, 33)
EDGES = DetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 100})
# What keeps the shapes of pictures, so that those of a batch are of several sizes when the model sees them.
MIXED: dict[str, Any] = {
    "object-detection": lambda: (tiny_detr(), EDGES, {"threshold": 0.3}),
    "panoptic": lambda: (tiny_detr("DetrForSegmentation"), EDGES, {"threshold": 0.3}),
    "semantic": lambda: (tiny_segformer(), SegformerImageProcessor(do_resize=False), {}),
    "depth-estimation": lambda: (
        tiny_depth_anything(),
        DPTImageProcessor(size={"height": 48, "width": 48}, keep_aspect_ratio=True, ensure_multiple_of=4),
        {},
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_pictures_of_several_sizes_answer_as_each_alone(name):
    model, processor, options = MIXED[name]()
    task = "image-segmentation" if name in ("panoptic", "semantic") else name
    ask = pipeline(task, model, image_processor=processor, **options)
    images = [picture(seed, *size) for seed, size in enumerate(SIZES)]
    assert len({processor(image)["pixel_values"][0].shape for image in images}) > 2
    alone = [ask(image) for image in images]
    assert all(alone)
    for found in (ask(images), ask(images, batch_size=len(images)), ask(iter(images))):
        assert all(map(same, found, alone))


def test_processor_and_model_find_in_a_batch_what_they_find_alone(detect):
    images = [picture(seed, *size) for seed, size in enumerate(SIZES)]

    def boxes(some: list[Any]) -> list[Any]:
        inputs = EDGES(some, return_tensors="pt")
        with torch.no_grad():
            output = detect.model(**inputs)
        return EDGES.post_process_object_detection(output, 0.0, [image.shape[:2] for image in some])

    for image, found in zip(images, boxes(images), strict=True):
        (alone,) = boxes([image])
        assert torch.equal(found["labels"], alone["labels"])
        assert torch.allclose(found["scores"], alone["scores"], atol=1e-4)
        assert (found["boxes"] - alone["boxes"]).abs().max() <= 1e-4 * max(image.shape[:2])
    assert "image_sizes" not in EDGES(images[::4])  # of one size


def test_padding_is_masked_and_never_seen(detect):
    processor = DetrImageProcessor(do_resize=False, pad_size={"height": 64, "width": 80})
    padded = pipeline("object-detection", detect.model, image_processor=processor, threshold=0)
    masks: list[Any] = []
    run = padded.run
    padded.run = lambda batch: masks.append(batch.get("pixel_mask")) or run(batch)
    images = [picture(0, 32, 64), picture(1, 64, 80), picture(2, 64, 64)]
    found = padded(images)
    assert sorted(0 if mask is None else len(mask) for mask in masks) == [0, 2]  # the whole one has no mask
    for image, boxes in zip(images, found, strict=True):
        assert same(padded(image), boxes)


def test_every_kind_of_input_gives_the_same_answer(pipe, tmp_path):
    data = png(PICTURES[0])
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    kinds = [Image.fromarray(PICTURES[0]), path, str(path), data, io.BytesIO(data), {"bytes": data}]
    kinds += [torch.from_numpy(PICTURES[0]), PICTURES[0].transpose(2, 0, 1)]
    expected = pipe(PICTURES[0])
    assert all(same(pipe(kind), expected) for kind in kinds)


def test_a_picture_that_lies_on_its_side_is_answered_upright(depth, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(PICTURES[0]).save(tmp_path / "turned.jpg", exif=exif)
    assert depth(tmp_path / "turned.jpg")["predicted_depth"].shape == PICTURES[0].shape[1::-1]


def test_bad_pictures_are_reported_by_position_and_lose_no_answer(pipe):
    inputs: list[Any] = [PICTURES[0], b"no picture", PICTURES[1], png(PICTURES[2])[:200]]
    with pytest.raises(InputsError) as caught:
        pipe(inputs)
    assert caught.value.positions == [1, 3]
    for answers in (caught.value.answers, pipe(inputs, on_error="return")):
        assert all(isinstance(answers[place], FormatError) for place in (1, 3))
        assert same(answers[2], pipe(PICTURES[1]))
    with pytest.raises(InputTypeError):
        pipe(17)


def test_numbers_that_are_none_are_an_error_of_their_input(detect):
    model = tiny_detr()
    broken = pipeline("object-detection", model, image_processor=DetrImageProcessor(size=SIZE))
    with torch.no_grad():
        model.class_head.bias[0] = float("nan")
    with pytest.raises(InputError, match="computes nan"):
        broken(PICTURES[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 1.5}, "`threshold` must be a number from 0 to 1"),
        ({"threshold": True}, "`threshold`"),
        ({"threshold": "0.5"}, "`threshold`"),
        ({"mask_threshold": -0.1}, "`mask_threshold`"),
        ({"overlap_mask_area_threshold": float("nan")}, "`overlap_mask_area_threshold`"),
        ({"thresholds": 0.5}, "'threshold'"),
    ],
    ids=str,
)
def test_wrong_options_are_named(segment, options, message):
    with pytest.raises(InputError, match=message):
        segment(PICTURES[0], **options)


def test_settings_of_the_processor_are_for_one_call(depth):
    other = depth(PICTURES[0], image_processor_kwargs={"image_mean": [0.0, 0.0, 0.0]})
    assert not same(other, depth(PICTURES[0]))
    with pytest.raises(InputError, match="image_mean"):
        depth(PICTURES[0], image_processor_kwargs={"image_mena": 0.5})


def test_a_processor_that_makes_no_answers_is_refused():
    with pytest.raises(InputTypeError, match=r"ViTImageProcessor makes no answers.*post_process_object_detection"):
        pipeline("object-detection", tiny_detr(), image_processor=ViTImageProcessor())
    with pytest.raises(InputTypeError, match="it has no post_process_semantic_segmentation"):
        pipeline("image-segmentation", tiny_segformer(), image_processor=ViTImageProcessor())


def test_models_for_another_task_are_refused():
    assert pipeline(
        "object-detection", tiny_detr("DetrForSegmentation"), image_processor=DetrImageProcessor()
    )  # which finds boxes too
    with pytest.raises(InputTypeError, match=r"SegformerForSemanticSegmentation.*ForObjectDetection"):
        pipeline("object-detection", tiny_segformer(), image_processor=DetrImageProcessor())
    with pytest.raises(InputTypeError, match=r"ForObjectDetection.*ForSegmentation or "):
        pipeline("image-segmentation", tiny_detr(), image_processor=DetrImageProcessor())


def test_bfloat16_answers_are_near(segment):
    model = tiny_detr("DetrForSegmentation")
    rounded = pipeline(
        "image-segmentation", model, image_processor=DetrImageProcessor(size=SIZE), dtype=torch.bfloat16, threshold=0
    )
    whole, near = segment(PICTURES[0], threshold=0), rounded(PICTURES[0])
    assert near[0]["score"] == pytest.approx(whole[0]["score"], abs=0.1)


def test_classes_are_chosen_by_the_task():
    detr, dense = tiny_detr().config, tiny_segformer().config
    assert AutoModelForObjectDetection.model_class(detr).__name__ == "DetrForObjectDetection"
    assert AutoModelForImageSegmentation.model_class(detr).__name__ == "DetrForSegmentation"
    assert AutoModelForImageSegmentation.model_class(dense).__name__ == "SegformerForSemanticSegmentation"
    assert AutoModelForSemanticSegmentation.model_class(dense).__name__ == "SegformerForSemanticSegmentation"
    with pytest.raises(UnsupportedError, match="'detr' has no model 'ForSemanticSegmentation'"):
        AutoModelForSemanticSegmentation.model_class(detr)
    with pytest.raises(UnsupportedError, match="ForDepthEstimation"):
        AutoModelForDepthEstimation.model_class(detr)


def test_the_task_is_told_by_the_class():
    assert pipeline(model=tiny_detr(), image_processor=DetrImageProcessor()).task == "object-detection"
    for model in (tiny_detr("DetrForSegmentation"), tiny_segformer()):
        assert pipeline(model=model, image_processor=DetrImageProcessor()).task == "image-segmentation"


def test_classifiers_of_all_kinds_of_networks_can_be_asked(tmp_path):
    """Also such as have no patches."""
    model = tiny_segformer("SegformerForImageClassification")
    classify = pipeline("image-classification", model, image_processor=ViTImageProcessor(size=SIZE))
    assert {each["label"] for each in classify(PICTURES[0])} == set(LABELS.values())


def test_answers_can_be_drawn(pipe, tmp_path):
    assert draw(PICTURES[0], pipe(PICTURES[0])).size >= PICTURES[0].shape[1::-1]
    assert type(pipe).drawable
    classify = pipeline("image-classification", save_image_model(tmp_path))
    assert draw(PICTURES[0], classify(PICTURES[0])).height > PICTURES[0].shape[0]
