"""Models of pictures on the CPU, beside the reference: ``python -m benchmarks.vision``.

Models have the sizes of published ones and random weights, which take as long. Photographs come as files; answers come out.
Every contender has a process of its own. The share of the machine's ceiling counts the products and convolutions of the model.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .measure import Isolated, interleaved, machine, table, write
from .media import photographs


def detector(folder: str) -> None:
    """A checkpoint of the size of detr-resnet-50."""
    import transept

    maps = {"model_type": "resnet", "out_features": ["stage4"]}
    config = transept.DetrConfig(backbone_config=maps, use_timm_backbone=False, num_labels=91)
    transept.DetrForObjectDetection(config).save_pretrained(folder)
    transept.DetrImageProcessor().save_pretrained(folder)


def segmenter(folder: str) -> None:
    """A checkpoint of the size of segformer-b0-finetuned-ade-512-512."""
    import transept

    config = transept.SegformerConfig(num_labels=150, initializer_range=0.2)
    transept.SegformerForSemanticSegmentation(config).save_pretrained(folder)
    transept.SegformerImageProcessor().save_pretrained(folder)


# Name -> its task, its class, what makes it, the size of a batch for the model alone, and how many photographs.
MODELS: dict[str, tuple[str, str, Callable[[str], None], tuple[int, ...], int]] = {
    "DETR-ResNet-50": ("object-detection", "DetrForObjectDetection", detector, (1, 3, 800, 1066), 4),
    "Segformer-B0": ("image-segmentation", "SegformerForSemanticSegmentation", segmenter, (4, 3, 512, 512), 12),
}


def ours_of_files(task: str, folder: str, files: list[str], threads: int) -> Callable[[], Any]:
    import transept

    torch.set_num_threads(threads)
    pipe = transept.pipeline(task, model=folder)
    return lambda: len(pipe(files))


def theirs_of_files(task: str, folder: str, files: list[str], threads: int) -> Callable[[], Any]:
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    pipe = transformers.pipeline(task, model=folder, device="cpu")
    return lambda: len([pipe(file) for file in files])  # one by one, which is its fastest on a CPU


def model_alone(library: str, kind: str, folder: str, size: tuple[int, ...], threads: int, packed: bool) -> Callable[[], Any]:
    import importlib

    torch.set_num_threads(threads)
    model = getattr(importlib.import_module(library), kind).from_pretrained(folder).eval()
    if packed:
        from transept.adapt.pack import pack

        model = pack(model)
    pixels = torch.randn(size, generator=torch.Generator().manual_seed(0))

    def run() -> Any:
        with torch.inference_mode():
            return model(pixels).logits.numpy()

    return run


def operations(kind: str, folder: str, size: tuple[int, ...]) -> float:
    """Floating-point operations of a forward pass, those of the reference's formulation."""
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    model = getattr(transformers, kind).from_pretrained(folder).eval()
    counter = FlopCounterMode(display=False)
    with counter, torch.inference_mode():
        model(torch.zeros(size))
    return float(counter.get_total_flops())


def compare(
    title: str, contenders: dict[str, Isolated], rounds: int, work: float = 0.0, ceiling: float = 1.0
) -> dict[str, Any]:
    """Run contenders in turn; the last one is the peer that the others are compared with."""
    try:
        times = interleaved(contenders, rounds)
        answers = {name: contenders[name].answer() for name in times}
    finally:
        for contender in contenders.values():
            contender.close()
    peer = times[list(contenders)[-1]]
    rows = [[title, "ms", "times as fast", "share of the ceiling"]]
    for name, timing in times.items():
        share = f"{work / timing.median / ceiling:.0%}" if work else ""
        rows.append([name, f"{1e3 * timing.median:.0f}", f"{timing.faster_than(peer):.2f}", share])
    print(table(rows), "\n")
    ratios = {name: timing.faster_than(peer) for name, timing in times.items()}
    return {"seconds": {name: timing.seconds for name, timing in times.items()}, "faster_by": ratios, "answers": answers}


