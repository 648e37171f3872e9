"""Feature extraction: the states of a frozen backbone are computed once, and the head alone is trained on them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from transept.core.task import TaskModel
from transept.errors import InputError, UnsupportedError, refuse
from transept.layers.caches.cache import Cache
from transept.objectives.classification import IGNORED
from transept.objectives.terms import total
from transept.outputs import RECORDED, ModelOutput

Row = dict[str, Any]
_STATES, _FEATURES = "states.", "features"


class Features(Sequence[Row]):
    """The rows of a data set, each with the states that a head reads; a data set for PyTorch's loaders.

    Args:
        rows: names and tensors of each row.
        padding: what fills up rows of different lengths, by name, where it is not zero.
    """

    def __init__(self, rows: Sequence[Row], padding: Mapping[str, float]) -> None:
        self.rows, self.padding = rows, dict(padding)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(value.nbytes for row in self.rows for value in row.values() if isinstance(value, Tensor))

    def collate(self, rows: Sequence[Row]) -> Row:
        """Rows -> a batch, in which what is longer in one row is filled up in the others; for ``collate_fn``."""
        return {name: self._joined(name, [row[name] for row in rows]) for name in rows[0]}

    def _joined(self, name: str, values: list[Any]) -> Any:
        if not isinstance(values[0], Tensor):
            return values
        if len({value.shape for value in values}) == 1:
            return torch.stack(values)
        return pad_sequence(values, batch_first=True, padding_value=self.padding.get(name, 0.0))


class HeadModel(nn.Module):
    """The head of a task model, called with the rows of :class:`Features` in place of the model's inputs.

    Args:
        task: the whole model, whose parameters these are; save it when the head is trained.
    """

    def __init__(self, task: Any) -> None:
        super().__init__()
        self.task = task
        self.config = task.config
        self.kind: type[ModelOutput] = ModelOutput  # of the backbone's output

    def forward(self, num_items_in_batch: Any = None, return_dict: bool | None = None, **row: Any) -> Any:
        """A batch of features, with labels for a loss -> what the whole model would give, but for the backbone's states."""
        task, kept = self.task, {name: value for name, value in row.items() if name.startswith(_STATES)}
        inputs = {name: value for name, value in row.items() if name not in kept and name != _FEATURES}
        labels = [inputs.pop(name, None) for name in task.labels]
        states = row.get(_FEATURES)
        if states is None:
            states = self._output(kept)
        output = task.predict(states, inputs)
        if labels and all(each is not None for each in labels):
            terms = task.all_terms(output, states, labels, inputs)
            output["loss"], output["loss_terms"] = total(terms, num_items_in_batch), terms
        as_output = self.config.return_dict if return_dict is None else return_dict
        return output if as_output else output.to_tuple()

    def _output(self, kept: Row) -> ModelOutput:
        """The backbone's output again."""
        values: dict[str, Any] = {}
        for name, value in kept.items():
            field, _, number = name.removeprefix(_STATES).partition(".")
            values[field] = (*values.get(field, ()), value) if number else value
        return self.kind(**values)

    def count(self, inputs: dict[str, Any]) -> Any:
        """The counts of the loss's terms, as the whole model gives them."""
        return self.task.count(inputs)

    def save_pretrained(self, *args: Any, **options: Any) -> None:
        """Save the whole model."""
        self.task.save_pretrained(*args, **options)


