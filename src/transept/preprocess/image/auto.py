"""``AutoImageProcessor``: the image processor that a model's files name."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from transept.preprocess.auto import AutoPreprocessor
from transept.preprocess.image.base import BaseImageProcessor


class AutoImageProcessor(AutoPreprocessor[BaseImageProcessor]):
    """Finds the class by ``image_processor_type``, by the older ``feature_extractor_type``, or by the model's type."""

    section: ClassVar[str] = "image_processor"
    classes: ClassVar[dict[str, str]] = {"ViTImageProcessor": "transept.preprocess.image.vit"}
    model_types: ClassVar[dict[str, str]] = {"vit": "ViTImageProcessor"}

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        use_fast: bool | None = None,
        backend: str | None = None,
        **options: Any,
    ) -> BaseImageProcessor:
        """As in the base. ``use_fast`` and ``backend`` choose nothing: there is one implementation, and it is fast."""
        return super().from_pretrained(pretrained_model_name_or_path, **options)

    @classmethod
    def class_name(cls, values: dict[str, Any]) -> str | None:
        """The class's name without the endings that tell implementations apart (``Fast``, ``Pil``)."""
        name = super().class_name(values)
        if name is None and isinstance(older := values.get("feature_extractor_type"), str):
            name = older.replace("FeatureExtractor", "ImageProcessor")
        return None if name is None else name.removesuffix("Fast").removesuffix("Pil")
