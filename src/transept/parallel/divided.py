"""Every process has a part of each matrix (tensor parallelism), of which others that take other rows may have shards."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn

from transept.core.model import Model
from transept.errors import ConfigError, UnsupportedError
from transept.parallel.mesh import DistributedConfig
from transept.parallel.parts import Parts
from transept.parallel.sharded import Sharded
from transept.parallel.tensor import tensor_parallel


class Divided(Parts):
    """A model that is split by :func:`transept.parallel.tensor.tensor_parallel`.

    Args:
        mesh: the processes between which it is split.
        config: the plan, and whether positions are split.
        rows: how it is sharded between processes that take other rows, where there are any.
    """

    def __init__(self, mesh: Any, config: DistributedConfig, rows: Sharded | None = None) -> None:
        self.mesh, self.config, self.rows = mesh, config, rows

    def wrap(self, model: nn.Module) -> nn.Module:
        """Split the model, where ``from_pretrained`` did not.

        Raises:
            ConfigError: it is split between another number of processes.
            UnsupportedError: it is none of this library.
        """
        if not isinstance(model, Model):
            what = f"{type(model).__name__} cannot be split between processes: it is no model of this library by itself."
            raise UnsupportedError(what, hint="Leave out `tp_size`.")
        size = getattr(model, "tp_size", None)
        if size is None:
            tensor_parallel(model, self.mesh, self.config.tp_plan or "auto", sequence=self.config.enable_sequence_parallel)
        elif size != self.mesh.size():
            raise ConfigError(f"the model is split between {size} processes, but `tp_size` is {self.mesh.size()}.")
        if self.rows is not None:
            return self.rows.wrap(model)
        self.take_whole(model)
        return model

    def added_up(self, wrapped: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.rows is None else self.rows.added_up(wrapped, last)

    def ordinary(self, model: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.rows is None else self.rows.ordinary(model)
