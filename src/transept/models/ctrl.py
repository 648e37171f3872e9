"""CTRL (Keskar et al. 2019): a pre-norm decoder whose texts begin with a control code; positions are sines and cosines."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, Share
from transept.config.model import Config
from transept.core.inputs import PER_TOKEN
from transept.heads import classify, language
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, Attention, Context, Pattern, PreNorm, standard_layers


class CTRLConfig(Config):
    """Settings of CTRL; the defaults are those of its only checkpoint."""

    model_type = "ctrl"
    aliases = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    aliases |= {"max_position_embeddings": "n_positions"}

    vocab_size: int = 246534
    n_positions: int = 256
    n_embd: Annotated[int, Multiple("n_head")] = 1280
    dff: int = 8192
    n_layer: Layers = 48
    n_head: int = 16
    resid_pdrop: Share = 0.1
    embd_pdrop: Share = 0.1
    layer_norm_epsilon: float = 1e-6
    initializer_range: Deviation = 0.02


CTRL_BLOCK: Table = {
    "multi_head_attention": ("self_attn", {"Wq": "q_proj", "Wk": "k_proj", "Wv": "v_proj", "dense": "o_proj"}),
    "ffn": ("mlp", {"0": "up_proj", "2": "down_proj"}),
    "layernorm1": "self_attn_norm",
    "layernorm2": "mlp_norm",
}


class CTRLModel(CausalBackbone):
    config_class = CTRLConfig
    base_model_prefix = "transformer"
    infers_texts = True
    reads = ("input_ids", "past_key_values", "attention_mask", *PER_TOKEN, "labels", "use_cache")
    names = Names({"w": "embed_tokens", "h.*": ("layers.*", CTRL_BLOCK), "layernorm": "norm"}, ignore=("pos_encoding",))

    def __init__(self, config: CTRLConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.n_embd)
        self.dropout = nn.Dropout(c.embd_pdrop)
        norm = partial(nn.LayerNorm, c.n_embd, 1e-6)
        attention = partial(Attention, c.n_embd, c.n_head, pattern=Pattern(causal=True))
        mlp = partial(MLP, c.n_embd, c.dff, "relu")
        self.layers = standard_layers(c, partial(PreNorm, dropout=c.resid_pdrop), attention, mlp, norm)
        self.norm = nn.LayerNorm(c.n_embd, c.layer_norm_epsilon)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """Token types are rows of the vocabulary."""
        x = x if types is None else x + self.segments(types, x, self.embed_tokens)
        return self.dropout(math.sqrt(self.config.n_embd) * x + waves(positions, self.config.n_embd).to(x.dtype))


def waves(positions: Tensor, dim: int) -> Tensor:
    """(1 or B, T) of positions -> (1 or B, T, D): sines, then cosines."""
    pairs = torch.arange(dim, device=positions.device).float() // 2
    angles = positions[..., None].float() * (1 / 10000 ** (2 * pairs / dim))
    return torch.cat([angles[..., 0::2].sin(), angles[..., 1::2].cos()], dim=-1)


class CTRLLMHeadModel(language.ForCausalLM[CTRLModel]):
    bias = True


class CTRLForSequenceClassification(classify.ForLastTokenClassification[CTRLModel]):
    names = Names({"classifier": "head.out_proj"})

    def reads_cache(self, labels: Tensor | None) -> bool:
        """False: nothing comes after the last token."""
        return False
