"""Configurations: types and ranges, aliases, both layouts of files, what is kept and what a file can never set."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as reference

import transept
from transept.config.model import Config
from transept.errors import ConfigError, FileError, FormatError, InputError, InputTypeError, TranseptWarning
from transept.models.bart import BartConfig
from transept.models.bert import BertConfig, BertModel
from transept.models.clip import CLIPConfig, CLIPModel
from transept.models.encoder_decoder import EncoderDecoderConfig
from transept.models.gemma2 import Gemma2Config
from transept.models.gpt2 import GPT2Config
from transept.models.gpt_neox import GPTNeoXConfig
from transept.models.llama import LlamaConfig
from transept.models.mamba import MambaConfig
from transept.models.mistral import MistralConfig
from transept.models.qwen2 import Qwen2Config
from transept.models.qwen3_moe import Qwen3MoeConfig
from transept.models.t5 import T5Config
from transept.models.xlnet import XLNetConfig


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
        ({"id2label": {0: [1]}}, "id2label"),
        ({"label2id": {"x": "one"}}, "label2id"),
        ({"label2id": ["x"]}, "label2id"),
        ({"pad_token_id": "x"}, "pad_token_id"),
        ({"eos_token_id": [1, "x"]}, "eos_token_id"),
        ({"add_cross_attention": True}, "needs `is_decoder`"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BertConfig(**settings)
    if not any(isinstance(v, float) and v != v for v in settings.values()):
        with pytest.raises(ConfigError, match=said) as caught:
            BertConfig.from_dict(settings, path="some/config.json")
        assert caught.value.path == "some/config.json"


@pytest.mark.parametrize(
    "settings", [{"hidden_size": 0}, {"hidden_size": 10, "num_attention_heads": 4}, {"num_attention_heads": 0}], ids=str
)
def test_sizes_that_heads_do_not_divide_are_refused_by_the_model(settings: dict[str, Any]) -> None:
    config = BertConfig(**settings)  # which may be changed before a model is made of it
    with pytest.raises(ConfigError, match="`hidden_size` of BertConfig must be a positive multiple of `num_attention_heads`"):
        BertModel(config)
    config.hidden_size, config.num_attention_heads, config.num_hidden_layers = 8, 2, 1
    assert BertModel(config).config.hidden_size == 8


def test_numbers_as_json_writes_them() -> None:
    config = BertConfig(hidden_size=8.0, num_attention_heads=2, hidden_dropout_prob=0)
    assert (type(config.hidden_size), type(config.hidden_dropout_prob)) == (int, float)
    assert BertConfig(eos_token_id=[1, 2]).eos_token_id == [1, 2]


def test_labels_as_guides_write_them(tmp_path: Path) -> None:
    names = ["no", "yes"]
    label2id, id2label = ({label: str(i) for i, label in enumerate(names)}, {str(i): label for i, label in enumerate(names)})
    for settings in ({"label2id": label2id}, {"id2label": id2label}, {"id2label": id2label, "label2id": label2id}):
        config = BertConfig(**settings)
        assert (config.id2label, config.label2id, config.num_labels) == ({0: "no", 1: "yes"}, {"no": 0, "yes": 1}, 2)
    config = BertConfig(label2id={5: 0, 7: 1})
    assert (config.id2label, config.label2id) == ({0: 5, 1: 7}, {5: 0, 7: 1})
    config.save_pretrained(tmp_path)
    assert BertConfig.from_pretrained(tmp_path).id2label == {0: 5, 1: 7}
    with pytest.warns(TranseptWarning, match="`num_labels` of BertConfig is 3, but `id2label` names 2"):
        config = BertConfig(num_labels=3, id2label=id2label, label2id=label2id)
    assert config.id2label == reference.BertConfig(num_labels=3, id2label=id2label).id2label
    assert (config.num_labels, len(config.label2id or ())) == (3, 3)


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


def test_unknown_settings_are_kept_with_one_warning(tmp_path: Path) -> None:
    with pytest.warns(TranseptWarning) as caught:
        config = BertConfig(hidden_sise=8, foo=[1])
    (warning,) = caught
    said = (
        "BertConfig has no setting 'hidden_sise' (did you mean 'hidden_size'?), 'foo': kept as an attribute that nothing reads."
    )
    assert str(warning.message) == said
    assert warning.filename == __file__
    assert (config.hidden_sise, config.foo, config.to_dict()["foo"]) == (8, [1], [1])
    config.save_pretrained(tmp_path)
    with pytest.warns(TranseptWarning, match=r"'hidden_sise' \(did you mean 'hidden_size'\?\): kept") as caught:
        assert BertConfig.from_pretrained(tmp_path).foo == [1]  # of a file only what is almost one of ours
    assert len(caught) == 1
    with pytest.raises(ConfigError, match="no setting 'hidden_sise'"):
        BertConfig().with_settings(hidden_sise=8)


def test_where_a_config_is_from(tmp_path: Path) -> None:
    assert BertConfig().name_or_path == ""
    for name in ("name_or_path", "_name_or_path"):
        config = BertConfig(**{name: "x"})
        assert config.name_or_path == config._name_or_path == "x"
    config.save_pretrained(tmp_path)
    for loader in (BertConfig, transept.AutoConfig):
        config = loader.from_pretrained(pretrained_model_name_or_path=tmp_path)
        assert config.name_or_path == config._name_or_path == str(tmp_path)


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
    with pytest.raises(ConfigError, match="`n_embd` of GPT2Config must be in"):
        config.with_settings(hidden_size=-25)


def test_nested_configs_have_the_attention_kernel_of_the_whole_or_their_own() -> None:
    for settings in ({"attn_implementation": "eager"}, {"_attn_implementation": "eager"}):
        config = CLIPConfig(**settings)
        assert {config.attn_implementation, *(part.attn_implementation for part in nested(config))} == {"eager"}
    config.attn_implementation = "sdpa"
    assert [part.attn_implementation for part in nested(config)] == ["sdpa", "sdpa"]
    config = CLIPConfig(attn_implementation={"": "sdpa", "text_config": "eager"})
    assert [config.attn_implementation, *(part.attn_implementation for part in nested(config))] == ["sdpa", "eager", None]
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    texts, pictures = small | {"vocab_size": 20}, small | {"image_size": 8, "patch_size": 4}
    whole = {"text_config": texts, "vision_config": pictures, "projection_dim": 8}
    model = CLIPModel(CLIPConfig(**whole, attn_implementation={"vision_config": "eager"}))
    assert [model.kernel_name, *(stack.kernel_name for stack in model.stacks)] == ["sdpa", "sdpa", "eager"]
    with pytest.raises(ConfigError, match="attn_implementation"):
        CLIPConfig(attn_implementation={"text_config": 3})


def nested(config: Any) -> list[Any]:
    return [config.text_config, config.vision_config]


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


# --- what follows from other settings --------------------------------------------------------------------------------------


def test_what_is_derived_follows_until_it_is_given() -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=4)
    assert (config.head_dim, config.num_key_value_heads) == (16, 4)
    assert config.with_settings(hidden_size=128).head_dim == 32
    config.num_attention_heads = 8
    assert (config.head_dim, config.num_key_value_heads) == (8, 8)
    given = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=24)
    assert given.with_settings(hidden_size=128).head_dim == 24
    assert given.with_settings(head_dim=None).head_dim == 16
    assert LlamaConfig.from_dict(config.to_dict()).with_settings(hidden_size=128).head_dim == 8  # the file gave it
    assert config.to_dict()["head_dim"] == 8
    assert len(Gemma2Config().with_settings(num_hidden_layers=3).layer_types) == 3
    assert MambaConfig().with_settings(hidden_size=64).intermediate_size == 128
    assert MambaConfig(time_step_rank="auto").with_settings(hidden_size=64).time_step_rank == 4
    assert T5Config().with_settings(num_layers=2).num_decoder_layers == 2
    assert Qwen2Config().sliding_window is None
    assert Qwen2Config().with_settings(use_sliding_window=True).sliding_window == 4096
    with pytest.raises(ConfigError, match="multiple of `num_attention_heads`"):
        LlamaConfig(hidden_size=65, num_attention_heads=4)


def test_rotary_settings_can_be_assigned() -> None:
    config = LlamaConfig(rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_theta=5e5)
    config.rope_theta = 7
    config.partial_rotary_factor = 0.5
    expected = {"rope_type": "linear", "factor": 2.0, "rope_theta": 7, "partial_rotary_factor": 0.5}
    assert config.rope_parameters == config.rope_scaling == expected
    config.rope_scaling = {"rope_type": "dynamic", "factor": 4.0}
    assert (config.rope_theta, config.rope_parameters["factor"]) == (7, 4.0)
    assert config.with_settings(rope_theta=9.0).rope_theta == 9
    for wrong in ("x", [1], float("inf")):
        with pytest.raises(ConfigError, match="`rope_theta`"):
            config.rope_theta = wrong  # type: ignore[assignment]
    config.rope_parameters = None
    assert config.rope_theta == 10000


@pytest.mark.parametrize(
    ("cls", "settings", "said"),
    [
        (GPT2Config, {"resid_pdrop": 1.5}, "`resid_pdrop`"),
        (BartConfig, {"encoder_layerdrop": -0.5}, "`encoder_layerdrop`"),
        (MistralConfig, {"sliding_window": 0}, "`sliding_window`.*at least 1"),
        (Qwen3MoeConfig, {"decoder_sparse_step": 0}, "`decoder_sparse_step`"),
        (LlamaConfig, {"num_attention_heads": 0}, "`hidden_size`.*multiple"),
        (LlamaConfig, {"num_key_value_heads": 3}, "multiple of `num_key_value_heads`"),
        (BertConfig, {"pad_token_id": 40000}, "`vocab_size`"),
        (BertConfig, {"eos_token_id": 2**64}, "64 bits"),
        (BertConfig, {"hidden_dropout_prob": 10**400}, "64 bits"),
    ],
)
def test_a_config_is_checked_when_it_is_built(cls: type[Config], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cls(**settings)
    with pytest.raises(ConfigError, match=said):
        cls().with_settings(**settings)


# --- as the reference's ----------------------------------------------------------------------------------------------------


class WithSettings(BertConfig):
    """A user's own config, with a constructor of its own."""

    def __init__(self, extra_size: int = 3, **settings: Any) -> None:
        self.early = extra_size + 1
        super().__init__(**settings)
        self.extra_size = extra_size


