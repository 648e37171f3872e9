"""A run of a recipe: its data, model and trainer; training, evaluation, a dry run, and its `run.json` and card."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transept.config.fields import specs, without_secrets
from transept.core.auto import AutoConfig
from transept.environment.packages import set_seed
from transept.errors import ConfigError, TranseptWarning, nearest, refuse
from transept.parallel.processes import gather_objects, join, same_on_all
from transept.preprocess.text.tokenizer import character_tokenizer
from transept.storage.files import PathName, dump_json, write_text
from transept.tables.dataset import Row, TableDataset, as_dataset, split_by_hash
from transept.tables.files import digest_of, load_dataset_file
from transept.training.callbacks.progress import PrinterCallback, ProgressCallback
from transept.training.callbacks.reports import PlotCallback
from transept.training.data.checks import warn_of_equal_rows, warn_of_truncation
from transept.training.files import check_empty, free_directory, run_directory
from transept.training.model_card import Card, write_card
from transept.training.recipes import recipe_named
from transept.training.recipes.base import Recipe, TextRecipe
from transept.training.recipes.settings import RUN_NAME, RunSettings
from transept.training.run import RunLength
from transept.training.state import json_value

NO_METRICS = ("_runtime", "_tokens_seen", "_per_second", "_samples", "_preparation_time")
OLDER_NAMES = ("warmup_ratio", "evaluation_strategy", "group_by_length", "no_cuda")  # of settings of the trainer
PACKAGES = ("torch", "transept")  # whose versions run.json names
EXAMPLES = 3  # that a dry run shows
TIMED = 3  # batches
STATE_BYTES = 8  # of AdamW, a parameter
Notify = Callable[[str], object]


class Run:
    """A recipe with its data, model and trainer; what cannot be used is refused before anything slow begins."""

    train_rows: Sequence[Row] = ()
    eval_rows: Sequence[Row] = ()

    def __init__(
        self,
        settings: RunSettings,
        *,
        default_model: tuple[str, str] | None = None,  # of recipes that have one: where it is, and its name
        notify: Notify = str,  # is called with sentences for a person: what was guessed, what is left out
        start: str | None = None,  # a checkpoint of the run, whose model replaces the one that the settings name
    ) -> None:
        self.settings, self.notify = settings, notify
        recipe_class, values = recipe_named(settings.task), settings.settings
        what = "`output_dir` is no setting of a run, which is written where --output says."
        refuse("output_dir" in values, what, "Pass --output PATH.", ConfigError)
        options, arguments = specs(recipe_class.options_class), specs(recipe_class.arguments_class)
        for name in values:
            if name not in (*options, *arguments, *OLDER_NAMES):
                raise ConfigError(f"there is no setting {name!r}.", hint=nearest(name, [*options, *arguments]))
        self.options = {name: value for name, value in values.items() if name in options}
        self.arguments = {name: value for name, value in values.items() if name not in options}
        self.recipe: Recipe = recipe_class(settings.columns, self.options)
        self.source = self.base = settings.model
        if default_model and recipe_class.has_default_model and settings.model is None and settings.config is None:
            self.source, self.base = default_model
        self.source = start or self.source
        has_no_model = self.source is None and settings.config is None and recipe_class.new_model_type is None
        hint = "Pass --model PATH, or --config PATH for new weights."
        refuse(has_no_model, f"the task {settings.task!r} has no default model.", hint)

    def prepare(self) -> None:
        """Read the data, load the model, and encode the rows."""
        settings, recipe = self.settings, self.recipe
        refuse(settings.data is None, "there are no data to train on.", "Pass --data PATH.")
        train = self.read(settings.data)
        config = self.inspect(train)
        unlabelled = None if settings.unlabelled is None else self.read(settings.unlabelled)
        train = recipe.take_unlabelled(train, unlabelled)
        held_out = None if settings.eval_data is None else self.read(settings.eval_data)
        if held_out is not None:
            warn_of_equal_rows(train, held_out)
        elif not recipe.splits_encoded:
            train, held_out = split_by_hash(train, recipe.options.eval_share)
        datasets = {"train": train, "eval": held_out, "unlabelled": unlabelled}
        self.files = {use: data.path for use, data in datasets.items() if data is not None and data.path is not None}
        self.load(config, train)
        self.train_rows = recipe.encode(train)
        if held_out is not None:
            self.eval_rows = recipe.encode(held_out)
        else:
            self.train_rows, self.eval_rows = split_by_hash(as_dataset(self.train_rows), recipe.options.eval_share)
        self.row_counts = {"train": len(self.train_rows), "eval": len(self.eval_rows)}
        if isinstance(recipe, TextRecipe):
            warn_of_truncation(recipe.truncated, sum(self.row_counts.values()), recipe.limit)

    def read(self, path: Any) -> TableDataset:
        """The rows of a file."""
        options: dict[str, Any] = {"format": self.settings.format, "encoding": self.settings.encoding}
        dataset = load_dataset_file(path, sample_by=self.recipe.sample_by, **options)
        self.tell(*dataset.notes)
        return dataset

    def tell(self, *notes: str | None) -> None:
        for note in filter(None, notes):
            self.notify(note)

    def inspect(self, dataset: TableDataset) -> Any:
        """Let the recipe find its columns; gives the configuration of the model to begin with."""
        source = self.source or self.settings.config
        if isinstance(source, str):
            config = AutoConfig.from_pretrained(source)
        else:
            values = {"model_type": self.recipe.new_model_type, **(source or {})}
            refuse(not isinstance(values["model_type"], str), "`config` names no `model_type`.", kind=ConfigError)
            config = AutoConfig.for_model(**values)
        self.tell(self.recipe.inspect(dataset, config))
        return config

    def load(self, config: Any, train: TableDataset) -> None:
        """Load the model, with a head for the data, and what prepares its inputs."""
        recipe, source, name = self.recipe, self.source, self.settings.tokenizer
        processor: Any = None
        if name == "characters" and source is None and recipe.processor_class is not None:
            processor = character_tokenizer(train.values(recipe.column_names["text"]))
        elif recipe.processor_class is not None:
            path = source if name in (None, "characters") else name
            hint = "Pass --tokenizer PATH, or characters."
            refuse(path is None, "a model with new weights needs a tokenizer.", hint)
            processor = recipe.processor_class.from_pretrained(path)
        set_seed(self.arguments.get("seed", 42))  # new weights are drawn
        settings = recipe.model_settings(is_new=source is None)
        with warnings.catch_warnings():
            # The head is to be trained.
            warnings.filterwarnings("ignore", ".*newly initialised.*", TranseptWarning)
            if source is None:
                size = {"vocab_size": len(processor)} if hasattr(processor, "__len__") else {}
                model = recipe.model_class.from_config(config.with_settings(**size, **settings))
            else:
                head = {"ignore_mismatched_sizes": True} if settings else {}
                model = recipe.model_class.from_pretrained(source, **settings, **head)
        recipe.set_model(processor, model)

    def make_trainer(self, output: str) -> Any:
        """The trainer, with the recipe's defaults below the settings that were given."""
        recipe, metrics, count = self.recipe, self.recipe.compute_metrics, self.recipe.model.num_parameters
        defaults = recipe.default_arguments(len(self.train_rows), count(), evaluated=len(self.eval_rows) > 0)
        if self.arguments.get("train_sampling_strategy") not in (None, "token_budget"):
            defaults.pop("max_tokens_per_batch", None)
        self.values = defaults | self.arguments
        reports = ["console", "jsonl", *(["plot"] if PlotCallback.is_available() else [])]
        args = recipe.arguments_class(**({"output_dir": output, "report_to": reports} | self.values))
        self.values.pop("report_to", None)
        self.trainer: Any = recipe.trainer_class(
            model=recipe.model,
            args=args,
            data_collator=recipe.collator(),
            train_dataset=self.train_rows,
            eval_dataset=self.eval_rows or None,
            processing_class=recipe.processor,
            compute_metrics=None if metrics is None else lambda output: metrics(output.predictions, output.label_ids),
            preprocess_logits_for_metrics=recipe.preprocess_logits,
            **recipe.trainer_options(),
        )
        if metrics is None:
            args.prediction_loss_only = True
        if "console" in (args.report_to or []):
            for callback in (ProgressCallback, PrinterCallback):
                self.trainer.pop_callback(callback)
        self.parameter_counts = {"all": count(), "trainable": count(only_trainable=True)}
        return self.trainer

    def train(self, *, resume: str | bool | None = None, force: bool = False) -> dict[str, float]:
        """Train, keep the best model, and write the run's directory; gives the metrics of the evaluation.

        ``resume`` is the checkpoint to go on from. Without ``force`` a directory that holds other files is refused.
        """
        output, about = self.settings.output, dict[str, Any]()
        if output is None:  # the first process chooses
            join()
            output = gather_objects(free_directory(self.settings.task))[0]
        trainer = self.make_trainer(output)
        is_first = trainer.is_world_process_zero()
        with contextlib.ExitStack() as stack:
            with same_on_all():
                if is_first:
                    about = self.about()
                    folder = stack.enter_context(run_directory(output, lambda: trainer.state.global_step > 0))
                    if resume is None:
                        self.tell(check_empty(folder, self.recipe.model, self.recipe.processor, force=force))
                    write_about(about, folder)
            start = time.monotonic()
            trainer.train(resume_from_checkpoint=resume)
            seconds = time.monotonic() - start
            metrics = self.evaluate(self.eval_rows) if len(self.eval_rows) else {}
            trainer.save_model(output)
            with same_on_all():
                if is_first:
                    about["results"] = {"metrics": metrics, "seconds": seconds, "updates": trainer.state.global_step}
                    write_about(about, output)
                    write_card(self.card(about), output)
        return metrics

    def evaluate(self, rows: Sequence[Row]) -> dict[str, float]:
        """The metrics on some rows."""
        if self.recipe.compute_metrics is None:
            values = self.trainer.evaluate(rows)
        else:
            values = self.trainer.predict(rows, metric_key_prefix="eval").metrics
        metrics = {name: value for name, value in values.items() if name != "epoch" and not name.endswith(NO_METRICS)}
        if self.recipe.has_perplexity and not (loss := metrics.get("eval_loss", math.inf)) > 700:
            metrics["eval_perplexity"] = math.exp(loss)
        return metrics

    def about(self) -> dict[str, Any]:
        """``run.json``: the task, the arguments as given and resolved, versions, digests of the data, parameters."""
        files = self.files.items()
        return {
            "run": self.settings.to_dict(),
            "columns": self.recipe.column_names,
            "options": vars(self.recipe.options),
            "arguments": {"given": self.arguments, "resolved": self.trainer.args.to_dict()},
            "data": {use: {"path": os.path.abspath(path), "sha256": digest_of(path)} for use, path in files},
            "rows": self.row_counts,
            "model_class": type(self.recipe.model).__name__,
            "parameters": self.parameter_counts,
            "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
            "command": self.settings.command(),
        }

    def card(self, about: dict[str, Any]) -> Card:
        """The card of the trained model, by what ``run.json`` says at the end."""
        rows, results = self.row_counts, about["results"]
        metrics = {name.removeprefix("eval_").replace("_", " "): value for name, value in results["metrics"].items()}
        share = f"{self.recipe.options.eval_share:.0%} by a hash of the row"
        split = "a file of their own" if self.settings.eval_data else share
        files = [(use, os.path.basename(file["path"]), file["sha256"][:16]) for use, file in about["data"].items()]
        data = [f"`{name}` ({use}), SHA-256 `{digest}…`" for use, name, digest in files]
        return Card(
            title=f"A model for {self.settings.task}",
            base=self.base or f"new weights ({about['model_class']})",
            metrics=metrics,
            arguments=self.values | self.options,
            matter={"pipeline_tag": self.recipe.pipeline_tag},
            rows=rows["eval"],
            answers=self.recipe.answers,
            data=[*data, f"{rows['train']} rows to train on, {rows['eval']} to evaluate ({split})"],
            seconds=results["seconds"],
            updates=results["updates"],
            versions=about["versions"],
            repeat=about["command"],
        )


