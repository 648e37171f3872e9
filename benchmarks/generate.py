"""Text that is written on the CPU, beside its peers: `python -m benchmarks.generate`.

A Llama of 100 million parameters (12 layers, 768 wide, 32,000 tokens, tied) with random weights writes 128 tokens after 128, or
with `--size 1B` one of a thousand million (18 layers, 2,048 wide) 32 after 32. What the memory can stream and what the matrix
units can multiply is measured first: a step of one row reads every weight once, and a prompt multiplies by all of them.
Peers that are not installed are left out; `pip install ctranslate2 gguf llama-cpp-python` brings two. Compiled steps take a
minute to make, which is not counted.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
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

from .measure import Isolated, UnableError, interleaved, machine, table, write

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

SIZES = {
    "100M": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 2048},
    "1B": {"hidden_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 32, "intermediate_size": 5632},
}
VOCABULARY = 32000
MEMORY = 2**30  # bytes that are read to see how fast the memory is
STATIC: dict[str, Any] = {"cache_implementation": "static", "compile_config": {}}
MORE = {"tie_word_embeddings": True, "max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 2}


def weights(size: str) -> tuple[int, int]:
    """How many weights a token is multiplied by: those of the layers, and for the last one those of the output layer."""
    wide, inner, layers = (SIZES[size][name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    return layers * (4 * wide * wide + 3 * wide * inner), VOCABULARY * wide


def checkpoint(directory: Path, size: str) -> Path:
    """The model with a vocabulary of words ``t0``, ``t1``, ..., as CTranslate2's converter wants one."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES[size], **MORE, vocab_size=VOCABULARY)).save_pretrained(directory)
    words = Tokenizer(models.BPE({f"t{i}": i for i in range(VOCABULARY)}, []))
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t1", eos_token="t2", unk_token="t0").save_pretrained(directory)
    return directory


def prompts(rows: int, length: int) -> torch.Tensor:
    """(rows, length) ids, always the same."""
    return torch.randint(5, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))


def _torch(package: str, adapt: str, dtype: torch.dtype, path: Path, threads: int, rows: int, length: int, new: int) -> Any:
    """A run of our model or of the reference's: they take the same arguments."""
    torch.set_num_threads(threads)
    module = importlib.import_module(package)
    model = module.LlamaForCausalLM.from_pretrained(path, dtype=dtype).eval()
    if "packed" in adapt:
        from transept.adapt.pack import pack

        pack(model)
    elif "int" in adapt:
        from transept.adapt.quantize import quantize

        quantize(model, 4 if "int4" in adapt else 8)
    settings: dict[str, Any] = {}
    if "compiled" in adapt:
        settings = dict(STATIC)
    if "compiled" in adapt and package == "transformers":
        settings["compile_config"] = module.CompileConfig()
        settings["compile_config"]._compile_all_devices = True  # it compiles for GPUs alone otherwise
    return _writer(model, settings, rows, length, new)


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


