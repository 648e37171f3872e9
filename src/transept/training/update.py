"""One update: what processes agree on before it, its passes, the norm of its gradients, and the optimizer's step.

An update has M micro-batches. The loss of a term is the sum of its items' losses over all micro-batches, divided by the
number of items in all of them; a term that is not additive is the mean of its parts' means. So the numbers of items are added
up before the first backward pass, and every micro-batch divides by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor

from transept.parallel.processes import everywhere, gather_numbers
from transept.training.checkpoint.saved_run import SavedRun
from transept.training.data.loader import first_batch
from transept.training.length_cuts import cost_of_pass, cut
from transept.training.loss import backward
from transept.training.not_finite import not_finite
from transept.training.objective import Batch, Counts
from transept.training.out_of_memory import Halving
from transept.training.run import Hooks, TrainingRun

MOST_WAITING = 1024  # losses that are not added up yet
Signals = tuple[int, int]  # that of a process which is to end, and whether a checkpoint is asked for


@dataclass(frozen=True)
class Agreement:
    """What all processes know of an update before it begins.

    Args:
        items: the items of each term of the loss in the whole update; ``None`` where a micro-batch cannot be counted.
        counts: the items of all terms in each micro-batch of this process.
        parts: M, the number of micro-batches of all processes.
        most: the micro-batches of the process that has most of them.
        passes: the backward passes of each micro-batch.
        is_shared: whether each micro-batch is weighted by its items; else all weigh the same.
        flops, tokens: of all micro-batches.
        signals: what each process was told by signals.
    """

    items: Counts | None
    counts: list[float]
    parts: int
    most: int
    passes: int
    is_shared: bool
    flops: float
    tokens: int
    signals: list[Signals]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to learn from: no term has an item."""
        return self.items is not None and self.is_shared and not any(self.items.values())

    def share(self, part: int) -> float:
        """What the mean of this process's micro-batch counts for: its share of the items, 1 / M where they are not known."""
        if not self.is_shared:
            return 1.0 / self.parts
        return self.counts[part] / (sum((self.items or {}).values()) or 1.0)


@dataclass
class Update:
    """What goes into one update in this process.

    Args:
        batches: the micro-batches; as many in every process.
        real: how many of them count; the others are run again so that the processes stay in step, and change nothing.
    """

    batches: list[Batch]
    real: int
    agreement: Agreement


