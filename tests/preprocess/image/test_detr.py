"""DETR's boxes and masks: COCO's annotations in, objects and segments out, as in the reference."""

from __future__ import annotations

import json
import pickle
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.draw import polygon2mask
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil

from transept.errors import FormatError, InputError
from transept.preprocess.auto import AutoImageProcessor
from transept.preprocess.image import answers
from transept.preprocess.image.annotations import boxes_of, mask_of
from transept.preprocess.image.detr import DetrImageProcessor

RNG = np.random.default_rng(0)
SMALL = {"size": {"shortest_edge": 60, "longest_edge": 133}}
SIZES = [(40, 50), (33, 71), (90, 20)]  # height, width
IMAGES = [Image.fromarray(RNG.integers(0, 256, (*size, 3), np.uint8)) for size in SIZES]


def row(*box, **more):
    area = float(box[2] * box[3])
    return {"bbox": list(box), "category_id": 3, "area": area, "iscrowd": 0, "id": 1} | more


def random_annotation(image_id, size):
    """Boxes inside, across the edges and outside, with sides of nothing and less."""
    corners = RNG.uniform(-0.3, 1.2, (12, 2)) * size[::-1]
    sides = RNG.uniform(-0.1, 0.9, (12, 2)) * size[::-1]
    rows = [row(*map(float, box), category_id=n) for n, box in enumerate(np.concatenate([corners, sides], 1))]
    crowd = row(0, 0, 5, 5, iscrowd=1, segmentation={"counts": [1], "size": [1, 1]})
    return {"image_id": image_id, "annotations": [*rows, crowd, row(5, 5, 0, 9), {**row(1, 2, 3, 4), "category_id": 99}]}


ANNOTATIONS = [random_annotation(place, size) for place, size in enumerate(SIZES)]


def same(found, expected):
    assert {*found} - {"image_sizes"} == {*expected}
    for name in expected:
        if name == "labels":
            for one, other in zip(found[name], expected[name], strict=True):
                same(one, other)
            continue
        for one, other in zip(found[name], expected[name], strict=True):
            one, other = np.asarray(one), np.asarray(other)
            assert one.dtype == other.dtype, name
            assert one.shape == other.shape, name
            assert np.allclose(one, other, atol=1e-6), name


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_convert_annotations": False},
        {"do_normalize": False},
        {"do_pad": False},
        {"pad_size": {"height": 133, "width": 140}},
        {"size": {"height": 31, "width": 77}},
    ],
)
def test_objects_match_the_reference(settings):
    settings = SMALL | settings
    ours, reference = DetrImageProcessor(**settings), DetrImageProcessorPil(**settings)
    same(ours(IMAGES, ANNOTATIONS), reference(IMAGES, ANNOTATIONS))
    for image, annotation in zip(IMAGES, ANNOTATIONS, strict=True):
        expected = reference(image, annotation, return_tensors="pt")
        same(ours(image, annotations=annotation, return_tensors="pt"), expected)


def test_objects_of_unscaled_pictures():
    found = DetrImageProcessor(do_resize=False)(IMAGES, ANNOTATIONS, return_tensors="pt")
    expected = DetrImageProcessorPil(do_resize=False)(IMAGES, ANNOTATIONS, return_tensors="pt")
    same(found, expected)
    assert found.pixel_mask.sum((1, 2)).tolist() == [height * width for height, width in SIZES]
    assert found.image_sizes.tolist() == [list(size) for size in SIZES]
    assert found.pixel_values[0, :, 40:].abs().max() == 0


def test_channels_last():
    for settings in (SMALL, {"do_resize": False}, SMALL | {"do_rescale": False, "do_normalize": False}):
        first = DetrImageProcessor(**settings)(IMAGES, return_tensors="np").pixel_values
        last = DetrImageProcessor(**settings, data_format="channels_last")(IMAGES, return_tensors="np").pixel_values
        assert first.flags.c_contiguous
        assert np.array_equal(last, first.transpose(0, 2, 3, 1))


