"""The directory of a run: one run is in it at a time; its checkpoints are committed by a rename, checked and rotated.

``RUN/checkpoint-1200/`` is whole or absent. Its files are written beside it, ``MANIFEST.json`` last, which has the
size and a digest of each of them, and one rename puts them in place. What a killed process left is removed by the
next run. Only files that a manifest names are ever replaced or removed; what others put into a checkpoint stays.

The digest of a file is the SHA-256 digest of those of its pieces of 16 MiB, one after the other, which threads
compute while the disk writes the file. With the file's size beside it, it is as hard to forge as SHA-256 itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

from transept.config.fields import Count, Range
from transept.config.schema import read_typed, typed
from transept.errors import CheckpointError, FileError, TranseptError, TranseptWarning, refuse
from transept.storage.directory import HELD, lock, replace_directory, sweep
from transept.storage.files import (
    dump_json,
    load_json,
    make_directory,
    open_regular,
    plain_name,
    reason,
    safe_join,
    sync,
    write_text,
)
from transept.training.state import STATE_NAME

MANIFEST_NAME = "MANIFEST.json"
LOCK_NAME = ".training.lock"
_FORMAT = 1
_NAME = re.compile(r"checkpoint-(\d{1,18})")
_DELETED = ".deleted"  # what a checkpoint is renamed to before its files are removed one by one
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
_SPARE_BYTES = 2**20  # for the manifest, the log and directories
_DIGEST = "sha256-16MiB"
_PIECE = 2**24
_READ = 2**17  # bytes at once, which the processor's cache holds
_THREADS = 4
_REMEDY = "Move it away, or train in another directory."
_OF_ALL_FORMATS: Any = {"format": int, "version": str}
_LOCK_NOTE: Any = {"process": int, "machine": str}
_LOCKS: dict[int, tuple[str, int]] = {}  # handles, each with the path of its lock and the thread that has it

Fill = Callable[[Path], Iterable[Path]]


@dataclass(frozen=True)
class Listed:  # a file of a manifest
    size: Annotated[int, Range(0)]
    digest: str = field(metadata={"key": _DIGEST})


@dataclass(frozen=True)
class Manifest:
    step: Annotated[int, Range(0)]
    world_size: Count
    version: str
    files: dict[str, Listed]


def write_checkpoint(run: Path, step: int, fill: Fill, *, world_size: int = 1, needed: int = 0) -> Path:
    """Commit ``RUN/checkpoint-STEP`` by :func:`write_directory`, if the disk has the bytes that are ``needed``.

    Where it cannot be written (``FileError``), nothing is left of it, and an earlier checkpoint of that step stays.
    """
    target = make_directory(run) / f"checkpoint-{step}"
    check_space(run, needed)
    return write_directory(target, fill, step=step, world_size=world_size)


def write_directory(target: Path, fill: Fill, *, step: int = 0, world_size: int = 1) -> Path:
    """Commit a directory with a manifest, in the place of the one that an earlier manifest tells of.

    ``fill`` writes the files into the directory that it is called with. It may give the path of each as soon as it is
    whole, which saves time with large ones. ``world_size`` is the number of processes whose state is in it.
    ``FileError``: it cannot be written, is a link, or holds files of these names that no manifest names.
    """
    from transept import __version__

    wrong = "is a link, and a save would replace what is behind it."
    refuse(target.is_symlink(), wrong, _REMEDY, FileError, path=target)
    named, others = _list_files(target)
    kept = {name.partition("/")[0] for name in others}
    with replace_directory(target, drop=lambda name: name not in kept) as stage:
        # A file goes to the disk, and is digested, while the next one is written.
        with ThreadPoolExecutor(1) as disk, ThreadPoolExecutor(_THREADS) as pool:
            digests, synced = dict[Path, Callable[[], str]](), list[Future[None]]()
            for path in fill(stage):
                digests[path] = _start_digest(path, pool)
                synced.append(disk.submit(sync, path))
            rest = [path for path in stage.rglob("*") if path.is_file() and path not in digests]
            digests |= {path: _start_digest(path, pool) for path in rest}
            files = dict[str, Any]()
            for path, digest in digests.items():
                files[path.relative_to(stage).as_posix()] = {"size": path.stat().st_size, _DIGEST: digest()}
            for future in synced:
                future.result()
        folders = {name.partition("/")[0] for name in (*named, *files) if "/" in name}  # replaced as a whole
        for name in sorted(others):
            is_lost = name in files or name == MANIFEST_NAME or name.partition("/")[0] in folders
            wrong = f"holds {name!r}, which no manifest names and a save would replace."
            refuse(is_lost, wrong, _REMEDY, FileError, path=target)
        manifest = {"format": _FORMAT, "step": step, "world_size": world_size, "version": __version__, "files": files}
        write_text(stage / MANIFEST_NAME, dump_json(manifest))
    return target


def _list_files(folder: Path) -> tuple[set[str], set[str]]:
    """The files that a directory's manifest names, itself among them, and all others that are there, also links."""
    named = set[str]()
    with suppress(TranseptError):  # it has no readable manifest
        named = {*read_manifest(folder).files, MANIFEST_NAME}
    present = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return named, {path.relative_to(folder).as_posix() for path in present} - named


