"""Where a model's files come from: a directory, or a repository of the hub at one revision. No torch here.

The cache and its environment variables are huggingface_hub's own. What is cached or known to be lacking costs no network call.
Files that are fetched later come from the commit that the cached ones are of. Tokens are kept out of every message.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import warnings
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from transept.errors import FileError, FormatError, InputError, InputTypeError, TranseptWarning, UnsupportedError, refuse
from transept.storage.files import open_regular, plain_name, reason, safe_join

LIBRARY = "transept"
# How long a hub that could not be reached is not asked again for what a cached model may have besides.
UNREACHABLE_SECONDS = 60.0
_unreachable: dict[str, tuple[str, float]] = {}
_NO_ANSWER = "cannot be reached"
MAX_LISTED = 1000
# No folder holds a file of this name, and that the cache says so tells that the folder was listed.
_ASKED = ".listed"
GGUF_ENDING = ".gguf"
_ID = re.compile(r"(?:[A-Za-z0-9_][\w.-]*/)?[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?", re.ASCII)
_SECRET = re.compile(r"\bhf_\w{6,}|\bBearer\s+\S+|(?<=//)[^/@\s]+(?=@)", re.IGNORECASE)


# Arguments of the reference's ``from_pretrained`` that change nothing: memory is always saved, downloads always resume, the
# environment tells mirrors, code of a repository has no revision since it is never run, and there is one
# implementation of tokenizers and image processors.
_NEEDLESS = """
_commit_hash _fast_init _from_auto _from_pipeline code_revision disable_mmap experts_implementation from_slow low_cpu_mem_usage
max_memory mirror offload_buffers offload_folder offload_state_dict resume_download use_fast weights_only
"""
# Those that ask for what is not here, unless they are empty, and what to do without.
_ABSENT = {
    "from_tf": "Convert the weights to safetensors with a version 4 of the reference, once.",
    "from_flax": "Convert the weights to safetensors with a version 4 of the reference, once.",
    "adapter_kwargs": "Load the adapter behind the model, with PeftModel.from_pretrained().",
    "key_mapping": "Rename the tensors, and pass them as state_dict.",
    "kernel_config": "Leave it out: PyTorch's kernels are used.",
    "use_kernels": "Leave it out: PyTorch's kernels are used.",
    "fusion_config": "Leave it out.",
    "proxies": "Set HTTPS_PROXY in the environment.",
}


def take_source_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments that say where to look out of all those of a call, and those of the reference that change nothing.

    ``use_auth_token`` is an older name of ``token``. One that asks for what is not here is an ``UnsupportedError``.
    """
    for name, remedy in _ABSENT.items():
        refuse(options.pop(name, None), f"`{name}` is not supported.", remedy, UnsupportedError)
    for name in _NEEDLESS.split():
        options.pop(name, None)
    if (token := options.pop("use_auth_token", None)) is not None:
        options.setdefault("token", token)
    return {name: options.pop(name) for name in OPTIONS if name in options}


def model_name(name: Any) -> str:
    """A directory or a repository id as text (``InputTypeError`` where it is neither a text nor a path)."""
    if not isinstance(name, str | os.PathLike):
        what = f"a model is named by a text or a path, not by {type(name).__name__}: {str(name)[:60]!r}."
        raise InputTypeError(what, hint="Pass a directory or a repository id.")
    return os.fspath(name)


def model_argument(name: Any, options: dict[str, Any]) -> Any:
    """The model of a ``from_pretrained``, which ``options`` may give as ``name_or_path`` (``InputTypeError``: none does)."""
    name = options.pop("name_or_path", None) if name is None else name
    if name is None:
        raise InputTypeError("from_pretrained() was not told what to load.", hint="Pass a directory or a repository id.")
    return name


