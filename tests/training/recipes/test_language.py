"""Texts as blocks of tokens, whatever parts they come in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers

from transept.preprocess.text.tokenizer import Tokenizer
from transept.tables.dataset import TableDataset
from transept.training.recipes import language
from transept.training.recipes.language import CausalLM

TEXT = " ".join(f"Wörter {n} und\n\n{'mehr ' * (n % 4)}—{n * 37}" for n in range(900)) + "x" * 150


def reader(kind: str) -> Any:
    """A small tokenizer whose tokens hang on what stands beside them."""
    trainer: Any = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"])
    backend: Any = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    if kind == "bytes":
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.train_from_iterator([TEXT], trainer)
    return Tokenizer(tokenizer_object=backend, eos_token="<end>", pad_token="<end>")


@pytest.mark.parametrize("kind", ["bytes", "spaces"])
@pytest.mark.parametrize("part", [1, 313, 10**6])
def test_texts_in_windows_have_the_tokens_of_the_whole(kind: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own = reader(kind)
    whole = own(TEXT, add_special_tokens=False)["input_ids"]
    monkeypatch.setattr(language, "WINDOW", 1000)
    monkeypatch.setattr(language, "OVERLAP", 300)
    found = np.concatenate([*language.tokens_of(own, (TEXT[at : at + part] for at in range(0, len(TEXT), part)))])
    assert found.tolist() == whole
    assert len([*language.tokens_of(own, [TEXT])]) > 20


def test_windows_that_agree_nowhere_lose_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    own = Tokenizer(tokenizer_object=backend, unk_token="[UNK]")
    monkeypatch.setattr(language, "WINDOW", 100)
    monkeypatch.setattr(language, "OVERLAP", 30)
    assert np.concatenate([*language.tokens_of(own, ["x" * 1000])]).tolist() == [0] * 14


def test_blocks_of_parts_and_of_several_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [*language.blocks_of(map(np.array, ([1, 2, 3], [], [4, 5, 6, 7, 8], [9])), 4)] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert [*language.blocks_of(map(np.array, ([1, 2, 3], [4, 5, 6])), 4)] == [[1, 2, 3, 4], [5, 6]]
    recipe: Any = CausalLM({"text": "text"}, {"max_length": 64})
    own, ends = reader("bytes"), []
    recipe.processor, recipe.column_names = own, {"text": "text"}
    monkeypatch.setattr(type(recipe), "limit", 64)
    texts = [TEXT[:700], "short", "", TEXT[700:]]
    for text in texts:
        ends += [*own(text, add_special_tokens=False)["input_ids"], own.eos_token_id]
    for window in (2**18, 900):
        monkeypatch.setattr(language, "WINDOW", window)
        monkeypatch.setattr(language, "OVERLAP", 300)
        rows = recipe.encode(TableDataset([{"text": text} for text in texts]))
        assert [token for row in rows for token in row["input_ids"]] == ends
        parts = TableDataset([{"text": text} for text in texts], is_one_text=True)
        found = [token for row in recipe.encode(parts) for token in row["input_ids"]]
        assert found == own("".join(texts), add_special_tokens=False)["input_ids"]
