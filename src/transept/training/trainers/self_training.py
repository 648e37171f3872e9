"""Self-training: a model labels rows that have no label, and learns from those that it is sure of (Yarowsky 1995, Lee 2013)."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from transept.errors import FormatError, InputError
from transept.files import PathName, make_directory, parse_json, read_text, write_text
from transept.training.callbacks.base import TrainerCallback
from transept.training.callbacks.progress import PrinterCallback
from transept.training.callbacks.reports import LOG_NAME, read_log, write_log
from transept.training.checkpoint.contents import load_saved_weights
from transept.training.checkpoint.directory import find_last_checkpoint, write_directory
from transept.training.run import RunLength
from transept.training.state import STATE_NAME, SaveStrategy, TrainerControl, TrainerState, TrainOutput
from transept.training.trainer import Trainer

LABEL = "labels"


@dataclass
class Round:
    """What a round kept: the numbers of unlabelled rows, their labels, how sure the model was, and the metrics after it."""

    rows: list[int]
    labels: list[int]
    scores: list[float]
    metrics: dict[str, Any] = field(default_factory=dict)


class SelfTrainer:
    """Rounds of training a classifier on labelled rows and on its own sure labels of unlabelled ones.

    Each round begins with a new model, so that early mistakes are not kept by the weights. It ends when a round keeps the same
    rows with the same labels as the one before. What a round keeps is written to ``round-K.jsonl`` in ``output_dir``.

    Args:
        make_trainer: rows -> a trainer of a new model on them, which is called once a round.
        labelled: rows with ``labels``.
        unlabelled: rows without.
        threshold: the least probability of a label that is kept; one number, or one for each class.
        top_share: in place of a threshold, the share of rows of each predicted class that is kept, the surest first.
        rounds: how many at most, the first of which has labelled rows alone.
        output_dir: where what the rounds keep is written; the directory of each round's trainer when absent.
    """

    def __init__(
        self,
        make_trainer: Callable[[Sequence[Mapping[str, Any]]], Trainer],
        labelled: Sequence[Mapping[str, Any]],
        unlabelled: Sequence[Mapping[str, Any]],
        *,
        threshold: float | Mapping[int, float] = 0.9,
        top_share: float | None = None,
        rounds: int = 5,
        output_dir: PathName | None = None,
    ) -> None:
        if not len(labelled) or not len(unlabelled):
            raise InputError(f"self-training needs rows of both kinds, but has {len(labelled)} and {len(unlabelled)}.")
        if top_share is not None and not 0 < top_share <= 1:
            raise InputError(f"`top_share` must be above 0 and at most 1, but is {top_share}.")
        if rounds < 1:
            raise InputError(f"`rounds` must be at least 1, but is {rounds}.")
        self.make_trainer, self.labelled, self.unlabelled = make_trainer, list(labelled), list(unlabelled)
        self.threshold, self.top_share, self.rounds, self.output_dir = threshold, top_share, rounds, output_dir
        self.history: list[Round] = []
        self.trainer: Trainer | None = None

    def train(self, *, first: int = 1, resume_from_checkpoint: str | None = None) -> list[Round]:
        """Run the rounds; the last model is ``trainer.model``.

        Args:
            first: the round to go on with, of which a checkpoint may be given; what the rounds before it kept is read.
        """
        self.history = [self._read(number) for number in range(1, first)]
        kept = self.history[-1] if self.history else Round([], [], [])
        for number in range(first, self.rounds + 1):
            added = [{**self.unlabelled[row], LABEL: label} for row, label in zip(kept.rows, kept.labels)]
            self.trainer = trainer = self.make_trainer([*self.labelled, *added])
            trainer.train(resume_from_checkpoint=resume_from_checkpoint if number == first else None)
            found = self.choose(probabilities(trainer.predict(self.unlabelled).predictions))
            if trainer.eval_dataset is not None:
                found.metrics = trainer.evaluate()
            self.history.append(found)
            self._write(number, found, trainer)
            if (found.rows, found.labels) == (kept.rows, kept.labels):
                break
            kept = found
        return self.history

    def choose(self, shares: NDArray[Any]) -> Round:
        """The rows that are kept, of the probabilities (N, C) of their classes."""
        labels, scores = shares.argmax(axis=1), shares.max(axis=1)
        if self.top_share is None:
            every = dict.fromkeys(range(shares.shape[1]), self.threshold)
            limits = self.threshold if isinstance(self.threshold, Mapping) else every
            sure = scores >= np.array([limits.get(int(label), np.inf) for label in labels])
        else:
            sure = np.zeros(len(scores), bool)
            for label in np.unique(labels):
                places = np.flatnonzero(labels == label)
                most = int(np.ceil(self.top_share * len(places)))
                sure[places[np.argsort(-scores[places], kind="stable")[:most]]] = True
        rows = np.flatnonzero(sure)
        return Round(rows.tolist(), labels[rows].tolist(), [float(score) for score in scores[rows]])

    def _write(self, number: int, found: Round, trainer: Trainer) -> None:
        folder = make_directory(self.output_dir or trainer.args.output_dir or ".")
        rows = zip(found.rows, found.labels, found.scores)
        lines = (json.dumps({"row": row, "label": label, "score": score}) for row, label, score in rows)
        write_text(folder / f"round-{number}.jsonl", "".join(f"{line}\n" for line in lines))

    def _read(self, number: int) -> Round:
        """What a round kept (``FileError``, ``FormatError``: there is no such file, or it is of other rows)."""
        path, found = Path(self.output_dir or ".", f"round-{number}.jsonl"), Round([], [], [])
        for line, text in enumerate(read_text(path).splitlines(), 1):
            kept = parse_json(text, path=f"{path}:{line}")
            row, label, score = (kept.get(name) if isinstance(kept, dict) else None for name in ("row", "label", "score"))
            if not (isinstance(row, int) and isinstance(label, int) and isinstance(score, float | int)):
                raise FormatError(f"{text[:60]!r} is no row with a label and a score.", path=f"{path}:{line}")
            if not 0 <= row < len(self.unlabelled) or label < 0:
                what = f"the row {row} with the label {label} is none of the {len(self.unlabelled)} unlabelled ones."
                raise FormatError(what, path=f"{path}:{line}")
            found.rows.append(row)
            found.labels.append(label)
            found.scores.append(float(score))
        return found


def probabilities(logits: Any) -> NDArray[Any]:
    """Softmax of logits (N, C), in float64."""
    values = np.asarray(logits[0] if isinstance(logits, tuple) else logits, np.float64)
    if values.ndim != 2:
        raise InputError(f"self-training needs a classifier with logits (rows, classes), but they are {values.shape}.")
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    shares: NDArray[Any] = powers / powers.sum(axis=1, keepdims=True)
    return shares


ROUND, START = "round-", "start"


def last_of_rounds(run: PathName) -> Path | None:
    """The last whole checkpoint of the last round of a run; ``None`` where there is none."""
    numbers = [path.name.removeprefix(ROUND) for path in Path(run).glob(f"{ROUND}*") if path.is_dir()]
    for number in sorted((int(each) for each in numbers if each.isdecimal()), reverse=True):
        if (found := find_last_checkpoint(Path(run, f"{ROUND}{number}"))) is not None:
            return found
    return None


class RoundsTrainer(Trainer):
    """A trainer whose ``train()`` is the rounds of a :class:`SelfTrainer`, each of which begins with the model as it was given.

    The run's directory has the model to begin with in ``start``, the checkpoints of round K in ``round-K``, what it kept in
    ``round-K.jsonl``, and the logs of all rounds, whose updates are counted on. Callbacks hear of all rounds.

    Args:
        unlabelled: rows without labels.
        threshold, top_share, rounds: as for :class:`SelfTrainer`.
        others: as for :class:`transept.training.trainer.Trainer`.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: Any = None,
        *,
        unlabelled: Sequence[Mapping[str, Any]] = (),
        threshold: float = 0.9,
        top_share: float | None = None,
        rounds: int = 5,
        **others: Any,
    ) -> None:
        self.unlabelled, self.options = unlabelled, dict[str, Any](threshold=threshold, top_share=top_share, rounds=rounds)
        super().__init__(model, args, **others)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Run the rounds, or go on with them from a checkpoint of one of them, or from the last one (``True``)."""
        folder, started = Path(self.args.output_dir or "."), time.time()
        self.teacher = SelfTrainer(self._of_round, self.train_dataset, self.unlabelled, output_dir=folder, **self.options)
        self.state, self.before, first, checkpoint = self._new_state(), 0, 1, None
        self.state.max_steps = RunLength.of(self.args, self.get_train_dataloader()).max_steps
        if resume_from_checkpoint:
            checkpoint = str(self._find(folder, resume_from_checkpoint))
            first = self._go_on(folder, Path(checkpoint))
        elif self.args.save_strategy != SaveStrategy.NO and self.is_world_process_zero():
            write_directory(make_directory(folder) / START, self._save_start)
        self.event("on_train_begin")
        self.teacher.train(first=first, resume_from_checkpoint=checkpoint)
        assert self.teacher.trainer is not None
        self.model = self.model_wrapped = self.teacher.trainer.model
        self.event("on_train_end")
        losses = [log["loss"] for log in self.state.log_history if "loss" in log]
        mean = sum(losses) / max(1, len(losses))
        return TrainOutput(self.state.global_step, mean, {"train_loss": mean, "train_runtime": time.time() - started})

    def _save_start(self, stage: Path) -> list[Path]:
        self.save_model(stage, _internal_call=True)
        return []

    def _go_on(self, folder: Path, checkpoint: Path) -> int:
        """Put the logs where a checkpoint is, and take the model to begin with; gives the checkpoint's round."""
        number = int(checkpoint.parent.name.removeprefix(ROUND))
        load_saved_weights(folder / START, self.model)
        earlier = [log for log in read_log(folder / LOG_NAME) if log.get("round", 0) < number]
        self.before = max((log["step"] for log in earlier), default=0)
        state = TrainerState.load_from_json(checkpoint / STATE_NAME)
        self.state.log_history = [*earlier, *(counted(log, number, self.before) for log in state.log_history)]
        self.state.global_step = self.before + state.global_step
        if (folder / LOG_NAME).exists():
            write_log(folder / LOG_NAME, self.state.log_history)
        return number

    def _find(self, folder: Path, resume: str | bool) -> Path:
        """The checkpoint to go on from (``InputError``: it is of no round)."""
        found = last_of_rounds(folder) if resume is True else Path(str(resume))
        if found is None or not found.parent.name.removeprefix(ROUND).isdecimal():
            what = f"{resume} is no checkpoint of a round." if resume is not True else "no round has a whole checkpoint."
            raise InputError(what, path=folder, hint="Begin a new run without it.")
        return found

    def _of_round(self, rows: Sequence[Mapping[str, Any]]) -> Trainer:
        """The trainer of the next round, of a copy of the model."""
        number = len(self.teacher.history) + 1
        self.before = self.before if self.teacher.trainer is None else self.state.global_step
        args = copy.copy(self.args)
        args.output_dir, args.report_to = str(Path(self.args.output_dir or ".", f"{ROUND}{number}")), []
        args.disable_tqdm, args.push_to_hub = True, False
        trainer = Trainer(
            copy.deepcopy(self.model),
            args,
            self.data_collator,
            rows,
            self.eval_dataset,
            self.processing_class,
            compute_metrics=self.compute_metrics,
            callbacks=[Relay(self, number, self.before)],
            preprocess_logits_for_metrics=self.preprocess_logits_for_metrics,
        )
        trainer.pop_callback(PrinterCallback)
        return trainer


def counted(log: Mapping[str, Any], number: int, before: int) -> dict[str, Any]:
    """A log of a round with the round's number, its update counted on from those before."""
    return {**log, "step": before + log["step"], "round": number}


class Relay(TrainerCallback):
    """Tells the trainer of all rounds what happens in one of them, before which there were so many updates."""

    def __init__(self, whole: Trainer, number: int, before: int) -> None:
        self.whole, self.number, self.before = whole, number, before

    def follow(self, state: TrainerState) -> None:
        own = self.whole.state
        own.global_step, own.max_steps = self.before + state.global_step, self.before + state.max_steps
        own.epoch, own.num_input_tokens_seen = state.epoch, state.num_input_tokens_seen

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.follow(state)
        self.whole.event("on_step_end")

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        self.follow(state)
        told = counted(state.log_history[-1], self.number, self.before)
        self.whole.state.log_history.append(told)
        self.whole.event("on_log", logs=told)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any) -> None:
        self.whole.event("on_evaluate", metrics=metrics)
