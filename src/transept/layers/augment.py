"""SpecAugment (Park et al. 2019): spans of time, and of features, that are hidden from the model while it trains.

Everything here is made of tensor operations, so that it compiles, waits for no device, and repeats under
``torch.manual_seed`` or with a generator.

Shapes: B batch, T positions, D hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.config import Config
from transept.errors import InputError


def span_mask(
    lengths: Tensor, size: int, *, prob: float, span: int, least: int = 0, generator: torch.Generator | None = None
) -> Tensor:
    """Random spans in each row: (B, size) of bool, true inside of a span.

    A row gets ``prob * length / span`` spans, rounded up or down at random but alike for all rows, and never fewer than
    ``least`` where they fit. Their starts are drawn without replacement, so that spans may overlap and fewer than
    ``prob`` of the positions be covered. A row shorter than one span gets none.

    Args:
        lengths: (B), the part of each row that may be covered.
        size: length of the rows.
        prob: share of a row that spans would cover if they did not overlap.
        span: length of a span.
        least: number of spans at least.
        generator: where chance comes from; the global one of the device when absent.

    Raises:
        InputError: a span below one.
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

    Args:
        config: has ``apply_spec_augment``, ``mask_time_prob``, ``mask_time_length``, ``mask_time_min_masks`` and the same for
            ``mask_feature``. It is read at each call, so that the strength can be changed while training.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor, embed: Tensor | None, time: Tensor | None, padding: Tensor | None) -> Tensor:
        """Hide parts of (B, T, D).

        Args:
            x: (B, T, D).
            embed: (D), what hidden positions become.
            time: (B, T), true where to hide; drawn in training when absent.
            padding: (B, T), true for real positions.

        Raises:
            InputError: ``time`` without an embedding.
        """
        c = self.config
        if not c.apply_spec_augment:
            return x
        if time is None and self.training and c.mask_time_prob > 0:
            full = torch.full((x.shape[0],), x.shape[1], device=x.device)
            lengths = full if padding is None else padding.sum(dim=1)
            time = span_mask(lengths, x.shape[1], prob=c.mask_time_prob, span=c.mask_time_length, least=c.mask_time_min_masks)
        if time is not None:
            if embed is None:
                raise InputError(
                    "there is no embedding for masked positions.",
                    hint="Set `mask_time_prob` or `mask_feature_prob` above 0 in the config.",
                )
            x = torch.where((time != 0)[:, :, None], embed.to(x.dtype), x)
        if self.training and c.mask_feature_prob > 0:
            full = torch.full((x.shape[0],), x.shape[2], device=x.device)
            hidden = span_mask(
                full, x.shape[2], prob=c.mask_feature_prob, span=c.mask_feature_length, least=c.mask_feature_min_masks
            )
            x = x.masked_fill(hidden[:, None, :], 0.0)
        return x