def model(name: str, rounds: int, limits: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One of ``MODELS``: from files to answers, and the model alone."""
    task, kind, make, size, count = MODELS[name]
    threads, directory = limits["threads"], str(folder / name)
    make(directory)
    files = photographs(folder, count)
    of_files = {"ours": ours_of_files, "reference": theirs_of_files}
    contenders = {who: Isolated(start, task, directory, files, threads) for who, start in of_files.items()}
    whole = compare(f"{name}, {count} files to answers", contenders, rounds)
    work = operations(kind, directory, size)
    alone = {
        "ours, as pipelines load it": ("transept", True),
        "ours": ("transept", False),
        "reference": ("transformers", False),
    }
    contenders = {
        who: Isolated(model_alone, library, kind, directory, size, threads, packed) for who, (library, packed) in alone.items()
    }
    found = compare(f"{name}, the model alone, {size}", contenders, rounds, work, limits["operations"])
    logits = found.pop("answers")
    error = max(float(abs(each - logits["reference"]).max()) for each in logits.values())
    print(f"the largest difference of logits is {error:.1e}, of numbers up to {float(abs(logits['reference']).max()):.1f}\n")
    return {"files": whole, "alone": found, "error": error}


def comparer(folder: str) -> None:
    """A checkpoint of the size of clip-vit-base-patch32."""
    import transept

    transept.CLIPModel(transept.CLIPConfig()).save_pretrained(folder)
    transept.CLIPImageProcessor().save_pretrained(folder)


def our_vectors(folder: str, files: list[str], threads: int) -> Callable[[], Any]:
    import transept

    torch.set_num_threads(threads)
    pipe = transept.pipeline("image-embedding", model=folder)
    return lambda: pipe(files)


def their_vectors(folder: str, files: list[str], threads: int) -> Callable[[], Any]:
    import transformers
    from PIL import Image

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    processor = transformers.CLIPImageProcessorPil.from_pretrained(folder)

    def run() -> Any:
        found = []
        with torch.inference_mode():
            for start in range(0, len(files), 20):
                batch = processor([Image.open(file) for file in files[start : start + 20]], return_tensors="pt")
                found.append(model.get_image_features(**batch).pooler_output)
        return torch.cat(found).numpy()

    return run


def vectors(rounds: int, limits: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Photographs to CLIP's vectors."""
    directory, files, threads = str(folder / "clip"), photographs(folder, 200), limits["threads"]
    comparer(directory)
    starts = {"ours": our_vectors, "reference": their_vectors}
    contenders = {who: Isolated(start, directory, files, threads) for who, start in starts.items()}
    found = compare(f"CLIP-ViT-B/32, {len(files)} files to vectors", contenders, rounds)
    ours, theirs = (value / np.linalg.norm(value, axis=1, keepdims=True) for value in found.pop("answers").values())
    print(f"the least cosine of both is {float((ours * theirs).sum(1).min()):.6f}\n")
    return found


def patches(library: str, name: str, files: list[str], threads: int) -> Callable[[], Any]:
    import importlib

    from PIL import Image

    torch.set_num_threads(threads)
    processor = getattr(importlib.import_module(library), name)()
    return lambda: processor([Image.open(file) for file in files], return_tensors="np")["pixel_values"].sum(dtype=np.float64)


def tiles(rounds: int, limits: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Photographs to Qwen2-VL's patches, without a model."""
    files, threads = photographs(folder, 50), limits["threads"]
    names = {"ours": ("transept", "Qwen2VLImageProcessor"), "reference": ("transformers", "Qwen2VLImageProcessorPil")}
    contenders = {who: Isolated(patches, *place, files, threads) for who, place in names.items()}
    return compare(f"Qwen2-VL, {len(files)} files to patches", contenders, rounds)


# What is measured, by name; a part takes rounds, the machine's limits and a folder to write to.
PARTS: dict[str, Callable[[int, dict[str, Any], Path], Any]] = {name: partial(model, name) for name in MODELS}
PARTS |= {"CLIP": vectors, "Qwen2-VL": tiles}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=list(PARTS), action="append")
    chosen = parser.parse_args()
    limits = machine(chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: PARTS[name](chosen.rounds, limits, Path(folder)) for name in chosen.only or PARTS}
    print("written to", write("vision", {"machine": limits} | found))


if __name__ == "__main__":
    main()
