"""Parts of long work as tasks of Ray, on this machine or on a cluster whose machines share the files."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from transept.batch.parts import Claim, Job, Part
from transept.errors import FileError, MissingExtraError, TranseptError

Do = Callable[[Part, str, Claim], None]


def run_on_ray(job: Job, parts: Sequence[Part], do: Do, *, gpus: int = 0) -> list[TranseptError]:
    """As :meth:`Job.run`, with a task of Ray for each part; ``RAY_ADDRESS`` names a cluster.

    Args:
        do: pickles without the model, which it loads when it is called first in a process.
        gpus: that a task needs.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "--engine ray") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(logging_level=logging.ERROR, log_to_driver=False)
    try:
        work = ray.put(ray.cloudpickle.dumps((job, do)))
        task = ray.remote(num_gpus=gpus)(_do_part)
        running = [task.remote(work, os.getcwd(), part) for part in parts]
        errors = list[TranseptError]()
        for part, found in zip(parts, running, strict=True):
            try:
                errors += ray.get(found)
            except ray.exceptions.RayError as error:
                cause = str(error).strip().splitlines()[-1]
                errors.append(FileError(f"its task of Ray has failed: {cause}", path=job.path(part)))
        return errors
    finally:
        if is_ours:
            ray.shutdown()


def _do_part(work: bytes, folder: str, part: Part) -> list[TranseptError]:
    os.chdir(folder)  # that paths begin at
    job, do = _unpacked(work)
    found: list[TranseptError] = job.run([part], do)
    return found


@lru_cache(1)
def _unpacked(work: bytes) -> Any:
    """What a process does with parts, so that it loads the model for the first of them alone."""
    from ray import cloudpickle

    return cloudpickle.loads(work)
