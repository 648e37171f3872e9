"""The reference's settings of quantised checkpoints, by their names."""

from __future__ import annotations

from typing import Any

from transept.quantized.settings import BitsAndBytesConfig, HqqConfig, QuantizationConfigMixin, QuantoConfig, TorchAoConfig

__all__ = ["BitsAndBytesConfig", "HqqConfig", "QuantizationConfigMixin", "QuantoConfig", "TorchAoConfig"]

_NAMES = "AqlmConfig AutoRoundConfig AwqConfig BitNetQuantConfig CompressedTensorsConfig EetqConfig FbgemmFp8Config"
_NAMES += " FineGrainedFP8Config FPQuantConfig GPTQConfig HiggsConfig Mxfp4Config QuarkConfig SpQRConfig VptqConfig"
_CLASSES = {name: type(name, (QuantizationConfigMixin,), {"__module__": __name__}) for name in _NAMES.split()}


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"{__name__} has no name {name!r}.")
    return _CLASSES[name]
