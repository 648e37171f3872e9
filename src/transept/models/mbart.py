"""mBART (Liu et al. 2020): BART with pre-norm layers, trained on many languages, whose tokens end their texts."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from transept.errors import InputError
from transept.heads.seq2seq import ForBiasedGeneration, ForQuestionAnswering, ForSequenceClassification, StackForCausalLM
from transept.kinds.seq2seq import Stack
from transept.layers import PreNorm
from transept.models.bart import BartConfig, BartDecoder, BartEncoder, BartModel, BartStack
from transept.objectives.classification import IGNORED


class MBartConfig(BartConfig):
    """Settings of mBART; the defaults are those of a model as large as bart-large."""

    model_type = "mbart"

    num_labels: int = 2
    decoder_start_token_id: int | None = None


class MBartStack(BartStack):
    config_class = MBartConfig
    block_class = PreNorm


class MBartEncoder(MBartStack, BartEncoder): ...


class MBartDecoder(MBartStack, BartDecoder): ...


class MBartModel(BartModel):
    config_class = MBartConfig
    encoder_class: ClassVar[type[Stack]] = MBartEncoder
    decoder_class: ClassVar[type[Stack]] = MBartDecoder

    def shifted(self, ids: Tensor) -> Tensor:
        """What the decoder reads to write these ids, (B, T): each row's last token, that of its language, before the others."""
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