@torch.no_grad()
def precompute(model: TaskModel[Any], batches: Iterable[Mapping[str, Any]]) -> tuple[Features, HeadModel]:
    """Run a frozen backbone over a data set once.

    Training the head on what is kept is exact: the same as training the whole model with a frozen backbone, which drops out
    and masks nothing. Of a classifier of sequences one vector is kept for each row, of others the states of all positions, with
    the padding of their batch: where a loss counts padding too, as that of answers in a text does, pad all rows to one length.

    Args:
        model: a task model whose backbone is frozen (``freeze(model, "backbone")``).
        batches: inputs and labels as the model takes them, such as a loader of all rows in their order.

    Returns:
        The rows with what the head reads, and the head; its call takes batches of rows that ``Features.collate`` makes.

    Raises:
        InputError: some of the backbone is trained, or there are no batches.
        UnsupportedError: the model has no backbone and head that could be told apart.
    """
    task: Any = model
    if not isinstance(task, TaskModel) or not _in_steps(type(model)):
        raise UnsupportedError(f"{type(model).__name__} has no backbone whose states could be kept for a head.")
    if trained := [name for name, parameter in model.backbone.named_parameters() if parameter.requires_grad]:
        what = f"the backbone of {type(model).__name__} is not frozen: {', '.join(trained[:3])} and others are trained."
        raise InputError(what, hint='Call freeze(model, "backbone") first.')
    head, rows, training = HeadModel(task), list[Row](), model.backbone.training
    model.backbone.eval()
    try:
        for batch in batches:
            rows += _rows(task, head, {name: value for name, value in batch.items() if value is not None})
    finally:
        model.backbone.train(training)
    if not rows:
        raise InputError("there are no batches to compute states of.")
    labels = dict.fromkeys(task.labels, float(IGNORED))
    pad = float(model.config.pad_token_id or 0)
    return Features(rows, labels | {"input_ids": pad, "decoder_input_ids": pad}), head


def _in_steps(cls: type[nn.Module]) -> bool:
    """Whether the task's forward pass is the common one: backbone, head, loss."""
    common = [base for base in cls.__mro__ if "features" in base.__dict__][-1:]
    forward: Any = inspect.unwrap(cls.forward)
    return bool(common) and forward is inspect.unwrap(common[0].__dict__["forward"])


def _rows(task: Any, head: HeadModel, batch: dict[str, Any]) -> Iterator[Row]:
    """One batch's rows."""
    given = {name: value for name, value in batch.items() if name not in task.labels}
    labels = {name: batch[name] for name in task.labels if name in batch}
    states = task.encode(given, next(iter(labels.values()), None))
    features = task.features(states, given)
    # With what the task itself made to read, such as a decoder's ids.
    inputs = {name: value for name, value in given.items() if name in batch or isinstance(value, Tensor)}
    kept = _tensors(states, type(task).__name__) if features is None else {_FEATURES: features}
    values, count = (inputs if features is None else {}) | kept | labels, len(next(iter(kept.values())))
    head.kind = type(states)
    for row in range(count):
        # What has no row for each row of the batch, such as patches of all pictures, is the backbone's alone.
        yield {name: _row(value, row) for name, value in values.items() if not _apart(value, count)}


def _tensors(states: ModelOutput, task: str) -> Row:
    """The tensors of a backbone's output; those of a tuple have its name and their number."""
    found: Row = {}
    for name, value in states.items():
        if isinstance(value, Tensor):
            found[f"{_STATES}{name}"] = value
        elif isinstance(value, tuple) and all(isinstance(each, Tensor) for each in value):
            found |= {f"{_STATES}{name}.{number}": each for number, each in enumerate(value)}
        elif not isinstance(value, Cache):
            raise UnsupportedError(f"{task} has states that cannot be kept: `{name}`.", hint="Train it as a whole.")
    # What a network records is for users, such as the states of all pictures; of what is not, heads or losses read all.
    rows = {len(value) for name, value in found.items() if name.removeprefix(_STATES).partition(".")[0] not in RECORDED}
    what = f"{task} has states that do not belong to a row each, which cannot be kept."
    refuse(len(rows) > 1, what, "Train it as a whole.", UnsupportedError)
    return found


def _apart(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) != count


def _row(value: Any, row: int) -> Any:
    if isinstance(value, Tensor) and value.ndim:
        return value[row].clone()
    return value[row] if isinstance(value, list | tuple) else value
