"""The doors to the disk, and replacing directories."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.pace import within
from transept.errors import FileError, FormatError, InputError
from transept.storage import directory, files
from transept.storage.directory import replace_directory
from transept.storage.files import (
    load_json,
    load_object,
    make_directory,
    parse_json,
    plain_name,
    read_bytes,
    read_text,
    safe_join,
)
from transept.storage.files import write_text as write

# --- names -----------------------------------------------------------------------------------------------------------------

BAD_NAMES = [
    "..",
    "../x",
    "a/../../x",
    "a/..",
    "/etc/passwd",
    "//host/share",
    "\\\\host\\share",
    "a\\b",
    "C:\\x",
    "C:x",
    "a/b:stream",
    "x\0y",
    "x\ny",
    "\ud800",
    "\u202etxt",
    "",
    ".",
    "./",
    "x" * 256,
    "é" * 128,
    "a/" * 3000,
    None,
    7,
    ["x"],
    {"x": 1},
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:20])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(FormatError) as caught:
        safe_join(tmp_path, name)
    assert caught.value.path == str(tmp_path)
    str(caught.value).encode()  # the message itself can be written


@pytest.mark.parametrize("name", ["x", "a/b/c.json", "model-00001-of-00002.safetensors", "é", "x y", "..x", "a/./b", "x..y"])
def test_plain_names_are_joined(tmp_path: Path, name: str) -> None:
    assert plain_name(name) == name
    assert safe_join(tmp_path, name) == tmp_path / name


def test_links_out_of_the_directory_are_refused(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "x").write_text("secret")
    (root / "file").symlink_to(outside / "x")
    (root / "folder").symlink_to(outside)
    (root / "relative").symlink_to("../outside/x")
    (root / "loop").symlink_to("loop")
    (root / "inside").symlink_to("real")
    (root / "real").write_text("mine")
    for name in ("file", "folder/x", "relative"):
        with pytest.raises(FormatError, match="link that leads outside"):
            safe_join(root, name)
    assert safe_join(root, "inside").read_text() == "mine"
    assert not safe_join(root, "loop").exists()
    (tmp_path / "alias").symlink_to(root)
    assert safe_join(tmp_path / "alias", "real").read_text() == "mine"


def test_a_hub_caches_snapshot_may_link_into_its_blobs(tmp_path: Path) -> None:
    repository = tmp_path / "models--me--bert"
    snapshot = repository / "snapshots" / "abc"
    (snapshot / "inner").mkdir(parents=True)
    for folder, text in ((repository / "blobs", "own"), (tmp_path / "blobs", "shared"), (repository / "other", "other")):
        folder.mkdir()
        (folder / "x").write_text(text)
    (snapshot / "own").symlink_to("../../blobs/x")
    (snapshot / "shared").symlink_to("../../../blobs/x")
    (snapshot / "other").symlink_to("../../other/x")
    (snapshot / "inner/own").symlink_to("../../../blobs/x")
    assert safe_join(snapshot, "own").read_text() == "own"
    assert safe_join(snapshot, "shared").read_text() == "shared"
    assert safe_join(snapshot / "inner", "own").read_text() == "own"
    with pytest.raises(FormatError):
        safe_join(snapshot, "other")


# --- reading ---------------------------------------------------------------------------------------------------------------


def test_only_regular_files_of_a_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bytes(tmp_path / "x", max_bytes=5) == b"12345"
    with pytest.raises(FormatError, match="larger than the 4 bytes"):
        read_bytes(tmp_path / "x", max_bytes=4)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(FileError, match="not a regular file"):
            read_bytes(path)
    for path, said in [(tmp_path, "directory"), (tmp_path / "no", "no such file"), ("a\0b", "null"), ("x" * 300, "too long")]:
        with pytest.raises(FileError, match=said) as caught:
            read_bytes(path)
        assert isinstance(caught.value, OSError)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(FormatError, match=r"not UTF-8 text \(byte 3\)"):
        read_text(tmp_path / "latin")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', "key 'a' twice"),
        ('{"x": {"b": 1, "c": 2, "b": 3}}', "key 'b' twice"),
        ("[" * 65 + "]" * 65, "nested deeper than 64"),
        ("[" * 200_000, "nested deeper than 64"),
        ('{"a":' * 100_000, "nested deeper than 64"),
        ("[NaN]", "number NaN"),
        ("[-Infinity]", "number -Infinity"),
        ("[1e999]", "too large"),
        ("[" + "9" * 5000 + "]", "5000 digits"),
        ("[0." + "1" * 5000 + "]", "5002 digits"),
        ("[" + "9" * 65 + "]", "65 digits"),
        ("[-" + "9" * 64 + "]", "65 digits"),
        ("[" + "1" * 20 + "." + "1" * 20 + "e-" + "1" * 22 + "]", "65 digits"),
        ("[1E+400]", "too large"),
        ("[-0.1e310]", "too large"),
        ("[" + "1" * 63 + "e999999]", "70 digits"),
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[1,]", "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ("[1] // comment", "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
        ('["\\ud800"]', "surrogate"),
        ('{"\\uDC00": 1}', "surrogate"),
        ('["\n"]', "not valid JSON"),
        ("[" + "{}," * 150_000 + "1]", "more than the"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_json_that_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=said) as caught:
        load_json(tmp_path / "x.json", max_bytes=2**22)
    assert caught.value.path == str(tmp_path / "x.json")


def test_json_that_is_read(tmp_path: Path) -> None:
    assert parse_json("[NaN, Infinity, -Infinity]", finite=False)[1:] == [float("inf"), float("-inf")]
    assert parse_json('["\\ud83d\\ude00", 1e-5, 12345678901234567890]') == ["😀", 1e-5, 12345678901234567890]
    assert parse_json("[" * 64 + "]" * 64)
    assert parse_json("[" + "9" * 64 + ", 1.5e308]") == [10**64 - 1, 1.5e308]
    looks_like_numbers = "9" * 99 + " \\ud8 1e999"
    assert parse_json(json.dumps([looks_like_numbers, 1.5])) == [looks_like_numbers, 1.5]
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(FormatError, match="must hold a JSON object, but holds list"):
        load_object(tmp_path / "x.json")


def test_refusing_a_repeated_key_takes_no_longer_than_reading() -> None:
    keys = ", ".join(f'"{index}": 0' for index in range(100_000))
    with within(2), pytest.raises(FormatError, match="twice"):  # a quadratic search would take minutes
        parse_json("{" + keys + ', "99999": 0}')


# --- writing ---------------------------------------------------------------------------------------------------------------


def test_text_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.txt"
    write(target, "old")
    assert target.read_text() == "old"

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(FileError, match="no space left"):
        write(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.txt"]


def test_text_goes_to_no_impossible_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "no/x", tmp_path / "file/x", tmp_path / ("x" * 255), tmp_path, tmp_path / "a\0b"):
        with pytest.raises(FileError, match="cannot be written"):
            write(path, "text")
    with pytest.raises(InputError, match="surrogate"):
        write(tmp_path / "x", "\ud800")
    with pytest.raises(FileError, match="into a directory"):
        make_directory(tmp_path / "file/x")
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_a_written_file_has_the_rights_that_the_user_gives_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "x", "text")
        with replace_directory(tmp_path / "new") as stage:
            (stage / "y").write_text("")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o750


# --- directories -----------------------------------------------------------------------------------------------------------


def tree(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def write_new(target: Path) -> None:
    with replace_directory(target, drop=lambda name: name.startswith("stale")) as stage:
        (stage / "model").write_text("new")
        (stage / "index.json").write_text("new")
        (stage / "sub").mkdir()
        (stage / "sub/file").write_text("new")


def make_old(target: Path) -> None:
    (target / "sub").mkdir(parents=True)
    (target / "runs").mkdir()
    for name in ("model", "stale", "stale.json", "notes", "sub/kept", "runs/log"):
        (target / name).write_text("old")


EXPECTED = {"model": "new", "index.json": "new", "sub/file": "new", "notes": "old", "sub/kept": "old", "runs/log": "old"}


def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_exchange", lambda one, other: False)


def is_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory.os.path, "ismount", lambda path: Path(path).name == "target")


def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(directory.os, "link", refuse)


@pytest.mark.parametrize("where", [lambda monkeypatch: None, no_exchange, is_mount, no_links])
def test_a_directory_is_replaced_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any) -> None:
    where(monkeypatch)
    target = tmp_path / "target"
    write_new(target)
    assert tree(target) == {"model": "new", "index.json": "new", "sub/file": "new"}
    make_old(tmp_path / "old")
    os.rename(target, tmp_path / "first")
    os.rename(tmp_path / "old", target)
    target.chmod(0o750)
    write_new(target)
    assert tree(target) == EXPECTED
    assert target.stat().st_mode & 0o777 == 0o750
    assert sorted(os.listdir(tmp_path)) == ["first", "target"]


def test_the_swap_is_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swaps: list[bool] = []
    exchange = directory._exchange
    monkeypatch.setattr(directory, "_exchange", lambda one, other: swaps.append(exchange(one, other)) or swaps[-1])
    make_old(tmp_path / "target")
    write_new(tmp_path / "target")
    assert swaps == [True]  # renameat2 works here, so the other tests of crashes test the swap


def test_the_working_directory_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    make_old(target)
    monkeypatch.chdir(target)
    write_new(Path())
    assert os.getcwd() == str(target)
    assert tree(Path()) == EXPECTED
    assert os.listdir(tmp_path) == ["target"]


def test_a_file_that_appears_meanwhile_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    make_old(target)
    exchange = directory._exchange

    def late(one: Path, other: Path) -> bool:
        (other / "late").write_text("late")
        (other / "runs/late").write_text("late")
        return exchange(one, other)

    monkeypatch.setattr(directory, "_exchange", late)
    write_new(target)
    assert tree(target) == EXPECTED | {"late": "late", "runs/late": "late"}


def _fail_in_the_middle(target: Path, error: BaseException) -> None:
    with replace_directory(target) as stage:
        (stage / "model").write_text("half")
        raise error


@pytest.mark.parametrize("target", ["target", "new/deep/target"])
def test_an_error_leaves_the_old_directory_and_no_trace(tmp_path: Path, target: str) -> None:
    make_old(tmp_path / "target")
    before = tree(tmp_path)
    for error in (OSError(errno.ENOSPC, "No space left on device"), ZeroDivisionError(), KeyboardInterrupt(), InputError("x")):
        expected = FileError if isinstance(error, OSError) else type(error)
        with pytest.raises(expected):
            _fail_in_the_middle(tmp_path / target, error)
    assert tree(tmp_path) == before
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("kind", ["file", "below a file", "NUL", "too long"])
def test_what_cannot_be_a_directory(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("precious")
    paths = {"file": "file", "below a file": "file/sub", "NUL": "a\0b", "too long": "x" * 300}
    with pytest.raises(FileError), replace_directory(tmp_path / paths[kind]) as stage:
        (stage / "x").write_text("")
    assert tree(tmp_path) == {"file": "precious"}


AS_NOBODY = """
import ctypes, os, sys
from transept.storage.directory import replace_directory
from transept.errors import FileError
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for target in sys.argv[1:]:
    try:
        with replace_directory(target) as stage:
            (stage / "x").write_text("new")
    except FileError as error:
        print("refused", error)
    else:
        print("saved")
