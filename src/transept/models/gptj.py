"""GPT-J (Wang and Komatsuzaki 2021): a decoder whose attention and feed-forward layers read one normed input, side by side.

Of each head the first ``rotary_dim`` elements turn, in pairs of neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, Share
from transept.config.model import Config
from transept.config.rotary import FOR_ALL
from transept.core.inputs import PER_TOKEN
from transept.heads import classify, language, span
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, Attention, Context, InterleavedAttention, Pattern, Rotary, SharedNormParallel, standard_layers
from transept.layers.rotary import RotaryTables


class GPTJConfig(Config):
    """Settings of GPT-J; the defaults are those of its checkpoint with 6 billion parameters."""

    model_type = "gptj"
    aliases = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    aliases |= {"max_position_embeddings": "n_positions"}

    vocab_size: int = 50400
    n_positions: int = 2048
    n_embd: Annotated[int, Multiple("n_head")] = 4096
    n_layer: Layers = 28
    n_head: int = 16
    rotary_dim: int = 64
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: Share = 0.0
    embd_pdrop: Share = 0.0
    attn_pdrop: Share = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: Deviation = 0.02
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    tie_word_embeddings: bool = False

    def validate(self) -> None:
        super().validate()
        size = self.n_embd // self.n_head
        if self.rotary_dim % 2 or not 2 <= self.rotary_dim <= size:
            self.fail("rotary_dim", f"must be an even number from 2 to the size of a head ({size})")


SELF: Table = {"k_proj": "k_proj", "v_proj": "v_proj", "q_proj": "q_proj", "out_proj": "o_proj"}
GPTJ_BLOCK: Table = {
    "ln_1": "self_attn_norm",
    "attn": ("self_attn", SELF),
    "mlp": ("mlp", {"fc_in": "up_proj", "fc_out": "down_proj"}),
}


class GPTJModel(CausalBackbone):
    config_class: ClassVar[type[GPTJConfig]] = GPTJConfig
    base_model_prefix = "transformer"
    infers_texts = True
    reads = ("input_ids", "past_key_values", "attention_mask", *PER_TOKEN, "labels", "use_cache")
    names = Names(
        {"wte": "embed_tokens", "h.*": ("layers.*", GPTJ_BLOCK), "ln_f": "norm"},
        ignore=("attn.bias", "attn.masked_bias", "attn.embed_positions", "attn.causal_mask"),
    )
    attention_class: ClassVar[Callable[..., Attention]] = InterleavedAttention

    def __init__(self, config: GPTJConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.n_embd)
        self.dropout = nn.Dropout(c.embd_pdrop)
        norm = partial(nn.LayerNorm, c.n_embd, c.layer_norm_epsilon)
        block = partial(SharedNormParallel, dropout=c.resid_pdrop)
        options = {"bias": False, "dropout": c.attn_pdrop, "pattern": Pattern(causal=True), "rotary": FOR_ALL}
        attention = partial(self.attention_class, c.n_embd, c.n_head, **options)
        mlp = partial(MLP, c.n_embd, 4 * c.n_embd if c.n_inner is None else c.n_inner, c.activation_function)
        self.layers = standard_layers(c, block, attention, mlp, norm)
        self.norm = norm()
        self.rotary_emb = RotaryTables({FOR_ALL: Rotary(c.rotary_dim, {"rope_theta": 10000.0})})

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """Token types are rows of the vocabulary."""
        ctx.rotary = self.rotary_emb.tables(positions, x.dtype)
        return self.dropout(x if types is None else x + self.segments(types, x, self.embed_tokens))


class GPTJForCausalLM(language.ForCausalLM[GPTJModel]):
    bias = True


class GPTJForSequenceClassification(classify.ForLastTokenClassification[GPTJModel]): ...


class GPTJForQuestionAnswering(span.ForQuestionAnswering[GPTJModel]):
    omits = (*span.ForQuestionAnswering.omits, "past_key_values")
