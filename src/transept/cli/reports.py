"""``transept inspect`` and ``transept doctor``: what a checkpoint is made of, and what this machine and installation can do."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from transept.cli.arguments import GET_DEFAULT, Parser, add_output
from transept.cli.terminal import KINDS, Style, bar, cleaned, count, explained, plain, size, table

Report = dict[str, Any]
MOST_FILES, MOST_LABELS = 12, 8
NO_BREAK = "\u00a0"
OK, MISSING, OPTIONAL = "ok", "missing", "optional"
MARKS = {OK: ("✓", "green"), MISSING: ("✗", "red"), OPTIONAL: ("·", "dim")}
# What an extra gives; its packages stand in the distribution's own metadata.
EXTRAS = {
    "vision": "pictures",
    "audio": "sounds",
    "chat": "editing lines in `transept chat`",
    "train": "recipes in YAML, Parquet, and plots of training",
}
SWITCHES = ("HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
_INSTRUCTIONS = {"AVX2": "avx2", "AVX-512": "avx512", "bfloat16": "avx512_bf16", "AMX": "amx_tile"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?.*?(?:extra\s*==\s*['\"](\w+)['\"])?\s*$")
# A name, a value, a state (``ok`` when absent; ``missing`` is needed) and what to do.
Line = tuple[str, ...]


def inspect(parser: Parser) -> None:
    """Show what a checkpoint is made of.

    Its architecture, its parameters by part, types, memory, preprocessing, files, and what is wrong with it. No weights are
    loaded, and none are fetched: of a repository whose weights are not cached, only the rest is shown. The exit code is 1 where
    it could not be loaded.

        transept inspect PATH
        transept inspect sentence-transformers/all-MiniLM-L6-v2 --json
    """
    parser.add_argument("path", metavar="PATH", help="directory or hub repository")
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a repository")
    add_output(parser)
    parser.set_defaults(main=lambda args: show(examined(args), "loadable", anatomy_lines, as_json=args.json))


def show(found: Report, good: str, lines: Callable[[Report, Style], Iterator[str]], *, as_json: bool) -> int:
    """Show a report as JSON or as lines; gives the exit code, by the key that says whether all is well."""
    print(json.dumps(found, ensure_ascii=False, indent=2) if as_json else "\n".join(lines(found, Style(sys.stdout))))
    return 0 if found[good] else 1


def examined(args: argparse.Namespace) -> Report:
    from transept.inspection import examine
    from transept.pipelines.components import locate

    return examine(locate(args.path, {"revision": args.revision}))


def anatomy_lines(found: Report, style: Style) -> Iterator[str]:
    yield f"{style(found['architecture'] or 'unknown', 'bold')}  {style(plain(found['path']), 'dim')}"
    config = (f"{name.replace('_', ' ')}: {_in_words(value)}".replace(" ", NO_BREAK) for name, value in found["config"].items())
    yield from (line.replace(NO_BREAK, " ") for line in textwrap.wrap("  ".join(config), style.width))
    if found["parts"] is not None:
        yield from ["", *table(_tree(found["parts"], max(found["parts"]["parameters"], 1), style), right=(1,))]
    yield from ["", *table([style(name, "dim"), value] for name, value in _facts(found)), ""]
    if not found["findings"]:
        yield style("nothing to object to", "green")
    for finding in found["findings"]:
        yield f"{style(finding['level'], KINDS[finding['level']])}: {cleaned(finding['message'])}"


def _tree(part: Report, whole: int, style: Style, first: str = "", below: str = "") -> Iterator[list[str]]:
    """Rows of parts with their parameters and shares of the whole; ``first`` and ``below`` are the lines before names."""
    numbers, share = part["parameters"], part["parameters"] / whole
    shown = [style(bar(share), "blue"), f"{100 * share:.1f} %"] if numbers else ["", "shared" if part["shared"] else ""]
    yield [f"{first}{part['name']}", count(numbers), *shown]
    for child in part["children"]:
        corner, line = ("└─ ", "   ") if child is part["children"][-1] else ("├─ ", "│  ")
        yield from _tree(child, whole, style, below + corner, below + line)


def _in_words(value: Any) -> str:
    """A size such as ``{"height": 224, "width": 224}`` or a list of labels in words."""
    if isinstance(value, dict):
        value = " ".join(f"{name} {part}" for name, part in value.items())
    elif isinstance(value, list):
        value = ", ".join([*map(str, value[:MOST_LABELS]), *["…"][: len(value) > MOST_LABELS]])
    return plain(str(value))


def _facts(found: Report) -> Iterator[tuple[str, str]]:
    memory = ", ".join(f"{size(value)} in {name}" for name, value in found["memory"].items())
    kinds = ", ".join(f"{count(number)} {plain(kind)}" for kind, number in found["dtypes"].items())
    inputs = ", ".join(f"{name} {_in_words(value)}" for name, value in found["preprocessing"].items())
    stored = kinds and f"{kinds} ({size(found['stored_bytes'])})"
    yield from ((name, told) for name, told in (("memory", memory), ("stored", stored), ("inputs", inputs)) if told)
    listed = sorted(found["files"].items(), key=lambda entry: -entry[1])
    names = [f"{plain(name)} ({size(length)})" for name, length in listed[:MOST_FILES]]
    names += [f"and {len(listed) - MOST_FILES} more"] * (len(listed) > MOST_FILES)
    yield from zip(["files", *[""] * len(names)], names)


def doctor(parser: Parser) -> None:
    """Tell what works here and what to install.

    Versions, devices, threads, caches and extras: what works here, and what to install for the rest.

        transept doctor
        transept doctor --json
    """
    add_output(parser)
    parser.set_defaults(main=lambda args: show(checked(), "ok", checks_lines, as_json=args.json))


def checked() -> Report:
    found = list(checks())
    return {"ok": all(check["state"] != MISSING for check in found), "checks": found}


def checks_lines(report: Report, style: Style) -> Iterator[str]:
    """The checks, group by group, and what to do."""
    found = report["checks"]
    groups = ["", *(check["group"] for check in found)]
    yield from table(
        [style(one["group"], "bold") if one["group"] != before else "", style(*MARKS[one["state"]]), one["name"], one["value"]]
        for before, one in zip(groups, found)
    )
    remedies = [f"{style('to do', 'yellow')}: {check['name']}: {check['remedy']}" for check in found if check["remedy"]]
    yield from ["", *remedies] if remedies else []


def checks() -> Iterator[Report]:
    """All that is looked at; what fails is a line too, and the rest is still shown."""
    for section in (_versions, _extras, _processor, _devices, _cache, _models, _switches):
        group = section.__name__.removeprefix("_")
        common = {"group": group, "name": group, "value": "", "state": OK, "remedy": None}
        try:
            yield from (common | dict(zip(("name", "value", "state", "remedy"), line)) for line in section())
        except Exception as error:
            remedy = "See `transept doctor --debug`, or reinstall transept."
            yield common | {"value": explained(error), "state": MISSING, "remedy": remedy}


def requirements() -> list[tuple[str, str | None, str | None]]:
    """The distribution's requirements: name, least version and extra."""
    from importlib.metadata import requires

    return [match.groups() for line in requires("transept") or () if (match := _REQUIREMENT.match(line))]  # type: ignore[misc]


def _versions() -> Iterator[Line]:
    from transept import __version__

    yield "Python", f"{platform.python_version()} on {platform.platform(terse=True)}"
    yield "transept", __version__
    yield from (_package(name, least, None) for name, least, extra in requirements() if extra is None)


def _extras() -> Iterator[Line]:
    yield from (_package(*each) for extra in EXTRAS for each in requirements() if each[2] == extra)


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

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "cores", f"{usable} of {os.cpu_count()}; PyTorch uses {torch.get_num_threads()} threads"
    has = [name for name, kind in _INSTRUCTIONS.items() if bool(getattr(torch.cpu, f"_is_{kind}_supported", bool)())]
    yield "instructions", ", ".join(has) or "none of those that PyTorch knows", OK if has else OPTIONAL
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
