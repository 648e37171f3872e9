"""Hostile weights: headers that lie, bomb or overlap, pickles in their place, files that are none."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoint.small import entry, raw
from tests.hostile.watch import refused
from tests.pace import slowness
from transept.checkpoint import store
from transept.checkpoint.store import MAX_HEADER_BYTES, MAX_TENSORS, TensorStore, check_header
from transept.errors import CheckpointError, FileError, FormatError, TranseptWarning
from transept.models.bert import BertModel

FLOAT = b"\0\0\0\0"


def spoil(model: Path, data: bytes) -> Callable[[], Any]:
    (model / "model.safetensors").write_bytes(data)
    return lambda: BertModel.from_pretrained(model)


HEADERS: dict[str, bytes] = {
    "empty file": b"",
    "seven bytes": b"\0" * 7,
    "no header": b"\0" * 8,
    "header longer than the file": raw({}, length=100),
    "header of 2^63 bytes": raw({}, length=2**63),
    "header of 2^64 - 1 bytes": raw({}, length=2**64 - 1),
    "header ends in the middle": raw(b'{"x": {"dtype": "F32", "sha'),
    "not UTF-8": raw(b'{"\xff": 1}'),
    "no JSON": raw(b"hello"),
    "a list": raw([]),
    "a number": raw(7),
    "nested": raw(b"[" * 100_000),
    "nested objects": raw(b'{"a":' * 100_000),
    "a name twice": raw(
        b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', FLOAT
    ),
    "a field twice": raw(b'{"x":{"dtype":"F32","shape":[1],"shape":[2],"data_offsets":[0,4]}}', FLOAT),
    "metadata twice": raw(b'{"__metadata__":{},"__metadata__":{}}'),
    "no offsets": raw({"x": {"dtype": "F32", "shape": [1]}}, FLOAT),
    "one offset": raw({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, FLOAT),
    "three offsets": raw({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]}}, FLOAT),
    "offsets that are text": raw({"x": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}}, FLOAT),
    "offsets that are fractions": raw({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0.0, 4.0]}}, FLOAT),
    "offsets that are booleans": raw({"x": {"dtype": "U8", "shape": [1], "data_offsets": [False, True]}}, b"\0"),
    "a negative offset": raw({"x": entry(-4, 0, [1])}, FLOAT),
    "offsets backwards": raw({"x": entry(4, 0, [1])}, FLOAT),
    "beyond the file": raw({"x": entry(0, 8, [2])}, FLOAT),
    "far beyond the file": raw({"x": entry(0, 2**62, [2**60])}, FLOAT),
    "an offset of 2^64": raw({"x": entry(2**64, 2**64 + 4, [1])}, FLOAT),
    "an offset of 60 digits": raw(b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,' + b"9" * 60 + b"]}}", FLOAT),
    "overlapping": raw({"x": entry(0, 4, [1]), "y": entry(2, 6, [1])}, FLOAT * 2),
    "twice the same bytes": raw({"x": entry(0, 4, [1]), "y": entry(0, 4, [1])}, FLOAT),
    "a hole": raw({"x": entry(0, 4, [1]), "y": entry(8, 12, [1])}, FLOAT * 3),
    "not from the start": raw({"x": entry(4, 8, [1])}, FLOAT * 2),
    "bytes behind the end": raw({"x": entry(0, 4, [1])}, FLOAT * 2),
    "too few bytes for the shape": raw({"x": entry(0, 4, [2])}, FLOAT),
    "too many bytes for the shape": raw({"x": entry(0, 8, [1])}, FLOAT * 2),
    "a shape that overflows": raw({"x": entry(0, 0, [2**33, 2**33])}),
    "a shape that overflows to fit": raw({"x": entry(0, 4, [2**62, 4, 1])}, FLOAT),
    "a shape with a zero that overflows": raw({"x": entry(0, 0, [2**62, 2**62, 0])}),
    "a negative shape": raw({"x": entry(0, 4, [-1])}, FLOAT),
    "a shape of text": raw({"x": {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}}, FLOAT),
    "a hundred dimensions": raw({"x": entry(0, 4, [1] * 100)}, FLOAT),
    "a hundred thousand dimensions": raw({"x": entry(0, 4, [1] * 100_000)}, FLOAT),
    "no such type": raw({"x": entry(0, 4, [1], "F33")}, FLOAT),
    "a type that is a number": raw({"x": {"dtype": 7, "shape": [1], "data_offsets": [0, 4]}}, FLOAT),
    "a field too many": raw({"x": entry(0, 4, [1]) | {"code": "evil"}}, FLOAT),
    "an entry that is a list": raw({"x": [0, 4]}, FLOAT),
    "an entry that is null": raw({"x": None}),
    "metadata of numbers": raw({"__metadata__": {"x": 7}}),
    "metadata that is a list": raw({"__metadata__": []}),
    "NaN": raw(b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', FLOAT),
    "half a character": raw(b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', FLOAT),
    "a git-lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1000\n",
    "a web page": b"<!DOCTYPE html><html><body>Please log in</body></html>",
    "GGUF": b"GGUF" + b"\3\0\0\0" + b"\xff" * 16,
    "noise": random.Random(0).randbytes(4096),
    "zeros": b"\0" * 4096,
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_file_that_lies_is_one_typed_error(model: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    error = refused(spoil(model, HEADERS[name]), model, monkeypatch)
    assert isinstance(error, FormatError)
    assert "model" in str(error)
    assert not isinstance(error, CheckpointError)
    assert error.path == str(model / "model.safetensors")


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (HEADERS["a git-lfs pointer"], "git lfs pull"),
        (HEADERS["a web page"], "web page"),
        (HEADERS["GGUF"], "GGUF"),
        (b"PK\x03\x04" + b"\0" * 100, "pickle"),
        (b"\x80\x02" + b"\0" * 5 + b"\x01" * 100, "pickle"),
        (raw({}, length=100), "truncated"),
    ],
)
def test_what_is_another_kind_of_file_is_called_by_its_name(
    model: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, hint: str
) -> None:
    assert hint in str(refused(spoil(model, data), model, monkeypatch).hint)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_truncated_file(model: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    data = (model / "model.safetensors").read_bytes()
    error = refused(spoil(model, data[: int(len(data) * share)]), model, monkeypatch)
    assert "truncated" in str(error)


# --- bombs -----------------------------------------------------------------------------------------------------------------

# Every file is opened by a child of its own, which begins with what its parent has imported.
MEASURE = """
import os, sys, time
from pathlib import Path
from transept.checkpoint.store import TensorStore
from transept.errors import TranseptError

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

