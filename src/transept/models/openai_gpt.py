"""GPT (Radford et al. 2018): the first of its kind, with norms after its sublayers and learned positions."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, Share
from transept.core.inputs import PER_TOKEN
from transept.heads import classify, language
from transept.kinds.text import CausalBackbone
from transept.layers import Context, Pattern, PostNorm, standard_layers
from transept.models.gpt2 import GPT2MLP, GPT2Attention
from transept.models.gpt2.double_heads import DoubleHeadsConfig, ForDoubleHeads

ACTIVATIONS = {"gelu": "gelu_new"}  # what the others call by another name


class OpenAIGPTConfig(DoubleHeadsConfig):
    """Settings of GPT; ``afn`` is the activation, of which ``"gelu"`` means the approximation by a tangent.

    The reference has no cache for this family; here ``use_cache`` asks for one.
    """

    model_type = "openai-gpt"
    aliases = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    aliases |= {"max_position_embeddings": "n_positions"}

    vocab_size: int = 40478
    n_positions: int = 512
    n_embd: Annotated[int, Multiple("n_head")] = 768
    n_layer: Layers = 12
    n_head: int = 12
    afn: str = "gelu"
    resid_pdrop: Share = 0.1
    embd_pdrop: Share = 0.1
    attn_pdrop: Share = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: Deviation = 0.02
    use_cache: bool = False


GPT_BLOCK: Table = {
    "attn": ("self_attn", {"c_attn": "qkv_proj", "c_proj": "o_proj"}),
    "ln_1": "self_attn_norm",
    "mlp": ("mlp", {"c_fc": "up_proj", "c_proj": "down_proj"}),
    "ln_2": "mlp_norm",
}


class OpenAIGPTModel(CausalBackbone):
    config_class = OpenAIGPTConfig
    base_model_prefix = "transformer"
    reads = ("input_ids", "attention_mask", *PER_TOKEN, "labels", "past_key_values", "use_cache")
    names = Names(
        {"tokens_embed": "embed_tokens", "positions_embed": "embed_positions", "h.*": ("layers.*", GPT_BLOCK)},
        ignore=("attn.bias", "position_ids"),
    )

    def __init__(self, config: OpenAIGPTConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.n_embd)
        self.embed_positions = nn.Embedding(c.n_positions, c.n_embd)
        self.dropout = nn.Dropout(c.embd_pdrop)
        norm = partial(nn.LayerNorm, c.n_embd, c.layer_norm_epsilon)
        attention = partial(GPT2Attention, c.n_embd, c.n_head, pattern=Pattern(causal=True), dropout=c.attn_pdrop)
        mlp = partial(GPT2MLP, c.n_embd, 4 * c.n_embd, ACTIVATIONS.get(c.afn, c.afn))
        self.layers = standard_layers(c, partial(PostNorm, dropout=c.resid_pdrop), attention, mlp, norm)
        self.norm = None

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """Token types are rows of the vocabulary."""
        x = x + self.embed_positions(positions)
        return self.dropout(x if types is None else x + self.segments(types, x, self.embed_tokens))


class OpenAIGPTLMHeadModel(language.ForCausalLM[OpenAIGPTModel]): ...


class OpenAIGPTDoubleHeadsModel(ForDoubleHeads[OpenAIGPTModel]):
    # Its files have the tied table as the head's.
    names = Names(
        {"lm_head": "lm_head", "multiple_choice_head.summary": "head.out_proj"},
        ties={"backbone.embed_tokens.weight": "lm_head.weight"},
    )


class OpenAIGPTForSequenceClassification(classify.ForLastTokenClassification[OpenAIGPTModel]): ...
