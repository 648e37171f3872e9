"""DINOv2 with registers (Darcet et al. 2024): a few learned positions after the class token, where the network keeps notes.

Shapes: B batch, N patches, R registers, T = N + R + 1 positions, D hidden size.
"""

from __future__ import annotations

from typing import Annotated, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Range, derived
from transept.core.inputs import RecordOptions
from transept.layers.context import Context
from transept.models.dinov2 import Dinov2Backbone, Dinov2Config, Dinov2ForImageClassification, Dinov2Model


class Dinov2WithRegistersConfig(Dinov2Config):
    """Settings of DINOv2 with registers; the defaults are those of dinov2-with-registers-base but for its patches of 14."""

    model_type = "dinov2_with_registers"

    patch_size: int | list[int] = 16
    use_mask_token: bool = derived(lambda c: True, fixed=True)
    num_register_tokens: Annotated[int, Range(0, 2**16)] = 4


class Dinov2WithRegistersModel(Dinov2Model):
    """DINOv2 with registers, without a head."""

    config_class = Dinov2WithRegistersConfig
    base_model_prefix = "dinov2_with_registers"
    names = Dinov2Model.names | Names({"embeddings.register_tokens": "registers"})
    config: Dinov2WithRegistersConfig
    antialias = True

    def __init__(self, config: Dinov2WithRegistersConfig) -> None:
        super().__init__(config)
        self.registers = nn.Parameter(torch.empty(1, config.num_register_tokens, config.hidden_size))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.registers)

    @property
    def prefix_tokens(self) -> int:  # type: ignore[override]
        return 1 + self.config.num_register_tokens

    def begin_states(
        self, x: Tensor, grid: tuple[int, int], mask: Tensor | None, **options: Unpack[RecordOptions]
    ) -> tuple[Tensor, Context]:
        x = torch.cat([x[:, :1], self.registers.expand(len(x), -1, -1), x[:, 1:]], dim=1)
        return super().begin_states(x, grid, mask, **options)


class Dinov2WithRegistersBackbone(Dinov2Backbone, Dinov2WithRegistersModel):
    """DINOv2 with registers that gives feature maps."""


class Dinov2WithRegistersForImageClassification(Dinov2ForImageClassification, backbone=Dinov2WithRegistersModel):
    base_model_prefix = "dinov2_with_registers"
