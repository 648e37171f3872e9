"""Ray: parts as its tasks, and columns of its data sets. One Ray is started for all of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipelines.test_text_generation import writer_at
from transept.batch import Classify, Embed, Generate

ray: Any = pytest.importorskip("ray", reason='Ray is not installed: pip install "transept[ray]"')
WORDS = ["i love this", "bad cat", "the dog is good", "a book", "this film"]
TEXTS = [f"{WORDS[n % 5]} {'a' * (n % 7)}" for n in range(60)]
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()


def test_parts_as_tasks_are_the_files_of_one_process(command: Any, encoder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Named from the working directory, with one that fails; either engine goes on with what the other has begun."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes("\n".join(TEXTS).encode() + b"\nbad \xff\n")
    line = ["embed", "a.txt", "--model", encoder, "--part-size", "200B"]
    done = command(*line, "--output", "tasks", "--engine", "ray")
    assert (done.code, done.out) == (1, "tasks: 60 answered, 1 failed, in 5 parts\n")
    assert command(*line, "--output", "one").code == 1
    made, alone = ({path.name: path.read_bytes() for path in Path(name).iterdir()} for name in ("tasks", "one"))
    assert sorted(made) == sorted(alone)
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in made:
        if name.endswith(".parquet"):
            one, other = parquet.read_table(tmp_path / "one" / name), parquet.read_table(tmp_path / "tasks" / name)
            assert one.drop(["embedding"]).equals(other.drop(["embedding"]))
            np.testing.assert_allclose(*(_vectors(table) for table in (one, other)), atol=1e-6)
    first = sorted((tmp_path / "tasks").glob("part-*"))[0]
    first.unlink()
    assert command(*line, "--output", "tasks").out == done.out
    assert first.exists()
    first.unlink()
    assert command(*line, "--output", "tasks", "--engine", "ray").out == done.out
    assert first.exists()


def _vectors(table: Any) -> Any:
    return np.stack([row for row in table["embedding"].to_pylist() if row is not None])


def test_what_a_task_fails_with_is_told(command: Any, encoder: Path, tmp_path: Path) -> None:
    parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    table = pyarrow.table({"text": [f"{word} {n}" for n in range(3) for word in WORDS]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=5, use_dictionary=False, compression="NONE")
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    place = data.index(b"i love this 1") - 30
    data[place : place + 20] = b"\xff" * 20
    (tmp_path / "a.parquet").write_bytes(data)
    done = command("embed", tmp_path / "a.parquet", "--model", encoder, "--output", tmp_path / "parts", "--engine", "ray")
    assert (done.code, len(done.complaints)) == (1, 1)
    assert "a.parquet: cannot be read as Parquet" in done.err
    assert "10 answered, in 2 parts, 1 parts are missing" in done.out


@pytest.mark.parametrize("kind", [Embed, Classify, Generate], ids=lambda kind: kind.__name__)
def test_columns_of_data_sets(kind: Any, encoder: Path, classifier: Path, tmp_path: Path) -> None:
    """By two workers, each with a model of its own, as by one."""
    model = str({Embed: encoder, Classify: classifier}.get(kind) or writer_at(str(tmp_path)))
    settings = {"model": model} | ({"max_new_tokens": 3} if kind is Generate else {})
    data = ray.data.from_items([{"id": n, "text": text} for n, text in enumerate(TEXTS)]).repartition(4)
    mapped = data.map_batches(kind, fn_constructor_kwargs=settings, concurrency=2, batch_size=10)
    found = sorted(mapped.take_all(), key=lambda row: row["id"])
    alone = kind(**settings)({"text": TEXTS})
    assert [row["text"] for row in found] == TEXTS
    for name in alone.keys() - {"text"}:
        if name in ("embedding", "score"):
            np.testing.assert_allclose(np.stack([row[name] for row in found]), np.asarray(alone[name]), atol=1e-6)
        else:
            assert [row[name] for row in found] == alone[name]
