"""Tasks over images: classes, and painting what was hidden.

Shapes: B batch, C channels or classes, H height, W width, N patches, D hidden size.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.errors import InputError
from transept.heads.classify import PooledTask
from transept.heads.task import Task
from transept.kinds.image import ImageBackbone, PatchBackbone
from transept.objectives.classification import check_is_tensor, widened
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput, ModelOutput, ReconstructionOutput

I = TypeVar("I", bound=ImageBackbone)  # noqa: E741 (I for images)
P = TypeVar("P", bound=PatchBackbone)


class ForImageClassification(PooledTask[I]):
    """One of C classes, several of them, or C numbers for each image: ``logits`` (B, C).

    ``labels`` are (B) integers, (B, C) for several labels at once, or numbers for regression; see ``problem_type``. Without
    classes (``num_labels=0``) the logits are the state (B, D) that they would be made of.
    """

    refuses = ("bool_masked_pos",)

    def make_head(self, config: Config) -> nn.Module:
        return super().make_head(config) if self.classes else nn.Identity()

    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        return super().pool(states, ids, mask).flatten(1)  # some poolers keep two axes of one


class ForMaskedImageModeling(Task[P]):
    """The pixels behind masked patches (SimMIM, Xie et al. 2022): ``reconstruction`` (B, C, H, W).

    ``bool_masked_pos`` (B, N) is true for patches that are hidden; with it there is a ``loss``, for which the head must paint
    in their size (``InputError``). Its ``num_items_in_batch`` counts masked pixels, once for each channel. The config has
    ``encoder_stride``.
    """

    backbone_options = {"use_mask_token": True}
    labels = ("bool_masked_pos",)
    reads: ClassVar[tuple[str, ...]] = ("pixel_values", "bool_masked_pos", "interpolate_pos_encoding", "attention_mask")
    names = Names({"decoder": "head"})
    output_class: ClassVar[type[ReconstructionOutput]] = ReconstructionOutput

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        stride = config.encoder_stride
        conv = nn.Conv2d(self.backbone.dim, stride**2 * config.num_channels, kernel_size=1)
        self.head = nn.Sequential(conv, nn.PixelShuffle(stride))

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        size, patch, reduction = self.config.encoder_stride, self.backbone.patch_size, self.backbone.reduction
        if labels is not None and (patch[0] * reduction, patch[1] * reduction) != (size, size):
            times = f" times {reduction}" if reduction > 1 else ""
            rule = f"must equal `patch_size` {patch}{times} for a loss over masked patches."
            raise InputError(f"`encoder_stride` ({size}) {rule}")
        return super().encode(inputs | {"bool_masked_pos": labels}, labels)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        patches = states.last_hidden_state[:, self.backbone.prefix_tokens :].transpose(1, 2)
        grid = self.backbone.grid(*inputs["pixel_values"].shape[2:])
        painted = self.head(patches.unflatten(2, [-(-side // self.backbone.reduction) for side in grid]))
        return self.output_class(reconstruction=painted)

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        pixels, patch = inputs["pixel_values"], self.backbone.patch_size
        masked = (labels[0] != 0).view(-1, *self.backbone.grid(*pixels.shape[2:]))
        masked = masked.repeat_interleave(patch[0], 1).repeat_interleave(patch[1], 2)
        return {"masked_pixels": masked_l1(output.reconstruction, pixels, masked)}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        check_is_tensor(labels, "bool_masked_pos")
        height, width = self.backbone.patch_size
        return {"masked_pixels": (labels != 0).sum() * (height * width * inputs["pixel_values"].shape[1])}


def masked_l1(painted: Tensor, pixels: Tensor, masked: Tensor) -> LossTerm:
    """Mean distance of images (B, C, H, W) at the masked pixels (B, H, W), over all channels (Xie et al. 2022)."""
    if painted.shape != pixels.shape:
        what = f"the model paints images of {tuple(painted.shape[1:])}, but was given {tuple(pixels.shape[1:])}."
        raise InputError(what, hint="Use images whose height and width are multiples of the patch size.")
    distance = (widened(pixels) - widened(painted)).abs().masked_fill(~masked[:, None], 0.0)
    return LossTerm(distance.sum(), masked.sum() * pixels.shape[1], least=1.0)
