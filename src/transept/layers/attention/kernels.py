"""The kernels of attention: how scores are made of queries and keys, and means of values.

Masks are bool (true where allowed) or floats that are added to the scores.
Shapes: B batch, T queries, S keys, H heads, K key-value heads, E head size.
"""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError, UnsupportedError, nearest
from transept.layers.attention.tiles import attend_by_tiles
from transept.layers.context import Attended, Kernel


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float) -> Attended:
    """Attention step by step; the only kernel that returns its weights (B, H, T, S)."""
    return weigh(score(q, k, scale), v, mask, causal, dropout)


def score(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The scores (B, H, T, S) of queries (B, H, T, E) against keys (B, K, S, E)."""
    return (q @ repeat_kv(k, q.shape[1] // k.shape[1]).transpose(-1, -2)) * scale


def weigh(scores: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> tuple[Tensor, Tensor]:
    """The means of values (B, K, S, E) by scores (B, H, T, S), and the weights: the softmax over what the mask allows."""
    half = scores.dtype in (torch.float16, torch.bfloat16)
    scores = scores.float() if half else scores  # sums with a mask's smallest number would overflow
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        # The smallest number and not infinity: a row that may attend to nothing stays finite.
        added = mask.is_floating_point()
        scores = scores + mask if added else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = F.softmax(scores, dim=-1).to(v.dtype)
    weights = F.dropout(weights, dropout) if dropout > 0 else weights
    return weights @ repeat_kv(v, scores.shape[1] // v.shape[1]), weights


def repeat_kv(hidden_states: Tensor, n_rep: int) -> Tensor:
    """(B, K, S, E) -> (B, K * n_rep, S, E): keys or values for as many heads as there are queries."""
    return hidden_states.repeat_interleave(n_rep, dim=1) if n_rep > 1 else hidden_states


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float) -> Attended:
    """PyTorch's fused attention."""
    heads, groups = q.shape[1], k.shape[1]
    grouped = bool(heads != groups)  # sizes are tensors while a model is traced
    if grouped and q.shape[2] == 1 and (mask is None or mask.shape[1] == 1):
        # One query of each head: those of a group become the queries of one head, whose keys are then read once.
        q = q.view(q.shape[0], groups, heads // groups, q.shape[3])
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale).view(q.shape[0], heads, 1, -1), None
    if _runs_plainly() and dropout == 0 and (found := attend_by_tiles(q, k, v, mask, causal, scale)) is not None:
        return found, None
    if _in_three_calls(q, k, mask, causal, dropout):
        flat_q, flat_k, flat_v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
        nothing = q.new_empty(1, 1, 1)  # is not read where beta is zero
        scores = torch.baddbmm(nothing, flat_q, flat_k.mT, beta=0, alpha=scale)
        return torch.bmm(F.softmax(scores, dim=-1), flat_v).view(*q.shape[:3], -1), None
    if _has_long_rest(q, k, mask):
        k, v, mask = _filled_up(k, v, mask, causal)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped), None


# The kernel for CPUs takes keys sixteen at a time and a rest one by one. On processors with AVX-512 a rest of half a step or
# more costs as much as many more keys would: those are added, and hidden. Elsewhere that gains nothing.
_STEP, _LONG_REST = 16, 8


def _has_long_rest(q: Tensor, k: Tensor, mask: Tensor | None) -> bool:
    whole = q.device.type == "cpu" and q.shape[2] == k.shape[2] and (mask is None or mask.shape[2] == 1)
    return whole and _runs_plainly() and k.shape[2] % _STEP >= _LONG_REST and is_wide()


def _runs_plainly() -> bool:
    """Whether neither a compiler nor a backward pass looks on."""
    return not torch.compiler.is_compiling() and not torch.is_grad_enabled()


def is_wide() -> bool:
    """Whether PyTorch uses AVX-512 here."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def _in_three_calls(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> bool:
    """Whether a sequence is so short that two products and a softmax are faster than the fused kernel.

    With AVX-512 they are between one and three steps of keys, where there is a rest; with AVX2 from 8 to 24 keys. This
    goes by length alone, so that a row is computed in one way in any company.
    """
    plain = _runs_plainly() and q.device.type == "cpu" and q.dtype == torch.float32
    if not plain or mask is not None or causal or dropout > 0 or q.shape[:3] != k.shape[:3]:
        return False
    keys = k.shape[2]
    return _STEP < keys < 3 * _STEP and keys % _STEP >= _LONG_REST // 2 if is_wide() else 8 <= keys <= 24


def _filled_up(k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys, values and mask with as many more keys as fill the last step."""
    keys = k.shape[2]
    more = -keys % _STEP
    if mask is not None:
        mask = F.pad(mask, (0, more), value=-math.inf if mask.is_floating_point() else False)
    elif not causal:  # causal queries never reach keys that come after them
        mask = torch.arange(keys + more)[None, None, None] < keys
    return F.pad(k, (0, 0, 0, more)), F.pad(v, (0, 0, 0, more)), mask


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float) -> Attended:
    """PyTorch's flex attention, for compiled models: it has no dropout, and on the CPU no gradient (``InputError``)."""
    from torch.nn.attention.flex_attention import flex_attention

    if dropout > 0:
        raise InputError("flex attention has no dropout.", hint='Use attn_implementation="sdpa" for training.')
    if q.device.type == "cpu" and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        hint = 'Call the model under torch.no_grad(), or use attn_implementation="sdpa".'
        raise InputError("flex attention has no gradient on the CPU.", hint=hint)
    lowest = torch.finfo(q.dtype).min

    def score(value: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        if causal:
            return torch.where(t >= s, value, lowest)
        if mask is None:
            return value
        rows, heads = mask.shape[0], mask.shape[1]
        cell = mask[b if rows > 1 else 0, h if heads > 1 else 0, t if mask.shape[2] > 1 else 0, s]
        return value + cell if mask.is_floating_point() else torch.where(cell, value, lowest)

    out = flex_attention(q, k, v, score_mod=score, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return out, None


def flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float) -> Attended:
    """The kernel of the package flash-attn (Dao 2023), for half precision on GPUs.

    With a mask, with values of another size than keys, and elsewhere, it is ``sdpa``.
    """
    from flash_attn import flash_attn_func

    unlike = mask is not None or q.shape[-1] != v.shape[-1]
    if unlike or not q.is_cuda or q.dtype not in (torch.float16, torch.bfloat16):
        return sdpa(q, k, v, mask, causal, scale, dropout)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return flash_attn_func(q, k, v, dropout_p=dropout, softmax_scale=scale, causal=causal).transpose(1, 2), None


KERNELS: dict[str, Kernel] = {"eager": eager, "sdpa": sdpa, "flex": flex, "flash_attention_2": flash}


def kernel_named(name: str) -> Kernel:
    """The kernel of that name; an ``InputError`` or ``UnsupportedError`` that names others where there is none."""
    name = {"flex_attention": "flex"}.get(name, name)
    if name == "flash_attention_2" and "flash_attn" not in sys.modules and find_spec("flash_attn") is None:
        hint = 'Install flash-attn, or use "sdpa", which runs PyTorch\'s own flash kernel where device and type allow.'
        raise UnsupportedError(f"the attention implementation {name!r} needs the package flash-attn.", hint=hint)
    if name not in KERNELS:
        raise InputError(f"there is no attention implementation {name!r}.", hint=nearest(name, KERNELS))
    return KERNELS[name]
