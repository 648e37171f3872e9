"""Hostile ``config.json`` files: each ends in one typed error, or loads without doing what it asks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.conftest import Spoil
from tests.hostile.watch import refused, watched
from transept.core.auto import AutoConfig, AutoModel
from transept.errors import CheckpointError, ConfigError, FileError, FormatError, TranseptError, UnsupportedError
from transept.models.bert import BertConfig, BertModel

PLANTED = "import pathlib\npathlib.Path(__file__).with_name('executed').touch()\n"


def plant(model: Path) -> None:
    """Python code under every name that a loader might be talked into."""
    for name in (
        "modeling_evil.py",
        "configuration_evil.py",
        "evil.py",
        "conftest.py",
        "__init__.py",
        "custom_generate/generate.py",
    ):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(PLANTED)


def assert_nothing_ran(model: Path) -> None:
    assert not list(model.rglob("executed"))
    assert not [name for name in sys.modules if "evil" in name]


# --- code ------------------------------------------------------------------------------------------------------------------


AUTO_MAP = {"AutoConfig": "configuration_evil.Evil", "AutoModel": "modeling_evil.Evil", "AutoTokenizer": ["evil.Evil", None]}


@pytest.mark.parametrize("load", [BertModel.from_pretrained, AutoModel.from_pretrained, BertConfig.from_pretrained])
@pytest.mark.parametrize(
    "settings",
    [
        {"auto_map": AUTO_MAP},
        {"trust_remote_code": True, "auto_map": AUTO_MAP},
        {"_attn_implementation_internal": "evil/kernel", "_attn_implementation": "evil/kernel"},
        {"attn_implementation": "evil/kernel"},
        {"custom_pipelines": {"evil": {"impl": "evil.Evil", "pt": ["AutoModel"]}}},
        {"text_config": {"trust_remote_code": True, "auto_map": AUTO_MAP, "_attn_implementation_internal": "evil/kernel"}},
        {"architectures": ["evil.Evil"]},
        {"architectures": ["__import__('os').system('touch executed')"]},
        {"quantization_config": {"quant_method": "gptq", "modules": "evil.Evil"}},
        {"speaker_embeddings": "../secret.txt", "class_info_file": "../secret.txt", "vocab_file": "../secret.txt"},
        {"base_model": "../other", "_name_or_path": "/etc/passwd", "peft": {"base_model_name_or_path": "../other"}},
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_config_can_name_code_and_files_in_vain(
    with_config: Spoil, monkeypatch: pytest.MonkeyPatch, load: Any, settings: dict[str, Any]
) -> None:
    """CVE-2026-4372, CVE-2026-5241, CVE-2026-22807, Bark's and OneFormer's files: read as data, used for nothing."""
    model = with_config(**settings)
    plant(model)
    with watched(model, monkeypatch) as seen:
        load(model)
    assert seen == []
    assert_nothing_ran(model)


def test_cve_2026_4372_config_cannot_name_a_kernel(with_config: Spoil) -> None:
    model = BertModel.from_pretrained(with_config(_attn_implementation_internal="evil/kernel"))
    assert model.kernel_name == "sdpa"
    assert "evil" not in model.config.to_json_string()


def test_cve_2026_5241_trust_in_a_nested_config_is_never_used(with_config: Spoil) -> None:
    nested = {"model_type": "evil", "trust_remote_code": True, "auto_map": AUTO_MAP}
    model = with_config(vision_config=nested, text_config=nested)
    plant(model)
    config = BertModel.from_pretrained(model).config
    assert config.vision_config == nested  # kept as data for saving
    assert_nothing_ran(model)


def test_cve_2026_22807_auto_map_of_a_foreign_model_type_is_an_error(
    with_config: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_config(model_type="evil", auto_map=AUTO_MAP, trust_remote_code=True)
    plant(model)
    for load in (AutoModel.from_pretrained, AutoConfig.from_pretrained):
        for options in ({}, {"trust_remote_code": True}):
            error = refused(lambda load=load, options=options: load(model, **options), model, monkeypatch)
            assert isinstance(error, UnsupportedError)
            assert "never run" in str(error)
    assert isinstance(refused(lambda: BertModel.from_pretrained(model), model, monkeypatch), ConfigError)
    assert_nothing_ran(model)


def test_cve_2026_68770_a_local_directory_is_trusted_no_more_than_the_hub(with_config: Spoil) -> None:
    model = with_config(auto_map=AUTO_MAP)
    plant(model)
    BertModel.from_pretrained(model, trust_remote_code=True)
    BertModel.from_pretrained(model, local_files_only=True)
    assert_nothing_ran(model)


@pytest.mark.parametrize(
    "name", ["../../evil", "os", "os.path", "evil.evil", "bert.BertModel", "__init__", "", "a" * 10_000, "BERT\n"]
)
def test_a_model_type_is_no_module_path(with_config: Spoil, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model = with_config(model_type=name)
    plant(model)
    refused(lambda: AutoModel.from_pretrained(model), model, monkeypatch)
    assert_nothing_ran(model)


def test_cve_2026_9856_labels_become_no_file_names(with_config: Spoil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"0": "../../outside", "1": str(tmp_path / "outside"), "2": "a\u0000b"}
    model = BertConfig.from_pretrained(with_config(id2label=labels))
    target = tmp_path / "saved"
    target.mkdir()
    with watched(target, monkeypatch) as seen:
        model.save_pretrained(target)
    assert seen == []
    assert os.listdir(target) == ["config.json"]


# --- sizes -----------------------------------------------------------------------------------------------------------------


ABSURD = [
    {"num_hidden_layers": 10**9},
    {"num_hidden_layers": 1025},
    {"num_hidden_layers": -1},
    {"hidden_size": 2**40},
    {"hidden_size": 2**31 - 2, "num_attention_heads": 2},
    {"hidden_size": 2**31 - 2, "intermediate_size": 2**31 - 1, "vocab_size": 2**31 - 1},
    {"intermediate_size": 2**31 - 1},
    {"vocab_size": 2**31 - 1},
    {"vocab_size": 0},
    {"max_position_embeddings": 2**31 - 1},
    {"type_vocab_size": 2**31 - 1},
    {"num_attention_heads": 0},
    {"num_attention_heads": 2**31 - 1},
    {"num_labels": 10**9},
    {"hidden_size": 10**60},
    {"hidden_size": -8},
    {"pad_token_id": 10**30},
    {"pad_token_id": -(10**30)},
    {"hidden_dropout_prob": 7},
    {"layer_norm_eps": "1e-12"},
    {"hidden_act": "__import__('os').system('touch executed')"},
    {"hidden_act": ["gelu"] * 10_000},
    {"architectures": ["x"] * 100_000},
]


@pytest.mark.parametrize("settings", ABSURD, ids=lambda value: str(value)[:50])
def test_absurd_sizes_neither_allocate_nor_hang(
    with_config: Spoil, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    model = with_config(**settings)
    before = _resident()
    for load in (BertModel.from_pretrained, AutoModel.from_pretrained):
        assert isinstance(refused(lambda load=load: load(model), model, monkeypatch), ConfigError | CheckpointError)
    assert _resident() - before < 64 * 2**20


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.parametrize(
    "settings", [{"rope_scaling": "x"}, {"rope_scaling": {"type": {}}}, {"rope_parameters": [1]}, {"rope_theta": "x"}]
)
def test_absurd_rotary_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    from transept.models.llama import LlamaConfig, LlamaModel

    config = LlamaConfig(vocab_size=30, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    LlamaModel(config).save_pretrained(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    if "rope_parameters" not in settings:
        del document["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(document | settings))
    refused(lambda: LlamaModel.from_pretrained(tmp_path), tmp_path, monkeypatch)


# --- text ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\x00",
        "[]",
        '"bert"',
        "7",
        "null",
        "{",
        '{"model_type": "bert"',
        '{"model_type": "bert", "model_type": "bert"}',
        '{"a":' * 100_000,
        "[" * 100_000,
        '{"model_type": "bert", "x": ' + "[" * 70 + "]" * 70 + "}",
        '{"hidden_size": ' + "9" * 5000 + "}",
        '{"hidden_size": 1e999}',
        '{"hidden_size": NaN}',
        '{"hidden_dropout_prob": NaN}',
        '{"layer_norm_eps": -Infinity}',
        '{"hidden_act": "\\ud800"}',
        '{"\\udfff": 1}',
        '{"id2label": {"' + "9" * 5000 + '": "x"}}',
        '{"id2label": {"²": "x"}}',
        '{"id2label": []}',
        '{"id2label": {"0": null}}',
        '{"label2id": {"x": "y"}}',
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
        "<html>401</html>",
        "{" + ",".join(f'"{i}":0' for i in range(300_000)) + "}",
        "x" * (5 * 2**20),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_documents_that_are_no_config(with_config: Spoil, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    model = with_config(text)
    for load in (BertModel.from_pretrained, BertConfig.from_pretrained):
        error = refused(lambda load=load: load(model), model, monkeypatch)
        assert isinstance(error, FormatError | ConfigError)
        assert "config.json" in str(error)


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe{\x00}\x00", b"\x80", b'{"x": "\xc3"}', b"\xef\xbb\xbf{}", bytes(range(256))], ids=ascii
)
def test_bytes_that_are_no_text(model: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    (model / "config.json").write_bytes(raw)
    assert isinstance(refused(lambda: BertModel.from_pretrained(model), model, monkeypatch), FormatError)


@pytest.mark.parametrize("kind", ["directory", "pipe", "socket", "device", "link out", "link to /etc/passwd", "loop", "gone"])
def test_what_stands_in_place_of_the_config(model: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = model / "config.json"
    path.unlink()
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "socket":
            import socket

            monkeypatch.chdir(model)  # the names of sockets are short
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind("config.json")
        case "device":
            path.symlink_to("/dev/zero")
        case "link out":
            path.symlink_to("../secret.txt")
        case "link to /etc/passwd":
            path.symlink_to("/etc/passwd")
        case "loop":
            path.symlink_to("config.json")
    error = refused(lambda: BertModel.from_pretrained(model), model, monkeypatch)
    assert isinstance(error, FileError | FormatError)
    assert "canary" not in str(error)
    assert "root:" not in str(error)


def _error(action: Any) -> TranseptError | None:
    try:
        action()
    except TranseptError as error:
        return error
    return None


def test_every_typed_field_refuses_every_wrong_type(with_config: Spoil, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[Any] = [None, True, "x", -1, 0.5, 10**40, [], [None], {}, {"x": []}, [[[[]]]], float("inf")]
    original = (with_config() / "config.json").read_text()
    tried = 0
    for name in BertConfig().to_dict():
        for value in wrong:
            with_config(original)
            model = with_config(**{name: value})
            with watched(model, monkeypatch) as seen:
                error = _error(lambda model=model: BertModel.from_pretrained(model))
            assert error is None or str(model) in str(error)
            assert seen == []
            tried += 1
    assert tried > 200
