"""Options of tasks as options of the command: ``--top-k 2`` is ``--option top_k=2``, and ``--help`` tells of each."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, get_args

from transept.cli.arguments import HELP_WIDTH, Parser, option
from transept.errors import UnsupportedError, nearest

# Inputs of several texts, whose parts are options too: one that is given goes with each input, which is the other.
FIELDS = {
    "question-answering": ("question", "context"),
    "text-classification": ("text", "text_pair"),
    "text-similarity": ("text", "text_pair"),
}
_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): ", re.MULTILINE)
_ROLE = re.compile(r":\w+:`(?:[\w.]*\.)?(\w+)`")


def known_task(name: str) -> str:
    """The name of a task, with its aliases resolved."""
    from transept.pipelines import ALIASES, task_names

    known = [*task_names(), *ALIASES]
    if name not in known:
        raise argparse.ArgumentTypeError(f"{UnsupportedError(f'there is no task {name!r}.', hint=nearest(name, known))}")
    return ALIASES.get(name, name)


def list_tasks() -> str:
    """What the help of ``run`` says of tasks."""
    from transept.pipelines import ALIASES, task_names

    lines = [f"  {name}" for name in task_names()] + [f"  {name} (the same as {other})" for name, other in ALIASES.items()]
    return "\n".join(["tasks (`transept run TASK --help` tells the options of one):", *lines])


def widen_by_named(parser: Parser, given: list[str]) -> None:
    """Add the options of the task that the arguments name; for :class:`Parser`."""
    from transept.pipelines import ALIASES, task_names

    known = {*task_names(), *ALIASES}
    if (task := next((word for word in given if word in known), None)) is not None:
        widen(parser, ALIASES.get(task, task))


def widen_by(task: str) -> Callable[[Parser, list[str]], None]:
    """What adds the options of one task, but for help, which tells where they are listed."""
    return lambda parser, given: None if {"-h", "--help"} & set(given) else widen(parser, task)


def widen(parser: Parser, task: str) -> None:
    """Add the options of a task, and the parts of its inputs."""
    from transept.pipelines import task_class

    kind = options_class(task_class(task))
    told = {name: text for base in reversed(kind.__mro__) for name, text in documented(base).items()}
    group = parser.add_argument_group(f"options of {task}")
    for field in FIELDS.get(task, ()):
        group.add_argument(f"--{field.replace('_', '-')}", metavar="TEXT", help=f"the {field} that goes with each input")
    for name, type_of in annotated(kind).items():
        if name != "generation":
            _add(parser, group, name, type_of, told.get(name, "").replace("%", "%%"))
    if "generation" in annotated(kind):
        from transept.generation.config import GenerationConfig

        settings = annotated(GenerationConfig)
        for name, type_of in settings.items():
            _add(parser, group, name, type_of, argparse.SUPPRESS)
        text = "settings of generation, which are options too: " + ", ".join(settings)
        parser.listing = lambda: textwrap.fill(text, HELP_WIDTH, break_long_words=False)
    else:
        parser.listing = None


def _add(parser: Parser, group: Any, name: str, type_of: str, told: str) -> None:
    """Add one option, where the command has none of that name itself; the pipeline checks its value."""
    flag = f"--{name.replace('_', '-')}"
    if flag in parser._option_string_actions:
        return
    if type_of.replace(" | None", "") == "bool":
        group.add_argument(flag, dest="option", action="append_const", const=(name, True), help=told)
        group.add_argument(
            f"--no-{flag[2:]}", dest="option", action="append_const", const=(name, False), help=argparse.SUPPRESS
        )
        return
    is_text = type_of.replace(" | None", "") == "str"
    read = (lambda value: (name, value)) if is_text else (lambda value: option(f"{name}={value}"))
    group.add_argument(flag, dest="option", action="append", type=read, metavar="TEXT" if is_text else "VALUE", help=told)


def options_class(pipeline: type[Any]) -> type[Any]:
    """The dataclass of a pipeline's options: what its base is parametrized with."""
    if (found := getattr(pipeline, "options_class", None)) is not None:
        return found  # type: ignore[no-any-return]
    bases = [base for kind in pipeline.__mro__ for base in vars(kind).get("__orig_bases__", ())]
    return next(each for base in bases for each in get_args(base) if isinstance(each, type))


def annotated(kind: type[Any]) -> dict[str, str]:
    """Names and types of the fields of a class and its bases, without what else is declared of a field."""
    found = {
        name: str(of).removeprefix("Annotated[").partition(",")[0]
        for base in reversed(kind.__mro__)
        for name, of in inspect.get_annotations(base).items()
    }
    return {name: of for name, of in found.items() if not name.startswith("_") and "ClassVar" not in of}


def documented(kind: type[Any]) -> dict[str, str]:
    """What the docstring of a class says of its arguments, in plain text."""
    _, _, section = inspect.cleandoc(vars(kind).get("__doc__") or "").partition("Args:\n")
    _, *parts = _ENTRY.split(section.partition("\n\n")[0])
    texts = [_ROLE.sub(r"\1", " ".join(text.split())).replace("``", "") for text in parts[1::2]]
    return {name: text for names, text in zip(parts[::2], texts) if text[:4] != "see " for name in names.split(", ")}
