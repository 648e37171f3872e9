"""Qwen2.5-VL (Bai et al. 2025): Qwen2-VL whose vision model looks at windows in most layers, and whose videos count seconds.

Shapes: P pictures, N patches of all pictures, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Annotated, Any, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count, Multiple
from transept.core.inputs import RecordOptions
from transept.core.parts import Part
from transept.errors import InputError
from transept.layers import Block, Context, GatedMLP, PreNorm, RMSNorm
from transept.layers.context import Rows
from transept.models import qwen2_vl
from transept.models.qwen2_vl import BLOCK, Qwen2VisionTransformerPretrainedModel, check_grids


class Qwen2_5_VLVisionConfig(qwen2_vl.VisionConfig):  # noqa: N801 (the reference's name)
    """Settings of the vision model; the defaults are those of Qwen2.5-VL with 7 billion parameters."""

    model_type = "qwen2_5_vl_vision"

    hidden_size: Annotated[int, Multiple("num_heads")] = 3584
    hidden_act: str = "silu"
    intermediate_size: Count = 3420
    tokens_per_second: Count = 4
    window_size: Count = 112
    out_hidden_size: Count = 3584
    fullatt_block_indexes: list[int] = field(default_factory=lambda: [7, 15, 23, 31])

    width = property(lambda self: self.hidden_size)
    text_width = property(lambda self: self.out_hidden_size)

    def validate(self) -> None:
        super().validate()
        if self.window_size < self.patch_size * self.spatial_merge_size:
            least = self.patch_size * self.spatial_merge_size
            self.fail("window_size", f"must be at least `patch_size` times `spatial_merge_size` ({least})")


class Qwen2_5_VLTextConfig(qwen2_vl.Qwen2VLTextConfig):  # noqa: N801
    """Settings of the text model; the defaults are those of Qwen2.5-VL with 72 billion parameters."""

    model_type = "qwen2_5_vl_text"


class Qwen2_5_VLConfig(qwen2_vl.Qwen2VLConfig):  # noqa: N801
    """Settings of Qwen2.5-VL."""

    model_type = "qwen2_5_vl"
    parts = {"vision_config": Qwen2_5_VLVisionConfig, "text_config": Qwen2_5_VLTextConfig}


@dataclass(frozen=True)
class Windows:
    """In one forward pass, the ``rows`` of most layers; ``order`` (N / merge^2) says which feature stands where."""

    rows: Rows
    order: Tensor


class WindowBlock(PreNorm):
    """A block whose patches look at those of their window."""

    is_prepared = True

    def whole(self, x: Tensor, ctx: Context[Windows]) -> Tensor:
        return super().whole(x, replace(ctx, rows=ctx.own.rows))


def windows(grids: Sequence[tuple[int, int, int]], side: int) -> tuple[Tensor, tuple[int, ...]]:
    """The order of features that puts those of one window together, and how many features each window has.

    ``grids`` (P) are frames, rows and columns of features; windows of ``side`` rows and columns begin at a frame's corner, and
    are smaller at its other edges.
    """
    order, sizes, first = [], [], 0
    for frames, rows, columns in grids:
        cells = torch.arange(first, first + frames * rows * columns).view(frames, rows, columns)
        found = [part for frame in cells for band in frame.split(side) for part in band.split(side, dim=1)]
        order += [part.flatten() for part in found]
        sizes += [part.numel() for part in found]
        first += cells.numel()
    return torch.cat(order), tuple(sizes)


class Qwen2_5_VisionTransformerPretrainedModel(Qwen2VisionTransformerPretrainedModel):  # noqa: N801
    """The vision model; states of patches stand in the order of windows, features in that of the pictures."""

    config_class = Qwen2_5_VLVisionConfig
    names = Qwen2VisionTransformerPretrainedModel.names | Names({"blocks.*": ("layers.*", {**BLOCK, "mlp": "mlp"})})

    def block_class(self, layer: int) -> type[Block]:
        return PreNorm if layer in self.config.fullatt_block_indexes else WindowBlock

    def make_norm(self) -> nn.Module:
        return RMSNorm(self.config.width, 1e-6)

    def feed_forward(self) -> nn.Module:
        return GatedMLP(self.config.width, self.config.intermediate_size, self.config.hidden_act, bias=True)

    def begin(
        self, hidden_states: Tensor | None = None, grid_thw: Tensor | None = None, **options: Unpack[RecordOptions]
    ) -> tuple[Tensor, Context]:
        x, ctx = super().begin(hidden_states, grid_thw, **options)
        c, merge = self.config, self.config.spatial_merge_size
        grids = [(t, h // merge, w // merge) for t, h, w in check_grids(grid_thw, merge)]
        order, sizes = windows(grids, c.window_size // merge // c.patch_size)
        own = ctx.own = Windows(Rows(tuple(size * merge**2 for size in sizes)), order.to(x.device))
        patches = (own.order[:, None] * merge**2 + torch.arange(merge**2, device=x.device)).flatten()
        ctx.rotary = {kind: (cos[:, :, patches], sin[:, :, patches]) for kind, (cos, sin) in ctx.rotary.items()}
        return x[:, patches], ctx

    def merged(self, x: Tensor, ctx: Context[Windows]) -> Tensor:
        return super().merged(x, ctx)[ctx.own.order.argsort()]


class Qwen2_5_VLTextModel(qwen2_vl.Qwen2VLTextModel):  # noqa: N801
    """The text model."""

    config_class = Qwen2_5_VLTextConfig


class Qwen2_5_VLModel(qwen2_vl.Qwen2VLModel):  # noqa: N801
    """Qwen2.5-VL without a head; ``second_per_grid_ts`` (videos) are the seconds that a step in time takes, or one."""

    config_class = Qwen2_5_VLConfig
    parts = (
        Part("visual", Qwen2_5_VisionTransformerPretrainedModel, "vision_config"),
        Part("language_model", Qwen2_5_VLTextModel, "text_config"),
    )
    picture_inputs = ("mm_token_type_ids", "second_per_grid_ts")
    reads = (*qwen2_vl.Qwen2VLModel.reads[:-1], "second_per_grid_ts", "mm_encoder_outputs")

    def intervals(self, given: Mapping[str, Any]) -> Iterator[float]:
        seconds, each = given.get("second_per_grid_ts"), self.config.vision_config.tokens_per_second
        if seconds is None:
            return repeat(float(each))
        videos = given.get("video_grid_thw")
        if len(seconds) != (count := 0 if videos is None else len(videos)):
            raise InputError(f"`second_per_grid_ts` has {len(seconds)} numbers for {count} videos.", hint="Give one for each.")
        # In float32, as positions of the checkpoints were computed.
        return iter((torch.as_tensor(seconds).float() * each).tolist())


class Qwen2_5_VLForConditionalGeneration(qwen2_vl.Qwen2VLForConditionalGeneration, backbone=Qwen2_5_VLModel):  # noqa: N801
    """Qwen2.5-VL that writes."""
