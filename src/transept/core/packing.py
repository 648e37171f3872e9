"""Packed batches: several texts behind one another in a row, told apart by positions that begin anew.

Shapes: B batch, T positions, R texts, N real positions of all texts, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transept.layers.context import within
from transept.outputs import ModelOutput


@dataclass(frozen=True)
class Packing:
    """Where the texts of a packed batch stand; texts of a row never see each other."""

    shape: tuple[int, int]  # B and T
    places: Tensor  # (N) of the real positions among the B * T
    lengths: tuple[int, ...]  # of the texts
    leading: Tensor  # (B) numbers of the texts that begin the rows

    @classmethod
    def find(cls, inputs: Mapping[str, Any], first: int) -> Packing | None:
        """How a batch of inputs is packed; ``None`` where each row is one text, whose first position is ``first``."""
        positions, mask = inputs.get("position_ids"), inputs.get("attention_mask")
        given = inputs.get("inputs_embeds") if inputs.get("input_ids") is None else inputs["input_ids"]
        if not isinstance(positions, Tensor) or not isinstance(given, Tensor) or inputs.get("lengths") is not None:
            return None
        masked = isinstance(mask, Tensor) and mask.shape != given.shape[:2]
        if masked or positions.ndim != 2 or given.ndim < 2 or positions.shape[1] != given.shape[1]:
            return None
        begins = positions == first
        if not begins[:, 1:].any():
            return None
        begins = begins.expand(given.shape[0], -1)
        real = torch.ones_like(begins) if mask is None else mask != 0
        places = real.flatten().nonzero()[:, 0]
        row = places // begins.shape[1]
        new_row = torch.cat([row.new_ones(1) != 0, row[1:] != row[:-1]])
        starts = (begins.flatten()[places] | new_row).nonzero()[:, 0]
        if len(starts) == int(new_row.sum()) or int(new_row.sum()) < len(begins):
            return None
        lengths = torch.diff(starts, append=starts.new_tensor([len(places)]))
        return cls((len(begins), begins.shape[1]), places, tuple(lengths.tolist()), new_row[starts].nonzero()[:, 0])

    def flat(self, x: Tensor) -> Tensor:
        """(1 or B, T, ...) -> (1, N, ...)."""
        return x.expand(self.shape[0], *x.shape[1:]).flatten(0, 1)[self.places][None]

    def padded(self, x: Tensor) -> Tensor:
        """(1 or B, T, ...) -> (R, longest, ...), filled up with zeros."""
        return pad_sequence(list(torch.split(self.flat(x)[0], list(self.lengths))), batch_first=True)

    def mask(self, device: torch.device) -> Tensor:
        """(R, longest): true for what is real in a padded tensor."""
        return within(torch.tensor(self.lengths, device=device), max(self.lengths))

    def restore(self, x: Tensor) -> Tensor:
        """(1, N, D), or padded (R, longest, D) -> (B, T, D), with zeros where nothing is real."""
        flat = x[0] if x.shape[0] == 1 and x.shape[1] == len(self.places) else x[self.mask(x.device)]
        out = flat.new_zeros(self.shape[0] * self.shape[1], *flat.shape[1:])
        return out.index_copy(0, self.places, flat).view(*self.shape, *flat.shape[1:])

    def restored(self, output: ModelOutput) -> ModelOutput:
        """A backbone's output, in which all states stand where they stood in the batch."""
        output["last_hidden_state"] = self.restore(output["last_hidden_state"])
        if "hidden_states" in output:
            output["hidden_states"] = tuple(map(self.restore, output["hidden_states"]))
        if "pooler_output" in output:
            output["pooler_output"] = output["pooler_output"][self.leading]
        return output
