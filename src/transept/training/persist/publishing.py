"""A model card of what was trained, and publishing it on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transept.errors import UnsupportedError
from transept.files import make_directory, write_text
from transept.publish import Pushable, pipeline_tag
from transept.source import LIBRARY
from transept.training.arguments import TrainingArguments
from transept.training.methods.search import Space, search
from transept.training.state import BestRun, TrainerState

CARD_NAME = "README.md"
# Settings that a card tells.
TOLD = (
    *("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps", "seed"),
    *("optim", "lr_scheduler_type", "warmup_steps", "weight_decay", "label_smoothing_factor", "bf16", "fp16"),
)


class _Published(Pushable):
    """The files of a trained model, among them its card."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def save_pretrained(self, directory: Any) -> None:
        self.trainer.save_model(directory, _internal_call=True)
        write_text(Path(directory, CARD_NAME), self.trainer.card_text())


class Publishes:
    """Methods of the trainer that write a card, publish, and search for settings."""

    args: TrainingArguments
    model: Any
    state: TrainerState

    if TYPE_CHECKING:

        def event(self, name: str, **kwargs: Any) -> None: ...
        def is_world_process_zero(self) -> bool: ...

    def card_text(
        self, model_name: str | None = None, finetuned_from: str | None = None, dataset: Any = None, **matter: Any
    ) -> str:
        """A model card in Markdown: what it was trained from, the settings, and the figures of the last evaluation."""
        from huggingface_hub import ModelCardData

        name = model_name or Path(self.args.output_dir or ".").resolve().name
        base = finetuned_from or getattr(self.model, "name_or_path", None) or None
        about = {"pipeline_tag": pipeline_tag(type(self.model).__name__), "datasets": dataset} | matter
        given = {key: value for key, value in about.items() if value is not None}
        head = ModelCardData(library_name=LIBRARY, model_name=name, base_model=base, **given).to_yaml()
        none: dict[str, Any] = {}
        figures = next((log for log in reversed(self.state.log_history) if any(key.startswith("eval_") for key in log)), none)
        settings = {key: value for key, value in self.args.to_dict().items() if key in TOLD}
        parts = [f"---\n{head}\n---\n\n# {name}\n", f"Trained from `{base}`.\n" if base else "Trained from random weights.\n"]
        parts += _table("The last evaluation", figures) + _table("Settings", settings)
        return "\n".join(parts)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write ``README.md`` into the run's directory; the arguments are the hub's metadata, as far as they are known."""
        if not self.is_world_process_zero():
            return
        matter = {
            "language": language,
            "license": license,
            "tags": _listed(tags),
            "pipeline_tag": (_listed(tasks) or [None])[0],
        }
        names = _listed(dataset_tags) or _listed(dataset)
        if dataset_args is not None and names is not None:
            names = [f"{each} ({argument})" for each, argument in zip(names, _listed(dataset_args) or names)]
        known = {key: value for key, value in matter.items() if value is not None}
        text = self.card_text(model_name, finetuned_from, names, **known)
        write_text(make_directory(self.args.output_dir or ".") / CARD_NAME, text)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Publish the model, what prepares its inputs, the settings and a card as one commit; see ``Pushable``.

        Raises:
            UnsupportedError: ``blocking=False``: files are published while one waits.
        """
        if not blocking:
            raise UnsupportedError("`blocking=False` cannot be honoured: files are published while one waits.")
        if not self.is_world_process_zero():
            return None
        self.event("on_push_begin")
        return _Published(self).push_to_hub(
            self.args.hub_model_id or Path(self.args.output_dir or ".").resolve().name,
            private=self.args.hub_private_repo,
            commit_message=commit_message,
            token=token or self.args.hub_token,
            revision=revision or self.args.hub_revision,
            **kwargs,
        )

    def hyperparameter_search(
        self,
        hp_space: Space | None = None,
        compute_objective: Any = None,
        n_trials: int = 20,
        direction: str = "minimize",
        backend: str | None = None,
        hp_name: Any = None,
    ) -> BestRun:
        """Train with different settings, each from ``model_init``, and give the best.

        Args:
            hp_space: settings and the values to try, or a function of a trial with Optuna's ``suggest_float``, ``suggest_int``
                and ``suggest_categorical`` that gives them; by default the reference's.
            compute_objective: metrics of the evaluation -> a number; by default the sum of metrics, or the loss.
            n_trials: how many are tried at random.
            direction: ``minimize`` or ``maximize``.
            backend: ``random``, or ``grid`` for all combinations of a mapping's values.
            hp_name: a trial -> the name of its directory, below ``output_dir``.

        Raises:
            InputError: there is no ``model_init``, or the space is none.
            UnsupportedError: another backend.
        """
        return search(self, hp_space, compute_objective, n_trials, direction, backend, hp_name)


def _listed(value: Any) -> list[Any] | None:
    return [value] if isinstance(value, str) else value


def _table(title: str, values: Mapping[str, Any]) -> list[str]:
    if not values:
        return []
    shown = {name: f"{value:.5g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    rows = [f"| {name} | {value} |" for name, value in shown.items()]
    return [f"## {title}\n\n| | |\n|---|---|", *rows, ""]
