"""Backbones that give feature maps of several stages, for detection, segmentation and depth.

Shapes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transept.config.fields import MAX_LAYERS, derived
from transept.config.model import Config
from transept.core.inputs import INTEGERS, check_tensor
from transept.errors import InputError
from transept.kinds.image import ImageBackbone, PatchBackbone
from transept.layers.context import Context
from transept.outputs import FeatureMapOutput, ModelOutput


class StagedConfig(Config):
    """Settings of networks of stages, of which some give feature maps.

    ``out_features`` are the names of these stages and ``out_indices`` their numbers, from 0 (the stem), or from -1 at the end.
    They say the same, and each follows when the other is set; when both are absent, or one is set to ``None``, the last stage
    is meant.
    """

    out_features: list[str] | None = derived(lambda c: _named(c.stage_names, c.__dict__.get("out_indices", [-1])))
    out_indices: list[int] | None = derived(lambda c: [c.stage_names.index(n) for n in c.out_features if n in c.stage_names])

    @property
    def stages(self) -> int:
        """How many stages there are, without the stem."""
        return len(self.depths)

    @property
    def stage_names(self) -> list[str]:
        """``["stem", "stage1", ...]``."""
        # The number may be a file's, and not yet checked.
        return ["stem", *(f"stage{number}" for number in range(1, min(self.stages, MAX_LAYERS) + 1))]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _OUT:
            self.__dict__.pop(_OUT[name], None)

    def fill_in(self, values: Mapping[str, Any], *, keep: bool) -> None:
        values = {name: value for name, value in values.items() if name not in _OUT or value is not None}
        super().fill_in(values, keep=keep)
        if (names := values.get("out_features")) is not None and list(names) != self.out_features:
            self.fail("out_features", f"must name the stages of `out_indices`, but there it is {list(names)}")

    def validate(self) -> None:
        if getattr(self, "depths", None) == []:
            self.fail("depths", "must hold a number for each stage")
        names, given = self.stage_names, self.__dict__
        if any(name not in names for name in given.get("out_features", ())):
            self.fail("out_features", f"must hold some of {', '.join(names)}")
        if any(not -len(names) <= index < len(names) for index in given.get("out_indices", ())):
            self.fail("out_indices", f"must hold numbers of the {len(names)} stages")
        assert self.out_features is not None
        places = [names.index(name) for name in self.out_features]
        if not places or sorted(set(places)) != places:
            self.fail("out_features", "must hold at least one stage, each once and in the order of the stages")
        super().validate()


_OUT = {"out_features": "out_indices", "out_indices": "out_features"}


def _named(names: list[str], numbers: list[int]) -> list[str]:
    """The names with these numbers, but for numbers that no name has, which ``validate`` refuses."""
    return [names[number] for number in numbers if -len(names) <= number < len(names)]


class FeatureMaps(ImageBackbone):
    """Mixed into a family's model: its output is a feature map (B, C, H, W) of each stage that the config asks for."""

    config: Any

    @property
    def stage_channels(self) -> list[int]:
        """The channels of the stem and of each stage."""
        raise NotImplementedError

    @property
    def stage_names(self) -> list[str]:
        """The names of the stem and of each stage."""
        return list(self.config.stage_names)

    @property
    def out_features(self) -> list[str]:
        """The names of the stages that give maps."""
        return list(self.config.out_features)

    @property
    def out_indices(self) -> list[int]:
        """The numbers of the stages that give maps."""
        return list(self.config.out_indices)

    @property
    def num_features(self) -> list[int]:
        """The channels of the stem and of each stage."""
        return self.stage_channels

    @property
    def out_feature_channels(self) -> dict[str, int]:
        """Names of stages -> their channels."""
        return dict(zip(self.stage_names, self.stage_channels, strict=True))

    @property
    def channels(self) -> list[int]:
        """The channels of the maps."""
        return [self.out_feature_channels[name] for name in self.out_features]

    def fixed_modules(self) -> list[nn.Module]:
        """The parts that are not trained where the maps serve a detector."""
        return []

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        x, ctx = super().begin(*args, **inputs)
        ctx.stages = [x]
        return x, ctx

    def run(self, x: Tensor, ctx: Context, start: int = 0, stop: int | None = None) -> Tensor:
        assert ctx.stages is not None
        for index in range(len(self.layers))[start:stop]:
            x = super().run(x, ctx, index, index + 1)
            ctx.stages.append(x)
        return x

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        assert ctx.stages is not None
        states = dict(zip(self.stage_names, ctx.stages, strict=True))
        maps = tuple(self.feature_map(name, states[name], ctx) for name in self.out_features)
        return self.recorded(FeatureMapOutput(feature_maps=self.joined(maps)), x, ctx)

    def feature_map(self, stage: str, x: Tensor, ctx: Context) -> Tensor:
        """The map of a stage from its states."""
        return x

    def joined(self, maps: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What is made of all maps together: they themselves, where a family makes nothing of them."""
        return maps


def maps_alone(network: FeatureMaps, pixels: Tensor, sizes: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """The maps that images (B, C, H, W) of these sizes (B, 2), padded at the right and at the bottom, have one by one.

    Beyond an image's own they are zero; the second value tells where the last one is an image's own (B, H', W').
    """
    check_tensor("image_sizes", sizes, INTEGERS, "(batch, 2)")
    most = sizes.new_tensor(pixels.shape[2:])
    if sizes.shape != (len(pixels), 2) or (sizes < 1).any() or (sizes > most).any():
        wanted = f"height and width of each of {len(pixels)} images, {most[0]} x {most[1]} at most"
        raise InputError(f"`image_sizes` must be {wanted}, but is {sizes.tolist()!r:.200}.")
    groups: dict[tuple[int, int], list[int]] = {}
    for place, (height, width) in enumerate(sizes.tolist()):
        groups.setdefault((height, width), []).append(place)
    parts = [network(pixels[rows, :, :h, :w], return_dict=True).feature_maps for (h, w), rows in groups.items()]
    rows = list(groups.values())
    real = _joined([torch.ones_like(maps[-1][:, 0], dtype=torch.bool) for maps in parts], rows)
    return tuple(_joined(maps, rows) for maps in zip(*parts, strict=True)), real


def _joined(parts: Sequence[Tensor], rows: Sequence[list[int]]) -> Tensor:
    """Tensors (n, ..., H, W) in their rows of one that has room for the largest."""
    sides = (max(part.shape[axis] for part in parts) for axis in (-2, -1))
    whole = parts[0].new_zeros((sum(map(len, rows)), *parts[0].shape[1:-2], *sides))
    for part, places in zip(parts, rows, strict=True):
        whole[places, ..., : part.shape[-2], : part.shape[-1]] = part
    return whole


class NormedFeatureMaps(FeatureMaps):
    """The same with a norm of its own for each stage that gives a map, by name in ``map_norms``."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.map_norms = nn.ModuleDict(
            {name: self.make_map_norm(self.out_feature_channels[name]) for name in self.out_features}
        )

    def make_map_norm(self, channels: int) -> nn.Module:
        """The norm of a map of so many channels."""
        raise NotImplementedError

    def feature_map(self, stage: str, x: Tensor, ctx: Context) -> Tensor:
        out: Tensor = self.map_norms[stage](x)
        return out


class PatchFeatureMaps(FeatureMaps, PatchBackbone):
    """The same for networks over patches, all of whose layers are stages: a map (B, D, H, W) holds the states of patches."""

    @property
    def stage_channels(self) -> list[int]:
        return [self.dim] * (len(self.layers) + 1)

    def feature_map(self, stage: str, x: Tensor, ctx: Context) -> Tensor:
        return x[:, self.prefix_tokens :].transpose(1, 2).reshape(x.shape[0], -1, *ctx.grid)
