"""Configurations: types and ranges, aliases, both layouts of files, what is kept and what a file can never set."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from transept.config import Config
from transept.errors import ConfigError, FileError, FormatError
from transept.models.bert import BertConfig
from transept.models.gpt2 import GPT2Config
from transept.models.llama import LlamaConfig


def write(directory: Path, document: Any) -> Path:
    directory.mkdir(exist_ok=True)
    text = document if isinstance(document, str) else json.dumps(document)
    (directory / "config.json").write_text(text)
    return directory


# --- values ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hidden_size": "768"}, "`hidden_size` of BertConfig must be int, but is '768'"),
        ({"hidden_size": 768.5}, "must be int"),
        ({"hidden_size": True}, "must be int"),
        ({"hidden_size": None}, "must be int"),
        ({"hidden_size": -8}, r"in \[0, 2147483647\]"),
        ({"hidden_size": 2**40}, r"in \[0, 2147483647\]"),
        ({"hidden_size": 0}, "multiple"),
        ({"hidden_size": 10, "num_attention_heads": 4}, r"`hidden_size`.*multiple of `num_attention_heads` \(4\)"),
        ({"num_attention_heads": 0}, "multiple"),
        ({"num_hidden_layers": 10**9}, r"in \[0, 1024\]"),
        ({"hidden_dropout_prob": 1.5}, r"in \[0, 1\]"),
        ({"hidden_dropout_prob": float("nan")}, "must be float"),
        ({"layer_norm_eps": float("inf")}, "must be float"),
        ({"initializer_range": -0.1}, "at least 0"),
        ({"is_decoder": "yes"}, "must be bool"),
        ({"architectures": "BertModel"}, "architectures"),
        ({"architectures": ["x"] * 2000}, "at most 1024"),
        ({"problem_type": "multi"}, "problem_type"),
        ({"num_labels": 10**9}, r"in \[0, 1000000\]"),
        ({"num_labels": -1}, r"in \[0, "),
        ({"id2label": {"zero": "x"}}, "id2label"),
        ({"id2label": {0: 1}}, "id2label"),
        ({"label2id": ["x"]}, "label2id"),
        ({"pad_token_id": "x"}, "pad_token_id"),
        ({"eos_token_id": [1, "x"]}, "eos_token_id"),
        ({"add_cross_attention": True}, "needs `is_decoder`"),
        ({"hidden_sise": 8}, "no setting 'hidden_sise'.*'hidden_size'"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BertConfig(**settings)
    if "hidden_sise" not in settings and not any(isinstance(v, float) and v != v for v in settings.values()):
        with pytest.raises(ConfigError, match=said) as caught:
            BertConfig.from_dict(settings, path="some/config.json")
        assert caught.value.path == "some/config.json"


def test_numbers_as_json_writes_them() -> None:
    config = BertConfig(hidden_size=8.0, num_attention_heads=2, hidden_dropout_prob=0)
    assert (type(config.hidden_size), type(config.hidden_dropout_prob)) == (int, float)
    assert BertConfig(eos_token_id=[1, 2]).eos_token_id == [1, 2]


def test_one_of_the_labels_settings_gives_the_others() -> None:
    assert BertConfig().num_labels == 2
    assert BertConfig(num_labels=3).id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    named = BertConfig(id2label={"0": "no", "1": "maybe", "2": "yes"})
    assert (named.num_labels, named.label2id) == (3, {"no": 0, "maybe": 1, "yes": 2})
    assert BertConfig(label2id={"a": 0, "b": 1, "c": 2}).id2label == {0: "a", 1: "b", 2: "c"}
    assert BertConfig.from_dict({"id2label": {"0": "x"}, "label2id": {"x": 0}}, num_labels=4).num_labels == 4
    assert "id2label" not in BertConfig().to_dict()
    for strange in ("²", "٣", "9" * 5000, "1" * 12):
        with pytest.raises(ConfigError, match="id2label"):
            BertConfig.from_dict({"id2label": {strange: "x"}})


# --- names -----------------------------------------------------------------------------------------------------------------


def test_aliases_work_in_both_directions() -> None:
    config = GPT2Config(hidden_size=12, num_hidden_layers=1, num_attention_heads=2)
    assert (config.n_embd, config.hidden_size, config.n_layer) == (12, 12, 1)
    config.hidden_size = 24
    assert config.n_embd == 24
    assert GPT2Config(n_embd=12, n_head=2).hidden_size == 12
    written = config.to_dict()
    assert written["n_embd"] == 24
    assert "hidden_size" not in written
    assert GPT2Config.from_dict({"hidden_size": 36, "n_head": 3}).n_embd == 36


def test_what_the_class_does_not_know_is_kept(tmp_path: Path) -> None:
    document = {"model_type": "bert", "gradient_checkpointing": False, "my": {"own": [1, None, "x"]}, "limit": float("inf")}
    config = BertConfig.from_pretrained(write(tmp_path, document))
    assert config.my == {"own": [1, None, "x"]}
    config.save_pretrained(tmp_path / "again")
    again = BertConfig.from_pretrained(tmp_path / "again")
    assert again == config
    assert again.extra == {key: value for key, value in document.items() if key != "model_type"}
    with pytest.raises(AttributeError, match="no setting 'nothing'"):
        _ = config.nothing


def test_both_names_of_the_type(tmp_path: Path) -> None:
    for document in ({"torch_dtype": "float16"}, {"dtype": "float16"}, {"torch_dtype": "x", "dtype": "torch.float16"}):
        config = BertConfig.from_pretrained(write(tmp_path, document))
        assert config.dtype is config.torch_dtype is torch.float16
        assert config.to_dict()["dtype"] == "float16"
        assert "torch_dtype" not in config.to_dict()
    assert BertConfig(dtype=torch.bfloat16).dtype is torch.bfloat16


def test_both_layouts_of_rotary_parameters() -> None:
    old = LlamaConfig.from_dict({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    new = LlamaConfig.from_dict({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}})
    expected = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    for config in (old, new):
        assert expected.items() <= (config.rope_parameters or {}).items()
    assert LlamaConfig.from_dict(old.to_dict()) == old
    assert "rope_scaling" not in old.to_dict()
    assert LlamaConfig.from_dict(old.to_dict(), rope_theta=1e4).rope_theta == 1e4
    assert LlamaConfig().rope_theta == 1e4
    for wrong in ("linear", [1], 3):
        for key in ("rope_scaling", "rope_parameters"):
            with pytest.raises(ConfigError, match=f"`{key}`"):
                LlamaConfig.from_dict({key: wrong})


@pytest.mark.reference
@pytest.mark.parametrize("name", ["BertConfig", "GPT2Config", "LlamaConfig"])
def test_the_reference_reads_ours_and_we_read_its(tmp_path: Path, name: str) -> None:
    import transformers

    ours = {"BertConfig": BertConfig, "GPT2Config": GPT2Config, "LlamaConfig": LlamaConfig}[name]
    theirs = getattr(transformers, name)(num_labels=3, architectures=["X"], num_hidden_layers=3, pad_token_id=5)
    theirs.save_pretrained(tmp_path / "theirs")
    read = ours.from_pretrained(tmp_path / "theirs")
    read.save_pretrained(tmp_path / "ours")
    again = type(theirs).from_pretrained(tmp_path / "ours")
    differing = {
        key
        for key, value in theirs.to_dict().items()
        if again.to_dict().get(key) != value and key not in ("transformers_version", "_name_or_path")
    }
    assert not differing
    assert (read.num_labels, read.num_hidden_layers, read.pad_token_id) == (3, 3, 5)


# --- files -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("", FormatError, "not valid JSON"),
        ("[]", FormatError, "must hold a JSON object"),
        ("null", FormatError, "must hold a JSON object"),
        ('{"hidden_size": 8, "hidden_size": 16}', FormatError, "twice"),
        ('{"model_type": "llama"}', ConfigError, "holds a model of type 'llama', but BertConfig is for 'bert'.*AutoConfig"),
        ('{"model_type": ["bert"]}', ConfigError, "holds a model of type"),
        ('{"hidden_size": NaN}', ConfigError, "must be int"),
        ('{"x": "' + "x" * 2**22 + '"}', FormatError, "larger than"),
        ('{"x": [' + "{}," * 200_000 + "0]}", FormatError, "more than"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_files_that_are_refused(tmp_path: Path, text: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        BertConfig.from_pretrained(write(tmp_path, text))
    assert str(tmp_path / "config.json") in str(caught.value)


def test_the_file_itself_and_a_missing_one(tmp_path: Path) -> None:
    write(tmp_path, {"hidden_size": 24})
    assert BertConfig.from_pretrained(tmp_path / "config.json").hidden_size == 24
    assert BertConfig.from_pretrained(tmp_path, num_labels=5, overrides={"vocab_size": 7}).vocab_size == 7
    with pytest.raises(FileError, match=r"'config\.json' is not there"):
        BertConfig.from_pretrained(tmp_path, subfolder="inner")
    with pytest.raises(ConfigError, match="no setting 'numlabels'"):
        BertConfig.from_pretrained(tmp_path, numlabels=5)


@pytest.mark.parametrize("cls", [BertConfig, GPT2Config, LlamaConfig])
def test_a_config_is_a_value(cls: type[Config], tmp_path: Path) -> None:
    config = cls(num_labels=4, architectures=["X"])
    config.save_pretrained(tmp_path)
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), cls.from_pretrained(tmp_path)):
        assert twin == config
        twin.num_labels = 5
        assert twin != config
    assert repr(config).startswith(cls.__name__)
    assert config != object()


def test_a_copy_with_other_settings() -> None:
    config = GPT2Config(num_labels=3)
    config.own = "kept"
    twin = config.with_settings(hidden_size=24, num_labels=5)
    assert (twin.n_embd, twin.num_labels, twin.own) == (24, 5, "kept")
    assert (config.n_embd, config.num_labels) == (768, 3)
    with pytest.raises(ConfigError, match="no setting 'hidden_sise'.*'hidden_size'"):
        config.with_settings(hidden_sise=24)
    with pytest.raises(ConfigError, match="multiple"):
        config.with_settings(hidden_size=25)


@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation_internal", "auto_map", "trust_remote_code", "custom_pipelines", "_x"]
)
def test_a_file_cannot_choose_code(tmp_path: Path, key: str) -> None:
    config = BertConfig.from_pretrained(write(tmp_path, {"model_type": "bert", key: "evil/kernel"}))
    assert config.attn_implementation is None
    assert "evil" not in config.to_json_string()


def test_one_kind_of_labels_gives_the_others() -> None:
    by_number = BertConfig(id2label={0: "bad", 1: "good"})
    assert by_number.label2id == {"bad": 0, "good": 1}
    by_label = BertConfig(label2id={"bad": 0, "good": 1, "none": 2})
    assert by_label.id2label == {0: "bad", 1: "good", 2: "none"}
    assert by_label.num_labels == 3
    by_label.id2label = {0: "yes"}
    assert (by_label.num_labels, by_label.label2id) == (1, {"yes": 0})
    assert BertConfig.from_dict(by_number.to_dict()) == by_number
