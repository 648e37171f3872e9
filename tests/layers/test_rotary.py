"""Rotary tables against the reference's functions and modules, bit for bit where both compute them on the CPU."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transept.errors import ConfigError
from transept.layers.rotary import FREQUENCIES, Rotary, rotate, rotate_interleaved
from transept.models.llama import LlamaConfig, LlamaModel

ORIGINAL, LONGEST, SIZE = 32, 128, 16
LENGTHS = {"original_max_position_embeddings": ORIGINAL, "max_position_embeddings": LONGEST}
FACTORS = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i / 4 for i in range(8)]}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "large base": {"rope_type": "default", "rope_theta": 500000},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn, its factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, two scales": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.4, "truncate": False},
    "yarn, by lengths": {"rope_type": "yarn", "factor": None},
    "longrope": {"rope_type": "longrope", **FACTORS},
    "longrope, factor": {"rope_type": "longrope", "factor": 16.0, **FACTORS},
    "longrope, its factor": {"rope_type": "longrope", "attention_factor": 1.5, **FACTORS},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "proportional": {"rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.5},
}


def both(rope: dict[str, Any], size: int = SIZE) -> tuple[Rotary, Any]:
    """Our module and the reference's config for the same parameters."""
    import transformers

    rope = {"rope_theta": 10000.0, "original_max_position_embeddings": ORIGINAL} | rope
    config = transformers.LlamaConfig(
        hidden_size=4 * size,
        num_attention_heads=4,
        head_dim=size,
        max_position_embeddings=LONGEST,
        rope_parameters=copy.deepcopy(rope),
    )
    return Rotary(size, rope | LENGTHS), config


def signed(sin: Tensor) -> Tensor:
    """Sines with the sign that the other half of a head is added with."""
    first, second = sin.chunk(2, dim=-1)
    return torch.cat([-first, second], dim=-1)


@pytest.mark.reference
@pytest.mark.parametrize("length", [1, 20, ORIGINAL, ORIGINAL + 1, LONGEST, LONGEST + 1, 1000])
@pytest.mark.parametrize("name", ROPES)
def test_tables_equal_the_reference(name: str, length: int) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    ours, config = both(ROPES[name])
    theirs = LlamaRotaryEmbedding(config)
    positions = torch.arange(length)[None]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        cos, sin = ours(positions, dtype)
        expected = theirs(torch.empty(1, dtype=dtype), positions)
        assert cos.dtype == sin.dtype == dtype
        assert torch.equal(cos[:, 0], expected[0])
        assert torch.equal(sin[:, 0], signed(expected[1]))


@pytest.mark.reference
@pytest.mark.parametrize("share", [1.0, 0.5, 0.75])
@pytest.mark.parametrize("name", [name for name in FREQUENCIES if name not in ("default", "longrope")])
def test_partial_frequencies_equal_the_reference(name: str, share: float) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    ours, config = both(ROPES[name] | {"partial_rotary_factor": share})
    expected, scale = ROPE_INIT_FUNCTIONS[name](config)
    assert torch.equal(ours.inverse(torch.arange(LONGEST)[None]), expected)
    assert ours.frequencies.scale == scale


