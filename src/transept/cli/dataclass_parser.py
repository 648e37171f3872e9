"""Dataclasses as options of a command: the reference's ``HfArgumentParser``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import typing
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Literal

from transept.config.fields import UNIONS, Derived
from transept.errors import FormatError, InputError, InputTypeError, nearest
from transept.storage.files import PathName, load_object, parse_json, read_text
from transept.storage.yaml_file import load_yaml

_TRUE, _FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")


def HfArg(  # noqa: N802 (the reference's name)
    *,
    aliases: str | list[str] | None = None,
    help: str | None = None,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    metadata: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A field of a dataclass with other names (such as ``-e``) and a help for :class:`HfArgumentParser`."""
    words = {name: value for name, value in {"aliases": aliases, "help": help}.items() if value is not None}
    settings |= {"default": default, "default_factory": default_factory}
    return dataclasses.field(metadata=(metadata or {}) | words, **settings)


class HfArgumentParser(ArgumentParser):
    """A parser with an option for each field of some dataclasses: ``--learning_rate`` and ``--learning-rate``.

    A field without a default must be given. A ``bool`` takes a truth value or none (then it is true), and also has a
    ``--no_`` form if it is true by default. A list takes several values, and a field of several types the first that
    reads the text. ``metadata`` may hold ``help`` and ``aliases``; ``_argument_group_name`` of a class names a group.

    Args:
        dataclass_types: a dataclass, or several, whose instances are made.
        settings: those of ``argparse.ArgumentParser``.

    Raises:
        InputTypeError: a class that is no dataclass, or a field whose type no text can be read as.
    """

    def __init__(self, dataclass_types: Any = None, **settings: Any) -> None:
        super().__init__(**{"formatter_class": ArgumentDefaultsHelpFormatter, **settings})
        several = isinstance(dataclass_types, Iterable) and not isinstance(dataclass_types, type)
        self.dataclass_types: list[Any] = list(dataclass_types if several else filter(None, [dataclass_types]))
        for cls in self.dataclass_types:
            if not dataclasses.is_dataclass(cls) or not isinstance(cls, type):
                raise InputTypeError(f"options are made of dataclasses, not of {cls!r:.80}.")
            name = getattr(cls, "_argument_group_name", None)
            group = self if name is None else self.add_argument_group(name)
            try:
                kinds = typing.get_type_hints(cls)
            except NameError as error:
                hint = "Declare it at the top of its module, with types that exist there."
                message = f"a type of a field of {cls.__name__} is not known ({error})."
                raise InputTypeError(message, hint=hint) from error
            for field in dataclasses.fields(cls):
                if field.init:
                    _add_option(group, field, kinds[field.name])

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """Parse options into the dataclasses.

        Args:
            args: the options; those of the process when absent.
            return_remaining_strings: return what is no option as a list at the end, where it is an error otherwise.
            look_for_args_file: read a file named like the script, ending in ``.args``, before the options.
            args_filename: another file for that.
            args_file_flag: an option that names more such files; later ones count more, the options most.

        Returns:
            An instance of each class, in their order; a namespace of the options that were added by hand, if any.

        Raises:
            InputError: words that are no options.
        """
        words = list(sys.argv[1:] if args is None else args)
        files = [args_filename] if args_filename else []
        if not files and look_for_args_file and sys.argv and sys.argv[0]:
            files = [str(Path(sys.argv[0]).with_suffix(".args"))]
        if args_file_flag is not None:
            finder = ArgumentParser(add_help=False)
            finder.add_argument(args_file_flag, action="append", default=[], dest="files")
            named, words = finder.parse_known_args(words)
            files += named.files
        before = [word for file in files if os.path.exists(file) for word in read_text(file).split()]
        namespace, rest = self.parse_known_args([*before, *words])
        if rest and not return_remaining_strings:
            known = [name for name in self._option_string_actions if name.startswith("--")]
            raise InputError(f"these are no options: {' '.join(rest)}.", hint=nearest(rest[0], known))
        values = vars(namespace)
        names = [_names(cls) for cls in self.dataclass_types]
        settings = [{name: values.pop(name) for name in fields if name in values} for fields in names]
        instances = [cls(**options) for cls, options in zip(self.dataclass_types, settings)]
        return (*instances, *([namespace] if values else []), *([rest] if return_remaining_strings else []))

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """An instance of each class from values by name (``InputError``: a name that is no field, unless allowed)."""
        names = [_names(cls) for cls in self.dataclass_types]
        known = {name for fields in names for name in fields}
        unknown = sorted(str(name) for name in args if name not in known)
        if unknown and not allow_extra_keys:
            raise InputError(f"these are no fields: {', '.join(unknown)}.", hint=nearest(unknown[0], known))
        settings = [{name: args[name] for name in fields if name in args} for fields in names]
        return tuple(cls(**options) for cls, options in zip(self.dataclass_types, settings))

    def parse_json_file(self, json_file: PathName, allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Like :meth:`parse_dict` for a JSON file (``FileError``, ``FormatError``: it cannot be read)."""
        return self.parse_dict(load_object(json_file), allow_extra_keys)

    def parse_yaml_file(self, yaml_file: PathName, allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Like :meth:`parse_dict` for a YAML file; it raises the errors of ``yaml_file.load_yaml`` too."""
        values = load_yaml(yaml_file)
        if not isinstance(values, dict):
            raise FormatError(f"must hold values by name, but holds {type(values).__name__}.", path=yaml_file)
        return self.parse_dict(values, allow_extra_keys)


def _names(cls: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.init]


def _add_option(group: Any, field: dataclasses.Field[Any], kind: Any) -> None:
    options = dict(field.metadata)
    aliases = options.pop("aliases", [])
    dashed = field.name.replace("_", "-")
    names = dict.fromkeys((f"--{field.name}", f"--{dashed}", *([aliases] if isinstance(aliases, str) else aliases)))
    members = typing.get_args(kind) if typing.get_origin(kind) in UNIONS else (kind,)
    members = tuple(member for member in members if member is not type(None))
    origins = [typing.get_origin(member) or member for member in members]
    if len(members) > 1 and str not in origins and Literal not in origins:
        message = f"the field {field.name!r} has several types, so that its text could be read as any."
        raise InputTypeError(message, hint="Use one type, X | None, or a union with str.")
    if field.default_factory is not dataclasses.MISSING:
        options["default"] = field.default_factory()
    elif field.default is not dataclasses.MISSING:
        options["default"] = SUPPRESS if isinstance(field.default, Derived) else field.default
    elif kind is bool:
        options["default"] = False
    else:
        options["required"] = True
    options["type"] = partial(_read, kinds=members)
    if members == (bool,):
        options["type"] = _truth
        if kind is bool or options.get("default") is not None:
            options |= {"nargs": "?", "const": True}
    elif origins == [list]:
        options |= {"type": partial(_read, kinds=typing.get_args(members[0])), "nargs": "+"}
    elif len(members) == 1 and (choices := _choices(members[0])):
        options |= {"type": lambda text: choices.get(text, text), "choices": [*choices.values()]}
    group.add_argument(*names, **options)
    if members == (bool,) and field.default is True:
        help = {name: options[name] for name in ("help",) if name in options}
        words = dict.fromkeys((f"--no_{field.name}", f"--no-{dashed}"))
        group.add_argument(*words, action="store_false", dest=field.name, default=False, **help)


def _choices(kind: Any) -> dict[str, Any]:
    """The values of a ``Literal`` or an ``Enum`` by their texts."""
    values: Iterable[Any] = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    if isinstance(kind, type) and issubclass(kind, Enum):
        values = [member.value for member in kind]
    return {str(value): value for value in values}


def _truth(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ArgumentTypeError(f"{text!r} is no truth value: yes or no, true or false, t or f, y or n, 1 or 0")
    return text.lower() in _TRUE


def _read(text: str, kinds: tuple[Any, ...]) -> Any:
    """A text as the first of some types that it can be read as, ``str`` last."""
    for kind in sorted(kinds, key=lambda kind: kind is str):
        with contextlib.suppress(ValueError, TypeError, KeyError, ArgumentTypeError):
            origin = typing.get_origin(kind) or kind
            if kind is bool:
                return _truth(text)
            if origin is Literal:
                return _choices(kind)[text]
            if origin not in (dict, list):
                return kind(text) if callable(kind) and kind is not Any else text
            if isinstance(value := parse_json(text), origin):
                return value
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise ArgumentTypeError(f"{text!r} is not of type {names}")
