"""Hostile index files: where shards lie is told by a file, and files lie."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.hostile.watch import refused
from transept.errors import FileError, FormatError
from transept.models.bert import BertModel

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(model: Path) -> Callable[[Any], Callable[[], Any]]:
    """Write an index and give what loads it; the weights lie in `weights.safetensors` and outside in `evil.safetensors`."""
    state = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    save_file(state, model / "weights.safetensors")
    save_file(state, model.parent / "evil.safetensors")

    def write(document: Any) -> Callable[[], Any]:
        (model / INDEX).write_text(document if isinstance(document, str) else json.dumps(document))
        return lambda: BertModel.from_pretrained(model)

    return write


def everywhere(model: Path, file: Any) -> dict[str, Any]:
    """A weight map that places all tensors in one file."""
    return {"metadata": {}, "weight_map": dict.fromkeys(load_file(model / "weights.safetensors"), file)}


def test_an_honest_index_loads(sharded: Any, model: Path) -> None:
    sharded(everywhere(model, "weights.safetensors"))()


OUTSIDE = [
    "../evil.safetensors",
    "sub/../../evil.safetensors",
    "..",
    "/etc/passwd",
    "//etc/passwd",
    "~/evil.safetensors/../../x",
]
OUTSIDE += ["..\\evil.safetensors", "C:\\evil.safetensors", "file:///etc/passwd", "weights.safetensors\0", "evil\n.safetensors"]
OUTSIDE += ["./../evil.safetensors", "weights.safetensors/../../evil.safetensors", "\ud800", "x" * 300, "a/" * 3000, ".", ""]


@pytest.mark.parametrize("file", OUTSIDE, ids=lambda value: ascii(value)[:30])
def test_b1_weight_map_traversal(sharded: Any, model: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    error = refused(sharded(everywhere(model, file)), model, monkeypatch)
    assert isinstance(error, FormatError)
    assert str(model) in str(error)


def test_b1_weight_map_traversal_by_full_path(sharded: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(sharded(everywhere(model, str(model.parent / "evil.safetensors"))), model, monkeypatch)
    refused(sharded(everywhere(model, str(model / "weights.safetensors"))), model, monkeypatch)


def test_b1_weight_map_traversal_through_a_link(sharded: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "link.safetensors").symlink_to("../evil.safetensors")
    (model / "up").symlink_to("..")
    for file in ("link.safetensors", "up/evil.safetensors"):
        error = refused(sharded(everywhere(model, file)), model, monkeypatch)
        assert "link that leads outside" in str(error)


@pytest.mark.parametrize("value", [None, 7, True, ["weights.safetensors"], {"file": "weights.safetensors"}, 1.5], ids=str)
def test_b1_weight_map_of_other_things_than_names(
    sharded: Any, model: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    assert isinstance(refused(sharded(everywhere(model, value)), model, monkeypatch), FormatError)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": {}},
        {"weight_map": None},
        {"weight_map": []},
        {"weight_map": "weights.safetensors"},
        {"weight_map": {}},
        [],
        "null",
        "",
        "{",
        '{"weight_map": {"a": "weights.safetensors", "a": "weights.safetensors"}}',
        '{"weight_map": ' + '{"a":' * 100_000,
        '{"weight_map": {"a": NaN}}',
        "version https://git-lfs.github.com/spec/v1\n",
    ],
    ids=lambda value: str(value)[:30],
)
def test_b2_a_broken_index_is_one_typed_error(
    sharded: Any, model: Path, monkeypatch: pytest.MonkeyPatch, document: Any
) -> None:
    error = refused(sharded(document), model, monkeypatch)
    assert isinstance(error, FormatError)
    assert error.path == str(model / INDEX)


@pytest.mark.parametrize("metadata", [None, [], "x", {"total_size": "x"}, {"total_size": -1}, {"total_size": 10**60}], ids=str)
def test_b2_what_an_index_says_beside_the_map_is_not_believed(sharded: Any, model: Path, metadata: Any) -> None:
    sharded(everywhere(model, "weights.safetensors") | {"metadata": metadata})()


def test_an_index_of_very_many_files(sharded: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"weight_map": {f"x{index}": f"file{index}.safetensors" for index in range(20_000)}}
    error = refused(sharded(document), model, monkeypatch)
    assert "more than 10000 files" in str(error)


def test_an_index_of_very_many_names(sharded: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"weight_map": {f"x{index}": "weights.safetensors" for index in range(300_000)}}
    refused(sharded(document), model, monkeypatch)


@pytest.mark.parametrize("kind", ["pickle", "config", "directory", "pipe", "index itself", "device"])
def test_a_shard_that_is_no_safetensors_file(sharded: Any, model: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    import torch

    (model / "directory").mkdir()
    os.mkfifo(model / "pipe")
    torch.save({"x": torch.zeros(1)}, model / "pickle")
    (model / "device").symlink_to("/dev/zero")
    names = {"config": "config.json", "index itself": INDEX}
    error = refused(sharded(everywhere(model, names.get(kind, kind))), model, monkeypatch)
    assert isinstance(error, FileError | FormatError)
