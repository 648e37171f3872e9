"""Language models: masked tokens of running text, and the next token of text, of completions, or of chats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.config.fields import Share
from transept.core.auto import AutoModelForCausalLM, AutoModelForMaskedLM
from transept.errors import InputError, refuse
from transept.objectives.classification import IGNORED
from transept.tables.dataset import Row, TableDataset
from transept.training.collate.language import DataCollatorForLanguageModeling, DataCollatorForWholeWordMask
from transept.training.collate.padding import DataCollatorForTokenClassification, DataCollatorWithFlattening
from transept.training.data.checks import warn_of_unlearned_end
from transept.training.data.columns import TEXT, Column, is_messages, is_text
from transept.training.recipes.base import Options, TextRecipe, stored

MESSAGES = Column("messages", ("messages", "conversation", "conversations"), is_messages)
PROMPT = Column("prompt", ("prompt", "instruction", "input"), is_text)
COMPLETION = Column("completion", ("completion", "response", "answer", "output"), is_text)
PACKED_TOKENS = 2048
UNMARKED = "A chat template marks answers by {% generation %}; or pass train_on_prompts=true, or a larger max_length."
WINDOW = 2**18  # characters of a text that are encoded at once
OVERLAP = 2**12  # characters that two windows share
AGREEING = 8  # tokens on which two windows agree where the later one takes over
Tokens = NDArray[Any]


class BlockRecipe(TextRecipe):
    """A recipe of language models over running text: all texts, with the end of text between them, in blocks."""

    columns: tuple[Column, ...] = (TEXT,)
    sample_by = "part"
    splits_encoded = True  # one long text has no rows to hold out
    batch_size = 16
    needs_pad_token = True
    has_perplexity = True
    special_tokens = 0  # around a block

    def encode(self, dataset: TableDataset) -> TableDataset:
        blocks = blocks_of(self.tokens_of_texts(dataset), self.limit - self.special_tokens)
        if self.special_tokens:
            blocks = map(self.processor.build_inputs_with_special_tokens, blocks)
        rows = stored(({"input_ids": ids} for ids in blocks), dataset)
        refuse(not len(rows), "the texts hold fewer than two tokens.", path=dataset.path)
        return rows

    def tokens_of_texts(self, dataset: TableDataset) -> Iterator[Tokens]:
        """The tokens of all texts, some at a time, with the end of text behind each where there are several."""
        column, end = self.column_names["text"], self.processor.eos_token_id
        if dataset.is_one_text:
            yield from tokens_of(self.processor, dataset.values(column))
            return
        ends = np.array([end] if end is not None and len(dataset) > 1 else [], np.int32)
        for chunk in dataset.chunks():
            texts = chunk.column(column)
            short = [text if len(text) <= WINDOW else "" for text in texts]
            encoded = self.processor(short, add_special_tokens=False, verbose=False)["input_ids"]
            for text, ids in zip(texts, encoded):
                yield from [np.array(ids, np.int32)] if len(text) <= WINDOW else tokens_of(self.processor, [text])
                yield ends


class MaskedOptions(Options):
    mlm_probability: Share = 0.15  # of the tokens, which are to be found
    whole_words: bool = False  # whether all pieces of a word are masked together


class MaskedLM(BlockRecipe):
    """Blocks of text, of which some tokens are masked and are to be found (Devlin et al. 2019)."""

    task = "masked-lm"
    pipeline_tag = "fill-mask"
    model_class = AutoModelForMaskedLM
    options_class = MaskedOptions
    has_default_model = True
    special_tokens = 2

    def collator(self) -> Any:
        collator = DataCollatorForWholeWordMask if self.options.whole_words else DataCollatorForLanguageModeling
        return collator(self.processor, mlm_probability=self.options.mlm_probability)

    def describe_labels(self, labels: Any, ids: Any) -> str:
        return " ".join(self.processor.convert_ids_to_tokens(labels[labels >= 0].tolist()))


class CausalOptions(Options):
    packing: bool = False  # rows of several lengths are laid end to end without seeing each other, and not padded
    train_on_prompts: bool = False  # whether more is learned than answers: prompts, and what users say


class CausalLM(BlockRecipe):
    """The next token of a ``text``, of a ``completion`` after its ``prompt``, or of the assistant's ``messages``."""

    task = "causal-lm"
    pipeline_tag = "text-generation"
    model_class = AutoModelForCausalLM
    options_class = CausalOptions

    def inspect(self, dataset: TableDataset, config: Any = None) -> str | None:
        names = {name.lower() for name in dataset.column_names}
        names |= {role for role, name in self.chosen_columns.items() if name}
        if names & set(MESSAGES.names):
            self.columns = (MESSAGES,)
        elif names & set(PROMPT.names) and names & set(COMPLETION.names):
            self.columns = (PROMPT, COMPLETION)
        self.splits_encoded = self.columns == (TEXT,)
        return super().inspect(dataset, config)

    def set_model(self, processor: Any, model: Any) -> None:
        super().set_model(processor, model)
        if self.options.packing:
            most = max(PACKED_TOKENS, self.limit)
            self.trainer_settings = {"train_sampling_strategy": "token_budget", "max_tokens_per_batch": most}

    def encode(self, dataset: TableDataset) -> TableDataset:
        if self.splits_encoded:
            return super().encode(dataset)
        rows = TextRecipe.encode(self, dataset)
        warn_of_unlearned_end(rows.values("labels"), self.processor.eos_token_id)
        return rows

    def encode_rows(self, dataset: TableDataset) -> Iterable[Row]:
        """Prompts or chats as tokens, and the tokens of the answers as labels."""
        tokens, limit = self.chat if self.columns == (MESSAGES,) else self.prompt_and_completion, self.limit
        for index, row in enumerate(dataset):
            ids, is_answer = tokens(row)
            self.truncated += len(ids) > limit
            is_learned = [answer or self.options.train_on_prompts for answer in is_answer]
            labels = [token if learned else IGNORED for token, learned in zip(ids[:limit], is_learned)]
            if all(label == IGNORED for label in labels[1:]):
                raise InputError("there is no answer to learn from.", path=dataset.place(index), hint=UNMARKED)
            yield {"input_ids": ids[:limit], "attention_mask": [1] * len(labels), "labels": labels}

    def chat(self, row: Row) -> tuple[list[int], list[int]]:
        """The tokens of a chat, and which of them are the assistant's."""
        messages = row[self.column_names["messages"]]
        options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        encoded = self.processor.apply_chat_template(messages, **options)
        return encoded["input_ids"], encoded["assistant_masks"]

    def prompt_and_completion(self, row: Row) -> tuple[list[int], list[int]]:
        """The tokens of a prompt and its completion, and which of them are the completion's."""
        prompt = self.processor(row[self.column_names["prompt"]])["input_ids"]
        completion = self.processor(row[self.column_names["completion"]], add_special_tokens=False)["input_ids"]
        ends = [] if self.processor.eos_token_id is None else [self.processor.eos_token_id]
        prompt = prompt[:-1] if ends and prompt[-1:] == ends else prompt
        answer = [*completion, *ends]
        return [*prompt, *answer], [0] * len(prompt) + [1] * len(answer)

    def collator(self) -> Any:
        if self.options.packing:
            return DataCollatorWithFlattening()
        if self.splits_encoded:
            return DataCollatorForLanguageModeling(self.processor, mlm=False)
        return DataCollatorForTokenClassification(self.processor)


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


