"""Layouts of JSON documents that hold their rows further inside: SQuAD's questions, and COCO's boxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transept.errors import FormatError
from transept.training.data.table import Row


def flattened(document: Any, path: str) -> Any:
    """The rows of a document, where it is one of the known layouts, else what it is.

    - an object with a list below ``data``: that list, and if its parts have ``paragraphs`` (SQuAD, Rajpurkar et al. 2016) a
      row for each question: ``question``, ``context``, ``answers`` (``text`` and ``answer_start``), ``id``;
    - an object with ``images``, ``annotations`` and ``categories`` (COCO, Lin et al. 2014): a row for each image: ``image``,
      the file's name, and ``objects`` with ``bbox`` (x, y, width, height in pixels) and ``category``, the names;
    - an object of lists of one length: a row for each place in them.

    Raises:
        FormatError: such a layout, of which a part is missing.
    """
    if not isinstance(document, dict):
        return document
    try:
        if {"images", "annotations", "categories"} <= document.keys():
            return list(_images(document))
        if isinstance(document.get("data"), list):
            nested = any(isinstance(each, dict) and "paragraphs" in each for each in document["data"])
            return list(_questions(document["data"])) if nested else document["data"]
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"a part of its layout is missing or of another kind ({error}).", path=path) from error
    columns = list(document.values())
    if columns and all(isinstance(each, list) for each in columns) and len({len(each) for each in columns}) == 1:
        return [dict(zip(document, values)) for values in zip(*columns)]
    return document


def _questions(articles: list[Any]) -> Iterator[Row]:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = asked.get("answers", [])
                found = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
                yield {"id": asked.get("id"), "question": asked["question"], "context": paragraph["context"], "answers": found}


def _images(document: dict[str, Any]) -> Iterator[Row]:
    names = {each["id"]: each["name"] for each in document["categories"]}
    boxes: dict[Any, list[Any]] = {}
    for each in document["annotations"]:
        if not each.get("iscrowd"):
            boxes.setdefault(each["image_id"], []).append(each)
    for image in document["images"]:
        found = boxes.get(image["id"], [])
        objects = {"bbox": [each["bbox"] for each in found], "category": [names[each["category_id"]] for each in found]}
        yield {"image": image["file_name"], "objects": objects}
