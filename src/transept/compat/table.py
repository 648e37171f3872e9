"""Where the names of the reference's modules stand among ours, and what to say of those that are not here.

A place is one of our modules, all of whose names count, or ``"module: ours, ours as theirs"`` for single names of it. Beside
its places, a module has the package's public names.
"""

from __future__ import annotations

import re

_VALUES = ("compat.values", "environment.packages", "outputs: ModelOutput", "training.state: ExplicitEnum")
_HUB = ("compat.hub", "storage.publish: Pushable as PushToHubMixin", "environment.packages: is_offline_mode")
_AUTO = ("compat.mappings", "core.auto", "preprocess.auto", "preprocess.text.auto", "compat.remote_code")
_REPORTS = ("training.callbacks.reports", "environment.packages", "compat.trainer")
_FEATURES = ("preprocess.features", "preprocess.audio.base: SequenceFeatureExtractor as FeatureExtractionMixin")
_COLLATORS = "compat.trainer: DataCollatorMixin, DataCollator, InputDataClass"
_COLLATE = ("training.collate.padding", "training.collate.language", "training.collate.media", _COLLATORS)
_DEEPSPEED = "compat.trainer: is_deepspeed_zero3_enabled, deepspeed_config, unset_hf_deepspeed_config"
_SENTENCEPIECE = "preprocess.text.python.slow: PreTrainedTokenizer as SentencePieceBackend"
_TEXT = ("compat.values: PaddingStrategy, TensorType, TruncationStrategy", "tokenizers: AddedToken")

