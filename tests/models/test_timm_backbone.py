"""ResNets under timm's names: the network is ResNet's, and the file's names and numbers stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from transept.core.auto import AutoBackbone
from transept.errors import ConfigError
from transept.models.resnet import ResNetBackbone, ResNetConfig
from transept.models.timm_backbone import SIZES, TimmBackbone, TimmBackboneConfig

PIXELS = torch.randn(2, 3, 70, 90, generator=torch.Generator().manual_seed(0))


def filled(model: nn.Module) -> nn.Module:
    """Numbers of norms that are no constants, which would hide swapped ones."""
    torch.manual_seed(0)
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 1:
            tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor) * 0.3 + 0.5)
    return model.eval()


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_it_is_the_resnet_of_that_size(name: str, tmp_path: Path) -> None:
    ours = filled(TimmBackbone(TimmBackboneConfig(backbone=name, out_indices=[1, 2, 3, 4])))
    kind, depths = SIZES[name]
    sizes = [64, 128, 256, 512] if kind == "basic" else [256, 512, 1024, 2048]
    other = ResNetBackbone(ResNetConfig(layer_type=kind, depths=depths, hidden_sizes=sizes, out_indices=[1, 2, 3, 4])).eval()
    named, spelled = ours.checkpoint_names(), other.checkpoint_names()
    other.load_state_dict({spelled.public(named.dialect(key)): tensor for key, tensor in ours.state_dict().items()})
    for mine, theirs in zip(ours(PIXELS).feature_maps, other(PIXELS).feature_maps, strict=True):
        assert torch.equal(mine, theirs)
    ours.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    last = f"layer4.{depths[-1] - 1}.bn{2 if kind == 'basic' else 3}.running_var"
    expected = ["conv1.weight", "bn1.num_batches_tracked", "layer2.0.downsample.0.weight", "layer2.0.downsample.1.bias", last]
    assert set(expected) <= stored.keys()
    assert all(key.startswith(("conv1.", "bn1.", "layer")) for key in stored)
    again = AutoBackbone.from_pretrained(tmp_path)
    assert isinstance(again, TimmBackbone)
    for mine, back in zip(ours(PIXELS).feature_maps, again(PIXELS).feature_maps, strict=True):
        assert torch.equal(mine, back)


def test_the_stem_comes_before_its_pool() -> None:
    ours = filled(TimmBackbone(TimmBackboneConfig(backbone="resnet18", out_indices=[0, 1])))
    assert [tuple(each.shape) for each in ours(PIXELS).feature_maps] == [(2, 64, 35, 45), (2, 64, 18, 23)]
    assert ours.channels == [64, 64]


def by_definition(x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    return nn.functional.conv2d(x, weight, padding=dilation, dilation=dilation)


def test_a_dilated_last_stage_keeps_height_and_width() -> None:
    ours = filled(TimmBackbone(TimmBackboneConfig(backbone="resnet50", output_stride=16, out_indices=[3, 4])))
    third, fourth = ours(PIXELS).feature_maps
    assert third.shape[2:] == fourth.shape[2:]
    convs = [block.convs[1].conv for block in ours.layers[3].blocks]
    assert [(conv.stride[0], conv.dilation[0]) for conv in convs] == [(1, 1), (1, 2), (1, 2)]
    x = torch.randn(1, 512, 5, 7)
    assert torch.allclose(convs[1](x), by_definition(x, convs[1].weight, 2))


def test_networks_that_are_not_here() -> None:
    with pytest.raises(ConfigError, match="other networks of timm are not here"):
        TimmBackboneConfig(backbone="efficientnet_b0")
    with pytest.raises(ConfigError, match="16 or 32"):
        TimmBackboneConfig(output_stride=8)