def tokens_of(tokenizer: Any, parts: Iterable[str]) -> Iterator[Tokens]:
    """The tokens of a text that comes in parts.

    Long texts are encoded in windows that overlap. In the middle of what two windows share, the later one takes over,
    at a token from which on they agree. Where they agree nowhere, the text is cut at the end of the earlier one.
    """
    if not tokenizer.is_fast:  # such tokenizers do not tell where tokens begin
        encoded = tokenizer("".join(parts), add_special_tokens=False, verbose=False)
        yield np.array(encoded["input_ids"], np.int32)
        return
    window = np.zeros((2, 0), np.int64)
    for place, text in windows(parts):
        following = encode_window(tokenizer, text, place)
        if place:
            meeting = find_meeting(window, following, place + OVERLAP // 2)
            if meeting is None:
                following = encode_window(tokenizer, text[OVERLAP:], place + OVERLAP)
            end, begin = meeting or (None, 0)
            yield window[0, :end]
            following = following[:, begin:]
        window = following
    yield window[0]


def windows(parts: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Windows over a text, each with the place at which it begins."""
    text, place = "", 0
    for part in parts:
        text += part
        while len(text) > WINDOW:
            yield place, text[:WINDOW]
            text, place = text[WINDOW - OVERLAP :], place + WINDOW - OVERLAP
    yield place, text


def encode_window(tokenizer: Any, text: str, place: int) -> Tokens:
    """The tokens (2, T) of a text that begins at a place of a longer one: their ids, and where they begin."""
    encoded = tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
    starts = [place + start for start, _ in encoded["offset_mapping"]]
    return np.array([encoded["input_ids"], starts], np.int64)


def find_meeting(before: Tokens, after: Tokens, middle: int) -> tuple[int, int] | None:
    """The tokens of two windows, by number, from which on they agree, behind the middle of what they share."""
    shared = np.intersect1d(before[1], after[1])
    for place in shared[shared >= middle]:
        end, begin = (int(np.searchsorted(window[1], place)) for window in (before, after))
        if np.array_equal(before[:, end : end + AGREEING], after[:, begin : begin + AGREEING]):
            return end, begin
    return None
