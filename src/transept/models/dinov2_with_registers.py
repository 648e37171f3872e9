"""DINOv2 with registers (Darcet et al. 2024): a few learned positions after the class token, where the network keeps notes.

Shapes: B batch, N patches, R registers, T = N + R + 1 positions, D hidden size.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Range, derived
from transept.layers.grids import MaskedPatchEmbeddings, PatchEmbeddings, Patches
from transept.models.dinov2 import Dinov2Backbone, Dinov2Config, Dinov2ForImageClassification, Dinov2Model, resized


class Dinov2WithRegistersConfig(Dinov2Config):
    """Settings of DINOv2 with registers; the defaults are those of dinov2-with-registers-base but for its patches of 14."""

    model_type = "dinov2_with_registers"

    patch_size: int | list[int] = 16
    use_mask_token: bool = derived(lambda c: True, fixed=True)
    num_register_tokens: Annotated[int, Range(0, 2**16)] = 4


class RegisterEmbeddings(MaskedPatchEmbeddings):
    """The same, where registers stand after the class token, which have no positions."""

    def __init__(self, patches: Patches, *, registers: nn.Parameter, **parts: Any) -> None:
        super().__init__(patches, **parts)
        self.registers = registers

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.registers)

    @property
    def prefix_tokens(self) -> int:
        return 1 + self.registers.shape[1]  # and the class token

    def embed(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        x = super().embed(x, grid)
        return torch.cat([x[:, :1], self.registers.expand(x.shape[0], -1, -1), x[:, 1:]], dim=1)


class Dinov2WithRegistersModel(Dinov2Model):
    """DINOv2 with registers, without a head."""

    config_class = Dinov2WithRegistersConfig
    base_model_prefix = "dinov2_with_registers"
    names = Dinov2Model.names | Names({"embeddings.register_tokens": "embeddings.registers"})
    config: Dinov2WithRegistersConfig

    def make_embeddings(self, c: Dinov2Config, *parts: Any) -> PatchEmbeddings:
        registers = nn.Parameter(torch.empty(1, self.config.num_register_tokens, c.hidden_size))
        return super().make_embeddings(c, partial(RegisterEmbeddings, registers=registers), partial(resized, antialias=True))


class Dinov2WithRegistersBackbone(Dinov2Backbone, Dinov2WithRegistersModel):
    """DINOv2 with registers that gives feature maps."""


class Dinov2WithRegistersForImageClassification(Dinov2ForImageClassification, backbone=Dinov2WithRegistersModel):
    base_model_prefix = "dinov2_with_registers"
