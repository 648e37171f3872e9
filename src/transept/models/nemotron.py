"""Nemotron (Parmar et al. 2024): Llama with layer norms centred at one and the square of ReLU; half of each head turns."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import NORMS, PLUS_ONE, Layout
from transept.config.fields import Deviation
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import GroupedConfig
from transept.layers import MLP
from transept.models import llama


class NemotronConfig(GroupedConfig):
    """Settings of Nemotron; the defaults are those of Nemotron-3 with 8 billion parameters."""

    model_type = "nemotron"
    default_share = 0.5

    vocab_size: int = 256000
    hidden_size: int = 6144
    intermediate_size: int = 24576
    num_attention_heads: int = 48
    hidden_act: str = "relu2"
    max_position_embeddings: int = 4096
    initializer_range: Deviation = 0.0134
    norm_eps: float = 1e-5
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    attention_bias: bool = False
    mlp_bias: bool = False


class CenteredLayerNorm(nn.LayerNorm):
    """A layer norm whose weights are stored as their distance from one."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight + 1.0, self.bias, self.eps)


class NemotronModel(llama.LlamaModel):
    config_class = NemotronConfig
    gguf = Layout(changes=dict.fromkeys(NORMS, PLUS_ONE))
    mlp_class = MLP

    def make_norm(self) -> nn.Module:
        return CenteredLayerNorm(self.config.hidden_size, self.config.norm_eps)


class NemotronForCausalLM(ForCausalLM[NemotronModel]): ...


class NemotronForSequenceClassification(llama.LlamaForSequenceClassification, backbone=NemotronModel): ...


class NemotronForTokenClassification(llama.LlamaForTokenClassification, backbone=NemotronModel): ...


class NemotronForQuestionAnswering(llama.LlamaForQuestionAnswering, backbone=NemotronModel): ...
