"""``transept train``, ``resume`` and ``eval``: training by a recipe, going on with it, and measuring a model."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from transept.batch.encode import plain
from transept.cli.arguments import Parser, add_output, option, positive
from transept.cli.terminal import Style, complain, table
from transept.environment.units import count, size
from transept.errors import FileError, InputError

RUN_NAME = "run.json"
RECIPE_ENDINGS = (".yaml", ".yml")
# Columns that recipes read, each with an option of its name.
ROLES = (
    *("text", "text_pair", "label", "tokens", "tags", "question", "context", "answers", "choices"),
    *("messages", "prompt", "completion", "chosen", "rejected", "source", "target", "image", "objects", "audio", "transcript"),
    "values",
)
INTERRUPTED = 130


def train(parser: Parser) -> None:
    """Train a model for a task.

    Columns are guessed by their names, a tenth of the rows is held out, and a small model is the default for texts. All that is
    left of a run is in its directory: the model, checkpoints, log.jsonl, plot.png, and README.md, a card with measured figures.

        transept train text-classification --data reviews.jsonl
        transept train text-classification --model PATH --data train.csv --eval-data dev.csv --text review --label stars
        transept train token-classification --data wnut.conll --set learning_rate=3e-5 --set num_train_epochs=3
        transept train causal-lm --model PATH --data book.txt --set max_length=256 --output run
        transept train image-classification --model PATH --data folder
        transept train self-training --data labelled.jsonl --unlabelled texts.txt
        transept train recipe.yaml --dry-run
        transept train causal-lm --model PATH --data book.txt --processes 2 --set fsdp=full_shard
    """
    parser.add_argument("task", metavar="TASK", help="a task, or a recipe: a .yaml file")
    parser.add_argument(
        "--data", metavar="PATH", help="what to train on: .jsonl, .json, .csv, .tsv, .parquet, .txt, .conll, a folder"
    )
    parser.add_argument("--eval-data", metavar="PATH", help="what to evaluate on (a tenth of the data)")
    parser.add_argument("--unlabelled", metavar="PATH", help="more rows, without labels, for self-training")
    parser.add_argument(
        "--model", metavar="PATH", help="what to begin with: directory or hub repository (all-MiniLM-L6-v2 for texts)"
    )
    parser.add_argument("--config", metavar="PATH", help="begin with new weights, by the settings of a config.json")
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="another tokenizer; `characters` makes one of the data's characters"
    )
    _add_data(parser)
    parser.add_argument("--dry-run", action="store_true", help="show examples, counts, memory and time, and end")
    _add_processes(parser)
    parser.add_argument("--output", metavar="RUN", help="the run's directory (runs/TASK-1, ...)")
    parser.add_argument(
        "--force", action="store_true", help="train in a directory that holds other files; what is replaced is told"
    )
    add_output(parser)
    parser.set_defaults(main=train_main)


def _add_processes(parser: Parser) -> None:
    told = "train in so many processes, which torchrun starts; how they share the work: --set fsdp=full_shard, tp_size=2, ..."
    parser.add_argument("--processes", type=positive, metavar="N", help=told)


def _add_data(parser: Parser) -> None:
    told = "a setting of the trainer or the recipe, such as learning_rate=3e-5; may be repeated"
    parser.add_argument("--set", action="append", type=option, default=[], metavar="NAME=VALUE", help=told)
    parser.add_argument("--format", metavar="NAME", help="the format of the data (by the file's ending)")
    parser.add_argument("--encoding", metavar="NAME", help="the encoding of texts (utf-8)")
    group = parser.add_argument_group("columns (guessed by their names)")
    for role in ROLES:
        group.add_argument(f"--{role.replace('_', '-')}", metavar="COLUMN", help=f"the column of the {role.replace('_', ' ')}")


def resume(parser: Parser) -> None:
    """Go on with a run from its last checkpoint.

    The run's directory tells all: data, model, settings and where it stood. Settings that are given replace its own.

        transept resume runs/text-classification-1
        transept resume run --set max_steps=2000
    """
    parser.add_argument("run", metavar="RUN", help="the run's directory")
    _add_processes(parser)
    told = "a setting that replaces the run's; may be repeated"
    parser.add_argument("--set", action="append", type=option, default=[], metavar="NAME=VALUE", help=told)
    add_output(parser)
    parser.set_defaults(main=resume_main)


def eval(parser: Parser) -> None:
    """Measure a model on data.

    The task and the columns are those of the run that made the model; for others pass --task. The rows are all evaluated.

        transept eval runs/text-classification-1 --data test.jsonl
        transept eval PATH --task token-classification --data test.conll --json
        transept eval run --data test.csv --metrics accuracy
    """
    parser.add_argument("model", metavar="RUN-OR-MODEL", help="a run's directory, or that of a model, or a hub repository")
    parser.add_argument("--data", required=True, metavar="PATH", help="what to evaluate on")
    parser.add_argument("--task", metavar="TASK", help="the task of a model that no run tells of")
    parser.add_argument("--metrics", metavar="NAMES", help="which metrics, with commas (all)")
    _add_data(parser)
    add_output(parser)
    parser.set_defaults(main=eval_main)


def train_main(args: argparse.Namespace) -> int:
    if args.processes is not None and not args.dry_run:
        return start(args)
    from transept.parallel.processes import join, same_on_all
    from transept.training.recipes.run import Run

    is_first = join() == 0
    with same_on_all():
        run = Run(_settings(args), default_model=default_model(), notify=partial(complain, kind="note") if is_first else str)
        run.prepare()
    if args.dry_run:
        from transept.training.recipes.run import preview

        figures = preview(run)
        lines = preview_lines(figures, Style(sys.stdout))
        print(json.dumps(figures, ensure_ascii=False) if args.json else "\n".join(lines))
        return 0
    return _end(run, run.train(force=args.force), args)


def _settings(args: argparse.Namespace) -> Any:
    """What the run is made of: the recipe's file, if there is one, and the options above it."""
    from transept.training.recipes.settings import RunSettings

    names = ("data", "eval_data", "unlabelled", "model", "config", "tokenizer", "output", "format", "encoding")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    columns = {role: value for role in ROLES if (value := getattr(args, role)) is not None}
    if not args.task.endswith(RECIPE_ENDINGS):
        return RunSettings(args.task, columns=columns, settings=dict(args.set), **given)
    recipe = RunSettings.read(args.task)
    columns, settings = recipe.columns | columns, recipe.settings | dict(args.set)
    return dataclasses.replace(recipe, **given, columns=columns, settings=settings)


