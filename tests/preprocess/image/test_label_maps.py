"""Label maps beside pictures, and maps and depths out of what models answer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.beit.image_processing_pil_beit import BeitImageProcessorPil
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil

from transept.errors import FormatError, InputError
from transept.preprocess.auto import AutoImageProcessor
from transept.preprocess.image import answers
from transept.preprocess.image.base import NEAREST
from transept.preprocess.image.beit import BeitImageProcessor
from transept.preprocess.image.dpt import DPTImageProcessor
from transept.preprocess.image.segformer import SegformerImageProcessor

RNG = np.random.default_rng(0)
SIZES = [(40, 50), (33, 71), (1, 9), (90, 20)]
IMAGES = [Image.fromarray(RNG.integers(0, 256, (*size, 3), np.uint8)) for size in SIZES]
MAPS = [RNG.integers(0, 256, size, np.uint8) for size in SIZES]
PAIRS = [
    (SegformerImageProcessor, SegformerImageProcessorPil),
    (BeitImageProcessor, BeitImageProcessorPil),
    (DPTImageProcessor, DPTImageProcessorPil),
]
SIZED = {"height": 30, "width": 44}


@pytest.mark.parametrize(("ours", "reference"), PAIRS)
@pytest.mark.parametrize("reduce", [False, True])
def test_maps_match_the_reference(ours, reference, reduce):
    for options in ({"size": SIZED}, {"do_resize": False}, {"size": 300}):
        options |= {"resample": NEAREST, "do_reduce_labels": reduce}  # with another filter the reference blends classes
        expected = reference(**options)(IMAGES, [Image.fromarray(labels) for labels in MAPS])
        for maps in (MAPS, [Image.fromarray(labels) for labels in MAPS], [torch.from_numpy(labels) for labels in MAPS]):
            found = ours(**options)(IMAGES, maps)
            assert {*found} == {"pixel_values", "labels"}
            for name in found:
                for one, other in zip(found[name], expected[name], strict=True):
                    assert one.dtype == other.dtype
                    assert np.array_equal(one, other)


@pytest.mark.parametrize("ours", [pair[0] for pair in PAIRS])
def test_classes_are_never_blended_and_maps_never_changed(ours):
    labels = np.where(np.arange(60)[:, None] + np.arange(80) > 70, 7, 0).astype(np.uint8)
    kept, image = labels.copy(), Image.new("RGB", (80, 60))
    found = ours(size=SIZED, do_reduce_labels=True)(image, segmentation_maps=labels, return_tensors="pt").labels
    assert found.shape == (1, 30, 44)
    assert found.dtype == torch.int64
    assert {*found.unique().tolist()} == {6, 255}
    assert np.array_equal(labels, kept)
    assert {*ours(size=SIZED)(image, labels).labels[0].ravel().tolist()} == {0, 7}


def test_crops_and_pads_of_maps():
    image, labels = IMAGES[0], MAPS[0]  # 40 x 50
    inner = {"do_center_crop": True, "crop_size": {"height": 31, "width": 22}, "do_resize": False}
    expected = BeitImageProcessorPil(**inner)(image, Image.fromarray(labels), return_tensors="np")
    assert np.array_equal(BeitImageProcessor(**inner)(image, labels, return_tensors="np").labels, expected.labels)
    outer = inner | {"crop_size": {"height": 51, "width": 22}}
    found = BeitImageProcessor(**outer)(image, labels, return_tensors="np")
    top, below = found.labels[0, :6], found.labels[0, 46:]
    assert (top == 255).all()
    assert (below == 255).all()
    assert np.array_equal(found.labels[0, 6:46], labels[:, 14:36])
    assert (found.pixel_values[0, :, :6] == -1).all()
    padded = DPTImageProcessor(do_resize=False, do_pad=True, size_divisor=32)(image, labels, return_tensors="np")
    assert padded.labels.shape == (1, 64, 64)
    assert np.array_equal(padded.labels[0, 12:52, 7:57], labels)
    assert (padded.labels == 255).sum() == 64 * 64 - labels.size + (labels == 255).sum()


def test_maps_of_all_kinds(tmp_path):
    ours, image, labels = SegformerImageProcessor(do_resize=False), IMAGES[0], MAPS[0]
    palette = Image.fromarray(labels).convert("P")
    palette.putdata(labels.ravel().tolist())
    palette.save(tmp_path / "palette.png")
    large = labels.astype(np.int32) * 1000
    for given, expected in (
        (labels[None], labels),
        (labels[:, :, None], labels),
        (labels.astype(np.float32), labels),
        (labels > 100, labels > 100),
        (tmp_path / "palette.png", labels),
        (large, large),
        (Image.fromarray(large), large),
        (labels.astype(np.uint16), labels),
    ):
        found = ours(image, given).labels[0]
        assert found.dtype == np.int64
        assert np.array_equal(found, expected)
    both = ours([image, image], np.stack([labels, labels]), return_tensors="np").labels
    assert np.array_equal(both, np.stack([labels, labels]))
    assert ours(image, large, do_resize=True, size=SIZED).labels[0].max() > 255


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        ([], "there are 0 segmentation maps for 1 images"),
        ([MAPS[0], MAPS[0]], "there are 2 segmentation maps for 1 images"),
        (MAPS[1], "a segmentation map of 71 x 33 labels does not belong to an image of 50 x 40 pixels"),
        (MAPS[0].T, "a segmentation map of 40 x 50 labels"),
        (np.full((40, 50), -1), "labels from -1 to -1"),
        (np.full((40, 50), 0.5), "does not hold labels"),
        (np.full((40, 50), np.nan), "does not hold labels"),
        (np.full((40, 50), np.inf), "labels from inf"),
        (np.full((40, 50), 2**40), "labels from 1099511627776"),
        (Image.new("RGB", (50, 40)), r"shape \(40, 50, 3\) is no segmentation map"),
        (np.zeros((0, 50), np.uint8), r"shape \(0, 50\) is no segmentation map"),
        (np.array([["a"] * 50] * 40), "does not hold labels"),
        (5, "int is not an image"),
    ],
)
def test_bad_maps(maps, message):
    with pytest.raises(InputError, match=message):
        SegformerImageProcessor()(IMAGES[0], maps)


def test_a_bad_map_is_named_by_its_place(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"rubbish")
    with pytest.raises(FormatError, match=r"segmentation map 1 of the batch: is corrupt"):
        SegformerImageProcessor()(IMAGES[:2], [MAPS[0], tmp_path / "broken.png"])
    with pytest.raises(InputError, match="the batch holds no image"):
        SegformerImageProcessor()([], [])


def test_the_older_name(tmp_path):
    for values in ({"reduce_labels": True}, {"do_reduce_labels": True}, {"reduce_labels": True, "do_reduce_labels": False}):
        assert BeitImageProcessor.from_dict(values).do_reduce_labels
        assert "reduce_labels" not in BeitImageProcessor.from_dict(values).to_dict()
    SegformerImageProcessor(reduce_labels=True).save_pretrained(tmp_path)
    loaded = AutoImageProcessor.from_pretrained(tmp_path)
    assert loaded.do_reduce_labels
    assert loaded.reduce_labels
    assert not AutoImageProcessor.from_pretrained(tmp_path, reduce_labels=False).do_reduce_labels
    assert loaded(IMAGES[0], MAPS[0] * 0, reduce_labels=False).labels[0].max() == 0


@pytest.mark.parametrize(("ours", "reference"), PAIRS)
@pytest.mark.parametrize("targets", [None, [(20, 31), (5, 40)], torch.tensor([[7, 9], [16, 12]])])
def test_semantic_maps_match_the_reference(ours, reference, targets):
    outputs = SimpleNamespace(logits=torch.randn(2, 5, 16, 12, generator=torch.Generator().manual_seed(0)))
    given = targets.tolist() if isinstance(targets, torch.Tensor) else targets
    expected = reference().post_process_semantic_segmentation(outputs, given, return_segmentation_scores=True)
    found = ours().post_process_semantic_segmentation(outputs, targets, return_segmentation_scores=True)
    maps = ours().post_process_semantic_segmentation(outputs, target_sizes=targets)
    for one, other, labels in zip(found, expected, maps, strict=True):
        assert torch.equal(one.segmentation, other.segmentation)
        assert torch.equal(one["segmentation_scores"], other.segmentation_scores)
        assert torch.equal(labels, other.segmentation)
        assert labels.dtype == torch.int64


@pytest.mark.parametrize("targets", [None, [(20, 31), (1, 40)]])
def test_depths_match_the_reference(targets):
    outputs = SimpleNamespace(predicted_depth=torch.rand(2, 16, 12, generator=torch.Generator().manual_seed(0)))
    expected = DPTImageProcessorPil().post_process_depth_estimation(outputs, targets)
    for one, other in zip(DPTImageProcessor().post_process_depth_estimation(outputs, targets), expected, strict=True):
        size = one["predicted_depth"].shape
        assert torch.equal(one["predicted_depth"], other["predicted_depth"].reshape(size))  # the reference drops sides of 1
        assert targets is None or size in targets


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([(5, 5)], "holds 1 sizes for 2 images"),
        ([(5, 5), (5, 0)], "target size 1 is 5 x 0"),
        ([(5, 5), (-5, 5)], "target size 1 is -5 x 5"),
        ([(5, 5), 5], "target size 1 is 5, and not"),
        ([(5, 5), (5, 5, 3)], "target size 1 is"),
        ([(5, 5), (5, float("nan"))], "target size 1 is"),
        ([(5, 5), ("a", 5)], "target size 1 is"),
        (5, "target_sizes is 5"),
        (torch.zeros(2, 2), "target size 0 is 0 x 0"),
        (torch.zeros(()), "target_sizes is 0.0"),
    ],
)
def test_bad_target_sizes(targets, message):
    outputs = SimpleNamespace(logits=torch.randn(2, 5, 4, 4), predicted_depth=torch.rand(2, 4, 4))
    with pytest.raises(InputError, match=message):
        SegformerImageProcessor().post_process_semantic_segmentation(outputs, targets)
    with pytest.raises(InputError, match=message):
        DPTImageProcessor().post_process_depth_estimation(outputs, targets)


@pytest.mark.parametrize("size", [(33, 50), (7, 9), (5, 4), (1, 1), (64, 3)])
@pytest.mark.parametrize("strip", [1, 200, 2**23])
def test_maps_in_strips_are_those_of_the_whole(size, strip, monkeypatch):
    monkeypatch.setattr(answers, "_AT_ONCE", strip)
    for shape in ((4, 7, 9), (3, 1, 1), (2, 40, 3)):
        scores = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
        whole = torch.nn.functional.interpolate(scores, size=size, mode="bilinear", align_corners=False)[0]
        assert torch.equal(answers.semantic_maps(scores, [size], False)[0], whole.argmax(0))


def test_memory_of_maps_is_bounded(monkeypatch):
    """The scores of a picture in its own size are never there as a whole."""
    made = []
    plain = torch.nn.functional.interpolate
    monkeypatch.setattr(torch.nn.functional, "interpolate", lambda *a, **k: made.append(plain(*a, **k)) or made[-1])
    monkeypatch.setattr(answers, "_AT_ONCE", 10_000)
    answers.semantic_maps(torch.randn(1, 20, 16, 16), [(300, 400)], False)
    assert max(each.numel() for each in made) <= 3 * 20 * 400
