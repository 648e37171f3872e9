"""Heads over several feature maps, step by step."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.models.beit.decode_heads import FCN, PyramidPooling, UPerNet, resized


def maps(*sizes: tuple[int, int], channels: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, channels, *size, generator=generator) for size in sizes]


def test_means_over_grids_stand_beside_the_map() -> None:
    pool, (x,) = PyramidPooling(4, 3, (1, 2)).eval(), maps((4, 6))
    out = pool(x)
    assert out.shape == (2, 4 + 2 * 3, 4, 6)
    assert torch.equal(out[:, :4], x)
    whole = pool.levels[0].conv(x.mean((2, 3), keepdim=True))
    torch.testing.assert_close(out[:, 4:7], whole.expand(2, 3, 4, 6))
    quarters = x.view(2, 4, 2, 2, 2, 3).mean((3, 5))
    torch.testing.assert_close(out[:, 7:], resized(pool.levels[1].conv(quarters), x))


def test_upernet_adds_from_the_top_down() -> None:
    torch.manual_seed(0)
    head, (a, b, c) = UPerNet([4, 4, 4], 5, 3, (1, 2)).eval(), maps((8, 12), (4, 6), (2, 3))
    top = head.bottleneck(head.pool(c))
    middle = head.laterals[1](b) + F.interpolate(top, (4, 6), mode="bilinear")
    first = head.laterals[0](a) + F.interpolate(middle, (8, 12), mode="bilinear")
    middle, top = (F.interpolate(each, (8, 12), mode="bilinear") for each in (head.convs[1](middle), top))
    expected = head.classifier(head.fuse(torch.cat([head.convs[0](first), middle, top], dim=1)))
    torch.testing.assert_close(head([a, b, c]), expected)
    assert expected.shape == (2, 3, 8, 12)


def test_maps_of_other_channels() -> None:
    head = UPerNet([4, 8], 5, 3)
    assert head([maps((4, 4))[0], maps((2, 2), channels=8)[0]]).shape == (2, 3, 4, 4)


@pytest.mark.parametrize(("count", "skip"), [(0, False), (0, True), (1, True), (2, False), (2, True)])
def test_convolutions_over_one_map(count: int, skip: bool) -> None:
    head, (x,) = FCN(4, 6, 3, count, skip=skip).eval(), maps((5, 7))
    out = x
    for conv in head.convs:
        out = conv(out)
    if head.join is not None:
        out = head.join(torch.cat([x, out], dim=1))
    assert (head.join is not None) == skip
    torch.testing.assert_close(head(x), head.classifier(out))
    assert head(x).shape == (2, 3, 5, 7)


def test_one_picture_cannot_train_the_mean_of_a_whole_map() -> None:
    with pytest.raises(InputError, match="more or larger images"):
        UPerNet([4, 4], 5, 3)([each[:1] for each in maps((4, 4), (2, 2))])
