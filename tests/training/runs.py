"""Small runs that are begun, killed, and gone on with; what they came to, to the bit.

As a program it is a server that has everything imported and forks a process for each run, so that a run takes a moment. Each line
that it reads is one order, a JSON object, and it answers each with the exit status of the run.
"""

from __future__ import annotations

import errno
import faulthandler
import hashlib
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

RESULT = "result.json"
PROGRESS = "progress"
HANGS = 300  # seconds after which a run is taken to hang: it tells where, and ends with 1
TIMES = ("runtime", "per_second", "epoch_time")


@dataclass(frozen=True)
class Run:
    """A run: a BERT of two layers of 16 units with dropout, over rows that are drawn anew whenever they are read.

    ``rows`` of a stream come one after another, shared out between workers.
    """

    optim: str = "adamw_torch"
    schedule: str = "linear"
    accumulation: int = 1
    workers: int = 0
    bf16: bool = False
    rows: int = 22
    batch: int = 4
    epochs: int = 2
    save_steps: int = 2
    more: dict[str, Any] = field(default_factory=dict)
    kind: str = "bert"  # or "lora", "int8", "peft", "lstm", "gru"
    stream: bool = False


class Rows:
    """Rows whose tokens are drawn when they are read, as augmentation does."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> dict[str, Any]:
        import numpy as np

        length = 3 + row % 5
        ids = [random.randrange(5, 40) for _ in range(length)]
        ids[0] = int(np.random.randint(5, 40))  # noqa: NPY002
        return {"input_ids": ids, "attention_mask": [1] * length, "labels": row % 3}


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    longest = max(len(row["input_ids"]) for row in rows)
    padded = {key: [row[key] + [0] * (longest - len(row[key])) for row in rows] for key in ("input_ids", "attention_mask")}
    return {key: torch.tensor(value) for key, value in padded.items()} | {"labels": torch.tensor([r["labels"] for r in rows])}


def make(run: Run, folder: str | os.PathLike[str], callbacks: tuple[Any, ...] = (), **arguments: Any) -> Any:
    """The trainer of a run, before it begins."""
    import torch

    from transept import Trainer, TrainingArguments

    torch.manual_seed(0)
    model = network(run.kind)
    plateau = run.schedule == "reduce_lr_on_plateau"
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "optim": run.optim,
        "learning_rate": 1e-2,
        "lr_scheduler_type": run.schedule,
        "gradient_accumulation_steps": run.accumulation,
        "dataloader_num_workers": run.workers,
        "per_device_train_batch_size": run.batch,
        "num_train_epochs": run.epochs,
        "save_steps": run.save_steps,
        "logging_steps": 1,
        "bf16": run.bf16,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        **({"eval_strategy": "steps", "eval_steps": 1} if plateau else {}),
    }
    args = TrainingArguments(**given | run.more | arguments)
    data: Any = Rows(run.rows)
    if run.stream:
        from tests.training.streams import Iterated

        data = Iterated(run.rows)
    return Trainer(model, args, data_collator=collate, train_dataset=data, eval_dataset=Rows(5), callbacks=list(callbacks))


def network(kind: str) -> Any:
    """A small model with dropout: a BERT, with adapters of ours or of peft, or a network that carries its states on."""
    import transept
    from transept.adapt.quantize import quantize

    if kind in ("lstm", "gru"):
        sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "dropout": 0.1, "num_labels": 3}
        config: Any = transept.RNNConfig(**sizes, cell=kind, stateful=True, initializer_range=0.5)
        return transept.RNNForSequenceClassification(config)
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model: Any = transept.BertForSequenceClassification(transept.BertConfig(**sizes, num_labels=3))
    settings = {"r": 2, "target_modules": ["query", "value"], "lora_dropout": 0.1, "task_type": "SEQ_CLS"}
    if kind == "peft":
        import peft

        return peft.get_peft_model(model, peft.LoraConfig(**settings))
    if kind == "int8":
        quantize(model.eval())
        settings.pop("task_type")  # which would train the head, that has no floats left
    return model if kind == "bert" else transept.get_peft_model(model, transept.LoraConfig(**settings))


def outcome(trainer: Any) -> dict[str, Any]:
    """The logs of a run without times, as hexadecimal numbers, and digests of all that was trained."""
    import torch

    def bits(tensor: torch.Tensor) -> bytes:
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""

    logs = [
        {key: value.hex() if isinstance(value, float) else value for key, value in entry.items() if not key.endswith(TIMES)}
        for entry in trainer.state.log_history
    ]
    tensors = [*trainer.model.parameters(), *trainer.model.buffers()]
    weights = hashlib.sha256(b"".join(map(bits, tensors))).hexdigest()
    state = [value for entries in trainer.optimizer.state.values() for _, value in sorted(entries.items())]
    moments = hashlib.sha256(b"".join(bits(torch.as_tensor(value)) for value in state)).hexdigest()
    generators = [hashlib.sha256(bits(torch.get_rng_state())).hexdigest(), repr(random.random())]
    found = {"logs": logs, "weights": weights, "optimizer": moments, "generators": generators}
    scaler = (
        None if trainer.scaler is None else {name: float(value).hex() for name, value in trainer.scaler.state_dict().items()}
    )
    return found | {"step": trainer.state.global_step, "scaler": scaler}


def train(run: Run, folder: Path, resume: Any = None, callbacks: tuple[Any, ...] = (), **arguments: Any) -> dict[str, Any]:
    """Train to the end, or to what a callback does, and tell what came of it."""
    trainer = make(run, folder, callbacks, **arguments)
    trainer.train(resume_from_checkpoint=resume)
    return outcome(trainer)


OTHER = """
import sys
from transept.training.checkpoint.directory import only_run
with only_run(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_run(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that trains in a directory, until its standard input ends."""
    with subprocess.Popen([sys.executable, "-c", OTHER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        yield other


# --- faults ----------------------------------------------------------------------------------------------------------------

# What changes files in the course of a save, by the module that it is looked up in.
WRITES = {
    "os": ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "link", "open"),
    "transept.checkpoint.writing": ("_write",),
    "transept.storage.directory": ("_exchange",),
}


@contextmanager
def at_each_write(act: Callable[[int, str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call ``act`` with the number, the name and the arguments of each call that changes files while checkpoints are saved."""
    import importlib

    from transept.training.checkpoint import saved_run

    lock, count, saving, undo = threading.Lock(), 0, False, []

    def wrapped(name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if saving:
                with lock:
                    count += 1
                    number = count
                act(number, name, args)
            return real(*args, **kwargs)

        return call

    for place, names in WRITES.items():
        module = importlib.import_module(place)
        for name in names:
            undo.append((module, name, getattr(module, name)))
            setattr(module, name, wrapped(name, getattr(module, name)))
    write = saved_run.SavedRun._write

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal saving
        saving = True
        try:
            return write(self, *args, **kwargs)
        finally:
            saving = False

    saved_run.SavedRun._write = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        saved_run.SavedRun._write = write  # type: ignore[method-assign]
        for module, name, real in undo:
            setattr(module, name, real)


Act = Callable[[int, str, tuple[Any, ...]], None]


def kill_at(wanted: int, slow: float) -> Act:
    """Kill this process at a call, after half of a file of tensors where that is what would be written."""

    def act(number: int, name: str, args: tuple[Any, ...]) -> None:
        time.sleep(slow)
        if number == wanted:
            if name == "_write":
                Path(args[2]).write_bytes(b"\0" * 1000)
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def fail_at(wanted: int, kind: str) -> Act:
    """Let a call fail as the system would let it."""

    def act(number: int, name: str, args: tuple[Any, ...]) -> None:
        if number == wanted:
            code = getattr(errno, kind)
            raise OSError(code, os.strerror(code))

    return act


class Told:
    """What a run tells, noted for the test: saves, and the number of calls that changed files in them."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.folder, self.order, self.calls, self.micro_batches = Path(order["folder"]), order, 0, 0

    def faults(self) -> Any:
        """What goes wrong in this run."""
        if "limit" in self.order:
            import resource

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.order["limit"], resource.RLIM_INFINITY))
        if "fail_at" in self.order:
            return at_each_write(fail_at(self.order["fail_at"], self.order["errno"]))
        if "kill_at" in self.order:
            kill = kill_at(self.order["kill_at"], self.order["slow"])

            def act(number: int, name: str, args: tuple[Any, ...]) -> None:
                self.calls = number
                kill(number, name, args)

            return at_each_write(act)
        return nullcontext()

    def callbacks(self) -> tuple[Any, ...]:
        from transept import TrainerCallback

        told = self

        class Note(TrainerCallback):
            def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                (told.folder / PROGRESS).write_text(str(state.global_step))

            def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                told.micro_batches += 1
                if told.micro_batches == told.order.get("micro_batch"):
                    os.kill(os.getpid(), getattr(signal, told.order["signal"]))

            on_pre_optimizer_step = on_substep_end

        return (Note(),)


# --- the server ------------------------------------------------------------------------------------------------------------


def serve() -> None:
    """Fork a process for each line of orders, and answer with how it ended."""
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own is shared with the processes that are forked, and one that is killed may hold it
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):  # what is imported by a run is imported once
        train(Run(rows=2, epochs=1), Path(folder))
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            obey(order)
        start, limit = time.perf_counter(), order.get("kill_after", math.inf)
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:  # no thread waits: it would be there when the next one is forked
            if time.perf_counter() - start > limit:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.002)
        status = ended[1]
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), "seconds": time.perf_counter() - start}), flush=True)


def obey(order: dict[str, Any]) -> None:
    """Train in this process, and end it: with 7 where a save failed for good."""
    code = 1
    faulthandler.dump_traceback_later(HANGS, exit=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # answers are written there
    folder, told, caught = Path(order["folder"]), Told(order), []
    try:
        with told.faults(), warnings.catch_warnings(record="warnings" in order) as seen:
            warnings.simplefilter("error" if order.get("strict") else "always" if "warnings" in order else "ignore")
            try:
                found = train(Run(**order["run"]), folder, order.get("resume"), told.callbacks())
            finally:
                caught = [str(warning.message) for warning in seen or ()]
        (folder / RESULT).write_text(json.dumps(found))
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except OSError as error:
        lift_limit()
        (folder / "error").write_text(f"{type(error).__name__}: {error}")
        code = 7
    except BaseException:
        traceback.print_exc()
    finally:
        lift_limit()
        (folder / "warnings.json").write_text(json.dumps(caught))
        (folder / "calls").write_text(str(told.calls))
        sys.stderr.flush()
        os._exit(code)


def lift_limit() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)


class Server:
    """The server as a context: ``server(run, folder, ...)`` trains in a process of its own, and gives how it ended."""

    def __enter__(self) -> Server:
        command = [sys.executable, "-m", "tests.training.runs"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root, env=environment
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __call__(self, run: Run, folder: Path, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps({"run": asdict(run), "folder": str(folder), **order}), file=self.process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


if __name__ == "__main__":
    serve()
