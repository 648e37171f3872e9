"""EXAONE 4.0 (LG AI Research 2025): OLMo 2's norms, normed heads, and rotary positions in layers with a window alone."""

from __future__ import annotations

from transept.checkpoint.gguf import NORMED_OUTPUTS
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig, LayeredConfig
from transept.layers import OutputNorm, RMSNorm
from transept.models import llama
from transept.models.olmo2 import Olmo2Model


class Exaone4Config(LayeredConfig, DecoderConfig):
    """Settings of EXAONE 4.0.

    Without ``layer_types``, one layer in ``sliding_window_pattern`` sees all, and has no rotary positions; a pattern of
    letters, such as ``"LLLG"``, has an L for each layer with a window. Without ``sliding_window`` all layers see all, and turn.
    """

    model_type = "exaone4"

    vocab_size: int = 102400
    intermediate_size: int = 16384
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    sliding_window_pattern: str | int | None = 4

    def validate(self) -> None:
        if self.sliding_window is None:
            self.sliding_window_pattern = 0
        super().validate()

    def slides(self, layer: int) -> bool:
        pattern = self.sliding_window_pattern
        if isinstance(pattern, str) and pattern:
            return pattern[layer % len(pattern)] == "L"
        return isinstance(pattern, int) and pattern > 0 and (layer + 1) % pattern != 0

    def rope_kind(self, layer: int) -> str | None:
        turns = self.sliding_window is None or self.window(layer) is not None
        return super().rope_kind(layer) if turns else None


class Exaone4Model(llama.LlamaModel):
    config_class = Exaone4Config
    gguf = NORMED_OUTPUTS
    names = Olmo2Model.names
    block_class, qk_norm_class = OutputNorm, RMSNorm


class Exaone4ForCausalLM(ForCausalLM[Exaone4Model]): ...


class Exaone4ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Exaone4Model): ...


class Exaone4ForTokenClassification(llama.LlamaForTokenClassification, backbone=Exaone4Model): ...


class Exaone4ForQuestionAnswering(llama.LlamaForQuestionAnswering, backbone=Exaone4Model): ...
