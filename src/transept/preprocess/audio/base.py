"""Feature extractors: sounds of any length and rate in, padded batches out.

Shapes: B sounds, T samples or frames, F features a frame.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from transept.errors import InputError
from transept.fields import Count, specs
from transept.preprocess.features import BatchFeature, as_numpy
from transept.preprocess.media import check_rate, load_audio
from transept.preprocess.padding import Padding, columns
from transept.preprocess.settings import Preprocessor
from transept.preprocess.workers import in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


class SequenceFeatureExtractor(Preprocessor, ABC):
    """Loading, truncation, padding and masks for sequences of samples (T,) or of frames (T, F).

    Args:
        feature_size: features a frame; 1 for samples.
        sampling_rate: the model's rate, in Hz.
        padding_value: what shorter rows are filled with.
        return_attention_mask: whether to tell the real positions (1) from the padding (0).
        padding_side: ``"right"`` or ``"left"``.

    Raises:
        ConfigError: a setting of the wrong type or out of range.
    """

    section: ClassVar[str] = "feature_extractor"
    noun = section
    model_input_names: ClassVar[list[str]] = ["input_values", "attention_mask"]

    feature_size: Count = 1
    sampling_rate: int = 16000
    padding_value: float = 0.0
    return_attention_mask: bool | None = False
    padding_side: Literal["right", "left"] = "right"

    def __init__(self, *values: Any, **settings: Any) -> None:
        names = [name for name in specs(type(self)) if name != "padding_side"]
        if len(values) > len(names):
            raise InputError(f"{type(self).__name__} takes {len(names)} values without names, but got {len(values)}.")
        super().__init__(**dict(zip(names, values, strict=False)), **settings)

    def validate(self) -> None:
        super().validate()
        try:
            check_rate(self.sampling_rate)
        except InputError as error:
            self.fail("sampling_rate", f"cannot be used: {error}")

    @abstractmethod
    def __call__(self, raw_speech: Any, *args: Any, **kwargs: Any) -> BatchFeature:
        """Prepare one sound or many."""

    def pad(
        self,
        processed_features: Any,
        padding: bool | str = True,
        max_length: int | None = None,
        truncation: bool = False,
        pad_to_multiple_of: int | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
    ) -> BatchFeature:
        """Bring rows that were extracted one by one to one length, as a collator does.

        Args:
            processed_features: lists by name, such as ``{"input_values": [row, row]}``, or a list of mappings.
            padding, max_length, truncation, pad_to_multiple_of: see :class:`transept.preprocess.padding.Padding`.
            return_attention_mask: ``None`` for the setting of this name.
            return_tensors: ``"pt"``, ``"np"``, or ``None`` for lists of arrays (torch tensors where such came in).

        Returns:
            The same names; the main input and ``attention_mask`` padded, everything else as it came.
        """
        plan = Padding(padding, max_length, truncation, pad_to_multiple_of)
        name = self.model_input_names[0]
        found = columns(processed_features, name)
        if return_tensors is None and found[name] and not isinstance(found[name][0], np.ndarray | list | tuple):
            return_tensors = "pt"
        rows = [_row(value, name, self.feature_size) for value in found[name]]
        lengths = plan.lengths([len(row) for row in rows])
        found[name] = [self._placed(row, size, self.padding_value) for row, size in zip(rows, lengths, strict=True)]
        if "attention_mask" in found:
            masks = [_row(value, "attention_mask", 1).astype(np.int32) for value in found["attention_mask"]]
            found["attention_mask"] = [self._placed(m, size, 0) for m, size in zip(masks, lengths, strict=True)]
        elif self._wants_mask(return_attention_mask):
            found["attention_mask"] = list(self.masks(lengths))
        return BatchFeature(found, return_tensors)

    def load(self, sounds: Any, sampling_rate: int | None) -> list[NDArray[np.float32]]:
        """The samples (T,) of each sound at the model's rate.

        Args:
            sounds: one sound or a list of them: see :func:`transept.preprocess.media.load_audio`. Arrays and lists of
                floats that come without a rate, and arrays (B, T), are taken at ``sampling_rate``.
            sampling_rate: the rate of arrays without one; files tell their own.
        """
        if sampling_rate is not None:
            check_rate(sampling_rate)
        batch = [_rated(sound, sampling_rate) for sound in _sounds(sounds)]
        if not batch:
            raise InputError("the batch holds no sound.")
        ready = all(isinstance(sound, tuple) and sound[1] == self.sampling_rate for sound in batch)
        distinct = len(set(map(id, batch))) == len(batch)  # no two threads may decode one object
        return in_order(lambda sound: load_audio(sound, self.sampling_rate), batch, "sound", parallel=distinct and not ready)

    def _wants_mask(self, asked: bool | None) -> bool:
        return bool(self.return_attention_mask if asked is None else asked)

    def masks(self, lengths: Sequence[tuple[int, int]]) -> NDArray[np.int32] | list[NDArray[np.int32]]:
        """For rows of which so much is kept and that become so long: 1 for what is real, 0 for padding."""
        rows = empty_rows([total for _, total in lengths], np.int32)
        for row, (kept, total) in zip(rows, lengths, strict=True):
            row[:] = 0
            row[self.span(kept, total)] = 1
        return rows

    def _placed(self, row: NDArray[Any], lengths: tuple[int, int], filling: float) -> NDArray[Any]:
        """The first ``kept`` entries of a row within ``total``, the rest filled."""
        kept, total = lengths
        if total == len(row):
            return row
        result = np.full((total, *row.shape[1:]), filling, row.dtype)
        result[self.span(kept, total)] = row[:kept]
        return result

    def span(self, kept: int, total: int) -> slice:
        """Where the ``kept`` entries stand in a row of ``total``."""
        start = total - kept if self.padding_side == "left" else 0
        return slice(start, start + kept)


def empty_rows(totals: list[int], dtype: type[Number]) -> NDArray[Number] | list[NDArray[Number]]:
    """Empty rows of these lengths: one array where they are all alike, else views of one."""
    if len(set(totals)) == 1:
        return np.empty((len(totals), totals[0]), dtype)
    return np.split(np.empty(sum(totals), dtype), np.cumsum(totals)[:-1])


def _row(value: Any, name: str, features: int) -> NDArray[Any]:
    array = as_numpy(value)
    array = np.asarray(value) if array is None else array
    if array.dtype.kind not in "iuf" or array.ndim != (2 if features > 1 else 1):
        raise InputError(f"{name!r} must hold one row of numbers a sound, but holds an array of shape {array.shape}.")
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _sounds(sounds: Any) -> list[Any]:
    """What was passed, as a list of single sounds."""
    array = as_numpy(sounds)
    if array is not None:
        return list(array) if array.ndim == 2 else [array]
    if _is_pair(sounds) or isinstance(sounds, str | bytes | bytearray | os.PathLike | Mapping):
        return [sounds]
    if isinstance(sounds, list | tuple):
        return [sounds] if sounds and isinstance(sounds[0], int | float | np.number) else list(sounds)
    return [sounds]


def _rated(sound: Any, rate: int | None) -> Any:
    """A sound with the rate beside its samples where it comes without one."""
    bare = as_numpy(sound) is not None or (isinstance(sound, list | tuple) and not _is_pair(sound))
    if isinstance(sound, Mapping) and rate is not None and "sampling_rate" not in sound:
        return {**sound, "sampling_rate": rate}
    return (sound, rate) if bare and rate is not None else sound


def _is_pair(value: Any) -> bool:
    """Whether this is ``(samples, rate)``."""
    if not isinstance(value, tuple) or len(value) != 2 or isinstance(value[0], int | float | np.number):
        return False
    return isinstance(value[1], int | float | np.number)
