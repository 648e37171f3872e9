"""Models to talk with: those in the cache of the hub, and small ones that the memory of this machine allows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transept.batch.encode import plain
from transept.environment.units import count, size
from transept.errors import InputError, TranseptError
from transept.storage.cache import repositories
from transept.storage.files import load_json
from transept.storage.gguf import read_gguf
from transept.storage.source import GGUF_ENDING

# What a process with PyTorch takes besides a model, and the positions that a cache is counted for.
BESIDES, POSITIONS = 500_000_000, 4096
SHOWN = 3
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True)
class Suggestion:
    """A model for chats that anyone may fetch; its weights are stored in two bytes a parameter.

    Args:
        name: its repository.
        parameters: how many there are.
        position: numbers that its KV cache keeps of a position.
    """

    name: str
    parameters: int
    position: int

    @property
    def download(self) -> int:
        return 2 * self.parameters

    @property
    def memory(self) -> int:
        """Bytes that a chat takes, with a cache of 4,096 positions."""
        return 2 * (self.parameters + POSITIONS * self.position) + BESIDES

    @property
    def fetch(self) -> str:
        """The command that fetches it and starts nothing."""
        return f"transept pull {self.name}"


# Smallest first.
SUGGESTIONS = (
    Suggestion("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008, 30 * 2 * 3 * 64),
    Suggestion("HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120, 32 * 2 * 5 * 64),
    Suggestion("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768, 24 * 2 * 2 * 64),
    Suggestion("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304, 28 * 2 * 2 * 128),
    Suggestion("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384, 24 * 2 * 32 * 64),
    Suggestion("HuggingFaceTB/SmolLM3-3B", 3_075_098_624, 36 * 2 * 4 * 128),
    Suggestion("Qwen/Qwen3-4B-Instruct-2507", 4_022_468_096, 36 * 2 * 8 * 128),
)


def suggested(left: int | None) -> list[Suggestion]:
    """Three models that so many free bytes allow: the smallest, the largest and one between; without them the smallest ones."""
    fitting = [each for each in SUGGESTIONS if left is not None and each.memory <= left]
    if len(fitting) < SHOWN:
        return list(SUGGESTIONS[:SHOWN])
    return [fitting[0], fitting[len(fitting) // 2], fitting[-1]]


@dataclass(frozen=True)
class Cached:
    """A model in the cache that can chat: its repository or a GGUF file in one, where that is, and the bytes of its weights."""

    name: str
    path: Path
    bytes: int


def cached() -> list[Cached]:
    """The models for chats in the cache of the hub, by name. What cannot be read is none."""
    found: list[Cached] = []
    for name, folder in repositories():
        with suppress(TranseptError, OSError):
            found += _chatting(name, folder)
    return sorted(found, key=lambda each: each.name.lower())


def _chatting(name: str, folder: Path) -> Iterator[Cached]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for path in files:
        if path.name.lower().endswith(GGUF_ENDING) and "tokenizer.chat_template" in read_gguf(path).settings:
            yield Cached(path.name, path, path.stat().st_size)
    weights = sum(path.stat().st_size for path in files if path.name.endswith(_WEIGHTS))
    if weights and _writes(load_json(folder / "config.json")) and _has_template(folder):
        yield Cached(name, folder, weights)


def _writes(config: Any) -> bool:
    """Whether a config is of a family that is here and goes on from texts."""
    from transept.core.auto import model_types

    kind, names = str(config.get("model_type")).replace("-", "_"), config.get("architectures") or ()
    ends = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    return kind in model_types() and not config.get("is_encoder_decoder") and any(str(name).endswith(ends) for name in names)


def _has_template(folder: Path) -> bool:
    if any((folder / name).is_file() for name in _TEMPLATES):
        return True
    path = folder / "tokenizer_config.json"
    return path.is_file() and bool(load_json(path).get("chat_template"))


def find(name: str) -> str:
    """The path or repository that a name stands for: of a repository in the cache, its last part, or of a GGUF file in one.

    Raises:
        InputError: several models in the cache have the name.
    """
    if os.path.exists(name):
        return name
    wanted = name.lower()
    found = [(each, path) for each, path in repositories() if wanted in (each.lower(), each.lower().rpartition("/")[2])]
    if len(found) > 1:
        several = ", ".join(each for each, _ in found)
        raise InputError(f"several models in the cache are called {name!r}: {several}.", hint="Pass the whole name of one.")
    if found and (found[0][1] / "config.json").exists():
        return found[0][0]
    files = [path for each, folder in found or repositories() for path in sorted(folder.glob(f"*{GGUF_ENDING}"))]
    named = files if found else [path for path in files if wanted in (path.name.lower(), path.stem.lower())]
    if len(named) > 1:
        several = ", ".join(str(path) for path in named)
        raise InputError(f"several GGUF files are called {name!r}: {several}.", hint="Pass the path of one.")
    return str(named[0]) if named else found[0][0] if found else name


def overview(left: int | None) -> list[str]:
    """What there is to talk with, in lines."""
    free = "" if left is None else f" {size(left)} of memory are free here."
    lines, here = [f"Which model? transept chat NAME starts one.{free}"], cached()
    if here:
        lines += ["", "Already here:"]
    for each in here:
        lines += [f"  {plain(each.name)}: {size(each.bytes)}", f"    transept chat {plain(each.name)}"]
    lines += ["", "Small ones, which are fetched when they are first started:"]
    for model in suggested(left):
        more = " (more than is free)" if left is not None and model.memory > left else ""
        about = f"{count(model.parameters)} parameters, {size(model.download)} download, {size(model.memory)} memory{more}"
        lines += [f"  {model.name.rpartition('/')[2]}: {about}", f"    transept chat {model.name}"]
    return [
        *lines,
        "",
        "To fetch one and start it later:",
        f"    {suggested(left)[0].fetch}",
        "",
        "The folder of a model or a .gguf file starts too: transept chat PATH.",
        "--dtype int8 takes half of the memory, --dtype int4 about a third.",
    ]


def as_json(left: int | None) -> dict[str, Any]:
    """The same for programs."""
    small = [
        {
            "name": model.name,
            "parameters": model.parameters,
            "download_bytes": model.download,
            "memory_bytes": model.memory,
            "fetch": model.fetch,
        }
        for model in suggested(left)
    ]
    here = [{"name": each.name, "path": str(each.path), "bytes": each.bytes} for each in cached()]
    return {"memory_left": left, "cached": here, "suggested": small}
