"""Whole pipelines over pictures against the reference's: pictures of many shapes, through models saved by either side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from transept import pipeline
from transept.preprocess.image.dpt import DPTImageProcessor
from transept.preprocess.image.segformer import SegformerImageProcessor

from .media_models import picture
from .vision_models import tiny_segformer

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


def test_depth_of_the_references_processor_is_ours(tmp_path):
    """The models come later: the maps of one go through both processors and the arithmetic of the gray picture."""
    import torch
    from transformers import DPTImageProcessorPil
    from transformers.modeling_outputs import DepthEstimatorOutput

    from .vision_models import DepthOutput

    maps = torch.randn(1, 24, 32)
    ask = pipeline("depth-estimation", tiny_segformer("TinyForDepthEstimation"), image_processor=DPTImageProcessor())
    ours = ask.answer(None, [], [ask.processed(DepthOutput(predicted_depth=maps), [(50, 71)], ask.options)], ask.options)
    theirs = DPTImageProcessorPil().post_process_depth_estimation(DepthEstimatorOutput(predicted_depth=maps), [(50, 71)])
    assert torch.allclose(ours["predicted_depth"], theirs[0]["predicted_depth"], atol=1e-6)
    values = theirs[0]["predicted_depth"].numpy()
    gray = ((values - values.min()) / (values.max() - values.min()) * 255).astype("uint8")
    assert (np.asarray(ours["depth"]) == gray).all()
