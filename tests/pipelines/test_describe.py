"""Pictures described and questions about them answered: the reference's `generate` and decoding, batches, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import transept
from transept import pipeline
from transept.errors import InputError, InputTypeError
from transept.pipelines.base import InputsError
from transept.preprocess.auto import AutoProcessor
from transept.preprocess.image.blip import BlipImageProcessor
from transept.preprocess.image.vit import ViTImageProcessor
from transept.preprocess.processors.blip import BlipProcessor
from transept.preprocess.processors.trocr import TrOCRProcessor

from .media_models import picture, png
from .writers import VOCABULARY, tokenizer

SIZE = {"height": 16, "width": 16}
PICTURES = [Image.fromarray(picture(seed, 20 + 3 * seed, 31)) for seed in range(5)]
SMALL: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
TEXT = SMALL | {
    "vocab_size": len(VOCABULARY),
    "bos_token_id": 0,
    "pad_token_id": 1,
    "sep_token_id": 2,
    "initializer_range": 0.3,
}
VISION = SMALL | {"image_size": 16, "patch_size": 4, "initializer_range": 0.3}
QUESTIONS = ["what is it?", "how many?", "is it day or night there?", "a", "who"]


def saved(directory: Path, kind: str) -> Path:
    """A model of the reference's with its preprocessing."""
    import transformers

    torch.manual_seed(0)
    if kind.startswith("Blip"):
        model = getattr(transformers, kind)(transformers.BlipConfig(text_config=TEXT, vision_config=VISION))
        BlipProcessor(BlipImageProcessor(size=SIZE), tokenizer(single="<s> $A </s>")).save_pretrained(directory)
    else:
        sizes = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "init_std": 0.3}
        parts = {"encoder": transformers.ViTConfig(**VISION), "decoder": transformers.TrOCRConfig(vocab_size=260, **sizes)}
        tokens = {"decoder_start_token_id": 2, "pad_token_id": 1, "eos_token_id": 2}
        model = getattr(transformers, kind)(transformers.VisionEncoderDecoderConfig(**parts, **tokens))
        TrOCRProcessor(ViTImageProcessor(size=SIZE), tokenizer(single="<s> $A </s>")).save_pretrained(directory)
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def blip(tmp_path_factory: Any) -> Path:
    return saved(tmp_path_factory.mktemp("blip"), "BlipForConditionalGeneration")


@pytest.fixture(scope="module")
def vqa(tmp_path_factory: Any) -> Path:
    return saved(tmp_path_factory.mktemp("vqa"), "BlipForQuestionAnswering")


@pytest.fixture(scope="module")
def trocr(tmp_path_factory: Any) -> Path:
    return saved(tmp_path_factory.mktemp("trocr"), "VisionEncoderDecoderModel")


def theirs(kind: str, path: Path) -> Any:
    import transformers

    return getattr(transformers, kind).from_pretrained(path).eval()


@pytest.mark.reference
def test_descriptions_are_those_of_the_references_generate(blip: Path) -> None:
    pipe, model, processor = (
        pipeline(model=blip),
        theirs("BlipForConditionalGeneration", blip),
        AutoProcessor.from_pretrained(blip),
    )
    assert pipe.task == "image-to-text"
    assert type(processor) is BlipProcessor
    options: dict[str, Any]
    for options in ({"max_new_tokens": 6}, {"generate_kwargs": {"num_beams": 2, "max_new_tokens": 5}}):
        for prompt in (None, "a photo of"):
            found = pipe(PICTURES, **options, **({} if prompt is None else {"prompt": prompt}))
            for image, answer in zip(PICTURES, found, strict=True):
                inputs = processor(image, prompt, return_tensors="pt")
                ids = model.generate(**inputs, **options.get("generate_kwargs", options))
                assert answer == [{"generated_text": pipe.tokenizer.decode(ids[0], skip_special_tokens=True)}]
    several = pipe(PICTURES[0], num_beams=3, num_return_sequences=2, max_new_tokens=4)
    assert len(several) == 2
    assert pipe(PICTURES[0], max_new_tokens=3, return_tensors=True)[0].keys() == {"generated_token_ids"}
    assert pipe(png(picture(1, 20, 20)), max_new_tokens=3)[0].keys() == {"generated_text"}


@pytest.mark.reference
def test_lines_of_text_are_read(trocr: Path) -> None:
    pipe, model, processor = (
        pipeline(model=trocr),
        theirs("VisionEncoderDecoderModel", trocr),
        AutoProcessor.from_pretrained(trocr),
    )
    assert (pipe.task, type(processor)) == ("image-to-text", TrOCRProcessor)
    found = pipe(PICTURES, max_new_tokens=6, batch_size=2)
    for image, answer in zip(PICTURES, found, strict=True):
        ids = model.generate(**processor(image, return_tensors="pt"), max_new_tokens=6)
        assert answer == [{"generated_text": pipe.tokenizer.decode(ids[0], skip_special_tokens=True)}]
    with pytest.raises(InputError, match="VisionEncoderDecoderModel goes on from no text"):
        pipe(PICTURES[0], prompt="a photo of")


