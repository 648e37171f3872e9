"""Loading holds the parameters once: the peak of a process is at most 1.1 times their bytes above what it had before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transept.checkpoint.save import save_checkpoint
from transept.models.bert import BertForMaskedLM
from transept.models.gpt2 import GPT2Config, GPT2LMHeadModel

from .small import config

MEASURE = """
import sys, torch
from transept.models.bert import BertForMaskedLM
from transept.models.gpt2 import GPT2LMHeadModel

torch.set_num_threads(1)
kind, small, large, dtype = sys.argv[1:]
cls = {"bert": BertForMaskedLM, "gpt2": GPT2LMHeadModel}[kind]

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

cls.from_pretrained(small, dtype=dtype)
before = peak()
model = cls.from_pretrained(large, dtype=dtype)
print(peak() - before)
float(sum(parameter.flatten()[:: 4096 // parameter.element_size()].float().sum() for parameter in model.parameters()))
print(peak() - before, sum(parameter.nbytes for parameter in model.parameters()), model.dtype)
"""


def write(model: BertForMaskedLM | GPT2LMHeadModel, directory: Path, dtype: torch.dtype, shard: str) -> None:
    state = {name: torch.ones(tensor.shape, dtype=dtype) for name, tensor in model.state_dict().items()}
    stored = model.key_map().save({name: tensor for name, tensor in state.items() if name not in model.active_ties()})
    save_checkpoint(stored, {"config.json": model.config.to_json_string()}, directory, max_shard_size=shard)


@pytest.mark.parametrize(
    ("kind", "stored", "wanted", "shard"),
    [
        ("bert", torch.float32, "auto", "50GB"),  # mapped
        ("bert", torch.bfloat16, "float32", "100MB"),  # converted, from several files
        ("bert", torch.float32, "bfloat16", "50GB"),
        ("gpt2", torch.float32, "auto", "50GB"),  # stored transposed and fused
    ],
)
def test_loading_holds_the_parameters_once(tmp_path: Path, kind: str, stored: torch.dtype, wanted: str, shard: str) -> None:
    sizes = {"vocab_size": 30_000, "hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16}
    with torch.device("meta"):
        if kind == "bert":
            large = BertForMaskedLM(config(**sizes, intermediate_size=4096))
            small = BertForMaskedLM(config())
        else:
            large = GPT2LMHeadModel(GPT2Config(**sizes))
            small = GPT2LMHeadModel(GPT2Config(**sizes | {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1}))
    for model, name in ((small, "small"), (large, "large")):
        model.config.dtype = str(stored).removeprefix("torch.")
        write(model, tmp_path / name, stored, shard)
    command = [sys.executable, "-c", MEASURE, kind, str(tmp_path / "small"), str(tmp_path / "large"), wanted]
    loading, touched = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    peak, parameters, dtype = touched.split()
    assert dtype == f"torch.{wanted if wanted != 'auto' else str(stored).removeprefix('torch.')}"
    assert int(parameters) > (200e6 if wanted == "bfloat16" else 400e6)
    assert int(loading) <= int(peak) <= 1.1 * int(parameters)
    if stored == torch.float32 and wanted == "auto" and kind == "bert":
        assert int(loading) < 0.1 * int(parameters)  # mapped, not read
    print(
        f"{kind} {stored} -> {wanted}: loading {int(loading) / int(parameters):.3f}, touched {int(peak) / int(parameters):.3f}"
    )