def test_what_users_add_is_saved(tmp_path: Path) -> None:
    config = BertConfig()
    config.mine, config.pair, config.kind, config._runtime = {"a": [1]}, (1, 2), torch.float16, object()
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["mine"], written["pair"], written["kind"]) == ({"a": [1]}, [1, 2], "float16")
    assert BertConfig.from_pretrained(tmp_path).mine == {"a": [1]}
    assert "_runtime" not in written
    del config.mine
    assert not hasattr(config, "mine")
    config.thing = object()
    with pytest.raises(ConfigError, match="`thing` of BertConfig cannot be written as JSON"):
        config.save_pretrained(tmp_path)


def test_constructors_of_subclasses(tmp_path: Path) -> None:
    config = WithSettings(extra_size=5, hidden_size=24)
    assert (config.extra_size, config.early, config.hidden_size, config.num_labels) == (5, 6, 24, 2)
    config.later = 1
    config.save_pretrained(tmp_path)
    again = WithSettings.from_pretrained(tmp_path, num_labels=3)
    assert (again.extra_size, again.early, again.hidden_size, again.num_labels, again.later) == (5, 6, 24, 3, 1)
    assert WithSettings(**config.to_dict()) == config
    assert BertModel(config.with_settings(num_hidden_layers=1)).config.extra_size == 5
    with pytest.warns(TranseptWarning, match="no setting 'hidden_sise'"):
        WithSettings(hidden_sise=3)


