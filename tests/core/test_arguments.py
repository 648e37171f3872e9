"""Arguments of the reference, and types that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import transept
from tests.models.harness import REPEATED, error
from transept.core.auto import AutoConfig, AutoModel
from transept.errors import CheckpointError, InputError, InputTypeError, UnsupportedError

CONFIG = transept.BertConfig(
    vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=37, num_labels=3
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    transept.BertForSequenceClassification(CONFIG).save_pretrained(save_directory=tmp_path / "m", safe_serialization=True)
    return tmp_path / "m"


def test_names_of_arguments(saved: Path, tmp_path: Path) -> None:
    model: Any = transept.BertForSequenceClassification.from_pretrained(
        pretrained_model_name_or_path=saved, max_memory={"cpu": "1GB"}, proxies={}, low_cpu_mem_usage=True
    )
    for cls in (AutoModel, AutoConfig):
        assert cls.from_pretrained(pretrained_model_name_or_path=saved) is not None
    model.save_pretrained(tmp_path / "other", is_main_process=False, save_function=torch.save)
    assert not (tmp_path / "other").exists()
    assert transept.BertForSequenceClassification.from_pretrained(saved, config=saved / "config.json").num_labels == 3
    assert isinstance(AutoModel.from_pretrained(saved, config=saved), transept.BertModel)
    with pytest.raises(UnsupportedError, match="safetensors"):
        model.save_pretrained(tmp_path / "other", safe_serialization=False)
    with pytest.raises(InputTypeError, match="nonsense"):
        model.save_pretrained(tmp_path / "other", nonsense=1)


def test_a_state_in_place_of_files(saved: Path) -> None:
    model = transept.BertForSequenceClassification.from_pretrained(saved)
    ids = torch.arange(8)[None]
    for name, config in ((None, CONFIG), (saved, None)):
        again: Any = transept.BertForSequenceClassification.from_pretrained(name, config=config, state_dict=model.state_dict())
        assert not again.training
        assert error(again(ids).logits, model(ids).logits) <= REPEATED
    lacking = {name: tensor for name, tensor in model.state_dict().items() if "layer.0.intermediate" not in name}
    with pytest.raises(CheckpointError, match="intermediate"):
        transept.BertForSequenceClassification.from_pretrained(None, config=CONFIG, state_dict=lacking)


@pytest.mark.parametrize("value", [None, "", 5])
def test_where_to_save(value: Any) -> None:
    with pytest.raises(InputTypeError, match="save_directory"):
        transept.BertModel(CONFIG).save_pretrained(value)


@pytest.mark.parametrize("options", [{"config": 5}, {"variant": 5}, {"dtype": 5}], ids=lambda options: next(iter(options)))
@pytest.mark.parametrize("cls", [AutoModel, transept.BertModel], ids=["AutoModel", "BertModel"])
def test_types_that_cannot_be(cls: Any, options: dict[str, Any], saved: Path) -> None:
    with pytest.raises(InputError):
        cls.from_pretrained(saved, **options)


@pytest.mark.parametrize("name", [None, 5])
def test_a_model_without_a_name(name: Any) -> None:
    for cls in (AutoModel, AutoConfig, transept.BertModel):
        with pytest.raises(InputTypeError):
            cls.from_pretrained(name)  # type: ignore[attr-defined]


def test_what_is_otherwise_here(saved: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"flash-attn.*sdpa"):
        transept.BertModel.from_pretrained(saved, attn_implementation="flash_attention_2")
    with pytest.raises(UnsupportedError, match="AwqConfig"):
        transept.BertModel.from_pretrained(saved, quantization_config=transept.AwqConfig(bits=4))
    assert transept.BertModel.from_pretrained(saved, attn_implementation="eager").kernel_name == "eager"


def test_registered_classes(tmp_path: Path) -> None:
    class OwnConfig(transept.BertConfig):
        model_type = "own-bert"

    class OwnModel(transept.BertModel):
        config_class = OwnConfig

    AutoConfig.register("own-bert", OwnConfig, exist_ok=True)
    AutoModel.register(OwnConfig, OwnModel, exist_ok=True)
    OwnModel(OwnConfig(**{k: v for k, v in CONFIG.to_dict().items() if k != "model_type"})).save_pretrained(tmp_path)
    assert type(AutoModel.from_pretrained(tmp_path)) is OwnModel
    with pytest.raises(InputError, match="taken"):
        AutoConfig.register("own-bert", OwnConfig)
    with pytest.raises(InputError, match="not 'other'"):
        AutoConfig.register("other", OwnConfig)
    with pytest.raises(InputTypeError):
        AutoModel.register(OwnConfig, 5)
