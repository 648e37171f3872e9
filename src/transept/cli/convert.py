"""``transept convert``: a model in another format or in fewer bits."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from transept.cli.arguments import Parser, add_output
from transept.cli.terminal import Style, complain
from transept.environment.units import count, size
from transept.errors import FileError, InputError, TranseptWarning, UnsupportedError
from transept.storage.gguf_encodings import MIXES

_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_BITS = {"int8": 8, "int4": 4}
_GGUF = "gguf:"
TARGETS = (*_DTYPES, *_BITS, *(_GGUF + kind for kind in MIXES))


def convert(parser: Parser) -> None:
    """Write a model in another format or in fewer bits.

    As GGUF it is one file with its tokenizer, for llama.cpp, programs that are built on it, and this one; else a folder with
    safetensors. Weights are rounded one after the other. Where the format cannot say all that a model is, that is an error, and
    nothing is written.

        transept convert PATH model.gguf --to gguf:q4_k_m
        transept convert PATH smaller --to int4
        transept convert model.gguf folder --to bf16
    """
    parser.add_argument("model", metavar="MODEL", help="directory, hub repository or .gguf file")
    parser.add_argument("output", metavar="OUT", help="the .gguf file or the folder to write")
    parser.add_argument("--to", required=True, choices=TARGETS, metavar="FORMAT", help=", ".join(TARGETS))
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a repository")
    parser.add_argument("--force", action="store_true", help="replace what is there")
    add_output(parser)
    parser.set_defaults(main=_main)


def _main(args: argparse.Namespace) -> int:
    from transept.checkpoint.few_bits_writing import written_state
    from transept.core.auto import AutoConfig, resolve, saved_class

    output = Path(args.output)
    _check(args, output)
    config = AutoConfig.from_pretrained(args.model, revision=args.revision)
    kind: Any = saved_class(config) or resolve(config.model_type, "ForCausalLM", "LMHeadModel", "Model")
    model = _loaded(kind, args)
    parameters, processor = sum(tensor.numel() for tensor in written_state(model).values()), _processor(args)
    if args.to.startswith(_GGUF):
        _write(model, output, args.to.removeprefix(_GGUF), processor)
    else:
        model = model.dequantize()
        if args.to in _BITS:
            from transept.adapt.quantize import quantize

            quantize(model, _BITS[args.to])
        model.save_pretrained(output)
        if processor is not None:
            processor.save_pretrained(output)
    return _tell(args, output, parameters)


def _check(args: argparse.Namespace, output: Path) -> None:
    """Refuse places that cannot be written to, before anything slow begins."""
    is_file = output.suffix.lower() == ".gguf"
    if args.to.startswith(_GGUF) != is_file:
        what = "ends in .gguf" if not is_file else "is a folder, whose name does not end in .gguf"
        raise InputError(f"what --to {args.to} writes {what}, but OUT is {args.output!r}.")
    if output.exists() and not args.force and (output.is_file() or any(output.iterdir())):
        raise FileError("is there already.", path=output, hint="Pass --force to replace it, or write to another place.")


def _loaded(kind: Any, args: argparse.Namespace) -> Any:
    """The model, without a pooler that its files do not have, or GGUF has no name for.

    Raises:
        UnsupportedError: the files lack something else.
    """
    load = partial(kind.from_pretrained, args.model, dtype=_DTYPES.get(args.to), revision=args.revision)
    pools = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
    if pools and (args.to.startswith(_GGUF) or args.model.lower().endswith(".gguf")):
        return load(add_pooling_layer=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", TranseptWarning)
        model = load()
        if pools and model.load_report.missing:
            told.clear()
            model = load(add_pooling_layer=False)
    for each in told:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if missing := model.load_report.missing:
        hint = "Save a model that is trained, or the network without its head."
        raise UnsupportedError(
            f"does not have {', '.join(missing[:4])}, and no new weights are written.", path=args.model, hint=hint
        )
    return model


def _processor(args: argparse.Namespace) -> Any:
    """What the model has for its inputs; ``None`` where there is nothing."""
    from transept.preprocess.auto import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(args.model, revision=args.revision)
    except FileError as error:
        complain(f"no tokenizer and no other preprocessing is written: {error}", "warning")
        return None


def _write(model: Any, output: Path, encoding: str, tokenizer: Any) -> None:
    """Write a GGUF file, and on a terminal show how far that is."""
    from tqdm import tqdm

    from transept.adapt.gguf import save_gguf

    with tqdm(desc="writing", unit="B", unit_scale=True, leave=False, disable=not sys.stderr.isatty()) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        save_gguf(model, output, encoding, tokenizer, show)


def _tell(args: argparse.Namespace, output: Path, parameters: int) -> int:
    """Say what was written: bytes, and bits of each parameter."""
    files = [output] if output.is_file() else sorted(each for each in output.iterdir() if each.is_file())
    weights = sum(each.stat().st_size for each in files if each.suffix in (".gguf", ".safetensors"))
    bits = 8 * weights / parameters
    if args.json:
        print(json.dumps({"output": args.output, "format": args.to, "bytes": weights, "parameters": parameters, "bits": bits}))
    else:
        told = f"{size(weights)} of weights, {bits:.2f} bits for each of {count(parameters)} parameters"
        print(f"{Style(sys.stdout)(args.output, 'bold')}  {args.to}: {told}")
    return 0
