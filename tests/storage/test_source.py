"""Sources that are directories; those of the hub are tested in `test_hub.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from transept.errors import FileError, FormatError, InputError
from transept.storage.source import Source


def test_files_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "config.json").write_text("outer")
    (tmp_path / "inner/config.json").write_text("inner")
    for name in (str(tmp_path), tmp_path):
        source = Source(name)  # type: ignore[arg-type]
        assert source.directory == tmp_path
        assert source.need("config.json").read_text() == "outer"
        assert source.find("nothing.json") is None
    assert Source(str(tmp_path), subfolder="inner").need("config.json").read_text() == "inner"
    assert Source(str(tmp_path), subfolder="").need("config.json").read_text() == "outer"


def test_what_is_not_there_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"'config\.json' is not there") as caught:
        Source(str(tmp_path)).need("config.json")
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(FileError, match=r"'config\.json' is not there"):
        Source(str(tmp_path), subfolder="inner").need("config.json")


@pytest.mark.parametrize("kind", ["directory", "pipe", "broken link"])
def test_what_is_no_file_is_told_apart(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    {"directory": path.mkdir, "pipe": lambda: os.mkfifo(path), "broken link": lambda: path.symlink_to("gone")}[kind]()
    with pytest.raises(FileError, match="is there, but no regular file"):
        Source(str(tmp_path)).need("config.json")


def test_names_stay_in_the_directory(tmp_path: Path) -> None:
    root = tmp_path / "model"
    root.mkdir()
    (tmp_path / "x").write_text("outside")
    for name in ("../x", str(tmp_path / "x")):
        with pytest.raises(FormatError):
            Source(str(root)).find(name)
        with pytest.raises(InputError, match="subfolder"):
            Source(str(root), subfolder=name)
    (root / "link").symlink_to("../x")
    (root / "out").symlink_to("..")
    with pytest.raises(FormatError, match="link"):
        Source(str(root)).find("link")
    with pytest.raises(FormatError, match="link"):
        Source(str(root), subfolder="out").find("x")


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_no_name(name: str) -> None:
    with pytest.raises(InputError, match="no name of a model"):
        Source(name)
