"""What happens to one of several processes, and what all of them say."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.thorough import in_turn
from tests.training.small import head, ours, quiet, rows
from transept import Trainer, TrainerCallback, TrainingArguments
from transept.parallel import processes
from transept.parallel.processes import join, naming_lost_processes
from transept.training.checkpoint.signals import Ended

from .ranks import Ranks

MADE = head("BertForSequenceClassification")


class At(TrainerCallback):
    """Does something in one process at the beginning of an update."""

    def __init__(self, step: int, rank: int, what: Any) -> None:
        self.step, self.rank, self.what = step, rank, what

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step and args.process_index == self.rank:
            self.what()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    signal.raise_signal(signal.SIGTERM)


def train(folder: str, what: Any, settings: dict[str, Any], who: int = 1) -> tuple[int, list[float]]:
    """A run of eight updates, in whose sixth something happens to a process; the updates, and the losses."""
    processes._ANSWERS_WITHIN = 3.0
    more = {"per_device_train_batch_size": 2, "max_steps": 8, "save_strategy": "steps", "save_steps": 4}
    arguments = TrainingArguments(**quiet(Path(folder), **(more | settings)))
    happens = [At(5, who, what)] if what is not None else []
    trainer = Trainer(ours(MADE), arguments, train_dataset=rows(MADE.rows, 24), callbacks=happens)
    try:
        trainer.train(resume_from_checkpoint=what is None or None)
    except Ended as ended:
        return ended.code, []
    return trainer.state.global_step, [each["loss"] for each in trainer.state.log_history if "loss" in each]


@pytest.mark.parametrize(
    "settings", in_turn([pytest.param({"fsdp": "full_shard"}, id="stage-3"), pytest.param({"pp_size": 2}, id="stages")], 1)
)
def test_a_process_that_dies_is_named_and_the_run_goes_on_bit_for_bit(
    settings: dict[str, Any], ranks: Ranks, tmp_path: Path
) -> None:
    began = time.monotonic()
    (went_well, (kind, message, _)), (other, _) = ranks.ask(2, train, str(tmp_path / "one"), die, settings)
    assert not went_well
    assert not other
    assert kind == "TrainingError"
    assert "process 1 of 2 ended or hangs, and process 0 cannot go on without." in message
    assert time.monotonic() - began < 100
    again = ranks.run(2, train, str(tmp_path / "one"), None, settings)[0]
    whole = ranks.run(2, train, str(tmp_path / "two"), time.monotonic, settings)[0]
    assert again == whole


@pytest.mark.parametrize(
    ("settings", "who"),
    [({}, 1), ({"fsdp": "full_shard"}, 0), ({"pp_size": 2}, 0), ({"pp_size": 2}, 1), ({"tp_size": 2}, 0), ({"tp_size": 2}, 1)],
    ids=["ddp-1", "stage-3-0", "stages-0", "stages-1", "tensors-0", "tensors-1"],
)
def test_a_signal_to_one_process_ends_all_at_the_same_update(
    settings: dict[str, Any], who: int, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks.run(2, train, str(tmp_path), stop, settings, who)
    assert found == [(143, []), (143, [])]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]


def lose() -> None:
    """Ask for a sum that process 1 takes no part in."""
    if join() == 0:
        with naming_lost_processes():
            dist.all_reduce(torch.ones(1))
    else:
        os._exit(3)


def test_who_is_lost_is_known_within_half_a_minute(ranks: Ranks) -> None:
    ranks.run(2, join)
    began = time.monotonic()
    answers = ranks.ask(2, lose)
    assert "process 1 of 2" in answers[0][1][1]
    assert time.monotonic() - began < 30


# The interpreter takes a while to end, and never gives its lock away before that without need.
ENDS = """
import sys, time
import torch
import torch.distributed as dist
from transept.parallel.processes import join

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

join()
slow = Slow()
sys.setswitchinterval(100)
for _ in range(50):
    dist.all_reduce(torch.ones(4))
"""


def test_a_program_that_ends_behind_a_sum_ends_well(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    shared |= {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ENDS]
    programs = [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE)
        for rank in ("0", "1")
    ]
    told = [program.communicate(timeout=120)[1].decode() for program in programs]
    assert [program.returncode for program in programs] == [0, 0], told


DIFFERENT = {
    "data": "the processes do not have the same data: process 1 has",
    "weights": "the processes do not have the same weights",
    "settings": "the processes do not have the same settings",
    "parameters": "the processes do not have the same parameters",
}


def begin_with_another(what: str, folder: str) -> None:
    other = join() == 1
    model = ours(MADE, seed=int(other and what == "weights"), **({"num_labels": 4} if other and what == "parameters" else {}))
    arguments = TrainingArguments(**quiet(Path(folder), learning_rate=2e-5 if other and what == "settings" else 1e-5))
    Trainer(model, arguments, train_dataset=rows(MADE.rows, 24, seed=int(other and what == "data"))).train()


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_process_with_something_else_is_refused_by_all(what: str, ranks: Ranks, tmp_path: Path) -> None:
    answers = ranks.ask(2, begin_with_another, what, str(tmp_path))
    for went_well, (kind, message, _) in answers:
        assert not went_well
        assert kind == "ConfigError"
        assert DIFFERENT[what] in message


SCRIPT = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from tests.parallel.test_faults import At, MADE, die
from tests.training.small import ours, quiet, rows
from pathlib import Path
from transept import Trainer, TrainingArguments
from transept.parallel import processes

processes._ANSWERS_WITHIN = 3.0
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
more = {"per_device_train_batch_size": 2, "max_steps": 8, "save_strategy": "steps", "save_steps": 4}
arguments = TrainingArguments(**quiet(Path(sys.argv[1]), **more))
happens = [At(5, 1, die)] if first else []
Trainer(ours(MADE), arguments, train_dataset=rows(MADE.rows, 24), callbacks=happens).train()
"""


def test_torchrun_starts_again_and_the_run_goes_on(ranks: Ranks, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    command += ["--monitor-interval", "0.2", str(script), str(tmp_path / "died"), str(Path(__file__).parents[2])]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks.run(2, train, str(tmp_path / "lived"), time.monotonic, {})
    one, two = ((tmp_path / name / "checkpoint-8/model.safetensors").read_bytes() for name in ("died", "lived"))
    assert one == two
