"""Apertus (Apertus et al. 2025): Llama with normed heads and feed-forward layers whose activation, xIELU, is learnt."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import Change, Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig, gated_mlp
from transept.layers import MLP, RMSNorm
from transept.models import llama
from transept.storage.gguf import GGUF

_ROPE = {"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "original_max_position_embeddings": 8192}
_ROPE |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


class ApertusConfig(DecoderConfig):
    """Settings of Apertus; the defaults are those of Apertus with 8 billion parameters.

    ``"xielu"`` is an activation with two numbers that are learnt; others have none.
    """

    model_type = "apertus"
    default_theta = 12e6

    vocab_size: int = 131072
    intermediate_size: int = 14336
    hidden_act: str = "xielu"
    max_position_embeddings: int = 65536
    rms_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 3
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    attention_bias: bool = False

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        return {"rope_scaling": {"rope_type": "default"}} | values

    @classmethod
    def complete(cls, rope: dict[str, Any]) -> dict[str, Any]:
        return super().complete(rope or dict(_ROPE))


class XIELU(nn.Module):
    """An activation (Huang and Schlag 2024) that is a parabola above zero and exponential below, with a learnt factor for each.

    The factors are stored so that they stay positive, and the lower one above ``beta``.
    """

    beta: Tensor
    eps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p, self.alpha_n = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))
        self.register_buffer("beta", torch.tensor(0.5))
        self.register_buffer("eps", torch.tensor(-1e-6))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha_p, math.log(math.expm1(0.8)))
        nn.init.constant_(self.alpha_n, math.log(math.expm1(0.8 - 0.5)))
        nn.init.constant_(self.beta, 0.5)
        nn.init.constant_(self.eps, -1e-6)

    def forward(self, x: Tensor) -> Tensor:
        above, below = F.softplus(self.alpha_p), self.beta + F.softplus(self.alpha_n)
        curve = torch.where(x > 0, above * x * x, (torch.expm1(torch.minimum(x, self.eps)) - x) * below)
        return curve + self.beta * x


class ApertusMLP(MLP):
    """A feed-forward layer with a learnt activation."""

    def __init__(self, dim: int, hidden: int, act: str, **options: Any) -> None:
        super().__init__(dim, hidden, "linear", **options)
        self.act_fn = XIELU()

    def whole(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))


APERTUS_BLOCK: Table = {
    "self_attn": ("self_attn", llama.ATTENTION),
    "mlp": "mlp",
    "attention_layernorm": "self_attn_norm",
    "feedforward_layernorm": "mlp_norm",
}


_SCALAR = Change(lambda tensor, config: tensor.reshape(()), lambda tensor, config: tensor.reshape(1))


class ApertusModel(llama.LlamaModel):
    config_class = ApertusConfig
    names = Names({"layers.*": ("layers.*", APERTUS_BLOCK)}, ignore=("rotary_emb.inv_freq",))
    gguf = Layout(
        changes=dict.fromkeys(("xielu.beta", "xielu.eps"), _SCALAR),
        numbers={f"xielu.{name}": f"mlp.act_fn.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")},
    )
    qk_norm_class = RMSNorm

    def feed_forward(self, layer: int) -> nn.Module:
        act = self.config.hidden_act
        return gated_mlp(self.config, act, ApertusMLP if act == "xielu" else MLP)


class ApertusForCausalLM(ForCausalLM[ApertusModel]): ...


class ApertusForTokenClassification(llama.LlamaForTokenClassification, backbone=ApertusModel): ...
