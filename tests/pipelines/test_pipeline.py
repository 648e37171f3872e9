"""``pipeline()`` itself: names of tasks, tasks told from checkpoints, and the parts that one is made of."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import transept
import transept.pipelines
from transept import pipeline
from transept.adapt.pack import PackedLinear
from transept.core.auto import family, model_types
from transept.errors import ConfigError, FileError, InputError, InputTypeError, UnsupportedError
from transept.pipelines import ALIASES, task_class, task_names
from transept.pipelines.base import TaskPipeline
from transept.pipelines.components import READS, UNTAGGED

from .media_models import save_audio_model, save_image_model
from .text_models import SavedModel

ALL = {
    "audio-classification",
    "audio-embedding",
    "automatic-speech-recognition",
    "depth-estimation",
    "document-question-answering",
    "feature-extraction",
    "fill-mask",
    "image-classification",
    "image-embedding",
    "image-feature-extraction",
    "image-segmentation",
    "image-text-to-text",
    "image-to-text",
    "object-detection",
    "question-answering",
    "summarization",
    "table-question-answering",
    "text-classification",
    "text-embedding",
    "text-generation",
    "text-ranking",
    "text-similarity",
    "text2text-generation",
    "token-classification",
    "translation",
    "visual-question-answering",
    "zero-shot-classification",
    "zero-shot-image-classification",
}


def test_every_task_has_a_class_of_its_own() -> None:
    assert set(task_names()) == ALL
    classes = [task_class(task) for task in task_names()]
    assert len(set(classes)) == len(ALL)
    assert all(issubclass(cls, TaskPipeline) and cls.__doc__ for cls in classes)
    assert [cls.task for cls in classes] == task_names()
    assert {alias: task_class(alias).task for alias in ALIASES} == ALIASES


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match="no task 'text-clasification'.*Did you mean 'text-classification'"):
        pipeline("text-clasification", "anything")


# What families' files import of what all share.


def test_pipelines_name_no_family() -> None:
    """The rule of the house: what is special about a family is known to its own file alone."""
    modules = [family(each) for each in model_types()]
    classes = [value for each in modules for value in vars(each).values() if isinstance(value, type)]
    own = {each.__name__ for each in classes if each.__module__.startswith("transept.models.")}
    families = {name for name in own if name.endswith(("Config", "Model")) or "For" in name}
    for path in sorted(Path(transept.pipelines.__file__).parent.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import) for alias in node.names
        }
        assert not names & families, path.name


# --- tasks told from checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("BertForSequenceClassification", "text-classification"),
        ("RobertaForTokenClassification", "token-classification"),
        ("BertForQuestionAnswering", "question-answering"),
        ("DistilBertForMaskedLM", "fill-mask"),
        ("BertModel", "feature-extraction"),
        ("GPT2Model", "feature-extraction"),
    ],
)
def test_the_task_is_told_from_the_checkpoint(text_model: SavedModel, name: str, task: str) -> None:
    directory = text_model(name)
    assert pipeline(model=directory).task == task
    model = getattr(transept, name).from_pretrained(directory)
    assert pipeline(model=model, tokenizer=str(directory)).task == task


def test_the_task_of_pictures_sounds_and_sentences(text_model: SavedModel, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c", "d", "e")]
    for folder in folders:
        folder.mkdir()
    assert pipeline(model=save_image_model(folders[0])).task == "image-classification"
    assert pipeline(model=save_image_model(folders[1], "ViTModel")).task == "image-feature-extraction"
    assert pipeline(model=save_audio_model(folders[2])).task == "automatic-speech-recognition"
    sounds = save_audio_model(folders[3], "Wav2Vec2ForSequenceClassification")
    assert pipeline(model=sounds).task == "audio-classification"
    shutil.copytree(text_model("BertModel"), folders[4], dirs_exist_ok=True)
    (folders[4] / "modules.json").write_text("[]")
    assert pipeline(model=folders[4]).task == "text-embedding"
    assert {*READS, *UNTAGGED.values()} - {"multiple-choice"} <= ALL  # which has a name on the hub, and no pipeline


@pytest.mark.parametrize(
    ("architectures", "what"),
    [
        (None, "names no class"),
        ([], "names no class"),
        (["BertModel", "BertForMaskedLM"], "names BertModel, BertForMaskedLM"),
        (["BertForPreTraining"], "BertForPreTraining is for none of them"),
        (["BertForMultipleChoice"], "BertForMultipleChoice is for none of them"),
        (["SomeoneElsesModel"], "SomeoneElsesModel is for none of them"),
    ],
)
def test_a_task_that_cannot_be_told_is_an_error_that_lists_all(
    text_model: SavedModel, tmp_path: Path, architectures: Any, what: str
) -> None:
    shutil.copytree(text_model("BertModel"), tmp_path / "x")
    config = json.loads((tmp_path / "x/config.json").read_text())
    config["architectures"] = architectures
    (tmp_path / "x/config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=what) as caught:
        pipeline(model=tmp_path / "x")
    assert all(task in str(caught.value) for task in ALL)


def test_classes_are_reached_by_the_references_names(text_model: SavedModel) -> None:
    names = {name for name in dir(transformers) if name.endswith("Pipeline")}
    ours = {f"{task_class(task).__name__}" for task in task_names()}
    assert len(names & ours) == 17  # the reference has no more of our tasks
    for name in ours:
        assert getattr(transept, name) is getattr(transept.pipelines, name) is not None
    assert transept.pipelines.NerPipeline is transept.TokenClassificationPipeline
    assert transept.Pipeline is transept.pipelines.Pipeline
    with pytest.raises(AttributeError, match="no name 'NoPipeline'"):
        _ = transept.pipelines.NoPipeline


def test_a_class_is_made_as_the_references_are(text_model: SavedModel) -> None:
    directory = text_model("BertForSequenceClassification")
    model = transept.BertForSequenceClassification.from_pretrained(directory)
    tokenizer = transept.AutoTokenizer.from_pretrained(directory)
    made = transept.TextClassificationPipeline(model=model, tokenizer=tokenizer, framework="pt", device=-1, top_k=None)
    assert made("one") == transept.TextClassificationPipeline(model, tokenizer)(["one"], top_k=None)[0:1]
    with pytest.raises(InputTypeError, match="`tokenizer` must be passed"):
        transept.TextClassificationPipeline(model)
    with pytest.raises(InputTypeError, match=r"`model` must be a model, but is PosixPath\. Load it"):
        transept.TextClassificationPipeline(directory, tokenizer)
    with pytest.raises(InputError, match="`framework` is 'tf'"):
        pipeline("text-classification", directory, framework="tf")


def test_something_must_be_named() -> None:
    with pytest.raises(InputError, match=r"'ner' has no default.*pipeline\('ner', model=PATH\)"):
        pipeline("ner")
    with pytest.raises(InputError, match="both absent"):
        pipeline()
    with pytest.raises(InputError, match="'fill-mask' has no default model"):
        pipeline("fill-mask")


# --- parts -------------------------------------------------------------------------------------------------------------------


def test_models_are_packed_unless_told_not_to(text_model: SavedModel) -> None:
    directory = text_model("BertModel")
    packed, plain = pipeline("text-embedding", directory), pipeline("text-embedding", directory, packed=False)
    assert any(isinstance(module, PackedLinear) for module in packed.model.modules())
    assert not any(isinstance(module, PackedLinear) for module in plain.model.modules())
    assert np.abs(packed("one") - plain("one")).max() < 1e-6
    double = pipeline("text-embedding", directory, dtype=torch.float64)
    assert double.model.dtype == torch.float64
    assert np.abs(double("one") - plain("one")).max() < 1e-5


def test_devices_and_types(text_model: SavedModel) -> None:
    directory = text_model("BertModel")
    for device in ("cpu", -1, torch.device("cpu"), None, "auto"):
        assert pipeline("feature-extraction", directory, device=device).model.device.type in ("cpu", "cuda")
    assert pipeline("feature-extraction", directory, device_map="cpu").model.device.type == "cpu"
    assert pipeline("feature-extraction", directory, torch_dtype=torch.bfloat16).model.dtype == torch.bfloat16
    assert pipeline("feature-extraction", directory, dtype="auto").model.dtype in (torch.bfloat16, torch.float32)
    with pytest.raises(InputError, match="'tpu9' is not a device"):
        pipeline("feature-extraction", directory, device="tpu9")


def test_parts_that_are_given_are_used(text_model: SavedModel) -> None:
    directory, other = text_model("BertModel"), text_model("BertForMaskedLM")
    tokenizer = transept.AutoTokenizer.from_pretrained(directory)
    assert pipeline("feature-extraction", directory, tokenizer=tokenizer).tokenizer is tokenizer
    assert pipeline("feature-extraction", directory, tokenizer=str(other)).tokenizer.name_or_path == str(other)
    config = transept.AutoConfig.from_pretrained(directory)
    config.num_hidden_layers = 1
    with pytest.raises(transept.CheckpointError):
        pipeline("feature-extraction", directory, config=config)
    eager = pipeline("feature-extraction", directory, model_kwargs={"attn_implementation": "eager"})
    assert eager.model.kernel_name == "eager"


def test_a_loaded_model_moves_and_takes_no_loading_arguments(text_model: SavedModel) -> None:
    directory = text_model("BertModel")
    model = transept.BertModel.from_pretrained(directory)
    made = pipeline("feature-extraction", model, tokenizer=str(directory), dtype=torch.float64, device="cpu")
    assert made.model is model
    assert model.dtype == torch.float64
    with pytest.raises(InputError, match="is an object already"):
        pipeline("feature-extraction", model, tokenizer=str(directory), model_kwargs={"strict": False})
    with pytest.raises(InputTypeError, match="`tokenizer` must be passed"):
        pipeline("feature-extraction", model)


def test_a_missing_pooler_is_no_warning(text_model: SavedModel) -> None:
    """The states of a masked language model's checkpoint, whose pooler nobody trained."""
    made = pipeline("feature-extraction", text_model("BertForMaskedLM"))
    assert made.model.pooler is None


def test_code_of_a_repository_is_never_run(text_model: SavedModel) -> None:
    """The permission is accepted from callers of the reference, and nothing looks at it."""
    for permission in (True, False, None):
        made = pipeline("feature-extraction", text_model("BertModel"), trust_remote_code=permission)
        assert made.task == "feature-extraction"


def test_mistakes_are_named(text_model: SavedModel, tmp_path: Path) -> None:
    directory = text_model("BertModel")
    with pytest.raises(InputError, match="'feature-extraction' has no option 'return_tensor'"):
        pipeline("feature-extraction", directory, return_tensor=True)
    with pytest.raises(FileError):
        pipeline("feature-extraction", tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": -3}')
    with pytest.raises(ConfigError, match="hidden_size"):
        pipeline("feature-extraction", tmp_path)
    image = tmp_path / "image"
    image.mkdir()
    with pytest.raises(InputTypeError, match="needs a model that reads text, and ViTModel does not"):
        pipeline("feature-extraction", save_image_model(image, "ViTModel"), tokenizer=str(directory))