def test_fractions_of_full_brightness():
    images = [RNG.random((*size, 3)).astype(np.float32) for size in SIZES]
    settings = {"do_resize": False, "do_rescale": False}
    same(DetrImageProcessor(**settings)(images, ANNOTATIONS), DetrImageProcessorPil(**settings)(images, ANNOTATIONS))


def test_keypoints_and_pictures_without_objects():
    ours, reference = DetrImageProcessor(**SMALL), DetrImageProcessorPil(**SMALL)
    rows = [row(1, 2, 30, 20, keypoints=[1, 2, 2, 5, 6, 1]), row(60, 1, 3, 3, keypoints=[0] * 6)]
    annotations = [{"image_id": 5, "annotations": rows}, {"image_id": 6, "annotations": []}]
    expected = reference(IMAGES[:2], annotations, return_tensors="pt")
    found = ours(IMAGES[:2], annotations, return_tensors="pt")
    same(found, expected)
    assert found.labels[1].boxes.shape == (0, 4)
    assert found.labels[1].boxes.dtype == torch.float32
    assert ours(IMAGES[0], annotations[1], True).labels[0].masks.shape == (0, 60, 75)


def painted(ids):
    return Image.fromarray(np.stack([ids % 256, ids // 256 % 256, ids // 65536], -1).astype(np.uint8))


@pytest.mark.parametrize("with_masks", [None, True, False])
def test_segments_match_the_reference(tmp_path, with_masks):
    annotations = []
    for place, (height, width) in enumerate(SIZES):
        ids = RNG.choice([7, 3000, 9_000_000], (height // 5 + 1, width // 5 + 1)).repeat(5, 0).repeat(5, 1)[:height, :width]
        painted(ids).save(tmp_path / f"{place}.png")
        infos = [
            {"id": n, "category_id": n % 50, "area": int((ids == n).sum()), "iscrowd": n % 2} for n in (7, 3000, 9_000_000)
        ]
        annotations.append({"image_id": place, "file_name": f"{place}.png", "segments_info": infos})
    for settings in ({}, {"do_convert_annotations": False}, {"do_pad": False}):
        settings = SMALL | {"format": "coco_panoptic"} | settings
        arguments = {"return_segmentation_masks": with_masks, "masks_path": tmp_path}
        expected = DetrImageProcessorPil(**settings)(IMAGES, annotations, **arguments)
        same(DetrImageProcessor(**settings)(IMAGES, annotations, **arguments), expected)
    assert ("masks" in expected["labels"][0]) is (with_masks is not False)


@pytest.mark.real_data
def test_real_annotations_match_the_reference(real_images):
    folder = real_images / "coco"
    rows, infos = (json.loads((folder / f"coco_{name}annotations.txt").read_text()) for name in ("", "panoptic_"))
    with Image.open(folder / "000000039769.png") as image:
        images = [image.convert("RGB"), image.convert("RGB").resize((333, 500))]
    half = [each | {"bbox": [side / 2 for side in each["bbox"]]} for each in rows]
    annotations = [{"image_id": 39769, "annotations": each} for each in (rows, half)]
    same(DetrImageProcessor()(images, annotations), DetrImageProcessorPil()(images, annotations))
    panoptic = {"image_id": 39769, "file_name": "000000039769.png", "segments_info": infos}
    ours, reference = (kind(format="coco_panoptic") for kind in (DetrImageProcessor, DetrImageProcessorPil))
    where = {"masks_path": folder / "coco_panoptic", "return_tensors": "pt"}
    same(ours(images[0], panoptic, **where), reference(images[0], panoptic, **where))
    masks = DetrImageProcessor()(images[0], annotations[0], True).labels[0].masks
    unscaled = DetrImageProcessor(do_resize=False)(images[0], annotations[0], True).labels[0].masks
    assert masks.shape == (6, 800, 1066)
    for mask, each in zip(unscaled, rows, strict=True):
        exact = np.zeros((480, 640), bool)
        for polygon in each["segmentation"]:
            exact |= polygon2mask((480, 640), np.array(polygon).reshape(-1, 2)[:, ::-1] - 0.5)
        assert (mask & exact).sum() / (mask | exact).sum() > 0.98
        assert abs(mask.sum() / each["area"] - 1) < 0.02


def test_polygons_and_runs():
    square = [10.0, 5.0, 20.0, 5.0, 20.0, 9.0, 10.0, 9.0]
    mask = mask_of([square, [0, 0, 3, 0, 3, 3, 0, 3]], (30, 40), "it")
    expected = np.zeros((30, 40), bool)
    expected[5:9, 10:20] = expected[:3, :3] = True
    assert mask.shape == (30, 40)
    assert np.array_equal(mask, expected)
    assert not mask_of([], (30, 40), "it").any()
    assert not mask_of([[-9, -9, -5, -9, -5, -5]], (30, 40), "it").any()
    assert mask_of([[-1e12, -1e12, 1e12, -1e12, 1e12, 1e12, -1e12, 1e12]], (30, 40), "it").all()
    large = mask_of([[0, 0, 3000, 0, 3000, 2000, 0, 2000]], (2000, 3000), "it")  # drawn at the pixels' own scale
    assert large.mean() > 0.999
    down = expected.T.ravel()
    edges = np.flatnonzero(np.diff(down)) + 1
    counts = np.diff([0, *edges, down.size]).tolist()
    counts = [0, *counts] if down[0] else counts
    assert np.array_equal(mask_of({"size": [30, 40], "counts": counts}, (30, 40), "it"), expected)
    text = "".join(packed(count - (counts[place - 2] if place > 2 else 0)) for place, count in enumerate(counts))
    for form in (text, text.encode()):
        assert np.array_equal(mask_of({"size": [30, 40], "counts": form}, (30, 40), "it"), expected)
    assert boxes_of(expected[None]).tolist() == [[0, 0, 19, 8]]


def test_pycocotools_draws_where_it_is_installed(monkeypatch):
    drawn = []

    def decode(runs):
        drawn.append(runs)
        return np.stack([np.eye(30, 40, dtype=np.uint8)] * len(runs[0]), -1)

    module = ModuleType("pycocotools.mask")
    module.__dict__.update(frPyObjects=lambda *given: given, decode=decode)
    monkeypatch.setitem(sys.modules, "pycocotools", ModuleType("pycocotools"))
    monkeypatch.setitem(sys.modules, "pycocotools.mask", module)
    mask = mask_of([[0, 0, 3, 0, 3, 3], [1, 1, 4, 1, 4, 4]], (30, 40), "it")
    assert drawn == [([[0, 0, 3, 0, 3, 3], [1, 1, 4, 1, 4, 4]], 30, 40)]
    assert mask.dtype == bool
    assert np.array_equal(mask, np.eye(30, 40) > 0)


def packed(number):
    """One length in COCO's compressed form: five bits a character, the lowest first."""
    text = ""
    while True:
        bits, number = number & 31, number >> 5
        ends = number == (-1 if bits & 16 else 0)
        text += chr(48 + bits + (0 if ends else 32))
        if ends:
            return text


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ({}, "must be a mapping with a list of mappings as 'annotations'"),
        ({"image_id": 1, "annotations": 5}, "must be a mapping with a list of mappings"),
        ({"image_id": 1, "annotations": [5]}, "must be a mapping with a list of mappings"),
        ({"image_id": 1, "segments_info": []}, "`format` says whether"),
        (5, "annotations is 5 .int., but must be a mapping, or a list"),
        ([5], "must be a mapping with a list of mappings"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, iscrowd="no")]}, "`iscrowd` of annotation 0 is 'no'"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, iscrowd=1), {}]}, "`bbox` of annotation 1 is None"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, bbox=[10**400, 1, 1, 1])]}, "`bbox` of annotation 0"),
        ({"annotations": []}, "`image_id` of the annotation is None"),
        ({"image_id": "one", "annotations": []}, "`image_id` of the annotation is 'one'"),
        ({"image_id": 2**70, "annotations": []}, "`image_id` of the annotation"),
        ({"image_id": 1, "annotations": [{"category_id": 1, "area": 1}]}, "`bbox` of annotation 0 is None"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, bbox=[1, 2, 3])]}, "`bbox` of annotation 0 is .1, 2, 3., which has"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, bbox=[1, 2, float("nan"), 4])]}, "`bbox` of annotation 0"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, bbox=[1, 2, float("inf"), 4])]}, "finite numbers"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, bbox="abcd")]}, "`bbox` of annotation 0 is 'abcd'"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, category_id="cat")]}, "`category_id` of annotation 0 is 'cat'"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, category_id=1.5)]}, "`category_id` of annotation 0 is 1.5"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, area=None)]}, "`area` of annotation 0 is None"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, keypoints=5)]}, "`keypoints` of annotation 0 is 5"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, keypoints=[1, 2])]}, "`keypoints` of annotation 0"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4)]}, "`segmentation` of annotation 0 is None"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, segmentation=[5])]}, "fewer than three corners"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, segmentation=[[1, 2, 3, 4]])]}, "fewer than three corners"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, segmentation=[["x"] * 6])]}, "finite numbers"),
        (
            {"image_id": 1, "annotations": [row(1, 2, 3, 4, segmentation={"size": [40, 50], "counts": [5]})]},
            "runs of annotation 0",
        ),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, segmentation={"size": [40, 50], "counts": [-5, 2005]})]}, "runs of"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, segmentation={"size": [50, 40], "counts": [2000]})]}, "runs of"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, segmentation={"size": [40, 50], "counts": [2**62] * 8})]}, "runs of"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, segmentation={"size": [40, 50], "counts": "o" * 500})]}, "runs of"),
        ({"image_id": 1, "annotations": [row(1, 2, 3, 4, segmentation={"size": 5, "counts": []})]}, "runs of"),
    ],
)
def test_bad_annotations(annotation, message):
    with pytest.raises(InputError, match=message):
        DetrImageProcessor()(IMAGES[0], annotation, return_segmentation_masks=True)


