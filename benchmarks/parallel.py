"""Training in several processes, beside one process with as many threads: `python -m benchmarks.parallel`.

MiniLM is fine-tuned with 32 rows in an update, whoever takes them. The forms take turns, each in processes of its own that wait
meanwhile, with one thread each. A form's seconds are those of its slowest process. Those of the processor stand beside them,
summed over the processes, which tell what a form computes in addition; a process that waits for another may take some too.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .measure import PAUSE, Isolated, UnableError, machine, table, write
from .training import OURS, Run, classification

BATCH = 32
# What holds the model -> settings of the arguments.
FORMS: dict[str, dict[str, Any]] = {
    "data parallel": {},
    "optimizer in shards (ZeRO 1)": {"zero_stage": 1},
    "full shards (ZeRO 3)": {"fsdp": "full_shard"},
}
FLOOR = {"data parallel": 0.8}


def rank(environment: dict[str, str], threads: int, updates: int, settings: dict[str, Any]) -> Run:
    """A function that trains a model anew in this process."""
    os.environ.update(environment)
    return lambda: classification(OURS, threads, updates, **settings)()


class Several:
    """One form in processes of its own, which run at once."""

    def __init__(self, world: int, threads: int, updates: int, settings: dict[str, Any]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        # PyTorch warns of what the trainer asks for.
        shared = {"OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}
        if world > 1:
            shared |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        settings = {"per_device_train_batch_size": BATCH // world} | settings
        environments = [shared | {"RANK": str(number), "LOCAL_RANK": str(number)} for number in range(world)]
        self.ranks = [Isolated(rank, each, threads, updates, settings) for each in environments]

    def __call__(self) -> dict[str, float]:
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            list(pool.map(lambda each: each(), self.ranks))
        told = [each.answer() for each in self.ranks]
        return {"seconds": max(each["seconds"] for each in told), "processor": sum(each["processor"] for each in told)}

    def close(self) -> None:
        for each in self.ranks:
            each.close()


def by_turns(world: int, rounds: int, updates: int) -> dict[str, list[dict[str, float]]]:
    """What each round told of each form, after one that warms up."""
    forms = {"one process": Several(1, world, updates, {})}
    forms |= {name: Several(world, 1, updates, settings) for name, settings in FORMS.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in forms}
    try:
        for number in range(rounds + 1):
            for name in [*forms][:: 1 if number % 2 else -1]:
                time.sleep(PAUSE)
                told = forms[name]()
                if number:
                    found[name].append(told)
    finally:
        for form in forms.values():
            form.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2, help="and threads of the one that they stand beside")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=8, help=f"in a round, of {BATCH} rows each")
    args = parser.parse_args()
    results = machine(args.processes)
    try:
        found = by_turns(args.processes, args.rounds, args.updates)
    except UnableError as error:
        raise SystemExit(f"cannot be measured here: {error}") from None
    rows = [["form", "rows a second", "of one process", "s of the processor", "of one process", "at least"]]
    for name, told in found.items():
        rate = statistics.median(args.updates * BATCH / each["seconds"] for each in told)
        line = [name, f"{rate:.1f}"]
        for what, upside in (("seconds", True), ("processor", False)):
            ratios = (one[what] / own[what] for one, own in zip(found["one process"], told, strict=True))
            line += [] if upside else [f"{statistics.median(each[what] for each in told):.2f}"]
            line.append(f"{statistics.median(ratios if upside else (1 / each for each in ratios)):.2f}")
        rows.append([*line, str(FLOOR.get(name, ""))])
    print(table(rows))
    print(f"\nkept in {write('parallel', results | {'rounds': found})}")


if __name__ == "__main__":
    main()
