"""Fetching the files of hub repositories, through huggingface_hub and its cache.

What is cached costs no network call, and that a repository lacks a file is remembered too. Files that are fetched later come
from the commit that the cached ones are of, so that a model is never put together from two. Tokens are kept out of every
message.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from transept.errors import FileError
from transept.files import plain_name, reason

if TYPE_CHECKING:
    from transept.source import Source

LIBRARY = "transept"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ID = re.compile(r"(?:[A-Za-z0-9_][\w.-]*/)?[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?", re.ASCII)
_SECRET = re.compile(r"\bhf_\w{6,}|\bBearer\s+\S+|(?<=//)[^/@\s]+(?=@)", re.IGNORECASE)


def fetch(source: Source, filename: str) -> Path | None:
    """The cached path of one file of a repository, downloaded if needed; ``None`` where the repository has no such file.

    Where the network is off, what is not in the cache of a repository that is there counts as absent.

    Raises:
        FileError: no such repository or revision, no access, no connection, or nothing of it in the cache.
        FormatError: a name that leads outside the repository.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    name = _path_in_repository(source, filename)
    check_id(source.name)
    commit = None if source.force_download else cached_commit(source)
    if not source.force_download:
        cached = try_to_load_from_cache(source.name, name, cache_dir=_cache(source), revision=commit or source.revision)
        if cached is not None:
            return Path(cached) if isinstance(cached, str) else None
    if (switch := _switch(source)) is not None:
        if commit is not None:
            return None
        if source.force_download:
            raise FileError(f"force_download cannot fetch {name!r}: the network is off ({switch}).", path=source.name)
        raise missing(source, filename)
    try:
        return _download(source, name, commit)
    except LocalEntryNotFoundError as error:
        raise _explained(error, source, name, commit) from None
    except EntryNotFoundError:
        return None
    except Exception as error:  # of HTTP, of the disk and of the hub's own: each becomes one of ours
        raise _explained(error, source, name, commit) from None


def _download(source: Source, name: str, commit: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(
        hf_hub_download(
            source.name,
            name,
            revision=commit or source.revision,
            token=source.token,
            cache_dir=_cache(source),
            force_download=source.force_download,
            library_name=LIBRARY,
        )
    )


def cached_commit(source: Source) -> str | None:
    """The commit that the cache holds for a source's revision, or ``None`` where it holds nothing of it."""
    from huggingface_hub.file_download import repo_folder_name

    folder = _cache(source) / repo_folder_name(repo_id=source.name, repo_type="model")
    revision = source.revision or "main"
    if _COMMIT.fullmatch(revision):
        known = any((folder / kind / revision).is_dir() for kind in ("snapshots", ".no_exist"))
        return revision if known else None
    try:
        commit = (folder / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def missing(source: Source, filename: str, *, hint: str | None = None) -> FileError:
    """The error for a file that a repository, or the cache where the network is off, does not have."""
    name, revision = _path_in_repository(source, filename), source.revision or "main"
    if (switch := _switch(source)) is None:
        return FileError(f"{name!r} is not in the repository at {revision!r}.", path=source.name, hint=hint)
    wrong = f"{name!r} at {revision!r} is not in the cache {str(_cache(source))!r}, and the network is off ({switch})."
    remedy = "Fetch it once with the network on, or point HF_HOME or cache_dir to a cache that has it."
    return FileError(wrong, path=source.name, hint=hint or remedy)


def check_id(name: str) -> None:
    """Refuse what is no repository id, before anything is asked of the hub.

    Raises:
        FileError: says whether it looks like a path or like an id.
    """
    if os.path.isfile(name):
        raise FileError("is a file, but a model is a directory or a repository.", path=name, hint="Pass its directory.")
    if name.startswith((".", "/", "~", "\\")) or "\\" in name or name.count("/") > 1 or name.endswith("/"):
        raise FileError("looks like a path, but there is no such directory.", path=name, hint="Check it, or pass a hub id.")
    if len(name) > 96 or not _ID.fullmatch(name) or "--" in name or ".." in name or name.endswith(".git"):
        raise FileError(
            "is neither a directory nor a repository id, which looks like 'owner/name'.",
            path=name,
            hint="Ids hold letters, digits, '-', '_' and '.', at most 96 of them.",
        )


def _path_in_repository(source: Source, filename: str) -> str:
    return str(PurePosixPath(source.subfolder or "", plain_name(filename)))


def _cache(source: Source) -> Path:
    from huggingface_hub import constants

    return Path(source.cache_dir or constants.HF_HUB_CACHE).expanduser()


def _switch(source: Source) -> str | None:
    """What turns the network off, if anything does."""
    from huggingface_hub import constants

    if source.local_files_only:
        return "local_files_only=True"
    return "HF_HUB_OFFLINE=1" if constants.HF_HUB_OFFLINE else None


def _explained(error: Exception, source: Source, name: str, commit: str | None) -> FileError:
    """One of our errors for whatever went wrong on the way to a file."""
    from huggingface_hub.errors import RevisionNotFoundError

    what, hint = cause(error, source.token)
    if isinstance(error, RevisionNotFoundError):
        if commit is None:
            what, hint = f"the repository has no revision {source.revision!r}", "Pass a branch, tag or commit that it has."
        else:
            what = f"the cache holds commit {commit[:12]}, which the repository has no more"
            hint = "Pass force_download=True to fetch all of today's files."
    return FileError(f"{name!r} cannot be fetched: {what}.", path=source.name, hint=hint)


def cause(error: Exception, token: str | bool | None) -> tuple[str, str | None]:
    """What went wrong between here and the hub, and what to do about it."""
    from huggingface_hub import constants, errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return "the repository is gated", "Ask for access on its page on the hub, and pass a token of that account."
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            "there is no such directory here, and no such repository on the hub that this token may see",
            "Check the name; for a private repository pass token=... or set HF_TOKEN.",
        )
    if status == 401 or isinstance(error, errors.LocalTokenNotFoundError):
        return "the hub does not accept the token, or there is none", "Pass another token, or set HF_TOKEN."
    if status == 403:
        return "the token does not allow it", "Use a token with the right to do it."
    if status == 429:
        return "the hub had too many requests", "Wait a while, or pass a token."
    if status is not None:
        return f"the hub answered with status {status} ({_detail(error, token)})", None
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return cause(error.__cause__, token)
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return f"it cannot be stored ({reason(error)})", "Check the space and the rights of the cache directory."
    if isinstance(error, errors.LocalEntryNotFoundError | ConnectionError) or "httpx" in type(error).__module__:
        what = f"{urlsplit(constants.ENDPOINT).hostname} cannot be reached ({_detail(error, token)})"
        return what, "Check the connection; HF_HUB_OFFLINE=1 uses what is cached without asking."
    if isinstance(error.__cause__, Exception):
        return cause(error.__cause__, token)
    return f"{type(error).__name__}: {_detail(error, token)}", None


def _detail(error: Exception, token: str | bool | None) -> str:
    """The start of an error's own text, without anything that is a token, whoever put it there."""
    text = str(error)
    for secret in (token, os.environ.get("HF_TOKEN"), os.environ.get("HUGGING_FACE_HUB_TOKEN")):
        if isinstance(secret, str) and secret.strip():
            text = text.replace(secret.strip(), "***")
    return " ".join(_SECRET.sub("***", text).split())[:200]
