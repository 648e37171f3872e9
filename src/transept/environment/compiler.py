"""Small libraries in C++ that are built for this machine when they are first used, and kept for the next time."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path

from transept.errors import TranseptError, TranseptWarning
from transept.storage.files import read_text

FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-fopenmp", "-fno-math-errno", "-ffp-contract=fast", "-std=c++17")
_PACKAGE = Path(__file__).parents[1]  # whose headers any source may include
_PATIENCE = 120  # seconds, where one is the rule
_COMPILERS = ("g++", "clang++", "c++")


@cache
def library(source: Path, *, tells: bool = True) -> ctypes.CDLL | None:
    """The library of a source file of ours; ``None``, with a warning unless not ``tells``, where it cannot be built here.

    It is built by the compiler that the environment names as ``CXX``, or the first of g++, clang++ and c++ that there is, and
    kept in ``transept`` below the user's folder for caches (``XDG_CACHE_HOME``).
    """
    if (compiler := _compiler()) is None:
        _warn(source, "there is no C++ compiler (g++ or clang++)", tells)
        return None
    name = f"{source.stem}-{_key(source, compiler)}.so"
    try:
        folder = _folder()
        if not (path := folder / name).is_file():
            _build(compiler, source, path)
        return ctypes.CDLL(str(path))
    except subprocess.CalledProcessError as error:
        _warn(source, f"{compiler} ends with {error.stderr.decode(errors='replace')[-300:]!r}", tells)
    except (OSError, TranseptError, subprocess.TimeoutExpired) as error:
        _warn(source, str(error)[:300], tells)
    return None


def _compiler() -> str | None:
    named = os.environ.get("CXX")
    return next((found for name in ((named,) if named else _COMPILERS) if (found := shutil.which(name))), None)


def _key(source: Path, compiler: str) -> str:
    """What tells apart libraries of other sources, compilers and processors."""
    info = Path("/proc/cpuinfo")
    lines = read_text(info).splitlines() if info.is_file() else []
    processor = next((line for line in lines if line.startswith(("flags", "Features"))), "") or platform.processor()
    texts = [read_text(file) for file in (source, *sorted(_PACKAGE.rglob("*.hpp")))]
    parts = (*texts, os.path.realpath(compiler), *FLAGS, platform.machine(), processor)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _folder() -> Path:
    """Where libraries are kept: a folder of the user's that nobody else can write to, else a new one for this process."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "transept" / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
        if about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="transept-kernels-"))


def _build(compiler: str, source: Path, path: Path) -> None:
    """Build in a file of its own, which then takes its name, so that several processes may do so at once."""
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        made = Path(place) / path.name
        command = [compiler, *FLAGS, str(source), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE)  # noqa: S603 (a compiler of the system)
        made.replace(path)


def _warn(source: Path, why: str, tells: bool) -> None:
    if tells:
        what = f"{source.stem} is computed without a library of its own, which takes longer: {why}."
        warnings.warn(what, TranseptWarning, stacklevel=3)
