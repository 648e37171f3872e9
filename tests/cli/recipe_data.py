"""Tiny data and tiny models for every recipe."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .commands import save_text_model

GOOD, BAD = ["good", "love"], ["bad", "hate"]
THINGS = ["film", "book", "cat", "dog", "the film", "this book", "that cat", "the dog", "this film", "that book"]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def ratings(folder: Path) -> Path:
    rows = [{"text": f"{word} {thing}", "label": "GOOD" if word in GOOD else "BAD"} for word in GOOD + BAD for thing in THINGS]
    return lines(folder / "ratings.jsonl", rows)


def entities(folder: Path) -> Path:
    sentences = [
        f"the\tO\n{name}\tB-PET\nlove\tO\n{thing}\tO\n" for name in ("cat", "dog") for thing in ("film", "book", "this", "that")
    ]
    (folder / "pets.conll").write_text("\n".join(sentences))
    return folder / "pets.conll"


def questions(folder: Path) -> Path:
    rows = []
    for name in ("cat", "dog"):
        for thing in ("film", "book", "this", "that"):
            context = f"the {name} love the {thing}."
            answers = {"text": [name], "answer_start": [4]}
            rows.append({"question": "the cat? the dog?", "context": context, "answers": answers})
    return lines(folder / "questions.jsonl", rows)


def choices(folder: Path) -> Path:
    rows = [{"question": "love", "choices": [f"good {thing}", f"bad {thing}"], "label": "A"} for thing in THINGS]
    return lines(folder / "choices.jsonl", rows)


def book(folder: Path) -> Path:
    (folder / "book.txt").write_text("the cat love the dog. the dog hate that book!\n" * 40)
    return folder / "book.txt"


def pairs(folder: Path) -> Path:
    return lines(folder / "pairs.jsonl", [{"source": f"good {thing}", "target": f"bad {thing}"} for thing in THINGS])


def pictures(folder: Path) -> Path:
    from PIL import Image

    for name, colour in (("red", (220, 30, 30)), ("blue", (30, 30, 220))):
        (folder / "pictures" / name).mkdir(parents=True)
        for number in range(8):
            shade = tuple(value + number for value in colour)
            Image.new("RGB", (32, 32), shade).save(folder / "pictures" / name / f"{number}.png")
    return folder / "pictures"


def boxes(folder: Path) -> Path:
    from PIL import Image

    rows = []
    for number in range(6):
        Image.new("RGB", (48, 40), (number, 50, 50)).save(folder / f"{number}.png")
        objects = {"bbox": [[4 + number, 4, 20, 20]], "category": ["boat" if number % 2 else "gull"]}
        rows.append({"image": f"{number}.png", "objects": objects})
    return lines(folder / "boxes.jsonl", rows)


def sounds(folder: Path) -> Path:
    rows = []
    for number in range(6):
        time = np.arange(8000) / 16000
        samples = (8000 * np.sin(2 * np.pi * (200 + 50 * number) * time)).astype("<i2")
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(samples.tobytes())
        rows.append({"audio": f"{number}.wav", "text": ["TEN", "ONE", "NINE"][number % 3]})
    return lines(folder / "sounds.jsonl", rows)


def chats(folder: Path) -> Path:
    rows = [{"prompt": f"love {thing}? ", "completion": f"good {thing}."} for thing in THINGS]
    return lines(folder / "chats.jsonl", rows)


def alike(folder: Path) -> Path:
    return lines(folder / "alike.jsonl", [{"anchor": f"good {thing}", "positive": f"love {thing}"} for thing in THINGS])


def preferences(folder: Path) -> Path:
    rows = [{"prompt": f"love {thing}? ", "chosen": f"good {thing}.", "rejected": "hate that!"} for thing in THINGS]
    return lines(folder / "preferences.jsonl", rows)


def text_model(kind: str) -> Callable[[Path], Path]:
    return lambda folder: save_text_model(folder, kind, initializer_range=0.1)


def writer(name: str) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        from tests.pipelines.writers import model, tokenizer

        model(name).save_pretrained(folder)
        tokenizer(single="$A" if "LM" in name else "$A </s>").save_pretrained(folder)
        return folder

    return save


def detector(folder: Path) -> Path:
    from tests.pipelines.vision_models import BACKBONE, DETR
    from transept import DetrConfig, DetrForObjectDetection, DetrImageProcessor

    DetrForObjectDetection(DetrConfig(**DETR, backbone_config=BACKBONE, num_labels=2)).save_pretrained(folder)
    DetrImageProcessor(size={"shortest_edge": 32, "longest_edge": 48}).save_pretrained(folder)
    return folder


def image_model(folder: Path) -> Path:
    from tests.pipelines.media_models import save_image_model

    return save_image_model(folder)


def sound_model(folder: Path) -> Path:
    from tests.pipelines.media_models import save_audio_model

    return save_audio_model(folder)


def speech_model(folder: Path) -> Path:
    from tests.pipelines.speech_models import save_writer

    return save_writer(folder)


def partly_rated(folder: Path) -> Path:
    """Every second row has a label."""
    rows = [json.loads(line) for line in ratings(folder).read_text().splitlines()]
    return lines(folder / "partly.jsonl", [row if number % 2 else {"text": row["text"]} for number, row in enumerate(rows)])


def new_weights(folder: Path) -> None:
    """The recipe makes its model."""
    return


# Task -> its data, its model, the metric that its evaluation has.
RECIPES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Path | None], str]] = {
    "text-classification": (ratings, text_model("BertModel"), "accuracy"),
    "token-classification": (entities, text_model("BertModel"), "f1"),
    "question-answering": (questions, text_model("BertModel"), "exact_match"),
    "multiple-choice": (choices, text_model("BertModel"), "accuracy"),
    "masked-lm": (book, text_model("BertForMaskedLM"), "perplexity"),
    "causal-lm": (chats, writer("LlamaForCausalLM"), "loss"),
    "seq2seq": (pairs, writer("T5ForConditionalGeneration"), "rougeL"),
    "translation": (pairs, writer("T5ForConditionalGeneration"), "chrf"),
    "summarization": (pairs, writer("T5ForConditionalGeneration"), "rougeLsum"),
    "sentence-embedding": (alike, text_model("BertModel"), "loss"),
    "preference": (preferences, writer("LlamaForCausalLM"), "loss"),
    "self-training": (partly_rated, text_model("BertModel"), "macro_f1"),
    "autoencoder": (pictures, new_weights, "explained_variance"),
    "image-classification": (pictures, image_model, "accuracy"),
    "object-detection": (boxes, detector, "map"),
    "ctc": (sounds, sound_model, "wer"),
    "speech-to-text": (sounds, speech_model, "wer"),
}
