"""GPT-2 (Radford et al. 2019): a pre-norm decoder with learned positions; ``add_cross_attention`` lets it read an encoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table, Transposed
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, Share
from transept.config.model import Config
from transept.core.inputs import ENCODER, PER_TOKEN
from transept.heads import classify, language, span
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, Attention, Context, Conv1D, FusedAttention, Pattern, PreNorm, standard_layers
from transept.models.gpt2.double_heads import DoubleHeadsConfig, ForDoubleHeads


class GPTConfig(Config):
    """What GPT-2 and its kin set; the sizes are those of the smallest GPT-2."""

    aliases = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    aliases |= {"max_position_embeddings": "n_positions"}

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: Annotated[int, Multiple("n_head")] = 768
    n_layer: Layers = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: Share = 0.1
    embd_pdrop: Share = 0.1
    attn_pdrop: Share = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: Deviation = 0.02
    scale_attn_weights: bool = True
    add_cross_attention: bool = False
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256


class GPT2Config(GPTConfig, DoubleHeadsConfig):
    """Settings of GPT-2; ``reorder_and_upcast_attn`` has no effect: scores of half precision are always widened."""

    model_type = "gpt2"

    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    classifier_dropout: Share | None = None


SELF: Table = {"c_attn": "qkv_proj", "c_proj": "o_proj"}
CROSS: Table = {"c_attn": "kv_proj", "q_attn": "q_proj", "c_proj": "o_proj"}
GPT2_BLOCK: Table = {
    "ln_1": "self_attn_norm",
    "attn": ("self_attn", SELF),
    "ln_2": "mlp_norm",
    "crossattention": ("cross_attn", CROSS),
    "ln_cross_attn": "cross_attn_norm",
    "mlp": ("mlp", {"c_fc": "up_proj", "c_proj": "down_proj"}),
}


def turned(features: int, outputs: int, bias: bool) -> Conv1D:
    return Conv1D(outputs, features)


class GPT2Attention(FusedAttention):
    linear = staticmethod(turned)


class GPT2MLP(MLP):
    linear = staticmethod(turned)


class GPT2Model(CausalBackbone):
    config_class: ClassVar[type[Config]] = GPT2Config
    base_model_prefix = "transformer"
    head_dropouts: ClassVar[tuple[str | float, ...]] = ("classifier_dropout", 0.1)
    scales_residual = infers_texts = True
    reads = ("input_ids", "past_key_values", "attention_mask", *PER_TOKEN, *ENCODER, "labels", "use_cache")
    names = Names(
        {"wte": "embed_tokens", "wpe": "embed_positions", "h.*": ("layers.*", GPT2_BLOCK), "ln_f": "norm"},
        ignore=("attn.bias", "attn.masked_bias", "crossattention.bias", "crossattention.masked_bias"),
    )
    mlp_class: ClassVar[type[MLP]] = GPT2MLP
    config: Any
    gguf = Layout(
        {"attn_qkv": Transposed("self_attn.qkv_proj"), "attn_output": Transposed("self_attn.o_proj")}
        | {"ffn_up": Transposed("mlp.up_proj"), "ffn_down": Transposed("mlp.down_proj")}
    )

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.n_embd)
        self.embed_positions = nn.Embedding(c.n_positions, c.n_embd)
        self.dropout = nn.Dropout(c.embd_pdrop)
        norm = partial(nn.LayerNorm, c.n_embd, c.layer_norm_epsilon)
        inner, scale = 4 * c.n_embd if c.n_inner is None else c.n_inner, None if c.scale_attn_weights else 1.0
        attention = partial(self.attention_kind(), c.n_embd, c.n_head, dropout=c.attn_pdrop, scale=scale)
        block, mlp = partial(PreNorm, dropout=c.resid_pdrop), partial(self.mlp_class, c.n_embd, inner, c.activation_function)
        cross = partial(attention, cross=True) if c.add_cross_attention else None
        self.layers = standard_layers(c, block, partial(attention, pattern=Pattern(causal=True)), mlp, norm, cross=cross)
        self.norm = norm()
        for index, layer in enumerate(self.layers if c.scale_attn_by_inverse_layer_idx else ()):
            for part in (part for part in layer.modules() if isinstance(part, Attention)):
                part.scale /= index + 1

    def attention_kind(self) -> Callable[..., Attention]:
        return GPT2Attention

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """Token types are rows of the vocabulary."""
        x = x + self.embed_positions(positions)
        return self.dropout(x if types is None else x + self.segments(types, x, self.embed_tokens))


class GPT2LMHeadModel(language.ForCausalLM[GPT2Model]): ...


class GPT2DoubleHeadsModel(ForDoubleHeads[GPT2Model]): ...


class GPT2ForSequenceClassification(classify.ForLastTokenClassification[GPT2Model]): ...


class GPT2ForTokenClassification(classify.ForTokenClassification[GPT2Model]): ...


class GPT2ForQuestionAnswering(span.ForQuestionAnswering[GPT2Model]):
    omits = (*span.ForQuestionAnswering.omits, "past_key_values")
