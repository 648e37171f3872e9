"""What weights of few bits cost: `python -m benchmarks.quality TEXT`.

A Llama of 3.4 million parameters (four layers, 256 wide) is trained for some minutes on nine tenths of a text, with a
vocabulary that is trained on them too. Its perplexity on the last tenth is measured in float32, then in each way of few bits:
as it runs, with inputs of eight bits where its products have them, and with the same weights unpacked, which leaves the loss of
the weights alone. `--model PATH` measures a checkpoint in place of the small one.

Classes of settings, such as `BitsAndBytesConfig`, round in this library's own way, in groups with a scale each. Published are
the losses that llama.cpp's encodings have in models of thousands of millions of parameters.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .measure import UnableError, table, write

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

WORDS, LENGTH, ROWS, RATE = 512, 128, 16, 3e-3
SIZES = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}
# By how much the perplexity of large models grows at most.
PUBLISHED = {"GGUF Q8_0": 0.001, "GGUF Q4_K_M": 0.02}


def trained_tokenizer(text: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    import transept

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=WORDS, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(text.splitlines(keepends=True), trainer)
    return transept.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", bos_token="<|end|>")


def windows(tokenizer: Any, text: str) -> torch.Tensor:
    """(N, LENGTH) ids of a text, without its end."""
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    return ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)


def train(text: str, steps: int, path: Path) -> None:
    """Train the small model on a text, and save it with its tokenizer."""
    import transept

    torch.manual_seed(0)
    tokenizer = trained_tokenizer(text)
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    config = transept.LlamaConfig(
        **SIZES, vocab_size=len(tokenizer), max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=0
    )
    model = transept.LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    pace = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    draw, start = torch.Generator().manual_seed(0), time.perf_counter()
    for step in range(1, steps + 1):
        begins = torch.randint(0, len(ids) - LENGTH, (ROWS,), generator=draw)
        rows = torch.stack([ids[begin : begin + LENGTH] for begin in begins.tolist()])
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        pace.step()
        if step % 50 == 0 or step == steps:
            print(f"step {step} of {steps}: loss {loss.item():.3f}, {time.perf_counter() - start:.0f} s", flush=True)
    model.eval().save_pretrained(path)
    tokenizer.save_pretrained(path)


@torch.no_grad()
def perplexity(model: Any, rows: torch.Tensor) -> float:
    """Of all tokens but the first one of each row; losses are added up in float64."""
    total = 0.0
    for some in rows.split(ROWS):
        logits = model(input_ids=some).logits[:, :-1].double()
        total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten(), reduction="sum").item()
    return math.exp(total / (rows.shape[0] * (rows.shape[1] - 1)))


def _loaded(path: Path, **options: Any) -> Any:
    import transept

    return transept.AutoModelForCausalLM.from_pretrained(path, **options).eval()


def _rounded(bits: int, path: Path) -> Any:
    """As ``dtype="int8"`` and ``"int4"`` do it."""
    from transept.adapt.quantize import quantize

    return quantize(_loaded(path), bits)


def _configured(name: str, settings: dict[str, Any], path: Path) -> Any:
    import transept

    return _loaded(path, quantization_config=getattr(transept, name)(**settings))


def _file(encoding: str, path: Path) -> Any:
    """The model of a GGUF file."""
    from transept.adapt.gguf import save_gguf
    from transept.errors import MissingExtraError

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        try:
            save_gguf(_loaded(path), file, encoding)
        except MissingExtraError as error:
            raise UnableError(str(error)) from error
        return _loaded(file)


def _configs() -> dict[str, Callable[[Path], Any]]:
    bits = "BitsAndBytesConfig"
    settings: dict[str, tuple[str, dict[str, Any]]] = {
        "BitsAndBytesConfig, 8 bits": (bits, {"load_in_8bit": True}),
        "BitsAndBytesConfig, NF4": (bits, {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
        "HqqConfig, 8 bits": ("HqqConfig", {"nbits": 8}),
        "HqqConfig, 4 bits": ("HqqConfig", {"nbits": 4, "group_size": 64}),
        "TorchAoConfig, int8": ("TorchAoConfig", {"quant_type": "int8_weight_only"}),
        "TorchAoConfig, int4": ("TorchAoConfig", {"quant_type": "int4_weight_only", "group_size": 32}),
        "QuantoConfig, int8": ("QuantoConfig", {"weights": "int8"}),
        "QuantoConfig, int4": ("QuantoConfig", {"weights": "int4"}),
    }
    return {name: partial(_configured, *chosen) for name, chosen in settings.items()}


WAYS: dict[str, Callable[[Path], Any]] = {
    "float32": _loaded,
    "bfloat16": partial(_loaded, dtype=torch.bfloat16),
    "int8": partial(_rounded, 8),
    "int4": partial(_rounded, 4),
    **_configs(),
    **{f"GGUF {encoding.upper()}": partial(_file, encoding) for encoding in ("q8_0", "q6_k", "q4_k_m", "q4_0")},
}


def unpacked(model: Any) -> Any | None:
    """The same weights as plain numbers; ``None`` where they are such."""
    from transept.quantized.linear import few_bits

    return model.dequantize() if few_bits(model) else None


def measured(path: Path, rows: torch.Tensor, names: list[str]) -> dict[str, dict[str, float]]:
    """For each way the perplexity, its loss beside float32, and that of its weights alone."""
    found: dict[str, dict[str, float]] = {}
    plain = perplexity(WAYS["float32"](path), rows)
    for name in names:
        try:
            model = WAYS[name](path)
            bytes_, value = model.get_memory_footprint(), perplexity(model, rows)
            wide = unpacked(model)
        except UnableError as error:
            print(f"{name} cannot run on this machine: {error}")
            continue
        alone = value if wide is None else perplexity(wide.float(), rows)
        found[name] = {"bytes": bytes_, "perplexity": value, "loss": value / plain - 1, "weights": alone / plain - 1}
        print(f"{name}: {value:.4f}", flush=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="a file of plain text, a megabyte or more")
    parser.add_argument("--model", type=Path, help="a checkpoint that is measured in place of the small one")
    parser.add_argument("--steps", type=int, default=600, help="of training, of 2,048 tokens each")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="*", choices=WAYS, default=list(WAYS))
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    text = args.text.read_text(encoding="utf-8")
    cut = len(text) * 9 // 10
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or Path(folder)
        if args.model is None:
            train(text[:cut], args.steps, path)
        from transept import AutoTokenizer

        rows = windows(AutoTokenizer.from_pretrained(path), text[cut:])
        print(f"\n{rows.numel():,} tokens are held out\n")
        found = measured(path, rows, args.only)
    lines = [["weights", "MB", "perplexity", "loss", "of weights alone", "published"]]
    for name, each in found.items():
        limit = f"< {PUBLISHED[name]:.1%}" if name in PUBLISHED else ""
        cells = [f"{each['bytes'] / 1e6:.1f}", f"{each['perplexity']:.4f}", f"{each['loss']:+.3%}", f"{each['weights']:+.3%}"]
        lines.append([name, *cells, limit])
    print("\n" + table(lines))
    print(f"\nkept in {write('quality', {'tokens': rows.numel(), 'ways': found})}")


if __name__ == "__main__":
    main()
