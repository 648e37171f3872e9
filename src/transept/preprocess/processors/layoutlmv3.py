"""LayoutLMv3's processor (Huang et al. 2022, arXiv:2204.08387): the picture of a page, its words, and where they stand."""

from __future__ import annotations

from typing import Any

from transept.errors import InputError
from transept.preprocess.features import BatchFeature
from transept.preprocess.processor import Processor


class LayoutLMv3Processor(Processor):
    """An image processor, which also reads words off pictures, and a tokenizer of words with boxes."""

    model_types = ("layoutlmv3",)
    parts = {"image_processor": ("LayoutLMv3ImageProcessor",), "tokenizer": ("LayoutLMv3Tokenizer",)}

    @property
    def model_input_names(self) -> list[str]:
        return ["input_ids", "bbox", "attention_mask", "pixel_values"]

    def __call__(  # type: ignore[override]
        self,
        images: Any = None,
        text: Any = None,
        text_pair: Any = None,
        boxes: Any = None,
        word_labels: Any = None,
        **options: Any,
    ) -> BatchFeature:
        """Prepare pages.

        Args:
            images: the pictures; without any, words are encoded alone.
            text, text_pair, boxes, word_labels: as for the tokenizer: words, or questions and words, and what belongs to
                these. Where the image processor reads the words (``apply_ocr``), ``text`` are questions, or nothing.
            options: as for every :class:`Processor`.

        Returns:
            What the tokenizer gives, and ``pixel_values``: those of its page for each row, also where a page overflows.

        Raises:
            InputError: words, boxes or labels beside those that are read off the pictures, or none at all.
        """
        split = self._split(options)
        if images is None:
            return self._words(text, text_pair, boxes, word_labels, split["text"])
        found = self.image_processor(images, **split["images"])
        if "words" in found:
            given = {"text_pair": text_pair, "boxes": boxes, "word_labels": word_labels}
            for name in (name for name, value in given.items() if value is not None):
                hint = "Pass apply_ocr=False."
                raise InputError(f"`{name}` was passed, but words and boxes are read off the pictures.", hint=hint)
            questions = [text] if isinstance(text, str) else text
            text, text_pair = (found["words"], None) if questions is None else (questions, found["words"])
            boxes = found["boxes"]
        encoded, pixels = self._words(text, text_pair, boxes, word_labels, split["text"]), found["pixel_values"]
        if (pages := encoded.get("overflow_to_sample_mapping")) is not None:
            pixels = [pixels[page] for page in pages] if isinstance(pixels, list) else pixels[pages]
        encoded["pixel_values"] = pixels
        return encoded

    def _words(self, text: Any, text_pair: Any, boxes: Any, word_labels: Any, options: dict[str, Any]) -> BatchFeature:
        if text is None:
            raise InputError("no words were passed.", hint="Pass words and boxes, or apply_ocr=True to have them read.")
        encoded: BatchFeature = self.tokenizer(text, text_pair, boxes, word_labels, **options)
        return encoded
