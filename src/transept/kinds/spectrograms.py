"""Backbones over spectrograms: what they accept. Shapes: B batch, F frequencies (mel bins), T frames."""

from __future__ import annotations

from torch import Tensor

from transept.core.inputs import check_finite, check_tensor
from transept.errors import InputError
from transept.kinds.audio import SoundBackbone

_EXTRACT = 'Use the feature extractor of this model: extractor(waves, sampling_rate=..., return_tensors="pt").'


class SpectrogramBackbone(SoundBackbone):
    """A network over spectrograms of one size, whose name among the inputs is ``main_input_name``."""

    axes = "(batch, bins, frames)"

    @property
    def spectrogram_size(self) -> tuple[int, int]:
        """The sizes of the last two ``axes`` of what the model takes."""
        raise NotImplementedError

    def check_spectrograms(self, given: Tensor | None) -> Tensor:
        """Spectrograms in the model's type, checked; what is of another size or no number is an ``InputError``."""
        name = self.main_input_name
        values = check_tensor(name, given, (), self.axes, _EXTRACT)
        if tuple(values.shape[1:]) != self.spectrogram_size:
            wanted = " x ".join(map(str, self.spectrogram_size))
            what = f"`{name}` has the shape {tuple(values.shape)}, but the model takes {self.axes} with {wanted}."
            raise InputError(what, hint=_EXTRACT)
        if not len(values):
            raise InputError(f"`{name}` is empty: its shape is {tuple(values.shape)}.", hint="Leave empty batches out.")
        check_finite(values, name)
        return values.to(self.dtype)
