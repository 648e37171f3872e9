"""What a run is made of, as a recipe file, the command line and ``run.json`` say it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from transept.config.fields import SECRETS, checked, specs, without_secrets
from transept.config.schema import read_typed
from transept.errors import ConfigError, naming, nearest
from transept.storage.files import PathName
from transept.storage.yaml_file import load_yaml

RUN_NAME = "run.json"
# Settings that name where something is written or sent to. Only the command line says them, and no file.
DESTINATIONS = SECRETS | {
    *("output_dir", "logging_dir", "report_to", "run_name", "project", "push_to_hub", "push_to_hub_model_id"),
    *("push_to_hub_organization", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_revision"),
    *("hub_always_push", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
}
LOCAL_REPORTS = ("none", "console", "jsonl", "plot")  # which stay in the run's directory
PATHS = ("data", "eval_data", "unlabelled", "model", "config", "tokenizer", "format", "encoding", "output")


@dataclass(frozen=True)
class DataFile:
    path: str
    sha256: str


@dataclass(frozen=True)
class RunFile:
    """What is read of ``run.json``: the settings of the run, and the files of its data by their use."""

    run: dict[str, Any]
    data: dict[str, DataFile] = field(default_factory=dict)


@dataclass
class RunSettings:
    """What a run is made of."""

    task: str  # the name of a recipe
    data: str | None = None  # a file, or a folder of pictures or sounds
    eval_data: str | None = None
    unlabelled: str | None = None  # a file of more rows, without labels, for self-training
    model: str | None = None  # a directory or repository to begin with
    config: dict[str, Any] | str | None = None  # settings of a model with new weights, or the path of a config.json
    tokenizer: str | None = None  # the path of one that is not the model's, or `characters`, one token for each
    columns: dict[str, str | None] = field(default_factory=dict)  # by role, where they are not guessed
    settings: dict[str, Any] = field(default_factory=dict)  # of the trainer, and options of the recipe
    output: str | None = None  # the directory of the run
    format: str | None = None  # of the data, where the files do not tell
    encoding: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], path: PathName | None = None) -> RunSettings:
        """From values by name (``ConfigError``: an unknown one, one of the wrong type, or there is no task)."""
        fields = specs(cls)
        with naming(path):
            for name, value in values.items():
                if name not in fields:
                    raise ConfigError(f"a recipe has no {name!r}.", hint=nearest(str(name), fields))
                if value is not None:
                    checked(value, fields[name].kind, name, "a recipe")
            if not values.get("task"):
                raise ConfigError("a recipe needs a `task`.")
        return cls(**{name: value for name, value in values.items() if value is not None})

    @classmethod
    def read(cls, path: PathName) -> RunSettings:
        """From a recipe, a YAML file (``ConfigError``: unknown settings, or some that only the command line says)."""
        values = load_yaml(path)
        if not isinstance(values, dict):
            raise ConfigError("a recipe holds values by name, such as `task: text-classification`.", path=path)
        settings = cls.of(values, path)
        if names := settings.take_destinations():
            hint = "Pass --output PATH." if "output_dir" in names else f"Pass --set {names[0]}=VALUE."
            what = f"`{names[0]}` says where a run writes or sends something, which only the command line does."
            raise ConfigError(what, path=path, hint=hint)
        return settings

    @classmethod
    def of_run(cls, path: PathName) -> tuple[RunSettings, list[str]]:
        """From a ``run.json``; also the names of settings that are left out, as only the command line says them."""
        settings = cls.of(read_typed(path, RunFile).run, path)
        settings.output = None
        return settings, settings.take_destinations()

    def take_destinations(self) -> list[str]:
        """Remove the settings that say where something is written or sent to; gives their names."""
        reports = self.settings.get("report_to")
        is_local = all(report in LOCAL_REPORTS for report in (reports if isinstance(reports, list) else [reports]))
        names = [name for name in self.settings if str(name).lower() in DESTINATIONS]
        names = [name for name in names if not (name == "report_to" and is_local)]
        for name in names:
            del self.settings[name]
        return names

    def command(self) -> str:
        """The command that runs the same, without secrets."""
        values = self.to_dict()
        options = {name: values[name] for name in PATHS} | self.columns
        words = ["transept", "train", self.task]
        for name, value in options.items():
            if value is not None:
                words += [f"--{name.replace('_', '-')}", as_word(value)]
        for name, value in values["settings"].items():
            words += ["--set", f"{name}={as_word(value)}"]
        return shlex.join(words)

    def to_dict(self) -> dict[str, Any]:
        """All of it without secrets, as it may be written."""
        return without_secrets(asdict(self))


def as_word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
