"""Killing a process while it saves, at random times: the directory holds the old model or the new one, never a mixture."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transept.models.bert import BertModel

from .small import config, equal

# A child saves models over each other: of two sizes, in one file and in shards, so that configs and files differ. It is
# killed, and what is there is loaded; again and again.
KILLING = """
import os, random, signal, sys, time, torch
from transept.storage import directory
from transept.errors import TranseptError
from transept.models.bert import BertModel

torch.set_num_threads(1)
kind, kills, target, *given = sys.argv[1:]
if kind == "settle":
    directory._exchange = lambda one, other: False
models = [BertModel.from_pretrained(path) for path in given]
states = [model.state_dict() for model in models]
noise = random.Random(7)

def same(state, other):
    return state.keys() == other.keys() and all(
        state[name].shape == other[name].shape and torch.equal(state[name], other[name]) for name in state
    )

def save_all():
    for model, shard in zip(models, ("50GB", 40_000, 60_000), strict=True):
        model.save_pretrained(target, max_shard_size=shard)

def found():
    state = BertModel.from_pretrained(target).state_dict()
    which = [index for index, other in enumerate(states) if same(state, other)]
    return str(which[0]) if which else "mixture"

save_all()
start = time.perf_counter()
save_all()
longest = 2 * (time.perf_counter() - start)
outcomes, tries = set(), 0
while tries < int(kills) or (len(outcomes) < 2 and tries < 3 * int(kills)):  # a machine that got busy needs more time
    tries, longest = tries + 1, longest * (1 if tries < int(kills) else 1.5)
    child = os.fork()
    if child == 0:
        while True:
            save_all()
    time.sleep(noise.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        outcome = found()
    except TranseptError as error:
        outcome = f"unreadable {type(error).__name__} {str(error).splitlines()[0]}"
    outcomes.add(outcome.split()[0])
    print(outcome)
"""


@pytest.mark.parametrize(("kind", "kills"), [("swap", 30), ("settle", 15)])
def test_a_killed_save_leaves_a_whole_model(tmp_path: Path, kind: str, kills: int) -> None:
    """With the swap of directories always whole; file by file (where there is no swap) at worst unreadable, never mixed."""
    models, given = [], []
    for index, size in enumerate((32, 48, 32)):
        torch.manual_seed(index)
        models.append(BertModel(config(hidden_size=size, num_hidden_layers=2)))
        given.append(str(tmp_path / f"given{index}"))
        models[-1].save_pretrained(given[-1])
    target = tmp_path / "model"
    models[0].save_pretrained(target)
    (target / "notes.txt").write_text("mine")
    command = [sys.executable, "-c", KILLING, kind, str(kills), str(target), *given]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(out) >= kills
    seen = collections.Counter(line.split()[0] for line in out)
    assert set(seen) <= ({"0", "1", "2"} if kind == "swap" else {"0", "1", "2", "unreadable"}), out
    assert len(seen) > 1
    assert (target / "notes.txt").read_text() == "mine"
    models[0].save_pretrained(target)
    assert equal(BertModel.from_pretrained(target), models[0])
    assert not list(tmp_path.glob(".*"))  # what the killed processes left
