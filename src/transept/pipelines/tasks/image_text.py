"""Texts written about pictures, or about nothing but text, by models that read both (Liu et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from transept.core.auto import AutoModelForImageTextToText
from transept.errors import InputError, InputTypeError, TranseptError
from transept.generation.generate import Generates
from transept.pipelines.batching import Sample, attempt
from transept.pipelines.tasks.generation import GenerationOptions, GenerationPipeline, goes_on, is_chat
from transept.pipelines.text import padded
from transept.preprocess.processor import Processor
from transept.preprocess.workers import in_order

# What a row has for each token, and what a padded place has there; of ids that is the padding id.
_BY_TOKEN = {"input_ids": 0, "attention_mask": 0, "mm_token_type_ids": 0, "token_type_ids": 0}


class ImageTextOptions(GenerationOptions):
    """Options of ``image-text-to-text``.

    Args:
        return_full_text: answer with the prompt (for a chat, its messages) before what was written; ``True`` when absent.
        continue_final_message: go on with a chat's last message; when absent, where that is the assistant's.
        processor_kwargs: options of the processor's call.
    """

    return_full_text: bool | None = None
    continue_final_message: bool | None = None
    processor_kwargs: Mapping[str, Any] = field(default_factory=dict)


class ImageTextToTextPipeline(GenerationPipeline):
    """``[{"input_text": ..., "generated_text": ...}]`` for a text with its pictures or a chat, one entry a returned sequence.

    Inputs are pictures with ``text``, in which each has a placeholder; mappings with ``images`` and ``text``; or chats, whose
    messages hold their pictures. ``generate_kwargs`` are settings of generation, and ``stop_sequence`` is what ends a text.
    """

    task, auto, options_class = "image-text-to-text", AutoModelForImageTextToText, ImageTextOptions
    components = ("processor",)
    processor: Any

    def check_model(self) -> None:
        if not isinstance(self.processor, Processor) or not {"image_processor", "tokenizer"} <= {*self.processor.parts}:
            kind = type(self.processor).__name__
            raise InputTypeError(f"the task {self.task!r} needs a processor of pictures and texts, but got {kind}.")
        self.tokenizer = self.processor.tokenizer
        self.need(isinstance(self.model, Generates), "writes text")

    def with_options(self, given: Mapping[str, Any]) -> Any:
        given = dict(given)
        settings = dict(given.pop("generate_kwargs", None) or {})
        if both := settings.keys() & given.keys():
            raise InputError(f"{min(both)!r} was passed twice, in `generate_kwargs` too.", hint="Pass it once.")
        if given.get("return_tensors") and given.get("return_full_text") is not None:
            raise InputError("`return_full_text` and `return_tensors` exclude each other.", hint="Pass one of them.")
        return super().with_options(given | settings)

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Write about pictures.

        Args:
            images: a picture or a list of them; or inputs as mappings or chats, then without ``text``.
            text: a text; several texts are several inputs, each with the next pictures, as many as it has placeholders.
            options: those of every pipeline, and the task's.

        Raises:
            InputError: pictures without a text, pictures beside a chat, or other numbers of pictures than placeholders.
        """
        if text is None:
            if images is None or not (_holds_texts(images) or hasattr(images, "__next__")):
                raise InputError("there is no text to go on from.", hint="Pass `text` beside the pictures, or a chat.")
            return super().__call__(images, **options)
        if images is None or is_chat(text) or (isinstance(text, list | tuple) and text and is_chat(text[0])):
            if images is not None:
                hint = 'Put each into a message: {"type": "image", "image": ...}.'
                raise InputError("`images` were passed beside a chat.", hint=hint)
            return super().__call__(text, **options)
        if isinstance(text, str):
            return super().__call__({"images": images, "text": text}, **options)
        answers = super().__call__(self._shared(images, text), **options)
        return [entry for answer in answers for entry in answer] if isinstance(answers, list) else answers

    def _shared(self, images: Any, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Texts with their pictures: a list for each, or one after the other by the numbers of placeholders."""
        pictures = list(images) if isinstance(images, list | tuple) else [images]
        if len(pictures) == len(texts):
            return [{"images": own, "text": text} for own, text in zip(pictures, texts, strict=True)]
        token, found, at = self.processor.placeholders.get("images", ""), [], 0
        for text in texts:
            count = text.count(token) if token else 1
            found.append({"images": pictures[at : at + count], "text": text})
            at += count
        if at != len(pictures):
            raise InputError(f"{len(texts)} texts have {at} placeholders, but there are {len(pictures)} pictures.")
        return found

    def is_one(self, inputs: Any) -> bool:
        return super().is_one(inputs) or is_chat(inputs)

    def prepare(self, items: Sequence[Any], options: Any) -> Sequence[list[Sample] | TranseptError]:
        made = in_order(lambda item: attempt(self.read, item, options), items, "input", parallel=False)
        if options.streamer is not None:
            for number, rows in enumerate(made):
                for row in rows if isinstance(rows, list) else ():
                    row.group = number
        return made

    def read(self, item: Any, options: Any) -> list[Sample]:
        """The row of a text or chat with its pictures."""
        more = {"return_tensors": "pt", **options.processor_kwargs}
        if is_chat(item):
            going_on = goes_on(item, options)
            how = {"add_generation_prompt": not going_on, "continue_final_message": going_on}
            made = self.processor.apply_chat_template(item, **how, tokenize=True, return_dict=True, processor_kwargs=more)
        elif isinstance(item, Mapping):
            if not isinstance(text := item.get("text"), str):
                raise InputTypeError(f"an input must have a `text`, but has {sorted(map(str, item))}.")
            pictures = item.get("images", item.get("image"))
            empty = isinstance(pictures, list | tuple) and not pictures
            made = self.processor(images=None if empty else pictures, text=[text], **more)
        elif isinstance(item, str):
            made = self.processor(text=[item], **more)
        else:
            raise InputTypeError(f"an input is a text, a chat, or a mapping of both, but this is {type(item).__name__}.")
        inputs = dict(made)
        # Pictures of several rows are one batch where they are of one size.
        group = tuple(
            (name, value.shape[1:]) for name, value in inputs.items() if name not in _BY_TOKEN and hasattr(value, "shape")
        )
        return [Sample(inputs, int(inputs["input_ids"].shape[1]), group)]

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name in samples[0].inputs:
            values = [sample.inputs[name] for sample in samples]
            if name in _BY_TOKEN:
                filler = self.settings(self.options)["pad_token_id"] if name == "input_ids" else _BY_TOKEN[name]
                found[name] = padded([value[0].tolist() for value in values], filler, self.model.device, left=True)
            else:
                joined = torch.cat([torch.as_tensor(value) for value in values])
                kind = self.model.dtype if joined.is_floating_point() and joined.ndim > 1 else joined.dtype
                found[name] = joined.to(self.model.device, kind)
        return found

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        return self.generate(self.collate(samples), options)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        prompt, asked = samples[0].inputs["input_ids"][0].tolist(), _text(item)
        if options.return_tensors:
            return [{"input_text": asked, "generated_token_ids": prompt + ids} for ids in results[0]]
        read = len(self.text(prompt, options))
        texts = [self.text(prompt + ids, options)[read:] for ids in results[0]]
        full = options.return_full_text is not False
        return [{"input_text": asked, "generated_text": _behind(item, text, options) if full else text} for text in texts]


def _holds_texts(inputs: Any) -> bool:
    """Whether inputs bring their texts with them: mappings and chats, and lists of those."""
    if isinstance(inputs, Mapping) or is_chat(inputs):
        return True
    return isinstance(inputs, list | tuple) and bool(inputs) and all(isinstance(one, Mapping) or is_chat(one) for one in inputs)


def _text(item: Any) -> Any:
    return item["text"] if isinstance(item, Mapping) else item


def _behind(item: Any, text: str, options: Any) -> Any:
    """The prompt with what was written behind it."""
    if not is_chat(item):
        return _text(item) + text
    if not goes_on(item, options):
        return [*item, {"role": "assistant", "content": text}]
    *before, last = item
    if isinstance(last["content"], str):
        return [*before, {**last, "content": last["content"] + text}]
    *parts, end = last["content"]
    return [*before, {**last, "content": [*parts, {**end, "text": end["text"] + text}]}]
