"""Seeded mutations of bytes and of JSON documents: near enough to the real thing to come past the first check."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

NUMBERS: list[Any] = [0, 1, -1, 2, 7, 64, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30]
NUMBERS += [0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"), 1.0, -0.0]
TEXTS = [
    "",
    " ",
    "x",
    "../x",
    "/etc/passwd",
    "..",
    "a\\b",
    "\0",
    "\n",
    "\ud800",
    "\u202e",
    "é",
    "😀",
    "x" * 300,
    "F32",
    "U8",
    "bert",
]
TEXTS += ["float16", "__class__", "{{7*7}}", "gelu", "default", "linear", "0", "-1", "1e5", "true", "null", "model.safetensors"]
OTHERS: list[Any] = [None, True, False, [], {}, [None], {"": None}, [[]], {"x": {"y": []}}, [0] * 50, ["x", 1]]


def value(noise: Random) -> Any:
    """Something that is seldom meant."""
    return copy.deepcopy(noise.choice(noise.choice([NUMBERS, TEXTS, OTHERS])))


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        node = waiting.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in items:
            found.append((node, key))
            waiting.append(child)
    return found


def mutated(document: Any, noise: Random) -> Any:
    """A copy with one to four changes: values replaced, removed, added, moved, nudged or nested."""
    document = copy.deepcopy(document)
    for _ in range(noise.choice([1, 1, 1, 2, 4])):
        places = _places(document)
        if not places:
            return value(noise)
        container, key = noise.choice(places)
        match noise.randrange(8):
            case 0 | 1:
                container[key] = value(noise)
            case 2:
                del container[key]
            case 3 if isinstance(container, dict):
                container[noise.choice(TEXTS)] = value(noise)
            case 4 if isinstance(container, dict):
                container[noise.choice(TEXTS)] = container.pop(key)
            case 5:
                other, place = noise.choice(places)
                container[key] = copy.deepcopy(other[place]) if place in other or isinstance(other, list) else value(noise)
            case 6 if isinstance(container[key], int):
                container[key] += noise.choice([-1, 1, 8, -8, 2**31, 2**62])
            case _:
                for _ in range(noise.choice([1, 3, 80])):
                    container[key] = noise.choice([[container[key]], {"x": container[key]}])
    return document


def text_of(document: Any, noise: Random) -> str:
    """JSON, at times with a flaw that no document can have: a key twice, a tail, a cut."""
    text = json.dumps(document)
    match noise.randrange(12):
        case 0 if text.startswith("{") and len(text) > 2:
            return "{" + text[1:-1] + "," + text[1:]
        case 1:
            return text[: noise.randrange(len(text) + 1)]
        case 2:
            return text + noise.choice(["}", "\0", " x", text])
        case 3:
            place = noise.randrange(len(text) + 1)
            return text[:place] + noise.choice(["\\", '"', "{", "]", ",", "9" * 100, "NaN", "\x01"]) + text[place:]
    return text


def mangled(data: bytes, noise: Random) -> bytes:
    """A copy with bits flipped, stretches removed, doubled or overwritten, or cut off; mostly near the start."""
    result = bytearray(data)
    for _ in range(noise.choice([1, 1, 2, 8])):
        if not result:
            break
        place = min(int(noise.paretovariate(0.5)) - 1, len(result) - 1)
        length = noise.choice([1, 1, 2, 8, 100])
        match noise.randrange(6):
            case 0:
                result[place] ^= 1 << noise.randrange(8)
            case 1:
                result[place] = noise.randrange(256)
            case 2:
                del result[place : place + length]
            case 3:
                result[place:place] = noise.randbytes(length)
            case 4:
                result[place:place] = result[place : place + length]
            case 5:
                del result[place:]
    return bytes(result)
