"""Classes of pictures, and boxes of things in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transept.core.auto import AutoModelForImageClassification, AutoModelForObjectDetection
from transept.errors import InputError
from transept.outputs import DetectionOutput
from transept.preprocess.auto import AutoImageProcessor
from transept.training.collate.padding import default_data_collator
from transept.training.data.columns import LABEL, Column, is_mapping, is_media
from transept.training.data.labels import Labels, find_labels
from transept.training.data.media import opened, resolved
from transept.training.data.table import Row, TableDataset
from transept.training.metrics.detection import MeanAveragePrecision
from transept.training.recipes.base import LazyRows, Recipe
from transept.training.recipes.classes import ClassRecipe, class_settings, known_classes

IMAGE = Column("image", ("image", "img", "picture", "file_name", "path"), is_media)


class ImageClassification(ClassRecipe):
    """A class for each picture, which is read and resized when its turn comes."""

    task = tag = "image-classification"
    auto = AutoModelForImageClassification
    reader_class = AutoImageProcessor
    columns = (IMAGE, LABEL)
    batch_size = 16

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        numbers = self.numbers(dataset)
        images = [resolved(value, dataset.path) for value in dataset.column(self.found["image"])]
        rows = [{"image": image, "labels": number} for image, number in zip(images, numbers)]
        return LazyRows(TableDataset(rows, path=dataset.path, lines=dataset.lines), self.pixels)

    def pixels(self, row: Row, place: str) -> Row:
        """A picture as the model reads it."""
        images = self.reader(opened(row["image"], place), return_tensors="pt")
        return {"pixel_values": images["pixel_values"][0], "labels": row["labels"]}

    def collator(self) -> Callable[[list[Any]], Any]:
        return default_data_collator

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        pixels = batch["pixel_values"][index]
        told = f"{tuple(pixels.shape)}, from {pixels.min():.2f} to {pixels.max():.2f}, mean {pixels.mean():.2f}"
        return {"picture": told, "label": self.labels.id2label[int(batch["labels"][index])]}


class ObjectDetection(Recipe):
    """Pictures with ``objects``: boxes ``bbox`` (x, y, width, height in pixels) and their ``category``, as COCO has them."""

    task = tag = "object-detection"
    auto = AutoModelForObjectDetection
    reader_class = AutoImageProcessor
    columns = (IMAGE, Column("objects", ("objects", "annotations"), is_mapping))
    batch_size = 4
    labels: Labels

    def look(self, dataset: TableDataset, config: Any = None) -> str | None:
        told = super().look(dataset, config)
        names = [{"category": list(row.get("category", []))} for row in dataset.column(self.found["objects"])]
        self.labels = find_labels(TableDataset(names, path=dataset.path), "category", known_classes(config))
        return told

    def settings(self) -> dict[str, Any]:
        return class_settings(self.labels)

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        found = zip(dataset.column(self.found["image"]), dataset.column(self.found["objects"]))
        rows = [
            {"image": resolved(image, dataset.path), "objects": self.annotations(objects, index, dataset.place(index))}
            for index, (image, objects) in enumerate(found)
        ]
        return LazyRows(TableDataset(rows, path=dataset.path, lines=dataset.lines), self.pixels)

    def annotations(self, objects: Mapping[str, Any], index: int, place: str) -> dict[str, Any]:
        """The boxes of a picture in COCO's layout (``InputError``: a box that is none)."""
        boxes, names = list(objects.get("bbox", [])), list(objects.get("category", []))
        if len(boxes) != len(names):
            raise InputError(f"there are {len(boxes)} boxes, but {len(names)} categories.", path=place)
        for box in boxes:
            if len(box) != 4 or not (box[2] > 0 and box[3] > 0):
                hint = "A box is x, y, width and height in pixels."
                raise InputError(f"the box {box} has no size.", path=place, hint=hint)
        numbers = [self.labels.number(name, place) for name in names]
        found = [
            {"bbox": list(box), "category_id": number, "area": box[2] * box[3], "iscrowd": 0, "image_id": index}
            for box, number in zip(boxes, numbers)
        ]
        return {"image_id": index, "annotations": found}

    def pixels(self, row: Row, place: str) -> Row:
        """A picture and its boxes as the model reads them."""
        found = self.reader(opened(row["image"], place), annotations=row["objects"], return_tensors="pt")
        return {"pixel_values": found["pixel_values"][0], "labels": found["labels"][0]}

    def collator(self) -> Callable[[list[Any]], Any]:
        return self.batch

    def batch(self, rows: list[Row]) -> dict[str, Any]:
        """Pictures of several sizes, padded to the largest."""
        pictures = [row["pixel_values"] for row in rows]
        height, width = (max(each.shape[axis] for each in pictures) for axis in (1, 2))
        pixels = pictures[0].new_zeros(len(pictures), 3, height, width)
        mask = torch.zeros(len(pictures), height, width, dtype=torch.int64)
        for number, each in enumerate(pictures):
            pixels[number, :, : each.shape[1], : each.shape[2]] = each
            mask[number, : each.shape[1], : each.shape[2]] = 1
        return {"pixel_values": pixels, "pixel_mask": mask, "labels": [row["labels"] for row in rows]}

    def reduce(self) -> Callable[[Any, Any], Any]:
        return classes_and_boxes

    def scores(self) -> Callable[[Any], dict[str, float]]:
        """The mean average precision, of boxes as shares of their pictures."""

        def scores(prediction: Any) -> dict[str, float]:
            logits, boxes = map(torch.from_numpy, prediction.predictions)
            answers = self.reader.post_process_object_detection(DetectionOutput(logits=logits, pred_boxes=boxes), threshold=0.0)
            return MeanAveragePrecision()(answers, [{**row, "boxes": corners_of(row["boxes"])} for row in prediction.label_ids])

        return scores

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        labels = batch["labels"][index]
        names = [self.labels.names[int(number)] for number in labels["class_labels"]]
        return {"picture": str(tuple(batch["pixel_values"][index].shape)), "objects": ", ".join(names) or "(none)"}


def classes_and_boxes(outputs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """The logits and the boxes of a detector's outputs, of which the loss's parts and the layers' states are others."""
    logits, boxes = [output for output in outputs if isinstance(output, Tensor)][:2]
    return logits, boxes


def corners_of(boxes: Any) -> Any:
    """Boxes (n, 4) by their centre, width and height as left, top, right and bottom."""
    return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], axis=1)
