"""Any text encoder with any decoder (Rothe et al. 2020): two models with checkpoints of their own make one that translates."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from transept.kinds.pair import Pair, PairConfig
from transept.kinds.text import TextBackbone

# What a pair's decoder is where nothing is given.
DECODER: dict[str, Any] = {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}


class EncoderDecoderConfig(PairConfig):
    """Settings of the pair; both halves are BERT's when absent."""

    model_type = "encoder-decoder"
    parts = {"encoder": {"model_type": "bert"}, "decoder": DECODER}


class EncoderDecoderModel(Pair):
    """A text encoder and a decoder in one; see :class:`transept.kinds.pair.Pair`."""

    config_class = EncoderDecoderConfig
    encoder_class = TextBackbone
    reads = (
        *("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs"),
        *("past_key_values", "inputs_embeds", "decoder_inputs_embeds", "labels", "use_cache"),
    )

    def to_encoder(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if inputs.get("attention_mask") is None and inputs.get("input_ids") is not None:
            return inputs | {"attention_mask": self.encoder.infer_mask(inputs["input_ids"])}  # the decoder needs it too
        return inputs

    def states_mask(self, inputs: dict[str, Any], states: Tensor) -> Tensor | None:
        return inputs.get("attention_mask")

    def decoder_mask(self, ids: Tensor) -> Tensor | None:
        pad = self.config.pad_token_id
        return None if pad is None else ids.ne(pad).long()