@pytest.mark.reference
@pytest.mark.parametrize("name", ROPES)
def test_models_equal_the_reference(name: str) -> None:
    import transformers

    _, config = both(ROPES[name])
    config.vocab_size, config.intermediate_size, config.num_hidden_layers = 50, 24, 2
    torch.manual_seed(0)
    theirs = transformers.LlamaModel(config).eval()
    ours = LlamaModel(LlamaConfig.from_dict(config.to_dict())).eval()
    ours.load_state_dict(theirs.state_dict())
    for length in (ORIGINAL // 2, ORIGINAL + 8, LONGEST + 8):
        ids = torch.randint(0, 50, (2, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            mine, other = ours(ids).last_hidden_state, theirs(ids).last_hidden_state
        assert float((mine - other).abs().max() / other.abs().max()) <= 1e-5  # float32, sums in another order


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_long_sequence_leaves_no_trace(name: str) -> None:
    # The reference keeps the frequencies of the longest sequence seen, until one is shorter than the original length.
    ours, _ = both(ROPES[name])
    between = torch.arange(LONGEST + 4)[None]
    first = ours(between, torch.float32)
    ours(torch.arange(1000)[None], torch.float32)
    assert torch.equal(ours(between, torch.float32)[0], first[0])


def test_rotation_turns_pairs_of_halves() -> None:
    angles = torch.tensor([[0.3, 1.1]])
    cos, sin = (torch.cat([t, t], dim=-1)[None, None] for t in (angles.cos(), angles.sin()))
    x = torch.randn(1, 1, 1, 6)
    turned = rotate(x, cos, signed(sin))[0, 0, 0]
    for first in (0, 1):
        pair = torch.complex(x[0, 0, 0, first], x[0, 0, 0, first + 2]) * torch.exp(1j * angles[0, first])
        assert torch.allclose(torch.stack([pair.real, pair.imag]), turned[[first, first + 2]])
    assert torch.equal(turned[4:], x[0, 0, 0, 4:])


def test_scores_depend_on_distances_alone() -> None:
    ours, _ = both(ROPES["default"])
    q, k = torch.randn(2, 1, 1, 1, SIZE, dtype=torch.float64)

    def score(query: int, key: int) -> float:
        tables = [ours(torch.tensor([[place]]), torch.float64) for place in (query, key)]
        return float((rotate(q, *tables[0]) * rotate(k, *tables[1])).sum())

    assert score(7, 3) == pytest.approx(score(107, 103), rel=1e-4)  # angles are float32
    assert score(7, 3) != pytest.approx(score(8, 3), rel=1e-2)


@pytest.mark.parametrize("name", ROPES)
def test_positions_may_be_any(name: str) -> None:
    ours, _ = both(ROPES[name])
    whole = ours(torch.arange(100)[None], torch.float32)[0]
    places = torch.tensor([[5, 99, 5], [0, 2, 99]])
    assert torch.equal(ours(places, torch.float32)[0], whole[0, 0][places][:, None])


def test_frequencies_outlive_what_they_were_made_in() -> None:
    ours, _ = both(ROPES["llama3"])
    places = torch.arange(5)[None]
    with torch.inference_mode():
        ours(places, torch.float32)
    x = torch.randn(1, 1, 5, SIZE, requires_grad=True)
    rotate(x, *ours(places, torch.float32)).sum().backward()
    assert x.grad is not None
    ours.half()
    kept = ours(places, torch.float32)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), both(ROPES["llama3"])[0]):
        assert torch.equal(twin(places, torch.float32)[0], kept[0])


def test_needs_no_memory_to_be_built() -> None:
    with torch.device("meta"):
        ours, _ = both(ROPES["yarn"])
        assert not list(ours.buffers())
    meta = ours(torch.arange(5, device="meta")[None], torch.float32)[0]
    assert meta.device.type == "meta"
    assert torch.equal(
        ours(torch.arange(5)[None], torch.float32)[0], both(ROPES["yarn"])[0](torch.arange(5)[None], torch.float32)[0]
    )


class Tables(nn.Module):
    """Without the type among the inputs, which exported programs do not take."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotary(positions, torch.float32)


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("warm", [False, True])
def test_traces_whole(name: str, warm: bool) -> None:
    ours, _ = both(ROPES[name])
    places = torch.arange(40)[None]
    expected = both(ROPES[name])[0](places, torch.float32)
    if warm:
        ours(places, torch.float32)
    torch._dynamo.reset()
    tables = Tables(ours)
    for program in (torch.compile(tables, fullgraph=True, backend="eager"), torch.export.export(tables, (places,)).module()):
        cos, sin = program(places)
        assert torch.equal(cos, expected[0])
        assert torch.equal(sin, expected[1])
    assert torch.equal(ours(places, torch.float32)[0], expected[0])  # tracing has left nothing behind


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"rope_type": "yam"}, "'yarn'"),
    "type, a list": ({"rope_type": ["yarn"]}, "rope_type"),
    "theta, text": ({"rope_theta": "10000"}, "rope_theta"),
    "theta, zero": ({"rope_theta": 0}, "rope_theta"),
    "theta, endless": ({"rope_theta": math.inf}, "rope_theta"),
    "theta, one": ({"rope_type": "yarn", "rope_theta": 1, "factor": 2.0}, "rope_theta"),
    "no factor": ({"rope_type": "linear"}, "factor"),
    "factor, true": ({"rope_type": "dynamic", "factor": True}, "factor"),
    "factor, negative": ({"rope_type": "llama3", "factor": -1.0}, "factor"),
    "share, none": ({"partial_rotary_factor": 0.01}, "partial_rotary_factor"),
    "share, too much": ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
    "pair": ({"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.125}, "more than 2"),
    "few factors": ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 8}, "short_factor"),
    "bad factors": ({"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [None] * 8}, "long_factor"),
    "turns": ({"rope_type": "yarn", "factor": 2.0, "beta_fast": -1}, "beta_fast"),
    "order": ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}, "high_freq_factor"),
}


@pytest.mark.parametrize("name", WRONG)
def test_impossible_parameters_are_named(name: str) -> None:
    given, named = WRONG[name]
    with pytest.raises(ConfigError, match=named):
        Rotary(SIZE, {"rope_theta": 10000.0} | given | LENGTHS)


def test_an_odd_head_cannot_turn() -> None:
    with pytest.raises(ConfigError, match="in pairs"):
        Rotary(7, {"rope_theta": 10000.0})


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_scaling_that_is_no_mapping_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        LlamaConfig.from_dict({key: "linear"})


def test_older_files_mean_the_same() -> None:
    scaled = {"type": "linear", "factor": 2.0}
    old = LlamaConfig.from_dict({"rope_theta": 5000.0, "rope_scaling": scaled})
    assert old.rope_parameters == {"type": "linear", "rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
    assert LlamaConfig.from_dict(old.to_dict()) == old
    assert scaled == {"type": "linear", "factor": 2.0}
    assert old.rope()["original_max_position_embeddings"] == old.max_position_embeddings


def test_overriding_settings_replace_the_files() -> None:
    values = LlamaConfig(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}).to_dict()
    faster = LlamaConfig.from_dict(values, rope_theta=7000.0)
    assert faster.rope_parameters == {"rope_type": "linear", "factor": 2.0, "rope_theta": 7000.0}
    for key in ("rope_scaling", "rope_parameters"):
        other = LlamaConfig.from_dict(values, **{key: {"rope_type": "dynamic", "factor": 3.0}})
        assert other.rope_parameters == {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 5000.0}


@pytest.mark.parametrize("turned", [6, 10])
def test_interleaved_pairs_turn_as_pairs_of_halves(turned: int) -> None:
    x = torch.randn(2, 3, 7, 10)
    table = Rotary(10, {"rope_theta": 100.0, "partial_rotary_factor": turned / 10})(torch.arange(7)[None], x.dtype)
    order = torch.cat([torch.arange(0, turned, 2), torch.arange(1, turned, 2), torch.arange(turned, 10)])
    assert torch.allclose(rotate_interleaved(x, *table)[..., order], rotate(x[..., order], *table), atol=1e-6)


def test_parameters_by_kind_of_layer_need_kinds_of_layers() -> None:
    kinds = {"full_attention": {"rope_theta": 100.0}, "sliding_attention": {"rope_theta": 10.0}}
    with pytest.raises(ConfigError, match="one kind in this family"):
        LlamaModel(LlamaConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16, rope_parameters=kinds))