def test_boxes_without_area_are_left_out():
    rows = [row(-50, -50, 20, 20), row(60, 10, 5, 5), row(10, 10, -4, 5), row(10, 10, 0, 5), row(1e30, 0, 5, 5)]
    found = DetrImageProcessor(**SMALL)(IMAGES[0], {"image_id": 1, "annotations": rows}, True, return_tensors="pt")
    assert found.labels[0].boxes.shape == (0, 4)
    assert found.labels[0].masks.shape == (0, 60, 75)
    across = DetrImageProcessor(do_pad=False, do_resize=False)(
        IMAGES[0], {"image_id": 1, "annotations": [row(-5, -5, 1e9, 1e9)]}
    )
    assert across.labels[0].boxes.tolist() == [[0.5, 0.5, 1, 1]]


def test_bad_calls(tmp_path):
    ours = DetrImageProcessor(**SMALL)
    with pytest.raises(InputError, match="there are 1 annotations for 2 images"):
        ours(IMAGES[:2], ANNOTATIONS[0])
    with pytest.raises(InputError, match="annotations 1 of the batch: `bbox` of annotation 0"):
        ours(IMAGES[:2], [ANNOTATIONS[0], {"image_id": 1, "annotations": [{}]}])
    with pytest.raises(InputError, match="boxes are not cropped"):
        ours(IMAGES[0], ANNOTATIONS[0], do_center_crop=True, crop_size=20)
    with pytest.raises(InputError, match="71 x 33 pixels does not fit into `pad_size`, 60 x 60"):
        DetrImageProcessor(do_resize=False)(IMAGES[1], pad_size=60)
    with pytest.raises(InputError, match="padding makes images of 10000 x 10000 pixels"):
        DetrImageProcessor(do_resize=False)([Image.new("L", (10_000, 1)), Image.new("L", (1, 10_000))])
    with pytest.raises(InputError, match="the batch holds no image"):
        ours([], [])


