"""What Swin has of its own: windows of each call, and grids that no window fits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transept.errors import ConfigError, InputError
from transept.models.swin import SwinBackbone, SwinConfig, SwinModel

TINY: dict[str, Any] = {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 2}


def pixels(*size: int) -> torch.Tensor:
    return torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))


def test_a_small_picture_changes_nothing_for_the_next() -> None:
    torch.manual_seed(0)
    model = SwinModel(SwinConfig(**TINY, image_size=32)).eval()
    before = model(pixels(32, 32)).last_hidden_state
    model(pixels(16, 16))
    assert torch.equal(model(pixels(32, 32)).last_hidden_state, before)


def test_grids_smaller_than_a_window() -> None:
    config = SwinConfig(**TINY, image_size=32, out_indices=[1, 2])
    with pytest.raises(InputError, match="3 x 4 states, fewer than a window of 4 x 4"):
        SwinModel(config)(pixels(6, 8))
    assert [tuple(each.shape) for each in SwinBackbone(config)(pixels(6, 8)).feature_maps] == [(1, 8, 3, 4), (1, 16, 2, 2)]


def test_pictures_of_any_size_but_for_learned_positions() -> None:
    assert SwinModel(SwinConfig(**TINY, image_size=32))(pixels(33, 47)).last_hidden_state.shape == (1, 9 * 12, 16)
    model = SwinModel(SwinConfig(**TINY, image_size=[32, 48], use_absolute_embeddings=True))
    assert model(pixels(32, 48)).last_hidden_state.shape == (1, 8 * 12, 16)
    with pytest.raises(InputError, match="interpolate_pos_encoding"):
        model(pixels(40, 48))
    assert model(pixels(40, 48), interpolate_pos_encoding=True).last_hidden_state.shape == (1, 10 * 12, 16)


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="num_heads"):
        SwinModel(SwinConfig(**TINY | {"num_heads": [3, 4]}))
    with pytest.raises(ConfigError, match="as many numbers as `depths`"):
        SwinConfig(**TINY | {"num_heads": [2]})
