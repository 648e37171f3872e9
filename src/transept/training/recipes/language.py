"""Language models: masked tokens of running text, and the next token of text, of completions, or of chats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.core.auto import AutoModelForCausalLM, AutoModelForMaskedLM
from transept.errors import InputError
from transept.fields import Share
from transept.objectives.classification import IGNORED
from transept.tables.dataset import Row, TableDataset
from transept.training.collate.language import DataCollatorForLanguageModeling, DataCollatorForWholeWordMask
from transept.training.collate.padding import DataCollatorForTokenClassification, DataCollatorWithFlattening
from transept.training.data.checks import warn_of_unlearned_end
from transept.training.data.columns import TEXT, Column, is_messages, is_text
from transept.training.recipes.base import Options
from transept.training.recipes.text import TextRecipe, stored

MESSAGES = Column("messages", ("messages", "conversation", "conversations"), is_messages)
PROMPT = Column("prompt", ("prompt", "instruction", "input"), is_text)
COMPLETION = Column("completion", ("completion", "response", "answer", "output"), is_text)
PACKED_TOKENS = 2048
NO_ANSWER = "A chat template marks answers by {% generation %}; or pass train_on_prompts=true, or a larger max_length."
WINDOW = 2**18  # characters of a text that are encoded at once
OVERLAP = 2**12  # of one window and the next
AGREED = 8  # tokens on which two windows agree where one takes over from the other
Tokens = NDArray[Any]
Encoded = tuple[Tokens, NDArray[Any]]  # and the places at which they begin


class BlockRecipe(TextRecipe):
    """A recipe of language models over running text: all texts, with the end of text between them, in blocks.

    The held-out rows are blocks: a text of one piece could not be split otherwise.
    """

    columns: tuple[Column, ...] = (TEXT,)
    sample_by = "part"
    splits_encoded = True
    batch_size = 16
    needs_pad_token = True
    framed = 0  # special tokens around a block

    def encode(self, dataset: TableDataset) -> TableDataset:
        tokens = blocks_of(self.tokens_of_texts(dataset), self.limit - self.framed)
        rows = stored(map(self.block, tokens), dataset)
        if not len(rows):
            raise InputError("the texts hold fewer than two tokens.", path=dataset.path)
        return rows

    def tokens_of_texts(self, dataset: TableDataset) -> Iterator[Tokens]:
        """The tokens of all texts, some at a time, with the end of text behind each where there are several."""
        column, end = self.found["text"], self.reader.eos_token_id
        if dataset.is_one_text:
            yield from tokens_of(self.reader, dataset.values(column))
            return
        ends = [end] if end is not None and len(dataset) > 1 else []
        for chunk in dataset.chunks():
            texts = chunk.column(column)
            short = [text if len(text) <= WINDOW else "" for text in texts]
            encoded = self.reader(short, add_special_tokens=False, verbose=False)["input_ids"]
            for text, ids in zip(texts, encoded):
                is_short = len(text) <= WINDOW
                yield from [np.array(ids, np.int32)] if is_short else tokens_of(self.reader, [text])
                yield np.array(ends, np.int32)

    def block(self, ids: list[int]) -> Row:
        """A block as a row for the model."""
        return {"input_ids": ids}

    def derived(self, metrics: Mapping[str, float]) -> dict[str, float]:
        loss = metrics.get("eval_loss")
        return {} if loss is None or loss > 700 else {"eval_perplexity": math.exp(loss)}


class MaskedOptions(Options):
    mlm_probability: Share = 0.15  # of the tokens, which are to be found
    whole_words: bool = False  # whether all pieces of a word are masked together


class MaskedLM(BlockRecipe):
    """Blocks of text, of which some tokens are masked and are to be found (Devlin et al. 2019)."""

    task = "masked-lm"
    tag = "fill-mask"
    auto = AutoModelForMaskedLM
    options_class = MaskedOptions
    has_default_model = True
    framed = 2

    def block(self, ids: list[int]) -> Row:
        return {"input_ids": self.reader.build_inputs_with_special_tokens(ids)}

    def collator(self) -> Any:
        kind = DataCollatorForWholeWordMask if self.options.whole_words else DataCollatorForLanguageModeling
        return kind(self.reader, mlm_probability=self.options.mlm_probability)

    def shown_labels(self, labels: Any, ids: Any) -> str:
        return " ".join(self.reader.convert_ids_to_tokens(labels[labels >= 0].tolist()))


class CausalOptions(Options):
    packing: bool = False  # rows of several lengths are laid end to end without seeing each other, and not padded
    train_on_prompts: bool = False  # prompts, and what users say, are learned too


class CausalLM(BlockRecipe):
    """The next token of a ``text``, of a ``completion`` after its ``prompt``, or of the assistant's ``messages``.

    In the latter two only the answers count in the loss, unless ``train_on_prompts`` is set.
    """

    task = "causal-lm"
    tag = "text-generation"
    auto = AutoModelForCausalLM
    options_class = CausalOptions
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
        rows = TextRecipe.encode(self, dataset)
        warn_of_unlearned_end(rows.values("labels"), self.reader.eos_token_id)
        return rows

    def encode_rows(self, dataset: TableDataset) -> Iterable[Row]:
        """Prompts or chats as tokens, and the tokens of the answers as labels."""
        tokens, limit = self.chat if self.kind == "messages" else self.answered_prompt, self.limit
        for index, row in enumerate(dataset):
            ids, is_answer = tokens(row)
            self.truncated += len(ids) > limit
            ids, is_learned = ids[:limit], [learned or self.options.train_on_prompts for learned in is_answer]
            labels = [token if learned else IGNORED for token, learned in zip(ids, is_learned)]
            if all(label == IGNORED for label in labels[1:]):
                raise InputError("there is no answer to learn from.", path=dataset.place(index), hint=NO_ANSWER)
            yield {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}

    def chat(self, row: Row) -> tuple[list[int], list[int]]:
        """The tokens of a chat, and which of them are the assistant's."""
        messages = row[self.found["messages"]]
        options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        encoded = self.reader.apply_chat_template(messages, **options)
        return encoded["input_ids"], encoded["assistant_masks"]

    def answered_prompt(self, row: Row) -> tuple[list[int], list[int]]:
        """The tokens of a prompt and its completion, and which of them are the completion's."""
        prompt = self.reader(row[self.found["prompt"]])["input_ids"]
        completion = self.reader(row[self.found["completion"]], add_special_tokens=False)["input_ids"]
        ends = [] if self.reader.eos_token_id is None else [self.reader.eos_token_id]
        prompt = prompt[:-1] if ends and prompt[-1:] == ends else prompt
        answer = [*completion, *ends]
        return [*prompt, *answer], [0] * len(prompt) + [1] * len(answer)

    def collator(self) -> Any:
        if self.options.packing:
            return DataCollatorWithFlattening()
        if self.kind == "text":
            return DataCollatorForLanguageModeling(self.reader, mlm=False)
        return DataCollatorForTokenClassification(self.reader)

    def arguments(self, rows: int) -> dict[str, Any]:
        if not self.options.packing:
            return super().arguments(rows)
        return {"train_sampling_strategy": "token_budget", "max_tokens_per_batch": max(PACKED_TOKENS, self.limit)}


