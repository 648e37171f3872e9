"""What a run is made of, as a recipe file, the command line and ``run.json`` say it."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from transept.errors import ConfigError, nearest
from transept.files import PathName, load_object
from transept.training.options.yaml_file import load_yaml

RUN_NAME = "run.json"


@dataclass
class RunSettings:
    """What a run is made of.

    Args:
        task: the name of a recipe.
        data, eval_data: files, or folders of pictures or sounds.
        unlabelled: a file of more rows, without labels, for self-training.
        model: a directory or repository to begin with.
        config: settings of a model with new weights, by name, or the path of a ``config.json``.
        tokenizer: another tokenizer than the model's: a path, or ``characters``, one token for each character of the data.
        columns: columns by role, where they are not guessed.
        settings: settings of the trainer and options of the recipe.
        output: the directory of the run.
        format, encoding: of the data, where the files do not tell.
    """

    task: str
    data: str | None = None
    eval_data: str | None = None
    unlabelled: str | None = None
    model: str | None = None
    config: dict[str, Any] | str | None = None
    tokenizer: str | None = None
    columns: dict[str, str | None] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    output: str | None = None
    format: str | None = None
    encoding: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], path: PathName | None = None) -> RunSettings:
        """From values by name (``ConfigError``: one that is not known or of the wrong type, or there is no task)."""
        fields = {each.name: each for each in dataclasses.fields(cls)}
        for name, value in values.items():
            if name not in fields:
                raise ConfigError(f"a recipe has no {name!r}.", path=path, hint=nearest(str(name), fields))
            mapping = name in ("columns", "settings") or (name == "config" and isinstance(value, dict))
            if value is not None and not isinstance(value, dict if mapping else str):
                kind = "a mapping of names to values" if mapping else "a text"
                raise ConfigError(f"`{name}` must be {kind}, but is {value!r:.80}.", path=path)
        if not values.get("task"):
            raise ConfigError("a recipe needs a `task`.", path=path)
        return cls(**{name: value for name, value in values.items() if value is not None})

    @classmethod
    def read(cls, path: PathName) -> RunSettings:
        """From a recipe, a YAML file (``FileError``, ``FormatError``, ``ConfigError``)."""
        values = load_yaml(path)
        if not isinstance(values, dict):
            raise ConfigError("a recipe holds values by name, such as `task: text-classification`.", path=path)
        return cls.of(values, path)

    @classmethod
    def of_run(cls, path: PathName) -> RunSettings:
        """From the ``run.json`` of a run."""
        values = load_object(path).get("run")
        if not isinstance(values, dict):
            raise ConfigError("tells no settings of a run.", path=path)
        return cls.of(values, path)

    def command(self) -> str:
        """The command that runs the same."""
        words = ["transept", "train", self.task]
        for name in ("data", "eval_data", "unlabelled", "model", "config", "tokenizer", "format", "encoding", "output"):
            value = getattr(self, name)
            if value is not None:
                words += [f"--{name.replace('_', '-')}", value if isinstance(value, str) else json.dumps(value)]
        for role, column in self.columns.items():
            if column is not None:
                words += [f"--{role.replace('_', '-')}", column]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        return shlex.join(words)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
