"""What all layers of one forward pass share: masks, the cache, rotary tables and what the caller asked to see.

A layer's ``Pattern`` and the padding are made into one tensor only when a kernel needs it, which layers of one pattern share.
Shapes: B batch, T queries, S keys, D hidden size, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transept.errors import InputError, InputTypeError, UnsupportedError, refuse
from transept.layers.caches.cache import Cache, K
from transept.layers.caches.layer import KeyValues
from transept.layers.rotary import with_signs

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Own = TypeVar("Own", default=Any)
else:
    from typing import TypeVar

    Own = TypeVar("Own")

# What attention gathers, and its weights where the kernel shows them.
Attended = tuple[Tensor, Tensor | None]
# (query, key, value, mask, causal, scale, dropout) -> what is gathered; see `transept.layers.attention`.
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float, float], Attended]


class Pattern(NamedTuple):
    """Which keys a query may attend to by position.

    If ``causal``, it attends to those at or before it. With a ``window``, it attends to those fewer positions before it, and in
    a pattern that is not causal as few behind it. Positions of one block (``Context.blocks``) see each other also where this
    rule hides them; with ``bounds_blocks`` the window still hides keys that are too far before the query. If ``chunked``, texts
    are cut into chunks of a window's positions, and queries see those of their own chunk.
    """

    causal: bool = False
    window: int | None = None
    bounds_blocks: bool = False
    chunked: bool = False

    def allowed(self, queries: Tensor, keys: Tensor, same_block: Tensor | None = None) -> Tensor | None:
        """Places (T) and (S) -> (1, T, S) of bool, or ``None`` where everything is allowed.

        ``same_block`` (1 or B, T, S) is true for pairs of positions of one block; the result has as many rows.
        """
        if not self.causal and self.window is None:
            return None
        distance = queries[None, :, None] - keys
        allowed = distance >= 0 if self.causal else None
        if allowed is not None and same_block is not None and self.bounds_blocks:
            allowed = allowed | same_block
        if self.window is not None and not self.chunked:
            near = distance < self.window if self.causal else distance.abs() < self.window
            allowed = near if allowed is None else allowed & near
        assert allowed is not None
        return allowed if same_block is None or self.bounds_blocks else allowed | same_block


@dataclass(frozen=True)
class Rows:
    """Sequences of ``lengths`` T that stand one behind the other, without padding, in states (1, N, D).

    Rows never see each other. Neighbours of one length are attended to in one call. What is cached has ``past`` positions.
    """

    lengths: tuple[int, ...]
    past: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.lengths)

    def groups(self) -> list[tuple[int, int]]:
        """Neighbours of one length, in order: how many there are, and their length."""
        return [(len(list(same)), length) for length, same in groupby(self.lengths)]

    def positions(self, device: torch.device) -> Tensor:
        """(1, N) numbers of the positions within their rows."""
        spans = zip(self.past or (0,) * len(self.lengths), self.lengths, strict=True)
        return torch.tensor([place for past, new in spans for place in range(past, past + new)], device=device)[None]

    def padded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(1, N, ...) -> (R, T, ...), filled up with zeros, and the mask (R, T) of what is real."""
        lengths = torch.tensor(self.lengths, device=x.device)
        return pad_sequence(list(self.split(x)), batch_first=True), within(lengths, max(self.lengths))

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """(1, N, ...) -> (T, ...) of each row."""
        return torch.split(x[0], [*self.lengths])


