"""What recipes of texts share: rows of tokens, their limit, and texts that a model writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from transept.errors import ConfigError, InputError
from transept.objectives.classification import IGNORED
from transept.preprocess.text.tokenizer import Tokenizer
from transept.tables.arrow import RowWriter
from transept.tables.dataset import Row, TableDataset
from transept.training.recipes.base import Recipe

NO_LIMIT = 2**31
END, UNKNOWN = "<|end|>", "<|unknown|>"
MOST_CHARACTERS = 20_000


class TextRecipe(Recipe):
    """A recipe whose rows are tokens."""

    batch_size = 32
    needs_pad_token: ClassVar[bool] = False  # the end of text stands for padding, where there is no other token

    def take(self, reader: Any, model: Any) -> None:
        super().take(reader, model)
        if self.needs_pad_token:
            if reader.pad_token is None:
                if reader.eos_token is None:
                    raise InputError("the tokenizer has no padding token.", hint="Add one, and save it with the model.")
                reader.pad_token = reader.eos_token
            if getattr(model.config, "pad_token_id", None) is None:
                model.config.pad_token_id = reader.pad_token_id

    def encode(self, dataset: TableDataset) -> TableDataset:
        return stored(self.rows_of(dataset), dataset)

    def rows_of(self, dataset: TableDataset) -> Iterable[Row]:
        """The rows for the model, one after the other."""
        for chunk in dataset.chunks():
            yield from self.encode_rows(chunk)

    def encode_rows(self, dataset: TableDataset) -> Iterable[Row]:
        """Some of the rows for the model."""
        raise NotImplementedError

    @property
    def limit(self) -> int:
        """Tokens of a row at most (``ConfigError``: more than the model has positions for)."""
        positions = getattr(self.model.backbone, "trained_positions", None) or NO_LIMIT
        wanted = self.options.max_length
        if wanted is None:
            return int(min(self.reader.model_max_length or NO_LIMIT, positions, 512))
        if wanted > positions:
            what = f"`max_length` is {wanted}, but the model has positions for {positions} tokens."
            raise ConfigError(what, hint=f"Pass max_length={positions} or less.")
        return int(wanted)

    def arguments(self, rows: int) -> dict[str, Any]:
        return {"train_sampling_strategy": "group_by_length"}

    def tokens(self, texts: list[Any], pairs: list[str] | None = None, **options: Any) -> Any:
        """Texts as the tokenizer's columns, cut at the limit; those that are cut are counted."""
        limit = self.limit
        encoded = self.reader(texts, pairs, truncation=True, max_length=limit, **options)
        for row, ids in enumerate(encoded["input_ids"]):
            if len(ids) >= limit:
                pair = None if pairs is None else pairs[row]
                longer = self.reader(texts[row], pair, truncation=True, max_length=limit + 1, **options)
                self.truncated += len(longer["input_ids"]) > limit
        return encoded

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        ids, mask, labels = batch["input_ids"][index], batch.get("attention_mask"), batch.get("labels")
        real = ids if mask is None else ids[mask[index].bool()]
        words = {"text": self.reader.decode(real.tolist()), "tokens": f"{len(real)} of {ids.shape[-1]} in the batch"}
        return words if labels is None else words | {"labels": self.shown_labels(labels[index], ids)}

    def shown_labels(self, labels: Any, ids: Any) -> str:
        """The labels of a row in words."""
        return str(self.reader.decode(labels[labels >= 0].tolist()))


def stored(rows: Iterable[Row], source: TableDataset) -> TableDataset:
    """Rows that were made of a data set's, which are kept in files where they are many."""
    writer = RowWriter()
    for row in rows:
        writer.add(row)
    return TableDataset(writer.finish(), list(writer.columns), path=source.path)


def rows_from(encoded: Mapping[str, Any], **more: Sequence[Any]) -> list[Row]:
    """Columns as rows."""
    columns = {**encoded, **more}
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def texts_of(tokenizer: Any, rows: Any) -> list[str]:
    """Rows of tokens as texts, without special tokens and padding."""
    ids = ([int(token) for token in row if token != IGNORED] for row in rows)
    return [tokenizer.decode(row, skip_special_tokens=True) for row in ids]


def written_at_evaluation(model: Any, longest: int) -> dict[str, Any]:
    """Settings of a trainer whose evaluations have the model write texts of so many tokens at most."""
    positions = getattr(model.config, "max_target_positions", None) or longest
    return {"predict_with_generate": True, "generation_max_length": min(longest, positions)}


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer with a token for each character of some texts, sorted, behind the end of text and one for all others.

    Raises:
        InputError: there are no characters, or far too many different ones.
    """
    import tokenizers

    characters = sorted(set().union(*texts))
    if not 1 < len(characters) <= MOST_CHARACTERS:
        count = len(characters)
        raise InputError(f"the texts have {count} different characters; from 2 to {MOST_CHARACTERS} make a vocabulary.")
    vocabulary = {token: number for number, token in enumerate([END, UNKNOWN, *characters])}
    backend: Any = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token=UNKNOWN))
    backend.decoder = tokenizers.decoders.Fuse()
    return Tokenizer(tokenizer_object=backend, eos_token=END, bos_token=END, pad_token=END, unk_token=UNKNOWN)
