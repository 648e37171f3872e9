"""StableLM (Bellagente et al. 2024): Llama with layer norms, in which a part of each head turns.

Attention and feed-forward layer are side by side on request, and queries and keys are normed.
Shapes: B batch, H heads, T positions, E head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Layers, Share
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import GroupedConfig
from transept.layers import Attention, Block, PreNorm, SharedNormParallel
from transept.models import llama


class StableLmConfig(GroupedConfig):
    """Settings of StableLM; the defaults are those of StableLM with 3 billion parameters.

    With ``qk_layernorm`` each head of queries and keys has a norm of its own; with ``use_parallel_residual`` attention and
    feed-forward layer read one norm.
    """

    model_type = "stablelm"
    default_share = 0.25
    gguf_keys = {"use_parallel_residual": "use_parallel_residual"}

    vocab_size: int = 50304
    intermediate_size: int = 6912
    hidden_size: int = 2560
    num_hidden_layers: Layers = 32
    hidden_act: str = "silu"
    max_position_embeddings: int = 4096
    layer_norm_eps: float = 1e-5
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False
    hidden_dropout: Share = 0.0
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0


class NormPerHead(nn.Module):
    """A norm for each head's states (B, H, T, E)."""

    def __init__(self, heads: int, size: int, eps: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(size, eps, bias=False) for _ in range(heads))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([norm(x[:, head]) for head, norm in enumerate(self.norms)], dim=1)


class PerHeadAttention(Attention):
    """Attention whose queries and keys have a norm for each head."""

    def head_norm(self, make: Callable[..., nn.Module], heads: int) -> nn.Module:
        self.heads_apart = False
        return make(heads, self.head_dim)


STABLELM_ATTENTION: Table = {
    **{name: name for name in ("q_proj", "k_proj", "v_proj", "o_proj")},
    "q_layernorm": "q_norm",
    "k_layernorm": "k_norm",
}
STABLELM_BLOCK: Table = {**llama.LLAMA_BLOCK, "self_attn": ("self_attn", STABLELM_ATTENTION)}


class StableLmModel(llama.LlamaModel):
    config_class = StableLmConfig
    names = llama.LlamaModel.names | Names({"layers.*": ("layers.*", STABLELM_BLOCK)})
    gguf = Layout()
    attention_class = PerHeadAttention
    config: StableLmConfig

    def block(self, layer: int, **more: Any) -> Block:
        kind = SharedNormParallel if self.config.use_parallel_residual else PreNorm
        return kind(
            self.attention(layer), self.feed_forward(layer), self.make_norm, mlp_dropout=self.config.hidden_dropout, **more
        )

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.hidden_size, self.config.layer_norm_eps)

    def attention(self, layer: int, **more: Any) -> Attention:
        c = self.config
        norm = partial(NormPerHead, eps=c.layer_norm_eps) if c.qk_layernorm else None
        return super().attention(layer, bias=c.use_qkv_bias, out_bias=False, qk_norm=norm, **more)


class StableLmForCausalLM(ForCausalLM[StableLmModel]): ...


class StableLmForSequenceClassification(llama.LlamaForSequenceClassification, backbone=StableLmModel): ...


class StableLmForTokenClassification(llama.LlamaForTokenClassification, backbone=StableLmModel): ...
