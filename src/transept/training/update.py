"""One update: what processes agree on before it, its passes, the norm of its gradients, and the optimizer's step.

An update has M micro-batches. The loss of a term is the sum of its items' losses over all micro-batches, divided by
the number of items in all of them; a term that is not additive is the mean of its parts' means. So the items are
counted before the first backward pass, and every micro-batch divides by their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from transept.errors import TrainingError, refuse
from transept.parallel.forms import local
from transept.parallel.processes import gather_numbers, gather_objects
from transept.training.checkpoint.saved_run import SavedRun
from transept.training.data.loader import first_batch
from transept.training.length_cuts import cost_of_pass, split_by_length
from transept.training.loss import LESS_MEMORY, NumItems, with_items
from transept.training.not_finite import not_finite
from transept.training.objective import Batch, Counts, task_of
from transept.training.out_of_memory import Halving
from transept.training.run import TrainingRun

MOST_WAITING = 1024  # losses that are not added up yet


@dataclass(frozen=True)
class Update:
    """The micro-batches of one update in this process, and what all processes know of it."""

    batches: list[Batch]  # as many in every process
    real: int  # how many of them count; the others keep the processes in step, and change nothing
    counts: list[float]  # the items of all terms of the loss in each micro-batch that counts
    items: Counts | None  # of each term in the whole update; `None` where a micro-batch cannot be counted
    parts: int  # M, the micro-batches of all processes
    is_shared: bool  # whether each micro-batch is weighted by its items; else all weigh the same
    passes: int  # the backward passes of each micro-batch
    flops: float
    tokens: int

    def share(self, index: int) -> float:
        """What the mean of a micro-batch counts for: its share of the items, 1 / M where they are not known."""
        if index >= self.real:
            return 0.0
        if not self.is_shared:
            return 1.0 / self.parts
        return self.counts[index] / (sum((self.items or {}).values()) or 1.0)


class Updates:
    def __init__(self, run: TrainingRun, trainer: Any, saved: SavedRun) -> None:
        self.run, self.trainer, self.saved = run, trainer, saved
        args = run.args
        self.terms = list[str]()  # of the loss, the same in all processes
        self.cost = cost_of_pass(run.wrapped)
        # Rows may stand one behind the other where nothing looks at embeddings by row, or is compiled for lengths.
        self.ragged = args.adversarial is None and not (args.neftune_noise_alpha or args.torch_compile)
        halves = args.device.type == "cuda" if args.find_batch_size is None else args.find_batch_size
        halves = halves and run.devices.alone  # halving in one process would leave the others waiting
        self.halving = Halving(self._divide, run.objective.rows) if halves else None
        # Whether losses of halves of a micro-batch add up to its own.
        self.is_sum = trainer.loss_is_scaled_for_ga
        if self.is_sum is None:
            function = trainer.compute_loss_func
            self.is_sum = task_of(run.model) is not None if function is None else bool(with_items(function, None))
            self.is_sum = self.is_sum and "compute_loss" not in trainer.replaced_passes
        self.gives_number = bool({"training_step", "compute_loss", "compute_loss_func"} & {*trainer.replaced_passes})
        self.items: Counts | NumItems | None = None  # of the update that is being made
        self.spare: Batch | None = None  # stands in where others have one more
        self.substeps = 0  # the micro-batches of this update that callbacks have heard of; it may be made again

    def take(self, iterator: Iterator[Any], epoch: int) -> Update | None:
        """The micro-batches of the next update; ``None`` where no process has one left.

        The processes agree by one operation, or by two where a term of the loss is new, as in the first update.
        """
        run = self.run
        batches: list[Batch] = list(islice(iterator, run.args.gradient_accumulation_steps))
        counts = [run.objective.count(batch) for batch in batches]
        names = {name for count in counts for name in count or ()}
        rows = gather_numbers(self._numbers(batches, counts, names))
        if any(row[0] for row in rows):
            self.terms = sorted(set(self.terms).union(*gather_objects(names)))
            rows = gather_numbers(self._numbers(batches, counts, names))
        self.saved.receive_signals([(int(row[1]), int(row[2])) for row in rows])
        columns = zip(*run.devices.replicas.among(rows))
        _, _, _, passes, numbers, unknown, unshared, flops, tokens, *items = columns
        most, parts, real = int(max(numbers)), int(math.fsum(numbers)), len(batches)
        if not most:
            return None
        if real < most:
            if self.spare is None:
                self.spare = first_batch(run.loader, epoch)
            batches += [self.spare] * (most - real)
        if not run.devices.alone:
            self.spare = batches[0]
        are_known = self.terms and not any(unknown) and math.fsum(unshared) < parts
        return Update(
            batches=batches,
            real=real,
            counts=[sum((count or {}).values()) for count in counts],
            items=dict(zip(self.terms, map(math.fsum, items))) if are_known else None,
            parts=parts,
            is_shared=not any(unshared),
            passes=int(max(passes)),
            flops=math.fsum(flops),
            tokens=int(math.fsum(tokens)),
        )

    def _numbers(self, batches: Sequence[Batch], counts: list[Counts | None], names: set[str]) -> list[float]:
        """What this process tells the others: whether its terms are new, its signals, then numbers as in ``take``."""
        return [
            float(not names <= set(self.terms)),
            *map(float, self.saved.signals.numbers),
            float(max((self.run.objective.passes(batch) for batch in batches), default=1)),
            float(len(batches)),
            float(sum(count is None for count in counts)),
            float(sum(not count for count in counts)),
            sum(self.trainer.floating_point_ops(batch) for batch in batches),
            float(sum(map(self._tokens, batches))),
            *(math.fsum((count or {}).get(name, 0.0) for count in counts) for name in self.terms),
        ]

    def _tokens(self, batch: Batch) -> int:
        """The tokens of a micro-batch, as far as ``include_num_input_tokens_seen`` asks for them."""
        asked, trainer = self.run.args.include_num_input_tokens_seen, self.trainer
        ids, mask = batch.get(trainer.main_input_name), batch.get("attention_mask")
        if asked == "no" or not isinstance(ids, Tensor):
            return 0
        padding_id = getattr(trainer.processing_class, "pad_token_id", None)
        if mask is None and padding_id is not None:
            mask = ids != padding_id
        return int(mask.sum()) if asked == "non_padding" and mask is not None else ids.numel()

    def make(self, update: Update) -> bool:
        """Make one update of these micro-batches; ``False`` where a callback ended it before."""
        run, trainer, batches = self.run, self.trainer, update.batches
        self.saved.begin_update()
        parts: Sequence[Batch] = batches
        may_cut = trainer.may_cut and run.objective.rows_apart and not run.form.same_passes
        if may_cut and update.real == len(batches):
            parts = split_by_length(run.wrapped, batches, self.cost, ragged=self.ragged)
        self.items, self.substeps = update.items, 0
        if self.gives_number:
            self.items = NumItems.of(update.items, run.share, run.args.device)
        trainer.current_gradient_accumulation_steps = len(batches)
        self.saved.check_signals()
        trainer.event("on_step_begin")
        make = partial(self._gradients, update)
        loss = make(parts) if self.halving is None else self.halving.run(make, parts, run.optimizer.zero_grad)
        if loss is None:
            run.optimizer.zero_grad()
            return False
        run.tally.flops += update.flops
        run.state.num_input_tokens_seen += update.tokens
        run.form.finish_gradients()
        run.tally.grad_norm = limit_gradients(run)
        is_finite = math.isfinite(run.tally.grad_norm) or run.scaler is not None
        if not is_finite and run.args.nan_policy == "error":
            where, generators = self.saved.save_before_update(), self.saved.rewind.generators
            step = partial(trainer.training_step, run.model, **with_items(trainer.training_step, self.items))
            raise not_finite(run, step, parts, generators, where)
        self._apply(changes=is_finite or run.args.nan_policy == "ignore")
        if update.items is None or not update.is_shared or any(update.items.values()):  # else no term has an item
            run.tally.waiting.append(loss)
            if len(run.tally.waiting) >= MOST_WAITING:
                run.add_up_losses()
        return True

    def _gradients(self, update: Update, parts: Sequence[Batch]) -> Tensor | None:
        """Make the passes of an update's parts; returns their loss, or ``None`` where a callback ended the update."""
        share, number, loss = self.run.share, len(update.batches), None
        for index in range(number):
            self.saved.check_signals()
            share.parts, share.batch, share.is_real = update.parts, update.share(index), index < update.real
            for place in range(index * len(parts) // number, (index + 1) * len(parts) // number):
                part = self.passes(parts[place], update.passes, is_last=place == len(parts) - 1).double()
                loss = part if loss is None else loss + part
            if self.substeps <= index < number - 1:
                self.substeps = index + 1
                self.trainer.event("on_substep_end")
                if self.trainer.control.should_epoch_stop or self.trainer.control.should_training_stop:
                    return None
        return loss

    def passes(self, batch: Batch, number: int = 1, *, is_last: bool = True) -> Tensor:
        """Make the passes of a micro-batch, or of a part of one; returns its part of the update's loss.

        After the last part, gradients are added up over processes.
        """
        run, trainer, model, share = self.run, self.trainer, self.run.wrapped, self.run.share
        if number == 1:
            share.is_divided = run.devices.is_staged and self.items is not None  # by the form; else by `compute_loss`
            with run.form.gradient_sync(model, is_last):
                usual = partial(trainer.training_step, model, batch, **with_items(trainer.training_step, self.items))
                loss: Tensor = run.form.passes(usual, batch, self.items, share.parts, share.loss)
            what = "there is too little memory for a micro-batch, and its loss is no sum over rows."
            refuse(share.rows_are_divided and not share.is_divided, what, LESS_MEMORY, TrainingError)
            return loss
        if not model.training:
            model.train()
        inputs = trainer._prepare_inputs(batch)
        with trainer.compute_loss_context_manager():
            loss, losses = run.objective.begin(model, inputs, share.counts(self.items), share.parts, number)
        for place in range(number):
            with run.form.gradient_sync(model, is_last and place == number - 1):
                with trainer.compute_loss_context_manager():
                    scalar = next(losses)
                backward(scalar * share.loss, run.devices.replicas.size, run.scaler)
        return loss.detach() * share.loss

    def _divide(self, batch: Batch) -> tuple[Batch, Batch] | str:
        """See :meth:`Objective.divide`; a reason also where others than the objective compute the loss."""
        perturbation = self.trainer.perturbation
        if "training_step" in self.trainer.replaced_passes:
            return "`training_step` is overridden, which may need all of them"
        if self.items is None or not self.is_sum:
            return "its loss is not known to be a sum over rows"
        if perturbation is not None and not perturbation.by_row:
            return f"the loss of {perturbation.kind!r} adversarial training is no sum over rows"
        divided = self.run.objective.divide(batch)
        self.run.share.rows_are_divided |= not isinstance(divided, str)
        return divided

    def _apply(self, *, changes: bool) -> None:
        """Change the weights by the gradients of an update, if ``changes``, and the learning rate after it."""
        run, trainer, scaler, applied = self.run, self.trainer, self.run.scaler, changes
        trainer.event("on_pre_optimizer_step")
        if changes and scaler is None:
            run.optimizer.step()
        elif changes:
            scale = scaler.get_scale()
            scaler.step(run.optimizer)
            scaler.update()
            applied = bool(scaler.get_scale() >= scale)  # else it left the step out
        trainer.event("on_optimizer_step")
        run.tally.learning_rate = trainer._get_learning_rate()
        run.tally.skipped += not applied
        if applied and not run.follows_metric:
            run.scheduler.step()
        if applied and run.average is not None:
            run.average.update(run.model)
        run.optimizer.zero_grad()


def limit_gradients(run: TrainingRun) -> float:
    """Clip the gradients of an update; returns their norm before."""
    parameters = (parameter for group in run.optimizer.param_groups for parameter in group["params"])
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if run.scaler is not None and gradients:
        run.scaler.unscale_(run.optimizer)
    norm, limit = run.form.norm(gradients), run.args.max_grad_norm
    value = float(norm)
    # Gradients that are not above the limit would be multiplied by one.
    if gradients and limit > 0 and math.isfinite(value) and limit < value + 1e-6:
        torch._foreach_mul_([local(gradient) for gradient in gradients], limit / (norm + 1e-6))
    return value


def backward(loss: Tensor, processes: int, scaler: Any) -> None:
    """The backward pass of a loss, scaled for processes and for 16-bit floats."""
    loss = loss * processes  # PyTorch divides the sum over processes by their number
    (loss if scaler is None else scaler.scale(loss)).backward()