@dataclass(frozen=True)
class Source:
    """One model's files.

    Args:
        name: a directory, or a repository id such as ``google-bert/bert-base-cased``.
        revision: branch, tag or commit of a repository; ``main`` when absent.
        subfolder: a folder below the directory or the repository.
        token: the hub token; ``None`` uses the one of the environment, ``False`` none.
        cache_dir: another cache than huggingface_hub's.
        local_files_only: never use the network.
        force_download: fetch again what is cached.
        trust_remote_code: accepted from callers of the reference and never used: code of a repository is not run.
        gguf_file: a file of llama.cpp's format with config, tokenizer and weights; ``name`` may be its path.

    Raises:
        InputError: a name, revision, subfolder or token that cannot be one.
    """

    name: str
    revision: str | None = None
    subfolder: str | None = None
    token: str | bool | None = field(default=None, repr=False)
    cache_dir: str | os.PathLike[str] | None = None
    local_files_only: bool = False
    force_download: bool = False
    trust_remote_code: bool | None = None
    gguf_file: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", model_name(self.name))
        if self.gguf_file is None and os.path.isfile(self.name) and _is_gguf(self.name):
            folder, file = os.path.split(self.name)
            object.__setattr__(self, "name", folder or ".")
            object.__setattr__(self, "gguf_file", file)
        if not self.name or "\0" in self.name:
            raise InputError(f"{self.name!r} is no name of a model.", hint="Pass a directory or a repository id.")
        for option in ("revision", "subfolder", "gguf_file"):
            if (value := getattr(self, option)) is not None and value != "":
                try:
                    plain_name(value)
                except FormatError as error:
                    raise InputError(f"`{option}` cannot be {str(value)[:80]!r}: {error.message}") from None
        if isinstance(self.token, str) and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise InputError("`token` holds spaces or other characters that no token has.")

    def options(self) -> dict[str, Any]:
        """Where it looks, as the arguments of ``from_pretrained``."""
        return {name: getattr(self, name) for name in OPTIONS}

    @property
    def directory(self) -> Path | None:
        """The local directory, or ``None`` where the name is of a repository."""
        if not os.path.isdir(self.name):
            return None
        return safe_join(self.name, self.subfolder) if self.subfolder else Path(self.name)

    @property
    def location(self) -> str:
        """What names the model in reports: the name, and of a local GGUF file its path."""
        return self.name if self.gguf_file is None or self.directory is None else str(self.directory / self.gguf_file)

    @property
    def commit(self) -> str | None:
        """The commit that a repository's cached files are of; ``None`` for a directory, and where nothing is cached."""
        return None if self.directory is not None else _cached_commit(self)

    def find(self, filename: str) -> Path | None:
        """The local path of a file, fetched first where needed; ``None`` where the model has no such file.

        Raises:
            FileError: neither a directory nor a repository that can be reached.
            FormatError: a name that leads outside.
        """
        if (directory := self.directory) is not None:
            path = safe_join(directory, filename)
            return path if os.path.isfile(path) else None
        return fetch(self, filename)

    def find_all(self, folder: str, suffix: str) -> list[Path]:
        """The local paths of the files right below a folder whose names end in ``suffix``; see :meth:`find` for errors."""
        if (directory := self.directory) is None:
            return fetch_all(self, folder, suffix)
        inner = safe_join(directory, folder)
        names = sorted(path.name for path in inner.glob(f"*{suffix}"))
        return [path for name in names if (path := self.find(f"{folder}/{name}")) is not None]

    def need(self, filename: str) -> Path:
        """Like :meth:`find`, but a file that is not there is a ``FileError`` that names the place."""
        if (path := self.find(filename)) is not None:
            return path
        raise self.missing(filename)

    def missing(self, filename: str, *, hint: str | None = None) -> FileError:
        """The error for a file that was looked for and not found; without the network, in the cache."""
        if self.directory is not None:
            found = "is there, but no regular file" if os.path.lexists(self.directory / filename) else "is not there"
            if hint is None and (files := sorted(path.name for path in self.directory.glob(f"*{GGUF_ENDING}"))):
                hint = f"Pass gguf_file={files[0]!r}, or the path of that file in place of its folder."
            return FileError(f"{filename!r} {found}.", path=self.directory, hint=hint)
        name, revision = _path_in_repository(self, filename), self.revision or "main"
        if (switch := _off(self)) is None:
            return FileError(f"{name!r} is not in the repository at {revision!r}.", path=self.name, hint=hint)
        wrong = f"{name!r} at {revision!r} is not in the cache {str(_cache(self))!r}, and the network is off ({switch})."
        remedy = "Fetch it once with the network on, or point HF_HOME or cache_dir to a cache that has it."
        return FileError(wrong, path=self.name, hint=hint or remedy)


OPTIONS = tuple(field.name for field in fields(Source))[1:]  # the arguments of every from_pretrained for finding files


def _is_gguf(path: str) -> bool:
    """Whether a file has the ending of llama.cpp's format, or begins as such files do."""
    if path.lower().endswith(GGUF_ENDING):
        return True
    with open_regular(path) as file:
        return file.read(4) == b"GGUF"


