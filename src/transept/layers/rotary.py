"""Rotary position embeddings (Su et al. 2021) and their scalings for longer contexts.

Element i of a head turns with element i + R/2, as most checkpoints were trained, or with its neighbour (interleaved).
Frequencies and angles are always in float32 and in the training's order of operations: at position 100,000 the last bit of a
frequency turns a head by a visible angle.
Shapes: B batch, H heads, T positions, E head size, R <= E the elements that turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from transept.config.rotary import RotaryConfig
from transept.errors import ConfigError, InputError, nearest


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (B, H, T, E) by tables of (B or 1, 1, T, R); of the E elements only the first R turn.

    Sines have the sign with which the other half is added: a decoder's step is so short that each operation counts.
    """
    size = cos.shape[-1]
    turned, rest = (x, None) if size == x.shape[-1] else (x[..., :size], x[..., size:])
    turned = turned * cos + turned.roll(size // 2, -1) * sin
    return turned if rest is None else torch.cat([turned, rest], dim=-1)


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same by the same tables, where pairs are neighbours: element 2 i of a head turns with element 2 i + 1."""
    half = cos.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., half:]  # once for each pair
    first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
    return turned if 2 * half == x.shape[-1] else torch.cat([turned, x[..., 2 * half :]], dim=-1)


def rotate_half(x: Tensor) -> Tensor:
    """The second half of the last axis with its sign changed, before the first half."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by tables (B, T, E) whose sines have no sign, as the reference's are."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class Rotary(nn.Module):
    """Makes the tables of cosines and sines that queries and keys, of heads of ``size`` E, are rotated by.

    It holds no buffer: the frequencies are computed when first needed and kept per device, never cast with the model. ``rope``
    is what :meth:`transept.config.rotary.RotaryConfig.rope` gives; what is missing or impossible in it is a ``ConfigError``.
    """

    def __init__(self, size: int, rope: Mapping[str, Any]) -> None:
        super().__init__()
        name = rope.get("rope_type", "default")
        if not isinstance(name, str) or name not in FREQUENCIES:
            raise ConfigError(f"there is no `rope_type` {name!r}.", hint=nearest(str(name), FREQUENCIES))
        self.frequencies = FREQUENCIES[name](size, rope)
        self._kept: Tensor | None = None

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(B or 1, T) of positions -> cosines and signed sines of (B or 1, 1, T, R) in ``dtype``."""
        return self.tables(positions[:, None, :, None].float() * self.inverse(positions), dtype)

    def tables(self, angles: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The tables (..., R) of angles (..., R / 2)."""
        cos, sin = angles.cos() * self.frequencies.scale, angles.sin() * self.frequencies.scale
        return torch.cat([cos, cos], dim=-1).to(dtype), torch.cat([-sin, sin], dim=-1).to(dtype)

    def inverse(self, positions: Tensor) -> Tensor:
        """(R / 2) of angles per position, for a sequence with these positions."""
        if self.frequencies.by_length:
            return self.frequencies.inverse(positions.max() + 1)
        if self._kept is not None and self._kept.device == positions.device:
            return self._kept
        with torch.inference_mode(False):  # what is kept must serve training too
            found = self.frequencies.inverse().to(positions.device)
        if not torch.compiler.is_compiling() and type(found) is Tensor:  # a tracer's tensor ends with its trace
            self._kept = found
        return found

    def extra_repr(self) -> str:
        return f"{type(self.frequencies).__name__}, {self.frequencies.size}"


class RotaryTables(nn.ModuleDict):
    """The rotary layers of a model, by the kinds of layers that each is for."""

    def tables(self, positions: Tensor, dtype: torch.dtype) -> dict[str, tuple[Tensor, Tensor]]:
        """The tables of :class:`Rotary` for positions, for each kind of layer."""
        return {kind: rotary(positions, dtype) for kind, rotary in self.items()}

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> tuple[Tensor, Tensor]:
        """The ``position_embeddings`` of a layer that is called alone: cosines and sines (B, T, R) in the type of ``x``.

        ``layer_type`` is the kind of layer, where there are several.
        """
        kind = next(iter(self.keys())) if layer_type is None else layer_type
        cos, sin = self[kind](position_ids, x.dtype)
        return cos[:, 0], with_signs(sin[:, 0])

    @property
    def inv_freq(self) -> Tensor:
        """(R / 2): by how much pairs of the first kind turn from one position to the next."""
        first: Any = next(iter(self.values()))
        return first.inverse(torch.zeros(1))


def head_size(config: Any) -> int:
    """E of a config with ``num_attention_heads``."""
    size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return size


def rotary_tables(config: RotaryConfig, make: Callable[[int, dict[str, Any]], Rotary] = Rotary) -> RotaryTables:
    """The rotary layers of a config: one for all layers or, with nested ``rope_parameters``, one for each kind of them."""
    return RotaryTables({kind: make(head_size(config), config.rope(kind)) for kind in config.rope_kinds()})


def with_signs(sin: Tensor) -> Tensor:
    """Signed sines (..., R), which :func:`rotate` reads, of plain ones, or the other way."""
    half = sin.shape[-1] // 2
    return torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)


