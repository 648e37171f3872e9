"""Learning from rows without labels: by labels that the model gives them, or by two views of each row."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from transept.config.schema import typed
from transept.errors import FormatError, InputError, refuse
from transept.metrics.base import softmax
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm
from transept.storage.files import PathName, make_directory, parse_json, read_text, write_text
from transept.training.callbacks.base import TrainerCallback
from transept.training.callbacks.progress import PrinterCallback
from transept.training.callbacks.reports import LOG_NAME, read_log, write_log
from transept.training.checkpoint.contents import load_saved_weights
from transept.training.checkpoint.directory import find_last_checkpoint, write_directory
from transept.training.objective import Batch, Counts, count_rows
from transept.training.run import RunLength
from transept.training.state import STATE_NAME, SaveStrategy, TrainerControl, TrainerState, TrainOutput
from transept.training.trainer import Trainer
from transept.training.trainers.objective import ObjectiveTrainer, with_prefix

CONSISTENCY, VIEWS = "consistency", ("weak_", "strong_")
ROUND, START = "round-", "start"
Rows = Sequence[Mapping[str, Any]]
COLUMNS: Any = {"row": int, "label": int, "score": float}  # of what a round kept, in its file


class ConsistencyTrainer(ObjectiveTrainer):
    """FixMatch (Sohn et al. 2020): a classifier trained on labelled rows and on two views of unlabelled ones.

    A batch has inputs and ``labels`` of labelled rows, and inputs of the views, whose names begin with ``weak_`` and
    ``strong_``. Where the model is surer than ``threshold`` of its answer to the weak view, that answer is the label
    of the strong one. The term is divided by all unlabelled rows, sure or not.

    Args:
        threshold: the least probability of an answer that teaches.
        unlabelled_weight: of the term.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        *,
        threshold: float = 0.95,
        unlabelled_weight: float = 1.0,
        **others: Any,
    ) -> None:
        refuse(not 0 <= threshold <= 1, f"`threshold` must be in [0, 1], but is {threshold}.")
        self.threshold, self.unlabelled_weight = threshold, unlabelled_weight
        super().__init__(model, args, **others)

    def count(self, batch: Batch) -> Counts | None:
        labelled, weak, _ = views(batch)
        return (super().count(labelled) or {}) | {CONSISTENCY: float(count_rows(weak))}

    def terms(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        labelled, weak, strong = views(batch)
        terms: dict[str, LossTerm] = model(**labelled).loss_terms
        with torch.no_grad():
            scores, labels = widened(model(**weak).logits).softmax(dim=-1).max(dim=-1)
        losses = F.cross_entropy(widened(model(**strong).logits), labels, reduction="none")
        loss = losses.masked_fill(scores < self.threshold, 0.0).sum()
        count = torch.tensor(len(losses), device=losses.device)
        return terms | {CONSISTENCY: LossTerm(loss, count, weight=self.unlabelled_weight)}

    def divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        """Half of the labelled rows, and half of both views."""
        halves = dict[str, Any](), dict[str, Any]()
        for prefix, inputs in zip(("", *VIEWS), views(batch)):
            divided = super().divide(inputs)
            if isinstance(divided, str):
                return divided
            for half, part in zip(halves, divided):
                half.update({f"{prefix}{name}": value for name, value in part.items()})
        return halves


def views(batch: Batch) -> list[dict[str, Any]]:
    """The labelled rows, the weak and the strong views of a batch."""
    labelled = {name: value for name, value in batch.items() if not name.startswith(VIEWS)}
    weak, strong = (with_prefix(batch, prefix) for prefix in VIEWS)
    if not weak or weak.keys() != strong.keys():
        raise InputError(f"a batch needs both views of unlabelled rows, but has {', '.join(batch)}.")
    return [labelled, weak, strong]


@dataclass
class Round:
    """What a round kept: unlabelled rows by number, their labels, how sure the model was, and its metrics."""

    rows: list[int]
    labels: list[int]
    scores: list[float]
    metrics: dict[str, Any] = field(default_factory=dict)


class SelfTrainer:
    """Trains a classifier in rounds on labelled rows and on its own sure labels of others (Yarowsky 1995, Lee 2013).

    Each round begins with a new model, so that early mistakes are not kept. Training ends when a round keeps the same
    rows with the same labels as the one before. What a round keeps is written to ``round-K.jsonl``.

    Args:
        make_trainer: rows -> a trainer of a new model on them, which is called once a round.
        labelled: rows with ``labels``.
        unlabelled: rows without.
        threshold: the least probability of a label that is kept; one number, or one for each class.
        top_share: in place of a threshold, the share of rows of each predicted class that is kept, the surest first.
        rounds: how many at most, the first of which has labelled rows alone.
        output_dir: where the files of the rounds are written; the directory of each round's trainer when absent.
    """

    def __init__(
        self,
        make_trainer: Callable[[Rows], Trainer],
        labelled: Rows,
        unlabelled: Rows,
        *,
        threshold: float | Mapping[int, float] = 0.9,
        top_share: float | None = None,
        rounds: int = 5,
        output_dir: PathName | None = None,
    ) -> None:
        sizes = f"{len(labelled)} and {len(unlabelled)}"
        refuse(not len(labelled) or not len(unlabelled), f"self-training needs rows of both kinds, but has {sizes}.")
        what = f"`top_share` must be above 0 and at most 1, but is {top_share}."
        refuse(top_share is not None and not 0 < top_share <= 1, what)
        refuse(rounds < 1, f"`rounds` must be at least 1, but is {rounds}.")
        self.make_trainer, self.labelled, self.unlabelled = make_trainer, list(labelled), list(unlabelled)
        self.threshold, self.top_share, self.rounds, self.output_dir = threshold, top_share, rounds, output_dir
        self.history: list[Round] = []
        self.trainer: Trainer | None = None

    def train(self, *, first: int = 1, resume_from_checkpoint: str | None = None) -> list[Round]:
        """Run the rounds; the last model is ``trainer.model``.

        Args:
            first: the round to resume with, maybe from a checkpoint; the files of the rounds before it are read.
        """
        self.history = [self._read(number) for number in range(1, first)]
        previous = self.history[-1] if self.history else Round([], [], [])
        for number in range(first, self.rounds + 1):
            added = [{**self.unlabelled[row], "labels": label} for row, label in zip(previous.rows, previous.labels)]
            self.trainer = trainer = self.make_trainer([*self.labelled, *added])
            trainer.train(resume_from_checkpoint=resume_from_checkpoint if number == first else None)
            kept = self.choose(probabilities(trainer.predict(self.unlabelled).predictions))
            if trainer.eval_dataset is not None:
                kept.metrics = trainer.evaluate()
            self.history.append(kept)
            rows = (dict(zip(COLUMNS, row)) for row in zip(kept.rows, kept.labels, kept.scores))
            folder = make_directory(self.output_dir or trainer.args.output_dir or ".")
            write_text(folder / f"{ROUND}{number}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
            if (kept.rows, kept.labels) == (previous.rows, previous.labels):
                break
            previous = kept
        return self.history

    def choose(self, shares: NDArray[Any]) -> Round:
        """The rows that are kept, by the probabilities (N, C) of their classes."""
        labels, scores = shares.argmax(axis=1), shares.max(axis=1)
        if self.top_share is None:
            limit = self.threshold
            limits = [limit.get(int(label), np.inf) if isinstance(limit, Mapping) else limit for label in labels]
            sure = scores >= np.array(limits)
        else:
            sure = np.zeros(len(scores), bool)
            for label in np.unique(labels):
                places = np.flatnonzero(labels == label)
                most = int(np.ceil(self.top_share * len(places)))
                sure[places[np.argsort(-scores[places], kind="stable")[:most]]] = True
        rows = np.flatnonzero(sure)
        return Round(rows.tolist(), labels[rows].tolist(), scores[rows].tolist())

    def _read(self, number: int) -> Round:
        """What a round kept (``FileError``, ``FormatError``: there is no such file, or it is of other rows)."""
        path, kept = Path(self.output_dir or ".", f"{ROUND}{number}.jsonl"), Round([], [], [])
        for line, text in enumerate(read_text(path).splitlines(), 1):
            place = f"{path}:{line}"
            document = typed(parse_json(text, path=place), COLUMNS, path=place)
            row, label, score = (document[name] for name in COLUMNS)
            what = f"the row {row} with the label {label} is none of the {len(self.unlabelled)} unlabelled ones."
            refuse(not 0 <= row < len(self.unlabelled) or label < 0, what, kind=FormatError, path=place)
            kept.rows.append(row)
            kept.labels.append(label)
            kept.scores.append(float(score))
        return kept


def probabilities(logits: Any) -> NDArray[Any]:
    """Softmax of logits (N, C), in float64."""
    values = np.asarray(logits[0] if isinstance(logits, tuple) else logits, np.float64)
    what = f"self-training needs a classifier with logits (rows, classes), but they are {values.shape}."
    refuse(values.ndim != 2, what)
    return softmax(values)


def last_checkpoint_of_rounds(run: PathName) -> Path | None:
    """The last whole checkpoint of the last round of a run; ``None`` where there is none."""
    rounds = {number: path for path in Path(run).glob(f"{ROUND}*") if (number := round_number(path)) is not None}
    found = (find_last_checkpoint(rounds[number]) for number in sorted(rounds, reverse=True) if rounds[number].is_dir())
    return next(filter(None, found), None)


def round_number(folder: Path) -> int | None:
    """The K of a folder ``round-K``; ``None`` where it is another."""
    name = folder.name
    return int(number) if name.startswith(ROUND) and (number := name.removeprefix(ROUND)).isdecimal() else None


class RoundsTrainer(Trainer):
    """A trainer whose ``train()`` runs the rounds of a :class:`SelfTrainer`, each with a copy of the given model.

    The run's directory has the model to begin with in ``start``, the checkpoints of round K in ``round-K``, and the
    logs of all rounds, whose updates are counted on. Callbacks hear of all rounds.

    ``unlabelled`` are rows without labels, and ``options`` those of :class:`SelfTrainer`.
    """

    def __init__(self, *args: Any, unlabelled: Rows, options: Mapping[str, Any], **others: Any) -> None:
        self.unlabelled, self.options = unlabelled, options
        super().__init__(*args, **others)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> TrainOutput:
        """Run the rounds, or resume them from a checkpoint of one of them, or from the last one (``True``)."""
        folder, began = Path(self.args.output_dir or "."), time.time()
        make, rows = self._trainer_of_round, self.train_dataset
        self.teacher = SelfTrainer(make, rows, self.unlabelled, output_dir=folder, **self.options)
        self.state = self._new_state()
        self.state.max_steps = RunLength.of(self.args, self.get_train_dataloader()).max_steps
        first, checkpoint = self._resume(folder, resume_from_checkpoint) if resume_from_checkpoint else (1, None)
        if checkpoint is None and self.args.save_strategy != SaveStrategy.NO and self.is_world_process_zero():
            write_directory(make_directory(folder) / START, self._save_start)
        self.event("on_train_begin")
        self.teacher.train(first=first, resume_from_checkpoint=checkpoint)
        assert self.teacher.trainer is not None
        self.model = self.model_wrapped = self.teacher.trainer.model
        self.event("on_train_end")
        losses = [log["loss"] for log in self.state.log_history if "loss" in log]
        mean = sum(losses) / max(1, len(losses))
        return TrainOutput(self.state.global_step, mean, {"train_loss": mean, "train_runtime": time.time() - began})

    def _save_start(self, stage: Path) -> list[Path]:
        self.save_model(stage, _internal_call=True)
        return []

    def _resume(self, folder: Path, resume: str | bool) -> tuple[int, str]:
        """Take the model to begin with, and the logs up to a checkpoint; returns its round and its path."""
        checkpoint = last_checkpoint_of_rounds(folder) if resume is True else Path(str(resume))
        number = round_number(checkpoint.parent) if checkpoint is not None else None
        if checkpoint is None or number is None:
            what = "no round has a whole checkpoint." if resume is True else f"{resume} is no checkpoint of a round."
            raise InputError(what, path=folder, hint="Begin a new run without it.")
        load_saved_weights(folder / START, self.model)
        self.state.log_history = [log for log in read_log(folder / LOG_NAME) if log.get("round", 0) < number]
        relay, state = Relay(self, number), TrainerState.load_from_json(checkpoint / STATE_NAME)
        self.state.log_history += map(relay.numbered, state.log_history)
        self.state.global_step = relay.updates_before + state.global_step
        if (folder / LOG_NAME).exists():
            write_log(folder / LOG_NAME, self.state.log_history)
        return number, str(checkpoint)

    def _trainer_of_round(self, rows: Rows) -> Trainer:
        """The trainer of the next round, of a copy of the model."""
        number = len(self.teacher.history) + 1
        args = copy.copy(self.args)
        args.output_dir, args.report_to = str(Path(self.args.output_dir or ".", f"{ROUND}{number}")), []
        args.disable_tqdm, args.push_to_hub = True, False
        metrics = ("compute_metrics", "preprocess_logits_for_metrics")
        names = ("data_collator", "eval_dataset", "processing_class", *metrics)
        same = {name: getattr(self, name) for name in names}
        model, relay = copy.deepcopy(self.model), Relay(self, number)
        trainer = Trainer(model, args, train_dataset=rows, callbacks=[relay], **same)
        trainer.pop_callback(PrinterCallback)
        return trainer


class Relay(TrainerCallback):
    """Tells the trainer of all rounds what happens in one of them, with updates counted on from the rounds before."""

    def __init__(self, whole: Trainer, number: int) -> None:
        self.whole, self.number = whole, number
        logs = whole.state.log_history
        self.updates_before = max((log["step"] for log in logs if log.get("round", 0) < number), default=0)

    def numbered(self, log: Mapping[str, Any]) -> dict[str, Any]:
        """A log of the round as one of all rounds."""
        return {**log, "step": self.updates_before + log["step"], "round": self.number}

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.follow(state)
        self.whole.event("on_step_end")

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.follow(state)
        log = self.numbered(state.log_history[-1])
        self.whole.state.log_history.append(log)
        self.whole.event("on_log", logs=log)

    def follow(self, state: TrainerState) -> None:
        whole, before = self.whole.state, self.updates_before
        whole.global_step, whole.max_steps = before + state.global_step, before + state.max_steps
        whole.epoch, whole.num_input_tokens_seen = state.epoch, state.num_input_tokens_seen

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.whole.event("on_evaluate", metrics=kwargs["metrics"])
