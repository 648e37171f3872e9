"""`transept train`, `resume` and `eval`."""

from __future__ import annotations

import json
import shutil

import pytest

from transept import pipeline
from transept.cli.train import ROLES
from transept.training.recipes import ALIASES, FILES, recipe_named
from transept.training.reports.jsonl import read_log

from . import recipe_data
from .recipe_data import RECIPES

SHORT = ("--set", "max_steps=3", "--set", "per_device_train_batch_size=4", "--set", "logging_steps=1")


def test_every_recipe_is_tried_and_has_its_options():
    assert {*RECIPES} == {*FILES}
    assert {recipe_named(name).task for name in [*FILES, *ALIASES]} == {*FILES}
    roles = {column.role for name in FILES for column in getattr(recipe_named(name), "columns", ())}
    assert roles <= {*ROLES}


@pytest.mark.parametrize("task", RECIPES)
def test_every_recipe_trains(task, command, tmp_path):
    data, model, metric = RECIPES[task]
    start, run = tmp_path / "start", tmp_path / "run"
    start.mkdir()
    model(start)
    done = command("train", task, "--data", data(tmp_path), "--model", start, "--output", run, *SHORT, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["updates"] == 3
    assert metric in told["metrics"]
    files = {path.name for path in run.iterdir()}
    assert {"run.json", "log.jsonl", "README.md", "config.json", "model.safetensors", "checkpoint-3"} <= files
    log = read_log(run / "log.jsonl")
    assert [line["step"] for line in log if "loss" in line] == [1, 2, 3]
    assert sum("eval_loss" in line for line in log) >= 2
    about = json.loads((run / "run.json").read_text())
    assert about["rows"]["eval"] >= 1
    assert f"transept train {task}" in (run / "README.md").read_text()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A classifier that was trained long enough to be right."""
    from transept.cli.main import main

    folder = tmp_path_factory.mktemp("trained")
    (folder / "start").mkdir()
    recipe_data.text_model("BertModel")(folder / "start")
    data = recipe_data.ratings(folder)
    settings = ("--set", "learning_rate=5e-3", "--set", "num_train_epochs=5", "--set", "save_total_limit=9")
    words = ("train", "text-classification", "--data", data, "--model", folder / "start", "--output", folder / "run", *settings)
    assert main([*map(str, words)]) == 0
    return folder


def test_a_run_learns_and_is_measured(trained, command):
    metrics = json.loads((trained / "run/run.json").read_text())["results"]["metrics"]
    assert metrics["eval_accuracy"] == 1.0
    assert pipeline("text-classification", model=trained / "run")("good cat")[0]["label"] == "GOOD"
    done = command("eval", trained / "run", "--data", trained / "ratings.jsonl", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["rows"] == 40
    assert json.loads(done.out)["accuracy"] == 1.0
    done = command("eval", trained / "run", "--data", trained / "ratings.jsonl", "--metrics", "accuracy")
    assert "accuracy  1.0000" in done.out
    assert "macro" not in done.out
    done = command("eval", trained / "run", "--data", trained / "ratings.jsonl", "--metrics", "f2")
    assert "there is no metric 'f2' for this task. There are: accuracy, macro_f1, loss" in done.err
    done = command("eval", trained / "start", "--data", trained / "ratings.jsonl")
    assert "the task of the model is not known. Pass --task" in done.err


def test_a_dry_run_trains_nothing(command, trained, tmp_path):
    arguments = ("train", "text-classification", "--data", trained / "ratings.jsonl", "--model", trained / "start")
    done = command(*arguments, "--output", tmp_path / "run", "--dry-run", "--set", "max_length=12")
    assert done.code == 0, done.err
    assert not (tmp_path / "run").exists()
    for part in (
        "example 3",
        "[CLS] good film [SEP]",
        "labels  GOOD",
        "rows",
        "parameters",
        "updates",
        "tokens",
        "memory",
        "time",
    ):
        assert part in done.out
    found = json.loads(command(*arguments, "--dry-run", "--json").out)
    assert found["rows"]["train"] + found["rows"]["eval"] == 40
    assert found["bytes"]["weights"] == 4 * found["parameters"]["all"]


def test_a_recipe_in_a_file(command, trained, tmp_path):
    pytest.importorskip("yaml")
    recipe = tmp_path / "recipe.yaml"
    settings = "settings:\n  max_steps: 2\n  learning_rate: 3e-5\n  eval_strategy: no\n  load_best_model_at_end: false\n"
    recipe.write_text(f"task: text-classification\ndata: {trained / 'ratings.jsonl'}\nmodel: {trained / 'start'}\n{settings}")
    done = command("train", recipe, "--output", tmp_path / "run", "--set", "max_steps=1", "--set", "save_strategy=no")
    assert done.code == 0, done.err
    about = json.loads((tmp_path / "run/run.json").read_text())
    assert about["results"]["updates"] == 1
    assert about["arguments"]["resolved"]["learning_rate"] == 3e-5
    recipe.write_text("task: text-classification\ndate: x.csv\n")
    done = command("train", recipe)
    assert (done.code, "a recipe has no 'date'. Did you mean 'data'" in done.err) == (1, True)


def test_a_run_is_gone_on_with(command, trained, tmp_path):
    run, arguments = (
        tmp_path / "run",
        ["text-classification", "--data", trained / "ratings.jsonl", "--model", trained / "start"],
    )
    by_step = ("max_steps=8", "save_strategy=steps", "save_steps=4", "eval_strategy=no", "load_best_model_at_end=false")
    settings = [word for setting in (*by_step, "eval_on_start=false") for word in ("--set", setting)]
    whole = command("train", *arguments, *settings, "--output", run, "--json")
    assert whole.code == 0, whole.err
    weights, log = (run / "model.safetensors").read_bytes(), read_log(run / "log.jsonl")
    shutil.rmtree(run / "checkpoint-8")  # as if it had been interrupted
    done = command("resume", run, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == json.loads(whole.out)
    assert (run / "model.safetensors").read_bytes() == weights
    again = read_log(run / "log.jsonl")
    assert [line["loss"] for line in again if "loss" in line] == [line["loss"] for line in log if "loss" in line]
    assert "holds a run already. Go on with `transept resume" in command("train", *arguments, "--output", run).err
    data = trained / "ratings.jsonl"
    before = data.read_text()
    try:
        data.write_text(before + '{"text": "good day", "label": "GOOD"}\n')
        assert "changed since the run began" in command("resume", run).err
    finally:
        data.write_text(before)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["text-clasification", "--data", "DATA"],
            "there is no recipe for 'text-clasification'. Did you mean 'text-classification'",
        ),
        (["text-classification"], "there are no data to train on. Pass --data PATH"),
        (["causal-lm", "--data", "DATA"], "the task 'causal-lm' has no default model. Pass --model PATH"),
        (["text-classification", "--data", "none.jsonl"], "none.jsonl: there is no such file"),
        (
            ["text-classification", "--data", "DATA", "--set", "learning_rat=1"],
            "there is no setting 'learning_rat'. Did you mean 'learning_rate'",
        ),
        (["text-classification", "--data", "DATA", "--set", "learning_rate=fast"], "`learning_rate`"),
        (["text-classification", "--data", "DATA", "--set", "max_length=99"], "the model has positions for 64 tokens"),
        (["text-classification", "--data", "DATA", "--set", "eval_share=2"], "eval_share"),
        (
            ["text-classification", "--data", "DATA", "--label", "labels"],
            "there is no column 'labels' for `label`. Did you mean 'label'",
        ),
        (["token-classification", "--data", "DATA"], "the tokens is not clear"),
    ],
)
def test_mistakes(words, message, command, trained, tmp_path):
    data = str(trained / "ratings.jsonl")
    words = [data if word == "DATA" else word for word in words]
    model = [] if "no default model" in message else ["--model", trained / "start"]
    done = command("train", *words, *model, "--output", tmp_path / "run")
    assert done.code == 1
    assert message in done.err
    assert not (tmp_path / "run").exists()


def test_runs_that_cannot_be_gone_on_with(command, tmp_path):
    assert "is no run: it has no run.json" in command("resume", tmp_path).err
    (tmp_path / "run.json").write_text('{"run": {"task": "text-classification"}}')
    assert "holds no whole checkpoint to go on from" in command("resume", tmp_path).err