def _start_digest(path: Path, pool: ThreadPoolExecutor) -> Callable[[], str]:
    """Begin to digest the pieces of a file in threads; gives a function that waits for the digest of the file."""
    pieces = [pool.submit(_digest_piece, path, start) for start in range(0, max(1, path.stat().st_size), _PIECE)]
    return lambda: hashlib.sha256(b"".join(piece.result() for piece in pieces)).hexdigest()


def _digest_piece(path: Path, start: int) -> bytes:
    digest, left = hashlib.sha256(), _PIECE
    with open_regular(path) as file:
        file.seek(start)
        while left and (data := file.read(min(left, _READ))):
            digest.update(data)
            left -= len(data)
    return digest.digest()


def check_free(run: Path, after: int, until: int) -> None:
    """Refuse to begin a run whose saves would meet a checkpoint that transept did not write (``FileError``)."""
    for step, path in list_checkpoints(run):
        is_other = path.is_symlink() or ((path / STATE_NAME).exists() and not _is_ours(step, path))
        wrong = "was not written by transept, and this run might save there."
        refuse(after < step <= until and is_other, wrong, _REMEDY, FileError, path=path)


def _is_ours(step: int, path: Path) -> bool:
    with suppress(TranseptError):
        return not path.is_symlink() and read_manifest(path).step == step
    return False


def check_space(run: Path, needed: int) -> None:
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
    document = load_json(path := Path(checkpoint, MANIFEST_NAME))
    written = typed(document, _OF_ALL_FORMATS, path=path)
    if written["format"] > _FORMAT:
        writer = f"is of format {written['format']}, which transept {written['version'][:40]} wrote"
        hint = "Install that version or a newer one."
        raise CheckpointError(f"{writer}; this version reads up to {_FORMAT}.", path=path, hint=hint)
    manifest = typed(document, Manifest, path=path)
    for name in manifest.files:
        plain_name(name, path)
    return manifest


def check_checkpoint(checkpoint: str | os.PathLike[str], *, digests: bool = True) -> Manifest:
    """The manifest of a checkpoint, whose files are all there, of their sizes and with ``digests`` of their content.

    ``CheckpointError`` names a file that is missing or was altered.
    """
    manifest = read_manifest(checkpoint)
    with ThreadPoolExecutor(_THREADS) as pool:
        for name, listed in manifest.files.items():
            path = safe_join(checkpoint, name)
            if not path.is_file():
                wrong = "is missing; the manifest of its checkpoint lists it."
            elif (size := path.stat().st_size) != listed.size:
                wrong = f"has {size} bytes, but had {listed.size} when its checkpoint was saved."
            elif digests and _start_digest(path, pool)() != listed.digest:
                wrong = "was altered since its checkpoint was saved (SHA-256)."
            else:
                continue
            hint = "Go on from another checkpoint; find_last_checkpoint() gives the last whole one."
            raise CheckpointError(wrong, path=path, hint=hint)
    return manifest


