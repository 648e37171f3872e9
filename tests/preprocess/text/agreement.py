"""Ids of our tokenizers beside those of an oracle, over many strings. ``python -m tests.preprocess.text.agreement`` counts.

An oracle is what a ``tokenizer.json`` or the SentencePiece or tiktoken library gives, where there is one, else the
reference. SentencePiece adds scores in 32 bits, so among segmentations of equal score its rounding decides; those are
counted apart, and only where both segmentations add up to the same score.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import tiktoken
import tokenizers
import transformers
from tokenizers import normalizers

from transept.preprocess.text import classes
from transept.preprocess.text.build import byte_letters, read_ranks
from transept.preprocess.text.sentencepiece import CONTROL, NORMAL, UNIGRAM, UNKNOWN, read_sentencepiece

from .corpus import DATA, awkward, real

VOCABS = DATA / "tokenizers"
# The tiktoken library's own patterns, of tiktoken_ext.openai_public.
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
Encode = Callable[[list[str]], list[list[int]]]


@dataclass(frozen=True)
class Case:
    """Two ways to encode, the texts of special tokens (which only one of them knows), the scores of normal pieces, and which
    texts both normalize alike."""

    ours: Encode
    oracle: Encode
    special: tuple[str, ...] = ()
    scores: Mapping[int, float] | None = None
    alike: Callable[[list[str]], list[str]] = list


@dataclass(frozen=True)
class Count:
    """How many strings were compared, how many differ, and how many of those have the same score."""

    strings: int
    different: list[str]
    ties: int


def compare(case: Case, texts: Iterable[str]) -> Count:
    """Encode the texts both ways."""
    kept = case.alike([text for text in texts if not any(token in text for token in case.special)])
    different, ties = [], 0
    for text, ours, oracle in zip(kept, case.ours(kept), case.oracle(kept), strict=True):
        if ours == oracle:
            continue
        if case.scores is not None and _tie(ours, oracle, case.scores):
            ties += 1
        else:
            different.append(text)
    return Count(len(kept), different, ties)


def _tie(first: list[int], second: list[int], scores: Mapping[int, float]) -> bool:
    """Whether two segmentations differ in scored pieces only, and those add up to the same."""
    unscored = [[index for index in row if index not in scores] for row in (first, second)]
    sums = [sum(scores[index] for index in row if index in scores) for row in (first, second)]
    return unscored[0] == unscored[1] and abs(sums[0] - sums[1]) < 1e-4


def ids(tokenizer: Any, *, special: bool = False) -> Encode:
    """A tokenizer's call, of which only the ids are taken."""
    return lambda texts: tokenizer(texts, add_special_tokens=special, verbose=False)["input_ids"]


def of_library(path: Path) -> Encode:
    """What the ``tokenizers`` library makes of a ``tokenizer.json``."""
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.no_padding()
    backend.no_truncation()
    return lambda texts: [encoding.ids for encoding in backend.encode_batch(texts)]


def of_sentencepiece(path: Path, ours: Any, before: Callable[[str], str] = str) -> Case:
    """One of our tokenizers beside the SentencePiece library with the same file."""
    model = read_sentencepiece(path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    special = tuple(piece.text for piece in model.pieces if piece.kind in (CONTROL, UNKNOWN))
    scores = {place: piece.score for place, piece in enumerate(model.pieces) if piece.kind == NORMAL}
    unigram = model.trainer.model_type == UNIGRAM

    def alike(texts: list[str]) -> list[str]:
        same = set(normalized_alike(path, map(before, texts)))
        return [text for text in texts if before(text) in same]

    return Case(
        ids(ours),
        lambda texts: [processor.encode(before(text)) for text in texts],
        special,
        scores if unigram else None,
        alike,
    )


def normalized_alike(path: Path, texts: Iterable[str]) -> list[str]:
    """Those texts that the SentencePiece library normalizes as ``tokenizers`` does.

    ``Precompiled`` looks the model's rules up by grapheme, so a letter with marks that have no composed form can lose one.
    """
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(path.read_bytes())
    if not model.normalizer_spec.precompiled_charsmap:
        return list(texts)
    for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        setattr(model.normalizer_spec, name, False)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    ours = normalizers.Sequence([normalizers.NFC(), normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)])
    return [text for text in texts if ours.normalize_str(text) == theirs.normalize(text)]


def of_tiktoken(path: Path, pattern: str) -> Case:
    """Our reading of a tiktoken file beside the tiktoken library."""
    ranks = {token: rank for token, rank in read_ranks(path).items() if token}
    encoding = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    ours = classes.PreTrainedTokenizerFast(vocab_file=path)
    return Case(ids(ours), lambda texts: [encoding.encode_ordinary(text) for text in texts])


def of_reference(name: str, folder: Path, **options: Any) -> Case:
    """One of our classes beside the reference's of that name, from the same files."""
    ours = getattr(classes, name).from_pretrained(folder, **options)
    theirs = getattr(transformers, name).from_pretrained(folder, **options)
    return Case(ids(ours, special=True), ids(theirs, special=True))


