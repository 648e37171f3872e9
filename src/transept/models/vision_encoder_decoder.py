"""Any encoder of images with any text decoder (Li et al. 2021): two models with checkpoints of their own describe images."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from transept.kinds.image import ImageBackbone
from transept.kinds.pair import Pair, PairConfig
from transept.models.encoder_decoder import DECODER


class VisionEncoderDecoderConfig(PairConfig):
    """Settings of the pair; the encoder is ViT and the decoder BERT when absent."""

    model_type = "vision-encoder-decoder"
    parts = {"encoder": {"model_type": "vit"}, "decoder": DECODER}

    tie_word_embeddings: bool = False


class VisionEncoderDecoderModel(Pair):
    """An encoder of images and a decoder in one; see :class:`transept.kinds.pair.Pair`.

    ``pixel_values`` are images (B, C, H, W); the encoder must give one state for each position, (B, T', D), not maps.
    """

    config_class = VisionEncoderDecoderConfig
    encoder_class = ImageBackbone
    reads = (
        *("pixel_values", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs", "past_key_values"),
        *("decoder_inputs_embeds", "labels", "use_cache"),
    )

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.get_input_embeddings()

    def states_mask(self, inputs: dict[str, Any], states: Tensor) -> Tensor | None:
        return None
