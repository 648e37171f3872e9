"""BigBird-PEGASUS (Zaheer et al. 2020): PEGASUS for long texts, in whose encoder blocks of positions attend to a few blocks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Layers, PaddingId
from transept.config.model import Config
from transept.heads.seq2seq import ForBiasedGeneration, ForQuestionAnswering, ForSequenceClassification, StackForCausalLM
from transept.layers import Attention, PreNorm
from transept.layers.attention.sparse import BlockSparseAttention
from transept.models.bart import BART_BLOCK, BartConfig, BartDecoder, BartEncoder, BartModel, BartStack


class BigBirdPegasusConfig(BartConfig):
    """Settings of BigBird-PEGASUS; the defaults are those of a model as large as bigbird-pegasus-large.

    With ``block_sparse`` attention, texts of more than ``5 + 2 * num_random_blocks`` blocks of ``block_size`` positions are
    attended to by blocks. ``use_bias`` is for all of attention.
    """

    model_type = "bigbird_pegasus"
    aliases = BartConfig.aliases | {"attention_probs_dropout_prob": "attention_dropout"}

    vocab_size: int = 96103
    max_position_embeddings: int = 4096
    encoder_layers: Layers = 16
    decoder_layers: Layers = 16
    activation_function: str = "gelu_new"
    scale_embedding: bool = True
    num_labels: int = 2
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    forced_eos_token_id: int | list[int] | None = None
    attention_type: Literal["original_full", "block_sparse"] = "block_sparse"
    block_size: Count = 64
    num_random_blocks: Count = 3
    use_bias: bool = False


_BLOCK: Table = {"self.query": "q_proj", "self.key": "k_proj", "self.value": "v_proj", "output": "o_proj"}


class BigBirdPegasusStack(BartStack):
    config_class = BigBirdPegasusConfig
    block_class, norms_embeddings = PreNorm, False
    names = replace(
        BartStack.names,
        table={
            "embed_tokens": "embed_tokens",
            "embed_positions": "embed_positions",
            "layers.*": ("layers.*", BART_BLOCK),
            "layernorm_embedding": "norm",  # which is the last one
        },
    )

    def make_positions(self, c: Config) -> nn.Module:
        return nn.Embedding(c.max_position_embeddings, c.d_model)

    @property
    def biased(self) -> bool:
        return bool(self.config.use_bias)


class BigBirdPegasusEncoder(BigBirdPegasusStack, BartEncoder):
    names = replace(
        BigBirdPegasusStack.names,
        table={**BigBirdPegasusStack.names.table, "layers.*": ("layers.*", {**BART_BLOCK, "self_attn": ("self_attn", _BLOCK)})},
    )

    @property
    def attention_class(self) -> Any:  # type: ignore[override]
        c = self.config
        if c.attention_type == "original_full":
            return Attention
        return partial(BlockSparseAttention, block=c.block_size, random=c.num_random_blocks)

    @property
    def rows_apart(self) -> bool:
        """Not where blocks are chosen: which one is the last follows from how far a batch is padded."""
        return bool(self.config.attention_type == "original_full")


class BigBirdPegasusDecoder(BigBirdPegasusStack, BartDecoder):
    names = BigBirdPegasusStack.names | Names(legacy=BartDecoder.names.legacy, ignore=BartDecoder.names.ignore)


class BigBirdPegasusModel(BartModel):
    config_class = BigBirdPegasusConfig
    encoder_class, decoder_class = BigBirdPegasusEncoder, BigBirdPegasusDecoder


class BigBirdPegasusForConditionalGeneration(ForBiasedGeneration[BigBirdPegasusModel]): ...


class BigBirdPegasusForSequenceClassification(ForSequenceClassification[BigBirdPegasusModel]): ...


class BigBirdPegasusForQuestionAnswering(ForQuestionAnswering[BigBirdPegasusModel]): ...


class BigBirdPegasusForCausalLM(StackForCausalLM[BigBirdPegasusDecoder]):
    @classmethod
    def own_names_of(cls, config: Config) -> Names:
        """The head of the decoder alone is never tied."""
        return replace(super().own_names_of(config), ties={})
