"""The public names: `python -m tests.public` writes the stub that is their index."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import transept
from transept.models import ALIASES
from transept.pipelines import task_names

PACKAGE = Path(transept.__file__).parent
STUB = PACKAGE / "__init__.pyi"
# Modules whose public classes and functions are all public names of the package; every family is another.
WHOLE = [
    "config",
    "core.inputs",
    "core.model",
    "core.pixels",
    "core.text",
    "core.waves",
    "errors",
    "generation.config",
    "generation.outputs",
    "generation.logits_processors",
    "generation.logits_warpers",
    "outputs",
]
# What these modules share with others of the package alone.
INNER = {
    "KnowsRows",
    "SomeTokens",
    "changed",
    "explicit",
    "per_row",
    "setting",
    "Record",
    "GenerateOutput",
    "transition_scores",
}
INNER |= {"Detokenizer", "Stats", "pair", "resized_positions"}
# Single names of other modules.
SINGLE = {
    "environment": [
        *("is_accelerate_available", "is_datasets_available", "is_flax_available", "is_peft_available"),
        *("is_sentencepiece_available", "is_tf_available", "is_tokenizers_available", "is_torch_available"),
        *("is_torch_cuda_available", "is_vision_available", "set_seed"),
    ],
    "core.naming": ["freeze", "reference_names"],
    "generation.stopping_criteria": [
        "ConfidenceCriteria",
        "EosTokenCriteria",
        "MaxLengthCriteria",
        "MaxTimeCriteria",
        "StopStringCriteria",
        "StoppingCriteria",
        "StoppingCriteriaList",
    ],
    "generation.rules": ["SynthIDTextWatermarkingConfig", "WatermarkingConfig"],
    "generation.watermark": [
        "SynthIDTextWatermarkLogitsProcessor",
        "WatermarkDetector",
        "WatermarkDetectorOutput",
        "WatermarkLogitsProcessor",
    ],
    "layers.cache": ["Cache", "DynamicCache"],
    "layers.caches": ["OffloadedCache", "SlidingWindowCache", "StaticCache"],
    "layers.mlp": ["apply_chunking_to_forward"],
    "layers.quantized_cache": ["QuantizedCache"],
    "objectives.terms": ["LossTerm"],
    "preprocess.audio.audio_spectrogram_transformer": ["ASTFeatureExtractor"],
    "preprocess.audio.ctc_tokenizer": ["Wav2Vec2CTCTokenizer"],
    "preprocess.audio.wav2vec2": ["Wav2Vec2FeatureExtractor"],
    "preprocess.audio.whisper": ["WhisperFeatureExtractor"],
