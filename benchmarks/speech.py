"""Speech to text on the CPU, beside its peers: `python -m benchmarks.speech`.

Whisper's tiny and base sizes with random weights write a minute of sound: two windows of 30 seconds, greedy, the same number of
tokens each in all contenders, from samples to text. What the memory can stream and what the matrix units can multiply is
measured first: a step reads every weight of the decoder once. Peers that are not installed are left out; `pip install
ctranslate2` brings one. Then the features of 100 clips are made by both libraries.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .measure import Isolated, bandwidth, interleaved, machine, table, write

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

RATE, WINDOW, TOKENS = 16000, 30, 100
SIZES = {"tiny": (384, 4, 6), "base": (512, 6, 8)}
FLOORS = {"transformers": 1.5, "ctranslate2": 0.8}
FEATURES = {"WhisperFeatureExtractor": 1.5, "ASTFeatureExtractor": 5.0}
END = 50257


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """A tone that moves, in noise."""
    time, noise = np.arange(round(seconds * RATE)) / RATE, np.random.default_rng(seed)
    tone = 0.3 * np.sin(2 * np.pi * (200 + 400 * np.sin(time + seed)) * time)
    return (tone + 0.05 * noise.standard_normal(len(time))).astype(np.float32)


def checkpoint(directory: Path, size: str) -> Path:
    """The model, its extractor and a vocabulary of the real size, which no token of ends a text or is a time."""
    import transformers

    from transept.preprocess.audio.languages import LANGUAGES
    from transept.preprocess.text.build import byte_letters

    dim, layers, heads = SIZES[size]
    names = ("<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in [*LANGUAGES][:99]), "<|translate|>")
    names += ("<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
    words = {letter: place for place, letter in enumerate(byte_letters())}
    words |= {f"Ġw{place}": place for place in range(256, END)}
    tokenizer = transformers.WhisperTokenizer(words, [], extra_special_tokens=list(names[1:]), pad_token=names[0])
    tokenizer.add_tokens([f"<|{place * 0.02:.2f}|>" for place in range(1501)])
    torch.manual_seed(0)
    more = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in (("layers", layers), ("ffn_dim", 4 * dim))
    }
    more |= {f"{side}_attention_heads": heads for side in ("encoder", "decoder")} | {"begin_suppress_tokens": None}
    ids = {"pad_token_id": END, "bos_token_id": END, "eos_token_id": END, "decoder_start_token_id": END + 1}
    more["begin_suppress_tokens"] = None
    config = transformers.WhisperConfig(vocab_size=51865, d_model=dim, init_std=0.1, **more, **ids)
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(
        **ids,
        max_length=448,
        suppress_tokens=[END, *range(END + 1, 51865)],
        no_timestamps_token_id=50363,
        is_multilingual=True,
        lang_to_id={f"<|{code}|>": END + 2 + place for place, code in enumerate([*LANGUAGES][:99])},
        task_to_id={"translate": 50358, "transcribe": 50359},
        alignment_heads=[[layers - 1, 0]],
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    transformers.WhisperFeatureExtractor().save_pretrained(directory)
    return directory


SETTINGS = {"language": "en", "task": "transcribe", "num_beams": 1, "do_sample": False, "max_new_tokens": TOKENS}


def _pipeline(package: str, path: Path, threads: int, tokens: int) -> Callable[[], Any]:
    """A minute to text by our pipeline or by the reference's: they take the same arguments."""
    torch.set_num_threads(threads)
    module = importlib.import_module(package)
    pipe = module.pipeline("automatic-speech-recognition", model=str(path), device="cpu")
    item = {"array": sound(2 * WINDOW), "sampling_rate": RATE}
    how = {"chunk_length_s": WINDOW, "stride_length_s": 0}  # each batches as it does by itself
    return lambda: pipe(dict(item), generate_kwargs=SETTINGS | {"max_new_tokens": tokens}, **how)["text"]


