"""The settings with which the reference rounds models while it loads them, as far as there are such products here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from transept.environment import tiles
from transept.errors import InputError, InputTypeError, UnsupportedError, refuse
from transept.quantized.eight_bits import (
    QuantizedForManyRows,
    QuantizedForMatrixUnits,
    can_quantize,
    has_matrix_units,
)
from transept.quantized.grouped import GroupedLinear, can_multiply
from transept.quantized.linear import QuantizedLinear
from transept.quantized.weights import GROUP

Make = Callable[[Any], QuantizedLinear]


@dataclass(frozen=True)
class Rounding:
    """How linear layers are rounded.

    Args:
        bits: 4 or 8.
        group_size: how many numbers of a row have one scale, with four bits: a multiple of 8 such as 32 or 128.
        skipped: names of layers, or parts of names, that keep their weights; the output layer does where this says nothing.

    Raises:
        InputError: there are no such bits or groups.
    """

    bits: int
    group_size: int = GROUP
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        refuse(self.bits not in (4, 8), f"weights can have 4 or 8 bits, not {self.bits!r}.")
        size = self.group_size
        refuse(type(size) is not int or size < 8 or size % 8, f"a group cannot have {size!r} numbers.")

    def maker(self, *, writes: bool) -> Make:
        """What makes a layer of these bits; arguments and errors of :func:`of_eight_bits`."""
        return of_eight_bits(writes=writes) if self.bits == 8 else partial(GroupedLinear.of_four_bits, group=self.group_size)

    def skips(self, name: str) -> bool:
        """Whether a layer of this name keeps its weight."""
        parts = name.split(".")
        return any(skipped in parts or name.endswith(skipped) or name.startswith(f"{skipped}.") for skipped in self.skipped)


def of_eight_bits(*, writes: bool) -> Make:
    """What makes a layer of eight bits; ``writes`` says that the model multiplies one row at a time, as in generation.

    Raises:
        InputError: the processor cannot.
    """
    if not can_quantize():
        raise InputError("weights of eight bits cannot be multiplied here: PyTorch has no engine for quantized products.")
    tiles.check()
    if writes and can_multiply():
        return GroupedLinear.of_eight_bits
    return QuantizedForMatrixUnits if has_matrix_units() and not writes else QuantizedForManyRows


class QuantizationConfigMixin:
    """Base of the settings of quantised checkpoints.

    Those of methods that need texts or kernels of other processors can be made for checkpoints that are stored so, which say
    by themselves how; to round a plain checkpoint by one is an ``UnsupportedError``.
    """

    dequantize = False

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)

    def rounding(self) -> Rounding:
        """How a plain checkpoint is rounded."""
        name = type(self).__name__
        hint = "Take BitsAndBytesConfig, TorchAoConfig, HqqConfig or QuantoConfig, or call quantize(model)."
        raise UnsupportedError(f"a plain checkpoint cannot be rounded by {name} here.", hint=hint)

    def to_dict(self) -> dict[str, Any]:
        """The settings as they were given."""
        return dict(self.__dict__)


class BitsAndBytesConfig(QuantizationConfigMixin):
    """Eight or four bits; the other settings, of how bitsandbytes rounds, say nothing here, where groups of 32 have a scale."""

    def __init__(
        self,
        load_in_8bit: bool = False,
        load_in_4bit: bool = False,
        llm_int8_skip_modules: Iterable[str] | None = None,
        **settings: Any,
    ) -> None:
        for name, value in (("load_in_8bit", load_in_8bit), ("load_in_4bit", load_in_4bit)):
            refuse(type(value) is not bool, f"`{name}` is True or False, not {value!r:.40}.", kind=InputTypeError)
        refuse(load_in_8bit and load_in_4bit, "weights are loaded in eight bits or in four, not both.")
        self.load_in_8bit, self.load_in_4bit = load_in_8bit, load_in_4bit
        self.llm_int8_skip_modules = None if llm_int8_skip_modules is None else [*llm_int8_skip_modules]
        super().__init__(**settings)

    def rounding(self) -> Rounding:
        refuse(not (self.load_in_4bit or self.load_in_8bit), "set `load_in_4bit` or `load_in_8bit`.")
        return Rounding(4 if self.load_in_4bit else 8, skipped=(*(self.llm_int8_skip_modules or ()),))


class TorchAoConfig(QuantizationConfigMixin):
    """``quant_type`` is a name such as ``"int4_weight_only"``, or a configuration of torchao with that class name."""

    def __init__(
        self,
        quant_type: Any,
        modules_to_not_convert: Iterable[str] | None = None,
        group_size: int | None = None,
        **settings: Any,
    ) -> None:
        self.quant_type, self.modules_to_not_convert = quant_type, [*(modules_to_not_convert or ())]
        self.group_size = group_size or getattr(quant_type, "group_size", None)
        super().__init__(**settings)

    def rounding(self) -> Rounding:
        kind = self.quant_type if isinstance(self.quant_type, str) else type(self.quant_type).__name__
        bits = next((bits for bits in (4, 8) if f"int{bits}" in kind.lower()), None)
        refuse(bits is None, f"`quant_type` {kind!r:.60} is none of four or eight bits.", kind=UnsupportedError)
        return Rounding(bits or 0, self.group_size or GROUP, (*self.modules_to_not_convert,))


class HqqConfig(QuantizationConfigMixin):
    """``nbits`` are 4 or 8; scales are found by the squared error, as everywhere here."""

    def __init__(
        self, nbits: int = 4, group_size: int = 64, skip_modules: Iterable[str] = ("lm_head",), **settings: Any
    ) -> None:
        self.nbits, self.group_size, self.skip_modules = nbits, group_size, [*skip_modules]
        super().__init__(**settings)

    def rounding(self) -> Rounding:
        return Rounding(self.nbits, self.group_size, (*self.skip_modules,))


class QuantoConfig(QuantizationConfigMixin):
    """``weights`` are ``"int8"`` or ``"int4"``."""

    def __init__(self, weights: str = "int8", modules_to_not_convert: Iterable[str] | None = None, **settings: Any) -> None:
        self.weights, self.modules_to_not_convert = weights, [*(modules_to_not_convert or ())]
        super().__init__(**settings)

    def rounding(self) -> Rounding:
        bits = {"int8": 8, "int4": 4}.get(self.weights, 0)
        refuse(not bits, f"`weights` are 'int8' or 'int4' here, not {self.weights!r:.40}.", kind=UnsupportedError)
        return Rounding(bits, skipped=(*self.modules_to_not_convert,))


def rounding_of(settings: Any) -> Rounding:
    """How a plain checkpoint is rounded, by settings of the reference or what ``to_dict`` made of them."""
    if isinstance(settings, Mapping):
        refuse(not settings.keys() & {"load_in_4bit", "load_in_8bit"}, f"`quantization_config` cannot be {settings!r:.200}.")
        settings = BitsAndBytesConfig(**{str(name): value for name, value in settings.items() if name != "quant_method"})
    what = f"`quantization_config` is settings such as BitsAndBytesConfig, not {settings!r:.200}."
    refuse(not hasattr(settings, "rounding"), what, kind=InputTypeError)
    found: Rounding = settings.rounding()
    return found
