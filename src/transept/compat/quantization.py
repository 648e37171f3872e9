"""The reference's settings of quantised checkpoints, which are not read here yet: their names can be imported, and say so."""

from __future__ import annotations

from typing import Any

from transept.errors import UnsupportedError

_NAMES = "AqlmConfig AutoRoundConfig AwqConfig BitNetQuantConfig BitsAndBytesConfig CompressedTensorsConfig EetqConfig"
_NAMES += " FbgemmFp8Config FineGrainedFP8Config FPQuantConfig GPTQConfig HiggsConfig HqqConfig Mxfp4Config QuantoConfig"
_NAMES += " QuarkConfig SpQRConfig TorchAoConfig VptqConfig"


class QuantizationConfigMixin:
    """Base of settings of quantised checkpoints: making one is an ``UnsupportedError``."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        hint = "Load the model as it is, then call transept.adapt.quantize.quantize(model)."
        raise UnsupportedError(f"checkpoints quantised by {type(self).__name__} are not read (yet).", hint=hint)


_CLASSES = {name: type(name, (QuantizationConfigMixin,), {"__module__": __name__}) for name in _NAMES.split()}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"{__name__} has no name {name!r}.")
    return _CLASSES[name]
