"""Mixtures of experts and latent attention: choices, in float64, and what is written, against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import transept
from tests.thorough import in_turn
from transept.core.model import Model
from transept.layers.attention.latent import LatentAttention
from transept.models.llama4_text import Llama4TextConfig, Llama4TextModel
from transept.models.phimoe import ScaledRotary

from .families import Family
from .families.experts import EXPERTS
from .families.settings import SHARP
from .harness import DOUBLE, ROUNDED, SINGLE, batch, check_steps, classes, compare, error, in_double, pair

WRITERS = [(family, next(cls for cls in classes(family) if cls.__name__.endswith("ForCausalLM"))) for family in EXPERTS]
WRITING = [pytest.param(*case, id=case[0].model_type) for case in WRITERS]
VARIANTS = [
    pytest.param(family, cls, more, id=f"{family.model_type}-{name}")
    for family, cls in WRITERS
    for name, more in ({"tiny": {}} | family.variants).items()
]


def lively(family: Family, cls: type[Model], **more: Any) -> tuple[Any, Any]:
    """A pair whose corrections of scores, which are zeros in new models, change what is chosen."""
    ours, theirs = pair(family, cls, **more)
    for name, tensor in (*theirs.named_buffers(), *theirs.named_parameters()):
        if name.endswith("e_score_correction_bias"):
            nn.init.normal_(tensor.data, std=0.3)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls", "more"), in_turn(VARIANTS, 35))
def test_choices_equal_the_reference(
    family: Family, cls: type[Model], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = lively(family, cls, **more)
    ours, theirs = ours.double(), theirs.double()
    shown = {"output_hidden_states": True}
    if getattr(ours.config, "has_experts", False):  # theirs cannot show none
        shown["output_router_logits"] = True
    inputs = batch(family, cls) | shown
    with torch.no_grad():
        mine = dict(ours(**inputs))
    other = dict(in_double(theirs, monkeypatch, **inputs))
    if "aux_loss" in other:
        assert error(mine.pop("aux_loss"), other.pop("aux_loss")) <= ROUNDED
    # Their tables the reference makes of complex numbers, by other functions, or of frequencies that it computes anew.
    compare(mine, other, ROUNDED if family.model_type in ("deepseek_v2", "llama4_text", "phimoe") else DOUBLE)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_single_query_reads_latents_as_it_would_read_keys_and_values(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, cls = next(case for case in WRITERS if case[0].model_type == "deepseek_v3")
    ours = pair(family, cls, attention=kernel)[0].double()
    inputs = batch(family, cls, pad="left")
    mask, found = inputs["attention_mask"], []
    shown = {"output_attentions": True} if kernel == "eager" else {}
    for is_plain in (True, False):
        monkeypatch.setattr(LatentAttention, "is_plain", lambda self, plain=is_plain: plain)
        with torch.no_grad():
            first = ours(inputs["input_ids"][:, :8], attention_mask=mask[:, :8], use_cache=True)
            step = ours(inputs["input_ids"][:, 8:], attention_mask=mask, past_key_values=first.past_key_values, **shown)
        found.append([step.logits, *(step.attentions if shown else ())])
    assert error(found[0], found[1]) <= DOUBLE
    monkeypatch.undo()
    attention: Any = next(module for module in ours.modules() if isinstance(module, LatentAttention))
    assert attention.is_plain()
    attention.kv_b_proj.register_forward_hook(lambda module, inputs, output: output * 2)
    assert not attention.is_plain()


def test_longer_texts_turn_by_their_own_factors_and_scale() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 4, "short_mscale": 1.2}
    rope |= {"long_mscale": 1.4, "short_factor": [1.0, 2.0], "long_factor": [3.0, 5.0], "max_position_embeddings": 16}
    rotary = ScaledRotary(4, rope)
    for length, factors, scale in ((4, [1.0, 2.0], 1.2), (5, [3.0, 5.0], 1.4)):
        cos, _ = rotary(torch.arange(length)[None], torch.float32)
        angles = torch.arange(length)[:, None] / torch.tensor(factors) / torch.tensor([1.0, 10.0])
        torch.testing.assert_close(cos[0, 0, :, :2], angles.cos() * scale)


@pytest.mark.parametrize("kind", [transept.DynamicCache, transept.SlidingWindowCache])
def test_chunks_begin_where_texts_do(kind: type[Any]) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 12, "intermediate_size_mlp": 12, "head_dim": 4}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": SHARP}
    model = Llama4TextModel(Llama4TextConfig(**sizes, attention_chunk_size=3, num_local_experts=2)).eval()
    ids, lengths = torch.randint(5, 50, (3, 11)), (11, 9, 4)
    mask = (torch.arange(11) >= 11 - torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        alone = [
            model(ids[row : row + 1, -length:], use_cache=False).last_hidden_state[0] for row, length in enumerate(lengths)
        ]
        cache, steps = kind(), []
        for start, end in ((0, 5), *((at, at + 1) for at in range(5, 11))):
            out = model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache)
            steps.append(out.last_hidden_state)
        packed = torch.cat([ids[row, -length:] for row, length in enumerate(lengths)])[None]
        numbers = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
        together = model(packed, seq_idx=numbers, use_cache=False).last_hidden_state[0].split(lengths)
        shorter = model(ids, attention_mask=mask, use_cache=False).last_hidden_state
    for row, length in enumerate(lengths):
        for found in (torch.cat(steps, dim=1)[row, -length:], together[row], shorter[row, -length:]):
            assert error(found, alone[row]) <= SINGLE


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["none", "left"])
@pytest.mark.parametrize(("family", "cls"), in_turn(WRITING, 12))
def test_what_is_written_equals_the_reference(family: Family, cls: type[Model], pad: str) -> None:
    ours, theirs = lively(family, cls)
    inputs = batch(family, cls, pad=pad)
    check_steps(ours, theirs, inputs)
    for settings in ({}, {"num_beams": 3}, {"use_cache": False}):
        options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0} | settings
        assert torch.equal(ours.generate(**inputs, **options), theirs.generate(**inputs, **options)), settings


@pytest.mark.parametrize(("family", "cls"), in_turn(WRITING, 12, start=1))
def test_padding_counts_nowhere(family: Family, cls: type[Model]) -> None:
    ours, _ = pair(family, cls)
    if not hasattr(ours.config, "has_experts"):
        return
    real, padded = batch(family, cls, pad="none", rows=1, length=6), batch(family, cls, pad="none", rows=1, length=6)
    ids = torch.cat([padded["input_ids"], torch.zeros(1, 3, dtype=torch.long)], dim=1)
    padded = {"input_ids": ids, "attention_mask": (torch.arange(9) < 6).long()[None]}
    with torch.no_grad():
        alone, together = (ours(**given, labels=given["input_ids"], output_router_logits=True) for given in (real, padded))
    if "aux_loss" in alone:
        torch.testing.assert_close(together.aux_loss, alone.aux_loss, rtol=SINGLE, atol=SINGLE)


@pytest.mark.parametrize(("family", "cls"), in_turn(WRITING, 12, start=2))
def test_corrections_stay_exact_in_half_precision(family: Family, cls: type[Model], tmp_path: Path) -> None:
    ours, _ = pair(family, cls)
    ours.save_pretrained(tmp_path)
    half: Any = cls.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for name, tensor in half.state_dict().items():
        assert tensor.dtype is (torch.float32 if "correction_bias" in name else torch.bfloat16) or "gate" in name, name
    assert half(**batch(family, cls)).logits.dtype is torch.bfloat16
