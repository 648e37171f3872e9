"""From what ``generate`` was given to a prompt: types of arguments, ids, masks, encoder states.

Shapes: B prompts, T ids, S positions, D hidden size.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError, InputTypeError, TranseptWarning, nearest, refuse
from transept.generation.config import GenerationConfig
from transept.layers.caches.cache import Cache, DynamicCache
from transept.layers.context import read_mask

# Inputs with one value for each position; those of new positions follow from the last of the prompt.
BY_POSITION = ("token_type_ids", "position_ids", "decoder_position_ids")
# What has one value for each position of the prompt at every step, of the cached ones too.
BLOCKS = "block_sequence_ids"
# What encoders read beside ids.
_ENCODED = ("inputs_embeds", "input_values", "input_features", "pixel_values", "token_type_ids")


@dataclass
class Prompt:
    """What there is to go on from; R rows."""

    ids: Tensor  # (R, T); T may be 0 where there are embeddings
    mask: Tensor | None = None  # (R, S) of bool, true for real positions; None where all are
    embeds: Tensor | None = None  # (R, S, D) in the ids' place, for the first step
    cache: Cache | None = None  # what an earlier call has kept of the first positions
    inputs: dict[str, Any] = field(default_factory=dict)  # what the model is given at each step beside these
    source: Tensor | None = None  # (R, T') ids that the encoder has read, where there is one that reads ids
    kept: bool = True  # whether the cache is the caller's own, who finds in it afterwards what was read
    full: Tensor | None = None  # (1 or R, 1 or H, S, S) of bool or of numbers to add, what each position sees; no mask then


def _are_seeds(value: Any) -> bool:
    """Whether PyTorch's generators take a number, or each of several."""
    seeds = value if isinstance(value, list | tuple | range) else [value]
    return all(isinstance(seed, int) and not isinstance(seed, bool) and seed in range(-(2**63), 2**64) for seed in seeds)


