"""Matrix tiles (AMX) of processors that announce them, are granted them by the system, and trap at the first one.

Some virtual machines have such a processor. oneDNN, MKL and PyTorch's compiler believe what it announces, and make products
of half precision and of integers with tiles, which would end the process. So a child process tries the instructions before
the first such product is made; where they end it, all three are told to do without.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from transept.errors import InputError

CPU_INFO = Path("/proc/cpuinfo")
# ldtilecfg [rdi], tilezero tmm0, tilerelease, ret.
CODE = "c4e2784907 c4e27b49c0 c4e27849c0 c3"
# Asks for tiles as oneDNN does, and runs the code on the form of one tile, 16 rows of 64 bytes; leaves no core file.
CHILD = """
import ctypes, mmap, sys
system = ctypes.CDLL(None)
system.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
if system.syscall(ctypes.c_long(158), ctypes.c_long(0x1023), ctypes.c_long(18)):  # arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)
    sys.exit("not granted")
code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex(sys.argv[1]))
form = ctypes.create_string_buffer(bytes([1, *[0] * 15, 64, *[0] * 31, 16, *[0] * 15]), 64)
ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(code)))(form)
"""
_PATIENCE = 60  # seconds, where 0.02 are the rule


class _Library(NamedTuple):
    """Which instructions a library may use: it reads a variable of the environment when it starts, and never again."""

    variables: tuple[str, ...]  # the first that is not empty counts
    value: str  # all instructions but tiles
    without: re.Pattern[str]  # what matches all values without tiles

    @property
    def setting(self) -> str:
        return next(filter(None, map(os.environ.get, self.variables)), "")

    @property
    def takes_tiles(self) -> bool:
        return self.without.fullmatch(self.setting) is None


_ONEDNN = _Library(
    ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
    "AVX10_1_512",
    re.compile(r"(?i:sse41|avx|avx2|avx2_vnni|avx2_vnni_2|avx512_core|avx512_core_(vnni|bf16|fp16)|avx10_[12]_512)"),
)
_MKL = _Library(("MKL_ENABLE_INSTRUCTIONS",), "AVX512_E3", re.compile(r"SSE4_2|AVX|AVX2|AVX2_E1|AVX512|AVX512_E[123]"))
_LIBRARIES = (_ONEDNN, _MKL)
_SETTINGS = " and ".join(f"{library.variables[0]}={library.value}" for library in _LIBRARIES)
HINT = f"Set {_SETTINGS} before the program starts, or compute in float32."


def settle() -> str:
    """Find out whether tiles can be used, before a product of half precision or of integers is made; where not, none will be.

    Returns why such a product would end the process all the same: empty, unless it is too late, or the user wants tiles.
    """
    why = _tell()
    if _announced() and (not _ONEDNN.takes_tiles or _tried() not in (0, None)) and "torch" in sys.modules:
        sys.modules["torch"].cpu._is_amx_tile_supported = _without_tiles  # PyTorch's compiler asks it, and so do we
    return why


def check() -> None:
    """Settle it; ``InputError`` where a product would end the process all the same."""
    if why := settle():
        raise InputError(why, hint=HINT)


def trap() -> bool:
    """Whether the processor announces tiles, and the first one ends a process."""
    return _announced() and (_tried() or 0) < 0


@cache
def _announced() -> bool:
    with suppress(OSError), CPU_INFO.open(encoding="utf-8") as lines:
        return "amx_tile" in next((line for line in lines if line.startswith("flags")), "").split()
    return False


@cache
def _tried() -> int | None:
    """What a process that tried tiles returned: 0, or a negative signal that ended it; ``None`` where none can be started."""
    if getattr(sys, "frozen", False):  # the executable is the program itself, and not Python
        return None
    command = [str(sys.executable), "-I", "-S", "-c", CHILD, CODE]
    quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, timeout=_PATIENCE, check=False, **quiet).returncode  # noqa: S603 (ours)
    return None


@cache
def _tell() -> str:
    """Tell oneDNN and MKL of tiles that trap; why they would take them all the same."""
    if not (_announced() and any(library.takes_tiles for library in _LIBRARIES) and trap()):
        return ""
    what = "this processor announces matrix tiles (AMX), and the first one ends the process, "
    why = f"{what}but oneDNN has begun to compute before this was known." if not _ONEDNN.setting and _is_granted() else ""
    if not _MKL.setting:
        _tell_mkl()
    for library in _LIBRARIES:
        if not library.setting:
            os.environ[library.variables[0]] = library.value
        elif library.takes_tiles:
            why = f"{what}but {library.variables[0]}={library.setting} lets products use them."
    return why


def _is_granted() -> bool:
    """Whether this process was granted tiles, which oneDNN asks for when it starts."""
    import ctypes

    granted = ctypes.c_uint64()
    ctypes.CDLL(None).syscall(ctypes.c_long(158), ctypes.c_long(0x1022), ctypes.byref(granted))  # ARCH_GET_XCOMP_PERM
    return bool(granted.value >> 18 & 1)


def _tell_mkl() -> None:
    """As its variable does, which it no longer reads after an exponential, a transform or a product."""
    import ctypes

    if "torch" in sys.modules:
        library = ctypes.CDLL(sys.modules["torch"]._C.__file__)
        with suppress(AttributeError):  # built without it
            library.mkl_serv_enable_instructions(8)  # MKL_ENABLE_AVX512_E3


def _without_tiles() -> bool:
    return False


def guard(model: Any) -> None:
    """See that products of half precision on the CPU are possible; where they are not, forward passes raise ``InputError``."""
    if multiplies_halves(model) and settle():
        model.register_forward_pre_hook(_refuse)


def multiplies_halves(model: Any) -> bool:
    """Whether it is of half precision and on the CPU."""
    return bool(model.device.type == "cpu" and model.dtype.itemsize == 2)


def _refuse(model: Any, inputs: Any) -> None:
    if multiplies_halves(model):
        check()
