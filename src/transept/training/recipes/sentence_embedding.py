"""Embeddings of sentences: pairs that belong together, or pairs with a score of how alike they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from transept.core.auto import AutoModel
from transept.fields import Count, Range
from transept.training.collate.sentences import DataCollatorForPairs
from transept.training.data.columns import Column, find_pair, is_text
from transept.training.data.table import Row, TableDataset
from transept.training.recipes.base import Options, TextRecipe
from transept.training.trainers.sentences import SentenceTrainer

FIRST, SECOND = "anchor", "positive"
TEXT = Column("text", ("anchor", "query", "sentence1", "text1"), is_text)
PAIR = Column("text_pair", ("positive", "passage", "sentence2", "text2"), is_text)


def is_score(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


SCORE = Column("label", ("score", "similarity", "label", "labels"), is_score, optional=True, by_kind=False)


class EmbeddingOptions(Options):
    """Options of embeddings.

    Args:
        scale: what cosines are multiplied by; the inverse of a temperature.
        mini_batch_size: texts that are embedded at a time, which changes no result.
    """

    scale: Annotated[float, Range(0, open="(")] = 20.0
    mini_batch_size: Count | None = None


class SentenceEmbedding(TextRecipe):
    """Two texts a row that mean the same, each told from the others of its batch; with a score a row, alike by their scores."""

    task = "sentence-embedding"
    tag = "sentence-similarity"
    auto = AutoModel
    columns = (TEXT, PAIR, SCORE)
    options_class = EmbeddingOptions
    collator_class = DataCollatorForPairs
    trainer_class = SentenceTrainer
    has_default_model = True

    def guesses(self, dataset: TableDataset) -> dict[str, str]:
        return find_pair(dataset, self.given)

    def trainer_options(self) -> dict[str, Any]:
        loss = "cosent" if "label" in self.found else "multiple_negatives"
        return {"loss": loss, "options": {"scale": self.options.scale}, "mini_batch_size": self.options.mini_batch_size}

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        parts = [self.rows(self.tokens(dataset.column(self.found[role]))) for role in ("text", "text_pair")]
        rows: list[Row] = [{FIRST: first, SECOND: second} for first, second in zip(*parts)]
        if "label" in self.found:
            rows = [{**row, "score": float(score)} for row, score in zip(rows, dataset.column(self.found["label"]))]
        return rows

    def defaults(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        found = super().defaults(rows, parameters, evaluated=evaluated)
        # Rows hold two texts, so that there is no one length to group by; and each batch is told from all of its own.
        return found | {"train_sampling_strategy": "random", "include_num_input_tokens_seen": "no"}

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        found = {}
        for name in (FIRST, SECOND):
            ids, mask = batch[f"{name}_input_ids"][index], batch[f"{name}_attention_mask"][index]
            found[name] = str(self.reader.decode(ids[mask.bool()].tolist()))
        return found | ({"score": str(float(batch["labels"][index]))} if "labels" in batch else {})
