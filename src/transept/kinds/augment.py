"""SpecAugment (Park et al. 2019): spans of time, and of features, that are hidden from the model while it trains.

Shapes: B batch, T positions, D hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.config.model import Config
from transept.errors import InputError


def span_mask(
    lengths: Tensor, size: int, *, prob: float, span: int, least: int = 0, generator: torch.Generator | None = None
) -> Tensor:
    """Random spans in the first ``lengths`` (B) positions of each row: (B, size) of bool, true inside of a span.

    A row gets ``prob * length / span`` spans, rounded up or down at random but alike for all rows, and never fewer than
    ``least`` where they fit. Their starts are drawn without replacement, so that spans may overlap and fewer than
    ``prob`` of the positions be covered. A row shorter than one span gets none.
    """
    if span < 1:
        raise InputError(f"a span must have at least one position, but has {span}.")
    place = lengths.device
    rounding = torch.rand((), device=place, generator=generator)
    starts = (lengths - span + 1).clamp(min=0)
    wanted = (prob * lengths / span + rounding).long().clamp(min=least, max=size // span)
    count = torch.minimum(wanted, starts)
    order = torch.rand((lengths.shape[0], size), device=place, generator=generator)
    order = order.masked_fill(torch.arange(size, device=place) >= starts[:, None], 2.0)
    begins = order.argsort(dim=1).argsort(dim=1) < count[:, None]
    return F.max_pool1d(F.pad(begins.float(), (span - 1, 0)), span, stride=1) > 0


class SpecAugment(nn.Module):
    """Hides spans of positions behind an embedding, and spans of features behind zeros.

    The ``config`` has ``apply_spec_augment``, ``mask_time_prob``, ``mask_time_length``, ``mask_time_min_masks`` and the same
    for ``mask_feature``. It is read at each call, so that the strength can be changed while training.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, embed: Tensor | None, time: Tensor | None, padding: Tensor | None) -> Tensor:
        """Hide parts of (B, T, D) behind ``embed`` (D), where ``time`` (B, T) says; that is drawn in training when absent."""
        c = self.config
        if not c.apply_spec_augment:
            return x
        if time is None and self.training and c.mask_time_prob > 0:
            time = self.sample_spans("time", x, 1, None if padding is None else padding.sum(dim=1))
        if time is not None:
            if embed is None:
                hint = "Set `mask_time_prob` or `mask_feature_prob` above 0 in the config."
                raise InputError("there is no embedding for masked positions.", hint=hint)
            x = torch.where((time != 0)[:, :, None], embed.to(x.dtype), x)
        if self.training and c.mask_feature_prob > 0:
            x = x.masked_fill(self.sample_spans("feature", x, 2)[:, None, :], 0.0)
        return x

    def sample_spans(self, kind: str, x: Tensor, axis: int, lengths: Tensor | None = None) -> Tensor:
        """Spans along an axis of (B, T, D), of which the first ``lengths`` (B), or all, may be covered."""
        prob, span, least = (getattr(self.config, f"mask_{kind}_{name}") for name in ("prob", "length", "min_masks"))
        size = x.shape[axis]
        lengths = torch.full((x.shape[0],), size, device=x.device) if lengths is None else lengths
        return span_mask(lengths, size, prob=prob, span=span, least=least)
