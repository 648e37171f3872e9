"""Layouts of JSON documents that hold their rows further inside: SQuAD's questions, and COCO's boxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transept.errors import FormatError
from transept.tables.dataset import Row


def rows_of_document(document: Any, path: str) -> list[Row]:
    """The rows of a document.

    - a list of objects: these;
    - an object with a list below ``data``: that list, and if its parts have ``paragraphs`` (SQuAD, Rajpurkar et al. 2016) a
      row for each question: ``question``, ``context``, ``answers`` (``text`` and ``answer_start``), ``id``;
    - an object with ``images``, ``annotations`` and ``categories`` (COCO, Lin et al. 2014): a row for each image: ``image``,
      the file's name, and ``objects`` with ``bbox`` (x, y, width, height in pixels) and ``category``, the names;
    - an object of lists of one length: a row for each place in them.

    Raises:
        FormatError: none of these, or one of which a part is missing.
    """
    rows = document
    if isinstance(document, dict):
        try:
            rows = _flattened(document)
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"a part of its layout is missing or of another kind ({error}).", path=path) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        hint = "It may hold a list of objects, an object of columns, or an object a line."
        raise FormatError("holds no rows: its JSON is not a list of objects.", path=path, hint=hint)
    return rows


def _flattened(document: dict[str, Any]) -> Any:
    if {"images", "annotations", "categories"} <= document.keys():
        return list(_images(document))
    if isinstance(data := document.get("data"), list):
        is_squad = any(isinstance(article, dict) and "paragraphs" in article for article in data)
        return list(_questions(data)) if is_squad else data
    columns = list(document.values())
    if columns and all(isinstance(column, list) for column in columns) and len(set(map(len, columns))) == 1:
        return [dict(zip(document, values)) for values in zip(*columns)]
    return document


def _questions(articles: list[Any]) -> Iterator[Row]:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question.get("answers", [])
                columns = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
                row = {"id": question.get("id"), "question": question["question"], "context": paragraph["context"]}
                yield row | {"answers": columns}


def _images(document: dict[str, Any]) -> Iterator[Row]:
    names = {category["id"]: category["name"] for category in document["categories"]}
    boxes: dict[Any, list[Any]] = {}
    for box in document["annotations"]:
        if not box.get("iscrowd"):
            boxes.setdefault(box["image_id"], []).append(box)
    for image in document["images"]:
        own = boxes.get(image["id"], [])
        objects = {"bbox": [box["bbox"] for box in own], "category": [names[box["category_id"]] for box in own]}
        yield {"image": image["file_name"], "objects": objects}