def measure(path):
    before, start = peak(), time.process_time()
    try:
        TensorStore([Path(path)])
        how = "opened"
    except TranseptError as error:
        how = "refused"
    print(how, peak() - before, time.process_time() - start, flush=True)

for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        measure(path)
        os._exit(0)
    os.waitpid(child, 0)
"""


def bombs() -> Iterator[tuple[str, str, str]]:
    """What it is, what becomes of it, and its text; the last ones are the costliest that the limits let through."""
    entries = (f'"{index:020}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for index in range(800_000))
    yield "as in B11", "refused", f"{{{','.join(entries)}}}"
    entries = (f'"{index}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for index in range(MAX_TENSORS))
    yield "many tensors", "opened", f"{{{','.join(entries)}}}"
    yield "empty objects", "refused", '{"__metadata__":[' + "{}," * (MAX_HEADER_BYTES // 3 - 20) + "0]}"
    yield "a long name", "opened", '{"' + "x" * (MAX_HEADER_BYTES - 100) + '":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    yield "long metadata", "opened", '{"__metadata__":{"x":"' + "\\u00e9" * (MAX_HEADER_BYTES // 6 - 20) + '"}}'


def test_b11_header_bombs_cost_little(tmp_path: Path) -> None:
    """57 MB of header for 800,000 empty tensors cost the reference 3.3 s and 780 MB."""
    found = list(bombs())
    for index, (_, _, text) in enumerate(found):
        (tmp_path / f"{index}.safetensors").write_bytes(raw(text.encode()))
    assert (tmp_path / "0.safetensors").stat().st_size > 50e6
    command = [sys.executable, "-c", MEASURE, *(str(tmp_path / f"{index}.safetensors") for index in range(len(found)))]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for (bomb, expected, _), line in zip(found, out, strict=True):
        how, memory, seconds = line.split()
        print(f"{bomb}: {how}, {int(memory) / 2**20:.0f} MiB, {float(seconds):.2f} s")
        assert how == expected, bomb
        assert int(memory) < (64 if expected == "refused" else 192) * 2**20, bomb
        assert float(seconds) < 5 * slowness(), bomb


def test_cve_2026_27940_sizes_are_checked_before_anything_is_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header's own numbers (CVE-2025-53630, CVE-2026-27940, CVE-2026-33298, CVE-2026-7482) are never believed."""
    opened: list[Any] = []
    monkeypatch.setattr(store, "safe_open", lambda *arguments, **options: opened.append(arguments))
    path = tmp_path / "model.safetensors"
    for size in (2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 4, 2**64, 2**64 + 4, 2**80):
        for header in ({"x": entry(0, size, [size // 4])}, {"x": entry(size - 4, size, [1])}, {"x": entry(0, 4, [size, size])}):
            path.write_bytes(raw(header, b"\0" * 8))
            with pytest.raises(FormatError):
                check_header(path)
            with pytest.raises(FormatError):
                TensorStore([path])
    assert opened == []


def test_a_file_larger_than_memory_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of 2^46 bytes takes no space on the disk and has a valid header."""
    path, size = model / "model.safetensors", 2**46
    header = raw({"embeddings.word_embeddings.weight": entry(0, size, [size // 4])})
    with open(path, "wb") as file:
        file.write(header)
        try:
            file.truncate(len(header) + size)
        except OSError:  # a file system with smaller files
            file.truncate(len(header) + 2**42)
    assert isinstance(refused(lambda: BertModel.from_pretrained(model), model, monkeypatch), FileError | FormatError)
    path.unlink()


# --- pickles ---------------------------------------------------------------------------------------------------------------


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


PICKLES = [
    "pytorch_model.bin",
    "model.pkl",
    "training_args.bin",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
    "tf_model.h5",
]


def test_cve_2024_11392_pickles_beside_the_weights_are_never_opened(model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Pickles in side files: CVE-2023-6730, CVE-2023-7018, CVE-2024-3568, CVE-2024-11392 to 11394, CVE-2026-1839."""
    for name in PICKLES:
        torch.save({"x": Evil(tmp_path / "executed")}, model / name)
    monkeypatch.setattr(torch, "load", lambda *arguments, **options: pytest.fail("opened a pickle"))
    BertModel.from_pretrained(model)
    (model / "model.safetensors").unlink()
    with pytest.raises(FileError, match="leave use_safetensors out"):
        BertModel.from_pretrained(model, use_safetensors=True)
    assert not (tmp_path / "executed").exists()


def test_a_corrupt_file_is_never_replaced_by_a_pickle(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No silent downgrade: a failure is final, whatever else lies there."""
    torch.save({"x": Evil(tmp_path / "executed")}, model / "pytorch_model.bin")
    monkeypatch.setattr(torch, "load", lambda *arguments, **options: pytest.fail("opened a pickle"))
    for name in ("empty file", "noise", "a hole", "a git-lfs pointer"):
        refused(spoil(model, HEADERS[name]), model, monkeypatch)
    with pytest.raises(FormatError):
        BertModel.from_pretrained(model, use_safetensors=True)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("archive", [True, False])
def test_cve_2025_32434_a_planted_pickle_is_not_run_even_when_asked_for(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bool
) -> None:
    state = load_file(model / "model.safetensors") | {"planted": Evil(tmp_path / "executed")}
    torch.save(state, model / "pytorch_model.bin", _use_new_zipfile_serialization=archive)
    error = refused(lambda: BertModel.from_pretrained(model, use_safetensors=False), model, monkeypatch)
    assert isinstance(error, FormatError)
    (model / "model.safetensors").unlink()  # where nothing else is there, it is read without being asked for
    with pytest.raises(FormatError, match="holds more than weights"), pytest.warns(TranseptWarning, match="its pickle"):
        BertModel.from_pretrained(model)
    assert not (tmp_path / "executed").exists()


def test_cve_2026_24747_an_unsafe_pytorch_is_not_accepted() -> None:
    """`weights_only` itself was bypassed in PyTorch before 2.6 (CVE-2025-32434) and before 2.10 (CVE-2026-24747)."""
    document = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (torch_,) = (line for line in document["project"]["dependencies"] if line.startswith("torch>="))
    assert tuple(int(part) for part in torch_.removeprefix("torch>=").split(".")) >= (2, 10)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("archive", [True, False])
def test_a_truncated_pickle(model: Path, monkeypatch: pytest.MonkeyPatch, archive: bool, share: float) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin", _use_new_zipfile_serialization=archive)
    data = (model / "pytorch_model.bin").read_bytes()
    (model / "pytorch_model.bin").write_bytes(data[: int(len(data) * share)])
    refused(lambda: BertModel.from_pretrained(model, use_safetensors=False), model, monkeypatch)


def test_a_pickled_tensor_that_claims_more_than_it_holds(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = load_file(model / "model.safetensors")
    state["embeddings.word_embeddings.weight"] = torch.zeros(1, 1).expand(2**20, 2**20)
    torch.save(state, model / "pytorch_model.bin")
    error = refused(lambda: BertModel.from_pretrained(model, use_safetensors=False), model, monkeypatch)
    assert isinstance(error, CheckpointError)


# --- names and content -----------------------------------------------------------------------------------------------------


def test_names_of_tensors_reach_no_code(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["__class__.__init__", "..", "a.b." * 1000, "\x1b[2J", "\u202e", "x" * 100_000, "", ".", "embeddings..weight"]
    names += ["__metadata__x", "layers.99999999999999999999.x", "encoder.layer.-1.output.dense.weight", "training", "forward"]
    error = refused(spoil(model, raw({name: entry(0, 0, [0]) for name in names})), model, monkeypatch)
    assert isinstance(error, CheckpointError)
    assert set(error.unexpected) == set(names)
    assert str(error).isprintable() or "\n" in str(error)
    assert "\x1b" not in str(error)
    assert "\u202e" not in str(error)


def test_values_that_are_not_finite_are_loaded_as_they_are(model: Path) -> None:
    state = load_file(model / "model.safetensors")
    state["embeddings.LayerNorm.bias"] = torch.tensor([float("nan"), float("inf")] * 4)
    from tests.checkpoint.small import store as write

    write(model, state)
    bias = BertModel.from_pretrained(model).embed_norm.bias
    assert torch.equal(bias.view(torch.int32), state["embeddings.LayerNorm.bias"].view(torch.int32))


@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "link out", "loop"])
def test_what_stands_in_place_of_the_weights(model: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = model / "model.safetensors"
    os.rename(path, model.parent / "outside.safetensors")
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "link out":
            path.symlink_to("../outside.safetensors")
        case "loop":
            path.symlink_to("model.safetensors")
    assert isinstance(refused(lambda: BertModel.from_pretrained(model), model, monkeypatch), FileError | FormatError)


def test_reading_stays_inside_when_all_is_well(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.hostile.watch import watched

    with watched(model, monkeypatch) as seen:
        BertModel.from_pretrained(model)
        (model.parent / "secret.txt").read_text()
    assert [os.path.basename(event) for event in seen] == ["secret.txt"]  # the watch itself works
    assert json.loads((model / "config.json").read_text())
