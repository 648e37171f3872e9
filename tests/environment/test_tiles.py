"""Matrix tiles that are announced and end a process at the first one: found out by a child, and done without.

Code that is no instruction (`ud2`) stands for a tile instruction of such a processor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from transept.environment import tiles

TRAP = "0f0b"
# Goes on to the instructions where the system grants no tiles, as none does whose processor has none.
GRANTED = tiles.CHILD.replace('sys.exit("not granted")', "pass")
X86 = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.uname().machine != "x86_64",
    reason="tiles of matrices are those of x86 processors",
)


@pytest.fixture
def announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor that announces tiles, whose first instruction is no instruction; nothing else is told of it."""
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu avx2 amx_bf16 amx_tile amx_int8\n")
    monkeypatch.setattr(tiles, "CPU_INFO", info)
    monkeypatch.setattr(tiles, "CODE", TRAP)
    monkeypatch.setattr(tiles, "CHILD", GRANTED)
    for cached in (tiles._announced, tiles._tried, tiles._tell):
        cached.cache_clear()
    yield
    for cached in (tiles._announced, tiles._tried, tiles._tell):
        cached.cache_clear()


@X86
@pytest.mark.usefixtures("announced")
def test_a_child_finds_out_that_tiles_trap() -> None:
    assert tiles.trap()


@X86
def test_a_processor_that_announces_none_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("flags : fpu avx2\n")
    monkeypatch.setattr(tiles, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(tiles, "CODE", TRAP)
    tiles._announced.cache_clear()
    try:
        assert not tiles.trap()
    finally:
        tiles._announced.cache_clear()


PROGRAM = """
import sys
from pathlib import Path
from transept.environment import tiles
tiles.CPU_INFO, tiles.CODE, tiles.CHILD = Path(sys.argv[1]), *sys.argv[2:]
import torch
import transept
from transept.quantized.eight_bits import has_matrix_units
from transept.adapt.quantize import quantize
config = transept.BertConfig(vocab_size=60, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128)
ids = torch.arange(5, 45).view(4, 10)
model = transept.BertForSequenceClassification(config).eval()
model.bfloat16()(ids)
quantize(transept.BertForSequenceClassification(config).eval())(ids)
print("matrix units:", has_matrix_units())
from transept.cli.installation import checks
print("doctor:", [check for check in checks() if "tiles" in str(check)])
"""


@X86
def test_products_are_made_without_tiles_that_trap(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("flags : fpu avx2 amx_tile\n")
    left_out = {name for library in tiles._LIBRARIES for name in library.variables}
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | {"ONEDNN_VERBOSE": "1"}
    command = [sys.executable, "-c", PROGRAM, str(info), TRAP, GRANTED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    made = [line for line in done.stdout.splitlines() if line.startswith("onednn_verbose") and ",exec," in line]
    assert not [line for line in made if "amx" in line]
    assert "matrix units: False" in done.stdout
    assert "the first one ends a process" in done.stdout.partition("doctor:")[2]
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert made
