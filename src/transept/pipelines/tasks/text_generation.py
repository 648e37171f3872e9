"""Texts and chats written on by a model: ``pipeline("text-generation", model=path)("Once upon a time")``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transept.core.auto import AutoModelForCausalLM
from transept.errors import InputError, TranseptError
from transept.generation.config import GenerationConfig
from transept.pipelines.base import check_choice
from transept.pipelines.batching import Sample
from transept.pipelines.generation import DEFAULT_NEW_TOKENS, GenerationOptions, GenerationPipeline, flat
from transept.pipelines.prefix_cache import PrefixCache, reusable, share_prefixes
from transept.pipelines.text import check_text


@dataclass(frozen=True)
class TextGenerationOptions(GenerationOptions):
    """Options of ``text-generation``; see also :class:`GenerationOptions`.

    Args:
        return_full_text: answer with the prompt (for a chat, its messages) before what was written; ``True`` when absent.
        prefix: put before each text.
        handle_long_generation: ``"hole"`` drops the beginning of prompts that leave no room; they are an error otherwise.
        tools, documents: passed to the chat template.
        continue_final_message: go on with a chat's last message; when absent, where that is the assistant's.
        add_special_tokens: as the tokenizer does it; ``True`` when absent.
        truncation: cut prompts at ``max_length`` tokens, or at what tokenizer and model allow.
        padding: taken for the reference's sake; prompts are padded to the longest of their batch, whatever it says.
    """

    return_full_text: bool | None = None
    prefix: str = ""
    handle_long_generation: str | None = None
    tools: list[Any] | None = None
    documents: list[dict[str, str]] | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    truncation: bool | str | None = None
    padding: bool | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("handle_long_generation", self.handle_long_generation, (None, "hole"))
        check_choice("truncation", self.truncation, (None, True, False, "longest_first", "only_first"))


class TextGenerationPipeline(GenerationPipeline[TextGenerationOptions]):
    """``[{"generated_text": ...}]`` for a text or a chat, one entry a returned sequence."""

    task, auto, options_class = "text-generation", AutoModelForCausalLM, TextGenerationOptions

    def is_one(self, inputs: Any) -> bool:
        return super().is_one(inputs) or is_chat(inputs)

    def prepare(self, items: Sequence[Any], options: TextGenerationOptions) -> Sequence[list[Sample] | TranseptError]:
        """One row for each prompt; a common prefix is read once."""
        made = super().prepare(items, options)
        if len(made) > 1 and options.streamer is None and self._shares(self.resolved(options)):
            share_prefixes(flat(made))
        return made

    def _shares(self, settings: GenerationConfig) -> bool:
        """Whether one cache may serve several prompts."""
        plain = settings.cache_implementation is None and settings.use_cache is not False
        return plain and settings.mode in ("greedy", "sample", "beam") and reusable(self.model)

    def read(self, item: Any, options: TextGenerationOptions) -> Sequence[Any]:
        """The text behind its prefix, or the ids of the chat."""
        return [self._chat_ids(item, options) if is_chat(item) else options.prefix + check_text(item)]

    def check_room(self, texts: Sequence[Any], options: TextGenerationOptions) -> None:
        """Prompts may be as short as one likes."""

    def encode(self, texts: Sequence[Any], options: TextGenerationOptions) -> Sequence[Any]:
        special = True if options.add_special_tokens is None else options.add_special_tokens
        limit = self.limit(options) if options.truncation else None
        plain = [text for text in texts if isinstance(text, str)]
        ids = iter(self.tokenizer.encode_ids(plain, add_special_tokens=special, max_length=limit))
        return [Sample.of(next(ids) if isinstance(text, str) else text) for text in texts]

    def limit(self, options: TextGenerationOptions) -> int:
        """Tokens of a prompt that is cut, at most."""
        return int(options.generation.get("max_length") or self.max_length)

    def rows(self, encoded: Any, options: TextGenerationOptions) -> list[Sample]:
        """The prompt, without its beginning where that must make room.

        Raises:
            InputError: there is no room for any of it.
        """
        if options.handle_long_generation != "hole":
            return [encoded]
        new = int(self.settings(options).get("max_new_tokens") or DEFAULT_NEW_TOKENS)
        if new >= self.max_length:
            raise InputError(
                f"{new} new tokens leave no room for a prompt in {self.max_length} positions.",
                hint="Lower `max_new_tokens`.",
            )
        return [Sample.of(encoded.inputs["input_ids"][-(self.max_length - new) :])]

    def row(self, item: Any, options: TextGenerationOptions | None = None) -> Sample:
        """The row of a text or a chat.

        Raises:
            InputError: nothing to go on from, or no room for it.
        """
        options = options or self.options
        return self._rows(list(self.encode(self.read(item, options), options)), options)[0]

    def tensor(self, ids: list[int]) -> Tensor:
        """A row alone as (1, T), for ``model.generate`` and ``model.stream``."""
        return torch.tensor([ids], device=self.model.device)

    def _chat_ids(self, chat: Any, options: TextGenerationOptions) -> list[int]:
        going_on = self._goes_on(chat, options)
        length = {"truncation": True, "max_length": self.limit(options)} if options.truncation else {}
        found: list[int] = self.tokenizer.apply_chat_template(
            chat,
            tools=options.tools,
            documents=options.documents,
            add_generation_prompt=not going_on,
            continue_final_message=going_on,
            return_dict=False,
            **length,
        )
        return found

    def _goes_on(self, chat: Any, options: TextGenerationOptions) -> bool:
        """Whether a chat's last message is to be continued."""
        asked = options.continue_final_message
        return chat[-1]["role"] == "assistant" if asked is None else asked

    def forward(self, samples: Sequence[Sample], options: TextGenerationOptions) -> Sequence[Any]:
        """For each row, the ids of each of its returned sequences, without the prompt."""
        ids, mask = left_padded(samples, self.settings(options)["pad_token_id"], self.model.device)
        batch: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        if isinstance(prefix := samples[0].group, PrefixCache):
            cache = prefix.read(self.model, len(samples))
            batch["past_key_values"] = cache if len(samples) > 1 else cache.spread([0])  # a row alone would write to it
        return self.generate(batch, options)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: TextGenerationOptions) -> Any:
        prompt: list[int] = samples[0].inputs["input_ids"]
        return [self._told(item, prompt, ids, options) for ids in results[0]]

    def _told(self, item: Any, prompt: list[int], ids: list[int], options: TextGenerationOptions) -> dict[str, Any]:
        full = options.return_full_text is not False
        if options.return_tensors:
            return {"generated_token_ids": prompt + ids if full else ids}
        # Decoded behind the prompt, since a first token alone may lose its space.
        new = self.text(prompt + ids, options)[len(self.text(prompt, options)) :]
        if not full:
            return {"generated_text": new}
        if not is_chat(item):
            return {"generated_text": options.prefix + item + new}
        if self._goes_on(item, options):
            return {"generated_text": [*item[:-1], {**item[-1], "content": item[-1]["content"] + new}]}
        return {"generated_text": [*item, {"role": "assistant", "content": new}]}


def left_padded(samples: Sequence[Sample], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask (B, T): what is written must follow the text, so padding stands before it."""
    rows: list[list[int]] = [sample.inputs["input_ids"] for sample in samples]
    longest = max(map(len, rows))
    ids = [[pad] * (longest - len(row)) + row for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def is_chat(item: Any) -> bool:
    return isinstance(item, list | tuple) and bool(item) and all(isinstance(each, Mapping) and "role" in each for each in item)
