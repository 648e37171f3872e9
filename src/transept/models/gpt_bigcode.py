"""GPTBigCode (Ben Allal et al. 2023): GPT-2 whose heads share one pair of keys and values. StarCoder is this."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from transept.checkpoint.gguf import Layout
from transept.config.fields import Deviation, Layers, Multiple, Share
from transept.config.model import Config
from transept.heads import classify, language
from transept.layers import MLP, Attention, ByHeadAttention, FusedAttention
from transept.models.gpt2 import GPT2Model


class GPTBigCodeConfig(Config):
    """Settings of GPTBigCode.

    Without ``multi_query`` each head has keys and values of its own. ``attention_softmax_in_fp32`` and
    ``scale_attention_softmax_in_fp32`` have no effect: scores of half precision are always widened.
    """

    model_type = "gpt_bigcode"
    aliases = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    aliases |= {"max_position_embeddings": "n_positions"}

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: Annotated[int, Multiple("n_head")] = 768
    n_layer: Layers = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_pytorch_tanh"
    resid_pdrop: Share = 0.1
    embd_pdrop: Share = 0.1
    attn_pdrop: Share = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: Deviation = 0.02
    scale_attn_weights: bool = True
    attention_softmax_in_fp32: bool = True
    scale_attention_softmax_in_fp32: bool = True
    multi_query: bool = True
    add_cross_attention: bool = False
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    scale_attn_by_inverse_layer_idx = False

    @property
    def num_key_value_heads(self) -> int:
        return 1 if self.multi_query else self.n_head

    def validate(self) -> None:
        super().validate()
        if self.add_cross_attention:
            self.fail("add_cross_attention", "must be false: there are no weights that such layers could read")


class GPTBigCodeModel(GPT2Model):
    config_class = GPTBigCodeConfig
    gguf = Layout()
    head_dropouts = (0.1,)
    mlp_class = MLP

    def attention_kind(self) -> Callable[..., Attention]:
        return partial(FusedAttention, kv_heads=1) if self.config.multi_query else ByHeadAttention


class GPTBigCodeForCausalLM(language.ForCausalLM[GPTBigCodeModel]): ...


class GPTBigCodeForSequenceClassification(classify.ForLastTokenClassification[GPTBigCodeModel]): ...


class GPTBigCodeForTokenClassification(classify.ForTokenClassification[GPTBigCodeModel]): ...
