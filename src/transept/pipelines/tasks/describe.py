"""Pictures described in words, and questions about them answered, by models that write.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from transept.core.auto import AutoModelForImageTextToText, AutoModelForVisualQuestionAnswering
from transept.errors import InputError
from transept.generation.prompt import accepted
from transept.pipelines.base import count
from transept.pipelines.batching import Sample
from transept.pipelines.media import ImageOptions, ImagePipeline
from transept.pipelines.tasks.generation import GenerationOptions, WritingPipeline
from transept.pipelines.text import check_text, padded, unexpected

_PAIR = 'Pass pipe(image, "What is this?") or pipe({"image": ..., "question": ...}).'


class ImageToTextOptions(GenerationOptions, ImageOptions):
    """Options of ``image-to-text``, beside those of :class:`GenerationOptions`; ``generate_kwargs`` is a mapping of these.

    Args:
        prompt: what each description begins with, for models that can go on from a text.
    """

    prompt: str | None = None


class PictureWritingPipeline(WritingPipeline, ImagePipeline):
    """A task whose model writes of pictures, with a text beside each of them where the task has one."""

    components: ClassVar[tuple[str, ...]] = ("image_processor", "tokenizer")
    nested = "generate_kwargs"

    @property
    def reads_text(self) -> bool:
        return "input_ids" in accepted(type(self.model).forward)

    def with_text(self, sample: Sample, text: str, **how: Any) -> Sample:
        """A picture's row with the ids of a text."""
        ids: list[int] = self.tokenizer(text, **how)["input_ids"]
        sample.inputs["input_ids"], sample.length = ids, sample.length + len(ids)
        return sample

    def collate(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        batch = super().collate(samples)
        if "input_ids" in samples[0].inputs:
            rows, device = [sample.inputs["input_ids"] for sample in samples], self.model.device
            batch["input_ids"] = padded(rows, self.tokenizer.pad_token_id or 0, device)
            batch["attention_mask"] = padded([[1] * len(ids) for ids in rows], 0, device)
        return batch

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        generated = self.write(len(samples), self.collate(samples), options)
        return list(generated.reshape(len(samples), -1, generated.shape[1]).tolist())


class ImageToTextPipeline(PictureWritingPipeline):
    """``[{"generated_text": str}]`` for a picture, one entry a returned sequence."""

    task, auto, options_class = "image-to-text", AutoModelForImageTextToText, ImageToTextOptions

    def check_options(self, options: Any) -> None:
        if options.prompt is not None and not (isinstance(options.prompt, str) and self.reads_text):
            what = f"`prompt` is {str(options.prompt)[:60]!r}, but {type(self.model).__name__} goes on from no text."
            text = f"`prompt` must be a text, but is {type(options.prompt).__name__}."
            raise InputError(what if isinstance(options.prompt, str) else text, hint="Leave it out.")

    def read(self, item: Any, options: Any) -> list[Sample]:
        (sample,) = super().read(item, options)
        return [sample if options.prompt is None else self.with_text(sample, options.prompt)]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> list[dict[str, Any]]:
        if options.return_tensors:
            return [{"generated_token_ids": ids} for ids in results[0]]
        return [{"generated_text": self.text(ids, options)} for ids in results[0]]


class VisualQuestionOptions(GenerationOptions, ImageOptions):
    """Options of ``visual-question-answering``, beside those of :class:`GenerationOptions`.

    Args:
        top_k: taken for the reference's sake: a model that writes gives as many answers as ``num_return_sequences`` says.
        truncation: cut questions that are longer than the model reads, which are an error otherwise.
        padding: taken for the reference's sake; it has no effect.
    """

    top_k: int = count(5)
    truncation: bool = False
    padding: bool | str | None = None


class VisualQuestionAnsweringPipeline(PictureWritingPipeline):
    """``[{"answer": str}]`` for ``{"image": ..., "question": str}``, one entry a returned sequence."""

    task, auto = "visual-question-answering", AutoModelForVisualQuestionAnswering
    options_class = VisualQuestionOptions

    def check_model(self) -> None:
        super().check_model()
        self.need(self.reads_text, "reads questions")

    def __call__(self, inputs: Any = None, question: Any = None, *, image: Any = None, **options: Any) -> Any:
        """As of every pipeline; ``inputs`` may also be an image with its question behind it, or both go by name.

        There may be several images or questions; of several of both, each question is asked of each image.
        """
        inputs = image if inputs is None else inputs
        if question is not None:
            inputs = self.paired(inputs, question)
        return super().__call__(inputs, **options)

    def paired(self, image: Any, question: Any) -> Any:
        """An image and a question as one input, or several of one of them as a list of inputs."""
        images = [image] if self.is_one(image) else list(image)
        questions = [question] if isinstance(question, str) else list(question)
        pairs = [{"image": each, "question": asked} for asked in questions for each in images]
        return pairs[0] if self.is_one(image) and isinstance(question, str) else pairs

    def medium(self, item: Any) -> Any:
        return item.get("image") if isinstance(item, Mapping) else item

    def read(self, item: Any, options: Any) -> list[Sample]:
        if not isinstance(item, Mapping):
            raise unexpected("an image with a question was", item, _PAIR)
        if item.keys() != {"image", "question"} and item.keys() != {"image", "question", "label"}:
            raise InputError(f"an input must have `image` and `question`, but has {', '.join(map(str, item))}.", hint=_PAIR)
        (sample,) = super().read(item["image"], options)
        return [self.with_text(sample, check_text(item["question"]), truncation=options.truncation)]

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> list[dict[str, Any]]:
        return [{"answer": self.text(ids, options).strip()} for ids in results[0]]
