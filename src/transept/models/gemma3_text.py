"""Gemma 3's model of texts (Kamath et al. 2025): Gemma 2 whose queries and keys are normed, with five windows to a full layer.

Layers with a window and those without turn by rotary tables of their own. EmbeddingGemma is this too, without a causal mask.
"""

from __future__ import annotations

from transept.config.fields import Count, Positive
from transept.config.rotary import theta_of
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import FULL, SLIDING
from transept.layers.norm import CenteredRMSNorm
from transept.models.gemma2 import Gemma2Config, Gemma2ForCausalLM, Gemma2Model
from transept.models.llama import LlamaForSequenceClassification


class Gemma3TextConfig(Gemma2Config):
    """Settings of Gemma 3's model of texts.

    Without ``layer_types`` one layer in ``sliding_window_pattern`` sees all, and the others a window. ``rope_parameters`` has a
    mapping for each kind of layer; ``rope_theta`` and ``rope_scaling`` of older files are for layers that see all, and
    ``rope_local_base_freq`` is the base of the others. With ``use_bidirectional_attention`` a query sees what follows it, too,
    and half of a window on either side.
    """

    model_type = "gemma3_text"
    default_thetas = {FULL: 1e6, SLIDING: 1e4}
    scaled_kinds = (FULL,)

    vocab_size: int = 262208
    max_position_embeddings: int = 131072
    attn_logit_softcapping: Positive | None = None
    final_logit_softcapping: Positive | None = None
    use_bidirectional_attention: bool | None = False
    sliding_window_pattern: Count = 6

    rope_theta, rope_local_base_freq = theta_of(FULL), theta_of(SLIDING)
    is_causal = property(lambda self: not self.use_bidirectional_attention)

    def slides(self, layer: int) -> bool:
        return (layer + 1) % self.sliding_window_pattern != 0

    def window(self, layer: int) -> int | None:
        window = super().window(layer)
        return window // 2 + 1 if window is not None and self.use_bidirectional_attention else window


class Gemma3TextModel(Gemma2Model):
    config_class = Gemma3TextConfig
    qk_norm_class = CenteredRMSNorm
    gguf = Gemma2Model.gguf
    config: Gemma3TextConfig

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.config.is_causal


class Gemma3ForCausalLM(Gemma2ForCausalLM, ForCausalLM[Gemma3TextModel]): ...


class Gemma3TextForSequenceClassification(LlamaForSequenceClassification, backbone=Gemma3TextModel): ...
