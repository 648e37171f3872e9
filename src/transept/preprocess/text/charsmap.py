"""SentencePiece's compiled rules of normalization, and normalizers of ``tokenizers`` that give exactly their result.

SentencePiece rewrites a text from left to right by the longest rule that matches: a single character (``ﬁ`` -> ``fi``)
or several (``e`` + U+0301 -> ``é``). ``normalizers.Precompiled`` of the ``tokenizers`` library reads the same rules but
looks them up by grapheme, and there by the *shortest* match, so that combining marks get lost (``ﬁ`` + U+0301 -> ``fi``)
or stay apart (kana and Hangul in decomposed form). It is exact for one character that is a grapheme of its own. So:

1. put a separator before every character that can join the one before it: one where a rule might compose the two,
   two or more where none can;
2. rewrite each character alone;
3. take away the separator where a rule composes what is now on both sides of it, and compose by NFC;
4. take away all other separators.
"""

from __future__ import annotations

import itertools
import math
import struct
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from tokenizers import Regex, normalizers

from transept.errors import FormatError, UnsupportedError
from transept.preprocess.text.backend import MAX_PATTERN, guarded

SEPARATOR = "\U000e0fff"
"""A code point that Unicode has not assigned, that breaks graphemes and that no rule mentions."""
MAX_NODES, MAX_KEY = 4_000_000, 256
"""How many prefixes of rules are followed, and how far: a trie shares its parts, and a hostile one has no end."""
MAX_OTHERS = 500
"""How many rules are applied one by one, because they compose nothing that the library's Unicode tables compose."""
_NFC = normalizers.NFC()
_LEAF, _LABEL_MASK, _VALUE_MASK = 1 << 8, (1 << 31) | 0xFF, (1 << 31) - 1

Rules = dict[str, str]


def read_rules(charsmap: bytes) -> Rules:
    """All rules of a compiled map: what is rewritten -> what it becomes.

    The format is a double-array trie (Darts-clone) and, after it, the results, each ended by a zero byte. Children of
    a node lie at its base XOR their label, so one pass finds the children of every base.

    Raises:
        FormatError: a size, a node or a result that lies outside of the map, or text that is not UTF-8.
    """
    size = struct.unpack_from("<I", charsmap)[0] if len(charsmap) >= 4 else 0
    if not 4 <= size <= len(charsmap) - 4 or size % 4:
        raise FormatError("the map of characters is cut off or holds no trie.")
    units = struct.unpack_from(f"<{size // 4}I", charsmap, 4)
    results = charsmap[4 + size :]
    children: defaultdict[int, list[int]] = defaultdict(list)
    for place, unit in enumerate(units):
        if (label := unit & _LABEL_MASK) and label < 0x100:
            children[place ^ label].append(place)
    rules: Rules = {}
    waiting = [(0, b"")]
    for _ in range(MAX_NODES):
        if not waiting:
            return rules
        place, key = waiting.pop()
        if len(key) > MAX_KEY:
            raise FormatError(f"the map of characters has a rule for more than {MAX_KEY} bytes.")
        base = place ^ ((units[place] >> 10) << ((units[place] & 0x200) >> 6))
        if units[place] & _LEAF:
            rules[_text(key)] = _result(units, base, results)
        waiting += [(child, key + bytes((units[child] & 0xFF,))) for child in children.get(base, ())]
    raise FormatError(f"the map of characters has more than {MAX_NODES} prefixes.")


def _result(units: tuple[int, ...], leaf: int, results: bytes) -> str:
    start = units[leaf] & _VALUE_MASK if leaf < len(units) else len(results)
    end = results.find(b"\0", start)
    if start >= len(results) or end < 0:
        raise FormatError("the map of characters points outside of itself.")
    return _text(results[start:end])


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError("the map of characters holds text that is not UTF-8.") from error


def charsmap_normalizers(charsmap: bytes, removed: str = "") -> list[normalizers.Normalizer]:
    """Normalizers that in this order rewrite a text as SentencePiece does with these rules.

    Args:
        charsmap: the compiled rules.
        removed: what stands at the start of a text instead of characters that the rules remove there.

    Raises:
        FormatError: the map is corrupt.
        UnsupportedError: too many rules rewrite several characters by something else than their composition.
    """
    rules = read_rules(charsmap)
    single = {key: value for key, value in rules.items() if len(key) == 1}
    several = [key for key in rules if len(key) > 1]
    # Rules over characters that are rewritten alone repeat, for the rewritten ones, these.
    composed = [key for key in several if not any(character in single for character in key)]
    unknown = {key for key in composed if _NFC.normalize_str(key) != rules[key]}
    unknown |= {key for key in several if not _follows(key, rules, single)}
    joining = {character for key in several for character in key[1:]}
    composing = {character for key in composed for character in key[1:]}
    becoming = {key for key, value in single.items() if value[:1] in composing} | composing
    steps = _one_by_one(unknown, rules)
    apart = _apart(joining, becoming - joining, single, _excess(set(several), composed, single))
    steps.append(_replace(apart, SEPARATOR * 2))
    if joining:
        steps.append(_replace(rf"(?=[{_ranges(joining)}])(?!\A)", SEPARATOR))
    # Characters at the start that Precompiled rewrites to nothing break its bookkeeping.
    if gone := [key for key, value in single.items() if not value]:
        steps.append(_replace(rf"\A[{_ranges(gone)}]+", removed))
    with guarded(FormatError, "the map of characters cannot be used"):
        steps.append(normalizers.Precompiled(charsmap))
    if composed:
        together = f"{SEPARATOR}(?:{'|'.join(_places(composed, SEPARATOR))})"
        steps += [_replace(together, ""), _NFC]
    return [*steps, normalizers.Replace(SEPARATOR, "")]