class Plain(transept.PretrainedConfig):
    """A user's own family, with types of all sorts."""

    model_type = "plain"
    attribute_map = {"hidden_size": "width"}
    width: int = 8
    shape: tuple[int, int] = (1, 2)
    kinds: set[str] | None = None
    unseen: OnlyForCheckers | None = None  # type: ignore[name-defined]  # noqa: F821


def test_a_family_of_a_users_own(tmp_path: Path) -> None:
    config = Plain(hidden_size=16, shape=(3, 4), num_labels=3)
    assert (config.width, config.hidden_size, config.shape, config.num_labels) == (16, 16, [3, 4], 3)
    config.ids = {1: 2}
    config.save_pretrained(tmp_path)
    again = Plain.from_pretrained(tmp_path)
    assert (again.hidden_size, again.shape, again.ids, again.model_type) == (16, [3, 4], {"1": 2}, "plain")
    assert Plain.from_dict(json.loads(config.to_json_string())) == again


def test_keys_with_names_of_ours() -> None:
    values = {"extra": 1, "_extra": 2, "to_dict": 3, "validate": 4, "unread": 5, "use_return_dict": False}
    config = BertConfig.from_dict(values)
    assert config.extra == {"extra": 1, "to_dict": 3, "validate": 4, "unread": 5}
    assert BertConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match="`extra` of BertConfig .* cannot be set"):
        config.extra = {}  # type: ignore[misc]


