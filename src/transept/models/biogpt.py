"""BioGPT (Luo et al. 2022): a pre-norm decoder of biomedical texts, with learned positions behind two that are none."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId, Share
from transept.heads import classify, language
from transept.kinds.encoder import EncoderConfig
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, Attention, Context, OffsetPositions, Pattern, PreNorm, standard_layers
from transept.models.bart import ScaledEmbedding
from transept.objectives.classification import IGNORED
from transept.objectives.terms import LossTerm


class BioGptConfig(EncoderConfig):
    """Settings of BioGPT; the defaults are those of its checkpoint with 347 million parameters.

    ``layer_norm_eps`` has no effect: norms add 1e-5.
    """

    model_type = "biogpt"

    vocab_size: int = 42384
    hidden_size: int = 1024
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    intermediate_size: int = 4096
    max_position_embeddings: int = 1024
    scale_embedding: bool = True
    layerdrop: Share = 0.0
    activation_dropout: Share = 0.0
    pad_token_id: PaddingId | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2

    @property
    def embed_scale(self) -> float:
        return math.sqrt(self.hidden_size) if self.scale_embedding else 1.0


BIOGPT_BLOCK: Table = {
    "self_attn": ("self_attn", {"k_proj": "k_proj", "v_proj": "v_proj", "q_proj": "q_proj", "out_proj": "o_proj"}),
    "self_attn_layer_norm": "self_attn_norm",
    "fc1": "mlp.up_proj",
    "fc2": "mlp.down_proj",
    "final_layer_norm": "mlp_norm",
}


class BioGptModel(CausalBackbone):
    config_class = BioGptConfig
    base_model_prefix = "biogpt"
    head_dropouts = ("hidden_dropout_prob",)
    reads = ("input_ids", "attention_mask", "inputs_embeds", "past_key_values", "labels", "use_cache", "position_ids")
    names = Names({"layers.*": ("layers.*", BIOGPT_BLOCK), "layer_norm": "norm"})

    def __init__(self, config: BioGptConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = ScaledEmbedding(c)
        self.embed_positions = OffsetPositions(c.max_position_embeddings, c.hidden_size)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        norm = partial(nn.LayerNorm, c.hidden_size)
        options: dict[str, Any] = {"pattern": Pattern(causal=True), "dropout": c.attention_probs_dropout_prob}
        attention = partial(Attention, c.hidden_size, c.num_attention_heads, **options)
        block = partial(PreNorm, dropout=c.hidden_dropout_prob, layerdrop=c.layerdrop)
        mlp = partial(MLP, c.hidden_size, c.intermediate_size, c.hidden_act, dropout=c.activation_dropout)
        self.layers = standard_layers(c, block, attention, mlp, norm)
        self.norm = norm()

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return self.dropout(x + self.embed_positions(positions))


class BioGptForCausalLM(language.ForCausalLM[BioGptModel]):
    names = Names({"output_projection": "lm_head"}, ties=language.ForCausalLM.names.ties)


class BioGptForTokenClassification(classify.ForTokenClassification[BioGptModel]):
    """Padding has no label."""

    reads = (
        "input_ids",
        "token_type_ids",
        "attention_mask",
        "past_key_values",
        *BioGptModel.reads[2:3],
        *BioGptModel.reads[4:],
    )

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return super().terms(logits, of_real(labels, inputs), inputs)

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return super().counts(of_real(labels, inputs), inputs)


def of_real(labels: Tensor, inputs: dict[str, Any]) -> Tensor:
    """The labels (B, T) of what the mask says is real."""
    mask = inputs.get("attention_mask")
    return labels if mask is None or mask.shape != labels.shape else labels.masked_fill(mask == 0, IGNORED)


class BioGptForSequenceClassification(classify.ForLastTokenClassification[BioGptModel]):
    reads = ("input_ids", "attention_mask", "past_key_values", "inputs_embeds", "labels", "use_cache", "position_ids")
