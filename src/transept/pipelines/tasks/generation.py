"""Texts and chats written on by a model, and texts from texts by encoder–decoders.

What prompts have in common, such as one system prompt, is read once, and its KV cache serves them all.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import takewhile
from typing import Any, ClassVar

import torch

from transept.core.auto import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transept.errors import InputError, InputTypeError, TranseptError
from transept.generation.config import GenerationConfig
from transept.generation.generate import Generates
from transept.kinds.seq2seq import Stack
from transept.kinds.text import TextBackbone
from transept.layers.caches.cache import DynamicCache
from transept.layers.caches.layer import KeyValues
from transept.layers.rotary import Rotary
from transept.pipelines.base import Options, TaskPipeline, choice, count
from transept.pipelines.batching import Sample, flat
from transept.pipelines.text import Text, TextPipeline, check_text, padded

# New tokens where neither the caller nor the checkpoint says.
DEFAULT_NEW_TOKENS = 256
# A shorter prefix is not worth a pass of its own.
MIN_PREFIX = 32


class GenerationOptions(Options):
    """Options of tasks that generate text; any setting of ``GenerationConfig`` is one too.

    ``generation_config`` gives those that it states, and ``stop_sequence`` is ``stop_strings``.

    Args:
        return_tensors: answer with ids in place of text.
        clean_up_tokenization_spaces: take out spaces before marks; the tokenizer's own rule when absent.
        seed: where tokens are drawn, each input draws by itself, from generators with this seed and the next ones.
        streamer: gets each prompt and each token, such as a ``TextStreamer``; inputs are then answered one by one.
        generation: settings of ``GenerationConfig`` by name.
    """

    return_tensors: bool = False
    clean_up_tokenization_spaces: bool | None = None
    seed: int | None = count(least=0)
    streamer: Any = None
    generation: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.streamer is not None and not all(callable(getattr(self.streamer, name, None)) for name in ("put", "end")):
            problem = f"`streamer` must have the methods put and end, but is {type(self.streamer).__name__}."
            raise InputTypeError(problem, hint="Pass a TextStreamer.")


class WritingPipeline(TaskPipeline[Any]):
    """A task whose model generates text, whatever it reads."""

    tokenizer: Any

    def check_model(self) -> None:
        super().check_model()
        self.need(isinstance(self.model, Generates), "writes text")

    def prepare(self, items: Sequence[Any], options: Any) -> Sequence[list[Sample] | TranseptError]:
        made = super().prepare(items, options)  # type: ignore[safe-super]  # of the kind of input that it is joined to
        if options.streamer is not None:
            for index, sample in enumerate(flat(made)):
                sample.group = index
        return made

    def write(self, rows: int, batch: Mapping[str, Any], options: Any) -> torch.Tensor:
        """What the model writes of a batch of so many rows: ids, as ``generate`` gives them."""
        settings, resolved = self.settings(options), self.resolved(options)
        if options.seed is not None and resolved.do_sample:
            settings["seed"] = [*range(options.seed, options.seed + (resolved.num_return_sequences or 1))] * rows
        generated: torch.Tensor = self.model.generate(**batch, **settings, streamer=options.streamer)
        return generated

    def with_options(self, given: Mapping[str, Any]) -> Any:
        given, config, own = self.unnested(given), self.model.generation_config, super().option_names()
        if (stated := given.pop("generation_config", None)) is not None:
            given = {name: value for name, value in stated.to_diff_dict().items() if config.knows(name)} | given
        given |= {"stop_strings": given.pop("stop_sequence")} if "stop_sequence" in given else {}
        settings = {name: value for name, value in given.items() if name not in own and config.knows(name)}
        rest = {name: value for name, value in given.items() if name not in settings}
        rest["generation"] = {**self.options.generation, **rest.get("generation", {}), **settings}
        return super().with_options(rest)

    def option_names(self) -> list[str]:
        return [*super().option_names(), *(each.name for each in fields(self.model.generation_config))]

    def resolved(self, options: Any) -> GenerationConfig:
        found: GenerationConfig = copy.deepcopy(self.model.generation_config)
        found.update(**options.generation)
        return found

    def settings(self, options: Any) -> dict[str, Any]:
        """Settings for ``generate``: a length and a padding id are always among them."""
        config, chosen = self.model.generation_config, dict(options.generation)
        if not any(chosen.get(name) or getattr(config, name) for name in ("max_new_tokens", "max_length")):
            chosen["max_new_tokens"] = DEFAULT_NEW_TOKENS
        ends = chosen.get("eos_token_id", config.eos_token_id)
        pads = (chosen.get("pad_token_id"), config.pad_token_id, self.tokenizer.pad_token_id, ends, 0)
        pad = next(pad for pad in pads if pad is not None)
        chosen["pad_token_id"] = pad[0] if isinstance(pad, list) else pad
        return chosen | {"return_dict_in_generate": False, "tokenizer": self.tokenizer}

    def text(self, ids: list[int], options: Any) -> str:
        """Ids as text, without special tokens unless an option asks for them."""
        cleaned = options.clean_up_tokenization_spaces
        more = {} if cleaned is None else {"clean_up_tokenization_spaces": cleaned}
        return str(self.tokenizer.decode(ids, getattr(options, "skip_special_tokens", True), **more))


class GenerationPipeline(WritingPipeline, TextPipeline):
    """A task whose model goes on from texts, or writes others."""

    def generate(self, batch: dict[str, Any], options: Any) -> list[list[list[int]]]:
        """The ids that follow each row of a batch, one list for each returned sequence."""
        rows, generated = batch["input_ids"].shape[0], self.write(batch["input_ids"].shape[0], batch, options)
        start = 0 if self.model.config.is_encoder_decoder else batch["input_ids"].shape[1]
        return list(generated[:, start:].reshape(rows, -1, generated.shape[1] - start).tolist())


class Text2TextOptions(GenerationOptions):
    """Options of tasks from text to text; see also :class:`GenerationOptions`, whose ``max_length`` is that of the answer.

    Args:
        truncation: cut texts that are longer than the model reads, which are an error otherwise.
        prefix: put before each text, as checkpoints of several tasks need it; the checkpoint's own when absent.
    """

    truncation: bool = False
    prefix: str | None = None


class TranslationOptions(Text2TextOptions):
    """Options of ``translation``.

    Args:
        src_lang, tgt_lang: the languages, by the codes of the checkpoint (``en_XX``) where it knows several; those of the
            task's name (``translation_en_to_de``) when absent.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None


