"""Large files are read ahead of their use, whole and only where memory has room."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from transept import BertConfig, BertModel
from transept.environment import read_ahead as module
from transept.environment.read_ahead import read_ahead

if not hasattr(os, "posix_fadvise"):
    pytest.skip("the system takes no advice on files", allow_module_level=True)

Asked = list[tuple[int, int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Where parts of files begin that the system was asked to read, and how long they are; small files count as large."""
    found: Asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, start, length, advice: found.append((start, length)))
    monkeypatch.setattr(module, "_SMALL", 1000)
    return found


def wait() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon and "_advise" in thread.name:
            thread.join()


@pytest.mark.parametrize("sizes", [(300_000,), (2**17, 5), (2**18 + 1, 2**17 - 1)])
def test_whole_files_are_asked_for(tmp_path: Path, asked: Asked, sizes: tuple[int, ...]) -> None:
    paths = [tmp_path / str(number) for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(bytes(size))
    read_ahead(paths)
    wait()
    assert sum(length for _, length in asked) >= sum(sizes)
    begins = [start for start, _ in asked]
    assert begins == [start for size in sizes for start in range(0, size, 2**17)]


def test_nothing_is_asked_for_where_memory_has_no_room(tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(5000))
    monkeypatch.setattr(module, "memory_left", lambda device: 9000)
    read_ahead([path])
    wait()
    assert not asked


def test_files_that_go_meanwhile_are_no_errors(tmp_path: Path, asked: Asked) -> None:
    module._advise([tmp_path / "gone"])
    assert not asked


def test_weights_are_read_ahead(tmp_path: Path, asked: Asked) -> None:
    config: Any = BertConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=50)
    BertModel(config).save_pretrained(tmp_path)
    BertModel.from_pretrained(tmp_path)
    wait()
    assert asked[0][0] == 0
