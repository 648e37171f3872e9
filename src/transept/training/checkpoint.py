"""Checkpoint directories of a run: committed by a rename, checked by a manifest, found, and rotated.

``RUN/checkpoint-1200/`` is whole or absent. Its files are written beside it, ``MANIFEST.json`` last, which has the size and a
digest of each of them, and one rename puts them in place. What a killed process left is removed by the next run.

The digest of a file is the SHA-256 digest of those of its pieces of 16 MiB, one after the other, which threads compute at the
same time, while the disk writes the file. With the file's size beside it, it is as hard to forge as SHA-256 itself.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from transept.directory import replace_directory, sweep
from transept.errors import CheckpointError, FileError, FormatError, InputError, TranseptError, TranseptWarning
from transept.files import dump_json, load_object, make_directory, open_regular, plain_name, safe_join, sync, write_text
from transept.training.state import STATE_NAME

PREFIX = "checkpoint"
MANIFEST_NAME = "MANIFEST.json"
_FORMAT = 1
_NAME = re.compile(rf"{PREFIX}-(\d{{1,18}})")
_DELETED = ".deleted"  # what a checkpoint is renamed to before its files are removed one by one
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
_SPARE_BYTES = 2**20  # for the manifest, the log and directories
_DIGEST = "sha256-16MiB"
_PIECE = 2**24
_READ = 2**17  # bytes at once, which the processor's cache holds
_THREADS = 4

Fill = Callable[[Path], Iterable[Path]]


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds: the size and the digest of each file."""

    step: int
    world_size: int
    version: str
    files: dict[str, tuple[int, str]]


def write_checkpoint(run: str | os.PathLike[str], step: int, fill: Fill, *, world_size: int = 1, needed: int = 0) -> Path:
    """Commit ``RUN/checkpoint-STEP``, of the files that ``fill`` writes into the directory that it is called with.

    Args:
        run: the run's directory, made where needed.
        step: the number of updates that were made.
        fill: writes the files, and may give the path of each as soon as it is whole, which saves time with large ones.
        world_size: the number of processes whose state is in it.
        needed: bytes that will be written, as far as is known; compared with those that are free before anything is.

    Raises:
        FileError: it cannot be written; nothing is left of it, and an earlier checkpoint of that step is as it was.
    """
    from transept import __version__

    target = make_directory(run) / f"{PREFIX}-{step}"
    check_space(run, needed)
    with replace_directory(target, drop=lambda name: True) as stage:
        # A file goes to the disk, and is digested, while the next one is written.
        with ThreadPoolExecutor(1) as disk, ThreadPoolExecutor(_THREADS) as pool:
            work = {path: (_pieces(path, pool), disk.submit(sync, path)) for path in fill(stage)}
            others = {path: _pieces(path, pool) for path in stage.rglob("*") if path.is_file() and path not in work}
            listed = {
                path.relative_to(stage).as_posix(): {"size": path.stat().st_size, _DIGEST: _whole(pieces)}
                for path, pieces in (others | {path: pieces for path, (pieces, _) in work.items()}).items()
            }
            for _, synced in work.values():
                synced.result()
        manifest = {"format": _FORMAT, "step": step, "world_size": world_size, "version": __version__, "files": listed}
        write_text(stage / MANIFEST_NAME, dump_json(manifest))
    return target


def _pieces(path: Path, pool: ThreadPoolExecutor) -> list[Future[bytes]]:
    """The digests of a file's pieces, which are computed at the same time."""
    return [pool.submit(_digest, path, start) for start in range(0, max(1, path.stat().st_size), _PIECE)]


def _digest(path: Path, start: int) -> bytes:
    digest, buffer, left = hashlib.sha256(), memoryview(bytearray(_READ)), _PIECE
    with open_regular(path) as opened:
        file = cast(io.BufferedReader, opened)
        file.seek(start)
        while left and (count := file.readinto(buffer[: min(left, _READ)])):
            digest.update(buffer[:count])
            left -= count
    return digest.digest()


def _whole(pieces: Iterable[Future[bytes]]) -> str:
    """The digest of a file, of those of its pieces."""
    return hashlib.sha256(b"".join(piece.result() for piece in pieces)).hexdigest()


def check_space(run: str | os.PathLike[str], needed: int) -> None:
    """Refuse to write more bytes than the disk has left (``FileError``)."""
    try:
        free = shutil.disk_usage(run).free
    except OSError:  # a system that does not say
        return
    if needed and needed + _SPARE_BYTES > free:
        what = f"a checkpoint needs {needed / 1e6:.1f} MB, but the disk has {free / 1e6:.1f} MB left."
        raise FileError(what, path=run, hint="Free some space, or keep fewer checkpoints (`save_total_limit`).")


