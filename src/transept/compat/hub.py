"""Names of files, and what fetches one, as code of the reference asks for them."""

from __future__ import annotations

import os
from typing import Any

from transept.errors import FileError, InputError
from transept.storage.files import load_object
from transept.storage.source import LIBRARY, Source, take_source_options

CONFIG_NAME, GENERATION_CONFIG_NAME = "config.json", "generation_config.json"
WEIGHTS_NAME, WEIGHTS_INDEX_NAME = "pytorch_model.bin", "pytorch_model.bin.index.json"
SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME = "model.safetensors", "model.safetensors.index.json"
ADAPTER_CONFIG_NAME = "adapter_config.json"
ADAPTER_WEIGHTS_NAME, ADAPTER_SAFE_WEIGHTS_NAME = "adapter_model.bin", "adapter_model.safetensors"
FEATURE_EXTRACTOR_NAME = IMAGE_PROCESSOR_NAME = "preprocessor_config.json"
VIDEO_PROCESSOR_NAME, PROCESSOR_NAME = "video_preprocessor_config.json", "processor_config.json"
CHAT_TEMPLATE_NAME, CHAT_TEMPLATE_FILE = "chat_template.json", "chat_template.jinja"
MODEL_CARD_NAME, SENTENCEPIECE_UNDERLINE = "modelcard.json", "▁"
DUMMY_INPUTS = [[7, 6, 0, 0, 1], [1, 2, 3, 0, 0], [0, 0, 0, 4, 5]]
_RAISING = "_raise_exceptions_for_"


def cached_file(path_or_repo_id: str | os.PathLike[str], filename: str, **kwargs: Any) -> str | None:
    """The path of a file of a directory, or of a repository, which is fetched where the cache has none.

    ``FileError``: there is none; with ``_raise_exceptions_for_missing_entries=False`` (or ``..._gated_repo``,
    ``..._connection_errors``) that is ``None``.
    """
    quiet = any(not value for name, value in list(kwargs.items()) if name.startswith(_RAISING))
    folder = kwargs.pop("subfolder", "")
    options = {name: value for name, value in kwargs.items() if not name.startswith(_RAISING)}
    where = take_source_options(options)
    options = {name: value for name, value in options.items() if name not in ("user_agent", "_commit_hash", "repo_type")}
    if options:
        raise InputError(f"cached_file has no argument {next(iter(options))!r}.")
    source = Source(str(path_or_repo_id), **where)
    name = f"{folder}/{filename}" if folder else filename
    try:
        path = source.find(name)
    except FileError:
        if quiet:
            return None
        raise
    if path is None and not quiet:
        raise FileError(f"there is no file {name!r}.", path=source.name)
    return None if path is None else str(path)


def get_checkpoint_shard_files(
    pretrained_model_name_or_path: str | os.PathLike[str], index_filename: str | os.PathLike[str], **kwargs: Any
) -> tuple[list[str], dict[str, Any]]:
    """The paths of a checkpoint's shards, and what its index says of them."""
    index = load_object(index_filename)
    where: dict[str, str] = index.get("weight_map", {})
    paths = [cached_file(pretrained_model_name_or_path, name, **kwargs) for name in sorted(set(where.values()))]
    about = {**index.get("metadata", {}), "all_checkpoint_keys": list(where), "weight_map": dict(where)}
    return [path for path in paths if path is not None], about


def has_file(path_or_repo: str | os.PathLike[str], filename: str, **kwargs: Any) -> bool:
    """Whether a directory or a repository has a file."""
    return cached_file(path_or_repo, filename, **kwargs, _raise_exceptions_for_missing_entries=False) is not None


def find_adapter_config_file(model_id: str | os.PathLike[str], **kwargs: Any) -> str | None:
    """The path of a model's ``adapter_config.json``, or ``None``."""
    return cached_file(model_id, ADAPTER_CONFIG_NAME, **kwargs, _raise_exceptions_for_missing_entries=False)


def send_example_telemetry(example_name: str, *example_args: Any, framework: str = "pytorch") -> None:
    """Nothing is sent."""


def http_user_agent(user_agent: dict[str, Any] | str | None = None) -> str:
    """What requests name as their sender."""
    more = "; ".join(f"{name}/{value}" for name, value in user_agent.items()) if isinstance(user_agent, dict) else user_agent
    return "; ".join([LIBRARY, *([more] if more else [])])


def is_remote_url(url_or_filename: str) -> bool:
    """Whether it is an address of the web."""
    return url_or_filename.startswith(("http://", "https://"))
