"""Feature extractors: sounds of any length and rate in, padded batches out.

Shapes: B sounds, T samples or frames, F features a frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from transept.errors import InputError
from transept.fields import Count, specs
from transept.preprocess.features import BatchFeature, as_numpy
from transept.preprocess.media import check_rate, is_pair, load_audio
from transept.preprocess.padding import Padding, columns
from transept.preprocess.settings import Preprocessor
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
        found[name] = self.placed(rows, lengths, self.padding_value)
        if "attention_mask" in found:
            masks = [_row(value, "attention_mask", 1).astype(np.int32) for value in found["attention_mask"]]
            found["attention_mask"] = self.placed(masks, lengths, 0)
        elif self._wants_mask(return_attention_mask):
            found["attention_mask"] = self.masks(lengths)
        return features(found, return_tensors)

    def load(self, sounds: Any, sampling_rate: int | None) -> list[NDArray[np.float32]]:
        """The samples (T,) of each sound at the model's rate.

        Args:
            sounds: one sound or a list of them: see :func:`transept.preprocess.media.load_audio`. Arrays and lists of
                floats that come without a rate, and arrays (B, T), are taken at ``sampling_rate``.
            sampling_rate: the rate of arrays without one; files tell their own.
        """
        if sampling_rate is not None:
            check_rate(sampling_rate)
        batch = _sounds(sounds, sampling_rate)
        if not batch:
            raise InputError("the batch holds no sound.")
        ready = all(isinstance(sound, tuple) and sound[1] == self.sampling_rate for sound in batch)
        distinct = len(set(map(id, batch))) == len(batch)  # no two threads may decode one object
        return in_order(lambda sound: load_audio(sound, self.sampling_rate), batch, "sound", parallel=distinct and not ready)

    def _wants_mask(self, asked: bool | None) -> bool:
        return bool(self.return_attention_mask if asked is None else asked)

    def placed(
        self,
        rows: Sequence[NDArray[Any]],
        lengths: Sequence[tuple[int, int]],
        filling: float,
        write: Callable[[NDArray[Any], NDArray[Any]], None] = np.copyto,
    ) -> NDArray[Any] | list[NDArray[Any]]:
        """Rows of which so much is kept and that become so long, the rest filled; one array where all are of one length.

        Args:
            rows: rows (T, ...).
            lengths: how many entries of each row are kept, and how many there are then.
            filling: the value of the rest.
            write: fills the place of a row with what is kept of it.
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

    def masks(self, lengths: Sequence[tuple[int, int]]) -> NDArray[np.int32] | list[NDArray[np.int32]]:
        """For rows of which so much is kept and that become so long: 1 for what is real, 0 for padding."""
        return self.placed([np.ones(kept, np.int32) for kept, _ in lengths], lengths, 0)


def features(found: Mapping[str, Any], return_tensors: str | None) -> BatchFeature:
    """Tensors, or lists of rows."""
    return BatchFeature({name: list(rows) for name, rows in found.items()} if return_tensors is None else found, return_tensors)


def _row(value: Any, name: str, features: int) -> NDArray[Any]:
    array = as_numpy(value)
    array = np.asarray(value) if array is None else array
    if array.dtype.kind not in "iuf" or array.ndim != (2 if features > 1 else 1):
        raise InputError(f"{name!r} must hold one row of numbers a sound, but holds an array of shape {array.shape}.")
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _sounds(sounds: Any, rate: int | None) -> list[Any]:
    """What was passed as a list of single sounds, those without a rate beside the one that was passed for them."""
    array = as_numpy(sounds)
    if array is not None:
        batch = list(array) if array.ndim == 2 else [array]
    elif (
        not isinstance(sounds, list | tuple) or is_pair(sounds) or isinstance(next(iter(sounds), None), int | float | np.number)
    ):
        batch = [sounds]
    else:
        batch = list(sounds)
    return batch if rate is None else [_rated(sound, rate) for sound in batch]


def _rated(sound: Any, rate: int) -> Any:
    if isinstance(sound, Mapping):
        return {"sampling_rate": rate, **sound}
    bare = as_numpy(sound) is not None or (isinstance(sound, list | tuple) and not is_pair(sound))
    return (sound, rate) if bare else sound
