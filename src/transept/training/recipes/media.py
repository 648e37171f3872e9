"""Pictures and sounds: classes of pictures, boxes of things in them, and what is said in sounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from transept.core.auto import (
    AutoModelForCTC,
    AutoModelForImageClassification,
    AutoModelForObjectDetection,
    AutoModelForSpeechSeq2Seq,
)
from transept.errors import InputError
from transept.metrics.detection import MeanAveragePrecision
from transept.metrics.texts import CharacterErrorRate, WordErrorRate
from transept.objectives.classification import IGNORED
from transept.objectives.matching import corners
from transept.outputs import DetectionOutput
from transept.preprocess.auto import AutoImageProcessor, AutoProcessor
from transept.tables.dataset import Row, TableDataset
from transept.training.arguments.training import Seq2SeqTrainingArguments
from transept.training.collate.media import DataCollatorForObjectDetection
from transept.training.collate.padding import default_data_collator
from transept.training.collate.rows import filled
from transept.training.data.columns import LABEL, Column, heard, is_mapping, is_media, is_text, opened
from transept.training.data.labels import Labels, find_labels
from transept.training.recipes.base import MediaRecipe
from transept.training.recipes.classification import ClassRecipe, LabelledRecipe
from transept.training.recipes.text import texts_of, written_at_evaluation
from transept.training.trainers.seq2seq import Seq2SeqTrainer

IMAGE = Column("image", ("image", "img", "picture", "file_name", "path"), is_media)
AUDIO = Column("audio", ("audio", "file", "wav", "path", "audio_filepath", "file_name"), is_media)
TRANSCRIPT = Column("transcript", ("transcript", "transcription", "text", "sentence"), is_text)
LONGEST = 128  # tokens of a transcript that an evaluation has written at most


class ImageClassification(ClassRecipe, MediaRecipe):
    """A class for each picture."""

    task = tag = "image-classification"
    auto = AutoModelForImageClassification
    reader_class = AutoImageProcessor
    columns = (IMAGE, LABEL)
    media = "image"

    def load(self, row: tuple[Any, Any, str]) -> Row:
        image, label, place = row
        return {"pixel_values": self.reader(opened(image, place), return_tensors="pt")["pixel_values"][0], "labels": label}

    def collator(self) -> Any:
        return default_data_collator

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        pixels = batch["pixel_values"][index]
        about = f"{tuple(pixels.shape)}, from {pixels.min():.2f} to {pixels.max():.2f}, mean {pixels.mean():.2f}"
        return {"picture": about, "label": self.labels.id2label[int(batch["labels"][index])]}


class ObjectDetection(LabelledRecipe, MediaRecipe):
    """Pictures with ``objects``: boxes ``bbox`` (x, y, width, height in pixels) and their ``category``, as in COCO."""

    task = tag = "object-detection"
    auto = AutoModelForObjectDetection
    reader_class = AutoImageProcessor
    columns = (IMAGE, Column("objects", ("objects", "annotations"), is_mapping))
    media = "image"
    batch_size = 4

    def find_labels(self, dataset: TableDataset, known: list[str] | None) -> Labels:
        names = [{"category": list(row.get("category", []))} for row in self.column(dataset, "objects")]
        return find_labels(TableDataset(names, path=dataset.path), "category", known)

    def targets(self, dataset: TableDataset) -> list[Any]:
        objects = self.column(dataset, "objects")
        return [self.annotations(row, index, dataset.place(index)) for index, row in enumerate(objects)]

    def annotations(self, objects: Mapping[str, Any], index: int, place: str) -> dict[str, Any]:
        """The boxes of a picture in COCO's layout (``InputError``: a box that is none)."""
        boxes, names = list(objects.get("bbox", [])), list(objects.get("category", []))
        if len(boxes) != len(names):
            raise InputError(f"there are {len(boxes)} boxes, but {len(names)} categories.", path=place)
        annotations = []
        for box, name in zip(boxes, names):
            if len(box) != 4 or not (box[2] > 0 and box[3] > 0):
                hint = "A box is x, y, width and height in pixels."
                raise InputError(f"the box {box} has no size.", path=place, hint=hint)
            about = {"category_id": self.labels.number(name, place), "iscrowd": 0, "image_id": index}
            annotations.append({"bbox": list(box), "area": box[2] * box[3], **about})
        return {"image_id": index, "annotations": annotations}

    def load(self, row: tuple[Any, Any, str]) -> Row:
        image, annotations, place = row
        inputs = self.reader(opened(image, place), annotations=annotations, return_tensors="pt")
        return {"pixel_values": inputs["pixel_values"][0], "labels": inputs["labels"][0]}

    def collator(self) -> Any:
        return self.batch

    def batch(self, rows: list[Row]) -> dict[str, Any]:
        """Pictures of several sizes, padded to the largest; boxes may reach beyond their pictures."""
        pictures = DataCollatorForObjectDetection()([{"pixel_values": row["pixel_values"]} for row in rows])
        return {**pictures, "labels": [row["labels"] for row in rows]}

    def reduce(self, outputs: Any, labels: Any) -> tuple[Tensor, Tensor]:
        """Logits and boxes, of which the loss's parts and the layers' states are others."""
        logits, boxes = [output for output in outputs if isinstance(output, Tensor)][:2]
        return logits, boxes

    def scores(self, predicted: Any, right: Any) -> dict[str, float]:
        """The mean average precision, of boxes as shares of their pictures."""
        logits, boxes = map(torch.from_numpy, predicted)
        outputs = DetectionOutput(logits=logits, pred_boxes=boxes)
        answers = self.reader.post_process_object_detection(outputs, threshold=0.0)
        targets = [{**row, "boxes": corners(torch.from_numpy(row["boxes"]))} for row in right]
        return MeanAveragePrecision()(answers, targets)

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        names = [self.labels.names[int(number)] for number in batch["labels"][index]["class_labels"]]
        return {"picture": str(tuple(batch["pixel_values"][index].shape)), "objects": ", ".join(names) or "(none)"}


