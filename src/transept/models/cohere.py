"""Command R (Cohere 2024): attention and feed-forward layer side by side, which read one norm; logits are scaled.

Neighbouring elements of a head turn together.
Shapes: B batch, H heads, T positions, E head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Layers, PaddingId
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import GroupedConfig
from transept.layers import Attention, InterleavedAttention, SharedNormParallel
from transept.models import llama
from transept.storage.gguf import GGUF


class CommandConfig(GroupedConfig):
    """What all of the Command models set; the defaults are those of the first one."""

    gguf_keys = {"logit_scale": "logit_scale"}

    vocab_size: int = 256000
    hidden_size: int = 8192
    intermediate_size: int = 22528
    logit_scale: float = 0.0625
    num_hidden_layers: Layers = 40
    num_attention_heads: int = 64
    hidden_act: str = "silu"
    max_position_embeddings: int = 8192
    layer_norm_eps: float = 1e-5
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 5
    eos_token_id: int | list[int] | None = 255001
    tie_word_embeddings: bool = True
    attention_bias: bool = False


class CohereConfig(CommandConfig):
    """Settings of Command R.

    Logits are multiplied by ``logit_scale``. With ``use_qk_norm`` queries and keys are normed, with weights for each head.
    """

    model_type = "cohere"
    default_theta = 5e5

    use_qk_norm: bool | None = False

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        return values | {"use_qk_norm": "blk.0.attn_q_norm.weight" in gguf.tensors}


class HeadNorm(nn.Module):
    """A norm of each head's states (B, H, T, E), with weights (H, E)."""

    def __init__(self, heads: int, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(heads, size)), eps

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        normed = F.layer_norm(wide, x.shape[-1:], eps=self.eps)
        return (normed * self.weight.to(wide.dtype)[:, None]).to(x.dtype)


class CohereAttention(InterleavedAttention):
    """Attention whose norms of queries and keys have weights for each head."""

    def head_norm(self, make: Callable[..., nn.Module], heads: int) -> nn.Module:
        self.heads_apart = False
        return make(heads, self.head_dim)


COHERE_BLOCK: Table = {
    "self_attn": ("self_attn", llama.ATTENTION),
    "mlp": "mlp",
    "input_layernorm": "self_attn_norm",
}


class CohereModel(llama.LlamaModel):
    config_class: ClassVar[type[CommandConfig]] = CohereConfig
    gguf = Layout()
    names = Names({"layers.*": ("layers.*", COHERE_BLOCK)}, ignore=("rotary_emb.inv_freq",))
    block_class, attention_class = SharedNormParallel, CohereAttention

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.hidden_size, self.config.layer_norm_eps, bias=False)

    def attention(self, layer: int, **more: Any) -> Attention:
        norm = partial(HeadNorm, eps=self.config.layer_norm_eps) if self.config.use_qk_norm else None
        return super().attention(layer, qk_norm=norm, **more)


class CohereForCausalLM(ForCausalLM[CohereModel]):
    def score(self, hidden: Tensor) -> Tensor:
        return super().score(hidden) * self.config.logit_scale
