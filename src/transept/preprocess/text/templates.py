"""Chat templates beside a tokenizer: ``chat_template.jinja``, and others by name in ``additional_chat_templates``."""

from __future__ import annotations

from pathlib import Path

from transept.errors import FileError
from transept.files import read_text, safe_join, write_text
from transept.preprocess.text.settings import check_template_name
from transept.source import Source

TEMPLATE_NAME, FOLDER, SUFFIX = "chat_template.jinja", "additional_chat_templates", ".jinja"
MAX_BYTES = 2**20
DEFAULT = "default"


def read_templates(source: Source) -> str | dict[str, str] | None:
    """The templates in files of their own: one, several by name, or ``None``.

    Raises:
        FormatError: a template that is no text, or larger than 1 MiB.
    """
    found: dict[str, str] = {}
    if (path := source.find(TEMPLATE_NAME)) is not None:
        found[DEFAULT] = read_text(path, max_bytes=MAX_BYTES)
    for path in source.find_all(FOLDER, SUFFIX):
        found[path.name.removesuffix(SUFFIX)] = read_text(path, max_bytes=MAX_BYTES)
    if not found:
        return None
    return found[DEFAULT] if list(found) == [DEFAULT] else found


def is_template(name: str) -> bool:
    """Whether a model's file of that name is a chat template."""
    return name == TEMPLATE_NAME or (name.startswith(f"{FOLDER}/") and name.endswith(SUFFIX))


def write_templates(directory: Path, templates: str | dict[str, str] | None) -> list[Path]:
    """Write templates into files of their own; returns their paths.

    Raises:
        InputError: a name that is no file's name.
    """
    if templates is None:
        return []
    named = {DEFAULT: templates} if isinstance(templates, str) else dict(templates)
    for name in named:
        check_template_name(name)
    written = []
    for name, template in named.items():
        path = directory / TEMPLATE_NAME
        if name != DEFAULT:
            path = safe_join(directory, f"{FOLDER}/{name}{SUFFIX}")
            try:
                path.parent.mkdir(exist_ok=True)
            except OSError as error:
                raise FileError(f"cannot be made ({error.strerror}).", path=path.parent) from error
        write_text(path, template)
        written.append(path)
    return written
