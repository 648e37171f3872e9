"""Whole pipelines over pictures against the reference's: pictures of many shapes, through models saved by either side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from transept import pipeline
from transept.core.auto import AutoConfig, AutoModelForDepthEstimation
from transept.preprocess.image.convnext import ConvNextImageProcessor
from transept.preprocess.image.detr import DetrImageProcessor
from transept.preprocess.image.dpt import DPTImageProcessor
from transept.preprocess.image.segformer import SegformerImageProcessor

from .media_models import picture
from .vision_models import DEPTH_ANYTHING, DPT, tiny_detr, tiny_segformer

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("ignore")]

IMAGES = [Image.fromarray(picture(seed, *size)) for seed, size in enumerate(((40, 50), (97, 61), (64, 64), (33, 120)))]
IMAGES.append(IMAGES[0].convert("L"))


def reference(task: str, directory: Path, processor: str) -> Any:
    """The reference's pipeline, with its processor that resizes by Pillow, as ours does."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    loaded = getattr(transformers, processor).from_pretrained(directory)
    return transformers.pipeline(task, model=str(directory), image_processor=loaded, device="cpu")


def check(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Boxes to a pixel, scores to 1e-4, masks but for pixels where two classes are alike."""
    assert [each["label"] for each in ours] == [each["label"] for each in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        assert mine["score"] == (None if other["score"] is None else pytest.approx(other["score"], abs=1e-4))
        if "box" in other:
            assert list(mine["box"]) == list(other["box"])
            assert list(mine["box"].values()) == pytest.approx(list(other["box"].values()), abs=1)
        if "mask" in other:
            assert (mine["mask"].mode, mine["mask"].size) == (other["mask"].mode, other["mask"].size)
            assert (np.asarray(mine["mask"]) != np.asarray(other["mask"])).mean() < 0.002


@pytest.mark.parametrize("options", [{}, {"subtask": "semantic"}], ids=str)
def test_classes_of_pixels_equal_the_reference(tmp_path, options):
    tiny_segformer().save_pretrained(tmp_path)
    SegformerImageProcessor(size={"height": 64, "width": 96}).save_pretrained(tmp_path)
    ask, theirs = (
        pipeline("image-segmentation", tmp_path),
        reference("image-segmentation", tmp_path, "SegformerImageProcessorPil"),
    )
    for image, found in zip(IMAGES, ask(IMAGES, **options), strict=True):
        check(found, theirs(image, **options))
    assert len(ask(IMAGES[0])) > 1


@pytest.mark.parametrize("options", [{}, {"pool": True}], ids=str)
def test_features_of_networks_without_patches_equal_the_reference(tmp_path, options):
    from transept.models import resnet

    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1]}
    resnet.ResNetModel(resnet.ResNetConfig(**sizes)).save_pretrained(tmp_path)
    ConvNextImageProcessor(size={"shortest_edge": 384}).save_pretrained(tmp_path)
    ours = pipeline("image-feature-extraction", tmp_path)(IMAGES[1], **options)
    theirs = reference("image-feature-extraction", tmp_path, "ConvNextImageProcessorPil")(IMAGES[1], **options)
    assert np.shape(ours) == np.shape(theirs)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"top_k": 2}], ids=str)
def test_classes_by_networks_without_patches_equal_the_reference(tmp_path, options):
    from transept.models import resnet

    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "num_labels": 4}
    resnet.ResNetForImageClassification(resnet.ResNetConfig(**sizes)).save_pretrained(tmp_path)
    ConvNextImageProcessor(size={"shortest_edge": 64}).save_pretrained(tmp_path)
    ask = pipeline("image-classification", tmp_path)
    theirs = reference("image-classification", tmp_path, "ConvNextImageProcessorPil")
    for image, found in zip(IMAGES, ask(IMAGES, **options), strict=True):
        check(found, theirs(image, **options))


@pytest.fixture(scope="module")
def detector(tmp_path_factory) -> Path:
    return saved_detr(tmp_path_factory.mktemp("detector"), "DetrForObjectDetection")


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory) -> Path:
    return saved_detr(tmp_path_factory.mktemp("segmenter"), "DetrForSegmentation")


def saved_detr(directory: Path, kind: str, **settings: Any) -> Path:
    tiny_detr(kind).save_pretrained(directory)
    DetrImageProcessor(**{"size": {"shortest_edge": 64, "longest_edge": 100}} | settings).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("options", [{"threshold": 0}, {"threshold": 0.7}, {}], ids=str)
def test_boxes_equal_the_reference(detector, options):
    ask, theirs = pipeline("object-detection", detector), reference("object-detection", detector, "DetrImageProcessorPil")
    expected = [theirs(image, **options) for image in IMAGES]
    assert any(expected)
    for found, other in zip(ask(IMAGES, **options), expected, strict=True):
        check(found, other)


def test_boxes_of_padded_pictures_equal_the_reference(tmp_path):
    saved_detr(tmp_path, "DetrForObjectDetection", pad_size={"height": 110, "width": 128})
    ask, theirs = pipeline("object-detection", tmp_path), reference("object-detection", tmp_path, "DetrImageProcessorPil")
    for found, image in zip(ask(IMAGES, threshold=0), IMAGES, strict=True):
        check(found, theirs(image, threshold=0))


@pytest.mark.parametrize("subtask", [None, "panoptic", "instance", "semantic"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threshold": 0.4, "overlap_mask_area_threshold": 0},
        {"threshold": 0.2, "overlap_mask_area_threshold": 0.05},
        {"threshold": 0.4, "mask_threshold": 0.4, "overlap_mask_area_threshold": 0.02},
    ],
    ids=str,
)
def test_segments_equal_the_reference(segmenter, subtask, options):
    ask, theirs = pipeline("image-segmentation", segmenter), reference("image-segmentation", segmenter, "DetrImageProcessorPil")
    expected = [theirs(image, subtask=subtask, **options) for image in IMAGES]
    assert any(expected) or not options
    for found, other in zip(ask(IMAGES, subtask=subtask, **options), expected, strict=True):
        check(found, other)


@pytest.mark.parametrize(("model_type", "sizes"), [("dpt", DPT), ("depth_anything", DEPTH_ANYTHING)])
def test_depth_equals_the_reference(tmp_path, model_type, sizes):
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **sizes)
    AutoModelForDepthEstimation.from_config(config).save_pretrained(tmp_path)
    DPTImageProcessor(size={"height": 48, "width": 48}).save_pretrained(tmp_path)
    ask, theirs = pipeline("depth-estimation", tmp_path), reference("depth-estimation", tmp_path, "DPTImageProcessorPil")
    for image, found in zip(IMAGES, ask(IMAGES), strict=True):
        other = theirs(image)
        assert torch.allclose(found["predicted_depth"], other["predicted_depth"], atol=1e-4)
        grays = [np.asarray(each["depth"]).astype(int) for each in (found, other)]
        assert np.abs(grays[0] - grays[1]).max() <= 1