def write_about(about: dict[str, Any], folder: PathName) -> None:
    """Write ``run.json``, without secrets."""
    write_text(Path(folder, RUN_NAME), dump_json(json_value(without_secrets(about), "run")))


def evaluate_model(settings: RunSettings, *, notify: Notify = str) -> tuple[dict[str, float], int]:
    """The metrics of ``settings.model`` on all rows of ``settings.data``, and their number."""
    run = Run(settings, notify=notify)
    dataset = run.read(settings.data or "")
    run.load(run.inspect(dataset), dataset)
    rows = run.recipe.encode(dataset)
    run.arguments = {"report_to": "none", "disable_tqdm": True}
    run.make_trainer(settings.output or "evaluation").pop_callback(PrinterCallback)  # the caller prints the metrics
    return run.evaluate(rows), len(rows)


def preview(run: Run) -> dict[str, Any]:
    """Look at a prepared run without training it: examples, counts, and the memory and time that are expected."""
    trainer = run.make_trainer(run.settings.output or "dry-run")
    rows, args = run.train_rows, trainer.args
    batch = trainer.data_collator([rows[index] for index in range(min(EXAMPLES, len(rows)))])
    width = next(len(value) for value in batch.values() if isinstance(value, Tensor))  # packed rows are one
    examples = [run.recipe.describe(batch, index) for index in range(min(EXAMPLES, len(rows), width))]
    loader = trainer.get_train_dataloader()
    updates = RunLength.of(args, loader).max_steps
    lengths = [0] * len(rows)
    if isinstance(rows, TableDataset) and "input_ids" in rows.column_names:
        lengths = rows.lengths("input_ids").tolist()
    longest = sorted(range(len(rows)), key=lambda index: -lengths[index])[: args.train_batch_size]
    with torch.random.fork_rng():
        activations, seconds = measure_pass(trainer, [rows[index] for index in longest], loader)
    run.recipe.model.eval()
    parameters, size = run.parameter_counts, next(run.recipe.model.parameters()).element_size()
    return {
        "examples": examples,  # rows of a batch in words
        "rows": run.row_counts,
        "parameters": parameters,
        "updates": updates,
        "tokens": sum(lengths) or None,  # of an epoch, where rows are tokens
        "bytes": {
            "weights": parameters["all"] * size,
            "gradients": parameters["trainable"] * size,
            "optimizer": parameters["trainable"] * STATE_BYTES,
            "activations": activations,  # of a batch of the longest rows
        },
        "seconds": seconds * updates * args.gradient_accumulation_steps,  # by batches that were timed
    }


def measure_pass(trainer: Any, rows: list[Row], loader: Any) -> tuple[int, float]:
    """The bytes that a forward pass of some rows keeps beside the weights, and the seconds of both passes."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in trainer.model.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def loss_of(batch: Any) -> Any:
        if not trainer._takes_any:
            names = {*trainer._inputs, *trainer.label_names}
            batch = {name: value for name, value in batch.items() if name in names}
        return trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch))

    trainer.model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_of(trainer.data_collator(rows))
    seconds = []
    for batch in islice(loader, TIMED):
        start = time.perf_counter()
        loss_of(batch).backward()
        seconds.append(time.perf_counter() - start)
    trainer.model.zero_grad(set_to_none=True)
    return sum(sizes.values()), sorted(seconds)[len(seconds) // 2]
