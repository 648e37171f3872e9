"""``log.jsonl``: the history of a run, a line a log."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transept.errors import FormatError
from transept.files import append_text, make_directory, parse_json, read_text, write_text
from transept.schema import typed
from transept.training.callbacks.base import TrainerCallback
from transept.training.state import TrainerControl, TrainerState

LOG_NAME = "log.jsonl"
MAX_BYTES = 2**30


class JsonLinesCallback(TrainerCallback):
    """Writes each log to ``log.jsonl`` in the run's directory as it comes: the lines are those of ``state.log_history``.

    A run that is resumed goes on behind the lines of the checkpoint that it goes on from. Numbers that JSON does not have are
    written as ``null``.
    """

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            path = Path(make_directory(args.output_dir), LOG_NAME)
            logs = read_log(path) if state.global_step else []
            write_log(path, [log for log in logs if log.get("step", 0) <= state.global_step])

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and state.log_history:
            append_text(Path(make_directory(args.output_dir), LOG_NAME), _line(state.log_history[-1]))


def _line(log: dict[str, Any]) -> str:
    plain = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in log.items()}
    return json.dumps(plain, ensure_ascii=False, default=str) + "\n"


def write_log(path: Path, logs: Iterable[dict[str, Any]]) -> None:
    """Write a log of these lines in the place of the one that is there."""
    write_text(path, "".join(map(_line, logs)))


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last one that an interruption cut short is left out, and there are none where there is no file."""
    lines = read_text(path, max_bytes=MAX_BYTES).splitlines() if path.exists() else []
    logs = []
    for number, text in enumerate(lines, 1):
        try:
            line: Any = typed(parse_json(text, path=f"{path}:{number}"), dict, path=f"{path}:{number}")
        except FormatError:
            if number == len(lines):
                break
            raise
        counts: Any = {name: float for name in ("step", "round") if name in line}
        logs.append(typed(line, counts, path=f"{path}:{number}"))
    return logs
