"""Tables that documents hold between markers: `python -m tests.tables` writes them, a test checks them."""

from __future__ import annotations

import re
from pathlib import Path

from transept.backbone import Backbone
from transept.resolve import family, model_types, models_of

ROOT = Path(__file__).parent.parent


COLUMNS = {
    "ForPreTraining": "pretraining",
    "ForMaskedLM": "masked LM",
    "ForCausalLM": "causal LM",
    "LMHeadModel": "causal LM",
    "ForNextSentencePrediction": "next sentence",
    "ForSequenceClassification": "sequences",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "answers",
    "ForMultipleChoice": "choice",
    "DoubleHeadsModel": "LM and choice",
    "ForImageClassification": "images",
    "ForMaskedImageModeling": "masked images",
    "ForCTC": "CTC",
    "ForAudioFrameClassification": "frames",
    "ForXVector": "x-vectors",
}


def families() -> str:
    """Families by tasks."""
    names = list(dict.fromkeys(COLUMNS.values()))
    rows = [f"| family | {' | '.join(names)} |", "|---" + "|:-:" * len(names) + "|"]
    for name in model_types():
        found = models_of(family(name))
        base = next(cls for cls in found if issubclass(cls, Backbone))
        stem = base.__name__.removesuffix("Model")
        tasks = {COLUMNS[cls.__name__.removeprefix(stem)] for cls in found if cls is not base}
        cells = " | ".join("●" if column in tasks else "" for column in names)
        rows.append(f"| [`{base.config_class.model_type}`](src/transept/models/{name}.py) | {cells} |")
    return "\n".join(rows)


def written(path: Path, marker: str, table: str) -> str:
    """The document with the table between its markers."""
    text = path.read_text(encoding="utf-8")
    return re.sub(
        f"<!-- {marker} -->.*?<!-- /{marker} -->",
        lambda match: f"<!-- {marker} -->\n{table}\n<!-- /{marker} -->",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(written(readme, "families", families()), encoding="utf-8")
