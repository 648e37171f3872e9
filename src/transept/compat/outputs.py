"""Outputs under the reference's names, for scripts that import them from here. Several names are one class of ours."""

from __future__ import annotations

from typing import Any

from transept import outputs

_NAMES = {
    "BackboneOutput": "BaseModelOutput BaseModelOutputWithNoAttention BaseModelOutputWithPooling BaseModelOutputWithPast"
    " BaseModelOutputWithCrossAttentions BaseModelOutputWithPoolingAndCrossAttentions"
    " BaseModelOutputWithPastAndCrossAttentions BaseModelOutputWithPoolingAndNoAttention",
    "LogitsOutput": "CausalLMOutput CausalLMOutputWithPast CausalLMOutputWithCrossAttentions MaskedLMOutput"
    " SequenceClassifierOutput SequenceClassifierOutputWithPast MultipleChoiceModelOutput TokenClassifierOutput"
    " NextSentencePredictorOutput ImageClassifierOutput ImageClassifierOutputWithNoAttention SemanticSegmenterOutput",
    "FeatureMapOutput": "BackboneOutput",
    "DepthOutput": "DepthEstimatorOutput",
    "SparseOutput": "MoEModelOutput MoeModelOutput MoeModelOutputWithPast",
    "SparseLogitsOutput": "MoeCausalLMOutputWithPast MoECausalLMOutputWithPast",
    "QuestionAnsweringOutput": "QuestionAnsweringModelOutput",
    "AudioOutput": "Wav2Vec2BaseModelOutput",
    "ReconstructionOutput": "MaskedImageModelingOutput",
    "Seq2SeqOutput": "Seq2SeqModelOutput",
    "Seq2SeqLogitsOutput": "Seq2SeqLMOutput Seq2SeqSequenceClassifierOutput",
    "Seq2SeqQuestionAnsweringOutput": "Seq2SeqQuestionAnsweringModelOutput",
    "ModelOutput": "ModelOutput",
    "XVectorOutput": "XVectorOutput",
}
_OURS = {name: ours for ours, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_OURS)


def __getattr__(name: str) -> Any:
    if name not in _OURS:
        raise AttributeError(f"transept.compat.outputs has no name {name!r}.")
    return getattr(outputs, _OURS[name])
