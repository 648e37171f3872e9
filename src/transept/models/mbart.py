"""mBART (Liu et al. 2020): BART with pre-norm layers, trained on many languages, each of which has a token.

A sequence ends with the token of its language; moved to its front, that is what decoding starts with.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.core.seq2seq import EncoderStack
from transept.errors import InputError
from transept.heads.seq2seq import ForBiasedGeneration, ForQuestionAnswering, ForSequenceClassification, StackForCausalLM
from transept.layers import Context, PreNorm, bounded
from transept.models.bart import BartConfig, BartDecoder, BartModel, BartStack
from transept.objectives.classification import IGNORED


class MBartConfig(BartConfig):
    """Settings of mBART; the defaults are those of a model as large as bart-large."""

    model_type = "mbart"

    num_labels: int = 2
    decoder_start_token_id: int | None = None


class MBartEncoderBlock(PreNorm):
    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        return bounded(super().whole(x, ctx))


class MBartStack(BartStack):
    config_class = MBartConfig
    names = BartStack.names | Names({"layer_norm": "norm"})

    def __init__(self, config: MBartConfig) -> None:
        super().__init__(config)
        self.norm = nn.LayerNorm(config.d_model)


class MBartEncoder(MBartStack, EncoderStack):
    base_model_prefix = "model.encoder"
    block_class = MBartEncoderBlock


class MBartDecoder(MBartStack, BartDecoder):
    names = BartDecoder.names | MBartStack.names
    block_class = PreNorm


class MBartModel(BartModel):
    config_class = MBartConfig
    encoder_class, decoder_class = MBartEncoder, MBartDecoder

    def shifted(self, ids: Tensor) -> Tensor:
        """What the decoder reads to write these ids, (B, T): the last token of each row before the others."""
        pad = self.config.pad_token_id
        if pad is None:
            raise InputError("the decoder's inputs cannot be made: `pad_token_id` is not set.")
        ids = ids.masked_fill(ids == IGNORED, pad)
        last = ids.gather(1, (ids != pad).sum(dim=1, keepdim=True) - 1)
        return torch.cat([last, ids[:, :-1]], dim=1)


class MBartForConditionalGeneration(ForBiasedGeneration[MBartModel]): ...


class MBartForSequenceClassification(ForSequenceClassification[MBartModel]): ...


class MBartForQuestionAnswering(ForQuestionAnswering[MBartModel]): ...


class MBartForCausalLM(StackForCausalLM[MBartDecoder]): ...
