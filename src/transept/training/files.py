"""What a trainer writes: models, checkpoints, metrics and a card; and what it publishes."""

from __future__ import annotations

import datetime
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from transept.checkpoint.store import save_checkpoint
from transept.core.model import Model
from transept.files import PathName, dump_json, load_object, make_directory, safe_join, write_text
from transept.parallel.forms import Form
from transept.parallel.streams import ModelFiles, written_together
from transept.training.arguments import TrainingArguments
from transept.training.persist.snapshot import load_best
from transept.training.state import STATE_NAME, HubStrategy, TrainerState

ARGUMENTS_NAME = "training_args.json"


class RunFiles:
    """Methods of the trainer that write files into the run's directory."""

    args: TrainingArguments
    model: Any
    form: Form
    state: TrainerState
    processing_class: Any
    data_collator: Any
    loop: Any
    average: Any

    def is_world_process_zero(self) -> bool:
        """Whether this is the process that writes files."""
        return self.args.process_index == 0

    def is_local_process_zero(self) -> bool:
        return self.args.local_process_index == 0

    def save_model(self, output_dir: PathName | None = None, _internal_call: bool = False) -> None:
        """Save the model, its tokenizer or processor, and the arguments, so that ``from_pretrained`` opens the directory."""
        weights = self.whole_weights()
        with written_together(weights) if isinstance(weights, ModelFiles) else nullcontext():
            if self.args.should_save:
                self._save(output_dir or self.args.output_dir or ".", weights)
        if self.args.should_save and self.args.push_to_hub and not _internal_call:
            self.push_to_hub("Model save")  # type: ignore[attr-defined]  # the trainer's

    def whole_weights(self, elsewhere: bool = False) -> ModelFiles | dict[str, Any] | None:
        """The weights that are saved, where processes have parts of them; ``None``: they are the model's own.

        All processes must call this together. Those of a model of this library are put together while they are written;
        those of another are whole, on the first process. With ``elsewhere`` shards have them, and only what stands beside
        them is written.
        """
        if elsewhere:
            return {}
        if not self.form.same_passes:
            return None
        state = self.model.state_dict()
        if self.average is not None:
            state |= {name: mean.to(state[name].dtype) for name, mean in self.average.state_dict().items()}
        if not isinstance(self.model, Model):
            return self.form.collect(state)
        names = self.model.checkpoint_names()
        kept = {name: tensor for name, tensor in state.items() if name not in names.tied}
        return ModelFiles(self.form.pieces(kept), names.keys, order=self.form.stored)

    def _save(self, output_dir: PathName, state_dict: ModelFiles | dict[str, Any] | None = None) -> None:
        """Write the model with these weights, or its own, and what belongs to it."""
        folder = make_directory(output_dir)
        with self.averaged() if state_dict is None else nullcontext():  # type: ignore[attr-defined]  # the trainer's
            given = {} if state_dict is None else {"state_dict": state_dict}
            if state_dict == {}:
                for name, text in (self.model.texts() if isinstance(self.model, Model) else {}).items():
                    write_text(folder / name, text)
            elif isinstance(state_dict, ModelFiles):
                with self.form.ordinary(self.model):
                    state_dict.write(self.model.texts(), folder)
            elif hasattr(self.model, "save_pretrained"):
                with self.form.ordinary(self.model):
                    self.model.save_pretrained(folder, **given)
            else:
                save_checkpoint(state_dict or self.model.state_dict(), {}, folder)
        reader: Any = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if hasattr(reader, "save_pretrained"):
            reader.save_pretrained(folder)
        write_text(folder / ARGUMENTS_NAME, self.args.to_json_string())

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        """Save ``checkpoint-STEP``."""
        self.loop.saved.save()
        if self.args.push_to_hub and self.args.hub_strategy == HubStrategy.EVERY_SAVE:
            self.push_to_hub(f"Training in progress, step {self.state.global_step}")  # type: ignore[attr-defined]

    def _load_best_model(self) -> None:
        """Take the weights of the best checkpoint."""
        load_best(Path(str(self.state.best_model_checkpoint)), self.model, self.form, averaged=self.average is not None)

    def save_state(self) -> None:
        """Write ``trainer_state.json``."""
        if self.is_world_process_zero():
            self.state.save_to_json(safe_join(make_directory(self.args.output_dir or "."), STATE_NAME))

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print metrics as a table."""
        if self.is_world_process_zero():
            shown = {name: str(value) for name, value in self.metrics_format(metrics).items()}
            width, right = max(map(len, shown), default=0), max(map(len, shown.values()), default=0)
            lines = [f"  {name: <{width}} = {shown[name]:>{right}}" for name in sorted(shown)]
            tqdm.write("\n".join([f"***** {split} metrics *****", *lines]))

    def metrics_format(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Metrics for people: times as hours, minutes and seconds, operations in 2^30."""

        def form(name: str, value: Any) -> Any:
            if "_runtime" in name:
                return f"{datetime.timedelta(seconds=int(value))}.{int(abs(value - int(value)) * 100):02d}"
            if name == "total_flos":
                return f"{int(value) >> 30}GF"
            return round(value, 4) if isinstance(value, float) else value

        return {name: form(name, value) for name, value in metrics.items()}

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write ``SPLIT_results.json``, and with ``combined`` add the metrics to ``all_results.json``."""
        if self.is_world_process_zero():
            folder = make_directory(self.args.output_dir or ".")
            write_text(safe_join(folder, f"{split}_results.json"), dump_json(metrics))
            if combined:
                every = folder / "all_results.json"
                earlier = load_object(every, finite=False) if os.path.exists(every) else {}
                write_text(every, dump_json(earlier | metrics))

    def get_num_trainable_parameters(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters() if weight.requires_grad)

    def get_learning_rates(self) -> list[float]:
        """The learning rate of each group of parameters."""
        return [group["lr"] for group in self.optimizer.param_groups]  # type: ignore[attr-defined]  # the trainer's