class SpeechRecipe(MediaRecipe):
    """A sound and what is said in it; sounds are resampled to the rate that the model reads."""

    tag = "automatic-speech-recognition"
    reader_class = AutoProcessor
    columns = (AUDIO, TRANSCRIPT)
    media = "audio"
    metric = "wer"
    less_is_better = True
    batch_size = 8

    def targets(self, dataset: TableDataset) -> list[Any]:
        texts = self.column(dataset, "transcript")
        return [self.letters(text, dataset.place(index)) for index, text in enumerate(texts)]

    def letters(self, text: str, place: str) -> list[int]:
        """A transcript as labels (``InputError``: nothing is left of it)."""
        ids = list(self.reader.tokenizer(text)["input_ids"])
        if not ids:
            raise InputError("the transcript is empty.", path=place)
        return ids

    def load(self, row: tuple[Any, Any, str]) -> Row:
        audio, labels, place = row
        rate = int(self.reader.feature_extractor.sampling_rate)
        inputs = self.reader.feature_extractor(heard(audio, rate, place), sampling_rate=rate)
        return {name: inputs[name][0] for name in inputs} | {"labels": labels}

    def collator(self) -> Any:
        return self.batch

    def batch(self, rows: list[Row]) -> dict[str, Any]:
        """Sounds padded to the longest, and their labels."""
        sounds = [{name: value for name, value in row.items() if name != "labels"} for row in rows]
        batch = self.reader.feature_extractor.pad(sounds, padding=True, return_tensors="pt")
        return {**batch, "labels": filled("labels", [row["labels"] for row in rows])}

    def scores(self, predicted: Any, right: Any) -> dict[str, float]:
        pair = texts_of(self.reader.tokenizer, predicted), self.transcripts(right)
        return WordErrorRate()(*pair) | CharacterErrorRate()(*pair)

    def transcripts(self, labels: Any) -> list[str]:
        """Labels as texts."""
        return texts_of(self.reader.tokenizer, labels)

    def arguments(self, rows: int) -> dict[str, Any]:
        return {"include_num_input_tokens_seen": "no"}

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        name, labels = next(iter(batch)), batch["labels"][index : index + 1].numpy()
        return {name: str(tuple(batch[name][index].shape)), "labels": self.transcripts(labels)[0]}


class CTC(SpeechRecipe):
    """Letters of a sound (connectionist temporal classification, Graves et al. 2006); unknown ones are left out."""

    task = "ctc"
    auto = AutoModelForCTC

    def settings(self) -> dict[str, Any]:
        return {"ctc_loss_reduction": "mean", "ctc_zero_infinity": True}

    def reduce(self, logits: Any, labels: Any) -> Any:
        return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)

    def transcripts(self, labels: Any) -> list[str]:
        ids = ([int(token) for token in row if token != IGNORED] for row in labels)
        return [str(self.reader.tokenizer.decode(row, group_tokens=False)) for row in ids]


class SpeechToText(SpeechRecipe):
    """The transcript of each sound, written by an encoder–decoder such as Whisper (Radford et al. 2022).

    Evaluations have the model write each transcript, and compare what it wrote. The first token, with which every text
    begins, is left to the model.
    """

    task = "speech-to-text"
    auto = AutoModelForSpeechSeq2Seq
    trainer_class = Seq2SeqTrainer
    arguments_class = Seq2SeqTrainingArguments

    def letters(self, text: str, place: str) -> list[int]:
        ids = super().letters(text, place)
        start = getattr(self.model.config, "decoder_start_token_id", None)
        return ids[1:] if ids[:1] == [start] else ids

    def arguments(self, rows: int) -> dict[str, Any]:
        return super().arguments(rows) | written_at_evaluation(self.model, LONGEST)
