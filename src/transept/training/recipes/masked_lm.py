"""Masked tokens of running text (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transept.core.auto import AutoModelForMaskedLM
from transept.fields import Share
from transept.training.collate.language import DataCollatorForLanguageModeling, DataCollatorForWholeWordMask
from transept.training.data.table import Row
from transept.training.recipes.base import Options
from transept.training.recipes.blocks import BlockRecipe


class MaskedOptions(Options):
    """Options of masked language models.

    Args:
        mlm_probability: the share of the tokens that are to be found.
        whole_words: whether all pieces of a word are masked together.
    """

    mlm_probability: Share = 0.15
    whole_words: bool = False


class MaskedLM(BlockRecipe):
    """Blocks of text, of which some tokens are masked and are to be found."""

    task = "masked-lm"
    tag = "fill-mask"
    auto = AutoModelForMaskedLM
    options_class = MaskedOptions
    has_default_model = True
    framed = 2

    def block(self, ids: list[int]) -> Row:
        return {"input_ids": self.reader.build_inputs_with_special_tokens(ids)}

    def collator(self) -> Callable[[list[Any]], Any]:
        kind = DataCollatorForWholeWordMask if self.options.whole_words else DataCollatorForLanguageModeling
        return kind(self.reader, mlm_probability=self.options.mlm_probability)

    def shown_labels(self, labels: Any, ids: Any) -> str:
        return " ".join(self.reader.convert_ids_to_tokens(labels[labels >= 0].tolist()))