@pytest.mark.reference
def test_answers_are_those_of_the_references_generate(vqa: Path) -> None:
    pipe, model, processor = (
        pipeline("vqa", model=vqa),
        theirs("BlipForQuestionAnswering", vqa),
        AutoProcessor.from_pretrained(vqa),
    )
    assert pipeline(model=vqa).task == pipe.task == "visual-question-answering"
    rows = [{"image": image, "question": asked} for image, asked in zip(PICTURES, QUESTIONS, strict=True)]
    found = pipe(rows, max_new_tokens=6)
    for row, answer in zip(rows, found, strict=True):
        ids = model.generate(**processor(row["image"], row["question"], return_tensors="pt"), max_new_tokens=6)
        assert answer == [{"answer": pipe.tokenizer.decode(ids[0], skip_special_tokens=True).strip()}]
    short = {"max_new_tokens": 6}
    assert pipe(PICTURES[0], QUESTIONS[0], **short) == pipe(image=PICTURES[0], question=QUESTIONS[0], **short) == found[0]
    assert pipe(PICTURES[:2], QUESTIONS[0], **short)[0] == pipe(PICTURES[0], QUESTIONS[:2], top_k=1, **short)[0] == found[0]
    assert len(pipe(PICTURES[:2], QUESTIONS[:3], **short)) == 6


@pytest.mark.reference
def test_processors_are_the_references(blip: Path, trocr: Path) -> None:
    import numpy as np
    import transformers

    for path in (blip, trocr):
        ours, others = AutoProcessor.from_pretrained(path), transformers.AutoProcessor.from_pretrained(path, backend="pil")
        assert type(ours).__name__ == type(others).__name__
        for given in ({"text": QUESTIONS, "padding": True}, {"images": PICTURES}, {"images": PICTURES, "text": QUESTIONS}):
            how: dict[str, Any] = {"padding": True} if "text" in given else {}
            mine, other = ours(**given | how, return_tensors="np"), others(**given | how, return_tensors="np")
            assert mine.keys() == other.keys()
            assert all(np.abs(mine[name] - other[name]).max() <= 1e-6 for name in mine)
        assert set(ours.model_input_names) == set(others.model_input_names)


def test_inputs_that_cannot_be(blip: Path, vqa: Path) -> None:
    write, ask = pipeline("image-to-text", blip, max_new_tokens=2), pipeline("vqa", vqa, max_new_tokens=2)
    with pytest.raises(InputsError, match="input 1 cannot be answered") as told:
        write([PICTURES[0], b"no picture", PICTURES[1]])
    assert told.value.positions == [1]
    assert told.value.answers[2] == write(PICTURES[1])
    with pytest.raises(InputTypeError, match="an image with a question was expected"):
        ask(PICTURES[0])
    with pytest.raises(InputError, match="must have `image` and `question`, but has image"):
        ask({"image": PICTURES[0]})
    with pytest.raises(InputTypeError, match="a text was expected"):
        ask({"image": PICTURES[0], "question": 5})
    with pytest.raises(InputError, match="`prompt` must be a text, but is int"):
        write(PICTURES[0], prompt=5)
    with pytest.raises(InputError, match="max_new_token"):
        write(PICTURES[0], max_new_token=5)
    with pytest.raises(InputError, match="positions"):
        ask(PICTURES[0], "x" * 600)
    assert ask(PICTURES[0], "x" * 600, truncation=True) if ask.tokenizer.model_max_length < 600 else True
    with pytest.raises(InputTypeError, match="ForQuestionAnswering"):
        pipeline("vqa", write.model, image_processor=write.image_processor, tokenizer=write.tokenizer)


def test_streams_and_seeds(blip: Path) -> None:
    pipe = pipeline("image-to-text", blip, max_new_tokens=3, do_sample=True, seed=3)
    one, again = pipe(PICTURES), pipe(PICTURES)
    assert one == again
    assert pipe(PICTURES[1:2])[0] == pipe(PICTURES[1])
    model = transept.BlipForConditionalGeneration.from_pretrained(blip)
    pixels = pipe.image_processor(PICTURES[0], return_tensors="pt").pixel_values
    pieces = list(model.stream(pixel_values=pixels, tokenizer=pipe.tokenizer, max_new_tokens=4))
    assert [token for piece in pieces for token in piece.ids] == model.generate(pixels, max_new_tokens=4)[0, 1:].tolist()
