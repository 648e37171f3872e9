"""A run of a recipe: data, model and trainer put together; training, evaluation, and what the run's directory tells."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transept.core.auto import AutoConfig
from transept.environment import set_seed
from transept.errors import ConfigError, InputError, TranseptWarning, nearest
from transept.fields import specs, without_secrets
from transept.files import PathName, dump_json, write_text
from transept.parallel.processes import everywhere, join, same_on_all
from transept.tables.dataset import Row, TableDataset, as_dataset, split_by_hash
from transept.tables.files import digest_of, load_dataset_file
from transept.training.callbacks.progress import PrinterCallback, ProgressCallback
from transept.training.callbacks.reports import PlotCallback
from transept.training.data.checks import warn_of_equal_rows, warn_of_tokenizer, warn_of_truncation
from transept.training.files import check_empty, free_directory, run_directory
from transept.training.model_card import Answers, Card, write_card
from transept.training.recipes import recipe_named
from transept.training.recipes.base import Recipe
from transept.training.recipes.settings import RUN_NAME, RunSettings
from transept.training.recipes.text import TextRecipe, character_tokenizer
from transept.training.state import json_value

NO_METRICS = ("_runtime", "_tokens_seen", "_per_second", "_samples", "_preparation_time")
OLDER_NAMES = ("warmup_ratio", "evaluation_strategy", "group_by_length", "no_cuda")  # of settings of the trainer
Told = Callable[[str], object]


class Run:
    """A recipe with its data, model and trainer.

    Args:
        settings: see :class:`RunSettings`.
        default_model: the model of recipes that have a default one: where it is, and its name.
        told: is called with sentences for a person: what was guessed, what is left out.
        start: a checkpoint of the run, whose model is taken in place of the one that the settings name.

    Raises:
        TranseptError: files, columns, labels or settings that cannot be used; before anything slow begins.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        default_model: tuple[str, str] | None = None,
        told: Told = str,
        start: str | None = None,
    ) -> None:
        self.settings, self.told = settings, told
        kind = recipe_named(settings.task)
        self.options, self.arguments = divided(kind, settings.settings)
        self.recipe: Recipe = kind(settings.columns, self.options)
        self.source = self.base = settings.model
        if default_model is not None and kind.has_default_model and settings.model is None and settings.config is None:
            self.source, self.base = default_model
        self.source = start or self.source
        if self.source is None and settings.config is None and kind.new_model is None:
            hint = "Pass --model PATH, or --config PATH for new weights."
            raise InputError(f"the task {settings.task!r} has no default model.", hint=hint)
        self.train_rows: Sequence[Row] = []
        self.eval_rows: Sequence[Row] = []
        self.files: dict[str, TableDataset] = {}
        self.trainer: Any = None
        self.values: dict[str, Any] = {}

    # --- what it is made of ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Read the data, load the model, and encode the rows."""
        settings, recipe = self.settings, self.recipe
        if settings.data is None:
            raise InputError("there are no data to train on.", hint="Pass --data PATH.")
        train = self.read(settings.data)
        config = self.config()
        self.say(recipe.look(train, config))
        unlabelled = None if settings.unlabelled is None else self.read(settings.unlabelled)
        train = recipe.labelled(train, unlabelled)
        held_out = None if settings.eval_data is None else self.read(settings.eval_data)
        if held_out is not None:
            warn_of_equal_rows(train, held_out)
        elif not recipe.splits_encoded:
            train, held_out = split_by_hash(train, recipe.options.eval_share)
        files = {"train": train, "eval": held_out, "unlabelled": unlabelled}
        self.files = {name: dataset for name, dataset in files.items() if dataset is not None}
        self.load(config, train)
        self.train_rows = recipe.encode(train)
        if held_out is not None:
            self.eval_rows = recipe.encode(held_out)
        else:
            self.train_rows, self.eval_rows = split_by_hash(as_dataset(self.train_rows), recipe.options.eval_share)
        if isinstance(recipe, TextRecipe):
            warn_of_truncation(recipe.truncated, len(self.train_rows) + len(self.eval_rows), recipe.limit)

    def read(self, path: str) -> TableDataset:
        """The rows of a file."""
        how, encoding = self.settings.format, self.settings.encoding
        dataset = load_dataset_file(path, sample_by=self.recipe.sample_by, format=how, encoding=encoding)
        for note in dataset.notes:
            self.told(note)
        return dataset

    def say(self, sentence: str | None) -> None:
        if sentence is not None:
            self.told(sentence)

    def config(self) -> Any:
        """The configuration of the model to begin with."""
        source = self.source or self.settings.config
        if isinstance(source, str):
            return AutoConfig.from_pretrained(source)
        values = dict(source or {})
        if not isinstance(model_type := values.pop("model_type", self.recipe.new_model), str):
            raise ConfigError("`config` names no `model_type`.")
        return AutoConfig.for_model(model_type, **values)

    def load(self, config: Any, train: TableDataset) -> None:
        """The model, with a head for the data, and what prepares its inputs."""
        recipe, reader = self.recipe, self.load_reader(train)
        set_seed(self.arguments.get("seed", 42))  # new weights are drawn
        settings = recipe.settings()
        with warnings.catch_warnings():
            # The head is to be trained.
            warnings.filterwarnings("ignore", ".*newly initialised.*", TranseptWarning)
            if self.source is None:
                size = {"vocab_size": len(reader)} if hasattr(reader, "__len__") else {}
                model = recipe.auto.from_config(config.with_settings(**size, **recipe.new_settings(), **settings))
            else:
                fresh = {"ignore_mismatched_sizes": True} if settings else {}
                model = recipe.auto.from_pretrained(self.source, **settings, **fresh)
        recipe.take(reader, model)
        if isinstance(recipe, TextRecipe):
            warn_of_tokenizer(reader, model)

    def load_reader(self, train: TableDataset) -> Any:
        """The tokenizer or processor, where the recipe's inputs need one."""
        if self.recipe.reader_class is None:
            return None
        name = self.settings.tokenizer
        if name == "characters" and self.source is None:
            return character_tokenizer(train.values(self.recipe.found["text"]))
        source = self.source if name in (None, "characters") else name
        if source is None:
            raise InputError("a model with new weights needs a tokenizer.", hint="Pass --tokenizer PATH, or characters.")
        return self.recipe.reader_class.from_pretrained(source)

    # --- training ----------------------------------------------------------------------------------------------------

    def make_trainer(self, output: str) -> Any:
        """The trainer, with the recipe's defaults below the settings that were given."""
        recipe, scores = self.recipe, self.recipe.scores
        parameters = recipe.model.num_parameters()
        defaults = recipe.defaults(len(self.train_rows), parameters, evaluated=len(self.eval_rows) > 0)
        if self.arguments.get("train_sampling_strategy") not in (None, "token_budget"):
            defaults.pop("max_tokens_per_batch", None)
        self.values = defaults | self.arguments
        reports = ["console", "jsonl", *(["plot"] if PlotCallback.is_available() else [])]
        args = recipe.arguments_class(**({"output_dir": output, "report_to": reports} | self.values))
        self.values.pop("report_to", None)
        self.trainer = recipe.trainer_class(
            model=recipe.model,
            args=args,
            data_collator=recipe.collator(),
            train_dataset=self.train_rows,
            eval_dataset=self.eval_rows or None,
            processing_class=recipe.reader,
            compute_metrics=None if scores is None else lambda found: scores(found.predictions, found.label_ids),
            preprocess_logits_for_metrics=recipe.reduce,
            **recipe.trainer_options(),
        )
        if scores is None:
            args.prediction_loss_only = True
        if "console" in (args.report_to or []):
            for shown in (ProgressCallback, PrinterCallback):
                self.trainer.pop_callback(shown)
        return self.trainer

    def train(self, *, resume: str | bool | None = None, force: bool = False) -> dict[str, float]:
        """Train, keep the best model, and write what the run's directory tells; gives the metrics of the evaluation.

        Args:
            resume: the checkpoint to go on from.
            force: begin in a directory that holds other files, too.

        Raises:
            FileError: the directory holds a run already, or files that no run wrote.
        """
        output, about = self.settings.output, dict[str, Any]()
        if output is None:  # the first process chooses
            join()
            output = everywhere(free_directory(self.settings.task))[0]
        trainer = self.make_trainer(output)
        is_first = trainer.is_world_process_zero()
        with contextlib.ExitStack() as held:
            with same_on_all():
                if is_first:
                    about = self.about()
                    folder = held.enter_context(run_directory(output, lambda: trainer.state.global_step > 0))
                    if resume is None:
                        self.say(check_empty(folder, self.recipe.model, self.recipe.reader, force=force))
                    write_about(about, folder)
            began = time.monotonic()
            trainer.train(resume_from_checkpoint=resume)
            seconds = time.monotonic() - began
            metrics, answers = self.evaluate(self.eval_rows) if len(self.eval_rows) else ({}, None)
            trainer.save_model(output)
            with same_on_all():
                if is_first:
                    about["results"] = {"metrics": metrics, "seconds": seconds, "updates": trainer.state.global_step}
                    write_about(about, output)
                    write_card(self.card(about, answers), output)
        return metrics

    def evaluate(self, rows: Sequence[Row]) -> tuple[dict[str, float], Answers | None]:
        """The metrics on some rows, and what a card tells of a classifier."""
        answers = None
        if self.recipe.scores is None:
            values = self.trainer.evaluate(rows)
        else:
            output = self.trainer.predict(rows, metric_key_prefix="eval")
            values, answers = output.metrics, self.recipe.answers(output.predictions, output.label_ids)
        metrics = {name: value for name, value in values.items() if name != "epoch" and not name.endswith(NO_METRICS)}
        return metrics | self.recipe.derived(metrics), answers

    # --- what it tells -----------------------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """``run.json``: the task, the arguments as given and resolved, versions, digests of the data, and parameters."""
        model = self.recipe.model
        paths = {name: data.path for name, data in self.files.items() if data.path is not None}
        return {
            "run": self.settings.to_dict(),
            "columns": self.recipe.found,
            "options": dataclasses.asdict(self.recipe.options),
            "arguments": {"given": self.arguments, "resolved": self.trainer.args.to_dict()},
            "data": {name: {"path": os.path.abspath(path), "sha256": digest_of(path)} for name, path in paths.items()},
            "rows": {"train": len(self.train_rows), "eval": len(self.eval_rows)},
            "model_class": type(model).__name__,
            "parameters": parameter_counts(model),
            "versions": {"python": platform.python_version(), "torch": version("torch"), "transept": version("transept")},
            "command": self.settings.command(),
        }

    def card(self, about: dict[str, Any], answers: Answers | None) -> Card:
        """The card of the trained model, by what ``run.json`` says at the end."""
        rows, results = about["rows"], about["results"]
        share = f"{self.recipe.options.eval_share:.0%} by a hash of the row"
        split = "a file of their own" if self.settings.eval_data else share
        files = [
            f"`{os.path.basename(file['path'])}` ({name}), SHA-256 `{file['sha256'][:16]}…`"
            for name, file in about["data"].items()
        ]
        return Card(
            title=f"A model for {self.settings.task}",
            base=self.base or f"new weights ({about['model_class']})",
            metrics={name.removeprefix("eval_").replace("_", " "): value for name, value in results["metrics"].items()},
            arguments=self.values | self.options,
            matter={"pipeline_tag": self.recipe.tag},
            rows=rows["eval"],
            answers=answers,
            data=[*files, f"{rows['train']} rows to train on, {rows['eval']} to evaluate ({split})"],
            seconds=results["seconds"],
            updates=results["updates"],
            versions=about["versions"],
            repeat=about["command"],
        )