def fetch(source: Source, filename: str) -> Path | None:
    """The cached path of one file of a repository, downloaded if needed; ``None`` where the repository has no such file.

    Without the network, what the cache of a repository lacks counts as absent. See :meth:`Source.find` for errors.
    """
    name = _path_in_repository(source, filename)
    if (commit := _cached_commit(source)) is not None:
        if os.path.isfile(path := _held(source, "snapshots", commit, name)):
            return path
        if os.path.isfile(_held(source, ".no_exist", commit, name)) or _off(source) is not None:
            return None
    if (switch := _switch(source)) is not None:
        if source.force_download:
            raise FileError(f"force_download cannot fetch {name!r}: the network is off ({switch}).", path=source.name)
        raise source.missing(filename)
    return _downloaded(source, name, commit)


def _downloaded(source: Source, name: str, commit: str | None) -> Path | None:
    """The path of a file that was asked of the hub, ``None`` where it says that the repository has no such file."""
    # Its client of HTTP takes long to import, which what is cached need not wait for.
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    where: dict[str, Any] = {"revision": commit or source.revision, "cache_dir": _cache(source), "token": source.token}
    try:
        where |= {"force_download": source.force_download, "library_name": LIBRARY}
        return Path(str(hf_hub_download(source.name, name, **where)))
    except Exception as error:  # of HTTP, of the disk and of the hub's own: each becomes one of ours
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        reached = cause(error, source.token)[0]
        if commit is None or source.force_download or _NO_ANSWER not in reached:
            raise _explained(error, source, name, commit) from None
        _unreachable[_hub().ENDPOINT] = reached, time.monotonic() + UNREACHABLE_SECONDS
        warnings.warn(f"{reached}: only the files in the cache are used.", TranseptWarning, stacklevel=4)
        return None


def newest(source: Source, filename: str) -> Path | None:
    """Like :func:`fetch`, but of the commit that the hub has today; what the cache holds of that is not fetched again."""
    if _switch(source) is not None:
        raise source.missing(filename)
    return _downloaded(source, _path_in_repository(source, filename), None)


def fetch_all(source: Source, folder: str, suffix: str) -> list[Path]:
    """The cached paths of the files right below a folder whose names end in ``suffix``, at most 1,000, downloaded if needed.

    What is in a folder is asked once a commit; where the network is off, it is what the cache holds.
    """
    path, mark = _path_in_repository(source, folder), _path_in_repository(source, f"{folder}/{_ASKED}")
    commit = _cached_commit(source)
    off = _switch(source) if commit is None else _off(source)
    listed = off is not None or (commit is not None and os.path.isfile(_held(source, ".no_exist", commit, mark)))
    if listed:
        held = _held(source, "snapshots", str(commit), path)
        names = os.listdir(held) if os.path.isdir(held) else []
    else:
        names = _listed(source, path, commit)
    paths = [fetch(source, f"{folder}/{name}") for name in sorted(names) if name.endswith(suffix)]
    if not listed and (commit := _cached_commit(replace(source, force_download=False))) is not None:
        asked = _held(source, ".no_exist", commit, mark)
        with contextlib.suppress(OSError):  # a cache that may not be written to is asked again
            asked.parent.mkdir(parents=True, exist_ok=True)
            asked.touch()
    return [found for found in paths if found is not None]


def _listed(source: Source, path: str, commit: str | None) -> list[str]:
    """Names of the files right below a folder of a repository, as the hub tells them; none where there is no folder."""
    from huggingface_hub import HfApi, RepoFile
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    api = HfApi(token=source.token, library_name=LIBRARY)
    try:
        tree = api.list_repo_tree(source.name, path, revision=commit or source.revision)
        entries = list(islice(tree, MAX_LISTED + 1))
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == 404 and not isinstance(error, RepositoryNotFoundError | RevisionNotFoundError):
            return []
        raise _explained(error, source, path, commit) from None
    if len(entries) > MAX_LISTED:
        raise FileError(f"{path!r} holds more than {MAX_LISTED} files.", path=source.name)
    return [PurePosixPath(entry.path).name for entry in entries if isinstance(entry, RepoFile)]


def _held(source: Source, kind: str, commit: str, name: str = "") -> Path:
    """Where the cache keeps a file of a commit, or (``.no_exist``) an empty one that says that the repository lacks it."""
    return _cache(source) / f"models--{source.name.replace('/', '--')}" / kind / commit / name


def _cached_commit(source: Source) -> str | None:
    """The commit that the cache holds for a source's revision, ``None`` where it holds nothing of it or is not to be used."""
    check_id(source.name)
    found = source.revision or "main"
    with contextlib.suppress(OSError, ValueError):
        found = _held(source, "refs", found).read_text(encoding="ascii").strip()
    if source.force_download or found in ("", "..") or PurePath(found).name != found:
        return None
    return found if any(os.path.isdir(_held(source, kind, found)) for kind in ("snapshots", ".no_exist")) else None


