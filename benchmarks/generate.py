"""Text that is written on the CPU, beside its peers: `python -m benchmarks.generate`.

A Llama of 100 million parameters (12 layers, 768 wide, 32,000 tokens, tied) with random weights writes 128 tokens after 128.
What the memory can stream and what the matrix units can multiply is measured first: a step of one row reads every weight once,
and a prompt multiplies by all of them. Peers that are not installed are left out; `pip install ctranslate2` brings one.
Compiled steps take a minute to make, which is not counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .measure import Isolated, bandwidth, interleaved, machine, table, write

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 2048, "vocab_size": 32000}
MORE = {"tie_word_embeddings": True, "max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2}
# Weights that a token is multiplied by: those of the layers, and for the last one those of the output layer.
LAYERS, OUTPUT = 12 * (4 * 768 * 768 + 3 * 768 * 2048), 32000 * 768


def checkpoint(directory: Path) -> Path:
    """The model with a vocabulary of words ``t0``, ``t1``, ..., as CTranslate2's converter wants one."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, **MORE)).save_pretrained(directory)
    words = Tokenizer(models.BPE({f"t{i}": i for i in range(SIZES["vocab_size"])}, []))
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t1", eos_token="t2", unk_token="t0").save_pretrained(directory)
    return directory


def prompts(rows: int, length: int) -> torch.Tensor:
    """(rows, length) ids, always the same."""
    return torch.randint(5, SIZES["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(0))


def _torch(package: str, adapt: str, dtype: torch.dtype, path: Path, threads: int, rows: int, length: int, new: int) -> Any:
    """A run of our model or of the reference's: they take the same arguments."""
    torch.set_num_threads(threads)
    module = importlib.import_module(package)
    model = module.LlamaForCausalLM.from_pretrained(path, dtype=dtype).eval()
    if "packed" in adapt:
        from transept.adapt.pack import pack

        pack(model)
    elif "int8" in adapt:
        from transept.adapt.quantize import quantize

        quantize(model)
    settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0}
    if "compiled" in adapt:
        settings |= {"cache_implementation": "static", "compile_config": {}}
    if "compiled" in adapt and package == "transformers":
        settings["compile_config"] = module.CompileConfig()
        settings["compile_config"]._compile_all_devices = True  # it compiles for GPUs alone otherwise
    ids = prompts(rows, length)
    mask = torch.ones_like(ids)
    return lambda: model.generate(input_ids=ids, attention_mask=mask, **settings).tolist()


def _ctranslate2(kind: str, path: Path, threads: int, rows: int, length: int, new: int) -> Callable[[], Any]:
    import ctranslate2

    target = Path(tempfile.mkdtemp()) / kind
    converter = ctranslate2.converters.TransformersConverter(str(path))
    converter.convert(str(target), quantization=None if kind == "float32" else kind)
    generator = ctranslate2.Generator(str(target), compute_type=kind, intra_threads=threads, inter_threads=1)
    words = [[f"t{token}" for token in row] for row in prompts(rows, length).tolist()]
    settings: dict[str, Any] = {
        "max_length": new,
        "min_length": new,
        "max_batch_size": rows,
        "beam_size": 1,
        "sampling_topk": 1,
    }

    def run() -> Any:
        return [found.sequences_ids[0] for found in generator.generate_batch(words, include_prompt_in_result=False, **settings)]

    return run


def _made(package: str, adapt: str = "", dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    return partial(_torch, package, adapt, dtype)


REFERENCE, OURS = partial(_made, "transformers"), partial(_made, "transept")
HALF = torch.bfloat16
COMPILED = "transept, compiled"
# (rows, length of the prompt, new tokens) and who runs, the first one being ours that counts.
CASES: dict[str, tuple[tuple[int, int, int], dict[str, Callable[..., Any]]]] = {
    "float32, one row": (
        (1, 128, 128),
        {COMPILED: OURS("compiled"), "transept": OURS(), "reference": REFERENCE(), "reference, compiled": REFERENCE("compiled")}
        | {"CTranslate2": partial(_ctranslate2, "float32")},
    ),
    "bfloat16, one row": (
        (1, 128, 128),
        {COMPILED: OURS("compiled", HALF), "transept, packed": OURS("packed", HALF)}
        | {"reference": REFERENCE("", HALF), "reference, compiled": REFERENCE("compiled", HALF)},
    ),
    "int8, one row": (
        (1, 128, 128),
        {COMPILED: OURS("int8, compiled", HALF), "transept": OURS("int8"), "CTranslate2": partial(_ctranslate2, "int8")},
    ),
    "float32, eight rows": (
        (8, 128, 128),
        {COMPILED: OURS("packed, compiled"), "transept, packed": OURS("packed"), "reference": REFERENCE()}
        | {"CTranslate2": partial(_ctranslate2, "float32")},
    ),
    "int8, eight rows": (
        (8, 128, 128),
        {COMPILED: OURS("int8, compiled", HALF), "transept": OURS("int8"), "CTranslate2": partial(_ctranslate2, "int8")},
    ),
    "float32, first token after 2,048": (
        (1, 2048, 1),
        {"transept, packed": OURS("packed"), "transept": OURS(), "reference": REFERENCE()}
        | {"CTranslate2": partial(_ctranslate2, "float32")},
    ),
}


def case(name: str, path: Path, rounds: int, threads: int, limits: dict[str, Any]) -> dict[str, Any]:
    """One table: who writes how fast, and what share of the machine that is."""
    (rows, length, new), makers = CASES[name]
    makers = {who: make for who, make in makers.items() if not who.startswith("CTranslate2") or _has_ctranslate2()}
    contenders = {who: Isolated(make, path, threads, rows, length, new) for who, make in makers.items()}
    times = interleaved(contenders, rounds)
    if not times:
        print(f"{name}: nothing of it can run on this machine\n")
        return {}
    base = next(iter(times.values()))
    size = 1 if "int8" in name else 2 if "bfloat16" in name else 4
    lines, found = [[name, "seconds", "tokens/s", "ours is faster by", "share of the machine"]], {}
    for who, timing in times.items():
        if new == 1:
            shown, done = f"{rows * length / timing.median:,.0f}", 2 * rows * (LAYERS * length + OUTPUT)
            share = done / timing.median / limits["operations"]
        else:
            shown, read = f"{rows * new / timing.median:.1f}", (LAYERS + OUTPUT) * size * new
            share = read / timing.median / limits["bytes"]
        lines.append([who, f"{timing.median:.3f}", shown, f"{base.faster_than(timing):.2f}", f"{share:.0%}"])
        found[who] = {"seconds": timing.median, "faster_by": base.faster_than(timing), "share": share}
    print(table(lines), "\n")
    return found


def overhead(path: Path, threads: int) -> dict[str, float]:
    """Milliseconds of a step that are not the model's own."""
    import transept

    torch.set_num_threads(threads)
    model = transept.LlamaForCausalLM.from_pretrained(path).eval()
    inside, forward = [0.0], model.forward

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        out = forward(*args, **kwargs)
        inside[0] += time.perf_counter() - start
        return out

    model.forward = timed
    steps, found = 128, []
    for _ in range(5):
        inside[0], start = 0.0, time.perf_counter()
        model.generate(input_ids=prompts(1, 128), do_sample=False, max_new_tokens=steps, min_new_tokens=steps)
        found.append((time.perf_counter() - start - inside[0]) / steps * 1e3)
    print(f"a step outside the model takes {statistics.median(found):.2f} ms\n")
    return {"milliseconds": statistics.median(found)}


def _has_ctranslate2() -> bool:
    return importlib.util.find_spec("ctranslate2") is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", choices=[*CASES, "overhead"], action="append")
    chosen = parser.parse_args()
    limits = machine(chosen.threads) | {"bytes": bandwidth()}
    print(f"this machine reads {limits['bytes'] / 1e9:.1f} GB/s\n")
    document: dict[str, Any] = {"limits": limits}
    with tempfile.TemporaryDirectory() as directory:
        path = checkpoint(Path(directory))
        for name in chosen.only or [*CASES, "overhead"]:
            if name == "overhead":
                document[name] = overhead(path, chosen.threads)
            else:
                document[name] = case(name, path, chosen.rounds, chosen.threads, limits)
    print("written to", write("generate", document))


if __name__ == "__main__":
    main()
