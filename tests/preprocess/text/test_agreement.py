"""Ids equal to those of an oracle, on the real vocabularies and on small ones that are trained here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece
import transformers

from tests.thorough import in_turn
from transept.preprocess.text import classes

from .agreement import VOCABS, Case, cases, compare, ids, of_reference, of_sentencepiece
from .conftest import SentencePieces
from .corpus import with_specials

NAMES = tuple(cases(Path()))
EXACT = [name for name in NAMES if "spiece" not in name and "test_sentencepiece" not in name]
# Scores of single characters and their runs are often equal in small vocabularies, and only ever in unigram models.
MOST_TIES = 0.02


@pytest.mark.real_data
@pytest.mark.parametrize("name", in_turn(NAMES, 13))
def test_real_vocabularies(name: str, texts: list[str], tmp_path: Path) -> None:
    case = cases(tmp_path)[name]()
    count = compare(case, texts)
    assert count.strings >= (4000 if ".model" in name else 5000)
    assert len(case.alike(texts[:2600])) == 2600  # ordinary texts, all of which are normalized alike
    assert count.different == []
    assert count.ties <= (0 if name in EXACT else MOST_TIES * count.strings)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("gpt-2", lambda: classes.GPT2Tokenizer(VOCABS / "gpt2/vocab.json", VOCABS / "gpt2/merges.txt")),
        ("llama-spm", lambda: classes.LlamaTokenizer(VOCABS / "llama2/tokenizer.model")),
        ("phi-3", lambda: classes.LlamaTokenizer(VOCABS / "llama2/tokenizer.model")),
        ("bert-bge", lambda: classes.BertTokenizer(VOCABS / "bert-base-uncased/vocab.txt")),
    ],
)
def test_recorded_ids(name: str, make: object) -> None:
    start = VOCABS / f"gguf_vocab/ggml-vocab-{name}.gguf"
    with open(f"{start}.inp", encoding="utf-8", newline="") as file:
        given = file.read().split("\n__ggml_vocab_test__\n")
    wanted = [[int(index) for index in line.split()] for line in Path(f"{start}.out").read_text().split("\n")]
    assert len(given) == len(wanted) > 40
    assert ids(make())(given) == wanted  # type: ignore[operator]


@pytest.mark.real_data
def test_t5_built_from_its_model_equals_its_tokenizer_json(texts: list[str]) -> None:
    built = classes.T5Tokenizer(VOCABS / "t5/spiece.model")
    stored = classes.T5Tokenizer.from_pretrained(VOCABS / "t5-small")
    special = with_specials(["</s>", "<pad>", "<unk>", "<extra_id_0>", "<extra_id_99>"], 500)
    kept = [text for text in texts[:2600] if text.isascii()] + special
    assert ids(built, special=True)(kept) == ids(stored, special=True)(kept)
    assert len(built) == len(stored) == 32100


OPTIONS = {
    "unigram": {"model_type": "unigram"},
    "bpe": {"model_type": "bpe"},
    "char": {"model_type": "char", "vocab_size": 250},
    "unigram with byte fallback": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 640},
    "bpe with byte fallback": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 640},
    "identity": {"normalization_rule_name": "identity"},
    "nfkc": {"normalization_rule_name": "nfkc"},
    "case folding": {"normalization_rule_name": "nmt_nfkc_cf"},
    "all spaces kept": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "model_type": "bpe"},
    "all spaces kept, unigram": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "no prefix": {"add_dummy_prefix": False},
    "no prefix, all spaces kept": {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "pieces across spaces": {"split_by_whitespace": False},
    "runs of spaces": {
        "allow_whitespace_only_pieces": True,
        "remove_extra_whitespaces": False,
        "model_type": "bpe",
        "normalization_rule_name": "identity",
    },
    "user-defined symbols": {"user_defined_symbols": ["(", ")", "-", "don't", "日本"]},
    "other ids": {"pad_id": 0, "unk_id": 3, "bos_id": 1, "eos_id": 2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_sentencepiece_options(name: str, sentence_pieces: SentencePieces, odd_texts: list[str], tmp_path: Path) -> None:
    path = sentence_pieces(**OPTIONS[name])
    tokenizer = classes.PreTrainedTokenizerFast(path)
    count = compare(of_sentencepiece(path, tokenizer), odd_texts)
    assert count.strings > 0.7 * len(odd_texts)  # of awkward strings; of ordinary ones it is all
    assert count.different == []
    assert count.ties <= MOST_TIES * count.strings
    tokenizer.save_pretrained(tmp_path)
    again = classes.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ids(again)(odd_texts[:300]) == ids(tokenizer)(odd_texts[:300])


def test_user_defined_symbols_of_a_byte_pair_model(sentence_pieces: SentencePieces, odd_texts: list[str]) -> None:
    symbols = ("(", ")", "don't")
    path = sentence_pieces(model_type="bpe", user_defined_symbols=list(symbols))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    # SentencePiece puts its space before a symbol at the start; here a token that is cut out first has none.
    texts = [text for text in odd_texts if not processor.normalize(text).removeprefix("▁").startswith(symbols)]
    count = compare(of_sentencepiece(path, classes.PreTrainedTokenizerFast(path)), texts)
    assert count.strings > 1000
    assert count.different == []


def test_own_rules_of_normalization(sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    rules = {"é": "e", "Ω": "", "ß": "ss", "½": "1/2"}
    lines = [f"{ord(key):X}\t" + " ".join(f"{ord(c):X}" for c in value) for key, value in rules.items()]
    (tmp_path / "rules.tsv").write_text("\n".join(lines) + "\n")
    path = sentence_pieces(normalization_rule_tsv=str(tmp_path / "rules.tsv"))
    case = of_sentencepiece(path, classes.PreTrainedTokenizerFast(path))
    texts = ["abc ab a b c", "Straße ½", "cafés Ω x", "aΩmega é", "½ é ß", "the ab"]
    assert compare(case, texts).different == []


REFERENCE = {
    "BertTokenizer": ("vocab_txt", {}),
    "DistilBertTokenizer": ("vocab_txt", {"do_lower_case": False}),
    "MPNetTokenizer": ("vocab_txt", {"mask_token": "<mask>"}),
    "GPT2Tokenizer": ("bpe_files", {}),
    "RobertaTokenizer": ("bpe_files", {}),
    "BartTokenizer": ("bpe_files", {"add_prefix_space": True}),
    "DebertaTokenizer": ("bpe_files", {}),
    "DPRContextEncoderTokenizer": ("vocab_txt", {}),
    "DPRQuestionEncoderTokenizer": ("vocab_txt", {}),
    "GPTNeoXTokenizer": ("bpe_files", {}),
    "Qwen2Tokenizer": ("bpe_files", {}),
    "CohereTokenizer": ("bpe_files", {}),
}


@pytest.mark.reference
@pytest.mark.parametrize("name", REFERENCE)
def test_classes_beside_the_reference(name: str, request: pytest.FixtureRequest, odd_texts: list[str]) -> None:
    fixture, options = REFERENCE[name]
    count = compare(of_reference(name, request.getfixturevalue(fixture), **options), odd_texts)
    assert count.strings == len(odd_texts)
    assert count.different == []


@pytest.mark.reference
def test_qwen3_5_beside_the_reference(bpe_files: Path, odd_texts: list[str]) -> None:
    """The reference's class takes a vocabulary, and does not find the files of one."""
    vocabulary = json.loads((bpe_files / "vocab.json").read_text())
    merges = [tuple(line.split(" ")) for line in (bpe_files / "merges.txt").read_text().splitlines() if line.count(" ") == 1]
    merges = [pair for pair in merges if "".join(pair) in vocabulary]
    theirs = transformers.Qwen3_5Tokenizer(vocab=vocabulary, merges=merges)
    ours = classes.Qwen3_5Tokenizer.from_pretrained(bpe_files)
    texts = [text for text in odd_texts if "<|" not in text]
    assert compare(Case(ids(ours, special=False), ids(theirs, special=False)), texts).different == []


@pytest.mark.reference
@pytest.mark.parametrize("name", ["BertTokenizer", "RobertaTokenizer", "GPT2Tokenizer"])
def test_special_tokens_in_texts_beside_the_reference(name: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(REFERENCE[name][0])
    ours = getattr(classes, name).from_pretrained(folder)
    theirs = getattr(transformers, name).from_pretrained(folder)
    # The mask takes the space before it, as RoBERTa's tokenizer.json says; the reference forgets it in this case.
    special = [token for token in ours.all_special_tokens if token != "<mask>"]
    given = with_specials(special, 400)
    assert compare(Case(ids(ours, special=True), ids(theirs, special=True)), given).different == []


def test_unigram_tokenizer_json(unigram_json: Path, odd_texts: list[str]) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(unigram_json / "tokenizer.json"))
    ours = classes.T5Tokenizer.from_pretrained(unigram_json)
    wanted = [encoding.ids for encoding in backend.encode_batch(odd_texts)]
    assert ids(ours, special=True)(odd_texts) == wanted
    assert ours.encode_ids(odd_texts) == wanted