class SectionRotary(Rotary):
    """Tables for positions of three axes, such as time, row and column (M-RoPE, Wang et al. 2024).

    Of the pairs of a head the first ``mrope_section[0]`` turn by the first axis, so many others by the second, and so on.
    """

    def __init__(self, size: int, rope: Mapping[str, Any]) -> None:
        super().__init__(size, rope)
        pairs, found = self.frequencies.size // 2, rope.get("mrope_section", [16, 24, 24])
        whole = isinstance(found, list) and all(type(each) is int and each >= 0 for each in found)
        if not whole or sum(found) != pairs:
            self.frequencies.fail("mrope_section", f"must be whole numbers that add up to {pairs}, half of a head")
        self.sections: list[int] = found

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(3, B or 1, T) of positions, or (B or 1, T) that are the same on all axes -> the tables of (B or 1, 1, T, R)."""
        if positions.ndim == 2:
            return super().forward(positions, dtype)
        angles = positions[:, :, None, :, None].float() * self.inverse(positions)
        parts = torch.split(angles, self.sections, dim=-1)
        return self.tables(torch.cat([part[axis % 3] for axis, part in enumerate(parts)], dim=-1), dtype)


def section_positions(
    types: Tensor, real: Tensor, starts: Sequence[int], queues: Mapping[int, Iterator[tuple[tuple[int, int, int], float]]]
) -> Tensor:
    """Positions (3, B, T) in time, rows and columns, from a first one (B) on.

    ``types`` (B, T) are 0 for text and else the kind of a picture, ``real`` (B, T) is false for padding, which gets zeros.
    ``queues`` has for each kind the grids of features of its pictures, and how far apart in time their frames are.
    """
    out = torch.zeros(3, *types.shape, dtype=torch.long)
    for row, start in enumerate(starts):
        places, at, parts, here = real[row].nonzero()[:, 0], start, [torch.zeros(3, 0, dtype=torch.long)], 0
        kinds = types[row, places].tolist()
        while here < len(kinds):
            if kinds[here] == 0:
                end = next((place for place in range(here, len(kinds)) if kinds[place]), len(kinds))
                parts.append(torch.arange(at, at + end - here).expand(3, -1))
                at += end - here
            else:
                (frames, rows, columns), apart = next(queues[kinds[here]], ((0, 0, 0), 0.0))
                end = here + frames * rows * columns
                if end == here or kinds[here:end] != [kinds[here]] * (end - here):
                    raise InputError(f"row {row} has placeholders from token {int(places[here])} on that no picture fits.")
                time = (torch.arange(frames) * apart).long()
                parts.append(torch.cartesian_prod(time, torch.arange(rows), torch.arange(columns)).T + at)
                at += max(rows, columns)
            here = end
        out[:, row, places] = torch.cat(parts, dim=1)
    return out


class AxialRotary(Rotary):
    """Tables for positions on a grid: of a head's ``size``, a half turns by the row and a half by the column."""

    def __init__(self, size: int, theta: float) -> None:
        super().__init__(size // 2, {"rope_theta": theta})

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(2, N) of rows and columns -> the tables of (1, 1, N, E)."""
        angles = positions[..., None].float() * self.inverse(positions)
        return self.tables(torch.cat([*angles], dim=-1)[None, None], dtype)


class Default:
    """The frequencies that ``rope_theta`` alone gives, over the first ``partial_rotary_factor`` of a head.

    ``scale`` multiplies the tables, and so queries and keys.
    """

    by_length: ClassVar[bool] = False  # whether frequencies depend on how long the sequence is
    whole: ClassVar[bool] = False  # whether tables are of whole heads
    switch: int | None = None  # the longest sequence whose frequencies are those of shorter ones, where longer ones have others

    def __init__(self, size: int, rope: Mapping[str, Any]) -> None:
        self.rope, self.scale = rope, 1.0
        self.theta = self.number("rope_theta")
        self.share = self.number("partial_rotary_factor", 1.0)
        self.size = size if self.whole else int(size * self.share)
        if not 2 <= self.size + self.size % 2 <= size:
            self.fail("partial_rotary_factor", f"must leave 2 to {size} elements of a head of {size}, in pairs")
        self.read()

    def read(self) -> None:
        """Read the parameters that only this type has."""

    def number(self, key: str, default: float | None = None) -> float:
        return self.checked(key, default if self.rope.get(key) is None else self.rope[key])

    def checked(self, key: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-18 <= value <= 1e18:
            self.fail(key, "must be a number between 1e-18 and 1e18")
        return float(value)

    def fail(self, key: str, rule: str) -> NoReturn:
        raise ConfigError(f"`{key}` in `rope_parameters` {rule}, but is {str(self.rope.get(key))[:80]!r}.")

    def powers(self, theta: Tensor | None = None) -> Tensor:
        device = theta.device if isinstance(theta, Tensor) else "cpu"
        shares = torch.arange(0, self.size, 2, dtype=torch.int64, device=device).float() / self.size
        return (self.theta if theta is None else theta) ** shares

    def inverse(self, length: Tensor | None = None) -> Tensor:
        """(R / 2) of float32 angles per position; ``length`` is a scalar where the type asks for it."""
        return 1.0 / self.powers()


class Linear(Default):
    """All positions closer together by ``factor`` (Chen et al. 2023)."""

    usual: ClassVar[float | None] = None

    def read(self) -> None:
        self.factor = self.number("factor", self.usual)

    def inverse(self, length: Tensor | None = None) -> Tensor:
        return super().inverse() / self.factor


class Proportional(Linear):
    """Whole heads are in the tables, but of their pairs only the first ``partial_rotary_factor`` turn."""

    whole, usual = True, 1.0

    def inverse(self, length: Tensor | None = None) -> Tensor:
        found, pairs = super().inverse(), int(self.share * self.size // 2)
        return torch.cat([found[:pairs], torch.zeros_like(found[pairs:])])


class Dynamic(Default):
    """A base that grows with the sequence once that is longer than ``max_position_embeddings`` (NTK-aware scaling)."""

    by_length = True

    def read(self) -> None:
        self.factor, self.most = self.number("factor"), self.number("max_position_embeddings")
        if self.size < 3:
            self.fail("partial_rotary_factor", "must leave more than 2 elements for the dynamic type")

    def inverse(self, length: Tensor | None = None) -> Tensor:
        assert length is not None
        longer = length.clamp(min=int(self.most))
        growth = (self.factor * longer / self.most) - (self.factor - 1)
        return 1.0 / self.powers(self.theta * growth ** (self.size / (self.size - 2)))


class Yarn(Default):
    """Slow frequencies interpolated, fast ones kept, a ramp between (Peng et al. 2023)."""

    def read(self) -> None:
        self.original = self.number("original_max_position_embeddings")
        self.factor = self.number("factor", self.number("max_position_embeddings", self.original) / self.original)
        part, whole = self.rope.get("mscale"), self.rope.get("mscale_all_dim")
        scale = self._scale(self.number("mscale")) / self._scale(self.number("mscale_all_dim")) if part and whole else None
        self.scale = self.number("attention_factor", self._scale(1.0) if scale is None else scale)
        if self.theta == 1:
            self.fail("rope_theta", "must not be 1 for the yarn type")
        low, high = self._pair(self.number("beta_fast", 32)), self._pair(self.number("beta_slow", 1))
        if self.rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        self.low, self.high = max(low, 0), min(high, self.size - 1)

    def _scale(self, weight: float) -> float:
        return 0.1 * weight * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def _pair(self, turns: float) -> float:
        """Which pair turns so often within the original length."""
        return self.size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

    def inverse(self, length: Tensor | None = None) -> Tensor:
        powers = self.powers()
        width = self.high - self.low or 0.001
        fast = 1 - ((torch.arange(len(powers), dtype=torch.float32, device="cpu") - self.low) / width).clamp(0, 1)
        return 1.0 / (self.factor * powers) * (1 - fast) + 1.0 / powers * fast


class LongRope(Default):
    """A factor for each frequency: one list for short sequences, one beyond the original length (Ding et al. 2024)."""

    by_length = True

    def read(self) -> None:
        self.original = self.number("original_max_position_embeddings")
        factor = self.number("factor", self.number("max_position_embeddings", self.original) / self.original)
        grown = math.sqrt(1 + math.log(factor) / math.log(self.original)) if factor > 1 < self.original else 1.0
        self.scale = self.number("attention_factor", grown)
        self.short, self.long, self.switch = self._factors("short_factor"), self._factors("long_factor"), int(self.original)

    def _factors(self, key: str) -> list[float]:
        found = self.rope.get(key)
        pairs = (self.size + 1) // 2
        if not isinstance(found, list | tuple) or len(found) != pairs:
            self.fail(key, f"must be a list of {pairs} numbers")
        return [self.checked(key, factor) for factor in found]

    def inverse(self, length: Tensor | None = None) -> Tensor:
        assert length is not None
        powers = self.powers().to(length.device)
        short, long = (torch.tensor(f, dtype=torch.float32, device=length.device) for f in (self.short, self.long))
        return 1.0 / (torch.where(length > self.original, long, short) * powers)


class Llama3(Default):
    """Slow frequencies divided by ``factor``, fast ones kept, smoothly between (Llama 3.1)."""

    def read(self) -> None:
        self.factor, self.original = self.number("factor"), self.number("original_max_position_embeddings")
        self.low, self.high = self.number("low_freq_factor"), self.number("high_freq_factor")
        if self.high <= self.low:
            self.fail("high_freq_factor", f"must be greater than `low_freq_factor` ({self.low})")

    def inverse(self, length: Tensor | None = None) -> Tensor:
        inverse = super().inverse()
        wavelength = 2 * math.pi / inverse
        smooth = (self.original / wavelength - self.low) / (self.high - self.low)
        between = (1 - smooth) * inverse / self.factor + smooth * inverse
        found = torch.where(wavelength > self.original / self.low, inverse / self.factor, between)
        return torch.where(wavelength < self.original / self.high, inverse, found)


FREQUENCIES: dict[str, type[Default]] = {
    "default": Default,
    "linear": Linear,
    "dynamic": Dynamic,
    "yarn": Yarn,
    "longrope": LongRope,
    "llama3": Llama3,
    "proportional": Proportional,
}
