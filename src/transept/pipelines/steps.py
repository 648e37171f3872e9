"""What all pipelines are to who uses them, and pipelines of users, who write the steps of a task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from transept.errors import FileError, InputError, InputTypeError, UnsupportedError
from transept.outputs import ModelOutput
from transept.pipelines.components import KINDS, Components, device_of
from transept.storage.publish import Pushable

STEPS = ("_sanitize_parameters", "preprocess", "_forward", "postprocess")


class Pipeline(Pushable):
    """A task from raw inputs to answers, by the steps that a subclass has.

    ``_sanitize_parameters(**options)`` gives three mappings: the options of ``preprocess(input, **options)``, which makes a
    model's inputs of one input, of ``_forward(inputs, **options)``, which calls ``self.model``, and of
    ``postprocess(outputs, **options)``, which makes the answer. Options are passed to the constructor or to a call.

    The class says what it needs beside the model: ``_load_tokenizer`` (``_load_image_processor``, ``_load_feature_extractor``,
    ``_load_processor``) is true for what must be there, ``False`` for what is not needed, and ``None`` for what is loaded where
    the checkpoint has it.

    Args:
        model: a model, which is set to evaluation mode.
        tokenizer, feature_extractor, image_processor, processor: what the steps use.
        task: its name.
        device: the device to move the model to.
        batch_size: rows a batch at most; inputs go one by one when absent.
        num_workers, framework: taken for the reference's sake; they change no answer.
        options: options of the steps.
    """

    _load_tokenizer: ClassVar[bool | None] = None
    _load_image_processor: ClassVar[bool | None] = None
    _load_feature_extractor: ClassVar[bool | None] = None
    _load_processor: ClassVar[bool | None] = None
    noun, loader = "pipeline", "pipeline"

    task: ClassVar[str] = ""
    framework = "pt"
    model: Any
    tokenizer: Any = None
    feature_extractor: Any = None
    image_processor: Any = None
    processor: Any = None
    batch_size: int | None

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        feature_extractor: Any = None,
        image_processor: Any = None,
        processor: Any = None,
        task: str = "",
        device: str | int | torch.device | None = None,
        batch_size: int | None = None,
        num_workers: int | None = None,
        framework: str | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            hint = "Load it, or call transept.pipeline(task, model=..., pipeline_class=...), which loads it."
            raise InputTypeError(f"`model` must be a model, but is {type(model).__name__}.", hint=hint)
        self.model = (model if device is None else model.to(device_of(device))).eval()
        vars(self)["task"], self.batch_size = task or self.task, batch_size
        given = {"tokenizer": tokenizer, "feature_extractor": feature_extractor, "image_processor": image_processor}
        for kind, part in given.items():
            setattr(self, kind, getattr(processor, kind, None) if part is None else part)
        self.processor = processor
        self._parameters = self._sanitize_parameters(**options)

    @classmethod
    def build(cls, parts: Components, **given: Any) -> Any:
        """Load what the task needs; ``auto`` of the class or else the checkpoint's config says which class the model is of."""
        found = {}
        for kind in KINDS:
            wanted = getattr(cls, f"_load_{kind}")
            if wanted is False or (kind == "processor" and not wanted and kind not in parts.given):
                continue
            try:
                found[kind] = parts.component(kind)
            except (FileError, UnsupportedError):
                if wanted:
                    raise
        return cls(parts.model(getattr(cls, "auto", None) or parts.own_class()), **found, **given)

    # What it is made of

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype | None:
        """The type of the model's weights."""
        return getattr(self.model, "dtype", None)

    torch_dtype = dtype

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **options: Any) -> None:
        """Write the model and what prepares its inputs into a directory, from which :func:`transept.pipeline` loads them.

        A class of one's own is not written: pass it as ``pipeline_class``, or register it.
        """
        self.model.save_pretrained(save_directory, **options)
        for kind in KINDS:
            if (part := getattr(self, kind, None)) is not None:
                part.save_pretrained(save_directory)
        self.publish(save_directory, push_to_hub, {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}(task={self.task!r}, model={type(self.model).__name__}, device={str(self.device)!r})"

    def predict(self, X: Any) -> Any:  # noqa: N803 (the name of others)
        """What a call does, under the name that scikit-learn has for it."""
        return self(X)

    transform = predict

    def device_placement(self) -> AbstractContextManager[Any]:
        """A context in which new tensors are on the model's device."""
        return self.device

    def ensure_tensor_on_device(self, **inputs: Any) -> dict[str, Any]:
        """Values with all tensors on the model's device."""
        return {name: _moved(value, self.device) for name, value in inputs.items()}

    def check_model_type(self, supported_models: Any) -> None:
        """Raise ``InputTypeError`` where the model is of none of these classes, or class names."""
        values = supported_models.values() if isinstance(supported_models, Mapping) else supported_models
        flat = [one for value in values for one in (value if isinstance(value, list | tuple) else [value])]
        names = {one if isinstance(one, str) else one.__name__ for one in flat}
        if type(self.model).__name__ not in names:
            hint = f"It can be {', '.join(sorted(names))}."
            raise InputTypeError(f"the task {self.task!r} takes no {type(self.model).__name__}.", hint=hint)

    # The steps of a subclass

    def _sanitize_parameters(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        self._lacks("_sanitize_parameters")

    def preprocess(self, input_: Any, **options: Any) -> Any:
        """A model's inputs of one input."""
        self._lacks("preprocess")

    def _forward(self, model_inputs: Any, **options: Any) -> Any:
        self._lacks("_forward")

    def postprocess(self, model_outputs: Any, **options: Any) -> Any:
        """The answer to one input."""
        self._lacks("postprocess")

    def _lacks(self, step: str) -> NoReturn:
        hint = f"A subclass of transept.Pipeline writes {', '.join(STEPS)}."
        raise UnsupportedError(f"{type(self).__name__} has no step {step!r}.", hint=hint)

    def run_step(self, model_inputs: Any, options: Mapping[str, Any]) -> Any:
        """What :meth:`forward` makes of the inputs that :meth:`preprocess` gave."""
        return self.forward(model_inputs, **options)

    def forward(self, model_inputs: Any, *args: Any, **options: Any) -> Any:
        """The model's outputs on the CPU, for inputs that are moved to its device."""
        with torch.no_grad():
            return _moved(self._forward(_moved(model_inputs, self.device), **options), torch.device("cpu"))

    def __call__(self, inputs: Any, *args: Any, **options: Any) -> Any:
        """Answer one input, a list of them, or a stream (generator, data set) lazily and in order.

        ``batch_size`` and ``num_workers`` among the options are as for the constructor.
        """
        if args:
            raise InputTypeError(f"{type(self).__name__} takes one input or several, but got {1 + len(args)} arguments.")
        options.pop("num_workers", None)
        size = options.pop("batch_size", None) or self.batch_size or 1
        steps = [first | now for first, now in zip(self._parameters, self._sanitize_parameters(**options), strict=True)]
        if isinstance(inputs, list):
            return list(self._answers(inputs, steps, size))
        if isinstance(inputs, Iterator) or (hasattr(inputs, "__getitem__") and hasattr(inputs, "column_names")):
            return self._answers(inputs, steps, size)
        if isinstance(inputs, torch.utils.data.Dataset):
            rows = inputs if isinstance(inputs, Iterable) else (inputs[place] for place in range(len(inputs)))  # type: ignore[arg-type]
            return self._answers(rows, steps, size)
        return next(self._answers([inputs], steps, 1))

    def _answers(self, inputs: Iterable[Any], steps: list[dict[str, Any]], size: int) -> Iterator[Any]:
        (before, within, after), stream = steps, iter(inputs)
        while some := list(islice(stream, size)):
            rows = [self.preprocess(one, **before) for one in some]
            if len(rows) == 1:
                yield self.postprocess(self.run_step(rows[0], within), **after)
                continue
            outputs = self.run_step(self._collated(rows), within)
            for place in range(len(rows)):
                yield self.postprocess(_row(outputs, place), **after)

    def _collated(self, rows: list[Any]) -> dict[str, Any]:
        """Inputs of one row each as a batch, padded with what the tokenizer or the feature extractor pads with."""
        padder = self.tokenizer if self.tokenizer is not None else self.feature_extractor
        left = getattr(padder, "padding_side", "right") == "left"
        fills = {"input_ids": getattr(self.tokenizer, "pad_token_id", None), "labels": -100}
        fills |= dict.fromkeys(("input_values", "input_features"), getattr(self.feature_extractor, "padding_value", 0))
        batch: dict[str, Any] = {}
        for name in rows[0]:
            values = [row[name] for row in rows]
            if not isinstance(values[0], Tensor):
                batch[name] = values
                continue
            if values[0].ndim > 1 and len({value.shape[1] for value in values}) > 1:
                if (fill := fills.get(name, 0)) is None:
                    hint = "Set pipe.tokenizer.pad_token, or leave batch_size out."
                    raise InputError("a batch needs a padding token, but the tokenizer has none.", hint=hint)
                longest = max(value.shape[1] for value in values)
                values = [_filled(value, longest, fill, left) for value in values]
            batch[name] = torch.cat(values)
        return batch


class ChunkPipeline(Pipeline):
    """A pipeline whose ``preprocess`` gives several parts of one input, and ``postprocess`` is given the outputs of all."""

    def _answers(self, inputs: Iterable[Any], steps: list[dict[str, Any]], size: int) -> Iterator[Any]:
        before, within, after = steps
        for one in inputs:
            yield self.postprocess([self.run_step(part, within) for part in self.preprocess(one, **before)], **after)


def _filled(value: Tensor, length: int, fill: float, left: bool) -> Tensor:
    """A row (1, T, ...) that is filled up to a length."""
    gap = value.new_full((1, length - value.shape[1], *value.shape[2:]), fill)
    return torch.cat([gap, value] if left else [value, gap], 1)


def _moved(value: Any, device: torch.device) -> Any:
    """Tensors in mappings, lists and tuples on one device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, ModelOutput):
        return type(value)(**{name: _moved(one, device) for name, one in value.items()})
    if isinstance(value, Mapping):
        return {name: _moved(one, device) for name, one in value.items()}
    return type(value)(_moved(one, device) for one in value) if type(value) in (list, tuple) else value


def _row(value: Any, place: int) -> Any:
    """One row of a batch, still with its axis for rows."""
    if isinstance(value, Tensor):
        return value[place : place + 1]
    if isinstance(value, ModelOutput):
        return type(value)(**{name: _row(one, place) for name, one in value.items() if one is not None})
    if isinstance(value, Mapping):
        return {name: _row(one, place) for name, one in value.items()}
    if isinstance(value, tuple):  # of layers, each a batch
        return tuple(_row(one, place) for one in value)
    return value[place] if isinstance(value, list) else value
