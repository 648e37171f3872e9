"""Filling models: what must fit, what may be new or skipped, ties, types and places."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.pace import within
from transept.core.auto import AutoConfig, AutoModelForMaskedLM
from transept.core.model import Model
from transept.environment import memory
from transept.errors import CheckpointError, ConfigError, InputError, TranseptWarning, UnsupportedError
from transept.generation.config import GenerationConfig
from transept.models.bert import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
)
from transept.models.gpt2 import GPT2Config, GPT2LMHeadModel

from .small import config, equal, store, stored

WORDS, DECODER, BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight", "cls.predictions.bias"


@pytest.fixture
def language_model(tmp_path: Path) -> Path:
    """A directory with a BERT that fills masks."""
    torch.manual_seed(0)
    model = BertForMaskedLM(config())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(tmp_path)
    return tmp_path


def change(directory: Path, **tensors: Tensor | None) -> None:
    """Replace stored tensors, or remove them; dots in names are written as two underscores."""
    state = stored(directory)
    for name, tensor in tensors.items():
        key = name.replace("__", ".")
        if tensor is None:
            del state[key]
        else:
            state[key] = tensor
    store(directory, state)


# --- strictness ------------------------------------------------------------------------------------------------------------


def test_all_that_does_not_fit_is_one_error(language_model: Path) -> None:
    change(
        language_model,
        bert__embeddings__LayerNorm__weight=None,
        bert__encoder__layer__0__output__dense__weight=torch.zeros(3, 3),
        bert__encoder__layer__0__extra__weight=torch.zeros(1),
        bert__encoder__layer__1__output__dense__weight=torch.zeros(8, 8),
        bert__encoder__layer__0__output__dense__bias=torch.zeros(8, dtype=torch.int8),
    )
    with pytest.raises(CheckpointError) as caught:
        BertForMaskedLM.from_pretrained(language_model)
    error = caught.value
    assert error.missing == ("bert.embeddings.LayerNorm.weight",)
    assert set(error.unexpected) == {"bert.encoder.layer.0.extra.weight", "bert.encoder.layer.1.output.dense.weight"}
    assert error.mismatched == ("bert.encoder.layer.0.output.dense.weight", "bert.encoder.layer.0.output.dense.bias")
    text = str(error)
    for part in (*error.missing, *error.unexpected, *error.mismatched, "(3, 3) in the file, (8, 8) in the model", "int8"):
        assert part in text
    for part in (str(language_model), "BertForMaskedLM", "ignore_mismatched_sizes=True", "strict=False"):
        assert part in text


def test_loosening(language_model: Path) -> None:
    change(language_model, bert__embeddings__LayerNorm__weight=None, bert__extra=torch.zeros(1))
    with pytest.warns(TranseptWarning, match=r"newly initialised.*bert\.embeddings\.LayerNorm\.weight"):
        model, info = BertForMaskedLM.from_pretrained(language_model, strict=False, output_loading_info=True)
    assert info["missing_keys"] == {"bert.embeddings.LayerNorm.weight"}
    assert info["unexpected_keys"] == {"bert.extra"}
    assert (model.backbone.embed_norm.weight == 1).all()
    assert torch.equal(model.backbone.embed_norm.bias, stored(language_model)["bert.embeddings.LayerNorm.bias"])

    change(language_model, bert__embeddings__LayerNorm__weight=torch.zeros(3), bert__extra=None)
    with pytest.raises(CheckpointError, match="mismatched"):
        BertForMaskedLM.from_pretrained(language_model, strict=False)
    with pytest.warns(TranseptWarning, match=r"newly initialised.*bert\.embeddings\.LayerNorm\.weight"):
        model, info = BertForMaskedLM.from_pretrained(language_model, ignore_mismatched_sizes=True, output_loading_info=True)
    assert info["mismatched_keys"] == {("bert.embeddings.LayerNorm.weight", (3,), (8,))}
    assert (model.backbone.embed_norm.weight == 1).all()


@pytest.mark.filterwarnings("ignore::transept.errors.TranseptWarning")
def test_more_new_weights_than_there_is_memory(language_model: Path) -> None:
    absurd = {"vocab_size": 2**31 - 1, "hidden_size": 2**20}
    said = r"bert\.embeddings\.word_embeddings\.weight of \(2147483647, 1048576\) by `vocab_size` above all, needs at least .* TB of memory"
    with pytest.raises(ConfigError, match=said) as caught:
        BertForMaskedLM.from_pretrained(language_model, **absurd, ignore_mismatched_sizes=True)
    assert caught.value.path == str(language_model)


@pytest.mark.filterwarnings("ignore::transept.errors.TranseptWarning")
def test_a_new_head_is_compared_with_the_memory_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Legal heads with more classes than the file has are made; where there is no memory for them, nothing is."""
    BertModel(config()).save_pretrained(tmp_path)
    load = partial(BertForSequenceClassification.from_pretrained, tmp_path, num_labels=50_000)
    assert load().head.out_proj.weight.shape == (50_000, 8)
    monkeypatch.setattr(memory, "memory_left", lambda device: 10**6)
    monkeypatch.setattr(memory, "_SMALL", 0)
    said = r"classifier\.weight of \(50000, 8\) by `num_labels` above all, needs at least 1.8 MB of memory, but cpu has 1 MB"
    with pytest.raises(ConfigError, match=said):
        load()


