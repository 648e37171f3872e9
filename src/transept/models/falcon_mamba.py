"""Falcon Mamba (Zuo et al. 2024): Mamba whose step sizes, and what is written and read of states, are normed."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from transept.models.mamba import MambaConfig, MambaForCausalLM, MambaMixer, MambaModel


class FalconMambaConfig(MambaConfig):
    """Settings of Falcon Mamba, which are those of Mamba; ``mixer_rms_eps`` is of the norms in the mixers."""

    model_type = "falcon_mamba"
    aliases = {"use_falcon_mambapy": "use_mambapy"}

    mixer_rms_eps: float = 1e-6

    def to_gguf(self) -> dict[str, Any]:
        return super().to_gguf() | {"ssm.dt_b_c_rms": True}


class NormedMixer(MambaMixer):
    """A mixer with norms without weights, of this epsilon, behind the projection that selects."""

    eps: float

    def select(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.rms_norm(part, part.shape[-1:], eps=self.eps) for part in super().select(x))


class FalconMambaModel(MambaModel):
    config_class = FalconMambaConfig
    gguf = MambaModel.gguf
    mixer_class = NormedMixer

    def mixer(self, layer: int) -> nn.Module:
        made: Any = super().mixer(layer)
        made.eps = self.config.mixer_rms_eps
        return made


class FalconMambaForCausalLM(MambaForCausalLM, backbone=FalconMambaModel): ...
