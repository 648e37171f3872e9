"""Rows from files of every kind, and what is said of files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from transept.errors import FileError, FormatError, InputError, InputTypeError, MissingExtraError
from transept.tables.dataset import TableDataset, as_dataset, split_by_hash
from transept.tables.files import digest_of, load_dataset_file

ROWS = [{"text": "good", "label": 1}, {"text": "bad, very", "label": 0}, {"text": 'a "new"\nline', "label": 1}]


def written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


JSONL = "\n\n".join(map(json.dumps, ROWS)) + "\n"
CSV = 'text,label\ngood,1\n"bad, very",0\n"a ""new""\nline",1\n'
SAME = {
    "a.jsonl": JSONL,
    "b.json": json.dumps(ROWS),
    "c.json": json.dumps({"version": 1, "data": ROWS}),
    "d.json": json.dumps({name: [row[name] for row in ROWS] for name in ("text", "label")}),
    "e.json": JSONL,
    "f.csv": CSV,
    "g.csv": CSV.replace(",label", ";label").replace(",1", ";1").replace('",0', '";0'),
    "h.csv": CSV.replace("\n", "\r\n").replace('new""\r\n', 'new""\n'),
    "i.jsonl": JSONL.encode("utf-8-sig"),
    "j.jsonl": JSONL.encode("utf-16"),
    "k.jsonl": JSONL.encode("utf-32"),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_rows_in_every_format(name, tmp_path):
    dataset = load_dataset_file(written(tmp_path / name, SAME[name]))
    assert dataset.column_names == ["text", "label"]
    assert [*dataset] == ROWS
    assert [*dataset[1:]] == ROWS[1:]


def test_lines_of_rows(tmp_path):
    path = written(tmp_path / "a.csv", CSV)
    assert [load_dataset_file(path).place(i) for i in range(3)] == [f"{path}:{line}" for line in (2, 3, 4)]
    path = written(tmp_path / "a.jsonl", JSONL)
    assert [load_dataset_file(path)[1:].place(i) for i in range(2)] == [f"{path}:{line}" for line in (3, 5)]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("text,label\na,b\n", ["text", "label"]),
        ("a fine film,1\nbad,0\n", ["column1", "column2"]),  # a number is no name
        ("great,pos\nbad,neg\nfine,pos\n", ["column1", "column2"]),  # a name does not come again as a value
        ("this is what I call a film,pos\nno,neg\n", ["column1", "column2"]),  # nor is it a sentence
    ],
)
def test_a_first_line_that_holds_no_names(content, names, tmp_path):
    dataset = load_dataset_file(written(tmp_path / "a.csv", content))
    assert dataset.column_names == names
    assert len(dataset.notes) == (names[0] == "column1")
    assert load_dataset_file(tmp_path / "a.csv", header=False).column_names == ["column1", "column2"]


def test_numbers_in_tables(tmp_path):
    text = 'a\tb\tc\td\n1\t1.5\t007\t"x\n\t-2\t008\ty"\n'
    dataset = load_dataset_file(written(tmp_path / "a.tsv", text))
    rows = [{"a": 1, "b": 1.5, "c": "007", "d": '"x'}, {"a": None, "b": -2.0, "c": "008", "d": 'y"'}]
    assert [*dataset] == rows


def test_texts(tmp_path):
    path = written(tmp_path / "a.txt", "one\ntwo\n\n\nthree\n")
    expected = {"line": ["one", "two", "three"], "paragraph": ["one\ntwo", "three"], "document": ["one\ntwo\n\n\nthree\n"]}
    for how, texts in expected.items():
        assert load_dataset_file(path, sample_by=how).column("text") == texts
    lines = load_dataset_file(path, sample_by="paragraph").lines
    assert lines == [1, 5]


def test_conll(tmp_path):
    text = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n"
    dataset = load_dataset_file(written(tmp_path / "a.conll", text))
    rows = [{"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}, {"tokens": ["Peter"], "tags": ["B-PER"]}]
    assert [*dataset] == rows
    assert dataset.lines == [3, 6]
    assert load_dataset_file(written(tmp_path / "a.txt", "New York\tB\n#\tO\n"), format="conll")[0]["tokens"] == [
        "New York",
        "#",
    ]


def test_squad_and_coco(tmp_path):
    asked = {"question": "Who?", "id": "1", "answers": [{"text": "Ada", "answer_start": 0}]}
    squad = {"version": "1", "data": [{"title": "t", "paragraphs": [{"context": "Ada came.", "qas": [asked]}]}]}
    dataset = load_dataset_file(written(tmp_path / "squad.json", json.dumps(squad)))
    answers = {"text": ["Ada"], "answer_start": [0]}
    assert dataset[0] == {"id": "1", "question": "Who?", "context": "Ada came.", "answers": answers}
    boxes = [{"image_id": 7, "category_id": 2, "bbox": [1, 2, 3, 4]}, {"image_id": 7, "category_id": 2, "iscrowd": 1}]
    coco = {"images": [{"id": 7, "file_name": "a.png"}], "annotations": boxes, "categories": [{"id": 2, "name": "cat"}]}
    dataset = load_dataset_file(written(tmp_path / "coco.json", json.dumps(coco)))
    assert dataset[0] == {"image": "a.png", "objects": {"bbox": [[1, 2, 3, 4]], "category": ["cat"]}}
    del coco["annotations"][0]["bbox"]
    with pytest.raises(FormatError, match=r"coco.json: a part of its layout is missing"):
        load_dataset_file(written(tmp_path / "coco.json", json.dumps(coco)))


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([*ROWS, {"text": "z", "label": None}]), path)
    assert [*load_dataset_file(path)] == [*ROWS, {"text": "z", "label": None}]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FormatError, match=r"a.parquet: cannot be read as Parquet"):
        load_dataset_file(path)


def test_parquet_with_any_types(tmp_path):
    chat = [[{"role": "user", "content": "hi"}], None, []] * 40
    columns = {
        "chat": chat,
        "map": pyarrow.array([[("k", "v")], None, []] * 40, pyarrow.map_(pyarrow.string(), pyarrow.string())),
    }
    columns |= {
        "file": [{"bytes": b"abc", "path": None}, None, {"bytes": b"", "path": "p"}] * 40,
        "class": ["u", None, "v"] * 40,
    }
    columns |= {"scores": pyarrow.array([[1, 2], None, [3, 4]] * 40, pyarrow.list_(pyarrow.int64(), 2)), "none": [None] * 120}
    columns |= {"large": pyarrow.array(["x", None, ""] * 40, pyarrow.large_string())}
    table = pyarrow.table(columns)
    for options in ({}, {"row_group_size": 7}, {"use_dictionary": False}, {"store_schema": False}):
        parquet.write_table(table, tmp_path / "a.parquet", **options)
        assert [*load_dataset_file(tmp_path / "a.parquet")] == table.to_pylist()


def repeated(length, count, first=0):
    """`count` times one value of a length, which a file holds once, after `first` rows without one."""
    places = pyarrow.array([None] * first + [0] * count, pyarrow.int32())
    return pyarrow.DictionaryArray.from_arrays(places, pyarrow.array(["a" * length]))


@pytest.mark.parametrize("kind", ["texts", "later", "bytes", "columns", "lists", "numbers"])
def test_parquet_that_would_fill_the_memory(tmp_path, kind):
    """Files below 300 kB that hold 2 GB and more."""
    columns = {"text": repeated(10**5, 20_000)}
    if kind == "later":
        columns = {"text": repeated(10**5, 20_000, 5000)}
    if kind == "bytes":
        columns = {"image": columns["text"].cast(pyarrow.dictionary(pyarrow.int32(), pyarrow.binary()))}
    if kind == "columns":
        columns = {f"column{number}": repeated(10**5, 400) for number in range(50)}
    if kind == "lists":  # all in one row
        starts = pyarrow.array([0] * 50 + [20_000] * 50, pyarrow.int32())
        columns = {"texts": pyarrow.ListArray.from_arrays(starts, columns["text"])}
    if kind == "numbers":
        columns = {"label": pyarrow.nulls(10_000_000, pyarrow.bool_())}
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(columns), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 300_000
    before = pyarrow.total_allocated_bytes()
    pool = pyarrow.default_memory_pool()
    with pytest.raises(FormatError, match=r"a\.parquet: holds more than the \d+ bytes of rows allowed for a file of its size"):
        load_dataset_file(path)
    assert pyarrow.total_allocated_bytes() - before < 2**20
    assert pool.max_memory() < 2**30


def test_parquet_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"transept\[train\]"):
        load_dataset_file(written(tmp_path / "a.parquet", b"PAR1"))


def test_folders(tmp_path):
    for name in ("cat/1.png", "cat/deep/2.JPG", "dog/3.png", ".hidden/4.png", "cat/notes.txt"):
        written(tmp_path / "all" / name, b"")
    dataset = load_dataset_file(tmp_path / "all")
    assert dataset.column("label") == ["cat", "cat", "dog"]
    assert dataset.column("image") == [str(tmp_path / "all" / n) for n in ("cat/1.png", "cat/deep/2.JPG", "dog/3.png")]
    written(tmp_path / "sounds" / "yes" / "1.wav", b"")
    assert load_dataset_file(tmp_path / "sounds").column_names == ["audio", "label"]
    moved = (tmp_path / "all").rename(tmp_path / "elsewhere")
    assert [load_dataset_file(moved).key(i) for i in range(3)] == [dataset.key(i) for i in range(3)]
    assert digest_of(moved) != digest_of(tmp_path / "sounds")


WRONG = {
    "not_json.jsonl": ('{"a": 1}\n{"a": 1]\n', r"not_json.jsonl:2: is not valid JSON"),
    "list.jsonl": ('{"a": 1}\n\n[1]\n', r"list.jsonl:3: the line holds list"),
    "twice.jsonl": ('{"a": 1, "a": 2}\n', r"twice.jsonl:1: .*twice"),
    "latin.jsonl": ('{"a": "é"}\n{"a": "\xe9"}\n'.encode("latin-1"), r"latin.jsonl:1: the line is not text in utf-8 \(byte 7"),
    "short.csv": ("a,b\n1,2\n3\n", r"short.csv:3: the line has 1 values, but the first one has 2"),
    "long.csv": ("a,b\n1,2\n3,4,5\n", r"long.csv:3: .* between double quotes"),
    "quote.csv": ('a,b\n1,2\n3,"4\n', r"quote.csv:3: is not CSV"),
    "names.csv": ("a,a\n1,2\n", r"names.csv:1: has two columns of the name"),
    "one.conll": ("word\n", r"one.conll:1: the line has 1 columns, but a token and its tag are two"),
    "three.conll": ("a O\nb N O\n", r"three.conll:2: the line has 3 columns, .* stand in 2"),
    "number.json": ("3", r"number.json: holds no rows: its JSON is not a list"),
    "rows.json": ('[{"a": 1}, 2]', r"rows.json: holds no rows"),
    "empty.jsonl": ("\n", r"empty.jsonl: holds no rows"),
    "header.csv": ("text,label\n", r"header.csv: holds no rows"),
    "odd.xyz": ("a", r"odd.xyz: the ending '.xyz' tells no format"),
    "deep.jsonl": ("[" * 100 + "]" * 100 + "\n", r"deep.jsonl:1: is nested deeper"),
    "nan.jsonl": ('{"a": NaN}\n', r"nan.jsonl:1: holds the number NaN"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files(name, tmp_path):
    content, message = WRONG[name]
    header = True if name == "names.csv" else None
    with pytest.raises(FormatError, match=message):
        load_dataset_file(written(tmp_path / name, content), header=header)


def test_wrong_arguments(tmp_path):
    path = written(tmp_path / "a.jsonl", JSONL)
    with pytest.raises(FileError, match="there is no such file"):
        load_dataset_file(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="there is no format 'cvs'. Did you mean 'csv'"):
        load_dataset_file(path, format="cvs")
    with pytest.raises(InputError, match="there is no encoding 'utf-9'"):
        load_dataset_file(path, encoding="utf-9")
    with pytest.raises(InputError, match="`sample_by` is 'word'"):
        load_dataset_file(path, sample_by="word")
    with pytest.raises(FormatError, match="more than the 10 allowed"):
        load_dataset_file(path, max_bytes=10)
    with pytest.raises(FormatError, match=r"a.jsonl:1: the line is not text in utf-16"):
        load_dataset_file(
            written(path, JSONL[:-1] + " " * (len(JSONL) % 2)), encoding="utf-16-le" if len(JSONL) < 0 else "utf-16"
        )


def test_wrong_folders(tmp_path):
    with pytest.raises(FormatError, match="holds no pictures"):
        load_dataset_file(tmp_path)
    written(tmp_path / "flat" / "a.png", b"")
    with pytest.raises(FormatError, match="'a.png' lies in no folder of a class"):
        load_dataset_file(tmp_path / "flat")
    written(tmp_path / "both" / "a" / "a.png", b"")
    written(tmp_path / "both" / "a" / "a.wav", b"")
    with pytest.raises(FormatError, match="pictures and sounds"):
        load_dataset_file(tmp_path / "both")
    written(tmp_path / "splits" / "train" / "cat" / "a.png", b"")
    written(tmp_path / "splits" / "test" / "cat" / "a.png", b"")
    with pytest.raises(FormatError, match=r"holds splits \(test, train\)"):
        load_dataset_file(tmp_path / "splits")


class Indexed:
    """What the `datasets` library offers."""

    column_names = ["text", "label"]
    features = {"label": type("ClassLabel", (), {"names": ["bad", "good"]})(), "text": None}

    def __getitem__(self, index):
        return ROWS[index]

    def __len__(self):
        return len(ROWS)


def test_objects():
    assert [*as_dataset(Indexed())] == ROWS
    assert as_dataset(Indexed()).class_names == {"label": ["bad", "good"]}
    assert [*as_dataset(iter(ROWS))] == ROWS
    assert [*as_dataset({"text": ["a", "b"], "label": [0, 1]})] == [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    assert [*as_dataset([{"a": 1}, {"b": 2}])] == [{"a": 1, "b": None}, {"a": None, "b": 2}]
    table = TableDataset(ROWS)
    assert as_dataset(table) is table
    with pytest.raises(InputError, match=r"collection of splits \('train'\)"):
        as_dataset({"train": Indexed()})
    with pytest.raises(InputError, match="not lists of one length: a 1, b 2"):
        as_dataset({"a": [1], "b": [1, 2]})
    for wrong in ("a.csv", 3):
        with pytest.raises(InputTypeError, match="collection of rows"):
            as_dataset(wrong)
    with pytest.raises(InputTypeError, match="row 2 is int"):
        as_dataset([{"a": 1}, 2])
    with pytest.raises(InputError, match="no column 'txt'. Did you mean 'text'"):
        table.column("txt")


def test_splits_stay_when_rows_are_added():
    rows = [{"text": f"text {i}"} for i in range(1000)]
    train, held_out = split_by_hash(TableDataset(rows), 0.1)
    assert len(train) + len(held_out) == 1000
    assert 70 <= len(held_out) <= 130
    more = split_by_hash(TableDataset([*reversed(rows), *({"text": f"new {i}"} for i in range(100))]), 0.1)[1]
    assert {row["text"] for row in held_out} <= {row["text"] for row in more}
    parts = split_by_hash(TableDataset(rows), 0.1, 0.1)
    assert sum(map(len, parts)) == 1000
    assert [*parts[1]] == [*held_out]


def test_small_splits():
    for n in range(2, 30):
        parts = split_by_hash(TableDataset([{"text": str(i)} for i in range(n)]), 0.1)
        assert all(map(len, parts))
        assert sum(map(len, parts)) == n
    twice = TableDataset([{"text": str(i % 3)} for i in range(30)])
    train, held_out = split_by_hash(twice, 0.1)
    assert not {row["text"] for row in train} & {row["text"] for row in held_out}
    with pytest.raises(InputError, match="1 different rows cannot be split in 2"):
        split_by_hash(TableDataset([{"text": "a"}] * 5), 0.1)
    with pytest.raises(InputError, match="shares of the rows"):
        split_by_hash(twice, 0.5, 0.5)


REAL = Path(__file__).parents[3] / "shared/data/datasets"


@pytest.mark.real_data
@pytest.mark.skipif(not REAL.exists(), reason=f"real data are missing: {REAL}")
@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("banking77/train_20_per_class.csv", 1540, ["text", "category"]),
        ("ag_news/ag_news_first1000.csv", 1000, ["column1", "column2", "column3"]),
        ("sst2/dev.tsv", 872, ["column1", "column2"]),
        ("wnut17/emerging.dev.conll", 500, ["tokens", "tags"]),
        ("dialogsum/dialogsum.dev.jsonl", 500, ["fname", "dialogue", "summary", "topic"]),
        ("xquad/xquad.en.first12articles.json", 322, ["id", "question", "context", "answers"]),
        ("hf_tests_samples/MRPC/train.tsv", 6, ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]),
        ("hf_tests_samples/wmt_en_ro/train.json", 11, ["translation"]),
        ("cifar10_subset/train", 300, ["image", "label"]),
    ],
)
def test_real_files(name, rows, columns):
    dataset = load_dataset_file(REAL / name)
    assert (len(dataset), dataset.column_names) == (rows, columns)