def _ctranslate2(path: Path, threads: int, tokens: int) -> Callable[[], Any]:
    import ctranslate2

    from transept import AutoFeatureExtractor, AutoTokenizer

    target = Path(tempfile.mkdtemp()) / "model"
    ctranslate2.converters.TransformersConverter(str(path)).convert(str(target))
    model = ctranslate2.models.Whisper(str(target), compute_type="float32", intra_threads=threads, inter_threads=1)
    extractor, tokenizer = AutoFeatureExtractor.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    start = [END + 1, END + 2, 50359, 50363]
    samples = sound(2 * WINDOW)
    settings: dict[str, Any] = {"beam_size": 1, "sampling_topk": 1, "suppress_blank": False}
    settings["max_length"] = 2 * tokens  # half of it is for the prompt
    settings["suppress_tokens"] = [END, *range(END + 1, 51865)]

    def run() -> Any:
        halves = [samples[: WINDOW * RATE], samples[WINDOW * RATE :]]
        features = extractor(halves, sampling_rate=RATE, return_tensors="np")["input_features"]
        found = model.generate(ctranslate2.StorageView.from_array(np.ascontiguousarray(features)), [start] * 2, **settings)
        return "".join(tokenizer.decode(each.sequences_ids[0]) for each in found)

    return run


def _features(package: str, name: str, threads: int) -> Callable[[], Any]:
    torch.set_num_threads(threads)
    extractor = getattr(importlib.import_module(package), name)()
    clips = [sound(2 + place % 9, place) for place in range(100)]
    wanted = extractor.model_input_names[0]
    return lambda: [extractor(clip, sampling_rate=RATE, return_tensors="np")[wanted].shape for clip in clips]


def transcripts(size: str, threads: int, rounds: int, tokens: int, read: float) -> dict[str, Any]:
    """Seconds, ratios and how much of the memory's speed is used, for one size."""
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint(Path(folder), size)
        contenders: dict[str, Isolated] = {
            name: Isolated(_pipeline, name, path, threads, tokens) for name in ("transept", "transformers")
        }
        if importlib.util.find_spec("ctranslate2") is not None:
            contenders["ctranslate2"] = Isolated(_ctranslate2, path, threads, tokens)
        try:
            found = interleaved(contenders, rounds)
            words = {name: len(contenders[name].answer().split()) for name in found}
        finally:
            for contender in contenders.values():
                contender.close()
    dim, layers, _ = SIZES[size]
    weights = 4 * (layers * (4 * dim * dim + 2 * dim * dim + 8 * dim * dim) + 51865 * dim)
    limit = tokens * weights / read  # both windows are written side by side
    ours = found["transept"]
    rows = [["Whisper " + size, "seconds", "words", "ours is faster by", "at least"]]
    for name, timing in found.items():
        floor = "" if name == "transept" else f"{FLOORS[name]:.2f}"
        rows.append([name, f"{timing.median:.3f}", str(words[name]), f"{ours.faster_than(timing):.2f}", floor])
    print(table(rows))
    print(f"reading the decoder's weights for {tokens} steps takes {limit:.3f} s at least\n")
    return {name: timing.seconds for name, timing in found.items()} | {"limit": limit}


def features(threads: int, rounds: int) -> dict[str, Any]:
    rows, results = [["100 clips to features", "seconds", "the reference's", "ours is faster by", "at least"]], {}
    for name, floor in FEATURES.items():
        contenders = {package: Isolated(_features, package, name, threads) for package in ("transept", "transformers")}
        try:
            found = interleaved(contenders, rounds)
        finally:
            for contender in contenders.values():
                contender.close()
        ours, theirs = found["transept"], found["transformers"]
        rows.append([name, f"{ours.median:.3f}", f"{theirs.median:.3f}", f"{ours.faster_than(theirs):.2f}", f"{floor:.2f}"])
        results[name] = {package: timing.seconds for package, timing in found.items()}
    print(table(rows))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each window")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=[*SIZES])
    args = parser.parse_args()
    found, read = machine(args.threads), bandwidth()
    print(f"{read / 1e9:,.1f} GB/s from memory\n")
    found |= {size: transcripts(size, args.threads, args.rounds, args.tokens, read) for size in args.sizes}
    found["features"] = features(args.threads, args.rounds)
    print(f"\nkept in {write('speech', found | {'bytes': read})}")


if __name__ == "__main__":
    main()
