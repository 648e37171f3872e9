"""GLM-4-0414 (Z.ai 2025): GLM-4 with norms before and after each sublayer."""

from __future__ import annotations

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.heads.language import ForCausalLM
from transept.layers import SandwichNorm
from transept.models import llama
from transept.models.glm import GlmConfig, GlmModel


class Glm4Config(GlmConfig):
    """Settings of GLM-4-0414; the defaults are those of GLM-4."""

    model_type = "glm4"


GLM4_NORMS: Table = {"post_self_attn_layernorm": "self_attn_post_norm", "post_mlp_layernorm": "mlp_post_norm"}


class Glm4Model(GlmModel):
    config_class = Glm4Config
    gguf = Layout({"ffn_up": "mlp.gate_up_proj"})
    names = llama.LlamaModel.names | Names({"layers.*": ("layers.*", {**llama.LLAMA_BLOCK, **GLM4_NORMS})})
    block_class = SandwichNorm


class Glm4ForCausalLM(ForCausalLM[Glm4Model]): ...


class Glm4ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=Glm4Model): ...


class Glm4ForTokenClassification(llama.LlamaForTokenClassification, backbone=Glm4Model): ...
