"""Arcee (Arcee AI 2025): Llama whose feed-forward layers have no gate, and the square of ReLU."""

from __future__ import annotations

from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig
from transept.layers import MLP
from transept.models import llama


class ArceeConfig(DecoderConfig):
    """Settings of Arcee; the defaults are those of AFM-4.5B."""

    model_type = "arcee"

    hidden_size: int = 2560
    intermediate_size: int = 18432
    hidden_act: str = "relu2"
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 128000
    eos_token_id: int | list[int] | None = 128001
    attention_bias: bool = False
    mlp_bias: bool = False


class ArceeModel(llama.LlamaModel):
    config_class = ArceeConfig
    gguf = llama.LlamaModel.gguf
    mlp_class = MLP


class ArceeForCausalLM(ForCausalLM[ArceeModel]): ...


class ArceeForSequenceClassification(llama.LlamaForSequenceClassification, backbone=ArceeModel): ...


class ArceeForTokenClassification(llama.LlamaForTokenClassification, backbone=ArceeModel): ...


class ArceeForQuestionAnswering(llama.LlamaForQuestionAnswering, backbone=ArceeModel): ...
