"""Tables that documents hold between markers: `python -m tests.document_tables` writes them, a test checks them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from transept.core.auto import family, model_types, models_of
from transept.core.model import Backbone, Model
from transept.core.task_table import TASKS, task_of
from transept.kinds.feature_maps import FeatureMaps

ROOT = Path(__file__).parent.parent


COLUMNS = [task for task in TASKS if task.column]


def column(cls: type[Model]) -> str:
    """The task of a class, by the ending of its name."""
    task = task_of(cls.__name__, COLUMNS)
    assert task is not None, f"{cls.__name__}: the table of tasks (core/task_table.py) has no row for it"
    return task.column


def described() -> dict[str, list[type[Model]]]:
    """The classes of each family, by the ``model_type`` that configs call it by."""
    found = {}
    for name in model_types():
        classes = models_of(family(name))
        bases = (cls for cls in reversed(classes) if issubclass(cls, Backbone) or hasattr(cls, "get_image_features"))
        found[next(bases, classes[0]).config_class.model_type] = classes
    return found


def tasks(classes: list[type[Model]]) -> set[str]:
    return {column(cls) for cls in classes if not issubclass(cls, Backbone) or issubclass(cls, FeatureMaps)}


def families() -> str:
    """Families by tasks."""
    names = list(dict.fromkeys(task.column for task in COLUMNS))
    rows = [f"| family | {' | '.join(names)} |", "|---" + "|:-:" * len(names) + "|"]
    for name, classes in described().items():
        cells = " | ".join("●" if column in tasks(classes) else "" for column in names)
        rows.append(f"| `{name}` | {cells} |")
    return "\n".join(rows)


def kind(classes: list[type[Model]]) -> str:
    """What a family reads and writes, by the inputs of its models and their tasks."""
    inputs = {name for cls in classes for name in inspect.signature(cls.forward).parameters}
    known = tasks(classes)
    if "pixel_values" in inputs:
        if inputs & {"input_ids", "decoder_input_ids"}:
            return "pictures with texts"
        dense = known & {"pixels", "objects", "masks", "depth"}
        return "objects, segments, depth" if dense and "images" not in known else "pictures"
    if inputs & {"input_values", "input_features"} or not inputs & {"input_ids", "values"}:
        return "sounds"
    if "seq2seq" in known:
        return "texts from texts"
    kinds = {"masked LM": "encoders of texts", "causal LM": "writers of texts"}
    return next((kinds[task] for task in kinds if task in known), "vectors")


def kinds() -> str:
    """Families by kind."""
    order = ("encoders of texts", "writers of texts", "texts from texts", "pictures", "objects, segments, depth")
    found: dict[str, list[str]] = {name: [] for name in (*order, "pictures with texts", "sounds", "vectors")}
    for name, classes in described().items():
        found[kind(classes)].append(name)
    rows = [f"| {name} | {', '.join(families)} |" for name, families in found.items()]
    return "\n".join(
        [f"| {sum(map(len, found.values()))} families | by the `model_type` of their configs |", "|---|---|", *rows]
    )


def gguf() -> str:
    """Families whose GGUF files are read."""
    bases = {name: {getattr(cls, "backbone_class", cls) for cls in classes} for name, classes in described().items()}
    return ", ".join(name for name, found in bases.items() if any("gguf" in vars(base) for base in found))


def written(path: Path, marker: str, table: str) -> str:
    """The document with the table between its markers."""
    text = path.read_text(encoding="utf-8")
    return re.sub(
        f"<!-- {marker} -->.*?<!-- /{marker} -->",
        lambda match: f"<!-- {marker} -->\n{table}\n<!-- /{marker} -->",
        text,
        flags=re.DOTALL,
    )


TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "kinds"): kinds,
    ("docs/families.md", "families"): families,
    ("docs/how-to/load-and-save.md", "gguf"): gguf,
}


if __name__ == "__main__":
    for (page, marker), table in TABLES.items():
        path = ROOT / page
        path.write_text(written(path, marker, table()), encoding="utf-8")