MODULES: dict[str, tuple[str, ...]] = {
    "activations": ("layers.mlp: ACT2FN, Activation as get_activation",),
    "as_transformers": ("compat.as_transformers",),
    "audio_utils": ("preprocess.audio.spectrogram", "preprocess.media: load_audio"),
    "cache_utils": tuple(f"layers.caches.{kind}" for kind in ("cache", "static", "offloaded", "quantized")),
    "configuration_utils": ("config.model",),
    "conversion_mapping": ("compat.weight_conversion",),
    "core_model_loading": ("compat.weight_conversion",),
    "data": _COLLATE,
    "data.data_collator": _COLLATE,
    "data.metrics": ("metrics.glue",),
    "deepspeed": (_DEEPSPEED,),
    "dynamic_module_utils": ("compat.remote_code",),
    "feature_extraction_sequence_utils": ("preprocess.audio.base",),
    "feature_extraction_utils": _FEATURES,
    "file_utils": (*_VALUES, *_HUB, "compat.docstrings"),
    "generation.candidate_generator": (),
    "generation.configuration_utils": ("generation.config", "generation.rules"),
    "generation.logits_process": ("generation.logits_processors", "generation.logits_warpers", "generation.watermark"),
    "generation.streamers": ("generation.outputs",),
    "generation.utils": ("generation.generate: Generates as GenerationMixin", "generation.outputs"),
    "generation.watermarking": ("generation.watermark",),
    "hf_argparser": ("cli.dataclass_parser",),
    "image_processing_base": (*_FEATURES, "preprocess.image.base: BaseImageProcessor as ImageProcessingMixin"),
    "image_processing_utils": (*_FEATURES, "preprocess.image.base", "preprocess.image.arrays: size_dict as get_size_dict"),
    "image_processing_utils_fast": ("preprocess.image.base: BaseImageProcessor as BaseImageProcessorFast",),
    "image_transforms": ("preprocess.image.transforms", "preprocess.image.formats"),
    "image_utils": ("preprocess.image.formats", "preprocess.media: load_image"),
    "integrations": _REPORTS,
    "integrations.deepspeed": (_DEEPSPEED,),
    "integrations.integration_utils": _REPORTS,
    **{f"integrations.{kind}_attention": ("compat.attention",) for kind in ("eager", "flex", "sdpa")},
    "integrations.peft": ("core.model: Model as PeftAdapterMixin",),
    "logging": ("environment.logging",),
    "loss": (),
    "loss.loss_utils": (
        "compat.modeling: cross_entropy_loss as fixed_cross_entropy, causal_lm_loss as ForCausalLMLoss",
        "compat.modeling: masked_lm_loss as ForMaskedLMLoss, token_classification_loss as ForTokenClassification",
        "compat.modeling: sequence_classification_loss as ForSequenceClassificationLoss, LOSSES as LOSS_MAPPING",
        "compat.modeling: question_answering_loss as ForQuestionAnsweringLoss",
    ),
    "masking_utils": ("compat.masks",),
    "modelcard": ("training.model_card",),
    "modeling_attn_mask_utils": ("compat.masks",),
    "modeling_layers": ("compat.modeling",),
    "modeling_outputs": ("compat.outputs",),
    "modeling_rope_utils": ("layers.rotary", "compat.modeling"),
    "modeling_utils": ("core.custom", "core.model", "compat.modeling", "compat.attention", _DEEPSPEED, "compat.hub"),
    "models.auto": _AUTO,
    "models.auto.auto_factory": ("core.auto: _AutoModel as _BaseAutoModelClass", *_AUTO),
    **{f"models.auto.{kind}_auto": _AUTO for kind in ("configuration", "feature_extraction", "image_processing", "modeling")},
    **{f"models.auto.{kind}_auto": _AUTO for kind in ("processing", "tokenization", "video_processing")},
    "optimization": ("training.optim.schedules", "training.optim.adafactor", "training.optim.optimizers"),
    "pipelines.pt_utils": ("pipelines.datasets",),
    "processing_utils": ("preprocess.processor: Processor as ProcessorMixin", "preprocess.auto", "typing: Unpack"),
    "pytorch_utils": (
        *("layers.linear: Conv1D", "layers.mlp: apply_chunking_to_forward"),
        *("environment.packages", "compat.modeling"),
    ),
    "testing_utils": ("compat.testing",),
    "time_series_utils": (),
    "tokenization_python": _TEXT,
    "tokenization_utils": _TEXT,
    "tokenization_utils_base": ("preprocess.text.encoding", *_TEXT),
    "tokenization_utils_fast": _TEXT,
    "tokenization_utils_sentencepiece": (_SENTENCEPIECE, *_TEXT),
    "tokenization_utils_tokenizers": _TEXT,
    "trainer": ("training.trainer", "training.arguments.training", "metrics.nested", "compat.trainer"),
    "trainer_callback": ("training.callbacks.base", "training.callbacks.progress", "training.state"),
    "trainer_pt_utils": (
        *("metrics.nested", "objectives.classification: LabelSmoother", "training.data.order"),
        *("adapt.freeze: get_parameter_names", "compat.trainer", "training.optim.optimizers"),
    ),
    "trainer_seq2seq": ("training.trainers.seq2seq",),
    "trainer_utils": (
        *("environment.packages", "training.state", "training.search", "training.checkpoint.directory", "training.evaluation"),
        *("training.callbacks.base: has_length", "metrics.nested", "compat.trainer"),
    ),
    "training_args": ("training.arguments.training", "training.state", "compat.trainer", "environment.packages"),
    "training_args_seq2seq": ("training.arguments.training",),
    "utils": (*_VALUES, *_HUB, "compat.docstrings"),
    "utils.constants": ("preprocess.image.formats",),
    "utils.doc": ("compat.docstrings",),
    "utils.generic": _VALUES,
    "utils.hub": _HUB,
    "utils.import_utils": ("environment.packages",),
    "utils.logging": ("environment.logging",),
    "utils.peft_utils": ("compat.hub", "environment.packages"),
    "utils.quantization_config": ("compat.quantization",),
    "utils.versions": ("environment.packages",),
}
# What the package itself has beside its public names.
ROOT = (
    *("compat.mappings", "compat.quantization", "environment.packages", "compat.values", _COLLATORS, "compat.modeling"),
    "generation.generate: Generates as GenerationMixin",
    "preprocess.audio.base: SequenceFeatureExtractor, SequenceFeatureExtractor as FeatureExtractionMixin",
    "preprocess.image.base: BaseImageProcessor, BaseImageProcessor as ImageProcessingMixin",
    "preprocess.image.qwen2_vl: Qwen2VLVideoProcessor as BaseVideoProcessor",
    "preprocess.processor: Processor as ProcessorMixin",
    _SENTENCEPIECE,
    "storage.publish: Pushable as PushToHubMixin",
    "tokenizers: AddedToken",
    "training.search: default_compute_objective",
    "compat.trainer: torch_distributed_zero_first",
)
# Parts of families that stand among what all families share.
PARTS = (
    "layers.rotary: rotate_half, apply_rotary_pos_emb",
    "layers.attention.kernels: repeat_kv",
    "compat.modeling: RotaryEmbedding as LlamaRotaryEmbedding, RotaryEmbedding as MistralRotaryEmbedding",
    "compat.modeling: RotaryEmbedding as Qwen2RotaryEmbedding, RotaryEmbedding as Qwen3RotaryEmbedding",
    "compat.modeling: RotaryEmbedding as MixtralRotaryEmbedding, RotaryEmbedding as Gemma2RotaryEmbedding",
    "compat.modeling: RotaryEmbedding as GPTNeoXRotaryEmbedding, RotaryEmbedding as ModernBertRotaryEmbedding",
    "layers.linear: Conv1D",
    "layers.norm: RMSNorm as LlamaRMSNorm, RMSNorm as MistralRMSNorm, RMSNorm as Qwen2RMSNorm, RMSNorm as T5LayerNorm",
    "objectives.classification: load_balancing_loss_func",
    "kinds.seq2seq: shift_tokens_right",
    "preprocess.audio.languages: LANGUAGES, CODES as TO_LANGUAGE_CODE",
    "compat.frames: _compute_mask_indices, _sample_negative_indices",
    "heads.audio: ADAPTER_FILE as WAV2VEC2_ADAPTER_SAFE_FILE",
)
# The reference's files of a family: ``modeling_bert``, ``tokenization_bert_fast``.
FAMILY_FILE = re.compile(
    r"(?:modeling|configuration|tokenization|(?:image_|video_)?processing|image_processing_pil|feature_extraction)_(\w+?)"
    r"(?:_fast)?"
)
# Names that code asks for -> what there is in their place.
ABSENT = {
    "AdamW": "Use torch.optim.AdamW.",
    "HfDeepSpeedConfig": "Pass `deepspeed` to TrainingArguments, or shard with the argument fsdp=.",
    "HybridCache": "A DynamicCache serves layers of all kinds.",
    "LineByLineTextDataset": "Use the datasets library.",
    "NotebookProgressCallback": "ProgressCallback shows its bars in notebooks, too.",
    "TextDataset": "Use the datasets library.",
}
FRAMEWORKS = re.compile(r"(TF|Flax)[A-Z]\w+")