@pytest.mark.reference
@pytest.mark.parametrize("name", ["BertConfig", "LlamaConfig", "GPTNeoXConfig", "BartConfig", "Gemma2Config", "XLNetConfig"])
def test_the_content_of_a_file_by_keywords(name: str) -> None:
    import transformers

    ours, theirs = getattr(transept, name), getattr(transformers, name)()
    for values in (ours(num_labels=3).to_dict(), theirs.to_dict(), theirs.to_diff_dict()):
        config = ours(**values)
        assert {k: config.to_dict()[k] for k in values if k in config.to_dict()} == {
            k: v for k, v in values.items() if k in config.to_dict()
        }
        assert ours(**config.to_dict()) == config
    assert ours(num_labels=3).to_diff_dict().keys() - {"model_type"} <= theirs.to_dict().keys() | {"use_cache", "head_dim"}


def test_settings_that_every_config_once_took() -> None:
    settings = {"is_decoder": True, "torchscript": False, "pruned_heads": {}, "use_bfloat16": False, "max_length": 30}
    config = GPT2Config(**settings)
    assert {name: getattr(config, name) for name in settings} == settings
    assert settings.items() <= config.to_dict().items()
    with pytest.warns(TranseptWarning, match="no setting 'max_lenght'"):
        GPT2Config(max_lenght=30)
    with pytest.raises(ConfigError, match="type 'llama', but GPT2Config"):
        GPT2Config(model_type="llama")


def test_what_libraries_read(tmp_path: Path) -> None:
    config = BertConfig(dtype="float16", attn_implementation="eager")
    assert config.torch_dtype is config.dtype is torch.float16
    config.torch_dtype = torch.bfloat16
    assert (config.dtype, config.to_dict()["dtype"]) == (torch.bfloat16, "bfloat16")
    config.dtype = "unheard"
    assert config.dtype == "unheard"
    config.dtype = None
    assert (config._attn_implementation, config.use_return_dict) == ("eager", True)
    config._attn_implementation = "sdpa"
    assert config.attn_implementation == "sdpa"
    config.name_or_path = tmp_path
    assert config.name_or_path == config._name_or_path == str(tmp_path)
    assert str(tmp_path) not in config.to_json_string(use_diff=False)
    config.to_json_file(tmp_path / "config.json")
    assert BertConfig.from_json_file(tmp_path / "config.json") == config
    assert BertConfig.from_pretrained(tmp_path).name_or_path == str(tmp_path)
    assert "chunk_size_feed_forward" not in config.to_diff_dict()
    assert "chunk_size_feed_forward" in config.to_dict()
    assert BertConfig.get_config_dict(tmp_path, own=1, revision=None) == (config.to_diff_dict(), {"own": 1})
    config.update({"hidden_size": 24, "own": 1, "dtype": None})
    assert (config.hidden_size, config.own) == (24, 1)
    with pytest.raises(ConfigError, match="`hidden_size` of BertConfig must be in"):
        config.update({"own": 2, "hidden_size": -25})
    assert (config.hidden_size, config.own) == (24, 1)
    assert GPT2Config.attribute_map["hidden_size"] == "n_embd"
    assert transept.PretrainedConfig is transept.PreTrainedConfig
    assert isinstance(config, transept.PretrainedConfig)


