"""Writing models: shards, what is replaced and what stays, failures in the middle."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from transept.checkpoint import store
from transept.checkpoint.store import is_weights, save_checkpoint, size_in_bytes, split
from transept.errors import FileError, InputError
from transept.models.bert import BertForMaskedLM, BertModel

from .small import config, equal, stored


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 1), ("1", 1), ("5GB", 5 * 10**9), ("500 MiB", 500 * 2**20), ("1.5kb", 1500), (" 2 TB ", 2 * 10**12), ("1KIB", 1024)],
)
def test_sizes(size: int | str, expected: int) -> None:
    assert size_in_bytes(size) == expected


@pytest.mark.parametrize(
    "size", [0, -1, True, None, 2.5, "", "GB", "-1GB", "5 apples", "1e9", "1.5", "0.1", "9" * 30, [], "5GB\n5"]
)
def test_sizes_that_cannot_be(tmp_path: Path, size: Any) -> None:
    with pytest.raises(InputError, match="max_shard_size"):
        BertModel(config()).save_pretrained(tmp_path / "x", max_shard_size=size)
    assert not (tmp_path / "x").exists()


def test_shards_stay_below_the_size_in_the_models_order() -> None:
    state = {name: 4 * size for name, size in zip("abcdef", (1, 2, 3, 100, 1, 1), strict=True)}
    assert split(state, 12) == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert split(state, 10**9) == [list("abcdef")]
    assert split({}, 1) == [[]]


def test_the_index_lists_every_tensor(tmp_path: Path) -> None:
    model = BertForMaskedLM(config())
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    found: dict[str, str] = {}
    for path in tmp_path.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
            found |= dict.fromkeys(file.keys(), path.name)
    assert index["weight_map"] == found
    assert index["metadata"]["total_size"] == sum(p.nbytes for p in model.parameters())
    assert equal(BertForMaskedLM.from_pretrained(tmp_path), model)


def test_the_reference_reads_our_shards(tmp_path: Path) -> None:
    import transformers

    model = BertForMaskedLM(config())
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    theirs, info = transformers.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    for name, tensor in model.checkpoint_names().keys.save(model.state_dict()).items():
        assert torch.equal(theirs.state_dict()[name], tensor)


def test_what_an_earlier_save_left_goes_and_the_rest_stays(tmp_path: Path) -> None:
    others = {"notes.txt", "tokenizer.json", "model-card.safetensors", "model.fp16.safetensors", "pytorch_model.bin"}
    for name in others:
        (tmp_path / name).write_text("mine")
    one, many = BertModel(config()), BertModel(config())
    one.save_pretrained(tmp_path)
    assert names(tmp_path) == others | {"config.json", "model.safetensors"}
    many.save_pretrained(tmp_path, max_shard_size=2000)
    shards = names(tmp_path) - others
    assert "model.safetensors" not in shards
    assert "model.safetensors.index.json" in shards
    assert equal(BertModel.from_pretrained(tmp_path), many)
    many.save_pretrained(tmp_path, max_shard_size=3000)
    assert not any(name.endswith(f"-of-{len(shards) - 2:05d}.safetensors") for name in names(tmp_path))
    one.save_pretrained(tmp_path)
    assert names(tmp_path) == others | {"config.json", "model.safetensors"}
    assert equal(BertModel.from_pretrained(tmp_path), one)
    assert all((tmp_path / name).read_text() == "mine" for name in others)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_weights_may_be_read_by_whom_the_other_files_may(tmp_path: Path) -> None:
    BertModel(config()).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "config.json").stat().st_mode


def test_which_files_are_weights() -> None:
    for name in ("model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"):
        assert is_weights(name)
        assert not is_weights(name, "fp16")
    for name in ("model.fp16.safetensors", "model.safetensors.index.fp16.json", "model.fp16-00001-of-00002.safetensors"):
        assert is_weights(name, "fp16")
        assert not is_weights(name)
    for name in ("xmodel.safetensors", "model-1-of-2.safetensors", "modelxsafetensors", "sub/model.safetensors", "config.json"):
        assert not is_weights(name)


@pytest.mark.parametrize("shard", ["50GB", 2000])
def test_saving_over_the_files_that_the_model_is_mapped_from(tmp_path: Path, shard: int | str) -> None:
    torch.manual_seed(0)
    BertModel(config(hidden_size=64)).save_pretrained(tmp_path, max_shard_size=shard)
    model, other = BertModel.from_pretrained(tmp_path), BertModel.from_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    expected = [parameter.clone() for parameter in other.parameters()]
    for _ in range(3):
        model.save_pretrained(tmp_path, max_shard_size=shard)
        again = BertModel.from_pretrained(tmp_path)
        assert equal(again, model)
        model = again
    assert all(torch.equal(parameter, old) for parameter, old in zip(other.parameters(), expected, strict=True))


def test_tensors_that_share_memory_are_all_written(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    state = {
        "a": whole,
        "b": whole,
        "row": whole[1],
        "column": whole[:, 1],
        "turned": whole.T,
        "wide": torch.zeros(1).expand(5),
    }
    save_checkpoint(state, {}, tmp_path)
    found = stored(tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(2, device="meta"), "meta device"),
        (torch.zeros(2, 2).to_sparse(), "only dense"),
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
    ],
)
def test_tensors_that_cannot_be_saved(tmp_path: Path, tensor: torch.Tensor, said: str) -> None:
    (tmp_path / "model.safetensors").write_text("old")
    with pytest.raises(InputError, match=said):
        save_checkpoint({"x": tensor}, {}, tmp_path)
    assert names(tmp_path) == {"model.safetensors"}
    assert (tmp_path / "model.safetensors").read_text() == "old"


def test_a_state_of_ones_own(tmp_path: Path) -> None:
    model = BertModel(config())
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path, state_dict=state)
    again = BertModel.from_pretrained(tmp_path)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in state.items())


# --- failures --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["write_stream", "write_text", "dump_json"])
def test_a_full_disk_leaves_the_old_model_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    old, directory = BertModel(config()), tmp_path / "model"
    old.save_pretrained(directory)
    real, calls = getattr(store, step), [0]

    def full(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == (2 if step == "write_stream" else 1):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **options)

    monkeypatch.setattr(store, step, full)
    with pytest.raises(FileError, match=r"(?i)no space left on device"):
        BertModel(config()).save_pretrained(directory, max_shard_size=2000)
    assert calls[0]
    assert names(directory) == {"config.json", "model.safetensors"}
    assert names(tmp_path) == {"model"}
    assert equal(BertModel.from_pretrained(directory), old)


SAVE_WITH_A_LIMIT = """
import resource, signal, sys, torch
from transept.errors import FileError
from transept.models.bert import BertModel
model = BertModel.from_pretrained(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
with torch.no_grad():
    model.embed_tokens.weight.zero_()
try:
    model.save_pretrained(sys.argv[1])
except FileError as error:
    print(error)
"""


def test_the_systems_own_refusal_to_write(tmp_path: Path) -> None:
    old, directory = BertModel(config(vocab_size=10_000)), tmp_path / "model"
    old.save_pretrained(directory)
    command = [sys.executable, "-c", SAVE_WITH_A_LIMIT, str(directory)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "cannot be written" in out
    assert "too large" in out.lower()
    assert equal(BertModel.from_pretrained(directory), old)
    assert names(tmp_path) == {"model"}


def test_places_that_cannot_be_saved_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    model = BertModel(config())
    for place in (tmp_path / "file", tmp_path / "file/sub", "a\0b", "/proc/transept"):
        with pytest.raises(FileError):
            model.save_pretrained(place)
        with pytest.raises(FileError):
            model.config.save_pretrained(place)
    assert (tmp_path / "file").read_text() == "precious"


def test_every_single_call_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault at call k, for every k: one more system call fails each time, until a save passes without a fault."""
    old, new = BertModel(config()), BertModel(config())
    old.save_pretrained(tmp_path / "model", max_shard_size=5000)
    before = names(tmp_path / "model")
    calls = {"left": 0, "failed": 0}

    def faulty(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls["left"] -= 1
            if calls["left"] == 0:
                calls["failed"] += 1
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **options)

        return call

    for name in ("fsync", "rename", "replace", "mkdir", "link", "open"):
        monkeypatch.setattr(os, name, faulty(getattr(os, name)))
    for step in range(1, 200):
        calls |= {"left": step, "failed": 0}
        try:
            new.save_pretrained(tmp_path / "model")
        except FileError:
            calls["left"] = -1
            now = BertModel.from_pretrained(tmp_path / "model")
            assert equal(now, old) or equal(now, new)
            if equal(now, old):
                assert names(tmp_path / "model") == before
            else:
                calls["left"] = -1
                old.save_pretrained(tmp_path / "model", max_shard_size=5000)
        else:
            calls["left"] = -1
            assert equal(BertModel.from_pretrained(tmp_path / "model"), new)
            if not calls["failed"]:
                break
            old.save_pretrained(tmp_path / "model", max_shard_size=5000)
    else:
        pytest.fail("never came to the end")
    assert step > 10
