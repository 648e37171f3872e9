"""Image and sound preprocessing against the reference: ``python -m benchmarks.media``.

Photographs are cut out of the pictures that scikit-image and scikit-learn carry (and of ``../shared/data`` where that
is there), by a fixed seed, and saved as JPEG. Sounds are synthesised. Ours and the reference take turns; the table gives
medians and the ratio, and ``benchmarks/results/media.json`` holds every time.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from PIL import Image
from skimage import data as skimage_data
from sklearn.datasets import load_sample_images

from benchmarks.measure import interleaved, table, write
from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor
from transept.preprocess.image.vit import ViTImageProcessor

warnings.simplefilter("ignore")  # of the reference, about torchvision
logging.disable(logging.WARNING)

import transformers  # noqa: E402
from transformers.audio_utils import load_audio  # noqa: E402
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil  # noqa: E402

SHARED = Path(__file__).resolve().parents[2] / "shared/data/images"
IMAGES, CLIPS, RATE = 200, 100, 16000


def pictures() -> list[Image.Image]:
    """Real pictures to cut from."""
    found = [skimage_data.astronaut(), skimage_data.coffee(), skimage_data.chelsea(), skimage_data.rocket()]
    found += load_sample_images().images
    files = [SHARED / "darknet/dog.jpg", SHARED / "coco/000000039769.png", SHARED / "exif/Landscape_1.jpg"]
    return [Image.fromarray(array) for array in found] + [Image.open(path).convert("RGB") for path in files if path.is_file()]


def photographs(folder: Path, count: int = IMAGES) -> list[str]:
    """Paths of so many JPEG files with edges of 300 to 1000 pixels."""
    rng, sources, paths = np.random.default_rng(0), pictures(), []
    for index in range(count):
        source = sources[index % len(sources)]
        share = rng.uniform(0.6, 1.0)
        width, height = int(source.width * share), int(source.height * share)
        left, top = rng.integers(0, source.width - width + 1), rng.integers(0, source.height - height + 1)
        edges = tuple(int(edge) for edge in rng.integers(300, 1001, 2))
        picture = source.crop((left, top, left + width, top + height)).resize(edges, Image.Resampling.BICUBIC)
        paths.append(str(folder / f"{index:03}.jpg"))
        picture.save(paths[-1], quality=90)
    return paths


def clips() -> list[np.ndarray]:
    """100 sounds of 1 to 15 seconds: gliding tones with noise."""
    rng, found = np.random.default_rng(1), []
    for _ in range(CLIPS):
        seconds = np.arange(int(rng.integers(RATE, 15 * RATE))) / RATE
        tone = np.sin(2 * np.pi * (rng.uniform(80, 400) + 40 * seconds) * seconds)
        found.append((0.3 * tone + 0.05 * rng.standard_normal(seconds.size)).astype(np.float32))
    return found


def recordings(folder: Path, sounds: list[np.ndarray]) -> list[str]:
    """The same as files, in turn WAV at the model's rate, and FLAC and OGG in stereo at 44.1 kHz."""
    paths = []
    for index, sound in enumerate(sounds):
        ending = ("wav", "flac", "ogg")[index % 3]
        paths.append(str(folder / f"{index:03}.{ending}"))
        if ending == "wav":
            soundfile.write(paths[-1], sound, RATE)
        else:
            soundfile.write(paths[-1], np.stack([sound, sound[::-1]], axis=1), 44100)
    return paths


def in_batches(function: Callable[[list[Any]], Any], items: list[Any], size: int) -> Callable[[], None]:
    """What is measured: all items, ``size`` at a time, no result kept."""

    def run() -> None:
        for start in range(0, len(items), size):
            function(items[start : start + size])

    return run


def cases(folder: Path) -> dict[str, dict[str, Callable[[], None]]]:
    """Rows of the table: name -> (who -> what to run)."""
    files, ours = photographs(folder), ViTImageProcessor()
    opened = [np.asarray(Image.open(path)) for path in files]
    images = [Image.fromarray(array) for array in opened]
    processors = {"ours": ours, "reference (pil)": ViTImageProcessorPil()}
    if transformers.utils.is_torchvision_available():
        processors["reference (torchvision)"] = transformers.ViTImageProcessor()
    rows: dict[str, dict[str, Callable[[], None]]] = {}
    for name, inputs, size in (
        ("200 photographs, JPEG files, batches of 32", files, 32),
        ("200 photographs, PIL images, batches of 32", images, 32),
        ("200 photographs, PIL images, one by one", images, 1),
        ("200 photographs, arrays, batches of 32", opened, 32),
    ):
        rows[name] = {
            who: in_batches(lambda batch, p=processor: p(batch, return_tensors="pt"), inputs, size)
            for who, processor in processors.items()
        }
    return rows | audio_cases(folder)


def audio_cases(folder: Path) -> dict[str, dict[str, Callable[[], None]]]:
    """The rows about sound."""
    sounds = clips()
    files = recordings(folder, sounds)
    ours, peer = Wav2Vec2FeatureExtractor(), transformers.Wav2Vec2FeatureExtractor()
    options = {"padding": True, "return_tensors": "pt", "sampling_rate": RATE}
    rows = {}
    for size in (8, 1):
        rows[f"100 clips, arrays, {f'batches of {size}' if size > 1 else 'one by one'}"] = {
            "ours": in_batches(lambda batch: ours(batch, **options), sounds, size),
            "reference": in_batches(lambda batch: peer(batch, **options), sounds, size),
        }
    rows["100 clips, WAV, FLAC and OGG files, batches of 8"] = {
        "ours": in_batches(lambda batch: ours(batch, **options), files, 8),
        "reference": in_batches(lambda batch: peer([load_audio(path, RATE) for path in batch], **options), files, 8),
    }
    return rows


def main() -> None:
    """Print the table and write the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (default 7)")
    parser.add_argument("--threads", type=int, default=2, help="threads that torch may use (default 2)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows, results = [["", "ours, ms", "peer, ms", "ratio", "peer"]], {}
    with tempfile.TemporaryDirectory() as folder:
        for name, runs in cases(Path(folder)).items():
            times = interleaved(runs, arguments.rounds)
            ours = times["ours"]
            results[name] = {who: found.seconds for who, found in times.items()}
            for who in list(runs)[1:]:
                ratio = f"{ours.faster_than(times[who]):.2f} x"
                rows.append([name, f"{1e3 * ours.median:.0f}", f"{1e3 * times[who].median:.0f}", ratio, who])
    print(table(rows))
    versions = {"transformers": transformers.__version__, "pillow": Image.__version__, "cores": os.cpu_count()}
    write("media", {"versions": versions, "seconds": results})


if __name__ == "__main__":
    main()
