"""GPTBigCode (Ben Allal et al. 2023): GPT-2 whose heads share one pair of keys and values. StarCoder is this."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from transept.checkpoint.gguf import Layout
from transept.heads import classify, language
from transept.layers import MLP, Attention, ByHeadAttention, FusedAttention
from transept.models.gpt2 import GPT2Model, GPTConfig


class GPTBigCodeConfig(GPTConfig):
    """Settings of GPTBigCode.

    Without ``multi_query`` each head has keys and values of its own. ``attention_softmax_in_fp32`` and
    ``scale_attention_softmax_in_fp32`` have no effect: scores of half precision are always widened.
    """

    model_type = "gpt_bigcode"

    activation_function: str = "gelu_pytorch_tanh"
    attention_softmax_in_fp32: bool = True
    scale_attention_softmax_in_fp32: bool = True
    multi_query: bool = True
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