class Text2TextGenerationPipeline(GenerationPipeline):
    """``[{"generated_text": ...}]`` for a text, one entry a returned sequence, by an encoder–decoder."""

    task, auto, options_class = "text2text-generation", AutoModelForSeq2SeqLM, Text2TextOptions
    noun: ClassVar[str] = "generated"  # what answers are called

    def check_model(self) -> None:
        super().check_model()
        self.need(self.model.config.is_encoder_decoder, "has an encoder and a decoder")

    def checkpoint_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What ``task_specific_params`` say of the task."""
        known = self.model.config.extra.get("task_specific_params")
        found = known.get(self.name(given)) if isinstance(known, Mapping) else None
        options, knows = found if isinstance(found, Mapping) else {}, self.model.generation_config.knows
        return {name: value for name, value in options.items() if name == "prefix" or knows(name)}

    def name(self, options: Mapping[str, Any]) -> str:
        return self.task

    def read(self, item: Any, options: Any) -> list[Text]:
        return [((options.prefix or "") + check_text(item), None)]

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        return self.generate(self.collate(samples), options)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        if options.return_tensors:
            return [{f"{self.noun}_token_ids": ids} for ids in results[0]]
        return [{f"{self.noun}_text": self.text(ids, options)} for ids in results[0]]


class SummarizationPipeline(Text2TextGenerationPipeline):
    """``[{"summary_text": ...}]`` for a text; see :class:`Text2TextGenerationPipeline`."""

    task, noun = "summarization", "summary"


class TranslationPipeline(Text2TextGenerationPipeline):
    """``[{"translation_text": ...}]`` for a text; see :class:`Text2TextGenerationPipeline`."""

    task, noun, options_class = "translation", "translation", TranslationOptions

    def name(self, options: Mapping[str, Any]) -> str:
        return f"translation_{options.get('src_lang')}_to_{options.get('tgt_lang')}"

    def check_options(self, options: Any) -> None:
        for language in (options.src_lang, options.tgt_lang) if self.multilingual else ():
            if language is not None:
                self.code(language)

    def settings(self, options: Any) -> dict[str, Any]:
        forced = self.multilingual and options.tgt_lang is not None
        return super().settings(options) | ({"forced_bos_token_id": self.code(options.tgt_lang)} if forced else {})

    @property
    def multilingual(self) -> bool:
        return hasattr(self.tokenizer, "src_lang")

    def code(self, language: str) -> int:
        """The token of a language; an ``InputError`` where the checkpoint does not know it."""
        found = self.tokenizer.convert_tokens_to_ids(getattr(self.tokenizer, "token_of", str)(language))
        if found is None or found == self.tokenizer.unk_token_id:
            raise InputError(f"the model knows no language {language!r}.", hint="Use its own codes, such as 'en_XX'.")
        return int(found)


class TextGenerationOptions(GenerationOptions):
    """Options of ``text-generation``; ``tokenizer_encode_kwargs`` is a mapping of those that are the tokenizer's.

    Args:
        return_full_text: answer with the prompt (for a chat, its messages) before what was written; ``True`` when absent.
        prefix: put before each text.
        handle_long_generation: ``"hole"`` drops the beginning of prompts that leave no room; they are an error otherwise.
        tools, documents: passed to the chat template.
        continue_final_message: go on with a chat's last message; when absent, where that is the assistant's.
        add_special_tokens: as the tokenizer does it; ``True`` when absent.
        truncation: cut prompts at ``max_length`` tokens, or at what tokenizer and model allow.
        padding: taken for the reference's sake; it has no effect.
        skip_special_tokens: whether special tokens are left out of the text.
    """

    return_full_text: bool | None = None
    prefix: str = ""
    skip_special_tokens: bool = True
    handle_long_generation: str | None = choice(None, "hole")
    tools: list[Any] | None = None
    documents: list[dict[str, str]] | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    truncation: bool | str | None = choice(None, True, False, "longest_first", "only_first")
    padding: bool | str | None = None


class TextGenerationPipeline(GenerationPipeline):
    """``[{"generated_text": ...}]`` for a text or a chat, one entry a returned sequence."""

    task, auto, options_class = "text-generation", AutoModelForCausalLM, TextGenerationOptions
    nested, first = "tokenizer_encode_kwargs", "text_inputs"

    def is_one(self, inputs: Any) -> bool:
        return super().is_one(inputs) or is_chat(inputs)

    def prepare(self, items: Sequence[Any], options: Any) -> Sequence[list[Sample] | TranseptError]:
        """One row for each prompt; a common prefix is read once, where one cache may serve several prompts."""
        made = super().prepare(items, options)
        if len(made) > 1 and options.streamer is None:
            settings = self.resolved(options)
            plain = settings.cache_implementation is None and settings.use_cache is not False
            if plain and settings.mode in ("greedy", "sample", "beam") and reusable(self.model.body):
                share_prefixes(flat(made))
        return made

    def read(self, item: Any, options: Any) -> Sequence[Any]:
        if not is_chat(item):
            return [options.prefix + check_text(item)]
        going_on = goes_on(item, options)
        how = {"add_generation_prompt": not going_on, "continue_final_message": going_on, "return_dict": False}
        cut = {"truncation": True, "max_length": self.cutting(options)[1]} if options.truncation else {}
        given = {"tools": options.tools, "documents": options.documents}
        return [self.tokenizer.apply_chat_template(item, **given, **how, **cut)]

    def cutting(self, options: Any) -> tuple[str | None, int]:
        return None, int(options.generation.get("max_length") or self.max_length)

    def encode(self, texts: Sequence[Any], options: Any) -> Sequence[Any]:
        special, limit = options.add_special_tokens is not False, self.cutting(options)[1] if options.truncation else None
        plain = [text for text in texts if isinstance(text, str)]
        ids = iter(self.tokenizer.encode_ids(plain, add_special_tokens=special, max_length=limit))
        return [Sample.of(next(ids) if isinstance(text, str) else text) for text in texts]

    def rows(self, encoded: Any, options: Any) -> list[Sample]:
        """The prompt, without its beginning where that must make room (``InputError`` where there is none)."""
        if options.handle_long_generation != "hole":
            return [encoded]
        new = int(self.settings(options).get("max_new_tokens") or DEFAULT_NEW_TOKENS)
        if new >= self.max_length:
            problem = f"{new} new tokens leave no room for a prompt in {self.max_length} positions."
            raise InputError(problem, hint="Lower `max_new_tokens`.")
        return [Sample.of(encoded.inputs["input_ids"][-(self.max_length - new) :])]

    def row(self, item: Any, options: Any = None) -> Sample:
        """The row of a text or a chat; an ``InputError`` where there is nothing to go on from, or no room for it."""
        options = options or self.options
        return self.all_rows(self.encode(self.read(item, options), options), options)[0]

    def tensor(self, ids: list[int]) -> torch.Tensor:
        """A row alone as (1, T), for ``model.generate`` and ``model.stream``."""
        return torch.tensor([ids], device=self.model.device)

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        """For each row, the ids of each of its returned sequences, without the prompt, behind which they are written."""
        rows, device = [sample.inputs["input_ids"] for sample in samples], self.model.device
        batch: dict[str, Any] = {"input_ids": padded(rows, self.settings(options)["pad_token_id"], device, left=True)}
        batch["attention_mask"] = padded([[1] * len(row) for row in rows], 0, device, left=True)
        if isinstance(prefix := samples[0].group, PrefixCache):
            cache = prefix.read(self.model, len(samples))
            batch["past_key_values"] = cache if len(samples) > 1 else cache.spread([0])  # a row alone would write to it
        return self.generate(batch, options)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        prompt: list[int] = samples[0].inputs["input_ids"]
        full = options.return_full_text is not False
        if options.return_tensors:
            return [{"generated_token_ids": prompt + ids if full else ids} for ids in results[0]]
        # Decoded behind the prompt, since a first token alone may lose its space.
        read = len(self.text(prompt, options))
        texts = [self.text(prompt + ids, options)[read:] for ids in results[0]]
        return [{"generated_text": self._behind(item, text, options) if full else text} for text in texts]

    def _behind(self, item: Any, text: str, options: Any) -> Any:
        if not is_chat(item):
            return item + text
        if goes_on(item, options):
            return [*item[:-1], {**item[-1], "content": item[-1]["content"] + text}]
        return [*item, {"role": "assistant", "content": text}]


def goes_on(chat: Any, options: Any) -> bool:
    """Whether a chat's last message is to be continued."""
    asked: bool | None = options.continue_final_message
    return chat[-1]["role"] == "assistant" if asked is None else asked


