"""Texts brought to one form before transcripts are compared (Radford et al. 2022, appendix C): letters, contractions, numbers.

The basic form is for any language. The English one also writes out contractions and titles, spells as Americans do where a
table of spellings is given, and writes numbers and amounts of money in digits.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from fractions import Fraction


def _table(text: str) -> dict[str, str]:
    """What ``"a b, c d e"`` maps: ``a`` to ``b``, and ``c`` to ``d e``."""
    return dict(entry.strip().split(" ", 1) for entry in text.split(","))


# Letters that Unicode does not take apart into a plain letter and a mark.
_PLAIN = "œ oe, Œ OE, ø o, Ø O, æ ae, Æ AE, ß ss, ẞ SS, đ d, Đ D, ð d, Ð D, þ th, Þ th, ł l, Ł L"
_LETTERS = _table(_PLAIN)
_NUMERIC = ".%$¢€£"  # kept, for numbers have them
_OPENED, _CLOSED = re.compile(r"[<\[]"), re.compile(r"[>\]]")
_FILLERS = re.compile(r"\b(hmm|mm|mhm|mmm|uh|um)\b")
_CONTRACTIONS = _table("""
won't will not, can't can not, let's let us, ain't aint, y'all you all, wanna want to, gotta got to, gonna going to,
i'ma i am going to, imma i am going to, woulda would have, coulda could have, shoulda should have, ma'am madam
""")
_TITLES = _table("""
mr mister, mrs missus, st saint, dr doctor, prof professor, capt captain, gov governor, ald alderman, gen general, sen senator,
rep representative, pres president, rev reverend, hon honorable, asst assistant, assoc associate, lt lieutenant, col colonel,
jr junior, sr senior, esq esquire
""")
_PARTICIPLES = ("'d been had", "'s been has", "'d gone had", "'s gone has", "'d done had", "'s got has")
_ENDINGS = _table("n't not, 're are, 's is, 'd would, 'll will, 't not, 've have, 'm am")
# What is written for what, one after the other.
_WRITTEN_OUT = [
    *((re.compile(rf"\b{short}\b"), long) for short, long in _CONTRACTIONS.items()),
    *((re.compile(rf"\b{short}\b"), f"{long} ") for short, long in _TITLES.items()),
    *((re.compile(rf"{each.rpartition(' ')[0]}\b"), " {2} {1}".format(*each.split())) for each in _PARTICIPLES),
    *((re.compile(rf"{short}\b"), f" {long}") for short, long in _ENDINGS.items()),
]


def plain(text: str, keep: str = "") -> str:
    """``text`` without marks on letters, and with a space for each symbol and sign of punctuation but those to keep."""
    letters = unicodedata.normalize("NFKD", text)
    return "".join([letter if letter in keep else _LETTERS.get(letter) or _bare(letter) for letter in letters])


def _bare(letter: str) -> str:
    kind = unicodedata.category(letter)
    return "" if kind == "Mn" else " " if kind[0] in "MSP" else letter


def normalize_basic(text: str, remove_diacritics: bool = False) -> str:
    """Lower case, without what stands in brackets, with single spaces for symbols and punctuation; for any language."""
    text = _without_brackets(text.lower())
    if remove_diacritics:
        text = plain(text)
    else:
        letters = unicodedata.normalize("NFKC", text)
        text = "".join([" " if unicodedata.category(letter)[0] in "MSP" else letter for letter in letters])
    return re.sub(r"\s+", " ", text.lower())


def _without_brackets(text: str) -> str:
    """Without ``<...>`` and ``[...]``, then without ``(...)`` that is not empty, whatever of these is nested."""
    return _without(_without(text, _OPENED, _CLOSED, 0), re.compile(r"\("), re.compile(r"\)"), 1)


def _without(text: str, opened: re.Pattern[str], closed: re.Pattern[str], least: int) -> str:
    """Without what stands between brackets and has so many characters, in time that grows with the text alone."""
    kept, start, place = [], 0, 0
    while (first := opened.search(text, place)) and (last := closed.search(text, first.end())):
        place = first.end()
        if last.start() - first.end() >= least:
            kept.append(text[start : first.start()])
            start = place = last.end()
    return "".join([*kept, text[start:]])


def normalize_english(text: str, spellings: Mapping[str, str]) -> str:
    """As the basic form, and contractions written out, numbers in digits, and words spelled as a table (word -> word) says."""
    text = re.sub(r"(?<!\s)\s+'", "'", _FILLERS.sub("", _without_brackets(text.lower())))
    for short, long in _WRITTEN_OUT:
        text = short.sub(long, text)
    text = re.sub(r"(\d),(\d)", r"\1\2", text)
    text = re.sub(r"\.([^0-9]|$)", r" \1", text)
    words = in_digits(plain(text, _NUMERIC)).split()
    text = " ".join([spellings.get(word, word) for word in words])
    text = re.sub(r"[.$¢€£]([^0-9])", r" \1", text)
    return re.sub(r"\s+", " ", re.sub(r"([^0-9])%", r"\1 ", text))


# Numbers

_ZEROS = ("o", "oh", "zero")
_FIRST = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"
_ONES = {name: number for number, name in enumerate(f"{_FIRST} nineteen".split(), 1)}
_DECADES = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = {name: 10 * number for number, name in enumerate(_DECADES.split(), 2)}
_POWERS = "thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"
_MULTIPLIERS = {"hundred": 100} | {name: 1000**power for power, name in enumerate(_POWERS.split(), 1)}
_IRREGULAR = {"zeroth": (0, "th"), "first": (1, "st"), "second": (2, "nd"), "third": (3, "rd"), "fifth": (5, "th")}
_IRREGULAR |= {"twelfth": (12, "th")}
_REGULAR = {name: number for name, number in _ONES.items() if number > 3 and number not in (5, 12)}
# A word that ends a number: its value, and what is written behind the digits.
_LAST_ONES = {"sixes" if name == "six" else f"{name}s": (number, "s") for name, number in _ONES.items()} | _IRREGULAR
_LAST_ONES |= {name + ("h" if name.endswith("t") else "th"): (number, "th") for name, number in _REGULAR.items()}
_LAST_TENS = {name.replace("y", "ies"): (number, "s") for name, number in _TENS.items()}
_LAST_TENS |= {name.replace("y", "ieth"): (number, "th") for name, number in _TENS.items()}
_LAST_MULTIPLIERS = {name + end: (number, end) for end in ("s", "th") for name, number in _MULTIPLIERS.items()}
_SIGNS = {"minus": "-", "negative": "-", "plus": "+", "positive": "+"}
_COINS = {"pound": "£", "euro": "€", "dollar": "$", "cent": "¢"}
_COINS |= {f"{name}s": sign for name, sign in _COINS.items()}
_DECIMALS = {*_ZEROS, *_ONES, *_TENS}
_WORDS = {*_DECIMALS, *_LAST_ONES, *_LAST_TENS, *_MULTIPLIERS, *_LAST_MULTIPLIERS, *_SIGNS, *_COINS}
_WORDS |= {"per", "percent", "and", "double", "triple", "point"}
_DIGITS = re.compile(r"\d+(\.\d+)?")


def in_digits(text: str) -> str:
    """``text`` with its numbers in digits: "twenty one point five percent" -> "21.5%", "two dollars" -> "$2"."""
    parts = re.split(r"\band\s+a\s+half\b", text)
    joined = []
    for place, part in enumerate(parts):
        if not part.strip():
            continue
        joined.append(part)
        if place < len(parts) - 1:
            last = part.split()[-1]
            joined.append("point five" if last in _DECIMALS or last in _MULTIPLIERS else "and a half")
    text = re.sub(r"([a-z])([0-9])", r"\1 \2", " ".join(joined))
    text = re.sub(r"([0-9])([a-z])", r"\1 \2", text)
    text = re.sub(r"([0-9])\s+(st|nd|rd|th|s)\b", r"\1\2", text)
    text = " ".join(_Numbers(text.split()).convert())
    text = re.sub(r"([€£$])([0-9]+) (?:and )?¢([0-9]{1,2})\b", lambda m: f"{m[1]}{m[2]}.{int(m[3]):02d}", text)
    text = re.sub(r"[€£$]0.([0-9]{1,2})\b", lambda m: f"¢{int(m[1])}", text)
    return re.sub(r"\b1(s?)\b", r"one\1", text)


class _Numbers:
    """One pass over the words of a text; ``value`` is the number in the making: a whole number, or digits as they are."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.out = words, list[str]()
        self.value: int | str | None = None
        self.sign = ""

    def convert(self) -> list[str]:
        skip = False
        for place in range(len(self.words)):
            skip = not skip and self._read(place)
        self._flush()
        return self.out

    def _put(self, word: int | str) -> None:
        self.out.append(f"{self.sign}{word}")
        self.value, self.sign = None, ""

    def _flush(self) -> None:
        if self.value is not None:
            self._put(self.value)

    def _read(self, place: int) -> bool:
        """Read a word; tells whether the next one is read with it."""
        word = self.words[place]
        before = self.words[place - 1] if place else ""
        after = self.words[place + 1] if place + 1 < len(self.words) else ""
        signed = word[0] in "-+£€$¢"
        if _DIGITS.fullmatch(word[signed:]):
            self._read_digits(word, signed)
        elif word in _ZEROS:
            self.value = f"{self.value or ''}0"
        elif word in _ONES:
            self.value = self._with_ones(_ONES[word], before)
        elif word in _TENS:
            self.value = self._with_tens(_TENS[word])
        elif word in _LAST_ONES:
            self._put(f"{self._with_ones(_LAST_ONES[word][0], before)}{_LAST_ONES[word][1]}")
        elif word in _LAST_TENS:
            self._put(f"{self._with_tens(_LAST_TENS[word][0])}{_LAST_TENS[word][1]}")
        elif word in _MULTIPLIERS:
            self.value = self._times(_MULTIPLIERS[word])
        elif word in _LAST_MULTIPLIERS:
            self._put(f"{self._times(_LAST_MULTIPLIERS[word][0])}{_LAST_MULTIPLIERS[word][1]}")
        else:
            return self._read_sign(word, before, after)
        return False

    def _read_digits(self, word: str, signed: bool) -> None:
        if isinstance(self.value, str) and self.value.endswith("."):
            self.value += word  # decimals, or parts of an address
            return
        self._flush()
        self.sign = word[0] if signed else self.sign
        number = Fraction(word[signed:])
        self.value = number.numerator if number.denominator == 1 else word[signed:]

    def _with_ones(self, number: int, before: str) -> int | str:
        """The number with 1 to 19 behind it: in its free last digits, or as further digits."""
        if self.value is None:
            return number
        if isinstance(self.value, str) or before in _ONES:
            digits = str(self.value)
            return f"{digits[:-1] if before in _TENS and number < 10 else digits}{number}"
        return self.value + number if self.value % (10 if number < 10 else 100) == 0 else f"{self.value}{number}"

    def _with_tens(self, number: int) -> int | str:
        if self.value is None:
            return number
        free = isinstance(self.value, int) and self.value % 100 == 0
        return int(self.value) + number if free else f"{self.value}{number}"

    def _times(self, number: int) -> int:
        """The number, or its part below a thousand, that many times; one that would not be whole is complete before."""
        if isinstance(self.value, int):
            return self.value // 1000 * 1000 + self.value % 1000 * number
        try:
            product = Fraction("1" if self.value is None else self.value) * number
        except ValueError:
            product = Fraction(1, 2)
        if product.denominator == 1:
            return product.numerator
        self._flush()
        return number

    def _read_sign(self, word: str, before: str, after: str) -> bool:
        """Signs, amounts, and words that are part of a number only between others; tells whether the next word is read too."""
        numeric = after in _WORDS or _DIGITS.fullmatch(after) is not None
        if word in _SIGNS and numeric:
            self._flush()
            self.sign = _SIGNS[word]
        elif word in _COINS and self.value is not None:
            self.sign = _COINS[word]
            self._flush()
        elif self.value is not None and (word == "percent" or (word, after) == ("per", "cent")):
            self._put(f"{self.value}%")
            return word == "per"
        elif word in ("double", "triple") and (after in _ONES or after in _ZEROS):
            self.value = f"{self.value or ''}{str(_ONES.get(after, 0)) * (2 if word == 'double' else 3)}"
            return True
        elif word == "point" and numeric:
            if after in _DECIMALS or _DIGITS.fullmatch(after):
                self.value = f"{self.value or ''}."
        elif word != "and" or not numeric or before not in _MULTIPLIERS:
            self._flush()
            self._put(word)
        return False
