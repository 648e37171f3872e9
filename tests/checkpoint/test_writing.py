"""Files of tensors that are written here are those of the format's own library."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from transept.checkpoint.store import TensorStore, check_header, write_tensors
from transept.checkpoint.writing import _TYPES, write_stream
from transept.errors import FileError, InputError


def tensors() -> dict[str, Tensor]:
    """A tensor of each type, of random bits, and some of odd shapes."""
    found = {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 3), 'a "b" \u00e9': torch.ones(1, 2, 3)}
    for number, kind in enumerate(_TYPES):
        bits = torch.randint(0, 2 if kind == torch.bool else 256, (3, 16), dtype=torch.uint8)
        found[f"layer.{number}"] = bits.view(kind)
    return found


def test_the_library_reads_the_same_bits(tmp_path: Path) -> None:
    own = tensors()
    write_tensors(own, tmp_path / "own.safetensors")
    read, checked = safetensors.torch.load_file(tmp_path / "own.safetensors"), TensorStore([tmp_path / "own.safetensors"])
    assert read.keys() == own.keys() == checked.keys()
    for name, tensor in own.items():
        for found in (read[name], checked[name]):
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_one_type_gives_the_librarys_bytes(tmp_path: Path) -> None:
    own = {f"w{number}": torch.randn(number, 3) for number in range(5)}
    write_tensors(own, tmp_path / "own.safetensors")
    safetensors.torch.save_file(own, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "own.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_memory_that_is_shared_or_not_in_order_is_written_as_it_reads(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    own = {"whole": whole, "same": whole, "row": whole[1], "turned": whole.T, "grad": whole.clone().requires_grad_()}
    write_tensors(own, tmp_path / "own.safetensors")
    read = safetensors.torch.load_file(tmp_path / "own.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in own.items())


def test_what_the_format_does_not_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'w' is of torch.complex128"):
        write_tensors({"w": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "own.safetensors")
    with pytest.raises(InputError, match="cannot be saved"):
        write_tensors({"\ud800": torch.zeros(2)}, tmp_path / "own.safetensors")


def test_files_are_the_same_to_the_byte(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {f"{name}.{kind}": (torch.rand(3, 2) * 9).to(kind) for name in ("b", "a.ü") for kind in _TYPES}
    state |= {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 4), "turned": torch.rand(4, 3).T}
    safetensors.torch.save_file(
        {name: each.contiguous() for name, each in state.items()}, tmp_path / "one", metadata={"format": "pt"}
    )
    asked: list[str] = []

    def give(name: str) -> torch.Tensor:
        asked.append(name)
        return state[name]

    write_stream({name: t.to("meta") for name, t in state.items()}, give, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert asked == list(check_header(tmp_path / "one"))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"):
        write_stream({"a": torch.empty(1, device="meta")}, lambda name: torch.zeros(1), tmp_path / "none" / "x")