def read_manifest(checkpoint: str | os.PathLike[str]) -> Manifest:
    """The manifest of a checkpoint (``FileError``: it has none; ``FormatError``: one that cannot be)."""
    path = Path(checkpoint, MANIFEST_NAME)
    document = load_object(path)
    if isinstance(number := document.get("format"), int) and number > _FORMAT:
        by = str(document.get("version"))[:40]
        what = f"is of format {number}, which transept {by} wrote; this version reads up to {_FORMAT}."
        raise CheckpointError(what, path=path, hint="Install that version or a newer one.")
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        entries = document["files"].items()
        files = {plain_name(name, path): (int(entry["size"]), str(entry[_DIGEST])) for name, entry in entries}
        return Manifest(int(document["step"]), int(document["world_size"]), str(document["version"]), files)
    raise FormatError("is no manifest of a checkpoint.", path=path)


def check_checkpoint(checkpoint: str | os.PathLike[str], *, digests: bool = True) -> Manifest:
    """The manifest of a checkpoint, whose files are all there, of their sizes and with ``digests`` of their content.

    Raises:
        CheckpointError: a file is missing or was altered; names it.
        FileError, FormatError: there is no readable manifest.
    """
    manifest = read_manifest(checkpoint)
    hint = "Go on from another checkpoint; find_last_checkpoint() gives the last whole one."
    with ThreadPoolExecutor(_THREADS) as pool:
        for name, (size, digest) in manifest.files.items():
            path = safe_join(checkpoint, name)
            if not path.is_file():
                raise CheckpointError("is missing; the manifest of its checkpoint lists it.", path=path, hint=hint)
            if (found := path.stat().st_size) != size:
                what = f"has {found} bytes, but had {size} when its checkpoint was saved."
                raise CheckpointError(what, path=path, hint=hint)
            if digests and _whole(_pieces(path, pool)) != digest:
                raise CheckpointError("was altered since its checkpoint was saved (SHA-256).", path=path, hint=hint)
    return manifest


def list_checkpoints(run: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """The directories of a run that are named ``checkpoint-STEP``, with their steps, in order."""
    folder = Path(run)
    if not folder.is_dir():
        return []
    found = ((_NAME.fullmatch(entry.name), entry) for entry in folder.iterdir())
    return sorted((int(match[1]), entry) for match, entry in found if match and entry.is_dir())


def find_last_checkpoint(run: str | os.PathLike[str]) -> Path | None:
    """The checkpoint of the highest step that is whole: all files of its manifest are there, of their sizes.

    One that is not is passed over with a warning. ``None``: there is none.
    """
    for _, path in reversed(list_checkpoints(run)):
        try:
            check_checkpoint(path, digests=False)
        except TranseptError as error:
            warnings.warn(f"{path} is passed over: {error}", TranseptWarning, stacklevel=2)
        else:
            return path
    return None


def get_last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The name of the last checkpoint, under the reference's name for it, or ``None``.

    Checkpoints that the reference wrote count too; they have no manifest that could show that they are whole.
    """
    for step, path in reversed(list_checkpoints(folder)):
        foreign = not (path / MANIFEST_NAME).exists()
        if foreign and (path / STATE_NAME).is_file() and any((path / name).is_file() for name in _WEIGHTS):
            return str(path)
        with suppress(TranseptError):
            if not foreign and check_checkpoint(path, digests=False).step == step:
                return str(path)
    return None


def rotate(run: str | os.PathLike[str], limit: int | None, *, last: Path, keep: Iterable[str | Path | None] = ()) -> list[Path]:
    """Remove the oldest checkpoints above a number of ``limit``, never ``last`` and those of ``keep``; returns the removed.

    Those with a higher step than ``last`` are of an earlier run in the same directory, and the first to go.
    """
    if limit is None:
        return []
    if limit < 1:
        raise InputError(f"`save_total_limit` must be at least 1, but is {limit}.", hint="Leave it out to keep all.")
    step = int(last.name.rpartition("-")[2])
    found = sorted(list_checkpoints(run), key=lambda item: (item[0] <= step, item[0]))
    safe = {os.path.realpath(path) for path in (last, *keep) if path is not None}
    free = [path for _, path in found if os.path.realpath(path) not in safe]
    removed = free[: max(0, len(found) - limit)]
    for path in removed:
        remove_checkpoint(path)
    return removed


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint so that a crash leaves it whole or out of sight."""
    hidden = path.with_name(f".{path.name}{_DELETED}")
    with suppress(OSError):  # what cannot be removed takes space, and is no reason to end a run
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(path, hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def clean(run: str | os.PathLike[str]) -> None:
    """Remove what killed processes left in a run's directory of checkpoints that they were writing or removing."""
    sweep(Path(run), _NAME.pattern)
    for entry in [*Path(run).glob(f".{PREFIX}-*{_DELETED}")]:
        if _NAME.fullmatch(entry.name.removeprefix(".").removesuffix(_DELETED)):
            shutil.rmtree(entry, ignore_errors=True)