def gguf_file(path: Path, kind: str) -> Path:
    """The checkpoint as llama.cpp reads it, in one of its encodings."""
    import ctypes

    import gguf
    import llama_cpp
    from safetensors.torch import load_file

    plain, packed = path / "F32.gguf", path / f"{kind}.gguf"
    if not plain.exists():
        config = json.loads((path / "config.json").read_text())
        heads, tensors = config["num_attention_heads"], load_file(path / "model.safetensors")
        writer = gguf.GGUFWriter(plain, "llama")
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(heads)
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_tokenizer_model("llama")
        bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
        tokens = ["<unk>", "<s>", "</s>", *bytes_of]
        writer.add_token_list([*tokens, *(f"t{number}" for number in range(VOCABULARY - len(tokens)))])
        writer.add_token_scores([-float(number) for number in range(VOCABULARY)])
        writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - len(tokens))])
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
        for name, tensor in tensors.items():
            if name.endswith(("q_proj.weight", "k_proj.weight")):  # in pairs of those that turn together
                tensor = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
            writer.add_tensor(names.get_name(name, (".weight",)), tensor.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    if not packed.exists():
        settings = llama_cpp.llama_model_quantize_default_params()
        settings.ftype, settings.pure = {"Q4_0": 2, "Q8_0": 7, "Q4_K": 14}[kind], kind == "Q4_K"
        if llama_cpp.llama_model_quantize(str(plain).encode(), str(packed).encode(), ctypes.byref(settings)):
            raise UnableError(f"llama.cpp cannot write {kind}.")
    return packed


def _llama_cpp(kind: str, path: Path, threads: int, rows: int, length: int, new: int) -> Callable[[], Any]:

    import llama_cpp
    import numpy

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it tells every step of its loading
    file = gguf_file(path, kind)
    model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch = 2 * (length + new), length + new
    settings.n_threads = settings.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, settings)
    (row,) = prompts(rows, length).tolist()

    def read(tokens: list[int]) -> int:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))):
            raise UnableError("llama.cpp cannot read the prompt.")
        return int(numpy.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (VOCABULARY,)).argmax())

    def run() -> Any:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        found = [read(row)]
        while len(found) < new:
            found.append(read(found[-1:]))
        return found

    return run


def _file(kind: str, settings: dict[str, Any], path: Path, threads: int, rows: int, length: int, new: int) -> Callable[[], Any]:
    """Our model of a GGUF file, in its bits."""
    import transept

    torch.set_num_threads(threads)
    model = transept.LlamaForCausalLM.from_pretrained(gguf_file(path, kind))
    return _writer(model, settings, rows, length, new)


def _writer(model: Any, more: dict[str, Any], rows: int, length: int, new: int) -> Callable[[], Any]:
    """Writes so many tokens after a prompt."""
    settings = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0, **more}
    ids = prompts(rows, length)
    mask = torch.ones_like(ids)
    return lambda: model.generate(input_ids=ids, attention_mask=mask, **settings).tolist()