def parameter_counts(model: Any) -> dict[str, int]:
    return {"all": model.num_parameters(), "trainable": model.num_parameters(only_trainable=True)}


def write_about(about: Mapping[str, Any], folder: PathName) -> None:
    """Write ``run.json``, without secrets."""
    write_text(Path(folder, RUN_NAME), dump_json(json_value(without_secrets(about), "run")))


def evaluate_model(settings: RunSettings, *, told: Told = str) -> tuple[dict[str, float], int]:
    """The metrics of ``settings.model`` on all rows of ``settings.data``, and their number."""
    run = Run(settings, told=told)
    data, config = run.read(settings.data or ""), run.config()
    run.say(run.recipe.look(data, config))
    run.load(config, data)
    rows = run.recipe.encode(data)
    run.arguments = {"report_to": "none", "disable_tqdm": True, "per_device_eval_batch_size": 2 * run.recipe.batch_size}
    run.make_trainer(settings.output or "evaluation")
    return run.evaluate(rows)[0], len(rows)


def divided(recipe: type[Recipe], settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings as options of the recipe, and as arguments of the trainer."""
    if "output_dir" in settings:
        what = "`output_dir` is no setting of a run, which is written where --output says."
        raise ConfigError(what, hint="Pass --output PATH.")
    options, arguments = specs(recipe.options_class), specs(recipe.arguments_class)
    for name in settings:
        if name not in (*options, *arguments, *OLDER_NAMES):
            raise ConfigError(f"there is no setting {name!r}.", hint=nearest(name, [*options, *arguments]))
    own = {name: value for name, value in settings.items() if name in options}
    return own, {name: value for name, value in settings.items() if name not in options}
