"""The table of tasks: what the classes of a task are called, what chooses among them, and what the hub calls the task.

The ``AutoModelFor...`` classes and the reference's ``MODEL_FOR_..._MAPPING`` are made from it; model cards, pipelines and the
documents' table of families tell the task of a class by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """A row of the table.

    Args:
        auto: the name of the class that chooses a family's class for the task; empty for a task without one.
        heads: the endings of the names of classes that it chooses, the first that a family has wins.
        tag: what the hub calls the task, and its pipeline, where there is one.
        column: what the documents' table of families calls the task.
        reads: what the task's inputs are: ``"text"``, ``"image"`` or ``"audio"``.
        has: a method that the class must have.
        named: the endings that come before all where the ``architectures`` of a config name such a class.
    """

    auto: str
    heads: tuple[str, ...]
    tag: str = ""
    column: str = ""
    reads: str = "text"
    has: str = ""
    named: tuple[str, ...] = ()


_CAUSAL = ("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "GenerationDecoder")
_ANSWERS = ("ForQuestionAnsweringSimple", "ForQuestionAnswering")
_TAUGHT = ("ForImageClassificationWithTeacher",)
_IMAGES = ("ForImageClassification", *_TAUGHT)
_SOUNDS = ("ForAudioClassification", "ForSequenceClassification")
_SEQ2SEQ = ("ForConditionalGeneration", "MTModel", "EncoderDecoderModel")
_SPEECH = ("ForConditionalGeneration", "SpeechEncoderDecoderModel")
_IMAGE_TEXT = ("ForConditionalGeneration", "VisionEncoderDecoderModel")
_PRETRAINING = (
    *("ModelWithLMHead", "ForPreTraining", "ForMaskedLM", "ForConditionalGeneration"),
    *("MTModel", "ForCausalLM", "LMHeadModel"),
)
# Of rows with the same ending the first tells the task of a class. The columns of documents stand in this order.
TASKS = (
    Task("AutoModel", ("Model", "QuestionEncoder", "GenerationEncoder")),
    Task("", ("ForPreTraining",), column="pretraining"),
    Task("", ("ContextEncoder", "QuestionEncoder", "Reader"), column="search"),
    Task("AutoModelForMaskedLM", ("ForMaskedLM", "WithLMHeadModel"), "fill-mask", "masked LM"),
    Task("AutoModelForCausalLM", _CAUSAL, "text-generation", "causal LM"),
    Task("AutoModelForNextSentencePrediction", ("ForNextSentencePrediction",), column="next sentence"),
    Task("AutoModelForSequenceClassification", ("ForSequenceClassification",), "text-classification", "sequences"),
    Task("AutoModelForTokenClassification", ("ForTokenClassification",), "token-classification", "tokens"),
    Task("AutoModelForQuestionAnswering", _ANSWERS, "question-answering", "answers"),
    Task("AutoModelForDocumentQuestionAnswering", ("ForQuestionAnswering",)),
    Task("AutoModelForTableQuestionAnswering", ("ForQuestionAnswering",), has="find_cells"),
    Task("AutoModelForVisualQuestionAnswering", ("ForQuestionAnswering",), has="ask"),
    Task("AutoModelForMultipleChoice", ("ForMultipleChoice",), "multiple-choice", "choice"),
    Task("", ("DoubleHeadsModel",), column="LM and choice"),
    Task("", ("EntityClassification", "EntityPairClassification", "EntitySpanClassification"), column="entities"),
    Task("AutoModelForImageClassification", _IMAGES, "image-classification", "images", "image", named=_TAUGHT),
    Task("AutoModelForSemanticSegmentation", ("ForSemanticSegmentation",), "image-segmentation", "pixels", "image"),
    Task("AutoModelForObjectDetection", ("ForObjectDetection",), "object-detection", "objects", "image"),
    Task("AutoModelForUniversalSegmentation", ("ForSegmentation",), "image-segmentation", "masks", "image"),
    Task("AutoModelForImageSegmentation", ("ForSegmentation", "ForSemanticSegmentation")),
    Task("AutoModelForDepthEstimation", ("ForDepthEstimation",), "depth-estimation", "depth", "image"),
    Task("AutoBackbone", ("Backbone",), column="feature maps"),
    Task("AutoModelForMaskedImageModeling", ("ForMaskedImageModeling",), column="masked images"),
    Task("AutoModelForCTC", ("ForCTC",), "automatic-speech-recognition", "CTC", "audio"),
    Task("AutoModelForAudioClassification", _SOUNDS, "audio-classification", "sounds", "audio"),
    Task("AutoModelForAudioFrameClassification", ("ForAudioFrameClassification",), column="frames"),
    Task("AutoModelForAudioXVector", ("ForXVector",), column="x-vectors"),
    Task("", ("MTModel",), "translation", "seq2seq"),
    Task("AutoModelForSeq2SeqLM", _SEQ2SEQ, "text2text-generation", "seq2seq"),
    Task("AutoModelForSpeechSeq2Seq", _SPEECH, "automatic-speech-recognition", "seq2seq", "audio"),
    Task("AutoModelForImageTextToText", _IMAGE_TEXT),
    Task("AutoModelForVision2Seq", _IMAGE_TEXT),
    Task("AutoModelForZeroShotImageClassification", ("Model",), column="texts with images", has="get_image_features"),
    Task("", ("ForImageTextRetrieval", "WithProjection"), column="texts with images"),
    Task("AutoModelForReconstruction", ("ForReconstruction",), column="reconstruction"),
    Task("AutoModelForPreTraining", _PRETRAINING),
)
READS = {task.tag: task.reads for task in TASKS if task.tag}


def task_of(class_name: str, tasks: Iterable[Task]) -> Task | None:
    """The task of a class among some, by the longest ending of its name that one of them has."""
    fits = [(len(head), task) for task in tasks for head in task.heads if class_name.endswith(head)]
    return max(fits, key=lambda fit: fit[0])[1] if fits else None


def pipeline_tag(class_name: str) -> str | None:
    """What the hub calls the task of a class, if it has a name for it."""
    task = task_of(class_name, (task for task in TASKS if task.tag))
    return None if task is None else task.tag
