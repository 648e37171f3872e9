"""What a pipeline is made of: a model and what prepares its inputs, given or loaded from one checkpoint."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from transept.adapt.pack import can_pack, pack
from transept.adapt.quantize import quantize
from transept.config import Config
from transept.core.auto import AutoConfig, AutoModel, resolve
from transept.core.model import Model
from transept.core.pixels import ImageBackbone
from transept.core.waves import AudioBackbone
from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.pipelines.defaults import locate
from transept.pipelines.sentence import MODULES
from transept.preprocess.processor import AutoFeatureExtractor, AutoImageProcessor
from transept.preprocess.text.auto import AutoTokenizer
from transept.source import Source

KINDS: dict[str, Any] = {
    "tokenizer": AutoTokenizer,
    "image_processor": AutoImageProcessor,
    "feature_extractor": AutoFeatureExtractor,
}
# The task by the ending of the class's name, and by what the backbone reads.
TASKS = {
    ("ForSequenceClassification", "text"): "text-classification",
    ("ForSequenceClassification", "audio"): "audio-classification",
    ("ForTokenClassification", "text"): "token-classification",
    ("ForQuestionAnswering", "text"): "question-answering",
    ("ForMaskedLM", "text"): "fill-mask",
    ("ForCausalLM", "text"): "text-generation",
    ("LMHeadModel", "text"): "text-generation",
    ("ForConditionalGeneration", "text"): "text2text-generation",
    ("ForImageClassification", "image"): "image-classification",
    ("ForCTC", "audio"): "automatic-speech-recognition",
    ("Model", "text"): "feature-extraction",
    ("Model", "image"): "image-feature-extraction",
}


@dataclass
class Components:
    """What was given to ``pipeline`` and where the rest comes from.

    Args:
        name: a directory, a repository, or a model that is already loaded.
        given: ``tokenizer``, ``image_processor``, ``feature_extractor`` or ``config``, as objects or names.
        hub: where to look; see :class:`transept.source.Source`.
        device: where the model runs; a GPU where there is one, else the CPU. A loaded model stays where it is when absent.
        dtype: type of the weights; the checkpoint's when absent, the device's fastest exact enough one for ``"auto"``;
            ``"int8"`` rounds those of linear layers, on the CPU.
        packed: pack linear layers of models that are loaded for the CPU.
        settings: more arguments for loading the model.
    """

    name: str | os.PathLike[str] | Model
    given: dict[str, Any] = field(default_factory=dict)
    hub: dict[str, Any] = field(default_factory=dict)
    device: str | torch.device | int | None = None
    dtype: str | torch.dtype | None = None
    packed: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def source(self) -> Source | None:
        """Where the checkpoint is; ``None`` for a model that is already loaded."""
        return None if isinstance(self.name, Model) else locate(self.name, self.hub)

    @cached_property
    def config(self) -> Config:
        """The configuration: the model's own, the one given, or the checkpoint's."""
        if isinstance(self.name, Model):
            return self.name.config
        given = self.given.get("config")
        if isinstance(given, Config):
            return given
        if given is not None:
            return AutoConfig.from_pretrained(given, **self.hub)
        assert self.source is not None
        return AutoConfig.from_pretrained(self.source.name, **self.source.options())

    @property
    def architectures(self) -> list[str]:
        """Names of the classes that the model is of, the most special first."""
        if isinstance(self.name, Model):
            return [cls.__name__ for cls in type(self.name).__mro__]
        return list(self.config.architectures or ())

    @property
    def target(self) -> torch.device:
        """The device in force."""
        if self.device is None or self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return device_of(self.device)

    def below(self, folder: str) -> Components:
        """The same, for a checkpoint that keeps its model in a folder of its own."""
        inner = f"{self.source.subfolder}/{folder}" if self.source is not None and self.source.subfolder else folder
        return replace(self, hub=self.hub | {"subfolder": inner})

    def model(self, auto: Any, *, pooler: bool = True) -> Model:
        """The model, as ``auto`` loads it, or the one that was passed as an object.

        A backbone that is loaded has no pooler where its checkpoint has none, or where it is not wanted.

        Raises:
            InputTypeError: an object that does another task.
        """
        if isinstance(self.name, Model):
            return self._adopt(self.name, auto)
        assert self.source is not None
        target, dtype = self.target, self.dtype
        if rounded := dtype in ("int8", torch.int8):
            dtype = torch.float32
        elif dtype == "auto":
            dtype = torch.bfloat16 if fast_bfloat16(target) else torch.float32
        more = self.settings if dtype is None else {**self.settings, "dtype": dtype}
        with warnings.catch_warnings():
            if auto is AutoModel:
                warnings.filterwarnings("ignore", ".*newly initialised.* pooler", TranseptWarning)
            model: Model = auto.from_pretrained(
                self.source.name, config=self.config, device=target, **more, **self.source.options()
            )
        missing = () if model.load_report is None else model.load_report.missing
        if auto is AutoModel and (not pooler or any(name.startswith("pooler.") for name in missing)):
            model.backbone.pooler = None
        if rounded:
            return quantize(model)
        return pack(model) if self.packed and target.type == "cpu" and can_pack(model.dtype) else model

    def _adopt(self, model: Model, auto: Any) -> Model:
        kinds = self.architectures
        if "Model" not in auto.tasks and not any(kind.endswith(auto.tasks) for kind in kinds):
            wanted = " or ".join(f"...{task}" for task in auto.tasks)
            raise InputTypeError(
                f"`model` is a {kinds[0]}, but the task needs a {wanted}.",
                hint=f"Load it with {auto.__name__}.from_pretrained.",
            )
        if self.settings or self.given.get("config") is not None:
            raise InputError("`config` and `model_kwargs` are for loading a model, but `model` is an object already.")
        if self.device is not None:
            model.to(self.target)
        if isinstance(self.dtype, torch.dtype):
            model.to(self.dtype)
        return model.eval()

    def component(self, kind: str) -> Any:
        """A tokenizer or processor: the one given, or loaded from the name given, or from the checkpoint."""
        given = self.given.get(kind)
        if given is not None and not isinstance(given, str | os.PathLike):
            return given
        if given is not None:
            return KINDS[kind].from_pretrained(given, **self.hub)
        return None if self.source is None else KINDS[kind].from_pretrained(self.source.name, **self.source.options())

    def task(self, tasks: list[str]) -> str:
        """The task of the model or checkpoint, one of ``tasks``, where its class tells it.

        Raises:
            InputError: it names no class, several, or one that is for none of the tasks or for more than one.
        """
        known = f"Pass `task`, one of: {', '.join(tasks)}."
        architectures = self.architectures[:1] if isinstance(self.name, Model) else self.architectures
        if len(architectures) != 1:
            named = ", ".join(architectures) or "no class"
            raise InputError(f"the task cannot be told: the checkpoint's config names {named}.", hint=known)
        name, backbone = architectures[0], resolve(self.config.model_type, "Model")
        kind = next(
            (kind for kind, of in (("audio", AudioBackbone), ("image", ImageBackbone)) if issubclass(backbone, of)), "text"
        )
        bare = name == backbone.__name__
        for (ending, reads), task in TASKS.items():
            if reads == kind and (bare if ending == "Model" else name.endswith(ending)):
                sentences = bare and kind == "text" and self.source is not None and self.source.find(MODULES) is not None
                return "text-embedding" if sentences else task
        raise InputError(f"the task cannot be told: {name} is for none of them, or for more than one.", hint=known)


def device_of(device: str | int | torch.device) -> torch.device:
    """A device by its name, or by the number of a GPU; negative for the CPU.

    Raises:
        InputError: there is no such device.
    """
    if isinstance(device, int):
        device = "cpu" if device < 0 else f"cuda:{device}"
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{device!r} is not a device.", hint="Use 'cpu', 'cuda' or 'cuda:0'.") from error


def fast_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return device.type == "cpu" and any(bool(getattr(torch.cpu, check, bool)()) for check in checks)