def _replace(pattern: str, content: str) -> normalizers.Normalizer:
    if len(pattern) > MAX_PATTERN:
        raise UnsupportedError("the SentencePiece model has more rules of normalization than can be written as patterns.")
    return normalizers.Replace(Regex(pattern), content)


def _follows(key: str, rules: Rules, single: Rules) -> bool:
    """Whether a rule gives what its characters, each rewritten alone, give together."""
    alone = "".join([single.get(character, character) for character in key])
    return rules[key] == (rules.get(alone) or unicodedata.normalize("NFC", alone))


def _one_by_one(keys: Iterable[str], rules: Rules) -> list[normalizers.Normalizer]:
    """Normalizers for rules that no composition explains, the longest first; one for all of a length and a result."""
    groups: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for key in keys:
        groups[-len(key), rules[key]].append("".join(rf"\x{{{ord(character):X}}}" for character in key))
    if len(groups) > MAX_OTHERS:
        raise UnsupportedError(
            f"{len(groups)} rules of the SentencePiece model rewrite several characters by something else than their "
            "Unicode composition.",
            hint="Convert the model to tokenizer.json with the tool of its maker.",
        )
    return [_replace("|".join(patterns), value) for (_, value), patterns in sorted(groups.items())]


def _excess(several: set[str], composed: Sequence[str], single: Rules) -> list[str]:
    """What would be composed once its characters are rewritten, but by no rule; its last character must stay apart."""
    origins: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in single.items():
        if len(value) == 1:
            origins[value].append(key)
    columns = [[[*origins.get(character, ()), character] for character in key] for key in composed]
    count = sum(math.prod(map(len, choices)) for choices in columns)
    if count == len(several):
        return []
    if count > MAX_NODES:
        raise FormatError(f"the map of characters composes {count} sequences.")
    possible = ("".join(choice) for choices in columns for choice in itertools.product(*choices))
    return [key for key in possible if key not in several and (len(key) == 2 or key[:-1] in several)]


def _apart(joining: Collection[str], others: Collection[str], single: Rules, excess: Sequence[str]) -> str:
    """The places between two characters that are one grapheme or would compose, but that no rule composes.

    Which characters are marks depends on the version of Unicode, so what is not assigned counts too; below U+0300 only
    a line feed joins the character before. Marks must stay apart from each other, or else NFC would reorder them.

    Args:
        joining: characters that a rule joins to the one before.
        others: characters that would compose with the one before once they are rewritten.
        single: the rules for one character.
        excess: keys that are no rules; the place before their last character.
    """
    alone = [key for key, value in single.items() if len(value) != 1]
    marks = rf"\p{{M}}\p{{C}}{_ranges(others)}"
    found = [f"(?=[{marks}])", *([f"(?<=[{_ranges(single)}])"] if single else [])]
    if joining:
        found = [f"(?![{_ranges(joining)}])(?:{'|'.join(found)})"]
    if joining and alone:
        found.append(f"(?=[{_ranges(joining)}])(?<=[{_ranges(alone)}])")
    places = "|".join([*found, *_places(excess, "")])
    return rf"(?=[\n\x{{300}}-\x{{10FFFF}}{_ranges(others)}])(?!\A)(?:{places})"


def _places(keys: Iterable[str], between: str) -> Iterator[str]:
    """Regular expressions for the place before the last character of these keys, one for all keys alike.

    Args:
        keys: what is looked for.
        between: what stands between all characters of a key, also before the place.
    """
    firsts: defaultdict[str, set[str]] = defaultdict(set)
    for key in keys:
        firsts[key[1:]].add(key[0])
    lasts: defaultdict[tuple[frozenset[str], str], set[str]] = defaultdict(set)
    for rest, starts in firsts.items():
        lasts[frozenset(starts), rest[:-1]].add(rest[-1])
    middles: defaultdict[tuple[frozenset[str], frozenset[str], int], set[str]] = defaultdict(set)
    for (begin, middle), ends in lasts.items():
        middles[begin, frozenset(ends), len(middle)].add(middle)
    for (begin, end, length), inner in middles.items():
        groups: Iterable[Collection[str]] = [inner] if length == 1 else [[one] for one in inner]
        for group in groups:
            columns = "".join(f"{between}[{_ranges(column)}]" for column in zip(*group, strict=True))
            yield f"(?<=[{_ranges(begin)}]{columns}{between})(?=[{_ranges(end)}])"


def _ranges(characters: Collection[str]) -> str:
    """The inside of a character class of Oniguruma."""
    codes = sorted(map(ord, characters))
    spans: list[list[int]] = []
    for code in codes:
        if spans and spans[-1][1] == code - 1:
            spans[-1][1] = code
        else:
            spans.append([code, code])
    return "".join(rf"\x{{{a:X}}}" if a == b else rf"\x{{{a:X}}}-\x{{{b:X}}}" for a, b in spans)
