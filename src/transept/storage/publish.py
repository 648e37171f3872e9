"""Publishing models, configurations and preprocessors as repositories of the hub, through huggingface_hub."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transept.errors import FileError, InputError, TranseptError, TranseptWarning
from transept.storage.files import write_text
from transept.storage.source import LIBRARY, cause, check_id

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

CARD_NAME, PLOT_NAME = "README.md", "plot.png"


class Pushable:
    """What can be saved into a directory can be published."""

    noun: ClassVar[str] = "model"  # what a card calls it
    loader: ClassVar[str] = ""  # the public class that loads it again; its own, where this is empty

    if TYPE_CHECKING:
        save_pretrained: Callable[..., Any]  # writes the files into a directory

    def card_data(self) -> dict[str, Any]:
        """What a model card says of it: ``tags``, ``pipeline_tag``."""
        return {}

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Warn: the code of a class is never saved beside its files, and never run out of a repository."""
        hint = f"Where it is loaded, import or define it first, and call {cls.__name__}.from_pretrained."
        message = f"register_for_auto_class saves no code of {cls.__name__}. {hint}"
        warnings.warn(message, TranseptWarning, stacklevel=2)

    def supersedes(self, name: str, variant: str | None = None) -> bool:
        """Whether a file of that name in a repository goes when this is published there."""
        return False

    def publish(self, directory: Any, wanted: bool, options: dict[str, Any]) -> None:
        """Publish what was saved into a directory, where ``push_to_hub`` of the ``save_pretrained`` asks for it."""
        if wanted:
            self.push_to_hub(options.pop("repo_id", None) or Path(directory).resolve().name, **options)
        elif options:
            hint = "For arguments of publishing pass push_to_hub=True too."
            raise InputError(f"save_pretrained has no argument {next(iter(options))!r}.", hint=hint)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        commit_message: str | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        base_model: str | None = None,
        **options: Any,
    ) -> CommitInfo:
        """Publish the files as one commit to a repository of the hub, which is made where needed.

        A model card is added where the repository has none. The result is the commit: its address as text, with ``oid``,
        ``pr_url`` and more as attributes.

        Args:
            repo_id: ``owner/name``, or a name of one's own.
            private: who may see a repository that is made; the account's default when absent.
            commit_message: the commit's first line.
            token: the hub token; ``None`` uses the one of the environment.
            revision: the branch to commit to, made where needed.
            create_pr: open a pull request in place of committing.
            base_model: the repository that this was made from, for the card.
            options: those of ``save_pretrained``, such as ``max_shard_size`` and ``variant``.

        Raises:
            InputError: no repository id.
            FileError: no connection, no such account, or a token that does not allow it.
        """
        import tempfile  # every config and tokenizer imports this module, and few of them are published

        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

        try:
            check_id(repo_id)
        except FileError as error:
            raise InputError(f"`repo_id` {repo_id!r} {error.message}", hint=error.hint) from None
        with tempfile.TemporaryDirectory(prefix=f"{LIBRARY}-") as folder:
            self.save_pretrained(folder, **options)
            card = self._card(repo_id, base_model)
            try:
                api = HfApi(token=token, library_name=LIBRARY)
                place = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
                if revision is not None and not create_pr and not revision.startswith("refs/"):
                    api.create_branch(place, branch=revision, exist_ok=True)
                there, root = api.list_repo_files(place, revision=revision), Path(folder)
                if CARD_NAME not in there and not (root / CARD_NAME).exists():
                    write_text(root / CARD_NAME, card)
                files = {file.relative_to(root).as_posix(): file for file in sorted(root.rglob("*")) if file.is_file()}
                stale = [name for name in sorted(there) if name not in files and self.supersedes(name, options.get("variant"))]
                changes: list[Any] = [CommitOperationAdd(name, file) for name, file in files.items()]
                changes += [CommitOperationDelete(name) for name in stale]
                message = commit_message or f"Upload {type(self).__name__}"
                return api.create_commit(place, changes, commit_message=message, revision=revision, create_pr=create_pr)
            except TranseptError:
                raise
            except Exception as error:  # of HTTP, of the disk and of the hub's own: each becomes one of ours
                what, hint = cause(error, token)
                raise FileError(f"cannot be published: {what}.", path=repo_id, hint=hint) from None

    def _card(self, repo_id: str, base_model: str | None) -> str:
        """The text of a ``README.md``: front matter that the hub reads, and how to load what was published."""
        from huggingface_hub import ModelCardData

        kind = self.loader or type(self).__name__
        matter = ModelCardData(library_name=LIBRARY, base_model=base_model, **self.card_data()).to_yaml()
        call = f'from {LIBRARY} import {kind}\n\n{self.noun} = {kind}.from_pretrained("{repo_id}")'
        return f"---\n{matter}\n---\n\n# {repo_id.rpartition('/')[2]}\n\n```python\n{call}\n```\n"
