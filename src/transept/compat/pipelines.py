"""The tasks of pipelines, by the reference's tables."""

from __future__ import annotations

from typing import Any

from transept.pipelines import ALIASES, TASKS, task_class

TASK_ALIASES = ALIASES
SUPPORTED_TASKS = {task: {"impl": task_class} for task in TASKS}


def check_task(task: str) -> tuple[str, dict[str, Any], Any]:
    """A task's name, what there is for it, and its options (none); an unknown one is an ``UnsupportedError``."""
    name = ALIASES.get(task, task)
    task_class(name)
    return name, SUPPORTED_TASKS.get(name, {}), None
