"""Pictures, sounds and numbers: classes of pictures, boxes, speech, and rows that are made again from a code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from transept.config.fields import Count, Deviation
from transept.core import auto
from transept.errors import ConfigError, InputError, refuse
from transept.metrics.detection import MeanAveragePrecision
from transept.metrics.numbers import Regression
from transept.metrics.texts import CharacterErrorRate, WordErrorRate
from transept.objectives.matching import corners
from transept.outputs import DetectionOutput
from transept.preprocess.auto import AutoImageProcessor, AutoProcessor
from transept.tables.dataset import Row, TableDataset
from transept.training.arguments.training import Seq2SeqTrainingArguments
from transept.training.collate.media import DataCollatorForAudio, DataCollatorForObjectDetection
from transept.training.collate.padding import default_data_collator
from transept.training.data.columns import (
    LABEL,
    Column,
    describe_guesses,
    is_mapping,
    is_media,
    is_text,
    read_picture,
    read_sound,
    resolved,
    values_of,
)
from transept.training.data.labels import Labels, find_labels, is_number
from transept.training.recipes.base import LazyRows, Options, Recipe, most_likely, texts_of
from transept.training.recipes.classification import LabelledRecipe
from transept.training.trainers.seq2seq import Seq2SeqTrainer

IMAGE = Column("image", ("image", "img", "picture", "file_name", "path"), is_media)
AUDIO = Column("audio", ("audio", "file", "wav", "path", "audio_filepath", "file_name"), is_media)
TRANSCRIPT = Column("transcript", ("transcript", "transcription", "text", "sentence"), is_text)


class MediaRecipe(Recipe):
    """A recipe whose first column holds a picture or a sound, which is read when its row is."""

    # A picture or sound, what is to be learned of it, and its place -> a row for the model.
    load: Callable[[Any, Any, str], Row]
    collate: Callable[[list[Row]], Any] = staticmethod(default_data_collator)

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        media = [resolved(value, dataset.path) for value in self.column(dataset, self.columns[0].role)]
        places = [dataset.place(index) for index in range(len(dataset))]
        return LazyRows(self.load, media, self.targets(dataset), places)

    def targets(self, dataset: TableDataset) -> list[Any]:
        """What is to be learned of each row, beside its medium."""
        return [None] * len(dataset)

    def collator(self) -> Any:
        return self.collate


class ImageClassification(LabelledRecipe, MediaRecipe):
    """A class for each picture."""

    task = pipeline_tag = "image-classification"
    model_class = auto.AutoModelForImageClassification
    processor_class = AutoImageProcessor
    columns = (IMAGE, LABEL)

    def load(self, media: Any, target: Any, place: str) -> Row:
        pixels = self.processor(read_picture(media, place), return_tensors="pt")["pixel_values"][0]
        return {"pixel_values": pixels, "labels": target}

    def describe(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        pixels, label = batch["pixel_values"][index], self.labels.id2label[int(batch["labels"][index])]
        values = f"from {pixels.min():.2f} to {pixels.max():.2f}, mean {pixels.mean():.2f}"
        return {"picture": f"{tuple(pixels.shape)}, {values}", "label": label}


class ObjectDetection(LabelledRecipe, MediaRecipe):
    """Pictures with ``objects``: their ``bbox`` (x, y, width, height in pixels) and ``category``, as in COCO."""

    task = pipeline_tag = "object-detection"
    model_class = auto.AutoModelForObjectDetection
    processor_class = AutoImageProcessor
    columns = (IMAGE, Column("objects", ("objects", "annotations"), is_mapping))
    batch_size = 4

    def find_labels(self, dataset: TableDataset, model_classes: list[str] | None) -> Labels:
        names = [{"category": list(row.get("category", []))} for row in self.column(dataset, "objects")]
        return find_labels(TableDataset(names, path=dataset.path), "category", model_classes)

    def targets(self, dataset: TableDataset) -> list[Any]:
        """The boxes of each picture in COCO's layout (``InputError``: one has no category or no size)."""
        targets = []
        for index, objects in enumerate(self.column(dataset, "objects")):
            place, annotations = dataset.place(index), list[dict[str, Any]]()
            boxes, names = list(objects.get("bbox", [])), list(objects.get("category", []))
            what = f"there are {len(boxes)} boxes, but {len(names)} categories."
            refuse(len(boxes) != len(names), what, path=place)
            for box, name in zip(boxes, names):
                if len(box) != 4 or not (box[2] > 0 and box[3] > 0):
                    hint = "A box is x, y, width and height in pixels."
                    raise InputError(f"the box {box} has no size.", path=place, hint=hint)
                label = {"category_id": self.labels.number(name, place), "iscrowd": 0, "image_id": index}
                annotations.append({"bbox": list(box), "area": box[2] * box[3], **label})
            targets.append({"image_id": index, "annotations": annotations})
        return targets

    def load(self, media: Any, target: Any, place: str) -> Row:
        inputs = self.processor(read_picture(media, place), annotations=target, return_tensors="pt")
        return {name: inputs[name][0] for name in ("pixel_values", "labels")}

    def collate(self, rows: list[Row]) -> dict[str, Any]:
        """Pictures of several sizes, padded to the largest; boxes may reach beyond their pictures."""
        pictures = DataCollatorForObjectDetection()([{"pixel_values": row["pixel_values"]} for row in rows])
        return {**pictures, "labels": [row["labels"] for row in rows]}

    def preprocess_logits(self, outputs: Any, labels: Any) -> tuple[Tensor, Tensor]:
        """Logits and boxes, without the parts of the loss and the states of layers."""
        logits, boxes = [output for output in outputs if isinstance(output, Tensor)][:2]
        return logits, boxes

    def compute_metrics(self, predictions: Any, labels: Any) -> dict[str, float]:
        """The mean average precision, of boxes as shares of their pictures."""
        logits, boxes = map(torch.from_numpy, predictions)
        outputs = DetectionOutput(logits=logits, pred_boxes=boxes)
        detected = self.processor.post_process_object_detection(outputs, threshold=0.0)
        targets = [{**row, "boxes": corners(torch.from_numpy(row["boxes"]))} for row in labels]
        return MeanAveragePrecision()(detected, targets)

    def describe(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        names = [self.labels.names[int(number)] for number in batch["labels"][index]["class_labels"]]
        return {"picture": str(tuple(batch["pixel_values"][index].shape)), "objects": ", ".join(names) or "(none)"}


class SpeechRecipe(MediaRecipe):
    """A sound and what is said in it; sounds are resampled to the rate that the model reads."""

    pipeline_tag = "automatic-speech-recognition"
    processor_class = AutoProcessor
    columns = (AUDIO, TRANSCRIPT)
    metric = "wer"
    lower_is_better = True
    batch_size = 8
    trainer_settings = {"include_num_input_tokens_seen": "no"}
    decoding: ClassVar[dict[str, bool]] = {}  # how labels become texts

    def targets(self, dataset: TableDataset) -> list[Any]:
        """Transcripts as labels (``InputError``: one has no tokens)."""
        labels = [list(self.processor.tokenizer(text)["input_ids"]) for text in self.column(dataset, "transcript")]
        for index, ids in enumerate(labels):
            refuse(not ids, "the transcript is empty.", path=dataset.place(index))
        return labels

    def load(self, media: Any, target: Any, place: str) -> Row:
        extractor = self.processor.feature_extractor
        rate = int(extractor.sampling_rate)
        inputs = extractor(read_sound(media, rate, place), sampling_rate=rate)
        return {name: inputs[name][0] for name in inputs} | {"labels": target}

    def collator(self) -> Any:
        return DataCollatorForAudio(self.processor)

    def compute_metrics(self, predictions: Any, labels: Any) -> dict[str, float]:
        tokenizer = self.processor.tokenizer
        texts = texts_of(tokenizer, predictions), texts_of(tokenizer, labels, **self.decoding)
        return WordErrorRate()(*texts) | CharacterErrorRate()(*texts)

    def describe(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        name, labels = next(iter(batch)), batch["labels"][index : index + 1].numpy()
        [text] = texts_of(self.processor.tokenizer, labels, **self.decoding)
        return {name: str(tuple(batch[name][index].shape)), "labels": text}


class CTC(SpeechRecipe):
    """Letters of a sound (connectionist temporal classification, Graves et al. 2006), without unknown ones."""

    task = "ctc"
    model_class = auto.AutoModelForCTC
    preprocess_logits = staticmethod(most_likely)
    decoding = {"skip_special_tokens": False, "group_tokens": False}

    def model_settings(self, *, is_new: bool) -> dict[str, Any]:
        return {"ctc_loss_reduction": "mean", "ctc_zero_infinity": True}


class SpeechToText(SpeechRecipe):
    """The transcript of each sound, written by an encoder–decoder such as Whisper (Radford et al. 2022)."""

    task = "speech-to-text"
    model_class = auto.AutoModelForSpeechSeq2Seq
    trainer_class = Seq2SeqTrainer
    arguments_class = Seq2SeqTrainingArguments
    longest_output = 128

    def targets(self, dataset: TableDataset) -> list[Any]:
        start = getattr(self.model.config, "decoder_start_token_id", None)  # which the model puts there itself
        return [ids[1:] if ids[:1] == [start] else ids for ids in super().targets(dataset)]


def is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and {*map(type, value)} <= {int, float}


class ReconstructionOptions(Options):
    side: Count = 28  # pixels that pictures, in grey, are resized to, in both directions
    # Settings of new weights, which have defaults of their own.
    latent_size: Count | None = None  # numbers of a code
    hidden_sizes: list[Count] | None = None  # layers between a row and its code
    noise: Deviation | None = None  # that inputs are disturbed by in training (denoising)
    variational: bool | None = None  # whether codes are drawn, and
    beta: Deviation | None = None  # the weight of their divergence from a normal distribution


class Reconstruction(MediaRecipe):
    """Rows that are to be made again: pictures in grey, lists of numbers, or the numbers of all columns with some."""

    task = "autoencoder"
    model_class = auto.AutoModelForReconstruction
    processor_class = None
    new_model_type = "autoencoder"
    columns = tuple(
        replace(column, optional=True, by_kind=False)
        for column in (IMAGE, Column("values", ("values", "features", "vector"), is_numbers))
    )
    options_class = ReconstructionOptions
    batch_size = 32
    trainer_settings = {"include_num_input_tokens_seen": "no", "label_names": ["values"], "learning_rate": 1e-3}

    def inspect(self, dataset: TableDataset, config: Any = None) -> str | None:
        note, names = super().inspect(dataset, config), dataset.column_names
        options = self.options.of_task().items()
        self.new_settings = {name: value for name, value in options if name != "side" and value is not None}
        what, hint = f"the rows have both: {describe_guesses(self.column_names, {})}", "Choose one with --image or --values."
        refuse(len(self.column_names) > 1, what, hint, path=dataset.path)
        self.numeric = []  # the columns of numbers, which are a row together
        if not self.column_names:
            self.numeric = [name for name in names if is_numbers(values_of(dataset, name))]
            choice = f"--image and --values choose a column. Columns: {', '.join(names)}."
            hint = f"Pass a folder of pictures, or numbers; {choice}"
            refuse(not self.numeric, "no column holds pictures or numbers.", hint, path=dataset.path)
        self.width = self.options.side**2 if "image" in self.column_names else len(self.numbers(dataset, 0))
        return f"rows are the numbers of {', '.join(self.numeric)}." if self.numeric else note

    def numbers(self, dataset: TableDataset, index: int) -> list[float]:
        """The numbers of a row (``InputError``: one is missing or infinite)."""
        row = dataset[index]
        numbers = [row[name] for name in self.numeric] or row[self.column_names["values"]]
        if not all(map(is_number, numbers)):
            raise InputError(f"a row needs finite numbers, but has {numbers!s:.80}.", path=dataset.place(index))
        return [float(number) for number in numbers]

    def model_settings(self, *, is_new: bool) -> dict[str, Any]:
        return {"input_size": self.width, **self.new_settings} if is_new else {}

    def set_model(self, processor: Any, model: Any) -> None:
        """Refuse data and options of another model (``InputError``, ``ConfigError``)."""
        super().set_model(processor, model)
        what = f"a row has {self.width} numbers, but the model reads {model.config.input_size}."
        hint = "Pass data like those that it was trained on, or begin with new weights."
        refuse(model.config.input_size != self.width, what, hint)
        for name, value in self.new_settings.items():
            what = f"`{name}` is {value}, but the model has {getattr(model.config, name)}."
            refuse(value != getattr(model.config, name), what, "It is of new weights only.", ConfigError)

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        if "image" in self.column_names:
            return super().encode(dataset)
        rows = [{"values": self.numbers(dataset, index)} for index in range(len(dataset))]
        for index, row in enumerate(rows):
            what = f"there are {len(row['values'])} numbers, but {self.width} in the first row."
            refuse(len(row["values"]) != self.width, what, path=dataset.place(index))
        return rows

    def load(self, media: Any, target: Any, place: str) -> Row:
        """A picture as grey values from 0 to 1."""
        side = self.options.side
        picture = read_picture(media, place).convert("L").resize((side, side))
        return {"values": np.asarray(picture, dtype=np.float32) / 255}

    def default_arguments(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        defaults = super().default_arguments(rows, parameters, evaluated=evaluated)
        return defaults | {"num_train_epochs": 20 if rows < 20_000 else 4}

    def preprocess_logits(self, outputs: Any, labels: Any) -> Tensor:
        logits: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
        return logits.sigmoid() if self.model.config.loss_type == "bernoulli" else logits

    def compute_metrics(self, predictions: Any, labels: Any) -> dict[str, float]:
        """The mean squared error of a number, and the share of the rows' variance that is explained."""
        error = Regression()(predictions, labels)["mse"]
        variance = float(labels.reshape(len(labels), -1).astype(np.float64).var(axis=0).mean())
        return {"mse": error, "explained_variance": 1 - error / variance if variance else float("nan")}

    def describe(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        row = batch["values"][index]
        return {"values": f"{row.numel()}, from {row.min():.3g} to {row.max():.3g}, mean {row.mean():.3g}"}
