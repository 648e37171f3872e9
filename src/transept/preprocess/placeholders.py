"""Placeholders: marks in a text where a picture, a video or a sound stands, each of which becomes one token a feature."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transept.errors import InputError

TOKENS = {"images": "image_token", "videos": "video_token", "audio": "audio_token"}
"""What a call takes -> the attribute of a processor that holds its placeholder."""
_NOUNS = {"images": "image", "videos": "video", "audio": "sound"}


def per_text(media: Any, texts: Sequence[str]) -> list[int] | None:
    """How many pictures each text has, where they come as one list a text; else ``None``, and order decides."""
    if not isinstance(media, list | tuple) or len(media) != len(texts) or not all(isinstance(m, list | tuple) for m in media):
        return None
    return [_count(one) for one in media]


def _count(media: Any) -> int:
    return sum(map(_count, media)) if isinstance(media, list | tuple) else 1


def check_counts(kind: str, token: str, texts: Sequence[str], sizes: Sequence[int] | None, total: int) -> None:
    """Raise ``InputError`` unless the texts have one placeholder for each of ``total`` pictures, videos or sounds.

    Args:
        kind: what the call takes, such as ``"images"``.
        token: the placeholder.
        texts: before they are expanded.
        sizes: how many pictures belong to each text, where that is known.
        total: how many there are.
    """
    left, noun = total, _NOUNS[kind]
    hint = f"Write {token!r} once in a text for each {noun} that belongs there."
    for row, text in enumerate(texts):
        found = text.count(token)
        have = left if sizes is None else sizes[row]
        too_few = found > have
        too_many = found < have and (sizes is not None or row == len(texts) - 1)
        if too_few or too_many:
            rest = "" if sizes is not None or len(texts) == 1 else " left for it"
            wrong = f"row {row} of the texts has {_number(found, 'placeholder')} {token!r}, but there {_are(have, noun)}{rest}."
            raise InputError(wrong, hint=hint)
        left -= found


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


def _are(count: int, noun: str) -> str:
    return f"{'is' if count == 1 else 'are'} {_number(count, noun)}"


def expanded(texts: Sequence[str], replacements: Mapping[str, Sequence[str]]) -> list[str]:
    """The texts with the n-th placeholder of all replaced by the n-th of its replacements."""
    rest = {token: iter(values) for token, values in replacements.items()}
    pattern = re.compile("|".join(map(re.escape, sorted(rest, key=len, reverse=True))))
    return [pattern.sub(lambda found: next(rest[found[0]]), text) for text in texts]


def check_ids(ids: Any, index: int, token: str, texts: Sequence[str], lengths: Any) -> None:
    """Raise ``InputError`` where rows of ids have fewer placeholders than the expanded texts: truncation has cut them.

    Args:
        ids: rows of ids, as lists, arrays or tensors.
        index: the placeholder's id.
        token: the placeholder.
        texts: the expanded texts.
        lengths: gives, for a row, how many tokens its text has when nothing is cut.
    """
    for row, (text, one) in enumerate(zip(texts, ids, strict=False)):
        wanted, found = text.count(token), int((np.asarray(one) == index).sum())
        if found != wanted:
            length = lengths(row)
            wrong = f"row {row} has a prompt of {length} tokens, {wanted} of them placeholders {token!r}, of which truncation"
            hint = f"Pass truncation=False or a max_length of {length} or more, or fewer or smaller images."
            raise InputError(f"{wrong} would leave {found}.", hint=hint)


def type_ids(ids: Any, indices: Mapping[str, int]) -> list[list[int]]:
    """For each token 0 if it is text, 1 if it stands for a picture, 2 for a video, 3 for a sound."""
    rows = []
    for row in ids:
        values = np.asarray(row)
        types = np.zeros(len(values), np.int64)
        for number, kind in enumerate(TOKENS, start=1):
            if kind in indices:
                types[values == indices[kind]] = number
        rows.append(types.tolist())
    return rows
