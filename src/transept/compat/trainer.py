"""Names of a trainer's files and folders, and what code of the reference asks beside them."""

from __future__ import annotations

import os
import socket
from datetime import datetime
from typing import Any

TRAINING_ARGS_NAME, TRAINER_STATE_NAME = "training_args.bin", "trainer_state.json"
OPTIMIZER_NAME, OPTIMIZER_NAME_BIN = "optimizer.pt", "optimizer.bin"
SCHEDULER_NAME, SCALER_NAME = "scheduler.pt", "scaler.pt"
PREFIX_CHECKPOINT_DIR = "checkpoint"


def default_logdir() -> str:
    """A folder for the logs of a run that begins now."""
    began = datetime.now().astimezone().strftime("%b%d_%H-%M-%S")
    return f"runs{os.sep}{began}_{socket.gethostname()}"


def default_hp_space_optuna(trial: Any) -> dict[str, Any]:
    """The space that is searched where there is no other."""
    from transept.training.search import default_space

    return default_space(trial)
