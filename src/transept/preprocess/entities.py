"""Texts with entities: where these stand in the text and among its tokens, and the vocabulary that numbers them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transept.errors import FormatError, refuse
from transept.preprocess.settings import need
from transept.storage.files import load_object

Span = tuple[int, int]


@dataclass
class EntityText:
    """A text, or its tokens, with entities by their numbers, and from where to where each stands in it."""

    text: str
    spans: list[Span]
    names: Sequence[str] | None = None
    ids: list[int] = field(default_factory=list)  # with the entities' numbers, once the text is encoded
    entities: list[int] = field(default_factory=list)

    def pieces(self) -> tuple[list[str], dict[int, int]]:
        """The text between ends of entities, and how many pieces stand before each end; a space is of the piece behind it."""
        found, before, start = list[str](), dict[int, int](), 0
        for place in sorted({place for span in self.spans for place in span}):
            cut = place - 1 if place > 0 and self.text[place - 1] == " " else place
            if cut != start:
                found.append(self.text[start:cut])
                start = cut
            before[place] = len(found)
        return [*found, self.text[start:]], before

    def mark(self, marks: Sequence[int]) -> None:
        """Put a token of its own before and behind each entity."""
        order = sorted(range(len(self.spans)), key=lambda place: -self.spans[place][0])
        for place in order:
            start, end = self.spans[place]
            mark, ids = marks[place], self.ids
            self.ids = [*ids[:start], mark, *ids[start:end], mark, *ids[end:]]
        for moved, place in enumerate(reversed(order)):
            start, end = self.spans[place]
            self.spans[place] = (start + 2 * moved, end + 2 * moved + 2)

    def cut(self, count: int, side: str) -> int:
        """Leave out tokens at one side, and entities that lose some; returns how many these are."""
        length, before = len(self.ids) - count, len(self.spans)
        self.ids, moved = (self.ids[count:], count) if side == "left" else (self.ids[:length], 0)
        pairs = zip(self.entities, self.spans, strict=True)
        kept = [(entity, (start - moved, end - moved)) for entity, (start, end) in pairs if start >= moved]
        kept = [pair for pair in kept if pair[1][1] <= length]
        self.entities, self.spans = [entity for entity, _ in kept], [span for _, span in kept]
        return before - len(kept)

    def cut_entities(self, count: int, side: str) -> None:
        """Leave out so many entities at one side, or all there are."""
        kept = slice(count, None) if side == "left" else slice(max(len(self.spans) - count, 0))
        self.entities, self.spans = self.entities[kept], self.spans[kept]


def shares(first: int, second: int, count: int, strategy: str) -> tuple[int, int]:
    """How many of so many items are left out of each of two lists of these lengths."""
    if strategy != "longest_first":
        return (count, 0) if strategy == "only_first" else (0, count)
    apart = min(abs(first - second), count)
    half, rest = (count - apart) // 2, count - apart - (count - apart) // 2
    return (apart + half, rest) if first > second else (half, apart + rest)


def are_of_two(values: Any) -> bool:
    """Whether spans or names are those of two texts: two lists, and no two spans."""
    lists = isinstance(values, list | tuple) and len(values) == 2 and all(isinstance(each, list | tuple) for each in values)
    return lists and not any(each and isinstance(each[0], int) for each in values)


def text_with_entities(where: str, text: Any, spans: Any, names: Any) -> EntityText:
    """A text with entities that lie in it."""
    need(where, text, str, "a text (str)")
    need(f"`entity_spans` of {where}", spans, list | tuple | None, "a list of pairs (start, end)")
    need(f"`entities` of {where}", names, list | tuple | None, "a list of names")
    found = list[Span]()
    for place, span in enumerate(spans or ()):
        good = isinstance(span, list | tuple) and len(span) == 2 and all(type(end) is int for end in span)
        good = good and 0 <= span[0] <= span[1] <= len(text)
        what = f"entity {place} of {where} is {span!r:.60}, but must be (start, end) within its {len(text)} characters."
        refuse(not good, what)
        found.append((span[0], span[1]))
    if names is not None:
        refuse(len(names) != len(found), f"{where} has {len(names)} `entities`, but {len(found)} `entity_spans`.")
        for place, name in enumerate(names):
            need(f"entity {place} of {where}", name, str, "a name (str)")
    return EntityText(text, found, names)


def read_entities(vocab: Any, path: Any, names: Mapping[str, str]) -> dict[str, int]:
    """Entities and their ids, from a mapping or a file; only those that ``names`` has where there is neither."""
    if vocab is None and path is None:
        return {token: index for index, token in enumerate(names.values())}
    if vocab is None or isinstance(vocab, str | os.PathLike):
        path = path if vocab is None else vocab
        need("`entity_vocab_file`", path, str | os.PathLike, "a path")
        vocab = load_object(path)
    else:
        path = None
    need("`entity_vocab`", vocab, Mapping, "a mapping of entities to ids, or a path")
    for name, index in vocab.items():
        if not isinstance(name, str) or type(index) is not int or not 0 <= index < 2**31:
            what = f"the entity {name!r:.80} has the id {index!r:.40}, but ids are integers from 0 on."
            raise FormatError(what, path=path)
    if lacking := [token for token in names.values() if token not in vocab]:
        hint = "Pass entity_unk_token, entity_pad_token, entity_mask_token and entity_mask2_token as it has them."
        raise FormatError(f"the vocabulary of entities has no {lacking[0]!r:.80}.", path=path, hint=hint)
    return dict(vocab)