def test_settings_are_changed_by_a_text() -> None:
    config = GPT2Config()
    config.update_from_string("n_embd=24,n_head=2,resid_pdrop=0.2,scale_attn_weights=no,use_cache=TRUE,summary_type=cls_index")
    changed = (config.hidden_size, config.n_head, config.resid_pdrop, config.scale_attn_weights, config.summary_type)
    assert changed == (24, 2, 0.2, False, "cls_index")
    before = config.to_dict()
    for text in ("n_embd=-25", "n_head=x", "use_cache=perhaps", "hidden_sise=8", "n_head", "resid_pdrop=2", ""):
        with pytest.raises(ConfigError):
            config.update_from_string(f"summary_type=last,{text}")
    assert config.to_dict() == before


def test_settings_of_single_families() -> None:
    assert GPTNeoXConfig().is_decoder is False
    assert Qwen3MoeConfig(num_experts=16).num_experts == 16
    assert MambaConfig(num_hidden_layers=2).layer_types == ["linear_attention"] * 2
    assert XLNetConfig().max_position_embeddings == -1


def test_the_config_of_one_side() -> None:
    bart = BartConfig(decoder_layers=3, decoder_attention_heads=8, encoder_layers=5)
    assert bart.get_text_config() is bart
    assert BertConfig().get_text_config(decoder=True).is_encoder_decoder is False
    decoder, encoder = bart.get_text_config(decoder=True), bart.get_text_config(encoder=True)
    assert (decoder.num_hidden_layers, decoder.num_attention_heads, encoder.num_hidden_layers) == (3, 8, 5)
    pair = EncoderDecoderConfig()
    assert pair.get_text_config(decoder=True) is pair.decoder


