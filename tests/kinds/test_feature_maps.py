"""Backbones that give feature maps: which stages, in which order, and what is said where that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from transept.core.auto import AutoBackbone
from transept.errors import ConfigError, InputError
from transept.models.convnext import ConvNextBackbone, ConvNextConfig, ConvNextModel
from transept.models.resnet import ResNetBackbone, ResNetConfig, ResNetForImageClassification

TINY: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16, 24], "depths": [1, 1, 1]}
NAMES = ["stem", "stage1", "stage2", "stage3"]


def test_names_and_numbers_say_the_same() -> None:
    config = ResNetConfig(**TINY)
    assert config.stage_names == NAMES
    assert (config.out_features, config.out_indices) == (["stage3"], [3])
    config.out_features = ["stem", "stage2"]
    assert config.out_indices == [0, 2]
    config.out_indices = [1, -1]
    assert config.out_features == ["stage1", "stage3"]
    again = ResNetConfig.from_dict(config.to_dict())
    assert (again.out_features, again.out_indices) == (["stage1", "stage3"], [1, -1])
    assert ResNetConfig(**TINY, out_features=["stage1"], out_indices=[1]).out_indices == [1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"out_features": ["stage9"]}, "stage9"),
        ({"out_features": ["stage2", "stage1"]}, "in the order of the stages"),
        ({"out_features": ["stage2", "stage2"]}, "each once"),
        ({"out_features": []}, "at least one stage"),
        ({"out_indices": [4]}, "numbers of the 4 stages"),
        ({"out_indices": [1, -3]}, "each once"),
        ({"out_features": ["stage1"], "out_indices": [2]}, "must name the stages of `out_indices`"),
        ({"out_features": "stage1"}, "out_features"),
        ({"depths": [], "hidden_sizes": []}, "a number for each stage"),
        ({"out_features": ["stage1"], "out_indices": [99]}, "must name the stages of `out_indices`"),
    ],
)
def test_stages_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ResNetConfig(**TINY | settings)


def test_maps_of_a_checkpoint_of_a_task(tmp_path: Path) -> None:
    ResNetForImageClassification(ResNetConfig(**TINY)).save_pretrained(tmp_path)
    backbone = AutoBackbone.from_pretrained(tmp_path, out_features=["stem", "stage3"])
    assert isinstance(backbone, ResNetBackbone)
    assert backbone.channels == [8, 24]
    assert backbone.num_features == [8, 8, 16, 24]
    assert backbone.out_feature_channels == dict(zip(NAMES, [8, 8, 16, 24], strict=True))
    maps = backbone(torch.randn(2, 3, 40, 56)).feature_maps
    assert [tuple(each.shape) for each in maps] == [(2, 8, 10, 14), (2, 24, 3, 4)]
    shown = backbone(torch.randn(1, 3, 32, 32), output_hidden_states=True)
    assert len(shown.hidden_states) == 4
    assert "hidden_states" not in backbone(torch.randn(1, 3, 32, 32))
    assert isinstance(backbone(torch.randn(1, 3, 32, 32), return_dict=False)[0], tuple)


def test_each_map_has_its_norm() -> None:
    config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, out_features=["stem", "stage2"])
    assert list(ConvNextBackbone(config).map_norms) == ["stem", "stage2"]


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (33, 7)])
def test_small_pictures(size: tuple[int, int]) -> None:
    model = ResNetBackbone(ResNetConfig(**TINY))
    if size == (1, 1):
        with pytest.raises(InputError, match="larger images"):
            model(torch.randn(1, 3, *size))
    assert model.eval()(torch.randn(1, 3, *size)).feature_maps[0].shape[:2] == (1, 24)
    small = ConvNextModel(ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2))
    with pytest.raises(InputError, match="too small"):
        small(torch.randn(1, 3, *size))


def test_pictures_that_are_none() -> None:
    model = ResNetBackbone(ResNetConfig(**TINY))
    for shape in ((0, 3, 8, 8), (1, 0, 8, 8), (1, 4, 8, 8), (3, 8, 8), (1, 3, 0, 8)):
        with pytest.raises(InputError, match="pixel_values"):
            model(torch.zeros(shape))
    with pytest.raises(InputError, match="nan"):
        model(torch.full((1, 3, 8, 8), torch.nan))


@pytest.mark.reference
def test_stages_that_are_set_to_none_are_the_last_one() -> None:
    for name in ("out_features", "out_indices"):
        config, theirs = (kind(out_indices=[1, 3]) for kind in (ResNetConfig, transformers.ResNetConfig))
        setattr(config, name, None)
        setattr(theirs, name, None)
        assert [config.out_features, config.out_indices] == [theirs.out_features, theirs.out_indices] == [["stage4"], [4]]
    for given in ({"out_features": None, "out_indices": [2]}, {"out_features": ["stage2"], "out_indices": None}):
        assert ResNetConfig(**given).out_features == ["stage2"]
