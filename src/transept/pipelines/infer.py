"""Which task a checkpoint is for, where that can be told from the class that its weights were saved from."""

from __future__ import annotations

from transept.core.auto import resolve
from transept.core.model import Model
from transept.core.pixels import ImageBackbone
from transept.core.waves import AudioBackbone
from transept.errors import InputError
from transept.pipelines.parts import Parts
from transept.pipelines.sentence import MODULES

# By the ending of the class's name, and by what the backbone reads.
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


def infer_task(parts: Parts, tasks: list[str]) -> str:
    """The task of a model or checkpoint.

    Args:
        parts: the model, or where it is.
        tasks: the tasks that there are.

    Raises:
        InputError: it names no class, several, or one that is for none of the tasks or for more than one.
    """
    known = f"Pass `task`, one of: {', '.join(tasks)}."
    loaded = isinstance(parts.name, Model)
    architectures = parts.architectures[:1] if loaded else parts.architectures
    if len(architectures) != 1:
        named = ", ".join(architectures) or "no class"
        raise InputError(f"the task cannot be told: the checkpoint's config names {named}.", hint=known)
    name, kind = architectures[0], _reads(parts)
    backbone = name == resolve(parts.config.model_type, "Model").__name__
    for (ending, reads), task in TASKS.items():
        if reads == kind and (backbone if ending == "Model" else name.endswith(ending)):
            sentences = backbone and parts.source is not None and parts.source.find(MODULES) is not None
            return "text-embedding" if sentences and kind == "text" else task
    raise InputError(f"the task cannot be told: {name} is for none of them, or for more than one.", hint=known)


def _reads(parts: Parts) -> str:
    backbone = resolve(parts.config.model_type, "Model")
    if issubclass(backbone, AudioBackbone):
        return "audio"
    return "image" if issubclass(backbone, ImageBackbone) else "text"
