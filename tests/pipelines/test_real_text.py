"""Real texts through real vocabularies and, where the package is installed, through real weights."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transept
from transept import pipeline
from transept.pipelines import components

from .test_text_embedding import NO_PACKAGE
from .text_models import SIZES, check_close, fill, reference

DATA = Path(__file__).resolve().parents[3] / "shared/data"
VOCABULARIES, STS = DATA / "tokenizers", DATA / "datasets/stsb/stsb-en-dev.csv"
TWEETS, NEWS = DATA / "datasets/wnut17/emerging.dev.conll", DATA / "datasets/ag_news/ag_news_first1000.csv"
LABELS = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]))
pytestmark = pytest.mark.real_data


def needs(*paths: Path) -> pytest.MarkDecorator:
    missing = [str(path) for path in paths if not path.exists()]
    return pytest.mark.skipif(bool(missing), reason=f"missing: {', '.join(missing)}")


def tweets(count: int) -> list[str]:
    """Tweets as written, but for the spaces around their words."""
    lines = TWEETS.read_text(encoding="utf-8").split("\n")
    groups = [list(group) for filled, group in itertools.groupby(lines, key=bool) if filled]
    return [" ".join(line.split("\t")[0] for line in group) for group in groups if group[0].strip()][:count]


def save(directory: Path, kind: str, vocabulary: str, **settings: Any) -> Path:
    """A tiny model with a real vocabulary."""
    for path in (VOCABULARIES / vocabulary).iterdir():
        shutil.copy(path, directory)
    tokenizer = {"bert-base-cased": {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}}.get(
        vocabulary, {"tokenizer_class": "RobertaTokenizer"}
    )
    (directory / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "model_max_length": 512}))
    loaded = transept.AutoTokenizer.from_pretrained(directory)
    loaded.save_pretrained(directory)
    config = getattr(transept, f"{kind}Config")
    sizes = {**SIZES, "vocab_size": len(loaded), "max_position_embeddings": 514, "pad_token_id": loaded.pad_token_id}
    model = getattr(transept, f"{kind}ForTokenClassification")(config(**sizes, id2label=LABELS)).eval()
    fill(model)
    model.save_pretrained(directory)
    return directory


@needs(TWEETS, VOCABULARIES)
@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize(("kind", "vocabulary"), [("Bert", "bert-base-cased"), ("Roberta", "roberta-base")])
def test_spans_of_tweets_are_the_references(tmp_path: Path, kind: str, vocabulary: str) -> None:
    directory, texts = save(tmp_path, kind, vocabulary), tweets(100)
    assert len(texts) == 100
    for strategy in ("none", "first", "average"):
        ours = pipeline("ner", directory, aggregation_strategy=strategy)(texts)
        check_close(ours, reference("token-classification", directory)(texts, aggregation_strategy=strategy), 2e-5)


@needs(STS)
@pytest.mark.skipif(components.package_directory() is None, reason=NO_PACKAGE)
def test_similarity_agrees_with_people() -> None:
    """Spearman's rank correlation with human judgement, which is 0.867 over all 1,500 pairs."""
    with STS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[::3]
    cosines = pipeline("text-similarity")([(first, second) for first, second, _ in rows])
    people = np.array([float(row[2]) for row in rows])

    def ranks(values: np.ndarray) -> np.ndarray:
        _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (counts.cumsum() - (counts - 1) / 2)[places]

    assert np.corrcoef(ranks(cosines), ranks(people))[0, 1] > 0.84


@needs(NEWS)
@pytest.mark.skipif(components.package_directory() is None, reason=NO_PACKAGE)
def test_topics_of_news_are_found_without_training() -> None:
    """Far above chance (0.25), and as sure as right: the scores of ``scale=20`` mean what they say."""
    with NEWS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row[0].isdigit()][:200]
    labels = ["world news", "sports", "business", "science and technology"]
    found = pipeline("zero-shot-classification")([f"{title} {text}" for _, title, text in rows], labels)
    right = np.mean([labels.index(one["labels"][0]) == int(row[0]) - 1 for one, row in zip(found, rows, strict=True)])
    sure = np.mean([one["scores"][0] for one in found])
    assert right > 0.6
    assert abs(right - sure) < 0.12