@dataclass(eq=False)
class Context(Generic[Own]):
    """One forward pass: what its layers share. T new positions come after ``past`` ones; with these they are S keys."""

    kernel: Kernel
    past: int | Tensor = 0  # in compiled graphs that are for any number, a tensor of no dimension
    queries: int = 0  # T; with rows, that of the longest
    keys: int = 0  # S
    rows: Rows | None = None  # where there are some, states are (1, N, D)
    alone: list[Context] = field(default_factory=list)  # of each row, where rows go on from caches of their own

    # What positions may attend to, beside the layers' patterns.
    padding: Tensor | None = None  # (B, S), true for real tokens
    texts: Tensor | None = None  # (1 or B, T) numbers of packed texts, which do not see each other
    blocks: Tensor | None = None  # (1 or B, S): those of one number see each other whatever patterns say; below 0 is no block
    full_mask: Tensor | None = None  # (B, 1 or H, T, S), in the place of the three and of patterns
    position_bias: Tensor | None = None  # (1 or B, H, 1 or T, S), added to the scores
    encoder_states: Tensor | None = None  # (B, S', D), for cross-attention
    encoder_mask: Tensor | None = None  # (B, 1 or H, 1 or T, S')
    lowered: dict[tuple[Pattern, int], Tensor | None] = field(default_factory=dict)  # masks, by pattern and S

    # What layers read and change.
    cache: Cache | None = None
    rotary: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # tables, by kind of layer
    grid: tuple[int, int] = (0, 0)  # rows and columns of patches
    layer: int = 0  # the number of the one that runs
    step: Any = None  # what kernels that compute whole blocks keep for the pass; ``False`` where they cannot compute it
    pooled: Tensor | None = None  # (R) places, among all B * T, of the only states that are read of the last layer
    own: Own = None  # type: ignore[assignment]  # what a family adds, as in ``Context[Tensor]``

    # What is shown, where it was asked for.
    hidden_states: list[Tensor] | None = None
    attentions: list[Tensor] | None = None
    cross_attentions: list[Tensor] | None = None
    router_logits: list[Tensor] | None = None  # (B * T, experts) each
    stages: list[Tensor] | None = None  # states that feature maps are made of
    features: Tensor | None = None  # (B, T, C), which frames of sound were made of
    as_tuple: bool = False

    def places(self, device: torch.device) -> Tensor:
        """(T) numbers of the new positions."""
        if isinstance(self.past, Tensor):
            return torch.arange(self.queries, device=device) + self.past
        return torch.arange(self.past, self.past + self.queries, device=device)

    def first(self, x: Tensor) -> Tensor:
        """(B, D): the first of each row's states (B, T, D)."""
        if self.pooled is not None:
            return self.keep(x).flatten(0, 1)
        return x[:, 0] if self.rows is None else x[0, self.firsts(x)]

    def to_pool(self, x: Tensor) -> Tensor:
        """What a pooler of the first states reads: all states (B, T, D) where each row has its own T, else the first (B, D)."""
        return x if self.pooled is None and self.rows is None else self.first(x)

    def firsts(self, x: Tensor) -> Tensor:
        """(R) places of the first of each row's states among all B * T."""
        if self.rows is None:
            return torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device)
        return torch.tensor((0, *self.rows.lengths[:-1]), device=x.device).cumsum(0)

    def keep(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (B, R / B, ...): what belongs to the places that are kept; all where nothing else is left out."""
        if self.pooled is None or x.shape[0] * x.shape[1] == len(self.pooled):
            return x
        return x.flatten(0, 1)[self.pooled].view(x.shape[0], -1, *x.shape[2:])

    def kept(self, kind: type[K]) -> K | None:
        """What the layer that runs keeps of a kind, to read and to change; ``None`` where there is no cache."""
        return None if self.cache is None else self.cache.part(self.layer, kind)

    def key_values(self) -> KeyValues | None:
        return self.kept(KeyValues)

    def cross_key_values(self) -> KeyValues | None:
        return None if self.cache is None else self.cache.cross_layer(self.layer)


def lower(
    pattern: Pattern,
    padding: Tensor | None,
    queries: int,
    keys: int,
    device: torch.device,
    past: Tensor | None = None,
    *,
    blocks: Tensor | None = None,
    texts: Tensor | None = None,
    begins: Tensor | None = None,
) -> Tensor | None:
    """The mask of one pattern over a batch: (B or 1, 1, T, S) of bool, true where attention is allowed.

    Queries are the last of the keys' positions; ``padding`` (B, S) is true for real tokens. ``past`` are the positions before
    the queries, where keys that nothing has been written to yet come after them. ``blocks`` and ``texts`` (1 or B, S) are those
    of :class:`Context`; ``begins`` (1 or B, 1) are the places of rows' first real positions, below 0 if those were dropped.
    """
    rules = [None if padding is None else padding[:, None]]
    if past is not None or texts is not None or pattern.window is not None or (pattern.causal and queries > 1):
        at = torch.arange(keys, device=device)
        places = torch.arange(keys - queries, keys, device=device) if past is None else past + at[:queries]
        rules += [
            pattern.allowed(places, at, None if blocks is None else same_number(blocks, places)),
            same_chunk(pattern.window, begins, texts, places, at) if pattern.chunked and pattern.window else None,
            None if texts is None else same_number(texts, places),
            None if past is None else (at <= places[-1]).expand(1, queries, -1),
        ]
    allowed = None
    for rule in rules:
        if rule is not None:
            allowed = rule if allowed is None else allowed & rule
    return None if allowed is None else allowed[:, None]


def same_number(numbers: Tensor, places: Tensor) -> Tensor:
    """Numbers (1 or B, S) -> (1 or B, T, S): true where a query at one of the ``places`` (T) has a key's, and none below 0."""
    own = numbers[:, places, None]
    return (own == numbers[:, None]) & (own >= 0)


def same_chunk(size: int, begins: Tensor | None, texts: Tensor | None, places: Tensor, at: Tensor) -> Tensor:
    """(1 or B, T, S) of bool: whether queries at ``places`` (T) are in the same chunk of so many positions as the keys (S).

    Chunks are counted from where a row ``begins`` (B, 1) or, where there are several, from the beginnings of its ``texts``.
    """
    first = at.new_zeros(1, 1) if begins is None else begins
    if texts is not None:
        first = F.pad(torch.where(texts[:, 1:] != texts[:, :-1], at[1:], 0), (1, 0)).cummax(dim=1).values
    numbers = (at - first).div(size, rounding_mode="floor")
    return numbers[:, places, None] == numbers[:, None]


def within(lengths: Tensor, size: int) -> Tensor:
    """(B) lengths -> (B, size) of bool: true for the first positions of each row, as many as it has."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def read_mask(
    mask: Any,
    batch: int,
    queries: int,
    keys: int,
    name: str = "attention_mask",
    *,
    heads: int | None = None,
    device: torch.device | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Split what a caller passed into ``(padding, full)``: (B, S) of bool, or (B, H or 1, T, S) of bool or float.

    A mask may be (B, S), 1 for real tokens; or (B, T, S) or (B, H or 1, T, S): bool or integers with true for allowed, or
    floats that are added to the scores. Any other shape is an ``InputError``, which calls the mask by its ``name``, and so is
    another H than ``heads``, where that is known. What is no tensor is an ``InputTypeError``.
    """
    if not isinstance(mask, Tensor):
        hint = 'Pass (batch, positions), 1 for real ones; of texts, tokenizer(texts, return_tensors="pt") gives it.'
        raise InputTypeError(f"`{name}` must be a tensor, but is {type(mask).__name__}.", hint=hint)
    mask = mask if device is None else mask.to(device)
    if mask.ndim == 2:
        if mask.shape != (batch, keys):
            # A mask for the new tokens alone is the likely mistake when there is a cache.
            message = f"`{name}` has the shape {tuple(mask.shape)}, but the batch needs {(batch, keys)}."
            raise InputError(message, hint="It covers cached positions as well as new ones." if keys > queries else None)
        return mask != 0, None
    full = mask[:, None] if mask.ndim == 3 else mask
    if full.ndim != 4 or full.shape[0] not in (1, batch) or full.shape[2] not in (1, queries) or full.shape[3] != keys:
        wanted = f"{(batch, keys)}, {(batch, queries, keys)} or (batch, 1 or heads, {queries}, {keys})"
        raise InputError(f"`{name}` has the shape {tuple(mask.shape)}, but must be {wanted}.")
    if heads is not None and full.shape[1] not in (1, heads):
        shape = tuple(mask.shape)
        raise InputError(f"`{name}` has the shape {shape}: for {full.shape[1]} heads, but the model has {heads}.")
    return None, full if full.is_floating_point() else full != 0


def read_encoder(ctx: Context, states: Tensor, mask: Any, heads: int | None = None) -> None:
    """Put an encoder's states (B, S', D) into the context, and what a caller says of which may be read, as for `read_mask`."""
    ctx.encoder_states = states
    if mask is not None:
        sizes, name = (states.shape[0], ctx.queries, states.shape[1]), "encoder_attention_mask"
        padding, full = read_mask(mask, *sizes, name, heads=heads, device=states.device)
        ctx.encoder_mask = _finite(full, states) if padding is None else padding[:, None, None, :]


def context_of_call(
    kernel: Kernel,
    kind: str | None,
    x: Tensor,
    mask: Tensor | None = None,
    *,
    attention_mask: Tensor | None = None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> Context:
    """What a layer needs to know when it is called alone, by the reference's arguments.

    Args:
        kernel: what attention is computed by.
        kind: the kind of layer whose rotary table applies to its attention, where there is one.
        x: states (B, T, D).
        mask, attention_mask: (B, T), or what is added to scores (B, 1 or H, 1 or T, T).
        position_embeddings: cosines and sines (B, T, E) of a model's ``rotary_emb``.
        encoder_hidden_states, encoder_attention_mask: what cross-attention reads (B, S, D), and its mask.
        position_bias: what is added to the scores (1 or B, H, T, T) for the distances of positions.
        others: positions, which have their effect through ``position_embeddings`` alone; what is ``None`` or ``False``.

    Raises:
        InputError: the layer turns queries and keys, and there are no ``position_embeddings``.
        UnsupportedError: another argument, such as a cache; only a whole model serves these.
    """
    for name, value in others.items():
        unused = value is None or value is False or name in ("position_ids", "cache_position")
        refuse(not unused, f"a layer that is called alone takes no `{name}`.", "Call the model.", UnsupportedError)
    mask = attention_mask if mask is None else mask
    batch, length = x.shape[:2]
    ctx: Context = Context(kernel, queries=length, keys=length, position_bias=position_bias)
    if mask is not None:
        ctx.padding, ctx.full_mask = read_mask(mask, batch, length, length)
    if encoder_hidden_states is not None:
        read_encoder(ctx, encoder_hidden_states, encoder_attention_mask)
    if kind is not None:
        if position_embeddings is None:
            hint = "Pass position_embeddings=model.rotary_emb(x, position_ids)."
            raise InputError("a layer with rotary positions needs `position_embeddings`.", hint=hint)
        cos, sin = position_embeddings
        ctx.rotary = {kind: (cos[:, None], with_signs(sin)[:, None])}
    return ctx


def reaching(mask: Tensor, keys: int) -> Tensor:
    """A padding mask (B, S or less) over all S keys: those that it does not reach are new, or not written to yet."""
    return F.pad(mask, (0, keys - mask.shape[1]), value=1) if mask.ndim == 2 and mask.shape[1] < keys else mask


def mask_for(ctx: Context, pattern: Pattern, queries: int, keys: int, like: Tensor) -> tuple[Tensor | None, bool]:
    """The mask of one pattern in a forward pass: ``(tensor, causal)``, ``causal`` saying it all when there is no tensor.

    The tensor is (B or 1, 1 or H, T, S): bool, true where allowed, or floats to add to the scores of ``like``'s type.
    """
    # While every key is near, all layers share one mask or need none; an exported program is for longer sequences too.
    reached = ctx.keys if pattern.chunked and ctx.rows is None else keys  # where keys were dropped, these are of the last chunk
    if pattern.causal and pattern.window is not None and not torch.compiler.is_exporting() and reached <= pattern.window:
        pattern = pattern._replace(window=None)
    plain = ctx.padding is None and ctx.full_mask is None and ctx.position_bias is None
    if plain and ctx.texts is None and ctx.blocks is None and pattern.causal and pattern.window is None and queries == keys:
        return None, True
    # Layers with a window may have fewer keys than others, of which their pattern is then the same; not so in an exported
    # program, where the number is a symbol that cannot be looked up.
    place = (pattern, 0 if torch.compiler.is_exporting() else keys)
    if place not in ctx.lowered:
        ctx.lowered[place] = _with_bias(ctx, pattern, queries, keys, like)
    return ctx.lowered[place], False


def _with_bias(ctx: Context, pattern: Pattern, queries: int, keys: int, like: Tensor) -> Tensor | None:
    mask = _last(ctx.full_mask, keys)
    if mask is None:
        past = ctx.past if isinstance(ctx.past, Tensor) else None
        padding, blocks = _last(ctx.padding, keys), _last(ctx.blocks, keys)
        begins = _begins(ctx, keys, like.device) if pattern.chunked else None
        mask = lower(pattern, padding, queries, keys, like.device, past, blocks=blocks, texts=ctx.texts, begins=begins)
    else:
        mask = _finite(mask, like)
    if ctx.position_bias is None:
        return mask
    # With rows, that of one shorter than the longest.
    bias = ctx.position_bias[..., -keys:] if ctx.rows is None else ctx.position_bias[:, :, :queries, :keys]
    bias = bias.to(like.dtype)
    if mask is None:
        return bias
    return bias + mask if mask.is_floating_point() else bias.masked_fill(~mask, torch.finfo(like.dtype).min)


def _begins(ctx: Context, keys: int, device: torch.device) -> Tensor:
    """(1 or B, 1): the places of rows' first real positions among the last keys, below 0 where those were dropped."""
    dropped = ctx.keys - keys if ctx.rows is None and not isinstance(ctx.past, Tensor) else 0
    if ctx.padding is None:
        return torch.full((1, 1), -dropped, device=device)
    return (ctx.padding.cumsum(dim=1) == 0).sum(dim=1, keepdim=True) - dropped


def _finite(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask whose floats have the type of ``like`` and are finite, so that a row that may attend to nothing stays finite."""
    if mask is None or not mask.is_floating_point():
        return mask
    return mask.clamp(min=max(torch.finfo(mask.dtype).min, torch.finfo(like.dtype).min)).to(like.dtype)


def _last(mask: Tensor | None, keys: int) -> Tensor | None:
    """What a mask says of the last keys, where a cache has dropped those before them."""
    return mask if mask is None or mask.shape[-1] <= keys else mask[..., -keys:]
