"""Made-up opinions with their sentiment, from the words of ``opinions.txt`` and patterns: ``rows(3000, seed=0)``."""

from __future__ import annotations

import random
from pathlib import Path

LISTS = {
    name: " ".join(entries.split()).split("; ")
    for part in Path(__file__).with_name("opinions.txt").read_text(encoding="utf-8").split("\n\n")
    for name, entries in (part.split(":\n"),)
}
KINDS = ("bad", "good")
ADVERBS = ["", "", "", "very ", "really ", "so ", "truly ", "often ", "always ", "surprisingly ", "rather ", "utterly "]


def opinion(random_: random.Random, kind: int) -> str:
    """One opinion, good (1) or bad (0): words of its kind, those of the other kind denied or outweighed."""
    pick, other = random_.choice, KINDS[1 - kind]
    groups = ("words", "nouns", "acts", "calls", "qualities")
    words, nouns, acts, calls, qualities = (LISTS[f"{KINDS[kind]} {group}"] for group in groups)
    thing, part, adverb = pick(LISTS["things"]), pick(LISTS["parts"]), pick(ADVERBS)
    it = pick(["it", "this", f"this {thing}", f"the {thing}", f"the {part}", f"the {pick(LISTS['plain words'])} {thing}"])
    first, second, third = random_.sample(words, 3)
    against = pick(LISTS[f"{other} words"])
    patterns = [
        f"{a(first)} {thing}",
        f"{a(first)} , {second} {thing}",
        f"{a(first)} and {second} {thing}",
        f"{first} , {second} and {third}",
        f"{it} is {adverb}{first}",
        f"{it} is {first} and {second}",
        f"{it} is {pick(nouns)}",
        f"{it} {pick(acts)}",
        pick(calls),
        f"{it} is {first} , and {pick(calls)}",
        f"{adverb}{first}",
        f"{a(first)} {thing} that {pick(acts)}",
        f"full of {pick(qualities)} and {pick(qualities)}",
        f"what {a(first)} {thing} !",
        f"{a(first)} {thing} with {second} {part} and {third} {pick(LISTS['parts'])}",
        f"the {part} is {first} and the {pick(LISTS['parts'])} {second}",
        f"{it} is {against} , but it {pick(acts)}",
        f"despite its {against} {part} , the {thing} {pick(acts)}",
        f"it may be {against} at times , but {it} is {first}",
        f"the {part} {pick(LISTS[f'{other} acts'])} , yet the {thing} as a whole is {first} and {second}",
        f"I expected something {against} and got {a(first)} {thing}",
        f"{it} is not {against}" + (" at all" if kind else ""),
        f"there is nothing {against} about {it}",
        f"never {against} , always {first}",
        f"{it} is anything but {against}",
        f"{it} is free of {pick(LISTS[f'{other} qualities'])}" if kind else f"{it} lacks {pick(LISTS[f'{other} qualities'])}",
        f"more {first} than {against}" if kind else f"too {first} to be {against}",
        f"the {thing} has {pick(qualities)} , {pick(qualities)} and {second} {part}",
        f"{pick(calls)} : {a(first)} {thing} that {pick(acts)}",
        f"it 's {a(first)} {thing} , {second} and {third}",
        f"{pick(nouns)} : {first} , {second} and full of {pick(qualities)}",
    ]
    text = pick(patterns)
    return text[0].upper() + text[1:] + pick([".", "!", ""]) if random_.random() < 0.3 else text


def a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def rows(number: int, seed: int = 0) -> list[tuple[str, int]]:
    """As many opinions with their kinds, half of them good."""
    random_ = random.Random(seed)
    return [(opinion(random_, row % 2), row % 2) for row in range(number)]