def blocks_of(tokens: Iterable[Tokens], size: int) -> Iterator[list[int]]:
    """Tokens laid end to end, in blocks of ``size``; the last one may be shorter, but is not a single token."""
    waiting, count = list[Tokens](), 0
    for part in tokens:
        waiting.append(part)
        count += len(part)
        if count >= size:
            whole = np.concatenate(waiting)
            end = count - count % size
            yield from whole[:end].reshape(-1, size).tolist()
            waiting, count = [whole[end:]], count % size
    if count > 1:
        yield np.concatenate(waiting).tolist()


def tokens_of(reader: Any, parts: Iterable[str]) -> Iterator[Tokens]:
    """The tokens of a text that comes in parts.

    Long texts are encoded in windows that overlap. In the midst of what two windows share, the later one takes over, at a
    token from which on they agree. Where they agree nowhere, the text is cut at the end of the earlier one.
    """
    ids = starts = np.zeros(0, np.int64)
    if not reader.is_fast:  # such tokenizers do not tell where tokens begin
        yield np.array(reader("".join(parts), add_special_tokens=False, verbose=False)["input_ids"], np.int32)
        return
    for place, text in _windows(parts):
        new = _encoded(reader, text, place)
        if place:
            own, other = _meeting((ids, starts), new, place + OVERLAP // 2)
            if own is None:
                new, other = _encoded(reader, text[OVERLAP:], place + OVERLAP), 0
            yield ids[:own]
            new = new[0][other:], new[1][other:]
        ids, starts = new
    yield ids


def _windows(parts: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Windows over a text, each with the place at which it begins."""
    text, place = "", 0
    for part in parts:
        text += part
        while len(text) > WINDOW:
            yield place, text[:WINDOW]
            text, place = text[WINDOW - OVERLAP :], place + WINDOW - OVERLAP
    yield place, text


def _encoded(reader: Any, text: str, place: int) -> Encoded:
    """The tokens of a text that begins at a place of a longer one, and the places at which they begin."""
    encoded = reader(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
    starts = np.array([start for start, _ in encoded["offset_mapping"]], np.int64)
    return np.array(encoded["input_ids"], np.int32), starts + place


def _meeting(before: Encoded, after: Encoded, middle: int) -> tuple[int | None, int]:
    """The tokens of two windows, by number, from which on they agree, behind a place that both have read."""
    shared = np.intersect1d(before[1], after[1])
    for place in shared[shared >= middle]:
        own, other = (int(np.searchsorted(starts, place)) for _, starts in (before, after))
        pairs = [(one[own : own + AGREED], two[other : other + AGREED]) for one, two in zip(before, after)]
        if all(np.array_equal(one, two) for one, two in pairs):
            return own, other
    return None, 0
