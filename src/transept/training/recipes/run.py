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
from transept.training.callbacks.plot import PlotCallback
from transept.training.callbacks.progress import PrinterCallback, ProgressCallback
from transept.training.data.checks import warn_of_equal_rows, warn_of_tokenizer, warn_of_truncation
from transept.training.data.files import digest_of, load_dataset_file
from transept.training.data.table import Row, TableDataset, as_dataset, split_by_hash
from transept.training.model_card import Answers, Card, write_card
from transept.training.recipes import recipe_named
from transept.training.recipes.base import Recipe, TextRecipe, option_names
from transept.training.recipes.characters import character_tokenizer
from transept.training.recipes.settings import RUN_NAME, RunSettings
from transept.training.run_directory import check_empty, free_directory, run_directory
from transept.training.state import json_value

NO_METRICS = ("_runtime", "_tokens_seen", "_per_second", "_samples", "_preparation_time")
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
        self, settings: RunSettings, *, default_model: tuple[str, str] | None = None, told: Told = str, start: str | None = None
    ) -> None:
        self.settings, self.told = settings, told
        kind = recipe_named(settings.task)
        self.options, self.arguments = _divided(kind, settings.settings)
        self.recipe: Recipe = kind(settings.columns, self.options)
        path, self.base = (settings.model, settings.model)
        if default_model is not None and kind.has_default_model and settings.model is None and settings.config is None:
            path, self.base = default_model
        self.source = start or path
        if self.source is None and settings.config is None and kind.new_model is None:
            hint = "Pass --model PATH, or --config PATH for new weights."
            raise InputError(f"the task {settings.task!r} has no default model.", hint=hint)
        self.train_rows: Sequence[Row] = []
        self.eval_rows: Sequence[Row] = []
        self.files: dict[str, TableDataset] = {}
        self.trainer: Any = None
        self.values: dict[str, Any] = {}

    # --- what it is made of -------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Read the data, load the model, and encode the rows."""
        settings, recipe = self.settings, self.recipe
        if settings.data is None:
            raise InputError("there are no data to train on.", hint="Pass --data PATH.")
        train = self.read(settings.data)
        config = self.config()
        self.say(recipe.look(train, config))
        more = self.read(settings.unlabelled) if settings.unlabelled is not None else None
        train = recipe.parted(train, more)
        held_out = self.read(settings.eval_data) if settings.eval_data is not None else None
        if held_out is None and not recipe.splits_encoded:
            train, held_out = split_by_hash(train, recipe.options.eval_share)
        elif held_out is not None:
            warn_of_equal_rows(train, held_out)
        named = {"train": train, "eval": held_out, "unlabelled": more}
        self.files = {name: each for name, each in named.items() if each is not None}
        self.load(config, train)
        self.train_rows = recipe.encode(train)
        if held_out is not None:
            self.eval_rows = recipe.encode(held_out)
        else:
            self.train_rows, self.eval_rows = split_by_hash(as_dataset(self.train_rows), recipe.options.eval_share)
        self.check()

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
        settings = self.settings
        if self.source is not None:
            return AutoConfig.from_pretrained(self.source)
        if isinstance(settings.config, str):
            return AutoConfig.from_pretrained(settings.config)
        values = dict(settings.config or {})
        if not isinstance(model_type := values.pop("model_type", self.recipe.new_model), str):
            raise ConfigError("`config` names no `model_type`.")
        return AutoConfig.for_model(model_type, **values)

    def load(self, config: Any, train: TableDataset) -> None:
        """The model, with a head for the data, and what prepares its inputs."""
        reader = self.load_reader(train)
        set_seed(self.arguments.get("seed", 42))  # new weights are drawn
        wanted = self.recipe.settings()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*newly initialised.*", TranseptWarning)  # the head, which is to be trained
            if self.source is not None:
                fresh = {"ignore_mismatched_sizes": True} if wanted else {}
                model = self.recipe.auto.from_pretrained(self.source, **wanted, **fresh)
            else:
                tokens = {} if not hasattr(reader, "__len__") else {"vocab_size": len(reader)}
                model = self.recipe.auto.from_config(config.with_settings(**tokens, **self.recipe.new_settings(), **wanted))
        self.recipe.take(reader, model)
        if isinstance(self.recipe, TextRecipe):
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

    def check(self) -> None:
        """Warn of mistakes that no error would show."""
        if isinstance(self.recipe, TextRecipe):
            warn_of_truncation(self.recipe.truncated, len(self.train_rows) + len(self.eval_rows), self.recipe.limit)

    # --- training -----------------------------------------------------------------------------------------------------------

    def make_trainer(self, output: str) -> Any:
        """The trainer, with the recipe's defaults below the settings that were given."""
        recipe, model = self.recipe, self.recipe.model
        parameters = sum(each.numel() for each in model.parameters())
        defaults = recipe.defaults(len(self.train_rows), parameters, evaluated=len(self.eval_rows) > 0)
        if "max_tokens_per_batch" in defaults and self.arguments.get("train_sampling_strategy") not in (None, "token_budget"):
            del defaults["max_tokens_per_batch"]
        reports = ["console", "jsonl", *(["plot"] if PlotCallback.is_available() else [])]
        values = {"output_dir": output, "report_to": reports} | defaults | self.arguments
        self.values = {name: value for name, value in values.items() if name not in ("output_dir", "report_to")}
        args = recipe.arguments_class(**values)
        self.trainer = recipe.trainer_class(
            model=model,
            args=args,
            data_collator=recipe.collator(),
            train_dataset=self.train_rows,
            eval_dataset=self.eval_rows or None,
            processing_class=recipe.reader,
            compute_metrics=recipe.scores(),
            preprocess_logits_for_metrics=recipe.reduce(),
            **recipe.trainer_options(),
        )
        if recipe.scores() is None:
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
        output, about = self._directory(), dict[str, Any]()
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
                    write_card(self.card(about, metrics, answers, seconds), output)
        return metrics

    def _directory(self) -> str:
        """The run's directory: that of the settings, or a free one, which the first process chooses."""
        if self.settings.output is not None:
            return self.settings.output
        join()
        return everywhere(free_directory(self.settings.task))[0]

    def evaluate(self, rows: Sequence[Row]) -> tuple[dict[str, float], Answers | None]:
        """The metrics on some rows, and what a card tells of a classifier."""
        if self.recipe.scores() is None:
            found, answers = self.trainer.evaluate(rows), None
        else:
            said = self.trainer.predict(rows, metric_key_prefix="eval")
            found, answers = said.metrics, self.recipe.answers(said.predictions, said.label_ids)
        metrics = {name: value for name, value in found.items() if name != "epoch" and not name.endswith(NO_METRICS)}
        return metrics | self.recipe.derived(metrics), answers

    # --- what it tells ------------------------------------------------------------------------------------------------------

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
            "parameters": {
                "all": sum(each.numel() for each in model.parameters()),
                "trainable": sum(each.numel() for each in model.parameters() if each.requires_grad),
            },
            "versions": {"python": platform.python_version(), "torch": version("torch"), "transept": version("transept")},
            "command": self.settings.command(),
        }

    def card(self, about: dict[str, Any], metrics: dict[str, float], answers: Answers | None, seconds: float) -> Card:
        data = [
            f"`{os.path.basename(file['path'])}` ({name}), SHA-256 `{file['sha256'][:16]}…`"
            for name, file in about["data"].items()
        ]
        rows, share = about["rows"], f"{self.recipe.options.eval_share:.0%} by a hash of the row"
        split = "a file of their own" if self.settings.eval_data else share
        return Card(
            title=f"A model for {self.settings.task}",
            base=self.base or f"new weights ({type(self.recipe.model).__name__})",
            metrics={name.removeprefix("eval_").replace("_", " "): value for name, value in metrics.items()},
            arguments=self.values | self.options,
            matter={"pipeline_tag": self.recipe.tag},
            rows=rows["eval"],
            answers=answers,
            data=[*data, f"{rows['train']} rows to train on, {rows['eval']} to evaluate ({split})"],
            seconds=seconds,
            updates=self.trainer.state.global_step,
            versions=about["versions"],
            repeat=about["command"],
        )


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


def _divided(recipe: type[Recipe], settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings as options of the recipe, and as arguments of the trainer."""
    if "output_dir" in settings:
        raise ConfigError(
            "`output_dir` is no setting of a run, which is written where --output says.", hint="Pass --output PATH."
        )
    options, known = option_names(recipe), [*specs(recipe.arguments_class)]
    own = {name: value for name, value in settings.items() if name in options}
    rest = {name: value for name, value in settings.items() if name not in options}
    older = ("warmup_ratio", "evaluation_strategy", "group_by_length", "no_cuda")
    for name in rest:
        if name not in known and name not in older:
            raise ConfigError(f"there is no setting {name!r}.", hint=nearest(name, [*options, *known]))
    return own, rest
