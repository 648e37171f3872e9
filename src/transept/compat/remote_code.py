"""What code asks of the reference about Python files in a model's repository, which are never run here."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, NoReturn

from transept.errors import UnsupportedError
from transept.storage.files import PathName, read_text

_HINT = "Install the code as a package, and import its classes from there."


def get_relative_imports(module_file: PathName) -> list[str]:
    """The names of the modules beside a file that it imports."""
    nodes = [
        node for node in ast.walk(ast.parse(read_text(module_file))) if isinstance(node, ast.ImportFrom) and node.level == 1
    ]
    names = {name for node in nodes for name in ([node.module] if node.module else [alias.name for alias in node.names])}
    return sorted(names)


def get_relative_import_files(module_file: PathName) -> list[str]:
    """The files beside a file that it imports, and those that they import."""
    found: dict[str, None] = {}
    waiting = [Path(module_file)]
    while waiting:
        file = waiting.pop()
        for name in get_relative_imports(file):
            path = file.parent / f"{name.replace('.', '/')}.py"
            if str(path) not in found:
                found[str(path)] = None
                waiting.append(path)
    return list(found)


def get_class_from_dynamic_module(class_reference: str, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise ``UnsupportedError``."""
    raise UnsupportedError(f"{class_reference} is code of a model's repository, which is never run.", hint=_HINT)


def resolve_trust_remote_code(
    trust_remote_code: bool | None, model_name: Any, has_local_code: bool, has_remote_code: bool, *args: Any, **kwargs: Any
) -> bool:
    """False, where there is code of ours; else ``UnsupportedError``."""
    if has_remote_code and not has_local_code:
        get_class_from_dynamic_module(str(model_name))
    return False
