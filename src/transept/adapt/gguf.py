"""Writing a model and its tokenizer into one GGUF file, the format of llama.cpp."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transept.checkpoint.gguf import SAVE_PLAIN
from transept.checkpoint.gguf_writing import Entry, entries_of, take_numbers
from transept.config.fields import plain, specs
from transept.config.gguf import values_of
from transept.config.model import Config
from transept.config.rotary import RotaryConfig
from transept.core.auto import AutoConfig, gguf_architecture
from transept.core.model import Model
from transept.errors import InputError, MissingExtraError, UnsupportedError, nearest
from transept.layers.rotary import FREQUENCIES, Default, Llama3, LongRope, head_size
from transept.preprocess.text.auto import AutoTokenizer
from transept.preprocess.text.gguf import settings_of_tokenizer
from transept.storage.files import replaced
from transept.storage.gguf_encodings import ENCODINGS, MIXES

_NUMBERS = {encoding: number for number, encoding in ENCODINGS.items()}
# Settings that change nothing that a model in evaluation mode computes, or that files say in other words.
_CHANGES_NOTHING = re.compile(
    r".*(dropout|_pdrop|layerdrop|initializer|aux_loss|z_loss|router_logits|jitter|label).*|use_cache|dtype|architectures"
    r"|return_dict|.*_token_id|problem_type|pretraining_tp|output_.*|chunk_size_feed_forward|attn_implementation|rope_parameters"
    r"|num_nextn_predict_layers|head_dim|(mamba_)?chunk_size|time_step_(min|max|floor|init_scheme|scale)|max_window_layers"
    r"|summary_.*|classifier_.*"
)
# Texts of many scripts, by which tokenizers are compared beside those of their own tokens.
_SAMPLES = (
    *("Hello, world!", "  two  spaces", "tabs\tand\nlines\r\n\n\n end ", "I'LL we've don't", "1234567 3.14 0x1F", "naïve café"),
    *("日本語のテキスト", "Привет, мир", "مرحبا بالعالم", "👩‍👩‍👧 🏳️‍🌈", "¿Qué?¡Sí! … — “x”"),
    "def f(x):\n    return x**2  # ok",
)
_NEVER = 1e30  # divides the frequencies of what does not turn
Progress = Callable[[int, int], object]


def save_gguf(
    model: Model,
    path: str | os.PathLike[str],
    encoding: str = "q8_0",
    tokenizer: Any = None,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write a model into a GGUF file, which llama.cpp and ``from_pretrained`` read, one tensor after the other.

    What the file says is read again before the weights are written, and compared with the config and the tokenizer: a setting
    that the format has no key for is an error.

    Args:
        model: of a family whose layout in such files is known; weights of few bits are unpacked and rounded anew.
        path: of the file, which is made or replaced as a whole.
        encoding: ``f32``, ``f16``, ``bf16``, ``q8_0``, ``q6_k``, ``q4_k_m`` or ``q4_0``. Vectors stay float32, and matrices
            whose rows are no multiple of a block's 32 or 256 numbers take the next finer encoding.
        tokenizer: goes into the file, with its chat template.
        progress: called with the numbers of bytes that are written, and that will be.

    Raises:
        InputError: there is no such encoding.
        UnsupportedError: the format cannot hold this model or tokenizer.
        MissingExtraError: the package ``gguf`` is not installed.
        FileError: the file cannot be written.
    """
    mix = MIXES.get(encoding.lower())
    if mix is None:
        raise InputError(f"there is no encoding {encoding!r:.60}.", hint=nearest(encoding, MIXES))
    try:
        import gguf
    except ImportError as error:
        raise MissingExtraError("gguf", "gguf", "writing GGUF files") from error
    entries, config = entries_of(model, mix), model.body.config
    architecture = model.body.gguf.architecture or gguf_architecture(config, gguf.MODEL_ARCH_NAMES.values())
    settings = {f"{architecture}.{key}": value for key, value in values_of(config.in_gguf()).items()}
    factors = _frequency_factors(config, settings.get(f"{architecture}.attention.key_length", 0))
    settings |= take_numbers(entries, model.body.gguf) | {"general.file_type": mix.number, "general.quantization_version": 2}
    settings |= {} if tokenizer is None else settings_of_tokenizer(tokenizer, config.vocab_size)
    if (types := entries.get("token_types.weight")) is not None:
        settings["tokenizer.ggml.token_type_count"] = types.shape[0]
    settings |= {f"tokenizer.ggml.{role}_token_id": number for role, number in _ends(model, tokenizer)}
    with replaced(path) as place, closing(gguf.GGUFWriter(place, architecture)) as writer:
        _begin(writer, settings, factors, entries)
        sizes, pad = [entry.size for entry in entries.values()], writer.data_alignment
        os.truncate(place, sum(-(-size // pad) * pad for size in (place.stat().st_size, *sizes)))
        _check_config(place, model)
        if tokenizer is not None:
            _check_tokenizer(tokenizer, place)
        done = 0
        for entry in entries.values():
            writer.write_tensor_data(torch.cat(list(entry.pieces())).numpy())
            progress(done := done + entry.size, sum(sizes))


def _begin(writer: Any, settings: Mapping[str, Any], factors: Mapping[str, Any], entries: Mapping[str, Entry]) -> None:
    """Write all that comes before the weights."""
    import gguf

    _describe(writer, settings)
    for name, numbers in factors.items():
        writer.add_tensor_info(name, numbers.shape, numbers.dtype, numbers.nbytes)
    for name, entry in entries.items():
        kind = gguf.GGMLQuantizationType(_NUMBERS[entry.encoding])
        writer.add_tensor_info(name, entry.shape, np.dtype(np.float32), entry.size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for numbers in factors.values():
        writer.write_tensor_data(numbers)
    writer.flush()


def _describe(writer: Any, settings: Mapping[str, Any]) -> None:
    """Add settings of the types that readers expect."""
    for name, value in settings.items():
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case _:
                writer.add_array(name, value)


def _ends(model: Model, tokenizer: Any) -> Iterator[tuple[str, int]]:
    """The tokens that begin and end texts, and turns of a chat, by the format's names.

    A tokenizer's own are those of the file, since readers take every token with a role for one that is no text.
    """
    config = getattr(model, "generation_config", None) or model.config
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    if tokenizer is None:
        found = {"bos": config.bos_token_id, "padding": config.pad_token_id}
    else:
        found, ends = {}, [tokenizer.eos_token_id, *(end for end in ends if end in tokenizer.all_special_ids)]
    found |= dict(zip(("eos", "eot"), dict.fromkeys(end for end in ends if end is not None), strict=False))
    return ((role, number) for role, number in found.items() if number is not None)


def _frequency_factors(config: Config, size: int) -> dict[str, NDArray[np.float32]]:
    """What rotary frequencies are divided by, as tensors of the file, where each has a factor of its own.

    ``size`` is that of heads of layers that see all.
    """
    if not isinstance(config, RotaryConfig):
        return {}
    if share := next(
        (rope["partial_rotary_factor"] for rope in map(config.rope, config.rope_kinds()) if _is_share(rope)), None
    ):
        turned, half = int(share * size / 2), size // 2
        return {"rope_freqs.weight": np.array([1.0] * turned + [_NEVER] * (half - turned), np.float32)}
    if len(config.rope_kinds()) > 1:
        return {}
    frequencies = _frequencies(config, config.rope_kinds()[0])
    if isinstance(frequencies, LongRope):
        parts = {"long": frequencies.long, "short": frequencies.short}
        return {f"rope_factors_{name}.weight": np.array(factors, np.float32) for name, factors in parts.items()}
    if isinstance(frequencies, Llama3):
        return {"rope_freqs.weight": (1 / (frequencies.powers() * frequencies.inverse())).numpy()}
    return {}


def _is_share(rope: Mapping[str, Any]) -> bool:
    """Whether the last frequencies are zero, of heads whose halves turn together."""
    return bool(rope["rope_type"] == "proportional")


def _frequencies(config: RotaryConfig, kind: str) -> Default:
    rope = config.rope(kind)
    return FREQUENCIES[rope["rope_type"]](head_size(config), rope)


def _check_config(path: Path, model: Model) -> None:
    """Raise an ``UnsupportedError`` unless a model that is made by the file's settings computes the same."""
    ours, found = model.body.config.in_gguf(), AutoConfig.from_pretrained(path)
    for name, spec in specs(type(ours)).items():
        here = plain(getattr(ours, name))
        there = plain(getattr(found, name)) if found.knows(name) else spec.default()
        if not _CHANGES_NOTHING.fullmatch(name) and not _is_same(here, there):
            what = (
                f"GGUF files cannot say that `{name}` of {type(ours).__name__} is {here!r:.80}: they are read as {there!r:.80}."
            )
            raise UnsupportedError(what, hint=SAVE_PLAIN)
    if isinstance(ours, RotaryConfig) and not _turns_alike(ours, found):
        what = f"GGUF files cannot say how positions turn in this model: `rope_parameters` are {ours.rope_parameters!r:.200}."
        raise UnsupportedError(what, hint=SAVE_PLAIN)


def _check_tokenizer(tokenizer: Any, path: os.PathLike[str]) -> None:
    """Raise an ``UnsupportedError`` unless the tokenizer of a file gives the tokens of another one, for texts of all kinds."""
    found = AutoTokenizer.from_pretrained(path)
    ids = range(len(tokenizer))
    texts = [*_SAMPLES, *filter(None, (tokenizer.decode([index]) for index in ids))]
    pairs = zip(texts, tokenizer(texts).input_ids, found(texts).input_ids, strict=True)
    if wrong := next(((text, one, other) for text, one, other in pairs if one != other), None):
        what = "the tokenizer cannot be written into a GGUF file: "
        what += f"it reads {wrong[0]!r:.60} as {str(wrong[1])[:80]}, and the file's as {str(wrong[2])[:80]}."
        raise UnsupportedError(what, hint="Pass no tokenizer to write the weights alone.")


def _is_same(here: Any, there: Any) -> bool:
    """Whether two settings are alike; the format has numbers of 32 bits."""
    if isinstance(here, float) and isinstance(there, float):
        return bool(np.float32(here) == np.float32(there))
    return bool(here == there)


def _turns_alike(ours: RotaryConfig, found: Any) -> bool:
    """Whether the rotary tables of two configs are equal, for short sequences and for long ones."""
    if head_size(ours) != head_size(found) or ours.rope_kinds() != found.rope_kinds():
        return False
    for kind in ours.rope_kinds():
        one, other = _frequencies(ours, kind), _frequencies(found, kind)
        for length in (1, 4 * getattr(ours, "max_position_embeddings", 1)):  # some grow beyond what the model was made for
            turn, turned = (each.inverse(torch.tensor(length)) for each in (one, other))
            if turn.shape != turned.shape or not torch.allclose(turn, turned, rtol=1e-5):
                return False
        if abs(one.scale - other.scale) > 1e-5:
            return False
    return True
