"""`python -m tests.public` writes the stub that is the index of public names, and the tables of preprocessors' classes."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import transept
from transept.core.auto import CHOOSERS
from transept.models import ALIASES
from transept.pipelines import task_names

PACKAGE = Path(transept.__file__).parent
STUB = PACKAGE / "__init__.pyi"
PREPROCESSORS = PACKAGE / "preprocess/classes.py"
# The tables of preprocessors' classes, and what the names of the classes end with.
ENDINGS = {
    "IMAGE_PROCESSORS": "ImageProcessor",
    "VIDEO_PROCESSORS": "VideoProcessor",
    "FEATURE_EXTRACTORS": "FeatureExtractor",
    "PROCESSORS": "Processor",
}
# Modules whose public classes and functions are all public names of the package; every family is another.
WHOLE = [
    "config.model",
    "config.rotary",
    "core.inputs",
    "core.model",
    "kinds.image",
    "kinds.text",
    "kinds.audio",
    "errors",
    "generation.config",
    "generation.outputs",
    "generation.logits_processors",
    "generation.logits_warpers",
    "generation.penalties",
    "outputs",
    "training.optim.adafactor",
    *(f"training.collate.{topic}" for topic in ("language", "media", "padding", "spans")),
    "training.optim.greedy",
    "metrics.embeddings",
    "training.optim.schedules",
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
INNER |= {"RestoringCollator", "block_mask", "labels_of", "random_mask", "random_parts", "special_tokens", "whole_words"}
INNER |= {"Detokenizer", "Stats", "is_nested", "pair", "theta_of", "resized_positions"}
# Halves of encoder–decoders that are public classes by themselves.
HALVES = ("ProphetNetDecoder", "ProphetNetEncoder")
# Single names of other modules.
SINGLE = {
    "environment.packages": [
        *("is_accelerate_available", "is_datasets_available", "is_flax_available", "is_peft_available"),
        *("is_sentencepiece_available", "is_tf_available", "is_tokenizers_available", "is_torch_available"),
        *("is_torch_cuda_available", "is_vision_available", "set_seed"),
    ],
    "parallel.mesh": ["DistributedConfig"],
    "training.arguments.training": ["Seq2SeqTrainingArguments", "TrainingArguments"],
    "training.checkpoint.directory": ["find_last_checkpoint", "get_last_checkpoint"],
    "training.callbacks.base": [
        "CallbackHandler",
        "DefaultFlowCallback",
        "EarlyStoppingCallback",
        "TrainerCallback",
    ],
    "training.callbacks.progress": ["PrinterCallback", "ProgressCallback"],
    "training.state": [
        *("BestRun", "EvalLoopOutput", "EvalPrediction", "HubStrategy", "IntervalStrategy", "ParallelMode"),
        *("PredictionOutput", "SaveStrategy", "TrainOutput", "TrainerControl", "TrainerState"),
    ],
    "training.trainers.seq2seq": ["Seq2SeqTrainer"],
    "training.trainer": ["Trainer"],
    "training.trainers.semi_supervised": ["ConsistencyTrainer", "SelfTrainer"],
    "training.trainers.distillation": ["DistillationTrainer"],
    "training.trainers.discriminators": ["GANTrainer", "ReplacedTokensTrainer"],
    "training.objective": ["Objective"],
    "training.trainers.objective": ["ObjectiveTrainer"],
    "training.trainers.pairs": ["DPOTrainer", "DataCollatorForPreference", "SentenceTrainer"],
    "objectives.clustering": ["KMeans"],
    "metrics": ["get_metric"],
    "training.optim.optimizers": ["OptimizerNames", "WeightAverage"],
    "adapt.freeze": ["freeze", "gradual_unfreezing", "layer_groups", "unfreeze", "unfreeze_until"],
    "adapt.features": ["precompute"],
    "adapt.lora": ["LoraConfig", "TaskType"],
    "adapt.peft": ["PeftModel", "get_peft_model"],
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
    "layers.caches.cache": ["Cache", "DynamicCache", "EncoderDecoderCache", "SlidingWindowCache"],
    "layers.caches.offloaded": ["OffloadedCache"],
    "layers.caches.static": ["StaticCache"],
    "compat.attention": ["AttentionInterface"],
    "layers.mlp": ["apply_chunking_to_forward"],
    "layers.pool": ["pooled_alone"],
    "layers.caches.quantized": ["QuantizedCache"],
    "objectives.terms": ["LossTerm"],
    "preprocess.audio.ctc_tokenizer": ["Wav2Vec2CTCTokenizer"],
    "preprocess.audio.whisper_tokenizer": ["WhisperTokenizer", "WhisperTokenizerFast"],
    "preprocess.features": ["BatchFeature"],
    "pipelines.draw": ["draw"],
    "preprocess.auto": ["AutoFeatureExtractor", "AutoImageProcessor", "AutoProcessor", "AutoVideoProcessor"],
    "preprocess.text.answers": ["ReasoningDelta", "TextDelta", "ToolCall"],
    "preprocess.text.auto": ["AutoTokenizer"],
    "preprocess.text.encoding": ["BatchEncoding"],
    "preprocess.text.tools": ["get_json_schema"],
    "tables.files": ["load_dataset_file"],
    "cli.dataclass_parser": ["HfArgumentParser"],
    "pipelines": ["pipeline"],
    "pipelines.steps": ["Pipeline"],
    "pipelines.registry": ["PIPELINE_REGISTRY"],
}


def defined(module: str) -> list[str]:
    """Public classes and functions that a module's source defines."""
    path = PACKAGE / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and node.name[0] != "_" and node.name not in INNER]