def test_bad_segments(tmp_path):
    ours = DetrImageProcessor(**SMALL, format="coco_panoptic")
    info = {"id": 7, "category_id": 1, "area": 5, "iscrowd": 0}
    painted(np.full((40, 50), 7)).save(tmp_path / "a.png")
    (tmp_path / "broken.png").write_bytes(b"rubbish")
    base = {"image_id": 1, "file_name": "a.png", "segments_info": [info]}
    assert ours(IMAGES[0], base, masks_path=tmp_path).labels[0].masks.all()
    assert ours(IMAGES[0], base | {"segments_info": []}, masks_path=str(tmp_path)).labels[0].masks.shape == (0, 60, 75)
    for changes, kind, message in (
        ({"file_name": "../a.png"}, (InputError, FormatError), "outside"),
        ({"file_name": "gone.png"}, OSError, "no such image file"),
        ({"file_name": "broken.png"}, FormatError, "corrupt"),
        ({"file_name": 5}, InputError, "needs its picture of segments"),
        ({"segments_info": [info | {"id": 8}]}, InputError, "no pixel of 'a.png' has the colour of the segment 8"),
        ({"segments_info": [{"id": 7}]}, InputError, "`category_id` of annotation 0"),
        ({"segments_info": None}, InputError, "as 'segments_info'"),
    ):
        with pytest.raises(kind, match=message):
            ours(IMAGES[0], base | changes, masks_path=tmp_path)
    with pytest.raises(InputError, match="50 x 40 pixels, but its image 71 x 33"):
        ours(IMAGES[1], base, masks_path=tmp_path)
    with pytest.raises(InputError, match="masks_path"):
        ours(IMAGES[0], base)


