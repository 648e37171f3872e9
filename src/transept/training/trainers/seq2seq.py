"""The trainer of models that read one text and write another, evaluated by what ``generate`` writes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.errors import refuse
from transept.generation.config import GenerationConfig
from transept.training.state import Prediction, PredictionOutput
from transept.training.trainer import Trainer

LONGEST = 20  # what `generate` writes at most where nothing is set


class Seq2SeqTrainer(Trainer):
    """A trainer whose predictions are what ``generate`` writes, with ``predict_with_generate``; see :class:`Trainer`.

    ``args.generation_config`` takes the place of the model's own.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gen_kwargs: dict[str, Any] = {}
        if (settings := getattr(self.args, "generation_config", None)) is not None:
            self.model.generation_config = self.load_generation_config(settings)

    @staticmethod
    def load_generation_config(gen_config_arg: str | Path | GenerationConfig) -> GenerationConfig:
        """A copy of settings, or those of a file, a directory or a repository."""
        if isinstance(gen_config_arg, GenerationConfig):
            return copy.deepcopy(gen_config_arg)
        return GenerationConfig.from_pretrained(gen_config_arg)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **gen_kwargs: Any
    ) -> dict[str, Any]:
        """The loss and the metrics of a set; ``gen_kwargs`` are arguments of ``generate``, such as ``max_length``."""
        if gen_kwargs or not isinstance(eval_dataset or self.eval_dataset, dict):
            self._set_gen_kwargs(gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def predict(
        self, test_dataset: Any, ignore_keys: Any = None, metric_key_prefix: str = "test", **gen_kwargs: Any
    ) -> PredictionOutput:
        """What is written for a set, its labels and its metrics; ``gen_kwargs`` as for :meth:`evaluate`."""
        self._set_gen_kwargs(gen_kwargs)
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    def _set_gen_kwargs(self, options: dict[str, Any]) -> None:
        """Keep the arguments of ``generate``, with those of the settings where they are absent."""
        self._gen_kwargs = {name: value for name, value in options.items() if value is not None}
        longest = getattr(self.args, "generation_max_length", None)
        if longest and not {"max_length", "max_new_tokens"} & self._gen_kwargs.keys():
            self._gen_kwargs["max_length"] = longest
        if beams := getattr(self.args, "generation_num_beams", None):
            self._gen_kwargs.setdefault("num_beams", beams)

    def predict_batch(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None, **gen_kwargs: Any
    ) -> Prediction:
        if prediction_loss_only or not getattr(self.args, "predict_with_generate", False):
            return super().predict_batch(model, inputs, prediction_loss_only, ignore_keys)
        has_labels = "labels" in inputs
        losses = super().predict_batch(model, inputs, True) if has_labels else Prediction(None, None, None, None)
        inputs = self._prepare_inputs(inputs)
        labels, left_out = inputs.get("labels"), {"labels"}
        if labels is not None and getattr(inputs.get("decoder_input_ids"), "shape", None) == labels.shape:
            left_out |= {"decoder_input_ids", "decoder_attention_mask"}  # which are made of labels
        with torch.no_grad(), self.compute_loss_context_manager():
            prompts = {name: value for name, value in inputs.items() if name not in left_out}
            written = self.model.generate(**prompts, **(gen_kwargs or self._gen_kwargs))
        padded_labels = None if labels is None else self._padded(labels)
        return Prediction(losses.loss, losses.terms, self._padded(written), padded_labels)

    def _padded(self, ids: Tensor) -> Tensor:
        """Padded to the length that the model writes by its own settings, as the reference's predictions are."""
        settings = self.model.generation_config
        longest, new = getattr(settings, "max_length", None), getattr(settings, "max_new_tokens", None)
        widths = (LONGEST if longest is None else longest, 0 if new is None else new + 1)
        width = next((width for width in widths if ids.shape[-1] < width), None)
        return ids if width is None else self._pad_tensors_to_max_len(ids, width)

    def _pad_tensors_to_max_len(self, tensor: Tensor, max_length: int) -> Tensor:
        reader = self.processing_class if hasattr(self.processing_class, "pad_token_id") else self.model.config
        tokens = (getattr(reader, name, None) for name in ("pad_token_id", "eos_token_id"))
        fill: Any = next((token for token in tokens if token is not None), None)
        what = "texts of different lengths cannot be joined: there is no padding token."
        refuse(not isinstance(fill, int), what, "Set `pad_token_id`.")
        return F.pad(tensor, (0, max_length - tensor.shape[-1]), value=fill)
