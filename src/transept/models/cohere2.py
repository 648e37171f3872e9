"""Command R7B and Command A (Cohere 2024): Command R with windows, where layers that see all have no rotary positions."""

from __future__ import annotations

from transept.config.fields import Count
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import LayeredConfig
from transept.models.cohere import CohereForCausalLM, CohereModel, CommandConfig


class Cohere2Config(CommandConfig, LayeredConfig):
    """Settings of Command R7B and Command A; the sizes are those of Command R.

    Without ``layer_types`` one layer in ``sliding_window_pattern`` sees all, and has no rotary positions.
    """

    model_type = "cohere2"

    sliding_window_pattern: Count = 4
    use_qk_norm = False

    def slides(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern != 0

    def rope_kind(self, layer: int) -> str | None:
        return super().rope_kind(layer) if self.window(layer) is not None else None


class Cohere2Model(CohereModel):
    config_class = Cohere2Config
    gguf = CohereModel.gguf


class Cohere2ForCausalLM(CohereForCausalLM, ForCausalLM[Cohere2Model]): ...