class Updates:
    """Makes the updates of a run."""

    def __init__(self, run: TrainingRun, trainer: Hooks, saved: SavedRun) -> None:
        self.run, self.trainer, self.saved = run, trainer, saved
        args = run.args
        self.terms = list[str]()  # of the loss, the same in all processes
        self.cost = cost_of_pass(run.wrapped)
        # Rows may stand one behind the other where nothing looks at embeddings by row, or is compiled for their lengths.
        self.ragged = args.adversarial is None and not (args.neftune_noise_alpha or args.torch_compile)
        halves = args.device.type == "cuda" if args.find_batch_size is None else args.find_batch_size
        halves = halves and run.devices.alone  # halving in one process would leave the others waiting
        self.halving = Halving(self._divide, run.objective.rows) if halves else None
        self.items: Counts | None = None  # of the update that is being made, where its losses are divided by them
        self.spare: Batch | None = None  # stands in where others have one more
        self.substeps = 0  # the micro-batches of this update that callbacks have heard of; it may be made again

    # --- before an update ----------------------------------------------------------------------------------------

    def take(self, batches: Iterator[Any], epoch: int) -> Update | None:
        """The micro-batches of the next update, and what the other processes have; ``None`` where nobody has one left."""
        own = list(islice(batches, self.run.args.gradient_accumulation_steps))
        agreement = self.agree(own)
        self.saved.heed(agreement.signals)
        if not agreement.most:
            return None
        real = len(own)
        if real < agreement.most:
            if self.spare is None:
                self.spare = first_batch(self.run.loader, epoch)
            own += [self.spare] * (agreement.most - real)
        if not self.run.devices.alone:
            self.spare = own[0]
        return Update(own, real, agreement)

    def agree(self, batches: Sequence[Batch]) -> Agreement:
        """What the processes know of an update, of which this one has these micro-batches, by one operation."""
        counts = [self.run.objective.count(batch) for batch in batches]
        names = {name for count in counts for name in count or ()}
        rows = gather_numbers(self._numbers(batches, counts, names))
        if any(row[0] for row in rows):  # a term that not all processes know, as in the first update
            self.terms = sorted(set(self.terms).union(*everywhere(names)))
            rows = gather_numbers(self._numbers(batches, counts, names))
        signals = [(int(row[1]), int(row[2])) for row in rows]
        rows = self.run.devices.replicas.among(rows)
        _, _, _, parts, unknown, unshared, _, flops, tokens, *items = (math.fsum(column) for column in zip(*rows))
        return Agreement(
            items=dict(zip(self.terms, items)) if self.terms and not unknown and unshared < parts else None,
            counts=[sum((count or {}).values()) for count in counts],
            parts=int(parts),
            most=int(max(row[3] for row in rows)),
            passes=int(max(row[6] for row in rows)),
            is_shared=not unshared,
            flops=flops,
            tokens=int(tokens),
            signals=signals,
        )

    def _numbers(self, batches: Sequence[Batch], counts: list[Counts | None], names: set[str]) -> list[float]:
        """What this process tells the others: first whether its terms are new, then what the columns above are named."""
        return [
            float(not names <= set(self.terms)),
            *map(float, self.saved.signals.numbers),
            float(len(batches)),
            float(sum(count is None for count in counts)),
            float(sum(not count for count in counts)),
            float(max((self.run.objective.passes(batch) for batch in batches), default=1)),
            sum(self.trainer.floating_point_ops(batch) for batch in batches),
            float(sum(count_tokens(self.run, batch) for batch in batches)),
            *(math.fsum((count or {}).get(name, 0.0) for count in counts) for name in self.terms),
        ]

    # --- an update -----------------------------------------------------------------------------------------------

    def make(self, update: Update) -> bool:
        """Make one update of these micro-batches; ``False`` where a callback ended it before."""
        run, trainer, agreement = self.run, self.trainer, update.agreement
        self.saved.begin()
        parts = self._cut(update)
        self.items, self.substeps = agreement.items if run.rules.by_items else None, 0
        trainer.current_gradient_accumulation_steps = len(update.batches)
        self.saved.between()
        trainer.event("on_step_begin")
        make = partial(self._gradients, update)
        loss = make(parts) if self.halving is None else self.halving.run(make, parts, run.optimizer.zero_grad)
        if loss is None:
            run.optimizer.zero_grad()
            return False
        run.tally.flops += agreement.flops
        run.state.num_input_tokens_seen += agreement.tokens
        run.form.finish_gradients()
        run.tally.grad_norm = limit_gradients(run)
        is_finite = math.isfinite(run.tally.grad_norm) or run.scaler is not None
        if not is_finite and run.args.nan_policy == "error":
            where, generators = self.saved.keep(), self.saved.rewind.generators
            alone = partial(trainer.training_step, run.model, num_items_in_batch=self.items)
            raise not_finite(run, alone, parts, generators, where)
        self._apply(changes=is_finite or run.args.nan_policy == "ignore")
        if not agreement.is_empty:
            run.tally.waiting.append(loss)
            if len(run.tally.waiting) >= MOST_WAITING:
                run.add_up_losses()
        return True

    def _cut(self, update: Update) -> Sequence[Batch]:
        """The rows of an update in parts of like length, where nobody but the model sees its micro-batches."""
        run, batches = self.run, update.batches
        may_cut = run.rules.may_cut and run.objective.rows_apart and not run.form.same_passes
        if not may_cut or update.real < len(batches):
            return batches
        return cut(run.wrapped, batches, self.cost, ragged=self.ragged)

    def _gradients(self, update: Update, parts: Sequence[Batch]) -> Tensor | None:
        """The passes of an update's micro-batches, which are in parts, and their loss; ``None`` where a callback ended it."""
        share, agreement, number, loss = self.run.share, update.agreement, len(update.batches), None
        for index in range(number):
            self.saved.between()
            is_real = index < update.real
            share.parts, share.batch = agreement.parts, agreement.share(index) if is_real else 0.0
            share.loss = 1.0 if is_real and self.items is not None else share.batch
            for place in range(index * len(parts) // number, (index + 1) * len(parts) // number):
                part = self.passes(parts[place], agreement.passes, is_last=place == len(parts) - 1).double()
                loss = part if loss is None else loss + part
            if self.substeps <= index < number - 1:
                self.substeps = index + 1
                self.trainer.event("on_substep_end")
                if self.trainer.control.should_epoch_stop or self.trainer.control.should_training_stop:
                    return None
        return loss

    def passes(self, batch: Batch, number: int = 1, *, is_last: bool = True) -> Tensor:
        """The forward and backward passes of a micro-batch, or of a part of one; its part of the update's loss.

        ``is_last`` tells that gradients are added up over processes behind it.
        """
        run, trainer, model, share = self.run, self.trainer, self.run.wrapped, self.run.share
        if number == 1:
            with run.form.added_up(model, is_last):
                usual = partial(trainer.training_step, model, batch, self.items)
                return run.form.passes(usual, batch, self.items, share.parts, share.loss)
        if not model.training:
            model.train()
        inputs = trainer._prepare_inputs(batch)
        with trainer.compute_loss_context_manager():
            loss, losses = run.objective.begin(model, inputs, self.items, share.parts, number)
        for place in range(number):
            with run.form.added_up(model, is_last and place == number - 1):
                with trainer.compute_loss_context_manager():
                    scalar = next(losses)
                backward(scalar * share.loss, run.devices.replicas.size, run.scaler)
        return loss.detach() * share.loss

    def _divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        """See :meth:`Objective.divide`; a reason also where others than the objective compute the loss."""
        reason = self.run.rules.undivided
        if reason is None and self.items is None:
            reason = "its loss is not known to be a sum over rows"
        divided = self.run.objective.divide(batch) if reason is None else reason
        self.run.share.rows_are_divided |= not isinstance(divided, str)
        return divided

    def _apply(self, *, changes: bool) -> None:
        """Change the weights by the gradients of an update, unless they are to stay, and the learning rate after it."""
        run, trainer = self.run, self.trainer
        trainer.event("on_pre_optimizer_step")
        applied = changes and step(run)
        trainer.event("on_optimizer_step")
        run.tally.learning_rate = trainer._get_learning_rate()
        run.tally.skipped += not applied
        if applied and not run.follows_metric:
            run.scheduler.step()
        if applied and run.average is not None:
            run.average.update(run.model)
        run.optimizer.zero_grad()


def count_tokens(run: TrainingRun, batch: Batch) -> int:
    """The tokens of a micro-batch, as far as ``include_num_input_tokens_seen`` asks for them."""
    wanted, ids, mask = run.args.include_num_input_tokens_seen, batch.get(run.main_input_name), batch.get("attention_mask")
    if wanted == "no" or not isinstance(ids, Tensor):
        return 0
    if mask is None and run.padding_id is not None:
        mask = ids != run.padding_id
    return int(mask.sum()) if wanted == "non_padding" and mask is not None else ids.numel()


def limit_gradients(run: TrainingRun) -> float:
    """Clip the gradients of an update; returns their norm before."""
    parameters = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if run.scaler is not None and gradients:
        run.scaler.unscale_(run.optimizer)
    norm, limit = run.form.norm(gradients), run.args.max_grad_norm
    value = float(norm)
    # What is not above the limit would be multiplied by one.
    if gradients and limit > 0 and math.isfinite(value) and limit < value + 1e-6:
        run.form.scale(gradients, limit / (norm + 1e-6))
    return value


def step(run: TrainingRun) -> bool:
    """Let the optimizer make its step; ``False`` where the scaler left it out."""
    if run.scaler is None:
        run.optimizer.step()
        return True
    before = run.scaler.get_scale()
    run.scaler.step(run.optimizer)
    run.scaler.update()
    return bool(run.scaler.get_scale() >= before)
