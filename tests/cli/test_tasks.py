"""Options of tasks are options of the command, and its help tells of each."""

from __future__ import annotations

import json

import pytest

from transept import pipeline
from transept.cli.arguments import FIELDS, annotated, documented
from transept.pipelines import task_class, task_names

from .commands import answers, save_text_model

TEXT = "i love this film!"


@pytest.mark.parametrize("task", task_names())
def test_the_options_of_each_task_are_found_and_told(command, task):
    kind = task_class(task).options_class
    names = [name for name in annotated(kind) if name != "generation"]
    assert names
    done = command("run", task, "--help")
    assert (done.code, done.err) == (0, "")
    for name in (*names, *FIELDS.get(task, ())):
        assert f"--{name.replace('_', '-')} " in done.out.replace("\n", " ")
    told = {name for base in kind.__mro__ for name in documented(base)}
    assert {name for name in names if name not in told} <= {"function_to_apply"}


def test_options_are_taken_as_they_are(command, classifier):
    line = ("run", "text-classification", "--model", classifier, TEXT)
    for given in (["--top-k", 2], ["--top-k=2"], ["--option", "top_k=2"], ["--top-k", "null"], ["--top-k", "None"]):
        done = command(*line, *given)
        assert (done.code, done.err) == (0, "")
        assert len(*answers(done.out)) == 2
    ((answer,),) = answers(command(*line, "--top-k", 1, "--function-to-apply", "none").out)
    (expected,) = pipeline("text-classification", classifier)(TEXT, top_k=1, function_to_apply="none")
    assert answer["score"] == pytest.approx(expected["score"], abs=1e-6)


def test_switches_need_no_value(command, encoder):
    whole = json.loads(command("embed", "--model", encoder, "--normalize", stdin=b"a cat\n").out)["embedding"]
    assert sum(value**2 for value in whole) == pytest.approx(1, abs=1e-5)
    (again,) = answers(command("run", "text-embedding", "--model", encoder, "--normalize", "a cat").out)
    assert again == pytest.approx(whole, abs=1e-6)
    plain = json.loads(command("embed", "--model", encoder, "--no-normalize", stdin=b"a cat\n").out)["embedding"]
    assert sum(value**2 for value in plain) != pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--topk", "2"], ["'--topk'", "'--top-k'"]),
        (["--top_k", "2"], ["'--top_k'", "'--top-k'"]),
        (["--aggregation-strategy", "simple"], ["there is no option '--aggregation-strategy'"]),
        (["--top-k"], ["--top-k"]),
    ],
    ids=str,
)
def test_other_options_are_refused_with_the_nearest(command, classifier, line, words):
    done = command("run", "text-classification", "--model", classifier, TEXT, *line)
    assert (done.code, len(done.complaints), done.out) == (2, 1, "")
    for word in words:
        assert word in done.err


def test_values_are_checked_by_the_task(command, classifier):
    done = command("run", "text-classification", "--model", classifier, TEXT, "--top-k", "-1")
    assert (done.code, len(done.complaints)) == (1, 1)
    assert "`top_k`" in done.err


def test_what_stands_behind_two_dashes_is_a_text(command, classifier):
    done = command("run", "text-classification", "--model", classifier, "--", "--top-k")
    assert (done.code, done.err) == (0, "")
    assert answers(done.out)[0]["label"] in ("GOOD", "BAD")


def test_parts_of_inputs_are_options(command, classifier, tmp_path):
    model = save_text_model(tmp_path / "questions", "BertForQuestionAnswering")
    line = ("run", "question-answering", "--model", model)
    asked = {"question": "is the dog good", "context": "the cat sleeps. the dog is good."}
    expected = pipeline("question-answering", model)(asked)
    contexts = tmp_path / "contexts.txt"
    contexts.write_text(asked["context"] + "\n")
    for given in (
        ["--question", asked["question"], asked["context"]],
        [asked["question"], "--context", asked["context"]],
        ["--question", asked["question"], "--context", asked["context"]],
        ["--question", asked["question"], "--file", contexts],
    ):
        done = command(*line, *given)
        assert (done.code, done.err, len(done.out.splitlines())) == (0, "", 1)
        assert answers(done.out)[0]["answer"] == expected["answer"]
    contexts.with_suffix(".jsonl").write_text(json.dumps({"context": asked["context"]}))
    done = command(*line, "--question", asked["question"], "--file", contexts.with_suffix(".jsonl"))
    assert answers(done.out)[0]["answer"] == expected["answer"]
    done = command(*line, "--question", "a", "--context", "b", "c")
    assert (done.code, len(done.complaints)) == (2, 1)
    assert "'question' and 'context' are both given" in done.err
    done = command("run", "text-classification", "--model", classifier, "i love", "i hate", "--text-pair", "this film")
    pairs = [{"text": text, "text_pair": "this film"} for text in ("i love", "i hate")]
    scores = [answer["score"] for answer in pipeline("text-classification", classifier)(pairs)]
    assert [answer["score"] for answer in answers(done.out)] == pytest.approx(scores, abs=1e-6)