def _has(*methods: str) -> Callable[[Any], bool]:
    return lambda value: all(callable(getattr(value, name, None)) for name in methods)


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_TOKENIZE = 'Turn text into ids first: tokenizer(text, return_tensors="pt").'
# What arguments of generate() must be: a test, the same in words, and what to pass.
_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "generation_config": (_is(GenerationConfig), "a GenerationConfig", "Pass GenerationConfig(...), or settings by name."),
    "logits_processor": (_is(list, tuple), "a list of callables", "For one: logits_processor=[processor]."),
    "stopping_criteria": (_is(list, tuple), "a list of callables", "For one: stopping_criteria=[criterion]."),
    "prefix_allowed_tokens_fn": (callable, "a function", "It takes a prompt's number and ids, and returns ids."),
    "synced_gpus": (_is(bool), "a bool", "Leave it out."),
    "assistant_model": (_has("generate", "step"), "a model that writes text", "Pass a smaller model of transept."),
    "streamer": (_has("put", "end"), "an object with put() and end()", "Pass a TextStreamer, or call stream()."),
    "negative_prompt_attention_mask": (_is(Tensor), "a tensor", 'Pass the one of tokenizer(text, return_tensors="pt").'),
    "logits_to_keep": (_is(int, Tensor), "a number", "Leave it out: a step computes the logits that it needs."),
    "inputs_embeds": (_is(Tensor), "a tensor", "Pass (batch, positions, size) of floats."),
    "seed": (_are_seeds, "a whole number of 64 bits, or a list with one for each row", "For example seed=0."),
}


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments of ``generate`` that are of the wrong type (``InputTypeError``)."""
    for name in [each for each in given if each in _ARGUMENTS]:
        value, (test, what, hint) = given[name], _ARGUMENTS[name]
        if value is not None and not test(value):
            shown = repr(value).partition(" at 0x")[0][:60]  # an address tells nothing
            raise InputTypeError(f"`{name}` must be {what}, but is {type(value).__name__}: {shown}.", hint=hint)


def read_prompt(model: Any, settings: GenerationConfig, ids: Tensor | None, inputs: dict[str, Any]) -> Prompt:
    """The prompt of a model, from ``input_ids`` (of the encoder where there is one) and its other inputs by name.

    Inputs that are used here are taken out. A ``DynamicCache`` of one row serves all rows of the prompt, which begin alike; it
    stays as it is.

    Raises:
        InputError, InputTypeError: naming what is wrong with which argument.
    """
    for name in ("logits_to_keep", "return_dict", "cache_position", "trust_remote_code"):  # what is decided without the caller
        inputs.pop(name, None)
    if model.config.is_encoder_decoder:
        return _decoder_prompt(model, settings, ids, inputs)
    cache, embeds, mask = _given_cache(inputs), inputs.pop("inputs_embeds", None), inputs.pop("attention_mask", None)
    if ids is None and embeds is not None:
        ids = embeds.new_empty((embeds.shape[0], 0), dtype=torch.long)
    ids = check_ids(_start(settings, "bos_token_id", 1, model.device) if ids is None else ids, "input_ids")
    length = ids.shape[1] if embeds is None else embeds.shape[1]
    refuse(length == 0, "there is nothing to go on from: the prompt has no positions.", "Pass at least one token.")
    inputs = _check_inputs(model, inputs, ids.shape[0], length)
    if isinstance(mask, Tensor) and mask.ndim in (3, 4):
        full: Any = read_mask(mask, ids.shape[0], length, length)[1]
        embeds = model.embed_prompt(ids, None, cache, inputs) if embeds is None else embeds
        return Prompt(ids, None, embeds, cache, inputs, full=full.expand(-1, -1, length, -1))
    mask = _inferred(ids, settings) if mask is None and embeds is None else _padding(mask, ids.shape[0], length)
    if mask is not None and not bool(mask[:, -1].all()):
        what = "the prompts are padded on the right, so that what is written follows padding."
        warnings.warn(f"{what} Set `padding_side='left'` in the tokenizer.", TranseptWarning, stacklevel=4)
    mask = None if mask is None or bool(mask.all()) else mask
    embeds = model.embed_prompt(ids, mask, cache, inputs) if embeds is None else embeds
    if isinstance(cache, DynamicCache) and cache.batch_size == 1 < ids.shape[0]:
        before = [0] * ids.shape[0] if mask is None else (mask.cumsum(dim=1) == 0).sum(dim=1).tolist()
        return Prompt(ids, mask, embeds, cache.spread(before), inputs, kept=False)
    return Prompt(ids, mask, embeds, cache, inputs)


def _given_cache(inputs: dict[str, Any]) -> Cache | None:
    """What an earlier call has kept, taken out of the inputs."""
    given = [cache for name in ("past_key_values", "cache") if (cache := inputs.pop(name, None)) is not None]
    refuse(len(given) > 1, "the cache was passed twice, as `past_key_values` and as `cache`.", "Pass one of them.")
    for cache in given:
        what = f"`past_key_values` must be a transept Cache, but is {type(cache).__name__}."
        refuse(not isinstance(cache, Cache), what, "Pass what an earlier call returned, or a DynamicCache().", InputTypeError)
        cache.check_finished()
    return given[0] if given else None


def _decoder_prompt(model: Any, settings: GenerationConfig, ids: Tensor | None, inputs: dict[str, Any]) -> Prompt:
    """The decoder's first ids, and the encoder's states among the inputs of each step."""
    shown = {name: getattr(settings, name) for name in ("output_attentions", "output_hidden_states")}
    cache = _given_cache(inputs)
    mask, states, encoder = inputs.pop("attention_mask", None), inputs.pop("encoder_outputs", None), model.get_encoder()
    _drop_types(encoder, inputs)
    given: dict[str, Any] = {name: inputs.pop(name) for name in _ENCODED if name in inputs}
    beside = {name: inputs.pop(name, None) for name in getattr(model_backbone(model), "encoder_reads", ())}
    if states is None:
        main = encoder.main_input_name
        if ids is not None and not given.keys() - {"token_type_ids"}:
            given[main] = check_ids(ids, main) if main == "input_ids" else ids
        refuse(not given, "an encoder–decoder needs something to encode.", f"Pass `{main}` or `encoder_outputs`.")
        states = model.encode_prompt(**given, **beside, attention_mask=mask, **shown, return_dict=True)
    rows = states[0].shape[0]
    start = _start(settings, "decoder_start_token_id", rows, states[0].device)
    begun, padding = inputs.pop("decoder_input_ids", None), inputs.pop("decoder_attention_mask", None)
    first_ids = start if begun is None else check_ids(begun, "decoder_input_ids")
    padding = _padding(padding, rows, first_ids.shape[1], "decoder_attention_mask")
    if begun is not None and bool((first_ids[:, 0] != start[:, 0]).all()):
        first_ids = torch.cat((start, first_ids), dim=1)
        padding = None if padding is None else torch.cat((torch.ones_like(padding[:, :1]), padding), dim=1)
    more = {"encoder_outputs": states} | ({} if mask is None else {"attention_mask": mask})
    inputs = _check_inputs(model, inputs, rows, first_ids.shape[1])
    return Prompt(first_ids, padding, None, cache, inputs | more, ids)


def _check_inputs(model: Any, inputs: dict[str, Any], rows: int, length: int) -> dict[str, Any]:
    """What is left for the forward passes: each of them something that the model takes, values of positions a row each."""
    backbone = model_backbone(model)
    _drop_types(backbone, inputs)
    inputs = {name: value for name, value in inputs.items() if value is not None}
    own = accepted(type(model).forward)
    known = {*own, *accepted(type(model).step), *accepted(type(backbone).forward)}
    passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    for name in [each for each in inputs if each not in known and not passes_on]:
        near = nearest(name, [*known, *_ARGUMENTS, *GenerationConfig().to_dict()])
        raise InputError(f"generate() of {type(model).__name__} takes no `{name}`.", hint=near)
    for name in inputs.keys() & {*BY_POSITION, BLOCKS}:
        value = check_ids(inputs[name], name)
        if value.shape[0] not in (1, rows) or value.shape[1] != length:
            raise InputError(f"`{name}` must be {(rows, length)} as the prompt is, but is {tuple(value.shape)}.")
        inputs[name] = value.expand(rows, -1)
    return inputs


def _drop_types(reader: Any, inputs: dict[str, Any]) -> None:
    """Leave out token types that say nothing, as tokenizers make them, where the model has none; refuse others."""
    types = inputs.get("token_type_ids")
    if types is None or "token_type_ids" in accepted(type(reader).forward):
        return
    what = f"`token_type_ids` was passed, but {type(reader).__name__} has no types of tokens."
    refuse(not isinstance(types, Tensor) or bool(types.any()), what)
    del inputs["token_type_ids"]


def _start(settings: GenerationConfig, name: str, rows: int, device: torch.device) -> Tensor:
    """(B, 1): the token that each sequence begins with."""
    value: Any = getattr(settings, name)
    value = settings.bos_token_id if value is None else value
    refuse(value is None, f"there is no prompt, and `{name}` is not set.", "Pass `input_ids`, or set the token.")
    tokens = [value] * rows if isinstance(value, int) else value
    refuse(len(tokens) != rows, f"`{name}` has {len(tokens)} tokens for {rows} rows.", "Set one, or one for each row.")
    return torch.tensor(tokens, device=device)[:, None]


def check_ids(ids: Any, name: str) -> Tensor:
    """(B, T) ids of 64 bits; ``InputError`` for anything else than integers in rows."""
    if not isinstance(ids, Tensor):
        raise InputTypeError(f"`{name}` must be a tensor, but is {type(ids).__name__}: {str(ids)[:60]!r}.", hint=_TOKENIZE)
    dense = ids.layout is torch.strided and not ids.is_meta
    refuse(not dense, f"`{name}` must be a dense tensor that holds values.", kind=InputTypeError)
    whole = not (ids.is_floating_point() or ids.is_complex() or ids.is_quantized or ids.dtype is torch.bool)
    what = f"`{name}` must be (batch, positions) of integers, but is {tuple(ids.shape)} of {ids.dtype}."
    refuse(ids.ndim != 2 or not whole or not ids.shape[0], what)
    return ids.long()


def _padding(mask: Any, rows: int, length: int, name: str = "attention_mask") -> Tensor | None:
    """(B, S) of bool; a mask of another shape is an error that calls it by its ``name``."""
    found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
    wrong = mask is not None and found != (rows, length)
    refuse(wrong, f"`{name}` must be {(rows, length)} as the prompt is, but is {found}.")
    return None if mask is None else mask != 0


def _inferred(ids: Tensor, settings: GenerationConfig) -> Tensor | None:
    """A mask from padding ids at the ends of rows, where padding can be told from what ends a sequence."""
    pad = settings.pad_token_id
    if pad is None or pad in end_tokens(settings):
        return None
    real = ids != pad
    return real.cummax(dim=1).values & real.flip(1).cummax(dim=1).values.flip(1)


def end_tokens(settings: GenerationConfig) -> list[int]:
    """The tokens that end a sequence; negative numbers, which files have for "none", are none."""
    ends = settings.eos_token_id
    return [] if ends is None else [end for end in ([ends] if isinstance(ends, int) else ends) if end >= 0]


def next_inputs(
    model: Any, input_ids: Any, next_sequence_length: int | None = None, past_key_values: Any = None, **more: Any
) -> dict[str, Any]:
    """The arguments of a forward pass over what the cache has not read, as ``prepare_inputs_for_generation`` gives them.

    Args:
        input_ids: (B, T) all ids so far; ``inputs_embeds`` (B, S, D) stand in their place for the first pass.
        next_sequence_length: how many of them are new; all behind the cached ones when absent.
        more: other inputs, of which those of positions are cut to the new ones. ``position_ids`` are counted from the
            ``attention_mask`` (B, S) of all positions where the model takes them.
    """
    embeds, mask = more.pop("inputs_embeds", None), more.setdefault("attention_mask", None)
    more.pop("is_first_iteration", None)  # the cache tells
    read, prefix = 0 if past_key_values is None else past_key_values.get_seq_length(), decoder_prefix(model)
    embedded = embeds is not None and not read and not prefix  # those of an encoder are not for here
    whole, name = (embeds, "inputs_embeds") if embedded else (input_ids, f"{prefix}input_ids")
    new = whole.shape[1] - read if next_sequence_length is None else next_sequence_length
    if mask is not None and mask.ndim == 2 and takes_positions(model):
        more.setdefault("position_ids", counted(mask, model))
    more |= {each: more[each][:, -new:] for each in BY_POSITION if more.get(each) is not None}
    return {name: whole[:, -new:], "past_key_values": past_key_values, **more}


def decoder_prefix(model: Any) -> str:
    """What stands before the names of a decoder's inputs where there is an encoder, too."""
    return "decoder_" if model.config.is_encoder_decoder else ""


def takes_positions(model: Any) -> bool:
    """Whether a decoder takes ``position_ids``."""
    return not model.config.is_encoder_decoder and "position_ids" in model_backbone(model).arguments()


def counted(mask: Tensor, model: Any) -> Tensor:
    """(B, S) of 1 for real positions -> their ``position_ids`` (B, S), which padding does not count for."""
    first: int = getattr(model_backbone(model), "first_position", 0)
    return (mask.long().cumsum(-1) - 1).clamp(min=0) + first


def model_backbone(model: Any) -> Any:
    """The network whose ``forward`` says what a model takes."""
    return model.body if getattr(model, "of_user", False) else getattr(model, "backbone", model)


def vocabulary_size(model: Any) -> int:
    """V of what a model writes."""
    return int(model_backbone(model.get_decoder() if model.config.is_encoder_decoder else model).vocab_size)


@cache
def accepted(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters
