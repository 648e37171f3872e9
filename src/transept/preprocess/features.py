"""What preprocessors return: a dictionary whose values are also attributes, and how long the rows of a batch become."""

from __future__ import annotations

import importlib
import sys
from collections import UserDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from transept.errors import InputError, InputTypeError, MissingExtraError

if TYPE_CHECKING:
    from numpy.typing import NDArray


# How many values padding may add to a batch of hardly any; a batch of N values may grow by 1,000 N more.
MAX_FILL = 2**25
PADDINGS = {False: None, None: None, "do_not_pad": None, True: "longest", "longest": "longest", "max_length": "max_length"}


class BatchFeature(UserDict[str, Any]):
    """A model's inputs by name, such as ``pixel_values`` (B, C, H, W) or ``input_values`` (B, T).

    ``tensor_type`` is ``"pt"`` for torch tensors, ``"np"`` for numpy arrays, ``None`` to leave values as they are.
    ``InputError``: another one, or rows of unequal lengths that make no tensor.
    """

    def __init__(self, data: Mapping[str, Any] | None = None, tensor_type: str | None = None) -> None:
        super().__init__(data)
        self.convert_to_tensors(tensor_type)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError:
            held = ", ".join(self.__dict__.get("data", ())) or "nothing"
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {held}") from None

    def convert_to_tensors(self, tensor_type: str | None = None, prepend_batch_axis: bool = False) -> Self:
        """Turn every value into a tensor, in place, with an axis for one row first where asked to."""
        check_tensor_type(tensor_type)
        if tensor_type is not None:
            for name, value in self.items():
                self[name] = _as_tensor(name, [value] if prepend_batch_axis else value, tensor_type)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """``torch.Tensor.to`` of every tensor, in place; a dtype is for those of floating point alone."""
        import torch

        device, _, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        for name, value in self.items():
            if isinstance(value, torch.Tensor):
                floating = value.is_floating_point()
                self[name] = value.to(*args, **kwargs) if floating else value.to(device, non_blocking=non_blocking)
        return self


def needed(module: str, package: str, extra: str, purpose: str) -> Any:
    """An optional module, whose absence is a ``MissingExtraError``."""
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # soundfile raises OSError where its C library is missing
        raise MissingExtraError(package, extra, purpose) from error


def check_tensor_type(tensor_type: str | None) -> None:
    """Raise ``InputError`` unless ``tensor_type`` is known."""
    if tensor_type not in ("pt", "np", None):
        raise InputError(f"return_tensors is {tensor_type!r}.", hint='Pass "pt", "np" or None.')


def as_numpy(value: Any) -> NDArray[Any] | None:
    """``value`` as a numpy array if it is an array or a tensor, else ``None``. Imports no torch."""
    np, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if np is not None and isinstance(value, np.ndarray):
        return value  # type: ignore[no-any-return]
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    tensor = value.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # type: ignore[no-any-return]


def _as_tensor(name: str, value: Any, tensor_type: str) -> Any:
    """A value, or rows of one shape, as a tensor or an array (``InputError``: unequal rows; ``InputTypeError``: no numbers)."""
    import numpy as np

    rows = value if isinstance(value, list | tuple) else ()
    first = rows[0] if rows else None
    try:
        if tensor_type == "pt":
            import torch

            if isinstance(value, torch.Tensor):
                return value
            if isinstance(first, torch.Tensor):
                return torch.stack(list(rows))
        if (array := as_numpy(value)) is None:
            array = np.asarray(value if as_numpy(first) is None else [as_numpy(row) for row in rows])
        if array.dtype.kind in "OUS":
            raise ValueError("it holds what is no number")
    except (TypeError, ValueError, RuntimeError) as error:
        what = "shapes" if hasattr(first, "shape") else "lengths"
        sizes = {tuple(np.shape(row)) if what == "shapes" else len(row) for row in rows if hasattr(row, "__len__")}
        if len(sizes) > 1:
            some = ", ".join(map(str, sorted(sizes)[:4])) + (", ..." if len(sizes) > 4 else "")
            hint = "Pad texts and sounds with padding=True (and truncation=True); give pictures one size."
            raise InputError(f"{name!r} has rows of different {what} ({some}) and makes no tensor.", hint=hint) from error
        raise InputTypeError(f"{name!r} makes no tensor: {error}.") from error
    array = array if array.size else array.astype(np.int64)
    if tensor_type == "np":
        return array
    return torch.from_numpy(array) if array.dtype != np.float64 else torch.tensor(value)


# The lengths of rows


def check_fill(sizes: Sequence[int], length: int) -> None:
    """Raise ``InputError`` where padding rows of these sizes to one length would take memory out of all proportion."""
    held = sum(sizes)
    added = length * len(sizes) - held
    if added > MAX_FILL + 1000 * held:
        hint = "Pass a smaller max_length or pad_to_multiple_of, or padding=True for the longest row's length."
        raise InputError(f"padding {len(sizes)} rows to a length of {length} adds {added} values to {held}.", hint=hint)


def choice(name: str, value: Any, known: Mapping[Any, str | None]) -> str | None:
    """What a name of ``known``, or an enumeration's member with that value, stands for (``InputError``: another)."""
    try:
        return known[getattr(value, "value", value)]  # the reference's enumerations say the same as their values
    except (KeyError, TypeError):
        names = ", ".join(repr(key) for key in known if key is not None)
        raise InputError(f"{name} is {value!r}.", hint=f"It can be {names}.") from None


def pads(padding: bool | str | None) -> bool:
    """Whether rows are padded, by the names in ``PADDINGS``."""
    return choice("padding", padding, PADDINGS) is not None


def row_lengths(
    sizes: Sequence[int], padding: bool | str | None, max_length: int | None, truncation: bool | None, multiple: int | None
) -> list[tuple[int, int]]:
    """For rows of these sizes, how much of each is kept and how long it becomes.

    ``max_length`` is what ``"max_length"`` pads to and ``truncation`` cuts to; these lengths are rounded up to a multiple.
    ``InputError``: an unknown name, a length that is not positive, or no ``max_length`` where it is needed.
    """
    given: dict[str, Any] = {"max_length": max_length, "pad_to_multiple_of": multiple}
    for name, value in given.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InputError(f"{name} must be a positive integer, but is {value!r}.")
    if max_length is None and (truncation or padding == "max_length"):
        raise InputError(f"{'truncation' if truncation else 'padding to max_length'} needs max_length, which is not given.")
    step = multiple or 1
    limit = -(-(max_length or 0) // step) * step
    kept = [min(size, limit) for size in sizes] if truncation else list(sizes)
    if not pads(padding):
        return [(size, size) for size in kept]
    target = limit if padding == "max_length" else -(-max(kept, default=0) // step) * step
    check_fill(kept, target)
    return [(size, max(size, target)) for size in kept]


def columns_of(examples: Any, main: str) -> dict[str, Any]:
    """A batch as columns by name, from such a mapping or from a list of mappings, one an example (``InputError``: no main)."""
    if isinstance(examples, list | tuple) and all(isinstance(example, Mapping) for example in examples):
        names = dict.fromkeys(name for example in examples for name in example)
        for place, example in enumerate(examples):
            if lacking := names.keys() - example.keys():
                raise InputError(f"encoding {place} lacks {min(lacking)!r}, which others have.")
        examples = {name: [example[name] for example in examples] for name in names}
    if not isinstance(examples, Mapping):
        raise InputTypeError(f"{type(examples).__name__} cannot be padded.", hint="Pass a mapping or a list of mappings.")
    if main not in examples:
        hint = f"Pass examples by name: here is no {main!r} to pad by."
        raise InputError(f"the batch has no {main!r}, only {sorted(examples)}.", hint=hint)
    return dict(examples)


def check_sizes(columns: Mapping[str, Any]) -> None:
    """Raise ``InputError`` where columns have different numbers of rows."""
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"the batch has columns of different lengths: {sizes}.")
