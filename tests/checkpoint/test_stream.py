"""Files that are written tensor by tensor are those that are written at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from transept.checkpoint.store import check_header, write_tensors
from transept.checkpoint.stream import _TYPES, Entry, write_stream
from transept.errors import FileError


def test_files_are_the_same_to_the_byte(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {f"{name}.{kind}": (torch.rand(3, 2) * 9).to(kind) for name in ("b", "a.ü") for kind in _TYPES}
    state |= {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 4), "turned": torch.rand(4, 3).T}
    write_tensors(state, tmp_path / "one")
    asked: list[str] = []

    def give(name: str) -> torch.Tensor:
        asked.append(name)
        return state[name]

    write_stream({name: Entry(tuple(t.shape), t.dtype) for name, t in state.items()}, give, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert asked == list(check_header(tmp_path / "one"))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"):
        write_stream({"a": Entry((1,), torch.float32)}, lambda name: torch.zeros(1), tmp_path / "none" / "x")
