"""Fetching files of hub repositories through huggingface_hub and its cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from transept.errors import FileError

if TYPE_CHECKING:
    from transept.source import Source


def fetch(source: Source, filename: str) -> Path | None:
    """The cached path of one file of a repository, downloaded if needed; ``None`` where it does not exist."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    name = f"{source.subfolder}/{filename}" if source.subfolder else filename
    if not source.force_download:
        cached = try_to_load_from_cache(source.name, name, cache_dir=source.cache_dir, revision=source.revision)
        if isinstance(cached, str):
            return Path(cached)
    try:
        return Path(
            hf_hub_download(
                source.name,
                name,
                revision=source.revision,
                token=source.token,
                cache_dir=source.cache_dir,
                local_files_only=source.local_files_only,
                force_download=source.force_download,
            )
        )
    except LocalEntryNotFoundError as error:
        raise FileError(f"{name!r} is not in the cache and the hub cannot be reached.", path=source.name) from error
    except EntryNotFoundError:
        return None
    except HfHubHTTPError as error:
        raise FileError(f"{name!r} cannot be fetched ({error}).", path=source.name) from error
