"""Any encoder of sound with any text decoder (Wang et al. 2021): two models with checkpoints of their own write speech."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from transept.errors import InputError
from transept.kinds.audio import SoundBackbone
from transept.kinds.pair import Pair, PairConfig
from transept.models.encoder_decoder import DECODER


class SpeechEncoderDecoderConfig(PairConfig):
    """Settings of the pair; the encoder is Wav2Vec2 and the decoder BERT when absent."""

    model_type = "speech-encoder-decoder"
    parts = {"encoder": {"model_type": "wav2vec2"}, "decoder": DECODER}

    tie_word_embeddings: bool = False


class SpeechEncoderDecoderModel(Pair):
    """An encoder of sound and a decoder in one; see :class:`transept.kinds.pair.Pair`.

    ``inputs``, also by the names ``input_values`` and ``input_features``, are what the encoder takes: waveforms (B, S) or
    spectrograms, with an ``attention_mask`` over samples or frames.
    """

    config_class = SpeechEncoderDecoderConfig
    encoder_class = SoundBackbone
    encoder: SoundBackbone
    reads = (
        *("inputs", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs"),
        *("past_key_values", "decoder_inputs_embeds", "labels", "use_cache"),
    )

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.get_input_embeddings()

    def freeze_feature_encoder(self) -> None:
        """Keep the encoder's convolutions as they are while training."""
        self.encoder.freeze_feature_encoder()

    def to_encoder(self, inputs: dict[str, Any]) -> dict[str, Any]:
        named = {name: inputs.pop(name, None) for name in ("inputs", "input_values", "input_features")}
        given = {name: sound for name, sound in named.items() if sound is not None}
        if len(given) > 1:
            raise InputError(f"the sound was passed twice, as `{'` and `'.join(given)}`.", hint="Pass one of them.")
        return inputs | {self.encoder.main_input_name: next(iter(given.values()), None)}

    def states_mask(self, inputs: dict[str, Any], states: Tensor) -> Tensor | None:
        mask = inputs.get("attention_mask")
        return None if mask is None else self.encoder.state_mask(mask, states.shape[1]).long()

    def shown(self, states: Tensor) -> dict[str, Tensor]:
        return {"encoder_last_hidden_state": states}
