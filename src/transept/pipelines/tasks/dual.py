"""Pictures compared with texts (Radford et al. 2021): classes that are named in the call.

Shapes: B pictures, N texts, P size of the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from transept.core.auto import AutoModelForZeroShotImageClassification
from transept.heads.dual import DualEncoder
from transept.layers.pool import pooled_alone
from transept.pipelines.base import to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.media import ImageOptions, ImagePipeline
from transept.pipelines.tasks.classification import CandidateOptions


class ZeroShotImageOptions(CandidateOptions, ImageOptions):
    """Options of ``zero-shot-image-classification``, beside those of :class:`CandidateOptions`.

    Args:
        tokenizer_kwargs: arguments of the tokenizer for the sentences.
    """

    hypothesis_template: str = "This is a photo of {}."
    tokenizer_kwargs: Mapping[str, Any] | None = None


class ZeroShotImageClassificationPipeline(ImagePipeline):
    """For a picture, a list of ``{"score": float, "label": str}`` for all labels, the best first.

    Scores add up to 1 with models that choose among texts, as CLIP does; with those that judge each by itself, as SigLIP does,
    each is the probability that the label fits.
    """

    task, auto, options_class = "zero-shot-image-classification", AutoModelForZeroShotImageClassification, ZeroShotImageOptions
    components: ClassVar[tuple[str, ...]] = ("image_processor", "tokenizer")
    drawable, first = True, "image"
    tokenizer: Any

    def check_model(self) -> None:
        self.need(isinstance(self.model, DualEncoder), "compares images with texts")
        super().check_model()
        self._texts: tuple[Any, Tensor] | None = None

    def __call__(self, inputs: Any = None, candidate_labels: Any = None, **options: Any) -> Any:
        """As of every pipeline, with the classes behind the pictures."""
        chosen = self.options.labels if candidate_labels is None else candidate_labels
        return super().__call__(inputs, candidate_labels=chosen, **options)

    def vectors(self, options: Any) -> Tensor:
        """(N, P) of the sentences for the classes; they are kept, since many pictures are compared with the same."""
        given = dict(options.tokenizer_kwargs or {})
        key = options.hypotheses, sorted(given.items(), key=str)
        if self._texts is None or self._texts[0] != key:
            how: dict[str, Any] = {"padding": self.model.text_padding}
            if self.model.text_padding == "max_length":
                how |= {"max_length": self.model.text_model.max_positions, "truncation": True}
            texts = self.tokenizer(list(options.hypotheses), return_tensors="pt", **how | given).to(self.model.device)
            names = ("input_ids", "attention_mask")
            with pooled_alone():
                found = self.model.get_text_features(**{name: texts[name] for name in names if name in texts}).pooler_output
            self._texts = key, found / found.norm(dim=-1, keepdim=True)
        return self._texts[1]

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        with pooled_alone():
            images = self.model.get_image_features(**self.collate(samples)).pooler_output
        logits = self.model.logits(self.vectors(options) @ (images / images.norm(dim=-1, keepdim=True)).T).T
        return list(to_numpy(self.model.probabilities(logits.float())))

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> list[dict[str, Any]]:
        pairs = sorted(zip(results[0].tolist(), options.labels, strict=True), key=lambda pair: -pair[0])
        return [{"score": score, "label": label} for score, label in pairs]