def test_older_settings(tmp_path):
    older = {"feature_extractor_type": "DetrFeatureExtractor", "size": 640, "max_size": 900, "pad_and_return_pixel_mask": False}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(older))
    loaded = AutoImageProcessor.from_pretrained(tmp_path)
    assert type(loaded) is DetrImageProcessor
    assert loaded.size == {"shortest_edge": 640, "longest_edge": 900}
    assert loaded.do_pad is False
    assert DetrImageProcessor(size=640).size == {"shortest_edge": 640, "longest_edge": 1333}
    assert DetrImageProcessor(do_normalize=False).do_convert_annotations is False
    assert DetrImageProcessor(do_normalize=False, do_convert_annotations=True).do_convert_annotations is True
    assert pickle.loads(pickle.dumps(loaded)) == loaded


def outputs(seed, queries=12, classes=6, **sizes):
    make = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, queries, classes + 1, generator=make) * 4
    masks = torch.randn(3, queries, 5, 6, generator=make) * 4 - 5  # blobs that overlap here and there
    masks = torch.nn.functional.interpolate(masks, size=(20, 24), mode="bilinear")
    return SimpleNamespace(logits=logits, pred_boxes=torch.rand(3, queries, 4, generator=make), pred_masks=masks, **sizes)


@pytest.mark.parametrize("targets", [None, [(20, 31), (5, 40), (7, 7)], torch.tensor([[7, 9], [16, 12], [300, 200]])])
@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.99, 1.0])
def test_objects_out_match_the_reference(targets, threshold):
    given = outputs(0)
    expected = DetrImageProcessorPil().post_process_object_detection(given, threshold, targets)
    found = DetrImageProcessor().post_process_object_detection(given, threshold=threshold, target_sizes=targets)
    for one, other in zip(found, expected, strict=True):
        assert {*one} == {*other}
        assert torch.equal(one["scores"], other["scores"])
        assert torch.equal(one["labels"], other["labels"])
        assert torch.allclose(one["boxes"], other["boxes"], atol=1e-5)


TARGETS = [None, [(30, 31), (40, 20), (7, 7)]]


