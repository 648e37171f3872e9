"""Pictures, labels and settings that cannot be, with every class of the families of pictures: our error, or a right answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from transept.errors import ConfigError, TranseptError
from transept.kinds.feature_maps import FeatureMaps

from .families import FAMILIES
from .harness import classes, settings

NAMES = [
    "vit",
    "deit",
    "beit",
    "dinov2",
    "dinov2_with_registers",
    "dpt",
    "depth_anything",
    "resnet",
    "convnext",
    "segformer",
    "swin",
    "detr",
]
CASES = [(family, cls) for family in FAMILIES if family.model_type in NAMES for cls in classes(family)]
EACH = pytest.mark.parametrize(("family", "cls"), CASES, ids=[cls.__name__ for _, cls in CASES])
FREE = "interpolate_pos_encoding"


def build(family: Any, cls: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    return cls(cls.config_class(**settings(family, cls, **more))).eval()


def answered(model: Any, pixels: Any, **more: Any) -> bool:
    """Whether there is an answer, whose numbers are finite; an error of ours is none. All others are raised."""
    if FREE in model.options() + model.arguments():
        more[FREE] = True
    try:
        with torch.no_grad():
            output = model(pixels, **more)
    except TranseptError as error:
        assert str(error).strip()
        return False
    first = next(value for value in output.values() if value is not None)
    for value in first if isinstance(first, tuple) else (first,):
        assert value.isfinite().all()
    return True


@EACH
def test_small_and_narrow_pictures(family: Any, cls: Any) -> None:
    model = build(family, cls)
    for size in ((1, 1), (1, 200), (200, 1), (3, 5), (33, 47)):
        answered(model, torch.randn(1, 3, *size))


@EACH
def test_pixels_that_cannot_be(family: Any, cls: Any) -> None:
    model = build(family, cls)
    channels, side = 3, 64
    wrong: list[Any] = [
        torch.randn(1, channels + 1, side, side),
        torch.randn(1, 0, side, side),
        torch.randn(0, channels, side, side),
    ]
    wrong += [torch.randn(channels, side, side), torch.randint(0, 255, (1, channels, side, side), dtype=torch.uint8)]
    wrong += [np.zeros((1, channels, side, side), np.float32), None, torch.randn(1, channels, side, 0)]
    for value in (torch.nan, torch.inf):
        wrong.append(torch.randn(1, channels, side, side))
        wrong[-1][0, 0, 5, 7] = value
    for pixels in wrong:
        assert not answered(model, pixels)


@EACH
def test_labels_that_cannot_be(family: Any, cls: Any) -> None:
    model = build(family, cls)
    name = cls.__name__
    side = getattr(model.config, "image_size", 64)
    side = side if isinstance(side, int) else 64
    pixels, n = torch.randn(2, 3, side, side), model.config.num_labels
    if name.endswith("ForImageClassification"):
        wrong = [torch.tensor([0, n]), torch.tensor([-1, 0]), torch.tensor([0]), torch.zeros(2, side, side)]
    elif name.endswith("SemanticSegmentation"):
        plain = torch.zeros(2, side, side, dtype=torch.long)
        wrong = [plain + n, plain - 1, plain[:1], plain[0], plain[..., None]]
    elif name.endswith("DepthEstimation"):
        wrong = [torch.ones(1, side, side), torch.ones(2, 3, side, side)]
    else:
        return
    for each in wrong:
        with pytest.raises(TranseptError):
            model(pixels, labels=each)


@EACH
def test_stages_that_do_not_exist(family: Any, cls: Any) -> None:
    if not issubclass(cls, FeatureMaps):
        return
    for wrong in (
        {"out_features": ["stage99"]},
        {"out_indices": [99]},
        {"out_features": ["stage1", "stage1"]},
        {"out_indices": [-99]},
    ):
        with pytest.raises(ConfigError, match="out_"):
            build(family, cls, **wrong)


@pytest.mark.parametrize("name", ["detr", "dpt", "depth_anything"])
@pytest.mark.parametrize("part", [{"model_type": "bert"}, {"model_type": "gpt2"}, {"model_type": "no-such-family"}, [], 5, {}])
def test_networks_of_another_kind_within(name: str, part: Any) -> None:
    family = next(each for each in FAMILIES if each.model_type == name)
    cls = classes(family)[0]
    with pytest.raises(TranseptError):
        build(family, cls, backbone_config=part)
