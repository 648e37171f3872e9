"""Questions about tables, as the reference's tokenizer encodes them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import transept
from transept.errors import InputError, InputTypeError
from transept.preprocess.table import read_table, values_of

WORDS = [
    "[PAD]",
    "[EMPTY]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "how",
    "many",
    "movies",
    "has",
    "george",
    "clooney",
    "played",
    "in",
    "?",
    "what",
    "is",
    "the",
    "age",
    "of",
    "brad",
    "pitt",
    "actors",
    "number",
    "date",
    "birth",
    "56",
    "45",
    "59",
    "87",
    "53",
    "69",
    "february",
    "june",
    "november",
    "##s",
    "##ing",
    "act",
    "##or",
    "##1",
    "##2",
    "1967",
    "7",
    "10",
    "28",
    ",",
    ".",
    "-",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
    "first",
    "two",
    "may",
    "older",
    "than",
    "##9",
    "##8",
    "##7",
    "##6",
    "##5",
    "##4",
    "##3",
    "##0",
    "n",
    "/",
    "a",
]
MOVIES = {
    "Actors": ["Brad Pitt", "n/a", "George Clooney acting"],
    "Age": ["56", "45", "59.5"],
    "Number of movies": ["87", "53,000", "?"],
    "date of birth": ["7 february 1967", "10 june 1996", "28 november 1967"],
}
QUESTIONS = [
    "How many movies has George Clooney played in?",
    "older than 53 , first in may 1996",
    "[MASK] [MASK]",
    "?",
    "",
    " ",
    "two movies on november 28, 1967 n/a",
]
CALLS: list[dict[str, Any]] = [
    {"queries": QUESTIONS[0]},
    {"queries": QUESTIONS[1], "return_tensors": "np"},
    {"queries": QUESTIONS, "padding": True, "return_tensors": "np"},
    {"queries": QUESTIONS, "padding": True, "padding_side": "left", "pad_to_multiple_of": 8},
    {"queries": QUESTIONS[:3], "padding": "max_length", "max_length": 80, "return_special_tokens_mask": True},
    *({"queries": QUESTIONS[0], "truncation": True, "max_length": length} for length in range(20, 60, 4)),
    {
        "queries": QUESTIONS[:2],
        "answer_coordinates": [[(0, 1)], [(1, 1), (2, 3)]],
        "answer_text": [["56"], ["45", "28 november 1967"]],
        "padding": True,
    },
    {"queries": QUESTIONS[0], "answer_coordinates": [(2, 3)], "answer_text": ["28 november 1967"]},
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"cell_trim_length": 1},
    {"cell_trim_length": 2, "strip_column_names": True},
    {"max_row_id": 3, "max_question_length": 5},
]


def vocabulary(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(WORDS)) + "\n", encoding="utf-8")
    return str(folder / "vocab.txt")


def plain(values: Any) -> Any:
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, list):
        return [plain(value) for value in values]
    return "nan" if values != values else values


def encoded(tokenizer: Any, table: Any, call: dict[str, Any]) -> Any:
    call = {name: list(value) if isinstance(value, list) else value for name, value in call.items()}
    try:
        return {name: plain(value) for name, value in tokenizer(table, **call).items()}
    except (ValueError, InputError):
        return "refused"


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:a question of")
@pytest.mark.parametrize("options", OPTIONS)
def test_tables_are_encoded_as_in_the_reference(tmp_path: Path, options: dict[str, Any]) -> None:
    import pandas
    import transformers

    path = vocabulary(tmp_path / "words")
    theirs, ours = transformers.TapasTokenizer(path, **options), transept.TapasTokenizer(path, **options)
    frame = pandas.DataFrame(MOVIES)
    rows = [dict(zip(MOVIES, row, strict=True)) for row in zip(*MOVIES.values(), strict=True)]
    for call in CALLS:
        expected = encoded(theirs, frame, call)
        if "max_row_id" in options and not call.get("truncation"):
            assert expected == "refused"
        for table in (MOVIES, frame, rows):
            assert encoded(ours, table, call) == expected, call
    for text in (*QUESTIONS, *MOVIES):
        assert ours.tokenize(text) == theirs.tokenize(text)
    ours.save_pretrained(tmp_path / "saved")
    again = [kind.from_pretrained(tmp_path / "saved") for kind in (transept.AutoTokenizer, transformers.TapasTokenizer)]
    assert isinstance(again[0], transept.TapasTokenizer)
    call = {"queries": QUESTIONS[0], "truncation": True}
    assert encoded(again[0], MOVIES, call) == encoded(again[1], frame, call) == encoded(theirs, frame, call)


@pytest.mark.reference
def test_numbers_and_dates_are_read_as_in_the_reference() -> None:
    from transformers.models.tapas import tokenization_tapas

    parts = [
        "1",
        "22",
        "333,000",
        "4.5",
        "-7",
        "+8",
        ".5",
        "2010",
        "2010s",
        "may",
        "june",
        "jan",
        "sep",
        "sept",
        "1st",
        "2nd",
        "first",
        "twelve",
        "2010-05-06",
        "5-6-2010",
        "2010-05",
        "06.05.2011",
        "monday,",
        "tuesday,",
        "friday",
        ",",
        "-",
        "-",
        ".",
        "/",
        "nan",
        "inf",
        "infinity",
        "1e400",
        "1,2,3",
        "$5",
        "31",
        "feb",
        "february",
        "29",
        "1699",
        "2017",
        "ten%",
        "zero",
    ]
    draw = random.Random(0)
    for _ in range(1500):
        text = " ".join(draw.choices(parts, k=draw.randint(1, 5))).replace(" ", draw.choice(["", " ", " "]), 1)
        spans = tokenization_tapas.parse_text(tokenization_tapas.normalize_for_match(text))
        expected = [value for span in spans for value in span.values]
        dates = [each.date and (each.date.year, each.date.month, each.date.day) for each in expected]
        assert values_of(text) == [date or each.float_value for date, each in zip(dates, expected, strict=True)], text


@pytest.mark.reference
def test_logits_are_read_as_in_the_reference(tmp_path: Path) -> None:
    import pandas
    import torch
    import transformers

    path = vocabulary(tmp_path)
    theirs, ours = transformers.TapasTokenizer(path), transept.TapasTokenizer(path)
    inputs = theirs(pandas.DataFrame(MOVIES), QUESTIONS[:3], padding=True, return_tensors="pt")
    generator = torch.Generator().manual_seed(0)
    logits, ways = torch.randn(inputs["input_ids"].shape, generator=generator), torch.randn(3, 4, generator=generator)
    for more in ((), (ways,)):
        given = [logits.clone(), *more]
        assert ours.convert_logits_to_predictions(inputs, *given) == theirs.convert_logits_to_predictions(inputs, *given)
    assert ours.convert_logits_to_predictions(inputs, logits, cell_classification_threshold=0.9) == ([[], [], []],)


def test_what_is_no_table(tmp_path: Path) -> None:
    tokenizer = transept.TapasTokenizer(vocabulary(tmp_path))
    assert read_table({"a": [1, None], "b": [2.5, "x"]}).rows == [["1", "2.5"], ["", "x"]]
    assert tokenizer(["how many", "in ?"], padding=True)["attention_mask"] == [[1, 1, 1, 1], [1, 1, 1, 1]]
    with pytest.raises(InputError, match="have 1 to 2 cells"):
        read_table({"a": ["1"], "b": ["1", "2"]})
    with pytest.raises(InputError, match="row 1 of a table has the names"):
        read_table([{"a": "1"}, {"b": "1"}])
    with pytest.raises(InputTypeError, match=r"row 0, column 'a': a cell is \[\]"):
        read_table({"a": [[]]})
    with pytest.raises(InputTypeError, match="a table was expected"):
        read_table(3)
    with pytest.raises(InputError, match=r"the answer \(7, 1\) is not in the table"):
        tokenizer(MOVIES, QUESTIONS[0], answer_coordinates=[(7, 1)], answer_text=["56"])
    with pytest.raises(InputError, match="come together"):
        tokenizer(MOVIES, QUESTIONS[0], answer_text=["56"])
    with pytest.raises(InputError, match="there are 1 questions, but answers to 2"):
        tokenizer(MOVIES, QUESTIONS[:1], answer_coordinates=[[], []], answer_text=[[], []])
    with pytest.raises(InputError, match="are 50 tokens, but `max_length` is 8"):
        tokenizer(MOVIES, QUESTIONS[0], max_length=8)