def is_chat(item: Any) -> bool:
    return isinstance(item, list | tuple) and bool(item) and all(isinstance(each, Mapping) and "role" in each for each in item)


@dataclass(eq=False)
class PrefixCache:
    """The first tokens of several prompts, and their KV cache until the last of so many (``left``) prompts is asked for."""

    ids: list[int]
    left: int
    cache: DynamicCache | None = None

    def read(self, model: Any, prompts: int) -> DynamicCache:
        """The cache of one row, for so many prompts."""
        if (cache := self.cache) is None:
            cache = DynamicCache()
            model(torch.tensor([self.ids], device=model.device), past_key_values=cache, use_cache=True, logits_to_keep=1)
        self.left -= prompts
        self.cache = cache if self.left > 0 else None
        return cache


def reusable(backbone: Any) -> bool:
    """Whether the cache of a prefix is the same wherever that stands in a batch and whatever follows it."""
    plain = isinstance(backbone, TextBackbone) and backbone.causal and backbone.keeps == (KeyValues,)
    if not plain or isinstance(backbone, Stack):  # half of an encoder–decoder counts padding too
        return False
    return not any(isinstance(part, Rotary) and part.frequencies.by_length for part in backbone.modules())


def share_prefixes(samples: Sequence[Sample]) -> None:
    """Give prompts with a common prefix its :class:`PrefixCache`, which keeps them in batches of their own."""
    for members in group_by_prefix([sample.inputs["input_ids"] for sample in samples]):
        rows = [samples[index] for index in members]
        first, last = rows[0].inputs["input_ids"], rows[-1].inputs["input_ids"]
        # The model must have something to go on from, also where a prompt is the prefix of another.
        same = min(common_prefix(first, last), min(map(len, rows)) - 1)
        prefix = PrefixCache(first[:same], len(rows))
        for row in rows:
            row.group, row.length = prefix, row.length - same


def group_by_prefix(prompts: Sequence[list[int]]) -> list[list[int]]:
    """Groups of two or more prompts, as indices in the prompts' order, with a common prefix of ``MIN_PREFIX`` tokens or more.

    A prompt joins those before it only where they lose no more than half of what they have in common.
    """
    order = sorted((index for index, ids in enumerate(prompts) if len(ids) > MIN_PREFIX), key=lambda index: prompts[index])
    groups: list[list[int]] = []
    shared = 0
    for index in order:
        same = common_prefix(prompts[groups[-1][0]], prompts[index]) if groups else 0
        if same < MIN_PREFIX or (len(groups[-1]) > 1 and 2 * same < shared):
            groups.append([])
        groups[-1].append(index)
        shared = same
    return [group for group in groups if len(group) > 1]


def common_prefix(one: list[int], other: list[int]) -> int:
    """How many tokens two prompts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
