"""Attention by content, distance and segment, against the sums that it stands for."""

from __future__ import annotations

import pytest
import torch

from transept.layers.attention.kernels import eager
from transept.layers.context import Context
from transept.models.xlnet import Relative, RelativeAttention, by_key, relative_waves


@pytest.mark.parametrize(("queries", "past", "ahead"), [(4, 3, 4), (1, 0, 1), (5, 0, 5)])
def test_scores_by_distance_become_scores_by_key(queries: int, past: int, ahead: int) -> None:
    keys = past + queries
    distances = torch.arange(keys, -ahead, -1)
    found = by_key(distances.expand(2, queries, -1), keys)
    assert torch.equal(found[1], past + torch.arange(queries)[:, None] - torch.arange(keys))


def test_attention_equals_its_sums() -> None:
    torch.manual_seed(0)
    attention = RelativeAttention(12, 3).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x, memory, kinds = (
        torch.randn(2, 4, 12).double(),
        torch.randn(3, 2, 12).double(),
        torch.tensor([[0, 0, 1, 1], [1, 0, 0, 1]]),
    )
    known = torch.cat([torch.zeros(2, 3, dtype=torch.long), kinds], dim=1)
    waves = relative_waves(torch.arange(7, -4, -1), 12).double()
    apart = (kinds[:, :, None] != known[:, None])[:, None]
    ctx = Context(eager, own=Relative(4, waves[None], apart, [memory]))
    found, _ = attention(x, ctx)
    states = torch.cat([memory.transpose(0, 1), x], dim=1)
    q, k, v = (layer(y).unflatten(-1, (3, 4)) for layer, y in zip((attention.q_proj, attention.k_proj, attention.v_proj), (x, states, states), strict=True))  # fmt: skip
    far, out = attention.r_proj(waves).unflatten(-1, (3, 4)), torch.zeros_like(q)
    for b, i, h in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(3)).tolist():
        scores = torch.stack(
            [
                (q[b, i, h] + attention.content_bias[h]) @ k[b, j, h]
                + (q[b, i, h] + attention.distance_bias[h]) @ far[7 - (3 + i - j), h]
                + (q[b, i, h] + attention.segment_bias[h]) @ attention.segments[int(apart[b, 0, i, j]), h]
                for j in range(7)
            ]
        )
        out[b, i, h] = (scores / 2).softmax(dim=0) @ v[b, :, h]
    assert torch.allclose(found, attention.o_proj(out.flatten(2)), rtol=0, atol=1e-12)
