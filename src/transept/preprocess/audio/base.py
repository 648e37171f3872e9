"""Feature extractors: sounds of any length and rate in, padded batches out.

Shapes: B sounds, T samples or frames, F features a frame.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from transept.config.fields import Count, Range
from transept.errors import InputError, TranseptWarning
from transept.preprocess.audio.decode import MAX_RATE, MIN_RATE, check_rate
from transept.preprocess.features import BatchFeature, as_numpy, check_sizes, columns_of, row_lengths
from transept.preprocess.media import NUMBER, is_pair, load_audio
from transept.preprocess.settings import Offset, Preprocessor
from transept.preprocess.workers import in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SequenceFeatureExtractor(Preprocessor, ABC):
    """Loading, truncation, padding and masks for sequences of samples (T,) or of frames (T, F).

    Args:
        feature_size: features a frame; 1 for samples.
        sampling_rate: the model's rate, in Hz.
        padding_value: what shorter rows are filled with.
        return_attention_mask: whether to tell the real positions (1) from the padding (0).
    """

    section: ClassVar[str] = "feature_extractor"
    noun = section
    model_input_names: ClassVar[list[str]] = ["input_values", "attention_mask"]
    # The settings that are taken without their names, in the reference's order.
    positional: ClassVar[tuple[str, ...]] = ("feature_size", "sampling_rate", "padding_value", "return_attention_mask")

    feature_size: Count = 1
    sampling_rate: Annotated[int, Range(MIN_RATE, MAX_RATE)] = 16000
    padding_value: Offset = 0.0
    return_attention_mask: bool | None = False
    padding_side: Literal["right", "left"] = "right"

    def __init__(self, *values: Any, **settings: Any) -> None:
        names = dict(zip(self.positional, values, strict=False))
        if len(values) > len(self.positional):
            raise InputError(f"{type(self).__name__} takes {len(self.positional)} values without names, but got {len(values)}.")
        if twice := names.keys() & settings.keys():
            raise InputError(f"`{min(twice)}` of {type(self).__name__} was passed twice.", hint="Pass it by its name alone.")
        super().__init__(**names, **settings)

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
            padding, max_length, truncation, pad_to_multiple_of: see :func:`transept.preprocess.features.row_lengths`.
            return_attention_mask: ``None`` for the setting of this name.
            return_tensors: ``"pt"``, ``"np"``, or ``None`` for lists of arrays (torch tensors where such came in).
        """
        name = self.model_input_names[0]
        found: dict[str, Any] = {key: list(values) for key, values in columns_of(processed_features, name).items()}
        check_sizes(found)
        if return_tensors is None and found[name] and not isinstance(found[name][0], np.ndarray | list | tuple):
            return_tensors = "pt"
        rows = [_row(value, name, self.feature_size) for value in found[name]]
        lengths = row_lengths([len(row) for row in rows], padding, max_length, truncation, pad_to_multiple_of)
        found[name] = self.placed(rows, lengths, self.padding_value)
        if "attention_mask" in found:
            masks = [_row(value, "attention_mask", 1).astype(np.int32) for value in found["attention_mask"]]
            found["attention_mask"] = self.placed(masks, lengths, 0)
        return self._features(found, lengths, return_attention_mask, return_tensors)

    def load(self, sounds: Any, sampling_rate: int | None) -> list[NDArray[np.float32]]:
        """The samples (T,) of each sound at the model's rate; ``sampling_rate`` is that of arrays that come without one.

        Where it is absent, they are taken to have the model's rate, with a warning.
        ``sounds`` is one, a list of them (see :func:`transept.preprocess.media.load_audio`), or an array (B, T).
        """
        if sampling_rate is not None:
            check_rate(sampling_rate)
        batch = _sounds(sounds)
        if sampling_rate is not None:
            batch = [_rated(sound, sampling_rate) for sound in batch]
        elif any(map(_is_bare, batch)):
            message = f"Arrays without a sampling rate are taken to have {self.sampling_rate} Hz, as the model's sounds have."
            warnings.warn(f"{message} Pass sampling_rate=.", TranseptWarning, stacklevel=3)
            batch = [(sound, self.sampling_rate) if _is_bare(sound) else sound for sound in batch]
        if not batch:
            raise InputError("the batch holds no sound.")
        ready = all(isinstance(sound, tuple) and sound[1] == self.sampling_rate for sound in batch)
        distinct = len(set(map(id, batch))) == len(batch)  # no two threads may decode one object
        return in_order(lambda sound: load_audio(sound, self.sampling_rate), batch, "sound", parallel=distinct and not ready)

    def placed(
        self,
        rows: Sequence[NDArray[Any]],
        lengths: Sequence[tuple[int, int]],
        filling: float,
        write: Callable[[NDArray[Any], NDArray[Any]], None] = np.copyto,
    ) -> NDArray[Any] | list[NDArray[Any]]:
        """Rows of which so much is kept and that become so long, the rest filled; one array where all are of one length.

        ``write`` fills the place of a row with what is kept of it.
        """
        if not rows:
            return []
        totals = [total for _, total in lengths]
        whole = np.empty((sum(totals), *rows[0].shape[1:]), np.result_type(*{row.dtype for row in rows}))
        results = np.split(whole, np.cumsum(totals)[:-1])
        for row, result, (kept, total) in zip(rows, results, lengths, strict=True):
            start = total - kept if self.padding_side == "left" else 0
            result[:start], result[start + kept :] = filling, filling
            write(result[start : start + kept], row[:kept])
        return whole.reshape(len(rows), totals[0], *whole.shape[1:]) if len(set(totals)) == 1 else results

    def _features(
        self, found: dict[str, Any], lengths: Sequence[tuple[int, int]], masked: bool | None, return_tensors: str | None
    ) -> BatchFeature:
        """The batch, with a mask where one is wanted: 1 for what is real, 0 for padding; lists of rows without tensors."""
        if "attention_mask" not in found and (self.return_attention_mask if masked is None else masked):
            ones = np.ones(max((kept for kept, _ in lengths), default=0), np.int32)
            found["attention_mask"] = self.placed([ones[:kept] for kept, _ in lengths], lengths, 0)
        if return_tensors is None:
            found = {name: list(rows) for name, rows in found.items()}
        return BatchFeature(found, return_tensors)


def _row(value: Any, name: str, features: int) -> NDArray[Any]:
    array = as_numpy(value)
    array = np.asarray(value) if array is None else array
    if array.dtype.kind not in "iuf" or array.ndim != (2 if features > 1 else 1):
        raise InputError(f"{name!r} must hold one row of numbers a sound, but holds an array of shape {array.shape}.")
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _sounds(sounds: Any) -> list[Any]:
    """What was passed as a list of single sounds."""
    if (array := as_numpy(sounds)) is not None:
        return list(array) if array.ndim == 2 else [array]
    many = isinstance(sounds, list | tuple) and not is_pair(sounds) and not isinstance(next(iter(sounds), None), NUMBER)
    return list(sounds) if many else [sounds]


def _is_bare(sound: Any) -> bool:
    """Whether a sound is samples and nothing more."""
    return as_numpy(sound) is not None or (isinstance(sound, list | tuple) and not is_pair(sound))


def _rated(sound: Any, rate: int) -> Any:
    if isinstance(sound, Mapping):
        return {"sampling_rate": rate, **sound}
    return (sound, rate) if _is_bare(sound) else sound