"""


def test_rights_are_respected(tmp_path: Path) -> None:
    """Without the right to write: refused in the directory, possible in it where only its parent is closed."""
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        if folder != Path("/tmp"):
            folder.chmod(0o755)
    (tmp_path / "closed").mkdir(mode=0o755)
    (tmp_path / "closed/x").write_text("old")
    (tmp_path / "closed/open").mkdir()
    (tmp_path / "closed/open").chmod(0o777)
    (tmp_path / "closed").chmod(0o555)
    targets = [str(tmp_path / name) for name in ("closed", "closed/new", "closed/open")]
    out = subprocess.run([sys.executable, "-c", AS_NOBODY, *targets], capture_output=True, text=True, check=True).stdout
    closed, new, inner = out.splitlines()
    assert closed.startswith("refused")
    assert "may not be written to" in closed
    assert new.startswith("refused")
    assert inner == "saved"
    assert tree(tmp_path / "closed") == {"x": "old", "open/x": "new"}
    (tmp_path / "closed").chmod(0o755)


def test_what_a_killed_process_left_is_removed_but_not_what_a_living_one_uses(tmp_path: Path) -> None:
    make_old(tmp_path / "target")
    left, used = tmp_path / ".target.0000abcd.saving", tmp_path / ".target.1111abcd.saving"
    for path in (left, used):
        path.mkdir()
        (path / "model").write_text("half")
    others = [tmp_path / name for name in (".target2.0000abcd.saving", ".target.mine.saving", ".target.0000abcd.saving.old")]
    for other in others:
        other.mkdir()
    handle = os.open(used, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    write_new(tmp_path / "target")
    os.close(handle)
    assert not left.exists()
    assert used.exists()
    assert all(other.exists() for other in others)  # only names of its own pattern are swept
    assert tree(tmp_path / "target") == EXPECTED


@pytest.mark.parametrize("exists", [True, False])
def test_many_may_save_to_one_place(tmp_path: Path, exists: bool) -> None:
    """As all processes of a job do that forget to ask for their rank: one of them comes last, whole."""
    target = tmp_path / "target"
    if exists:
        make_old(target)

    def save(text: str) -> None:
        for _ in range(20):
            with replace_directory(target, drop=lambda name: name.startswith("stale")) as stage:
                for name in ("model", "index.json"):
                    (stage / name).write_text(text)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, ["1", "2", "3", "4"]))
    found = tree(target)
    assert found["model"] == found["index.json"]
    assert set(found) == {"model", "index.json"} | ({"notes", "sub/kept", "runs/log"} if exists else set())
    assert os.listdir(tmp_path) == ["target"]


def test_a_link_to_a_directory_stays_a_link(tmp_path: Path) -> None:
    make_old(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    write_new(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert tree(tmp_path / "real") == EXPECTED
