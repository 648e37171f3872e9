"""YAML documents of users: recipes and arguments. Read like JSON, they hold plain values only and no key twice."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from transept.errors import FormatError, MissingExtraError
from transept.storage.files import PathName, read_text

MAX_DEPTH = 32
# Numbers and truth values of YAML 1.2, and the characters that they begin with, in the order in which they are tried.
# PyYAML, which knows 1.1, takes 3e-5 for a text and `no` for false.
_PATTERNS = {
    "int": ("-+0123456789", re.compile(r"^[-+]?[0-9]+$")),
    "float": (
        "-+0123456789.",
        re.compile(r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"),
    ),
    "bool": ("tTfF", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")),
    "null": (("~", "n", "N", ""), re.compile(r"^(?:~|null|Null|NULL)?$")),
}


def load_yaml(path: PathName) -> Any:
    """Read a YAML document (the core schema of YAML 1.2) of at most one MiB.

    ``FormatError``: it is no YAML, too large or too deep, has a key twice, an alias, or a value that is not plain.
    """
    text = read_text(path, max_bytes=2**20)
    yaml, loader = _loader()
    try:
        return loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problem = getattr(error, "problem", None) or str(error)
        raise FormatError(f"is not a plain YAML document: {problem}.", path=where) from error
    except (RecursionError, ValueError) as error:
        raise FormatError("is nested too deeply, or holds a value that is no number or date.", path=path) from error


@cache
def _loader() -> tuple[Any, Any]:
    """PyYAML, and its safe loader without aliases, with each key once and values of YAML 1.2."""
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("pyyaml", "train", "Reading YAML") from error

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[str, Any] = {}
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            if self.check_event(yaml.AliasEvent) or getattr(event, "anchor", None):
                raise yaml.MarkedYAMLError(problem="it has an anchor or an alias", problem_mark=event.start_mark)
            self.depth += 1
            if self.depth > MAX_DEPTH:
                problem = f"it has more than {MAX_DEPTH} levels"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for position, key in enumerate(keys):
                is_name = isinstance(key, str | int)
                if not is_name or key in keys[:position]:
                    problem = f"the key {key!r:.80} {'comes twice' if is_name else 'is no name'}"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.value[position][0].start_mark)
            return super().construct_mapping(node, deep=deep)

    Plain.add_constructor("tag:yaml.org,2002:int", lambda reader, node: int(node.value))  # 012 is twelve
    for kind, (first, pattern) in _PATTERNS.items():
        Plain.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", pattern, [*first])
    return yaml, Plain