def _memory(threads: int) -> Callable[[], Any]:
    """Reads a gibibyte, as fast as the memory gives it: that changes from minute to minute where machines are shared."""
    torch.set_num_threads(threads)
    numbers = torch.ones(MEMORY // 4)
    return lambda: float(numbers.sum())


def _made(package: str, adapt: str = "", dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    return partial(_torch, package, adapt, dtype)


REFERENCE, OURS = partial(_made, "transformers"), partial(_made, "transept")
HALF = torch.bfloat16
COMPILED = "transept, compiled"


def llama_cpp(*kinds: str) -> dict[str, Callable[..., Any]]:
    """Runs of llama.cpp with files of these encodings."""
    return {f"llama.cpp, {kind}": partial(_llama_cpp, kind) for kind in kinds}


# (rows, length of the prompt, new tokens) and who runs, the first one being ours that counts.
CASES: dict[str, tuple[tuple[int, int, int], dict[str, Callable[..., Any]]]] = {
    "float32, one row": (
        (1, 128, 128),
        {COMPILED: OURS("compiled"), "transept": OURS(), "reference": REFERENCE(), "reference, compiled": REFERENCE("compiled")}
        | {"CTranslate2": partial(_ctranslate2, "float32")}
        | llama_cpp("F32"),
    ),
    "bfloat16, one row": (
        (1, 128, 128),
        {COMPILED: OURS("compiled", HALF), "transept, packed": OURS("packed", HALF)}
        | {"reference": REFERENCE("", HALF), "reference, compiled": REFERENCE("compiled", HALF)},
    ),
    "int8, one row": (
        (1, 128, 128),
        {COMPILED: OURS("int8, compiled", HALF), "transept": OURS("int8"), "CTranslate2": partial(_ctranslate2, "int8")}
        | llama_cpp("Q8_0"),
    ),
    "int4, one row": (
        (1, 128, 128),
        {COMPILED: OURS("int4, compiled"), "transept": OURS("int4"), "transept, int8, compiled": OURS("int8, compiled", HALF)}
        | {f"transept, {kind} file, compiled": partial(_file, kind, STATIC) for kind in ("Q4_0", "Q4_K")}
        | {"transept, Q4_K file": partial(_file, "Q4_K", {})}
        | llama_cpp("Q4_0", "Q4_K"),
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
    "float32, first token after 512": ((1, 512, 1), {"transept, packed": OURS("packed")} | llama_cpp("F32")),
    "int8, first token after 512": ((1, 512, 1), {"transept": OURS("int8")} | llama_cpp("Q8_0")),
    "int4, first token after 512": (
        (1, 512, 1),
        {"transept": OURS("int4"), "transept, Q4_K file": partial(_file, "Q4_K", {})} | llama_cpp("Q4_0", "Q4_K"),
    ),
    "float32, first token after 2,048": (
        (1, 2048, 1),
        {"transept, packed": OURS("packed"), "transept": OURS(), "reference": REFERENCE()}
        | {"CTranslate2": partial(_ctranslate2, "float32")},
    ),
}
# Bytes of a weight of the layers and of the output layer, by the word that a case begins with.
BYTES = {"float32": (4, 4), "bfloat16": (2, 2), "int8": (1, 1), "int4": (0.5625, 1)}
# Packages that bring a peer, by what its name begins with.
PEERS = {"CTranslate2": ("ctranslate2",), "llama.cpp": ("llama_cpp", "gguf"), "transept, Q": ("llama_cpp", "gguf")}


def case(name: str, path: Path, size: str, rounds: int, threads: int, limits: dict[str, Any]) -> dict[str, Any]:
    """One table: who writes how fast, and what share of the machine that is."""
    (rows, length, new), makers = CASES[name]
    if size == "1B" and new > 1:
        length = new = 32
    makers = {who: make for who, make in makers.items() if _has(who)}
    contenders = {who: Isolated(make, path, threads, rows, length, new) for who, make in makers.items()}
    contenders["memory"] = Isolated(_memory, threads)
    times = interleaved(contenders, rounds)
    memory = times.pop("memory")
    if not times:
        print(f"{name}: nothing of it can run on this machine\n")
        return {}
    base, (layers, output), bytes_of = next(iter(times.values())), weights(size), BYTES[name.split(",")[0]]
    lines, found = [[name, "seconds", "tokens/s", "ours is faster by", "share of the machine"]], {}
    for who, timing in times.items():
        if new == 1:
            shown, done = f"{rows * length / timing.median:,.0f}", 2 * rows * (layers * length + output)
            share = done / timing.median / limits["operations"]
        else:
            shown, read = f"{rows * new / timing.median:.1f}", (layers * bytes_of[0] + output * bytes_of[1]) * new
            share = read / MEMORY * timing.faster_than(memory)
        lines.append([who, f"{timing.median:.3f}", shown, f"{base.faster_than(timing):.2f}", f"{share:.0%}"])
        found[who] = {"seconds": timing.median, "faster_by": base.faster_than(timing), "share": share}
    for contender in contenders.values():
        contender.close()
    print(f"{table(lines)}\nmeanwhile memory was read at {MEMORY / memory.median / 1e9:.1f} GB/s\n")
    return found


def _has(who: str) -> bool:
    """Whether what a contender needs is installed."""
    needed = next((packages for start, packages in PEERS.items() if who.startswith(start)), ())
    return all(importlib.util.find_spec(package) is not None for package in needed)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--size", choices=SIZES, default="100M")
    parser.add_argument("--only", choices=[*CASES, "overhead"], action="append")
    chosen = parser.parse_args()
    limits = machine(chosen.threads)
    document: dict[str, Any] = {"limits": limits}
    with tempfile.TemporaryDirectory() as directory:
        path = checkpoint(Path(directory), chosen.size)
        for name in chosen.only or [*CASES, "overhead"]:
            if name == "overhead":
                document[name] = overhead(path, chosen.threads)
            else:
                document[name] = case(name, path, chosen.size, chosen.rounds, chosen.threads, limits)
    print("written to", write("generate", document))


if __name__ == "__main__":
    main()
