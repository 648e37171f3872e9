"""The next token: of running text, of prompts and their completions, or of chats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transept.core.auto import AutoModelForCausalLM
from transept.errors import InputError
from transept.objectives.classification import IGNORED
from transept.training.collate.language import DataCollatorForLanguageModeling
from transept.training.collate.packing import DataCollatorWithFlattening
from transept.training.collate.padding import DataCollatorForTokenClassification
from transept.training.data.checks import warn_of_unlearned_end
from transept.training.data.columns import TEXT, Column, is_messages, is_text
from transept.training.data.table import Row, TableDataset
from transept.training.recipes.base import Options, TextRecipe
from transept.training.recipes.blocks import BlockRecipe

MESSAGES = Column("messages", ("messages", "conversation", "conversations"), is_messages)
PROMPT = Column("prompt", ("prompt", "instruction", "input"), is_text)
COMPLETION = Column("completion", ("completion", "response", "answer", "output"), is_text)
PACKED_TOKENS = 2048


class CausalOptions(Options):
    """Options of causal language models.

    Args:
        packing: whether rows of several lengths are laid end to end without seeing each other, in place of being padded.
        train_on_prompts: whether prompts, and what users say, are learned too.
    """

    packing: bool = False
    train_on_prompts: bool = False


class CausalLM(BlockRecipe):
    """The next token of a ``text``, of a ``completion`` after its ``prompt``, or of what the assistant says in ``messages``.

    In the latter two only the answers count in the loss, unless ``train_on_prompts`` is set.
    """

    task = "causal-lm"
    tag = "text-generation"
    auto = AutoModelForCausalLM
    options_class = CausalOptions
    columns: tuple[Column, ...] = (TEXT,)
    kind = "text"

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        names = {name.lower() for name in dataset.column_names} | {role for role, name in self.given.items() if name}
        if names & set(MESSAGES.names):
            self.kind, self.columns = "messages", (MESSAGES,)
        elif names & set(PROMPT.names) and names & set(COMPLETION.names):
            self.kind, self.columns = "prompt", (PROMPT, COMPLETION)
        self.splits_encoded = self.kind == "text"
        return super().look(dataset, config)

    def encode(self, dataset: TableDataset) -> TableDataset:
        if self.kind == "text":
            return super().encode(dataset)
        self.need_pad_token()
        rows = TextRecipe.encode(self, dataset)
        warn_of_unlearned_end(rows.values("labels"), self.reader.eos_token_id)
        return rows

    def encode_rows(self, dataset: TableDataset) -> list[Row]:
        return [self.answered(dataset[index], dataset.place(index)) for index in range(len(dataset))]

    def answered(self, row: Mapping[str, Any], place: str) -> Row:
        """A prompt or a chat as tokens, and the tokens of the answers as labels."""
        if self.kind == "messages":
            found = self.reader.apply_chat_template(
                row[self.found["messages"]], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
            ids, answer = found["input_ids"], found["assistant_masks"]
        else:
            prompt = self.reader(row[self.found["prompt"]])["input_ids"]
            ends = [] if self.reader.eos_token_id is None else [self.reader.eos_token_id]
            prompt = prompt[:-1] if ends and prompt[-1:] == ends else prompt
            completion = self.reader(row[self.found["completion"]], add_special_tokens=False)["input_ids"]
            ids = [*prompt, *completion, *ends]
            answer = [0] * len(prompt) + [1] * (len(ids) - len(prompt))
        limit = self.limit
        self.truncated += len(ids) > limit
        labels = [token if learned or self.options.train_on_prompts else IGNORED for token, learned in zip(ids, answer)]
        if not any(label != IGNORED for label in labels[1:limit]):
            hint = "A chat template marks answers by {% generation %}; or pass train_on_prompts=true, or a larger max_length."
            raise InputError("there is no answer to learn from.", path=place, hint=hint)
        return {"input_ids": ids[:limit], "attention_mask": [1] * len(ids[:limit]), "labels": labels[:limit]}

    def collator(self) -> Callable[[list[Any]], Any]:
        if self.options.packing:
            return DataCollatorWithFlattening()
        if self.kind == "text":
            return DataCollatorForLanguageModeling(self.reader, mlm=False)
        return DataCollatorForTokenClassification(self.reader)

    def defaults(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        found = super().defaults(rows, parameters, evaluated=evaluated)
        if self.options.packing:
            limit = max(PACKED_TOKENS, self.limit)
            found |= {"train_sampling_strategy": "token_budget", "max_tokens_per_batch": limit}
        return found

    def shown_labels(self, labels: Any, ids: Any) -> str:
        return str(self.reader.decode(labels[labels >= 0].tolist()))
