"""Attention by the kernel of our own, beside attention step by step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.quantized.test_grouped import SETS, build
from torch import Tensor

from transept.layers.attention import tiles
from transept.layers.attention.kernels import eager, sdpa
from transept.layers.attention.tiles import attend_by_tiles

pytestmark = pytest.mark.skipif(tiles._kernel() is None, reason="there is no C++ compiler on this machine")


def heads(rows: int, count: int, positions: int, size: int) -> Tensor:
    """(rows, count, positions, size), which lie as projections leave them."""
    return torch.randn(rows, positions, count, size).transpose(1, 2)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3),
    shared=st.integers(1, 3),
    group=st.integers(1, 3),
    count=st.integers(4, 90),
    more=st.integers(0, 40),
    size=st.sampled_from([16, 32, 48, 64, 80, 128]),
    causal=st.booleans(),
    masked=st.booleans(),
    threads=st.sampled_from([1, 2, 16]),
    seed=st.integers(0, 99),
)
def test_it_gathers_what_attention_step_by_step_does(
    rows: int, shared: int, group: int, count: int, more: int, size: int, causal: bool, masked: bool, threads: int, seed: int
) -> None:
    torch.manual_seed(seed)
    q, k, v = (
        heads(rows, shared * group, count, size),
        heads(rows, shared, count + more, size),
        heads(rows, shared, count + more, size),
    )
    mask = torch.rand(rows, 1, 1, count + more) < 0.7 if masked else None
    if mask is not None:
        mask[..., 0] = True  # every query may see something
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = attend_by_tiles(q, k, v, mask, causal, size**-0.5)
    finally:
        torch.set_num_threads(before)
    allowed = (
        torch.ones(count, count + more, dtype=torch.bool).tril(more)[None, None] if causal else torch.ones(1, 1, 1, 1).bool()
    )
    wanted, _ = eager(q.double(), k.double(), v.double(), allowed if mask is None else allowed & mask, False, size**-0.5, 0.0)
    assert found is not None
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=3e-6)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the kernel is built by g++, which is missing")
@pytest.mark.parametrize("name", SETS)
def test_every_set_of_instructions_gives_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "avx2" and "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this processor has no AVX2")
    q, k, v = heads(2, 6, 40, 80), heads(2, 3, 45, 80), heads(2, 3, 45, 80)
    mask = torch.rand(2, 1, 1, 45) < 0.6
    mask[..., 0] = True
    wanted = attend_by_tiles(q, k, v, mask, True, 0.1)
    built = build(tiles.SOURCE, name, tmp_path / "attention.so").transept_attention
    built.restype, built.argtypes = tiles._kernel().restype, tiles._kernel().argtypes
    monkeypatch.setattr(tiles, "_kernel", lambda: built)
    torch.testing.assert_close(attend_by_tiles(q, k, v, mask, True, 0.1), wanted, rtol=0, atol=2e-6)


def test_a_query_has_the_same_bits_in_any_company() -> None:
    torch.manual_seed(0)
    q, k, v = heads(3, 4, 70, 32), heads(3, 2, 70, 32), heads(3, 2, 70, 32)
    whole = attend_by_tiles(q, k, v, None, True, 0.2)
    assert whole is not None
    for row, begin, end in ((0, 0, 70), (1, 5, 40), (2, 13, 17)):
        part = attend_by_tiles(
            q[row : row + 1, :, begin:end], k[row : row + 1, :, :end], v[row : row + 1, :, :end], None, True, 0.2
        )
        assert part is not None
        assert torch.equal(part[0], whole[row, :, begin:end])


def test_rows_that_may_see_nothing_are_zeros_and_no_numbers_stay_so() -> None:
    q, k, v = heads(2, 2, 8, 16), heads(2, 2, 8, 16), heads(2, 2, 8, 16)
    mask = torch.ones(2, 1, 1, 8, dtype=torch.bool)
    mask[0] = False
    found = attend_by_tiles(q, k, v, mask, False, 1.0)
    assert found is not None
    assert not found[0].any()
    assert found[1].any()
    q[1, 0, 3, 2] = torch.nan
    found = attend_by_tiles(q, k, v, None, False, 1.0)
    assert found is not None
    assert found[1, 0, 3].isnan().all()
    assert not found[1, 0, 4].isnan().any()
    large = attend_by_tiles(q[:1] * 1e4, k[:1] * 1e4, v[:1], None, True, 1.0)
    assert large is not None
    assert large.isfinite().all()


def test_what_it_cannot_compute_is_left_to_pytorch() -> None:
    q = heads(1, 2, 8, 16)
    for case in (q[:, :, :3], q.double(), q[..., :12], q.requires_grad_()):
        wanted = torch.nn.functional.scaled_dot_product_attention(case, case, case)
        torch.testing.assert_close(sdpa(case, case, case, None, False, case.shape[-1] ** -0.5, 0.0)[0], wanted)
    with torch.no_grad():
        added = torch.randn(1, 1, 1, 8)
        wanted = torch.nn.functional.scaled_dot_product_attention(q, q, q, added)
        torch.testing.assert_close(sdpa(q, q, q, added, False, 0.25, 0.0)[0], wanted)