def test_a_file_disproves_a_config_before_anything_is_made(tmp_path: Path) -> None:
    model = BertForSequenceClassification(config(num_labels=3))
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"bias: \(3,\) in the file, \(50000,\) in the model by `num_labels`"):
        BertForSequenceClassification.from_pretrained(tmp_path, num_labels=50_000)
    absurd = {"vocab_size": 2**31 - 1, "hidden_size": 2**20}  # petabytes
    with pytest.raises(CheckpointError, match=r"\(2147483647, 1048576\) in the model by `hidden_size` or `vocab_size`"):
        BertForSequenceClassification.from_pretrained(tmp_path, **absurd)
    with pytest.raises(CheckpointError, match="`state_dict` does not fit"):
        BertForSequenceClassification.from_pretrained(None, config=config(**absurd), state_dict=model.state_dict())


def test_labels_that_only_a_number_tells_of_are_made_at_once() -> None:
    with within(1):
        assert len(config(num_labels=300_000).label2id) == 300_000


def test_integers_are_never_taken_for_numbers(language_model: Path) -> None:
    change(language_model, cls__predictions__bias=torch.zeros(30, dtype=torch.uint8))
    with pytest.raises(CheckpointError, match=r"mistyped\s+cls\.predictions\.bias: torch\.uint8"):
        BertForMaskedLM.from_pretrained(language_model, strict=False, ignore_mismatched_sizes=True)


def test_a_long_list_is_cut_in_the_text_and_whole_in_the_error(language_model: Path) -> None:
    state = stored(language_model) | {f"bert.x{index}\x1b[2J": torch.zeros(1) for index in range(1000)}
    store(language_model, state)
    with pytest.raises(CheckpointError, match="and 900 more") as caught:
        BertForMaskedLM.from_pretrained(language_model)
    assert len(caught.value.unexpected) == 1000
    assert "\x1b" not in str(caught.value)


def test_a_part_of_a_head_is_missing(language_model: Path) -> None:
    change(language_model, cls__predictions__transform__dense__bias=None)
    with pytest.raises(CheckpointError, match=r"missing\s+cls\.predictions\.transform\.dense\.bias"):
        BertForMaskedLM.from_pretrained(language_model)


def test_a_head_with_more_than_its_own_weights(language_model: Path) -> None:
    change(language_model, cls__predictions__transform__dense__scale=torch.zeros(1))
    with pytest.raises(CheckpointError, match=r"unexpected\s+cls\.predictions\.transform\.dense\.scale"):
        BertForMaskedLM.from_pretrained(language_model)


