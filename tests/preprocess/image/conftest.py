"""Pictures for the tests: made here, and real ones where they are."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from PIL import Image
from skimage import data as skimage_data

SHARED = Path(__file__).resolve().parents[4] / "shared/data/images"


@pytest.fixture(scope="session", autouse=True)
def _quiet_reference():
    logging.getLogger("transformers").setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def real_images() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"real photographs are missing: {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def picture_files(tmp_path_factory) -> dict[str, Path]:
    """One picture in many formats, modes, orientations and shapes."""
    folder = tmp_path_factory.mktemp("pictures")
    astronaut = Image.fromarray(skimage_data.astronaut()).resize((160, 120))
    alpha = astronaut.convert("RGBA")
    alpha.putalpha(astronaut.convert("L"))
    made = {
        "rgb.png": astronaut,
        "rgb.jpg": astronaut,
        "rgb.webp": astronaut,
        "rgb.bmp": astronaut,
        "rgb.tiff": astronaut,
        "gray.png": astronaut.convert("L"),
        "gray.jpg": astronaut.convert("L"),
        "gray_alpha.png": alpha.convert("LA"),
        "alpha.png": alpha,
        "alpha.webp": alpha,
        "bilevel.png": astronaut.convert("1"),
        "palette.png": astronaut.quantize(32),
        "palette.gif": astronaut.quantize(64),
        "cmyk.jpg": astronaut.convert("CMYK"),
        "cmyk.tiff": astronaut.convert("CMYK"),
        "pixel.png": Image.new("RGB", (1, 1), (10, 200, 30)),
        "line.png": astronaut.resize((1, 10_000)),
        "row.png": astronaut.resize((10_000, 1)),
        "odd.png": astronaut.resize((223, 101)),
    }
    for name, image in made.items():
        image.save(folder / name)
    for orientation in range(2, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        astronaut.resize((90, 60)).save(folder / f"turned_{orientation}.jpg", exif=exif)
    return {path.name: path for path in sorted(folder.iterdir())}
