"""Questions about tables, as the reference's pipeline answers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import transept
from tests.preprocess.text.test_tables import MOVIES, QUESTIONS, vocabulary
from transept import pipeline
from transept.errors import InputError, InputTypeError
from transept.pipelines.base import InputsError

pytestmark = pytest.mark.reference
WAYS = {"num_aggregation_labels": 4, "aggregation_labels": {0: "NONE", 1: "SUM", 2: "AVERAGE", 3: "COUNT"}}
WAYS |= {"no_aggregation_label_index": 0}
SMALL = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


def saved(folder: Path, seed: int = 0, **more: Any) -> Path:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
    config = transept.TapasConfig(vocab_size=99, initializer_range=0.5, **sizes, **more)
    transept.TapasForQuestionAnswering(config).eval().save_pretrained(folder)
    transept.TapasTokenizer(vocabulary(folder)).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("more", [{}, WAYS])
@pytest.mark.parametrize("seed", range(2))
def test_answers_equal_the_reference(tmp_path: Path, seed: int, more: dict[str, Any]) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    model = saved(tmp_path, seed, **more)
    theirs, ours = transformers.pipeline("table-question-answering", model=str(model), device="cpu"), pipeline(model=str(model))
    assert ours.task == "table-question-answering"
    for query in (QUESTIONS[0], QUESTIONS[:2], QUESTIONS[:1]):
        for sequential in (False, True):
            expected = theirs(table=MOVIES, query=query, sequential=sequential)
            assert ours(MOVIES, query, sequential=sequential) == expected
            assert ours({"table": MOVIES, "query": query}, sequential=sequential) == expected
    one, two = ({"table": MOVIES, "query": query} for query in QUESTIONS[:2])
    assert ours([one, two]) == theirs([one, two])


def test_what_is_no_question_about_a_table(tmp_path: Path) -> None:
    pipe = pipeline("table-question-answering", str(saved(tmp_path)))
    with pytest.raises(InputTypeError, match="a table and a query were expected"):
        pipe({"table": MOVIES})
    for table, query in (({}, "who"), (MOVIES, ""), (MOVIES, [])):
        with pytest.raises(InputError, match="the table or the query is empty"):
            pipe(table, query)
    with pytest.raises(InputsError, match="a table was expected"):
        pipe([{"table": MOVIES, "query": "who"}, {"table": 3, "query": "who"}])
    with pytest.raises(InputTypeError, match="answers with the cells of tables"):
        transept.pipelines.task_class("table-question-answering")(transept.BertModel(transept.BertConfig(**SMALL)), object())
