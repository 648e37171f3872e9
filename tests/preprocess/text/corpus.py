"""Strings to tokenize: real sentences where the data is at hand, awkward ones from a seeded generator."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parents[4] / "shared" / "data"

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "hello",
    "world",
    "don't",
    "I'll",
    "we've",
    "it's",
    "Paris",
    "Zürich",
    "naïve",
    "café",
    "déjà",
    "vu",
    "São",
    "Paulo",
    "Straße",
    "ŁÓDŹ",
    "İstanbul",
    "ılık",
    "Ελλάδα",
    "ΌΣΟΣ",
    "ὀδύσσεια",
    "Москва",
    "Ёлка",
    "привет",
    "שלום",
    "עולם",
    "مرحبا",
    "بالعالم",
    "नमस्ते",
    "दुनिया",
    "ক্ষমা",
    "தமிழ்",
    "ไทยแลนด์",
    "กำลัง",
    "ພາສາລາວ",
    "မြန်မာ",
    "ខ្មែរ",
    "日本語",
    "東京都",
    "ひらがな",
    "カタカナ",
    "ﾊﾝｶｸ",
    "ｆｕｌｌｗｉｄｔｈ",
    "中文",
    "繁體",
    "한국어",
    "한글",
    "ᄒᆞᆫ글",
    "ﬁne",
    "oﬃce",
    "ℕ",
    "ℝ",
    "Å",
    "½",
    "²",
    "㎏",
    "Ⅷ",
    "㈱",
    "ﷺ",
    "running",
    "unbelievable",
    "antidisestablishmentarianism",
    "3.14",
    "1,000,000",
    "24GB",
    "2023-11-05",
    "http://example.com/a?b=c&d=e",
    "user@example.org",
    "#hashtag",
    "@handle",
    "C++",
    "x86_64",
    "__init__",
    "camelCase",
    "snake_case",
    "kebab-case",
    "$9.99",
    "50%",
    "(brackets)",
    "[1]",
    "{x}",
    "«quote»",
    "“curly”",
    "‘single’",
    "…",
    "–",
    "—",
    "―",
    "¿qué?",
    "¡sí!",
    ",,",
    ";;",
    "``quoted''",
    "a.b.c",
    "U.S.A.",
    "e.g.",
    "10:30",
    "½-price",
    "™",
    "©",
    "®",
    "°",
    "±",
    "×",
    "÷",
    "€",
    "£",
    "¥",
]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷", "🇺🇸🇯🇵", "❤️", "❤", "1️⃣", "☃", "🫠", "✈️", "🤷🏿‍♀️", "©️"]
MARKS = list(
    "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030c\u0323\u0327\u0328\u0331\u0345\u0342\u20dd\u0e31\u094d\u093c\u3099\u309a\u05b0\u064b\u0655"
)
BASES = list("aeiouAEIOUynscdrzgkltqxαεωАикかハは한क्ดאب1.-Åſﬁ½ｶＡ")
SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    "\v",
    "\f",
    "\x1c",
    "\x85",
    "\xa0",
    "\u1680",
    "\u2003",
    "\u2009",
    "\u200a",
    "\u2028",
    "\u2029",
    "\u202f",
    "\u205f",
    "\u3000",
]
INVISIBLE = [
    "\u200b",
    "\u200c",
    "\u200d",
    "\u200e",
    "\u200f",
    "\u202a",
    "\u202e",
    "\u2060",
    "\ufeff",
    "\u00ad",
    "\u034f",
    "\u061c",
    "\ufe0e",
    "\ufe0f",
    "\U000e0020",
]
CONTROL = [chr(i) for i in (0, 1, 2, 7, 8, 0x0E, 0x1B, 0x1F, 0x7F, 0x80, 0x90, 0x9F)] + [
    "\ufffd",
    "\uffff",
    "\U0010ffff",
    "\ue000",
]
JAMO = ["\u1112\u1161\u11ab", "\u1100\u1173\u11af", "\u1100\u1161", "\u1161", "\u11a8", "\ua960\u1161", "가\u11a8", "각\u11a8"]
SYMBOLS = list("▁_#@ĠĊ§¶†•‰′″‹›⁄⁊℀℗→⇒∀∂∑√∞≠≤⊂⌘①⑳━▓■◆★☎♥♪✓✗❶➜⟨⟩⿰〆〒〜゛゜・ー㊙㍿﹏！？，．：；（）［］｛｝～￥")


def _mark_soup(pick: random.Random) -> str:
    return "".join(
        pick.choice(BASES) + "".join(pick.choices(MARKS, k=pick.choice((0, 1, 1, 2, 3)))) for _ in range(pick.randint(1, 8))
    )


def _any_character(pick: random.Random) -> str:
    while True:
        code = pick.choice((pick.randrange(0x250), pick.randrange(0x3000), pick.randrange(0x10000), pick.randrange(0x110000)))
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def _piece(pick: random.Random) -> str:
    kind = pick.randrange(20)
    if kind < 8:
        return pick.choice(WORDS)
    if kind == 8:
        return pick.choice(EMOJI)
    if kind == 9:
        return _mark_soup(pick)
    if kind == 10:
        return pick.choice(INVISIBLE)
    if kind == 11:
        return pick.choice(CONTROL)
    if kind == 12:
        return "".join(pick.choices(JAMO, k=pick.randint(1, 3)))
    if kind == 13:
        return pick.choice(SYMBOLS) * pick.choice((1, 1, 1, 2, 5))
    if kind == 14:
        return "".join(_any_character(pick) for _ in range(pick.randint(1, 6)))
    if kind == 15:
        return pick.choice("aAx.-=_!?0 ▁") * pick.randint(2, 40)
    if kind == 16:
        return str(pick.randrange(10 ** pick.randint(1, 12)))
    if kind == 17:
        return "".join(pick.choices("abcdefghijklmnopqrstuvwxyzéüßñ", k=pick.randint(1, 30)))
    if kind == 18:
        return pick.choice(WORDS).upper() + pick.choice(WORDS)
    return "".join(pick.choices("<>/[]{}()\\|`~^*+=\"'", k=pick.randint(1, 6)))


def awkward(count: int, *, seed: int = 0) -> list[str]:
    """``count`` strings that trip tokenizers: marks, emoji, controls, odd spaces, right-to-left, very long words."""
    pick = random.Random(seed)
    texts = [
        "",
        " ",
        "   ",
        "\n",
        "\t \r\n",
        "\0",
        "a\0b",
        "\u200b",
        "\ufeff",
        "\u3000",
        "\xa0",
        "▁",
        "▁▁",
        " ▁ ",
        "\ufffd",
        "é",
        "e\u0301",
        "\u0301",
        "e\u0301\u0323",
        "é\u0323",
        "q\u0323\u0307",
        "ﬁ\u0301",
        "か\u3099",
        "\r\n",
        "a\r\nb",
        "  lead",
        "trail  ",
        "in  side",
        "x" * 300,
        "ab" * 3000,
        "é" * 500,
        "日本" * 400,
        "😀" * 200,
        "a " * 500,
        "-" * 257,
        "\u0301" * 50,
        "\u202eabc\u202c",
        "ﷺ" * 20,
        "１２３",
        "Ⅷ",
        "\u1e9b\u0323",
        "\u0344",
        "\u212b\u0301",
    ]
    while len(texts) < count:
        pieces = [_piece(pick) for _ in range(pick.randint(1, 9))]
        gap = pick.choice((" ", " ", " ", ""))
        text = "".join(piece + (gap if pick.random() < 0.85 else pick.choice(SPACES)) for piece in pieces)
        texts.append(text if pick.random() < 0.3 else text.strip(" "))
    return texts[:count]


def with_specials(specials: list[str], count: int, *, seed: int = 1) -> list[str]:
    """Strings that hold the text of special tokens, glued to words and apart from them."""
    pick = random.Random(seed)
    texts = []
    for _ in range(count):
        pieces = [pick.choice((pick.choice(specials), pick.choice(WORDS))) for _ in range(pick.randint(1, 6))]
        texts.append("".join(piece + pick.choice(("", " ", "  ")) for piece in pieces))
    return texts


def _sentences(words: Path, column: int = 0) -> Iterator[str]:
    for block in words.read_text(encoding="utf-8").split("\n\n"):
        row = [line.split("\t")[column] for line in block.splitlines() if line.strip()]
        if row:
            yield " ".join(row)


def real(count: int, *, seed: int = 0) -> list[str]:
    """``count`` real strings drawn from ten data sets: news, reviews, tweets, dialogues, German, verse, whole paragraphs."""
    sets = DATA / "datasets"
    texts: list[str] = []
    with open(sets / "ag_news/ag_news_first1000.csv", encoding="utf-8", newline="") as file:
        texts += [f"{title} {text}" for _, title, text in csv.reader(file)]
    with open(sets / "banking77/train_20_per_class.csv", encoding="utf-8", newline="") as file:
        texts += [row[0] for row in csv.reader(file)]
    for line in (sets / "dialogsum/dialogsum.dev.jsonl").read_text(encoding="utf-8").splitlines():
        texts.append(json.loads(line)["dialogue"])
    for name in ("multi30k/train5000.de", "multi30k/train5000.en"):
        texts += (sets / name).read_text(encoding="utf-8").splitlines()[:1500]
    texts += [line.split("\t")[0] for line in (sets / "sst2/dev.tsv").read_text(encoding="utf-8").splitlines()]
    with open(sets / "stsb/stsb-en-dev.csv", encoding="utf-8", newline="") as file:
        texts += [row[0] for row in csv.reader(file)]
    texts += (sets / "tinyshakespeare/input.txt").read_text(encoding="utf-8")[:100_000].split("\n\n")
    texts += list(_sentences(sets / "wikiann_en/train.conll"))
    texts += list(_sentences(sets / "wnut17/wnut17train.conll"))
    for article in json.loads((sets / "xquad/xquad.en.first12articles.json").read_text(encoding="utf-8"))["data"]:
        texts += [paragraph["context"] for paragraph in article["paragraphs"]]
    random.Random(seed).shuffle(texts)
    return texts[:count]
