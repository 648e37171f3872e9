"""Loading holds the parameters once: the peak of a process is at most 1.1 times their bytes above what it had before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from transept.checkpoint.store import save_checkpoint
from transept.models.bert import BertForMaskedLM
from transept.models.gpt2 import GPT2Config, GPT2LMHeadModel

from .small import config

# Every case is loaded by a child of its own, which begins with what its parent has imported.
MEASURE = """
import os, sys, torch
from transept.models.bert import BertForMaskedLM
from transept.models.gpt2 import GPT2LMHeadModel

torch.set_num_threads(1)

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

def measure(kind, directory, dtype):
    cls = {"bert": BertForMaskedLM, "gpt2": GPT2LMHeadModel}[kind]
    cls.from_pretrained(f"{directory}/small", dtype=dtype)
    before = peak()
    model = cls.from_pretrained(f"{directory}/large", dtype=dtype)
    loading = peak() - before
    for parameter in model.parameters():
        parameter.flatten()[:: 4096 // parameter.element_size()].float().sum()
    size = sum(parameter.nbytes for parameter in model.parameters())
    print(loading, peak() - before, size, model.dtype, flush=True)

for case in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        measure(*case.split(","))
        os._exit(0)
    os.waitpid(child, 0)
"""
CASES = [
    ("bert", torch.float32, "auto", "50GB"),  # mapped
    ("bert", torch.bfloat16, "float32", "100MB"),  # converted, from several files
    ("bert", torch.float32, "bfloat16", "50GB"),
    ("gpt2", torch.float32, "auto", "50GB"),  # stored transposed and fused
]


def write(model: BertForMaskedLM | GPT2LMHeadModel, directory: Path, dtype: torch.dtype, shard: str) -> None:
    state = {name: torch.ones(tensor.shape, dtype=dtype, device="cpu") for name, tensor in model.state_dict().items()}
    stored = model.checkpoint_names().keys.save(
        {name: tensor for name, tensor in state.items() if name not in model.checkpoint_names().tied}
    )
    save_checkpoint(stored, {"config.json": model.config.to_json_string()}, directory, max_shard_size=shard)


def make(directory: Path, kind: str, dtype: torch.dtype, shard: str) -> None:
    """A small checkpoint and one of 60 million parameters."""
    sizes = {"vocab_size": 22_500, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 16}
    tiny = sizes | {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1}
    with torch.device("meta"):
        for name, given in (("small", tiny), ("large", sizes)):
            if kind == "bert":
                model: Any = BertForMaskedLM(config(**given, intermediate_size=4 * given["hidden_size"]))
            else:
                model = GPT2LMHeadModel(GPT2Config(**given))
            model.config.dtype = str(dtype).removeprefix("torch.")
            write(model, directory / name, dtype, shard)


def test_loading_holds_the_parameters_once(tmp_path: Path) -> None:
    arguments = []
    for index, (kind, stored, wanted, shard) in enumerate(CASES):
        make(tmp_path / str(index), kind, stored, shard)
        arguments.append(f"{kind},{tmp_path / str(index)},{wanted}")
    out = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True).stdout
    for (kind, stored, wanted, _), line in zip(CASES, out.splitlines(), strict=True):
        loading, touched, size, dtype = line.split()
        assert dtype == f"torch.{wanted}" if wanted != "auto" else str(stored)
        assert int(size) > (100e6 if wanted == "bfloat16" else 200e6)
        shares = int(loading) / int(size), int(touched) / int(size)
        print(f"{kind} {stored} -> {wanted}: {shares[0]:.3f} of the parameters' bytes, {shares[1]:.3f} when all are touched")
        assert shares[0] <= shares[1] <= 1.1
        if (kind, stored, wanted) == CASES[0][:3]:
            assert shares[0] < 0.1  # mapped, not read
