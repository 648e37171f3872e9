"""Stopping criteria give what the reference's give; stop strings at every boundary of tokens."""

from __future__ import annotations

import json
import random
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.generation import stopping_criteria as reference

from transept import AutoTokenizer
from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.generation import stopping_criteria as stopping
from transept.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

TEXT = [
    "the stopper stopped at the last stop, topping the bus stop; nonstop operation of the las topper ...",
    "ein Äpfelchen für die Übermäßigkeit — naïve café, 東京タワー 🙂🙃 and ### end of text ###\n\nUser: hello\n",
    "Stop. stop! STOP? s t o p st op sto p stop\n\nstop  stop\tstop",
]
STOPS = ["stop", "###", "\n\n", "User:", "é", "🙂", "東京", "op", "p s", " ", "e", "Übermäßig", "topper stop"]


def bytelevel() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False)
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    return tokenizer


def fallback() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=specials, limit_alphabet=40, show_progress=False)
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    vocabulary, merges = _trained(tokenizer)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _trained(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[PAD]"], show_progress=False)
    tokenizer.train_from_iterator([*TEXT * 3, "abcdef"], trainer)
    return tokenizer


KINDS = {"bytes": bytelevel, "byte fallback": fallback, "word pieces": wordpiece}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Ours and the reference's tokenizer of one kind."""

    @cache
    def load(kind: str) -> tuple[Any, Any]:
        directory = tmp_path_factory.mktemp("tokenizer")
        theirs = PreTrainedTokenizerFast(tokenizer_object=KINDS[kind]())
        theirs.add_tokens([AddedToken("<added>", normalized=False)])
        theirs.save_pretrained(directory)
        return AutoTokenizer.from_pretrained(directory), theirs

    return load


def rows_of(tokenizer: Any, seed: int, rows: int = 24, length: int = 9) -> Tensor:
    """Pieces of the text cut at any token, and tokens at random."""
    chance, size = random.Random(seed), max(tokenizer.get_vocab().values())
    known = [token for text in TEXT for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    found = []
    for row in range(rows):
        start = chance.randrange(len(known) - length)
        random_ids = [chance.randrange(size + 3) for _ in range(length)]
        found.append(known[start : start + length] if row % 3 else random_ids)
    return torch.tensor(found)


@pytest.mark.reference
@pytest.mark.parametrize("kind", KINDS)
def test_stop_strings(kind: str, pairs: Any) -> None:
    ours, theirs = pairs(kind)
    hits = 0
    for number, stops in enumerate([*STOPS, ["stop", "\n\n", "###"], ["e", "Übermäßig"]]):
        try:
            expected = reference.StopStringCriteria(theirs, stops)
        except ValueError:  # no token can end the string, so that none does
            continue
        found = StopStringCriteria(ours, stops)
        for length in (1, 2, 9):
            ids = rows_of(theirs, number, length=length)
            done = found(ids, None)
            assert done.dtype is torch.bool
            assert torch.equal(done, expected(ids, None)), stops
            hits += int(done.sum())
    assert hits > 20


@pytest.mark.reference
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_the_references(kind: str, pairs: Any) -> None:
    ours, theirs = pairs(kind)
    mode = reference.StopStringCriteria._get_stop_string_matching_mode(theirs)
    texts, ids = reference.StopStringCriteria.clean_tokenizer_vocab(theirs, stop_string_matching_mode=mode)
    pieces = stopping._Pieces(ours)
    assert [pieces[index] for index in ids] == list(texts)
    assert pieces[max(ids) + 1] is None


class Letters:
    """A tokenizer that is no more than its tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, "abcdef"]

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [self.tokens.index(text)]}

    def convert_ids_to_tokens(self, ids: int) -> str | None:
        return self.tokens[ids] if ids < len(self.tokens) else None

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


@pytest.mark.parametrize(
    ("tokens", "done"),
    [
        (["st", "op"], True),
        (["stop"], True),
        (["st", "opera"], True),
        (["las", "topper"], True),
        (["s", "to", "pped"], True),
        (["nonstopper"], True),
        (["stop", "at"], False),
        (["st", "op", "at"], False),
        (["stop", "stop"], True),
        (["stop", ""], False),
        (["st", "", "op"], True),
        (["sto"], False),
        (["top"], False),
    ],
)
def test_the_string_must_overlap_the_last_token(tokens: list[str], done: bool) -> None:
    criterion = StopStringCriteria(Letters(tokens), "stop")
    assert criterion(torch.arange(len(tokens))[None]).tolist() == [done]


def test_ids_that_are_no_tokens_stand_between_strings() -> None:
    criterion = StopStringCriteria(Letters(["st", "op"]), ["stop"])
    assert criterion(torch.tensor([[0, 99, 1], [9, 0, 1], [0, 1, 99]])).tolist() == [False, True, False]
    assert criterion(torch.zeros(2, 0, dtype=torch.long)).tolist() == [False, False]


@pytest.mark.parametrize("stops", ["", [], ["a", ""], [3], None])
def test_stop_strings_that_are_none(stops: Any) -> None:
    with pytest.raises((InputError, TypeError), match="stop_strings|NoneType"):
        StopStringCriteria(Letters([]), stops)


def test_a_tokenizer_that_cannot_write_its_tokens() -> None:
    class Silent(Letters):
        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            return "?"

    with pytest.raises(InputError, match="'abcdef' as '\\?'.*eos_token_id"):
        StopStringCriteria(Silent(["x"]), "x")(torch.zeros(1, 1, dtype=torch.long))


# --- the others --------------------------------------------------------------------------------------------------------------


@pytest.mark.reference
def test_lengths_ends_and_times() -> None:
    ids = torch.randint(0, 6, (40, 7), generator=torch.Generator().manual_seed(0))
    for length in (6, 7, 8):
        mine, theirs = stopping.MaxLengthCriteria(length), reference.MaxLengthCriteria(length)
        assert torch.equal(mine(ids), theirs(ids, None))
    for eos in (3, [3, 5], torch.tensor([1]), [9]):
        for new in (1, 3):
            mine, theirs = stopping.EosTokenCriteria(eos), reference.EosTokenCriteria(eos)  # type: ignore[assignment]
            assert torch.equal(mine(ids, None, new_token_length=new), theirs(ids, None, new_token_length=new))  # type: ignore[call-arg]
    past = time.time() - 10
    for seconds in (5, 50):
        mine, theirs = stopping.MaxTimeCriteria(seconds, past), reference.MaxTimeCriteria(seconds, past)  # type: ignore[assignment]
        assert torch.equal(mine(ids), theirs(ids, None))


@pytest.mark.reference
@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.9])
def test_confidence(threshold: float) -> None:
    for seed in range(8):
        scores = torch.randn(1, 6, generator=torch.Generator().manual_seed(seed)) * 2
        ids = torch.tensor([[1, 2, seed % 6]])
        mine = stopping.ConfidenceCriteria(threshold)(ids, (scores,))
        assert mine.tolist() == [reference.ConfidenceCriteria(threshold)(ids, (scores,))]
    with pytest.raises(InputError, match="output_scores=True"):
        stopping.ConfidenceCriteria(threshold)(ids)


def test_more_positions_than_the_model_has_are_warned_of_once() -> None:
    criterion = stopping.MaxLengthCriteria(10, 4)
    with pytest.warns(TranseptWarning, match="5 tokens, more than the 4 positions"):
        criterion(torch.zeros(1, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        criterion(torch.zeros(1, 6))


def test_a_list_of_criteria_and_plain_callables() -> None:
    ids = torch.tensor([[1, 2], [1, 3], [4, 4]])
    every = StoppingCriteriaList([stopping.EosTokenCriteria(2), lambda input_ids, scores, **_: input_ids[:, 0] == 4])
    assert every(ids).tolist() == [True, False, True]
    assert every.max_length is None
    assert StoppingCriteriaList([*every, lambda *_: True])(ids).all()
    assert StoppingCriteriaList([*every, stopping.MaxLengthCriteria(9)]).max_length == 9
    assert not StoppingCriteriaList()(ids).any()
    with pytest.raises(
        InputTypeError, match="<lambda> must return True, False or one boolean a row, not a tensor of torch.int64"
    ):
        StoppingCriteriaList([lambda *_: ids])(ids)
    with pytest.raises(InputTypeError, match="not None"):
        StoppingCriteriaList([lambda *_: None])(ids)
    with pytest.raises(NotImplementedError):
        stopping.StoppingCriteria()(ids)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: stopping.MaxLengthCriteria(-1), "`max_length`"),
        (lambda: stopping.MaxTimeCriteria(-1.0), "`max_time`"),
        (lambda: stopping.EosTokenCriteria(-1), "`eos_token_id`"),
        (lambda: stopping.ConfidenceCriteria(1.5), "`assistant_confidence_threshold`"),
    ],
)
def test_criteria_that_cannot_be(make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


# --- real vocabularies -------------------------------------------------------------------------------------------------------

REAL = Path(__file__).parents[3] / "shared/data"


@pytest.mark.reference
@pytest.mark.real_data
@pytest.mark.parametrize(
    "name", ["tokenizers/t5-small", "tokenizers/roberta-base", "tokenizers/whisper-tiny", "weights/stories260K/hf"]
)
def test_real_vocabularies_come_in_the_same_pieces(name: str) -> None:
    directory = REAL / name
    if not (directory / "tokenizer.json").exists():
        pytest.skip(f"{directory / 'tokenizer.json'} is missing")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    ours = AutoTokenizer.from_pretrained(directory)
    known = sorted(theirs.get_vocab().items())
    chosen = random.Random(0).sample(known, min(3000, len(known)))
    pieces, mode = stopping._Pieces(ours), reference.StopStringCriteria._get_stop_string_matching_mode(theirs)
    part = _Part(theirs, dict(chosen))
    texts, ids = reference.StopStringCriteria.clean_tokenizer_vocab(part, stop_string_matching_mode=mode)
    assert [pieces[index] for index in ids] == list(texts)


class _Part:
    """A tokenizer that lists a part of its vocabulary."""

    def __init__(self, whole: Any, part: dict[str, int]) -> None:
        self._whole, self._part = whole, part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._whole(*arguments, **options)

    def get_vocab(self) -> dict[str, int]:
        return self._part


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_criteria_that_return_odd_tensors() -> None:
    done = torch.zeros(3, dtype=torch.bool)
    for odd in (done.to_sparse(), done.to("meta"), torch.nested.nested_tensor([done]), done.numpy(), done[:2], None):
        with pytest.raises(InputTypeError, match="<lambda> must return True, False or one boolean a row"):
            StoppingCriteriaList([lambda *_, odd=odd: odd])(torch.ones(3, 2))
