"""Reading weights: formats, indices, variants, types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from transept.checkpoint import store
from transept.checkpoint.store import TensorStore, check_header, open_store, read_index
from transept.errors import FileError, FormatError, InputError, TranseptWarning
from transept.models.bert import BertModel
from transept.storage.source import Source

from .small import config, entry, equal, raw

TYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
]


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5,), (2, 3), (2, 1, 3, 1)], ids=str)
def test_every_type_and_shape_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 3).to(dtype)
    save_file({"x": tensor, "other": torch.arange(3)}, tmp_path / "x.safetensors")
    opened = TensorStore([tmp_path / "x.safetensors"])
    assert set(opened) == {"x", "other"}
    assert len(opened) == 2
    for found in (opened["x"], opened.passing("x")):
        assert found.dtype == dtype
        assert found.shape == shape
        assert bits(found) == bits(tensor)


def test_mapped_memory_is_shared_within_a_store_and_never_with_the_file(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(4)}, tmp_path / "x.safetensors")
    opened = TensorStore([tmp_path / "x.safetensors"])
    opened["x"].fill_(1)
    assert (opened["x"] == 1).all()
    assert (opened.passing("x") == 0).all()
    assert (TensorStore([tmp_path / "x.safetensors"])["x"] == 0).all()


def test_what_passes_through_comes_from_maps_that_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"x{index}": torch.full((100,), float(index)) for index in range(20)}
    save_file(tensors, tmp_path / "one.safetensors")
    save_file({"y": torch.ones(3)}, tmp_path / "two.safetensors")
    opened = TensorStore([tmp_path / "one.safetensors", tmp_path / "two.safetensors"])
    maps: list[Path] = []
    real = store._open
    monkeypatch.setattr(store, "_open", lambda path: maps.append(path) or real(path))
    monkeypatch.setattr(store, "PASSING_BYTES", 1000)
    order = opened.reading_order(opened)
    assert order[-1] == "y"
    found = {name: opened.passing(name) for name in order}
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert [path.name for path in maps] == ["one.safetensors"] * 7 + ["two.safetensors"]


def write_shards(directory: Path, *, weight_map: dict[str, Any] | None = None) -> None:
    save_file({"a": torch.zeros(2)}, directory / "one.safetensors")
    save_file({"b": torch.ones(2), "c": torch.ones(1)}, directory / "two.safetensors")
    full = {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}
    document = {"metadata": {"total_size": 20}, "weight_map": full if weight_map is None else weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(document))


def test_shards_are_one_mapping(tmp_path: Path) -> None:
    write_shards(tmp_path)
    opened = open_store(Source(str(tmp_path)))
    assert {name: float(opened[name].sum()) for name in opened} == {"a": 0, "b": 2, "c": 1}
    assert [path.name for path in opened.files] == ["one.safetensors", "two.safetensors"]


@pytest.mark.parametrize(
    ("weight_map", "kind", "said"),
    [
        ({"a": "two.safetensors", "b": "two.safetensors"}, FormatError, "does not hold the tensor 'a'"),
        ({"a": "one.safetensors", "z": "two.safetensors"}, FormatError, "does not hold the tensor 'z'"),
        ({"a": "three.safetensors"}, FileError, "'three.safetensors' is not there"),
        ({"a": "model.safetensors.index.json"}, FormatError, "not a safetensors file"),
        ({}, FormatError, "weight_map"),
    ],
)
def test_an_index_that_does_not_fit_its_files(tmp_path: Path, weight_map: Any, kind: type[Exception], said: str) -> None:
    write_shards(tmp_path, weight_map=weight_map)
    with pytest.raises(kind, match=said):
        open_store(Source(str(tmp_path)))


def test_a_name_in_two_shards(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_file({"a": torch.zeros(2), "b": torch.zeros(2)}, tmp_path / "one.safetensors")
    with pytest.raises(FormatError, match=r"holds the tensor 'b', which one\.safetensors holds too"):
        open_store(Source(str(tmp_path)))


def test_variants(tmp_path: Path) -> None:
    model = BertModel(config())
    model.save_pretrained(tmp_path)
    half = BertModel(config()).half()
    half.save_pretrained(tmp_path, variant="fp16", max_shard_size=1000)
    assert (tmp_path / "model.safetensors.index.fp16.json").exists()
    assert len(list(tmp_path.glob("model.fp16-0000*-of-0000*.safetensors"))) > 2
    assert equal(BertModel.from_pretrained(tmp_path, dtype="float32"), model)
    assert equal(BertModel.from_pretrained(tmp_path, variant="fp16"), half)
    with pytest.raises(FileError, match=r"'model\.bf16\.safetensors' is not there.*leave `variant` out"):
        BertModel.from_pretrained(tmp_path, variant="bf16")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileError, match=r"'model\.safetensors' is not there.*pass variant='fp16'"):
        BertModel.from_pretrained(tmp_path)
    for wrong in ("../x", "a/b", "a b", "é", "x" * 65):
        with pytest.raises(InputError, match="plain word"):
            BertModel.from_pretrained(tmp_path, variant=wrong)
        with pytest.raises(InputError, match="plain word"):
            model.save_pretrained(tmp_path, variant=wrong)


# --- pickles ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("archive", [True, False])
def test_pickled_weights_where_there_are_no_others(tmp_path: Path, archive: bool) -> None:
    model = BertModel(config())
    model.save_pretrained(tmp_path)
    state = model.checkpoint_names().keys.save(model.state_dict())
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=archive)
    with pytest.raises(FileError, match="leave use_safetensors out to read it"):
        BertModel.from_pretrained(tmp_path, use_safetensors=True)
    for options in ({}, {"use_safetensors": None}):
        with pytest.warns(TranseptWarning, match=r"has no model\.safetensors; its pickle pytorch_model\.bin is read"):
            assert equal(BertModel.from_pretrained(tmp_path, **options), model)
    assert equal(BertModel.from_pretrained(tmp_path, use_safetensors=False), model)


def test_pickled_shards(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "one.bin")
    torch.save({"b": torch.ones(2)}, tmp_path / "two.bin")
    index = {"weight_map": {"a": "one.bin", "b": "two.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.warns(TranseptWarning, match=r"its pickle pytorch_model\.bin\.index\.json is read"):
        opened = open_store(Source(str(tmp_path)))
    assert {name: float(opened.passing(name).sum()) for name in opened} == {"a": 0, "b": 2}
    torch.save({"a": torch.zeros(2)}, tmp_path / "two.bin")
    with pytest.raises(FormatError, match="'a', which another file holds too"):
        open_store(Source(str(tmp_path)), safe=False)


class Planted:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


@pytest.mark.parametrize(
    "content",
    [
        {"x": Planted()},
        Planted(),
        [torch.zeros(1)],
        {"x": 1},
        {1: torch.zeros(1)},
        {"state_dict": {"x": torch.zeros(1)}},
        {"x": torch.zeros(2, 2).to_sparse()},
    ],
    ids=["planted value", "planted", "list", "number", "number as name", "nested", "sparse"],
)
@pytest.mark.parametrize("archive", [True, False])
def test_a_pickle_of_anything_but_weights(tmp_path: Path, content: Any, archive: bool, capsys: Any) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=archive)
    with pytest.raises(FormatError) as caught:
        open_store(Source(str(tmp_path)), safe=False)
    assert "weights_only" not in str(caught.value)  # PyTorch's advice to switch its check off
    assert "executed" not in capsys.readouterr().out


# --- headers ---------------------------------------------------------------------------------------------------------------


def test_limits_are_checked_before_parsing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    monkeypatch.setattr(store, "MAX_TENSORS", 2)
    path.write_bytes(raw({name: entry(0, 0, [0]) for name in "ab"}))
    assert list(check_header(path)) == ["a", "b"]
    path.write_bytes(raw({name: entry(0, 0, [0]) for name in "abc"}))
    with pytest.raises(FormatError, match="more than 2 tensors"):
        check_header(path)
    monkeypatch.setattr(store, "MAX_HEADER_BYTES", 20)
    with pytest.raises(FormatError, match="at most 20"):
        check_header(path)
    monkeypatch.setattr(store, "MAX_FILES", 2)
    (tmp_path / "index.json").write_text(json.dumps({"weight_map": {name: name for name in "abc"}}))
    with pytest.raises(FormatError, match="more than 2 files"):
        read_index(tmp_path / "index.json")


def test_the_header_is_read_with_its_metadata(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2, 3)}, tmp_path / "x.safetensors", metadata={"format": "pt", "x": "y"})
    assert check_header(tmp_path / "x.safetensors") == {"x": entry(0, 24, [2, 3])}


def test_weights_of_two_saves_are_never_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that ends while shards are opened, or while they are read, is told and not mixed in."""
    files = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for path in files:
        save_file({path.stem: torch.zeros(2)}, path)
    opened = store._open

    def saved_meanwhile(path: Path) -> Any:
        for other in files:
            save_file({other.stem: torch.ones(2)}, tmp_path / "new")
            (tmp_path / "new").replace(other)
        return opened(path)

    whole = TensorStore(files)
    monkeypatch.setattr(store, "_open", saved_meanwhile)
    with pytest.raises(FileError, match="was replaced while the model was loaded"):
        TensorStore(files)
    with pytest.raises(FileError, match="was replaced while the model was loaded"):
        whole.passing("a")