def list_checkpoints(run: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """The directories of a run that are named ``checkpoint-STEP``, with their steps, in order."""
    folder = Path(run)
    entries = folder.iterdir() if folder.is_dir() else ()
    named = ((_NAME.fullmatch(entry.name), entry) for entry in entries)
    return sorted((int(match[1]), entry) for match, entry in named if match and entry.is_dir())


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
        if (path / MANIFEST_NAME).exists():
            with suppress(TranseptError):
                if check_checkpoint(path, digests=False).step == step:
                    return str(path)
        elif (path / STATE_NAME).is_file() and any((path / name).is_file() for name in _WEIGHTS):
            return str(path)
    return None


def rotate(run: Path, limit: int | None, *, last: Path, keep: Iterable[str | Path | None] = ()) -> list[Path]:
    """Remove the oldest checkpoints above a number of ``limit``, never ``last`` and ``keep``; returns the removed.

    Those with a higher step than ``last`` are of an earlier run in the same directory, and the first to go.
    Directories without a manifest, and links, are no checkpoints of a run.
    """
    if limit is None:
        return []
    last_step = int(last.name.rpartition("-")[2])
    ours = [(step <= last_step, path) for step, path in list_checkpoints(run) if _is_ours(step, path)]
    safe = {os.path.realpath(path) for path in (last, *keep) if path is not None}
    free = [path for _, path in sorted(ours, key=itemgetter(0)) if os.path.realpath(path) not in safe]
    removed = free[: max(0, len(ours) - limit)]
    for path in removed:
        remove_checkpoint(path)
    return removed


def remove_checkpoint(path: Path) -> None:
    """Remove the files of a checkpoint so that a crash leaves it whole or out of sight."""
    hidden = path.with_name(f".{path.name}{_DELETED}")
    with suppress(OSError):  # what cannot be removed takes space, and is no reason to end a run
        _empty(hidden, path)
        os.rename(path, hidden)
        _empty(hidden, path)


def _empty(hidden: Path, path: Path) -> None:
    """Remove the files that the manifest of a hidden checkpoint names; others go back to where they were."""
    with suppress(TranseptError):
        manifest = read_manifest(hidden)
        for name in _list_files(hidden)[1]:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(path / name):
                os.rename(hidden / name, path / name)
        for name in manifest.files:
            if safe_join(hidden, name).is_file():
                (hidden / name).unlink()
        (hidden / MANIFEST_NAME).unlink()
    for parent, _, _ in os.walk(hidden, topdown=False):
        with suppress(OSError):  # what was put there since
            os.rmdir(parent)


def clean(run: Path) -> None:
    """Remove what killed processes left in a run's directory of checkpoints that they were writing or removing."""
    sweep(run, _NAME.pattern)
    for hidden in [*run.glob(f".checkpoint-*{_DELETED}")]:
        name = hidden.name.removeprefix(".").removesuffix(_DELETED)
        if _NAME.fullmatch(name) and not hidden.is_symlink():
            with suppress(OSError):
                _empty(hidden, hidden.with_name(name))


@contextmanager
def only_run(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Keep others from training in a directory while the block runs.

    The system gives the lock back when the process ends, however it does. A thread that has it can ask for it again.
    ``FileError``: another process trains in it, which is named; or the directory cannot be written to.
    """
    path, handle = make_directory(directory) / LOCK_NAME, None
    owner = os.path.realpath(path), threading.get_ident()
    try:
        if owner not in _LOCKS.values():
            handle = lock(path, os.O_RDWR | os.O_CREAT, 0o644)
        if handle is not None and handle != HELD:
            os.ftruncate(handle, 0)
            os.pwrite(handle, dump_json({"process": os.getpid(), "machine": socket.gethostname()}).encode(), 0)
    except OSError as error:
        if handle is not None:
            os.close(handle)
        raise FileError(f"cannot be written ({reason(error)}).", path=path) from error
    if handle == HELD:
        process = "another process"
        with suppress(TranseptError):  # it has just begun or ended
            note: Any = read_typed(path, _LOCK_NOTE)
            process = f"process {note['process']} on {note['machine'][:80]}"
        hint = "Wait for it, end it, or train in another directory (`output_dir`)."
        raise FileError(f"is in use: {process} trains in it.", path=directory, hint=hint)
    if handle is None:  # this thread has the lock, or the system cannot lock
        yield
        return
    _LOCKS[handle] = owner
    try:
        yield
    finally:
        _LOCKS.pop(handle, None)
        path.unlink(missing_ok=True)
        os.close(handle)


def _release_locks() -> None:
    # In a forked process: a worker that outlives a killed run would hold them.
    while _LOCKS:
        os.close(_LOCKS.popitem()[0])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_locks)
