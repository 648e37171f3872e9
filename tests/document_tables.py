"""Tables that documents hold between markers: `python -m tests.document_tables` writes them, a test checks them."""

from __future__ import annotations

import re
from pathlib import Path

from transept.core.auto import family, model_types, models_of
from transept.core.model import Backbone, Model
from transept.kinds.feature_maps import FeatureMaps
from transept.models import ALIASES

ROOT = Path(__file__).parent.parent


COLUMNS = {
    "ForPreTraining": "pretraining",
    "ForMaskedLM": "masked LM",
    "ForCausalLM": "causal LM",
    "LMHeadModel": "causal LM",
    "ModelWithLMHead": "causal LM",
    "ForNextSentencePrediction": "next sentence",
    "ForSequenceClassification": "sequences",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "answers",
    "ForQuestionAnsweringSimple": "answers",
    "ForMultipleChoice": "choice",
    "DoubleHeadsModel": "LM and choice",
    "ForImageClassification": "images",
    "ForImageClassificationWithTeacher": "images",
    "ForSemanticSegmentation": "pixels",
    "ForObjectDetection": "objects",
    "ForSegmentation": "masks",
    "ForDepthEstimation": "depth",
    "Backbone": "feature maps",
    "ForMaskedImageModeling": "masked images",
    "ForCTC": "CTC",
    "ForAudioClassification": "sounds",
    "ForAudioFrameClassification": "frames",
    "ForXVector": "x-vectors",
    "ForConditionalGeneration": "seq2seq",
    "MTModel": "seq2seq",
    "EncoderDecoderModel": "seq2seq",
    "BlipModel": "texts with images",
    "CLIPModel": "texts with images",
    "ForImageTextRetrieval": "texts with images",
    "SiglipModel": "texts with images",
    "WithProjection": "texts with images",
    "ForReconstruction": "reconstruction",
}


def column(cls: type[Model]) -> str:
    """The task of a class, by the ending of its name."""
    return next(COLUMNS[ending] for ending in COLUMNS if cls.__name__.endswith(ending))


def families() -> str:
    """Families by tasks."""
    names = list(dict.fromkeys(COLUMNS.values()))
    rows = [f"| family | {' | '.join(names)} |", "|---" + "|:-:" * len(names) + "|"]
    for name in model_types():
        found = models_of(family(name))
        bases = (cls for cls in reversed(found) if issubclass(cls, Backbone) or cls.__name__ in COLUMNS)
        base = next(bases, found[0])
        tasks = {column(cls) for cls in found if not issubclass(cls, Backbone) or issubclass(cls, FeatureMaps)}
        cells = " | ".join("●" if column in tasks else "" for column in names)
        config = base.config_class
        home = ALIASES[config.model_type].family if config.model_type in ALIASES else name
        place = f"src/transept/models/{home}"
        place += "" if (ROOT / place).is_dir() else ".py"
        rows.append(f"| [`{config.model_type}`]({place}) | {cells} |")
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