def test_a_model_of_another_type_from_a_config() -> None:
    config = BertConfig(vocab_size=30, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    for settings in ({"dtype": torch.float16}, {"torch_dtype": "float16"}):
        model = BertModel.from_config(config, **settings)
        assert {p.dtype for p in model.parameters()} == {model.config.dtype} == {torch.float16}
    assert BertModel.from_config(config, dtype="auto").dtype == torch.float32
    assert config.dtype is None
    with pytest.raises(InputError, match="`dtype`"):
        BertModel.from_config(config, dtype="int64")


# --- who is to blame -------------------------------------------------------------------------------------------------------


def test_what_the_caller_passed_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    write(tmp_path, {"hidden_size": 24})
    for load in (BertConfig.from_pretrained, BertModel.from_pretrained):
        for settings in ({"numlabels": 5}, {"num_labels": "x"}):
            with pytest.raises(ConfigError) as caught:
                load(tmp_path, **settings)
            assert "config.json" not in str(caught.value)
    config, unused = BertConfig.from_pretrained(tmp_path, numlabels=5, num_labels=3, return_unused_kwargs=True)  # type: ignore[misc]
    assert (config.num_labels, unused) == (3, {"numlabels": 5})
    assert BertConfig.from_dict({"own": 1}, own=2).own == 2


@pytest.mark.parametrize("wrong", [5, None, b"x", ["x"]])
def test_what_names_no_file(wrong: Any) -> None:
    for load in (BertConfig.from_pretrained, BertConfig.from_dict, BertConfig.get_config_dict):
        with pytest.raises(InputTypeError):
            load(wrong)


def test_saving_a_model_leaves_the_config_that_others_share(tmp_path: Path) -> None:
    sizes = {"vocab_size": 30, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    config = BertConfig(architectures=["Mine"], dtype="float32", **sizes)
    one, other = BertModel(config), BertModel(config).half()
    before = config.to_dict()
    other.save_pretrained(tmp_path)
    assert one.config.to_dict() == before
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["architectures"], written["dtype"]) == (["BertModel"], "float16")


def test_constructors_list_their_settings_for_editors() -> None:
    listed = inspect.signature(transept.LlamaConfig.__init__).parameters
    assert listed["hidden_size"].default == 4096
    assert [listed["self"].name, listed["values"].kind] == ["self", inspect.Parameter.VAR_KEYWORD]

    class Mine(transept.LlamaConfig):
        def __init__(self, size: int = 3, **values: Any) -> None:
            super().__init__(hidden_size=size * 64, **values)

    class Twin(Mine):
        model_type = "twin"

    assert list(inspect.signature(Twin).parameters) == ["size", "values"]
    assert Twin(2).hidden_size == 128


def test_the_kernel_of_a_config_that_names_none_is_the_one_that_models_have() -> None:
    config = transept.BertConfig()
    assert [config.attn_implementation, config._attn_implementation] == [None, "sdpa"]
    config._attn_implementation = "eager"
    assert config.attn_implementation == "eager"
    assert transept.BertConfig(_attn_implementation="eager").attn_implementation == "eager"
    assert "attn_implementation" not in config.to_json_string()


def test_parts_are_read_out_of_the_config_of_the_whole(tmp_path: Path) -> None:
    config = transept.Qwen2VLConfig(text_config={"hidden_size": 64}, vision_config={"embed_dim": 32, "num_heads": 4})
    config.save_pretrained(tmp_path)
    assert transept.Qwen2VLVisionConfig.from_pretrained(tmp_path).embed_dim == 32
    assert transept.Qwen2VLTextConfig.from_pretrained(tmp_path).hidden_size == 64


def test_a_mapping_for_a_part_replaces_the_settings_that_it_names(tmp_path: Path) -> None:
    reference.CLIPConfig(text_config={"hidden_size": 24, "num_attention_heads": 2}).save_pretrained(tmp_path)
    changes = {"text_config": {"vocab_size": 20}}
    own, theirs = (library.CLIPConfig.from_pretrained(tmp_path, **changes).text_config for library in (transept, reference))
    for config in (own, theirs):
        assert [config.vocab_size, config.hidden_size, config.num_attention_heads] == [20, 24, 2]
    with pytest.raises(ConfigError, match="vocab_sise"):
        CLIPConfig.from_pretrained(tmp_path, text_config={"vocab_sise": 20})
    with pytest.raises(ConfigError, match="`encoder` of EncoderDecoderConfig must be"):
        EncoderDecoderConfig.from_dict(EncoderDecoderConfig().to_dict(), encoder={"model_type": "roberta"})


def test_classes_and_configs_name_their_nested_configs() -> None:
    assert transept.BertConfig.sub_configs == transept.BertConfig().sub_configs == {}
    expected = {"text_config": transept.CLIPTextConfig, "vision_config": transept.CLIPVisionConfig}
    assert transept.CLIPConfig.sub_configs == transept.CLIPConfig().sub_configs == expected
    assert transept.LlavaConfig.sub_configs.keys() == expected.keys()
    assert transept.LlavaConfig().sub_configs["text_config"] is transept.LlamaConfig


def test_names_of_settings_are_iterated_over() -> None:
    config = transept.BertConfig.from_dict({"mine": 3})
    assert {"hidden_size", "pad_token_id", "mine"} <= {*config}
    assert "hidden_size" in config
    assert "hidden_sise" not in config
