"""Classes of pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transept.core.auto import AutoModelForImageClassification
from transept.preprocess.auto import AutoImageProcessor
from transept.training.collate.padding import default_data_collator
from transept.training.data.columns import LABEL, Column, is_media
from transept.training.data.dataset import Row, TableDataset
from transept.training.data.media import opened, resolved
from transept.training.recipes.base import LazyRows
from transept.training.recipes.classes import ClassRecipe

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


RECIPE = ImageClassification
