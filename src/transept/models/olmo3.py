"""OLMo 3 (Olmo et al. 2025): OLMo 2 with windows in three of four layers, which turn by a rotary table of their own."""

from __future__ import annotations

from transept.config.rotary import theta_of
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import FULL, SLIDING, LayeredConfig
from transept.models import llama
from transept.models.olmo2 import Olmo2Config, Olmo2Model


class Olmo3Config(Olmo2Config, LayeredConfig):
    """Settings of OLMo 3; the defaults are those of OLMo 2.

    Without ``layer_types`` every fourth layer sees all. ``rope_parameters`` has a mapping for each kind of layer;
    ``rope_theta`` and ``rope_scaling`` of older files are for layers that see all.
    """

    model_type = "olmo3"
    default_thetas = {FULL: 5e5, SLIDING: 5e5}
    scaled_kinds = (FULL,)

    rope_theta = theta_of(FULL)

    def slides(self, layer: int) -> bool:
        return (layer + 1) % 4 != 0


class Olmo3Model(Olmo2Model):
    config_class = Olmo3Config
    gguf = Olmo2Model.gguf


class Olmo3ForCausalLM(ForCausalLM[Olmo3Model]): ...


class Olmo3ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Olmo3Model): ...
