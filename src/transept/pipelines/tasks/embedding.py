"""Vectors of pictures and of sounds, to search and to compare by.

Shapes: B inputs, T positions, C channels, D hidden size, E size of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from transept.core.auto import AutoModel
from transept.layers.pool import pooled_alone
from transept.pipelines.base import TaskPipeline, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.media import AudioOptions, AudioPipeline, ImageOptions, ImagePipeline
from transept.pipelines.tasks.retrieval import normalized


class ImageEmbeddingOptions(ImageOptions):
    """Options of ``image-embedding``.

    Args:
        normalize: scale vectors to length one.
    """

    normalize: bool = False


class AudioEmbeddingOptions(AudioOptions):
    """Options of ``audio-embedding``, beside those of :class:`AudioOptions`.

    Args:
        normalize: scale vectors to length one.
    """

    normalize: bool = False


class VectorPipeline(TaskPipeline[Any]):
    """A task that answers with a float32 vector (E), and with an array (N, E) for N inputs."""

    auto = AutoModel

    def check_model(self) -> None:
        super().check_model()
        self.size = int(getattr(self.model, "vector_size", self.model.body.dim))

    def vectors(self, samples: Sequence[Sample]) -> NDArray[np.float32]:
        """(B, E)."""
        raise NotImplementedError

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        found = self.vectors(samples)
        return list(normalized(found) if options.normalize else found)

    def gather(self, answers: list[Any]) -> Any:
        return np.stack(answers) if answers else np.empty((0, self.size), np.float32)


class ImageEmbeddingPipeline(ImagePipeline, VectorPipeline):
    """One float32 vector (E) for a picture, an array (N, E) for N of them.

    It is what the model compares with texts, where it does that; else its pooled state, or the mean of the patches' states
    where nothing is pooled.
    """

    task, options_class = "image-embedding", ImageEmbeddingOptions

    def check_model(self) -> None:
        ImagePipeline.check_model(self)
        VectorPipeline.check_model(self)

    def vectors(self, samples: Sequence[Sample]) -> NDArray[np.float32]:
        inputs = self.collate(samples)
        compared = getattr(self.model, "get_image_features", None)
        with pooled_alone():
            output = self.run(inputs, self.model.body) if compared is None else compared(**inputs)
        if output.pooler_output is not None:
            return to_numpy(output.pooler_output.flatten(1))
        states: Tensor = output.last_hidden_state  # (B, T, D), or (B, C, H, W) where there are no patches
        first = getattr(self.model.body, "prefix_tokens", 0)
        return to_numpy(states.flatten(2).mean(dim=2) if states.ndim == 4 else states[:, first:].mean(dim=1))


class AudioEmbeddingPipeline(AudioPipeline, VectorPipeline):
    """One float32 vector (E) for a sound, the mean of its frames' states; an array (N, E) for N of them."""

    task, options_class = "audio-embedding", AudioEmbeddingOptions

    def check_model(self) -> None:
        AudioPipeline.check_model(self)
        VectorPipeline.check_model(self)

    def vectors(self, samples: Sequence[Sample]) -> NDArray[np.float32]:
        states = to_numpy(self.run(self.collate(samples), self.model.body).last_hidden_state)
        return np.stack([rows[: len(sample)].mean(axis=0) for rows, sample in zip(states, samples, strict=True)])