def start(args: argparse.Namespace) -> int:
    """Start this command again in so many processes, by torchrun; gives their exit code."""
    import torch

    at = next(index for index, word in enumerate(args.words) if word.partition("=")[0] == "--processes")
    rest = args.words[:at] + args.words[at + (1 if "=" in args.words[at] else 2) :]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.processes)]
    threads = max(1, torch.get_num_threads() // args.processes)  # torchrun would give each one thread
    # PyTorch's warnings of this level are for those who wrap models themselves.
    environment = {"OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"} | os.environ
    command += ["-m", "transept.cli", *rest]
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 (the command that was called)


def resume_main(args: argparse.Namespace) -> int:
    if args.processes is not None:
        return start(args)
    from transept.config.schema import read_typed
    from transept.parallel.processes import join, same_on_all
    from transept.tables.files import digest_of
    from transept.training.recipes import recipe_named
    from transept.training.recipes.run import Run
    from transept.training.recipes.settings import RunFile, RunSettings

    is_first = join() == 0
    path = _run_file(args.run)
    settings, left_out = RunSettings.of_run(path)
    settings.settings |= dict(args.set)
    settings.output = args.run
    if is_first and (missing := [name for name in left_out if name not in settings.settings]):
        complain(f"{', '.join(missing)}: not taken over, since a file names no destination; pass --set again.", "note")
    last = recipe_named(settings.task).last_checkpoint(args.run)
    if last is None:
        hint = "Train anew, into another directory."
        raise FileError("holds no whole checkpoint to go on from.", path=args.run, hint=hint)
    files = read_typed(path, RunFile).data
    for name, use in (("data", "train"), ("eval_data", "eval"), ("unlabelled", "unlabelled")):
        known = files.get(use)
        if getattr(settings, name) is None or known is None:
            continue
        if not os.path.exists(getattr(settings, name)):
            setattr(settings, name, known.path)
        if digest_of(getattr(settings, name)) != known.sha256:
            complain(f"{getattr(settings, name)} changed since the run began: other rows are trained on from here.", "warning")
    with same_on_all():
        run = Run(settings, notify=partial(complain, kind="note") if is_first else str, start=str(last))
        run.prepare()
    return _end(run, run.train(resume=str(last)), args)


def _run_file(directory: str) -> Path:
    path = Path(directory, RUN_NAME)
    if not path.is_file():
        raise FileError(
            f"is no run: it has no {RUN_NAME}.", path=directory, hint="Pass the directory that `transept train` named."
        )
    return path


def eval_main(args: argparse.Namespace) -> int:
    from transept.training.recipes.run import evaluate_model
    from transept.training.recipes.settings import RunSettings

    of_run = Path(args.model, RUN_NAME).is_file()
    if args.task is None and not of_run:
        raise InputError("the task of the model is not known.", hint="Pass --task, such as text-classification.")
    settings = RunSettings.of_run(Path(args.model, RUN_NAME))[0] if of_run else RunSettings(args.task)
    columns = {role: value for role in ROLES if (value := getattr(args, role)) is not None}
    settings.task, settings.model, settings.data = args.task or settings.task, args.model, args.data
    settings.columns, settings.settings = columns, settings.settings | dict(args.set)
    settings.format, settings.encoding, settings.config, settings.tokenizer = args.format, args.encoding, None, None
    metrics, rows = evaluate_model(settings, notify=partial(complain, kind="note"))
    metrics = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    wanted = [name.strip() for name in args.metrics.split(",")] if args.metrics else list(metrics)
    missing = [name for name in wanted if name not in metrics]
    if missing:
        raise InputError(f"there is no metric {missing[0]!r} for this task.", hint=f"There are: {', '.join(metrics)}.")
    chosen = {name: metrics[name] for name in wanted}
    print(json.dumps({"rows": rows, **chosen}) if args.json else "\n".join(_metric_lines(chosen, rows, Style(sys.stdout))))
    return 0


def _end(run: Any, metrics: dict[str, float], args: argparse.Namespace) -> int:
    """Tell how well the model does and where it is; gives the exit code."""
    trainer, output = run.trainer, run.trainer.args.output_dir
    if getattr(trainer, "interrupted", None):
        return INTERRUPTED
    if not trainer.is_world_process_zero():
        return 0
    named = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    if args.json:
        print(json.dumps({"output": output, "updates": trainer.state.global_step, "metrics": named}))
        return 0
    print("\n".join(_metric_lines(named, len(run.eval_rows), Style(sys.stdout))))
    print(f"{output}: the model, its card (README.md), log.jsonl and plot.png")
    return 0


def _metric_lines(metrics: dict[str, float], rows: int, style: Style) -> list[str]:
    lines = table([[style(name.replace("_", " "), "dim"), f"{value:.4f}"] for name, value in metrics.items()], right=(1,))
    return [*lines, style(f"on {rows} rows", "dim")] if metrics else []


def preview_lines(found: dict[str, Any], style: Style) -> list[str]:
    """A dry run as lines: examples, then counts, memory and time."""
    lines = []
    for number, example in enumerate(found["examples"], 1):
        lines += [
            style(f"example {number}", "bold"),
            *(f"  {style(name, 'dim')}  {plain(text)}" for name, text in example.items()),
        ]
    parameters, memory = found["parameters"], found["bytes"]
    whole = sum(memory.values())
    facts = [
        ("rows", f"{found['rows']['train']} to train on, {found['rows']['eval']} to evaluate"),
        ("parameters", f"{count(parameters['all'])}, of which {count(parameters['trainable'])} are trained"),
        ("updates", str(found["updates"])),
        *([("tokens", f"{count(found['tokens'])} an epoch")] if found["tokens"] else []),
        ("memory", f"{size(whole)} ({', '.join(f'{name} {size(value)}' for name, value in memory.items())})"),
        ("time", f"about {_duration(found['seconds'])}, without evaluations"),
    ]
    return [*lines, "", *table([[style(name, "dim"), value] for name, value in facts])]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def default_model() -> tuple[str, str]:
    """The model that recipes for texts begin with, where no other is named: where it is, and its name."""
    from transept.pipelines.components import EMBEDDING_MODEL, locate

    source = locate(EMBEDDING_MODEL, {})
    return str(source.directory or EMBEDDING_MODEL), EMBEDDING_MODEL
