"""GPT-Neo (Black et al. 2021): GPT-2 with unscaled scores, in which every other layer sees a window of positions only."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, Multiple, Share, derived
from transept.config.model import Config
from transept.core.inputs import PER_TOKEN
from transept.heads import classify, language, span
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, Attention, Context, Pattern, PreNorm

KINDS = ("global", "local")


class GPTNeoConfig(Config):
    """Settings of GPT-Neo; the defaults are those of its checkpoint with 1.3 billion parameters.

    ``attention_types`` holds pairs of a list of kinds, ``global`` or ``local``, and how often it is repeated;
    ``attention_layers`` follows from it and names the kind of each layer. Local layers see ``window_size`` positions.
    """

    model_type = "gpt_neo"
    aliases = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}

    vocab_size: int = 50257
    max_position_embeddings: int = 2048
    hidden_size: Annotated[int, Multiple("num_heads")] = 2048
    num_layers: Layers = 24
    attention_types: list[Any] = derived(lambda c: [[[*KINDS], 12]])
    attention_layers: list[str] = derived(lambda c: [kind for kinds, times in c.attention_types for kind in times * kinds])
    num_heads: int = 16
    intermediate_size: int | None = None
    window_size: Count = 256
    activation_function: str = "gelu_new"
    resid_dropout: Share = 0.0
    embed_dropout: Share = 0.0
    attention_dropout: Share = 0.0
    classifier_dropout: Share = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: Deviation = 0.02
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Kinds of layers follow from ``attention_types``, also where a file has both."""
        return {name: value for name, value in super().upgrade(values).items() if name != "attention_layers"}

    def validate(self) -> None:
        for pair in self.attention_types:
            if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], list | tuple)):
                self.fail("attention_types", "must hold pairs of a list of kinds and a number")
        super().validate()
        if len(self.attention_layers) != self.num_layers or {*self.attention_layers} - {*KINDS}:
            self.fail("attention_types", f"must give 'global' or 'local' for each of {self.num_layers} layers")

    def window(self, layer: int) -> int | None:
        """How many positions a layer's queries see, themselves included; ``None`` for all before them."""
        return self.window_size if self.attention_layers[layer] == "local" else None


ATTENTION: Table = {"k_proj": "k_proj", "v_proj": "v_proj", "q_proj": "q_proj", "out_proj": "o_proj"}
GPT_NEO_BLOCK: Table = {
    "ln_1": "self_attn_norm",
    "attn.attention": ("self_attn", ATTENTION),
    "ln_2": "mlp_norm",
    "mlp": ("mlp", {"c_fc": "up_proj", "c_proj": "down_proj"}),
}


class GPTNeoModel(CausalBackbone):
    config_class = GPTNeoConfig
    base_model_prefix = "transformer"
    head_dropouts = ("classifier_dropout",)
    infers_texts = True
    reads = ("input_ids", "past_key_values", "attention_mask", *PER_TOKEN, "labels", "use_cache")
    names = Names(
        {"wte": "embed_tokens", "wpe": "embed_positions", "h.*": ("layers.*", GPT_NEO_BLOCK), "ln_f": "norm"},
        ignore=("attn.attention.bias", "attn.attention.masked_bias"),
    )

    def __init__(self, config: GPTNeoConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.embed_positions = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.dropout = nn.Dropout(c.embed_dropout)
        norm = partial(nn.LayerNorm, c.hidden_size, c.layer_norm_epsilon)
        options: dict[str, Any] = {"bias": False, "out_bias": True, "scale": 1.0, "dropout": c.attention_dropout}
        inner = 4 * c.hidden_size if c.intermediate_size is None else c.intermediate_size
        mlp = partial(MLP, c.hidden_size, inner, c.activation_function, chunk_size=c.chunk_size_feed_forward)
        patterns = (Pattern(causal=True, window=c.window(layer)) for layer in range(c.num_layers))
        attentions = (Attention(c.hidden_size, c.num_heads, pattern=pattern, **options) for pattern in patterns)
        self.layers = nn.ModuleList(PreNorm(attention, mlp(), norm, dropout=c.resid_dropout) for attention in attentions)
        self.norm = norm()

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """Token types are rows of the vocabulary."""
        x = x + self.embed_positions(positions)
        return self.dropout(x if types is None else x + self.segments(types, x, self.embed_tokens))


class GPTNeoForCausalLM(language.ForCausalLM[GPTNeoModel]): ...


class GPTNeoForSequenceClassification(classify.ForLastTokenClassification[GPTNeoModel]): ...


class GPTNeoForTokenClassification(classify.ForTokenClassification[GPTNeoModel]): ...


class GPTNeoForQuestionAnswering(span.ForQuestionAnswering[GPTNeoModel]):
    omits = (*span.ForQuestionAnswering.omits, "past_key_values")