def classes(module: str) -> list[str]:
    """Public classes of a family: models and configs, not its blocks, bases of its own or one half of an encoder–decoder."""
    loaded = importlib.import_module(f"transept.{module}")
    from transept.config.model import Config
    from transept.core.model import Model
    from transept.kinds.seq2seq import Stack
    from transept.kinds.spectrograms import SpectrogramBackbone

    return [
        name
        for name in defined(module)
        if isinstance(found := getattr(loaded, name), type)
        and issubclass(found, Model | Config)
        and (hasattr(found, "config_class") or getattr(found, "model_type", ""))
        and (not issubclass(found, Stack | SpectrogramBackbone) or name.endswith("Model") or name in HALVES)
    ]


def preprocessors() -> dict[str, dict[str, tuple[str, ...]]]:
    """The model types that classes of preprocessors state, by module and class."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for path in sorted((PACKAGE / "preprocess").glob("*/[a-z]*.py")):
        classes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
        classes = [node for node in classes if node.name.endswith(tuple(ENDINGS.values()))]
        for name, line in ((node.name, line) for node in classes for line in node.body):
            if isinstance(line, ast.Assign | ast.AnnAssign) and line.value and ast.unparse(line).startswith("model_types"):
                found.setdefault(f"{path.parent.name}.{path.stem}", {})[name] = ast.literal_eval(line.value)
    return found


def ending(name: str) -> str:
    """What kind of preprocessor a class is, by the ending of its name."""
    return next(end for end in ENDINGS.values() if name.endswith(end))


def preprocessor_tables() -> str:
    """The text of the tables from names of classes to their modules, and from model types to names of classes."""
    lines = [
        '"""Written by `python -m tests.public` from the ``model_types`` that classes of preprocessors state.',
        "",
        "The tables map the names of classes to modules below ``transept.preprocess`` or classes of users, and model types to names.",
        '"""',
        "",
        "from typing import Any",
        "",
    ]
    modules = {name: module for module, classes in preprocessors().items() for name in classes}
    types = {name: stated for classes in preprocessors().values() for name, stated in classes.items()}
    for table, kind in ENDINGS.items():
        names = sorted(name for name in modules if ending(name) == kind)
        lines += [f"{table}: dict[str, Any] = {{", *(f'    "{name}": "{modules[name]}",' for name in names), "}"]
        pairs = sorted((model_type, name) for name in names for model_type in types[name])
        lines += [f"{table}_OF_TYPES = {{", *(f'    "{model_type}": "{name}",' for model_type, name in pairs), "}"]
    return "\n".join(lines) + "\n"


def stub() -> str:
    """The text of the stub."""
    names = {module: defined(module) for module in WHOLE} | SINGLE
    names["config.model"] += ["PreTrainedConfig", "PretrainedConfig"]  # the reference's names of the base class
    names["core.classes"] = ["own_forward"]
    names["core.custom"] = ["PreTrainedModel"]
    names["core.auto"] = ["AutoConfig", *CHOOSERS]
    for path in sorted((PACKAGE / "models").glob("[a-z]*")):  # files and folders
        for part in ("", *(f".{inner.stem}" for inner in sorted(path.glob("[a-z]*.py")))):
            names[f"models.{path.stem}{part}"] = classes(f"models.{path.stem}{part}")
    for alias in ALIASES.values():  # an editor takes them for the family's
        module = f"models.{alias.family}"
        names[module] += [f"{name} as {name.replace(*alias.names, 1)}" for name in classes(module)]
    tasks = {f"{task.replace('-', '')}pipeline" for task in task_names()}
    for path in sorted((PACKAGE / "pipelines/tasks").glob("[a-z]*.py")):
        module = f"pipelines.tasks.{path.stem}"
        names[module] = [name for name in defined(module) if name.lower() in tasks]
    for module, found in preprocessors().items():
        assigned = _assigned(PACKAGE / f"preprocess/{module.replace('.', '/')}.py")
        names[f"preprocess.{module}"] = [name for name in assigned if name.removesuffix("Fast") in found]
    for path in sorted((PACKAGE / "preprocess/text/classes").glob("*.py")):
        package, whole = "preprocess.text.classes", path.stem == "__init__"
        names[package if whole else f"{package}.{path.stem}"] = _assigned(path)
    lines = [_line(f"transept.{module}", found) for module, found in sorted(names.items()) if found]
    return '"""Written by `python -m tests.public`; both the runtime index of public names and what editors see."""\n\n' + (
        "\n".join(lines) + "\n\n__version__: str\n"
    )


def _line(module: str, names: list[str]) -> str:
    names = [name if " as " in name else f"{name} as {name}" for name in sorted(names)]
    single = f"from {module} import {names[0]}"
    if len(names) == 1 and len(single) <= 128:
        return single
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _assigned(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [name for name in names if name[0].isupper() and not name.isupper()]


if __name__ == "__main__":
    PREPROCESSORS.write_text(preprocessor_tables(), encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")