def check_id(name: str) -> None:
    """Refuse what is no repository id, before anything is asked of the hub (``FileError``: a path, or none of both)."""
    if os.path.isfile(name):
        raise FileError("is a file, but a model is a directory or a repository.", path=name, hint="Pass its directory.")
    if name.startswith((".", "/", "~", "\\")) or "\\" in name or name.count("/") > 1 or name.endswith("/"):
        raise FileError("looks like a path, but there is no such directory.", path=name, hint="Check it, or pass a hub id.")
    if len(name) > 96 or not _ID.fullmatch(name) or "--" in name or ".." in name or name.endswith(".git"):
        wrong = "is neither a directory nor a repository id, which looks like 'owner/name'."
        raise FileError(wrong, path=name, hint="Ids hold letters, digits, '-', '_' and '.', at most 96 of them.")


def _path_in_repository(source: Source, filename: str) -> str:
    return str(PurePosixPath(source.subfolder or "", plain_name(filename)))


def _hub() -> Any:
    """The settings of huggingface_hub, which a local directory does not need."""
    from huggingface_hub import constants

    return constants


def _cache(source: Source) -> Path:
    return Path(source.cache_dir or _hub().HF_HUB_CACHE).expanduser()


def _off(source: Source) -> str | None:
    """Why nothing can be asked of the hub: the network is off, or the hub could not be reached a moment ago."""
    found, until = _unreachable.get(_hub().ENDPOINT, (None, 0.0))
    return _switch(source) or (found if time.monotonic() < until else None)


def _switch(source: Source) -> str | None:
    """What turns the network off, if anything does."""
    if source.local_files_only:
        return "local_files_only=True"
    return "HF_HUB_OFFLINE=1" if _hub().HF_HUB_OFFLINE else None


def _explained(error: Exception, source: Source, name: str, commit: str | None) -> FileError:
    """One of our errors for whatever went wrong on the way to a file."""
    from huggingface_hub.errors import RevisionNotFoundError

    what, hint = cause(error, source.token)
    if isinstance(error, RevisionNotFoundError) and commit is None:
        what, hint = f"the repository has no revision {source.revision!r}", "Pass a branch, tag or commit that it has."
    elif isinstance(error, RevisionNotFoundError):
        what = f"the cache holds commit {str(commit)[:12]}, which the repository has no more"
        hint = "Pass force_download=True to fetch all of today's files."
    return FileError(f"{name!r} cannot be fetched: {what}.", path=source.name, hint=hint)


_REFUSED: dict[object, tuple[str, str]] = {
    "GatedRepoError": ("the repository is gated", "Ask for access on its page on the hub, and pass a token of that account."),
    "RepositoryNotFoundError": (
        "there is no such directory here, and no such repository on the hub that this token may see",
        "Check the name; for a private repository pass token=... or set HF_TOKEN.",
    ),
    401: ("the hub does not accept the token, or there is none", "Pass another token, or set HF_TOKEN."),
    403: ("the token does not allow it", "Use a token with the right to do it."),
    429: ("the hub had too many requests", "Wait a while, or pass a token."),
}
_REFUSED["LocalTokenNotFoundError"] = _REFUSED[401]


def cause(error: BaseException, token: str | bool | None) -> tuple[str, str | None]:
    """What went wrong between here and the hub, and what to do about it."""
    status, detail = getattr(getattr(error, "response", None), "status_code", None), _detail(error, token)
    kind = type(error).__name__
    if found := _REFUSED.get(kind) or _REFUSED.get(status):
        return found
    if status is not None:
        return f"the hub answered with status {status} ({detail})", None
    is_of_cache, inner = kind == "LocalEntryNotFoundError", error.__cause__
    if is_of_cache and isinstance(inner, Exception):
        return cause(inner, token)
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return f"it cannot be stored ({reason(error)})", "Check the space and the rights of the cache directory."
    if is_of_cache or isinstance(error, ConnectionError) or "httpx" in type(error).__module__:
        what = f"{urlsplit(_hub().ENDPOINT).hostname} {_NO_ANSWER} ({detail})"
        return what, "Check the connection; HF_HUB_OFFLINE=1 uses what is cached without asking."
    return cause(inner, token) if isinstance(inner, Exception) else (f"{kind}: {detail}", None)


def _detail(error: BaseException, token: str | bool | None) -> str:
    """The start of an error's own text, without anything that is a token, whoever put it there."""
    text = str(error)
    for secret in (token, os.environ.get("HF_TOKEN"), os.environ.get("HUGGING_FACE_HUB_TOKEN")):
        if isinstance(secret, str) and secret.strip():
            text = text.replace(secret.strip(), "***")
    return " ".join(_SECRET.sub("***", text).split())[:200]
