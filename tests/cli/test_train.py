"""`transept train`, `resume` and `eval`."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.thorough import in_turn
from transept import Seq2SeqTrainingArguments, pipeline
from transept.cli.train import ROLES
from transept.training.callbacks.reports import read_log
from transept.training.checkpoint.directory import check_checkpoint
from transept.training.recipes import ALIASES, recipe_named
from transept.training.recipes import RECIPES as KNOWN

from . import recipe_data
from .recipe_data import RECIPES

SHORT = ("--set", "max_steps=3", "--set", "per_device_train_batch_size=4", "--set", "logging_steps=1")


def test_every_recipe_is_tried_and_has_its_options():
    assert {*RECIPES} == {*KNOWN}
    assert {recipe_named(name).task for name in [*KNOWN, *ALIASES]} == {*KNOWN}
    roles = {column.role for name in KNOWN for column in getattr(recipe_named(name), "columns", ())}
    assert roles <= {*ROLES}


@pytest.mark.parametrize("task", in_turn(RECIPES, 10))
def test_every_recipe_trains(task, command, tmp_path):
    data, model, metric = RECIPES[task]
    start, run = tmp_path / "start", tmp_path / "run"
    start.mkdir()
    begin = ("--model", start) if model(start) is not None else ()
    writes = issubclass(recipe_named(task).arguments_class, Seq2SeqTrainingArguments)
    brief = (*SHORT, "--set", "generation_max_length=8") if writes else SHORT
    done = command("train", task, "--data", data(tmp_path), *begin, "--output", run, *brief, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["updates"] == 3
    assert metric in told["metrics"]
    files = {path.name for path in run.iterdir()}
    assert {"run.json", "log.jsonl", "README.md", "config.json", "model.safetensors", "plot.png"} <= files
    assert [*run.rglob("checkpoint-3/MANIFEST.json")]
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


@pytest.mark.parametrize("task", ["causal-lm", "sentence-embedding", "preference"])
def test_a_measurement_without_metrics_of_the_task_is_json_alone(task, command, tmp_path):
    data, model, metric = RECIPES[task]
    (tmp_path / "start").mkdir()
    done = command("eval", model(tmp_path / "start"), "--task", task, "--data", data(tmp_path), "--json")
    assert done.code == 0, done.err
    assert {"rows", metric} <= json.loads(done.out).keys()


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


@pytest.fixture(scope="module")
def taught(trained):
    """Rows half of which have a label, and texts without one."""
    data, more = recipe_data.partly_rated(trained), trained / "more.txt"
    more.write_text("good mouse\nhate mouse\nlove that mouse\n")
    return data, more


def test_a_model_teaches_itself_and_goes_on(taught, trained, command, tmp_path):
    """Rounds keep sure labels; a run whose second round was cut off ends like one that was not."""
    run, (data, more) = tmp_path / "run", taught
    chosen = {
        "max_steps": 12,
        "learning_rate": "5e-3",
        "save_strategy": "steps",
        "save_steps": 6,
        "threshold": 0.7,
        "rounds": 2,
    }
    settings = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    settings += ["--set", "eval_strategy=steps", "--set", "eval_steps=6", "--set", "logging_steps=3"]
    words = ["self-training", "--data", data, "--unlabelled", more, "--model", trained / "run", *settings]
    whole = command("train", *words, "--output", run, "--json")
    assert whole.code == 0, whole.err
    told = json.loads(whole.out)
    assert told["updates"] == 24
    assert told["metrics"]["accuracy"] > 0.9
    kept = [json.loads(line) for line in (run / "round-1.jsonl").read_text().splitlines()]
    assert max(row["row"] for row in kept) > 19  # of the file of texts too
    assert all(row["score"] >= 0.7 for row in kept)
    log = read_log(run / "log.jsonl")
    losses = [(line["round"], line["step"], line["loss"]) for line in log if "loss" in line]
    assert [step for _, step, _ in losses] == [*range(3, 25, 3)]
    assert [number for number, _, _ in losses] == [1] * 4 + [2] * 4
    about = json.loads((run / "run.json").read_text())
    assert {"train", "unlabelled"} <= about["data"].keys()
    assert "--unlabelled" in (run / "README.md").read_text()
    weights = (run / "model.safetensors").read_bytes()
    assert check_checkpoint(run / "start").files.keys() >= {"config.json", "model.safetensors"}
    shutil.rmtree(run / "round-2/checkpoint-12")
    (run / "round-2.jsonl").unlink()
    done = command("resume", run, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == told
    assert (run / "model.safetensors").read_bytes() == weights
    again = read_log(run / "log.jsonl")
    assert [(line["round"], line["step"], line["loss"]) for line in again if "loss" in line] == losses
    measured = command("eval", run, "--data", trained / "ratings.jsonl", "--json")
    assert json.loads(measured.out)["rows"] == 40
    dry = command("train", *words, "--dry-run")
    assert "example 3" in dry.out
    (run / "round-1.jsonl").write_text('{"row": 999, "label": 0, "score": 1.0}\n')
    assert "round-1.jsonl:1: the row 999 with the label 0 is none of the 23 unlabelled ones" in command("resume", run).err


def test_tags_that_are_no_entities_are_classes(trained, command, tmp_path):
    tagged = [f"the\tDET\n{name}\tNOUN\n" for name in ("cat", "dog", "film", "book")] * 2
    (tmp_path / "words.conll").write_text("\n".join(tagged))
    words = ("--data", tmp_path / "words.conll", "--model", trained / "start", "--output", tmp_path / "run", *SHORT)
    done = command("train", "token-classification", *words, "--json")
    assert done.code == 0, done.err
    assert {*json.loads(done.out)["metrics"]} == {"accuracy", "macro_f1", "loss"}


def test_an_autoencoder_of_numbers(command, tmp_path):
    """Rows of one number times a pattern need a code of one number; options are of new weights only."""
    rows = [",".join(f"{(number - 32) * factor / 32:.4f}" for factor in (1, 2, -1, 0.5)) for number in range(64)]
    data, run = tmp_path / "numbers.csv", tmp_path / "run"
    data.write_text("\n".join(["a,b,c,d", *rows]))
    seldom = ("max_steps=150", "eval_strategy=no", "load_best_model_at_end=false", "save_strategy=steps", "save_steps=75")
    chosen = ("latent_size=1", "hidden_sizes=[16]", "learning_rate=1e-2", "eval_share=0.3", "eval_on_start=false", *seldom)
    settings = [word for setting in chosen for word in ("--set", setting)]
    done = command("train", "autoencoder", "--data", data, "--output", run, *settings, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["metrics"]["explained_variance"] > 0.95
    assert "rows are the numbers of a, b, c, d" in done.err
    dry = command("train", "autoencoder", "--data", data, "--dry-run", *settings)
    assert "values  4, from" in dry.out
    assert json.loads(command("eval", run, "--data", data, "--json").out)["explained_variance"] > 0.95
    weights = (run / "model.safetensors").read_bytes()
    shutil.rmtree(run / "checkpoint-150")
    assert command("resume", run, "--json").code == 0
    assert (run / "model.safetensors").read_bytes() == weights
    other = command(
        "train", "autoencoder", "--model", run, "--data", data, "--set", "latent_size=3", "--output", tmp_path / "x"
    )
    assert "`latent_size` is 3, but the model has 1. It is of new weights only" in other.err
    data.write_text("a,b\n1,2\n3,4\n5,7\n")
    assert "a row has 2 numbers, but the model reads 4" in command("eval", run, "--data", data).err


@pytest.mark.parametrize(
    ("task", "rows", "words", "message"),
    [
        ("self-training", '{"text": "a b", "label": "x"}', [], "there are no rows without a label. Pass a file of them"),
        ("self-training", '{"text": "a b"}', [], "there is no column of labels. Some rows need a label"),
        ("self-training", '{"text": "a b", "label": null}', ["--label", "label"], "no row has a label in the column 'label'"),
        ("self-training", '{"text": "a", "label": ["x", "z"]}', [], "needs a class for each labelled row"),
        ("self-training", '{"text": "a b", "label": "x"}', ["--set", "rounds=0"], "`rounds` of the recipe must be at least 1"),
        (
            "self-training",
            '{"text": "a", "label": "x"}',
            ["--set", "top_share=0"],
            "`top_share` of the recipe must be in (0, 1]",
        ),
        ("text-classification", '{"text": "a", "label": "x"}', ["--unlabelled", "DATA"], "reads no rows without labels"),
        ("autoencoder", '{"text": "a b"}', [], "no column holds pictures or numbers. Pass a folder of pictures"),
        ("autoencoder", '{"values": [1, 2], "image": "a.png"}', [], "the rows have both"),
        ("autoencoder", '{"values": [1, NUMBER]}', [], "there are 3 numbers, but 2 in the first row"),
        ("autoencoder", '{"a": 1, "b": null}', [], "a row needs finite numbers, but has [1, None]"),
        ("autoencoder", '{"a": 1}', ["--set", "latent_size=0"], "`latent_size`"),
    ],
)
def test_rows_that_a_task_cannot_use(task, rows, words, message, command, trained, tmp_path):
    data, other = tmp_path / "data.jsonl", {"NUMBER": ("2", "2, 3"), "null": ("null", "2")}
    mark = next((each for each in other if each in rows and task == "autoencoder"), None)
    first, second = (rows, rows) if mark is None else (rows.replace(mark, each) for each in other[mark])
    second = second.replace('"x"', '"y"')
    data.write_text("\n".join([first, second] * 6))
    model = ["--model", trained / "start"] if task != "autoencoder" else []
    words = [str(data) if word == "DATA" else word for word in words]
    done = command("train", task, "--data", data, *model, *words, "--output", tmp_path / "run")
    assert done.code == 1, done.out
    assert message in done.err
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def short(trained):
    """A run of one update with a checkpoint, and the words that began it."""
    from transept.cli.main import main

    never = ("eval_strategy=no", "load_best_model_at_end=false", "eval_on_start=false")
    settings = [word for setting in ("max_steps=1", "save_strategy=steps", *never) for word in ("--set", setting)]
    words = ["train", "text-classification", "--data", trained / "ratings.jsonl", "--model", trained / "start", *settings]
    assert main([*map(str, words), "--output", str(trained / "short")]) == 0
    return trained / "short", words


def test_what_a_run_s_file_says_names_no_destination(short, command, tmp_path, monkeypatch):
    """Neither a directory to write to nor a repository to publish to, whoever wrote the file."""
    from transept import Trainer

    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    (elsewhere / "checkpoint-1").mkdir(parents=True)
    (elsewhere / "checkpoint-1" / "notes.txt").write_text("mine")
    shutil.copytree(short[0], run)
    about = json.loads((run / "run.json").read_text())
    about["run"]["output"] = str(elsewhere)
    named = {"push_to_hub": True, "hub_model_id": "evil/x", "hub_token": "hf_1", "report_to": ["tensorboard"]}
    about["run"]["settings"] |= named | {"save_total_limit": 1, "max_steps": 2}
    (run / "run.json").write_text(json.dumps(about))
    monkeypatch.setattr(Trainer, "push_to_hub", lambda *_, **__: pytest.fail("it publishes"))
    done = command("resume", run)
    assert done.code == 0, done.err
    assert all(name in done.err for name in (*named, "a file names no destination; pass --set again"))
    assert [path.name for path in elsewhere.rglob("*")] == ["checkpoint-1", "notes.txt"]
    assert (run / "checkpoint-2").is_dir()
    about["run"]["settings"]["output_dir"] = str(elsewhere)
    (run / "run.json").write_text(json.dumps(about))
    assert command("resume", run).code == 0
    assert [path.name for path in elsewhere.rglob("*")] == ["checkpoint-1", "notes.txt"]


@pytest.mark.parametrize("setting", ["output_dir: elsewhere", "push_to_hub: true", "hub_token: hf_1", "report_to: wandb"])
def test_a_recipe_names_no_destination(setting, short, command, tmp_path):
    (tmp_path / "recipe.yaml").write_text(f"task: text-classification\ndata: x.csv\nsettings:\n  {setting}\n")
    done = command("train", tmp_path / "recipe.yaml", "--output", tmp_path / "run")
    assert (done.code, "which only the command line does. Pass --" in done.err) == (1, True), done.err
    assert "hf_1" not in done.err
    done = command(*short[1], "--set", "output_dir=elsewhere", "--output", tmp_path / "run")
    assert (done.code, "`output_dir` is no setting of a run" in done.err) == (1, True)
    assert not (tmp_path / "run").exists()


def test_no_secret_is_written(short, command, tmp_path):
    run, secret = tmp_path / "run", "hf_SECRET"
    done = command(*short[1], "--set", f"hub_token={secret}", "--output", run)
    assert done.code == 0, done.err
    again = command("resume", run, "--set", f"hub_token={secret}", "--set", "max_steps=2")
    assert again.code == 0, again.err
    assert (run / "checkpoint-2").is_dir()
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [path.name for path in files if secret.encode() in path.read_bytes()] == []
    wrong = command(*short[1], "--set", "hub_token=987654321", "--output", tmp_path / "other")
    assert "`hub_token` of TrainingArguments must be str | None, but is <secret>" in wrong.err
    assert secret not in done.out + done.err + again.out + again.err
    assert "hub_token=<secret>" in (run / "README.md").read_text().replace("'", "")


def test_files_that_no_run_wrote_stay(short, command, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    own = {"README.md": "# Mine", "config.json": "{}", "model.safetensors": "mine", "notes.txt": "mine"}
    for name, text in own.items():
        (project / name).write_text(text)
    done = command(*short[1], "--output", project)
    assert done.code == 1
    assert "holds files that no run wrote: README.md, config.json, model.safetensors, notes.txt" in done.err
    assert "--force, which replaces README.md, config.json, model.safetensors." in done.err
    assert {path.name: path.read_text() for path in project.iterdir()} == own
    done = command(*short[1], "--output", project, "--force")
    assert done.code == 0, done.err
    assert "the run replaces README.md, config.json, model.safetensors." in done.err
    assert (project / "notes.txt").read_text() == "mine"
    assert "A model for text-classification" in (project / "README.md").read_text()


@pytest.mark.parametrize("setting", ["optim=galore_adamw", "unfreeze_schedule={}", "warmup_steps=-3"])
def test_a_run_that_cannot_start_leaves_no_directory(setting, short, command, tmp_path):
    done = command(*short[1], "--set", setting, "--output", tmp_path / "runs" / "run")
    assert done.code == 1, done.out
    assert [*tmp_path.iterdir()] == []


def test_a_run_that_fails_before_its_first_update_leaves_no_directory(short, command, tmp_path, monkeypatch):
    from transept.training.checkpoint import saved_run

    monkeypatch.setattr(saved_run, "Rewind", lambda *_: 1 / 0)
    assert command(*short[1], "--output", tmp_path / "runs" / "run").code != 0
    assert [*tmp_path.iterdir()] == []


def test_names_that_no_text_can_hold(short, command, tmp_path):
    """A file's name that is no UTF-8, and a column's."""
    words = [word if word != short[1][3] else tmp_path / "rows\udcff.jsonl" for word in short[1]]
    shutil.copyfile(short[1][3], words[3])
    done = command(*words, "--output", tmp_path / "run", "--json")
    assert done.code == 0, done.err
    assert "rows\\\\udcff.jsonl" in (tmp_path / "run" / "run.json").read_text()
    words[3].write_text(short[1][3].read_text().replace('"text"', '"te\\ud800xt"'))
    done = command(*words, "--output", tmp_path / "other")
    assert done.code == 1
    assert "half of a surrogate pair" in done.err
    assert not (tmp_path / "other").exists()


def test_runs_that_cannot_be_gone_on_with(command, tmp_path):
    assert "is no run: it has no run.json" in command("resume", tmp_path).err
    (tmp_path / "run.json").write_text('{"run": {"task": "text-classification"}}')
    assert "holds no whole checkpoint to go on from" in command("resume", tmp_path).err
