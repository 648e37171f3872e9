"""LayoutLMv3's image processor (Huang et al. 2022, arXiv:2204.08387): 224 x 224, and the words that are read off the page."""

from __future__ import annotations

from typing import Any

from transept.preprocess.features import BatchFeature
from transept.preprocess.image.base import BaseImageProcessor, flat_images
from transept.preprocess.media import open_image
from transept.preprocess.ocr import read_words
from transept.preprocess.workers import in_order


class LayoutLMv3ImageProcessor(BaseImageProcessor):
    """Bilinear to 224 x 224, mean and standard deviation of one half.

    Args:
        apply_ocr: whether to read the words by Tesseract, for which pytesseract must be installed.
        ocr_lang: the language that it reads, English where ``None``.
        tesseract_config: more flags for it, such as ``"--psm 6"``.
    """

    model_types = ("layoutlmv3",)

    apply_ocr: bool = True
    ocr_lang: str | None = None
    tesseract_config: str | None = ""

    def __call__(self, images: Any, *, return_tensors: str | None = None, **overrides: Any) -> BatchFeature:
        """As of every image processor, and with ``apply_ocr`` also ``words`` and ``boxes``: of each picture a list of texts,
        and one of their left, top, right and bottom, from 0 to 1000.

        Raises:
            MissingExtraError: pytesseract is needed and not installed.
            UnsupportedError: Tesseract itself cannot be run, or not with these flags.
        """
        settings = self.for_call(return_tensors, overrides)
        if not settings.apply_ocr:
            return BatchFeature(settings.inputs(settings.prepare(images), return_tensors), return_tensors)
        flat = list(flat_images(images))
        distinct = len(set(map(id, flat))) == len(flat)  # no two threads may decode one object
        layout = settings.input_data_format
        pictures = in_order(lambda one: open_image(one, input_data_format=layout), flat, "image", parallel=distinct)
        found = BatchFeature(settings.inputs(settings.prepare(pictures), return_tensors), return_tensors)
        pages = in_order(lambda one: read_words(one, settings.ocr_lang, settings.tesseract_config or ""), pictures, "image")
        found["words"], found["boxes"] = [words for words, _ in pages], [boxes for _, boxes in pages]
        return found


LayoutLMv3ImageProcessorFast = LayoutLMv3ImageProcessor
