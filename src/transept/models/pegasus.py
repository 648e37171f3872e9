"""PEGASUS (Zhang et al. 2020): pre-norm layers and sinusoids for positions, trained to write sentences that a text lacks."""

from __future__ import annotations

import torch
from torch import nn

from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.config.model import Config
from transept.core.model import Model
from transept.heads.seq2seq import ForBiasedGeneration, StackForCausalLM
from transept.kinds.seq2seq import Seq2SeqBackbone
from transept.layers import PreNorm
from transept.models.bart import BartConfig, BartDecoder, BartEncoder, BartStack
from transept.models.marian import SinusoidalPositions


class PegasusConfig(BartConfig):
    """Settings of PEGASUS; the defaults are those of a model as large as bart-large."""

    model_type = "pegasus"

    num_labels: int = 2
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int | None = 0
    forced_eos_token_id: int | list[int] | None = 1


class PegasusStack(BartStack):
    config_class = PegasusConfig
    block_class, norms_embeddings = PreNorm, False
    names = BartStack.names | Names(ignore=("embed_positions",), fixed=("embed_positions.weight",))

    def make_positions(self, c: Config) -> nn.Module:
        return SinusoidalPositions(c.max_position_embeddings, c.d_model)


class PegasusEncoder(PegasusStack, BartEncoder): ...


class PegasusDecoder(PegasusStack, BartDecoder):
    names = BartDecoder.names | PegasusStack.names


def resize_positions(model: Model, new_num_position_embeddings: int) -> None:
    """Let both stacks read so many positions."""
    for stack in model.stacks:
        if isinstance(table := stack.embed_positions, SinusoidalPositions):
            size = new_num_position_embeddings, table.weight.shape[1]
            with torch.no_grad():
                table.weight = nn.Parameter(table.weight.new_empty(size), requires_grad=False)
                table.reset_parameters()
    for part in (model, model.body, *model.stacks):
        part.config.max_position_embeddings = new_num_position_embeddings


class PegasusModel(Seq2SeqBackbone):
    config_class = PegasusConfig
    encoder_class, decoder_class = PegasusEncoder, PegasusDecoder
    base_model_prefix = "model"
    resize_position_embeddings = resize_positions


class PegasusForConditionalGeneration(ForBiasedGeneration[PegasusModel]):
    resize_position_embeddings = resize_positions


class PegasusForCausalLM(StackForCausalLM[PegasusDecoder]):
    resize_position_embeddings = resize_positions