@pytest.mark.parametrize("targets", TARGETS)
def test_semantic_maps_match_the_reference(targets):
    expected = DetrImageProcessorPil().post_process_semantic_segmentation(outputs(1), targets, True)
    found = DetrImageProcessor().post_process_semantic_segmentation(outputs(1), targets, True)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.segmentation, other.segmentation)
        assert torch.allclose(one.segmentation_scores, other.segmentation_scores)


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limits", [(0.5, 0.5, 0.8), (0.9, 0.3, 0.2), (0.2, 0.6, 0.5), (1.0, 0.5, 0.8)])
@pytest.mark.parametrize("at_once", [100, 2**23])
def test_segments_out_match_the_reference(targets, seed, limits, at_once, monkeypatch):
    monkeypatch.setattr(answers, "_AT_ONCE", at_once)  # some rows at a time, or all
    ours, reference, seen = DetrImageProcessor(), DetrImageProcessorPil(), 0
    for name, more in (("instance", {}), ("panoptic", {"label_ids_to_fuse": set()})):
        method = f"post_process_{name}_segmentation"
        expected = getattr(reference, method)(outputs(seed), *limits, target_sizes=targets, **more)
        found = getattr(ours, method)(outputs(seed), *limits, target_sizes=targets, **more)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one["segmentation"], other["segmentation"].to(torch.int32))
            assert one["segmentation"].dtype == torch.int32
            assert one["segments_info"] == other["segments_info"]
            seen += len(one["segments_info"])
    assert seen or limits[0] == 1


def test_fused_classes_are_one_segment():
    logits = torch.full((1, 5, 4), -9.0)
    logits[0, range(5), [1, 2, 1, 0, 2]] = torch.tensor([9.0, 8.0, 7.0, 9.0, 9.0])
    masks = torch.full((1, 5, 5, 4), -9.0)
    for query in range(5):
        masks[0, query, query] = 9.0
    given = SimpleNamespace(logits=logits, pred_masks=masks)
    found = DetrImageProcessor().post_process_panoptic_segmentation(given, label_ids_to_fuse=[1])[0]
    assert found["segmentation"][:, 0].tolist() == [1, 2, 1, 3, 4]
    assert [(info["id"], info["label_id"], info["was_fused"]) for info in found["segments_info"]] == [
        *((1, 1, True), (2, 2, False), (3, 0, False), (4, 2, False)),
    ]
    kept = DetrImageProcessor().post_process_panoptic_segmentation(given)[0]
    assert kept["segmentation"][:, 0].tolist() == [1, 2, 3, 4, 5]


def test_runs_match_the_reference():
    limits = {"threshold": 0.2, "return_coco_annotation": True}
    expected = DetrImageProcessorPil().post_process_instance_segmentation(outputs(2), **limits)
    found = DetrImageProcessor().post_process_instance_segmentation(outputs(2), **limits)
    for one, other in zip(found, expected, strict=True):
        assert one["segmentation"] == [[int(number) for number in runs] for runs in other["segmentation"]]
    none = DetrImageProcessor().post_process_instance_segmentation(outputs(2), 1.0, return_coco_annotation=True)
    assert none[0]["segmentation"] == [[1, 20 * 24]]


def test_answers_are_not_changed_and_must_be_there():
    given, kept = outputs(3), outputs(3)
    DetrImageProcessor().post_process_panoptic_segmentation(given)
    DetrImageProcessor().post_process_object_detection(given, target_sizes=[(5, 5)] * 3)
    for name in ("logits", "pred_boxes", "pred_masks"):
        assert torch.equal(getattr(given, name), getattr(kept, name))
    given.pred_masks = None
    with pytest.raises(InputError, match="these outputs have no 'pred_masks'"):
        DetrImageProcessor().post_process_instance_segmentation(given)
    with pytest.raises(InputError, match="target size 1 is 5 x -3"):
        DetrImageProcessor().post_process_object_detection(given, target_sizes=[(5, 5), (5, -3), (5, 5)])
    with pytest.raises(InputError, match="holds 0 sizes for 3 images"):
        DetrImageProcessor().post_process_object_detection(given, target_sizes=[])