def test_heads_of_others_are_skipped_and_reported(language_model: Path) -> None:
    with pytest.warns(TranseptWarning, match=r"BertForTokenClassification: newly initialised.*classifier\.weight") as noted:
        model, info = BertForTokenClassification.from_pretrained(language_model, output_loading_info=True)
    assert len(noted) == 1
    assert Path(noted[0].filename) == Path(__file__)
    assert info["missing_keys"] == {"classifier.weight", "classifier.bias"}
    assert info["unexpected_keys"] == {name for name in stored(language_model) if name.startswith("cls.")}
    assert model.load_report is not None
    assert model.load_report.filled[WORDS] == WORDS
    assert (model.head.out_proj.bias == 0).all()
    assert 0 < model.head.out_proj.weight.std() < 0.1


def test_a_backbone_into_a_task_and_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = BertModel(config())
    base.save_pretrained(tmp_path / "base")
    assert "embeddings.word_embeddings.weight" in stored(tmp_path / "base")
    with pytest.warns(TranseptWarning, match="newly initialised"):
        task = BertForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    assert equal(task.backbone, base)
    task.save_pretrained(tmp_path / "task")
    again = BertModel.from_pretrained(tmp_path / "task")
    assert equal(again, base)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert equal(BertForSequenceClassification.from_pretrained(tmp_path / "task"), task)


def test_an_unused_pooler_is_skipped_and_a_missing_one_is_new(tmp_path: Path) -> None:
    BertModel(config()).save_pretrained(tmp_path)
    with pytest.warns(TranseptWarning, match="newly initialised") as noted:
        model, info = BertForTokenClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert "pooler" not in str(noted[0].message)
    assert info["unexpected_keys"] == {"pooler.dense.weight", "pooler.dense.bias"}
    model.save_pretrained(tmp_path)
    with pytest.warns(TranseptWarning, match=r"newly initialised.*pooler\.dense\.weight, pooler\.dense\.bias"):
        BertModel.from_pretrained(tmp_path)
    assert BertModel.from_pretrained(tmp_path, add_pooling_layer=False).pooler is None


def test_a_head_of_another_size(tmp_path: Path) -> None:
    BertForSequenceClassification(config(num_labels=3)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"classifier\.weight: \(3, 8\) in the file, \(5, 8\) in the model"):
        BertForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    with pytest.raises(CheckpointError, match="mismatched"):
        BertForMultipleChoice.from_pretrained(tmp_path)
    with pytest.warns(TranseptWarning, match="newly initialised"):
        model = BertForSequenceClassification.from_pretrained(tmp_path, num_labels=5, ignore_mismatched_sizes=True)
    assert model.head.out_proj.weight.shape == (5, 8)


def test_sizes_that_differ_are_told_and_raise_what_pytorch_raises(tmp_path: Path) -> None:
    BertForSequenceClassification(config(num_labels=3)).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="mismatched"):
        BertForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    with pytest.warns(TranseptWarning, match=r"other sizes: \S+weight \(\(3, 8\) in the file, \(5, 8\) in the model\)"):
        BertForSequenceClassification.from_pretrained(tmp_path, num_labels=5, ignore_mismatched_sizes=True)


@pytest.mark.parametrize(
    "loader", [AutoConfig, AutoModelForMaskedLM, BertConfig, BertForMaskedLM], ids=lambda loader: loader.__name__
)
def test_arguments_of_the_reference_that_change_nothing(language_model: Path, loader: Any) -> None:
    needless = {"from_tf": False, "from_flax": False, "low_cpu_mem_usage": True, "_fast_init": True, "mirror": "tuna"}
    needless |= {"resume_download": True, "use_auth_token": None, "proxies": {}, "code_revision": None, "weights_only": True}
    needless |= {"adapter_kwargs": None, "gguf_file": None, "key_mapping": None, "use_kernels": False, "_commit_hash": None}
    loaded = loader.from_pretrained(pretrained_model_name_or_path=language_model, **needless)
    assert loaded.name_or_path == str(language_model)
    for name, value in {"from_tf": True, "from_flax": True, "key_mapping": {"a": "b"}}.items():
        with pytest.raises(UnsupportedError, match=f"`{name}` is not supported"):
            loader.from_pretrained(language_model, **{name: value})
    with pytest.raises(InputError, match="`token` holds spaces"):
        loader.from_pretrained(str(language_model), use_auth_token="a b")


