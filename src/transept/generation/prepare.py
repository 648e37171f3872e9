"""From what ``generate`` was given to a prompt: ids, masks, encoder states.

Shapes: B prompts, T ids, S positions, D hidden size.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError, InputTypeError, TranseptWarning
from transept.generation.config import GenerationConfig
from transept.generation.decode import Prompt
from transept.layers.cache import Cache, DynamicCache
from transept.layers.context import read_mask

# What encoders read beside ids.
_ENCODED = ("inputs_embeds", "input_values", "input_features", "pixel_values")


def read_prompt(model: Any, settings: GenerationConfig, ids: Tensor | None, inputs: dict[str, Any]) -> Prompt:
    """The prompt of a model, from its inputs by name.

    Args:
        model: its config tells whether it has an encoder.
        settings: for the special tokens.
        ids: ``input_ids``, of the encoder where there is one.
        inputs: what else the model is given; those used here are taken out. A ``DynamicCache`` of one row serves all rows of
            the prompt, which begin alike; it stays as it is.

    Raises:
        InputError, InputTypeError: naming what is wrong with which argument.
    """
    given = [cache for name in ("past_key_values", "cache") if (cache := inputs.pop(name, None)) is not None]
    if len(given) > 1:
        raise InputError("the cache was passed twice, as `past_key_values` and as `cache`.", hint="Pass one of them.")
    cache = given[0] if given else None
    if cache is not None and not isinstance(cache, Cache):
        raise InputTypeError(
            f"`past_key_values` must be a transept Cache, but is {type(cache).__name__}.",
            hint="Pass what an earlier call returned, or a DynamicCache().",
        )
    if model.config.is_encoder_decoder:
        return _decoder_prompt(model, settings, ids, cache, inputs)
    embeds, mask = inputs.pop("inputs_embeds", None), inputs.pop("attention_mask", None)
    if ids is None and embeds is None:
        ids = torch.full((1, 1), _start(settings, "bos_token_id"), device=model.device)
    if ids is None:
        ids = torch.empty((embeds.shape[0], 0), dtype=torch.long, device=embeds.device)
    ids = check_ids(ids, "input_ids")
    length = ids.shape[1] if embeds is None else embeds.shape[1]
    if length == 0:
        raise InputError("there is nothing to go on from: the prompt has no positions.", hint="Pass at least one token.")
    if isinstance(mask, Tensor) and mask.ndim in (3, 4):
        full = read_mask(mask, ids.shape[0], length, length)[1]
        assert full is not None
        return Prompt(ids, None, embeds, cache, inputs, full=full.expand(-1, -1, length, -1))
    mask = _inferred(ids, settings) if mask is None and embeds is None else read_padding(mask, ids.shape[0], length)
    if mask is not None and not bool(mask[:, -1].all()):
        warnings.warn(
            "the prompts are padded on the right, so that what is written follows padding. "
            "Set `padding_side='left'` in the tokenizer.",
            TranseptWarning,
            stacklevel=4,
        )
    if mask is not None and bool(mask.all()):
        mask = None
    if isinstance(cache, DynamicCache) and cache.rows == 1 < ids.shape[0]:
        before = [0] * ids.shape[0] if mask is None else (mask.cumsum(dim=1) == 0).sum(dim=1).tolist()
        return Prompt(ids, mask, embeds, cache.spread(before), inputs, kept=False)
    return Prompt(ids, mask, embeds, cache, inputs)


def _decoder_prompt(
    model: Any, settings: GenerationConfig, ids: Tensor | None, cache: Cache | None, inputs: dict[str, Any]
) -> Prompt:
    """The decoder's first ids, and the encoder's states among the inputs of each step."""
    shown = {"output_attentions": settings.output_attentions, "output_hidden_states": settings.output_hidden_states}
    mask = inputs.pop("attention_mask", None)
    states = inputs.pop("encoder_outputs", None)
    if states is None:
        names = [name for name in _ENCODED if name in inputs]
        given: dict[str, Any] = {name: inputs.pop(name) for name in names}
        if ids is not None and not given:
            given["input_ids"] = check_ids(ids, "input_ids")
        if not given:
            raise InputError("an encoder–decoder needs something to encode.", hint="Pass `input_ids` or `encoder_outputs`.")
        states = model.get_encoder()(**given, attention_mask=mask, **shown, return_dict=True)
    rows, device = states[0].shape[0], states[0].device
    start = torch.full((rows, 1), _start(settings, "decoder_start_token_id"), device=device)
    begun = inputs.pop("decoder_input_ids", None)
    padding = inputs.pop("decoder_attention_mask", None)
    written = start if begun is None else check_ids(begun, "decoder_input_ids")
    if begun is not None and bool((written[:, 0] != start[:, 0]).all()):
        written = torch.cat((start, written), dim=1)
        padding = None if padding is None else torch.cat((torch.ones_like(padding[:, :1]), padding), dim=1)
    more = {"encoder_outputs": states} | ({} if mask is None else {"attention_mask": mask})
    return Prompt(written, read_padding(padding, rows, written.shape[1]), None, cache, inputs | more, ids)


def _start(settings: GenerationConfig, name: str) -> int:
    """The token that a sequence begins with."""
    value = getattr(settings, name)
    value = settings.bos_token_id if value is None else value
    if value is None:
        raise InputError(f"there is no prompt, and `{name}` is not set.", hint="Pass `input_ids`, or set the token.")
    return int(value)


def check_ids(ids: Any, name: str) -> Tensor:
    """(B, T) integer ids.

    Raises:
        InputError, InputTypeError: anything else.
    """
    if not isinstance(ids, Tensor):
        raise InputTypeError(
            f"`{name}` must be a tensor, but is {type(ids).__name__}: {str(ids)[:60]!r}.",
            hint='Turn text into ids first: tokenizer(text, return_tensors="pt").',
        )
    if ids.ndim != 2 or ids.is_floating_point() or not ids.shape[0]:
        raise InputError(f"`{name}` must be (batch, positions) of integers, but is {tuple(ids.shape)} of {ids.dtype}.")
    return ids.long()


def read_padding(mask: Any, rows: int, length: int) -> Tensor | None:
    """(B, S) of bool.

    Raises:
        InputError: any other shape.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.shape != (rows, length):
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(f"`attention_mask` must be {(rows, length)} as the prompt is, but is {found}.")
    return mask != 0


def _inferred(ids: Tensor, settings: GenerationConfig) -> Tensor | None:
    """A mask from padding ids at the ends of rows, where padding can be told from what ends a sequence."""
    pad = settings.pad_token_id
    if pad is None or pad in end_tokens(settings):
        return None
    real = ids != pad
    return real.cummax(dim=1).values & real.flip(1).cummax(dim=1).values.flip(1)


def end_tokens(settings: GenerationConfig) -> list[int]:
    """The tokens that end a sequence."""
    ends = settings.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
