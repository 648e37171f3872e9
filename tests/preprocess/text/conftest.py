"""Fixtures of the text tests: small vocabularies that are trained here, and the real ones where they are."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from .corpus import DATA, EMOJI, WORDS, awkward, real


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what reads real data where it is not."""
    here = Path(__file__).parent
    for item in () if DATA.is_dir() else items:
        if here in item.path.parents and item.get_closest_marker("real_data"):
            item.add_marker(pytest.mark.skip(reason=f"real vocabularies and data sets are not at {DATA}"))


def sentences(count: int = 3000) -> list[str]:
    """Sentences to train small vocabularies on."""
    pick = random.Random(0)
    return [" ".join(pick.choice(WORDS if pick.random() < 0.95 else EMOJI) for _ in range(8)) for _ in range(count)]


@pytest.fixture(scope="session")
def odd_texts() -> list[str]:
    """Awkward strings, for tests that run everywhere."""
    return awkward(1500, seed=3)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Real and awkward strings, half of each."""
    return real(2600) + awkward(2600)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for files that several tests read."""
    return tmp_path_factory.mktemp("text")


@pytest.fixture(scope="session")
def vocab_txt(folder: Path) -> Path:
    """A folder with a small ``vocab.txt``."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>", "<mask>"]
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False)
    backend.train_from_iterator([*sentences(), *(s.lower() for s in sentences())], trainer)
    vocab = backend.get_vocab()
    path = folder / "wordpiece"
    path.mkdir()
    (path / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.__getitem__)) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def bpe_files(folder: Path) -> Path:
    """A folder with a small byte-level ``vocab.json`` and ``merges.txt``."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<|endoftext|>", "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|padding|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(sentences(), trainer)
    path = folder / "bytelevel"
    path.mkdir()
    backend.model.save(str(path))
    return path


@pytest.fixture(scope="session")
def unigram_json(folder: Path) -> Path:
    """A folder with a small Unigram ``tokenizer.json`` whose special tokens have a template."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=800, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(sentences(), trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    path = folder / "unigram"
    path.mkdir()
    backend.save(str(path / "tokenizer.json"))
    return path


class SentencePieces:
    """Small SentencePiece models, trained when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, Path] = {}

    def __call__(self, **options: object) -> Path:
        """The path of a model with these options of the trainer."""
        key = repr(sorted(options.items()))
        if key not in self.made:
            data = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences(1500)),
                model_writer=data,
                **{"vocab_size": 380, "minloglevel": 2, "num_threads": 1} | options,
            )
            path = self.folder / f"{len(self.made)}.model"
            path.write_bytes(data.getvalue())
            self.made[key] = path
        return self.made[key]


@pytest.fixture(scope="session")
def sentence_pieces(tmp_path_factory: pytest.TempPathFactory) -> SentencePieces:
    """A maker of small SentencePiece models."""
    return SentencePieces(tmp_path_factory.mktemp("sentencepiece"))