def test_empty_arguments_of_the_reference_for_models(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=10))
    model.save_pretrained(tmp_path)
    options: dict[str, Any] = {"quantization_config": None, "load_in_8bit": False, "load_in_4bit": False, "device_map": None}
    model = GPT2LMHeadModel.from_pretrained(
        tmp_path, **options, torch_dtype="auto", generation_config=GenerationConfig(max_length=3)
    )
    assert model.generation_config.max_length == 3


def test_older_spellings(language_model: Path) -> None:
    expected = BertForMaskedLM.from_pretrained(language_model)
    state = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in stored(language_model).items()
    }
    state["bert.embeddings.position_ids"] = torch.arange(512)[None]
    store(language_model, state)
    assert equal(BertForMaskedLM.from_pretrained(language_model), expected)


# --- ties ------------------------------------------------------------------------------------------------------------------


def test_a_shared_tensor_is_stored_once(language_model: Path) -> None:
    assert DECODER not in stored(language_model)
    model = BertForMaskedLM.from_pretrained(language_model)
    assert model.lm_head.decoder.weight is model.backbone.embed_tokens.weight
    assert DECODER not in (model.load_report.filled if model.load_report else {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_two_equal_copies_are_one(language_model: Path, dtype: torch.dtype) -> None:
    words = stored(language_model)[WORDS].to(dtype)
    change(language_model, **{WORDS.replace(".", "__"): words, DECODER.replace(".", "__"): words.clone()})
    model = BertForMaskedLM.from_pretrained(language_model, dtype="float32")
    assert model.lm_head.decoder.weight is model.backbone.embed_tokens.weight
    assert model.config.tie_word_embeddings


def test_two_different_copies_are_kept_apart_with_a_warning(language_model: Path, tmp_path: Path) -> None:
    given, other = config(), torch.randn(30, 8)
    words = stored(language_model)[WORDS]
    change(language_model, **{DECODER.replace(".", "__"): other})
    with pytest.warns(TranseptWarning, match=r"values of their own.*cls\.predictions\.decoder\.weight"):
        model = BertForMaskedLM.from_pretrained(language_model, config=given)
    assert torch.equal(model.lm_head.decoder.weight, other)
    assert torch.equal(model.backbone.embed_tokens.weight, words)
    assert torch.equal(model.lm_head.decoder.bias, stored(language_model)[BIAS])
    assert not model.config.tie_word_embeddings
    assert given.tie_word_embeddings  # the caller's own config is not touched
    model.save_pretrained(tmp_path / "again")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert equal(BertForMaskedLM.from_pretrained(tmp_path / "again"), model)


def test_only_the_tied_name_is_stored(language_model: Path) -> None:
    expected = BertForMaskedLM.from_pretrained(language_model)
    words = stored(language_model)[WORDS]
    change(language_model, **{WORDS.replace(".", "__"): None, DECODER.replace(".", "__"): words})
    model = BertForMaskedLM.from_pretrained(language_model)
    assert equal(model, expected)
    assert model.lm_head.decoder.weight is model.backbone.embed_tokens.weight
    change(language_model, **{DECODER.replace(".", "__"): None})
    with pytest.raises(CheckpointError, match=r"missing\s+bert\.embeddings\.word_embeddings\.weight"):
        BertForMaskedLM.from_pretrained(language_model)


def test_a_tied_name_of_another_size_is_an_error(language_model: Path) -> None:
    change(language_model, **{DECODER.replace(".", "__"): torch.zeros(31, 8)})
    with pytest.raises(CheckpointError, match=r"mismatched\s+cls\.predictions\.decoder\.weight"):
        BertForMaskedLM.from_pretrained(language_model)
    model = BertForMaskedLM.from_pretrained(language_model, ignore_mismatched_sizes=True)
    assert model.lm_head.decoder.weight is model.backbone.embed_tokens.weight


def test_an_untied_model(tmp_path: Path) -> None:
    model = BertForMaskedLM(config(tie_word_embeddings=False))
    model.save_pretrained(tmp_path)
    assert DECODER in stored(tmp_path)
    assert equal(BertForMaskedLM.from_pretrained(tmp_path), model)
    with pytest.warns(TranseptWarning, match="values of their own"):
        assert equal(BertForMaskedLM.from_pretrained(tmp_path, tie_word_embeddings=True), model)


# --- types and places ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_auto_keeps_the_checkpoints_type(tmp_path: Path, dtype: torch.dtype) -> None:
    model = BertModel(config()).to(dtype)
    model.save_pretrained(tmp_path)
    for options in (
        {},
        {"dtype": None},
        {"dtype": "auto"},
        {"dtype": dtype},
        {"torch_dtype": dtype},
        {"torch_dtype": str(dtype)},
    ):
        again = BertModel.from_pretrained(tmp_path, **options)
        assert again.dtype == dtype
        assert again.config.dtype is dtype
        assert equal(again, model)


def test_the_files_type_counts_where_the_config_names_none(tmp_path: Path) -> None:
    BertModel(config()).half().save_pretrained(tmp_path)
    given = config()
    assert given.dtype is None
    assert BertModel.from_pretrained(tmp_path, config=given).dtype == torch.float16
    assert given.dtype is None


@pytest.mark.parametrize("wanted", ["float32", torch.float32, "torch.float32"])
def test_another_type_converts_every_weight(tmp_path: Path, wanted: Any) -> None:
    model = BertForMaskedLM(config()).half()
    model.save_pretrained(tmp_path)
    assert equal(BertForMaskedLM.from_pretrained(tmp_path, dtype=wanted), model.float())


@pytest.mark.parametrize("wanted", ["int8", "floaty", "nn", torch.int64, "__class__"])
def test_no_floating_point_type(tmp_path: Path, wanted: Any) -> None:
    BertModel(config()).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="`dtype` must be"):
        BertModel.from_pretrained(tmp_path, dtype=wanted)
    with pytest.raises(ConfigError, match="`dtype` of BertConfig must be"):
        BertModel.from_pretrained(tmp_path, config=config(dtype=str(wanted)))


@pytest.mark.parametrize(
    "options",
    [
        {"device": "cpu"},
        {"device": torch.device("cpu")},
        {"device_map": "cpu"},
        {"device_map": "auto"},
        {"device_map": {"": "cpu"}},
        {"low_cpu_mem_usage": True, "trust_remote_code": True},
    ],
    ids=str,
)
def test_whole_models_have_a_place(tmp_path: Path, options: dict[str, Any]) -> None:
    model = BertModel(config())
    model.save_pretrained(tmp_path)
    again = BertModel.from_pretrained(tmp_path, **options)
    assert again.device.type in ("cpu", torch.accelerator.current_accelerator(check_available=True) or "cpu")
    assert equal(again.cpu(), model)
    assert not again.training


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "tpu9000"}, "not a device"),
        ({"device_map": "balanced"}, "not a device"),
        ({"device": 10**6}, "not a device"),
        ({"device": "cuda:77"}, "not a device"),
        ({"device": "meta"}, "holds no weights"),
        ({"device_map": {"model": "cpu", "head": "cpu"}}, "whole models"),
        ({"hidden_sise": 3}, "no setting 'hidden_sise'.*hidden_size"),
    ],
)
def test_arguments_that_cannot_be(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    BertModel(config()).save_pretrained(tmp_path)
    with pytest.raises((InputError, ConfigError), match=said):
        BertModel.from_pretrained(tmp_path, **options)
    with pytest.raises((InputError, ConfigError), match=said):
        BertModel.from_pretrained(tmp_path, config=config(), **options)


def test_loaded_weights_can_be_trained_without_touching_the_file(tmp_path: Path) -> None:
    BertModel(config()).save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    model = BertModel.from_pretrained(tmp_path)
    other = BertModel.from_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert equal(BertModel.from_pretrained(tmp_path), other)
    assert not equal(model, other)


@pytest.mark.parametrize("cls", [BertForPreTraining, BertForQuestionAnswering, BertLMHeadModel])
def test_every_head_comes_back(tmp_path: Path, cls: type[Model]) -> None:
    model = cls(config(is_decoder=cls is BertLMHeadModel))
    model.save_pretrained(tmp_path, max_shard_size=1500)
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert equal(cls.from_pretrained(tmp_path), model)
