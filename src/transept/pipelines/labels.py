"""From a classifier's logits to named classes with scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transept.config import Config
from transept.pipelines.base import Pipeline, check_choice, check_count, to_numpy
from transept.pipelines.batching import Sample

FUNCTIONS = ("softmax", "sigmoid", "none")


@dataclass(frozen=True)
class LabelOptions:
    """Options of tasks that name classes.

    Args:
        top_k: how many classes to name, the best first; ``None`` for all.
        function_to_apply: what makes scores of logits: ``softmax``, ``sigmoid`` or ``none``. When absent ``none`` for
            regression, ``sigmoid`` for several labels at once and for a single class, else ``softmax``.

    Raises:
        InputError: another function, or fewer than one class.
    """

    top_k: int | None = 5
    function_to_apply: str | None = None

    def __post_init__(self) -> None:
        check_count("top_k", self.top_k, optional=True)
        check_choice("function_to_apply", self.function_to_apply, (None, *FUNCTIONS))


class ClassifyingPipeline(Pipeline[Any]):
    """A task whose answers are lists of ``{"label": str, "score": float}``, the best first."""

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[NDArray[np.float32]]:
        return list(to_numpy(self.logits(samples)))

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        return labelled(results[0], self.model.config, options)


def labelled(logits: NDArray[np.float32], config: Config, options: LabelOptions) -> list[dict[str, Any]]:
    """The classes with the highest scores, each as ``{"label": ..., "score": ...}``, the best first.

    Args:
        logits: (C).
        config: of the model; has the labels and the kind of problem.
        options: how many, and scored how.
    """
    values = scores(logits, options.function_to_apply or default_function(config))
    labels = config.id2label or {}
    best = np.argsort(-values, kind="stable")[: options.top_k]
    return [{"label": labels.get(i, f"LABEL_{i}"), "score": float(values[i])} for i in best.tolist()]


def default_function(config: Config) -> str:
    """What makes scores of logits where the caller does not say."""
    if config.problem_type == "regression":
        return "none"
    return "sigmoid" if config.problem_type == "multi_label_classification" or config.num_labels == 1 else "softmax"


def scores(logits: NDArray[np.float32], function: str) -> NDArray[np.float32]:
    """Scores (..., C) of logits (..., C)."""
    if function == "none":
        return logits
    if function == "sigmoid":
        found: NDArray[np.float32] = np.exp(-np.logaddexp(0, -logits))  # does not overflow where the logits are large
        return found
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    softmax: NDArray[np.float32] = powers / powers.sum(axis=-1, keepdims=True)
    return softmax
