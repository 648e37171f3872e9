"""What code asks of the reference about DeepSpeed, which is not used here: that it is off."""

from __future__ import annotations

from typing import Any


def is_deepspeed_zero3_enabled() -> bool:
    """False: weights that processes share are shared by ``fsdp=``."""
    return False


def deepspeed_config() -> Any:
    """None: there are no settings of it."""
    return None


def unset_hf_deepspeed_config() -> None:
    """Nothing: there are no settings to forget."""