def cleaned(lower: bool) -> Callable[[str], str]:
    """What the reference's ALBERT and XLNet do to a text before SentencePiece does its part."""
    steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents()]
    return normalizers.Sequence([*steps, normalizers.Lowercase()] if lower else steps).normalize_str


def folder_of(temporary: Path, **files: str | bytes) -> Path:
    """A folder with these files; in names ``__`` stands for a dot."""
    folder = Path(tempfile.mkdtemp(dir=temporary))
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def clip_files(temporary: Path) -> Path:
    """CLIP's vocabulary as its authors' code makes it of their list of merges."""
    lines = gzip.decompress((VOCABS / "clip/bpe_simple_vocab_16e6.txt.gz").read_bytes()).decode().split("\n")
    merges = [line for line in lines[1 : 49152 - 256 - 2 + 1] if line]
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    order = [*visible, *(byte for byte in range(256) if byte not in visible)]
    letters = [byte_letters()[byte] for byte in order]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(merge.split()) for merge in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    vocab = json.dumps({token: place for place, token in enumerate(tokens)})
    return folder_of(temporary, vocab__json=vocab, merges__txt="#version: 0.2\n" + "\n".join(merges) + "\n")


def roberta_files(temporary: Path) -> Path:
    """RoBERTa's vocabulary and merges, taken out of its ``tokenizer.json``."""
    model = json.loads((VOCABS / "roberta-base/tokenizer.json").read_text(encoding="utf-8"))["model"]
    merges = "\n".join(merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    return folder_of(temporary, vocab__json=json.dumps(model["vocab"]), merges__txt=merges + "\n")


def _copied(temporary: Path, *names: str, **files: str) -> Path:
    return folder_of(temporary, **{Path(name).name.replace(".", "__"): (VOCABS / name).read_bytes() for name in names}, **files)


def cases(temporary: Path) -> dict[str, Callable[[], Case]]:
    """All comparisons on the real vocabularies, each made when it is called."""
    found: dict[str, Callable[[], Case]] = {}
    for name in ("roberta-base", "t5-small", "whisper-tiny"):
        path = VOCABS / name / "tokenizer.json"
        found[f"{name} tokenizer.json"] = lambda path=path: Case(
            ids(classes.PreTrainedTokenizerFast.from_pretrained(path.parent), special=True), of_library(path)
        )
    found["roberta-base from its vocabulary"] = lambda: Case(
        ids(classes.RobertaTokenizer.from_pretrained(roberta_files(temporary)), special=True),
        of_library(VOCABS / "roberta-base/tokenizer.json"),
    )
    cased = {"tokenizer_config__json": '{"do_lower_case": false}'}
    for name, files in (("bert-base-cased", cased), ("bert-base-uncased", {})):
        found[f"{name} vocab.txt"] = lambda name=name, files=files: of_reference(
            "BertTokenizer", _copied(temporary, f"{name}/vocab.txt", **files)
        )
    found["gpt2 vocab.json"] = lambda: of_reference("GPT2Tokenizer", _copied(temporary, "gpt2/vocab.json", "gpt2/merges.txt"))
    found["clip vocab.json"] = lambda: of_reference("CLIPTokenizer", clip_files(temporary))
    for name, kind in (("llama2/tokenizer.model", "LlamaTokenizer"), ("t5/spiece.model", "T5Tokenizer")):
        found[name] = lambda name=name, kind=kind: of_sentencepiece(VOCABS / name, getattr(classes, kind)(VOCABS / name))
    for name, kind, lower in (("albert", "AlbertTokenizer", True), ("xlnet", "XLNetTokenizer", False)):
        path = VOCABS / name / "spiece.model"
        found[f"{name}/spiece.model"] = lambda path=path: of_sentencepiece(path, classes.PreTrainedTokenizerFast(path))
        found[f"{name}/spiece.model, cleaned"] = lambda path=path, kind=kind, lower=lower: of_sentencepiece(
            path, getattr(classes, kind)(path), cleaned(lower)
        )
    for path in sorted((VOCABS / "hf_fixtures").glob("*.model")):
        found[f"hf_fixtures/{path.name}"] = lambda path=path: of_sentencepiece(path, classes.PreTrainedTokenizerFast(path))
    for name, pattern in (
        ("tiktoken/cl100k_base.tiktoken", CL100K),
        ("whisper/gpt2.tiktoken", R50K),
        ("whisper/multilingual.tiktoken", R50K),
    ):
        found[name] = lambda name=name, pattern=pattern: of_tiktoken(VOCABS / name, pattern)
    return found


def main(strings: int = 10_000) -> None:
    """Print the table of counts, half of the strings real and half awkward."""
    texts = real(strings // 2) + awkward(strings // 2)
    print("| tokenizer | strings | different | of equal score |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for name, make in cases(Path(temporary)).items():
            count = compare(make(), texts)
            print(f"| {name} | {count.strings} | {len(count.different)} | {count.ties} |", flush=True)


if __name__ == "__main__":
    main()
