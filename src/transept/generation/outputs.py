"""What ``generate`` returns when asked for more than ids.

Shapes: R rows (prompts times returned sequences), T ids, N new ids, V vocabulary, W beams.
"""

from __future__ import annotations

from torch import Tensor

from transept.layers.cache import Cache
from transept.outputs import ModelOutput

# One entry a step, each one a layer.
Steps = tuple[tuple[Tensor, ...], ...]


class GenerateDecoderOnlyOutput(ModelOutput):
    """``sequences`` (R, T), with the prompt; ``scores`` and ``logits`` one (R, V) a new token, with and without processors.

    ``logprobs`` (R, N) are those of the new tokens after the processors; ``top_logprobs`` and ``top_tokens`` (R, N, k) those
    of the most likely ones.
    """

    sequences: Tensor
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    attentions: Steps | None = None
    hidden_states: Steps | None = None
    past_key_values: Cache | None = None
    logprobs: Tensor | None = None
    top_logprobs: Tensor | None = None
    top_tokens: Tensor | None = None


class GenerateEncoderDecoderOutput(ModelOutput):
    """``sequences`` (R, T) of the decoder; what the encoder showed beside what the decoder did."""

    sequences: Tensor
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: Steps | None = None
    cross_attentions: Steps | None = None
    decoder_hidden_states: Steps | None = None
    past_key_values: Cache | None = None
    logprobs: Tensor | None = None
    top_logprobs: Tensor | None = None
    top_tokens: Tensor | None = None


class GenerateBeamDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    """``sequences_scores`` (R) are the beams' final scores; ``beam_indices`` (R, N) the row each token came from, -1 after."""

    sequences_scores: Tensor | None = None
    beam_indices: Tensor | None = None


class GenerateBeamEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """``sequences_scores`` (R) are the beams' final scores; ``beam_indices`` (R, N) the row each token came from, -1 after."""

    sequences_scores: Tensor | None = None
    beam_indices: Tensor | None = None
