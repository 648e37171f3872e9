"""The table of tasks, and families by their model types."""

from __future__ import annotations

import pytest

from transept.core.auto import CHOOSERS, config_class, family, model_types, models_of
from transept.core.model import Backbone
from transept.core.task_table import TASKS, pipeline_tag
from transept.errors import UnsupportedError


def test_each_row_is_the_task_of_a_class_or_of_its_kin() -> None:
    names = [cls.__name__ for model_type in model_types() for cls in models_of(family(model_type))]
    assert not [head for task in TASKS for head in task.heads if not any(name.endswith(head) for name in names)]
    assert len([task for task in TASKS if task.auto]) == len(CHOOSERS)


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("ReformerModelWithLMHead", "text-generation"),
        ("SpeechEncoderDecoderModel", "automatic-speech-recognition"),
        ("VisionEncoderDecoderModel", "text2text-generation"),
        ("MarianMTModel", "translation"),
        ("XLNetForQuestionAnsweringSimple", "question-answering"),
        ("Wav2Vec2ForSequenceClassification", "text-classification"),
        ("BertModel", None),
    ],
)
def test_the_longest_ending_of_a_name_tells_the_task(name: str, tag: str | None) -> None:
    assert pipeline_tag(name) == tag


def test_a_network_that_models_are_made_of_is_found_in_its_family() -> None:
    classes = [cls for model_type in model_types() for cls in models_of(family(model_type)) if issubclass(cls, Backbone)]
    for config in {cls.config_class for cls in classes if cls.config_class.model_type}:
        assert config_class(config.model_type) is config


@pytest.mark.parametrize("model_type", ["bert_text_model", "wav2vec2-bert", "mt5_text_model", "berd", ""])
def test_a_model_type_that_only_begins_as_a_family_is_none(model_type: str) -> None:
    with pytest.raises(UnsupportedError, match=f"no model type '{model_type}'"):
        family(model_type)
