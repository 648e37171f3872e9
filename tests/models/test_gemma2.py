"""What Gemma 2 adds to the derived suite: files of the older layout, bounds, scaled embeddings and half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from transept.errors import ConfigError, TranseptWarning
from transept.models.gemma2 import Gemma2Config, Gemma2ForCausalLM, Gemma2Model

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, compare, error, pair

FAMILY = {family.model_type: family for family in FAMILIES}["gemma2"]
# config.json of a published checkpoint, that with 2 billion parameters, and the settings that differ in that with 27.
SMALL = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 256000,
}
LARGE = SMALL | {
    "head_dim": 128,
    "hidden_size": 4608,
    "intermediate_size": 36864,
    "num_attention_heads": 32,
    "num_hidden_layers": 46,
    "num_key_value_heads": 16,
    "query_pre_attn_scalar": 144,
    "eos_token_id": [1, 107],
}


@pytest.mark.reference
@pytest.mark.parametrize("values", [{}, SMALL, LARGE], ids=["defaults", "small", "large"])
def test_files_of_the_older_layout(values: dict[str, Any]) -> None:
    check_config_file(Gemma2Config, values)
    config = Gemma2Config.from_dict(values)
    assert [config.window(layer) for layer in range(4)] == [4096, None, 4096, None]


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "flex"])
def test_scores_are_bounded_under_every_kernel(kernel: str) -> None:
    model = Gemma2ForCausalLM(Gemma2Config(**FAMILY.tiny)).eval()
    inputs = batch(FAMILY, Gemma2ForCausalLM)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs).logits
        model.set_attn_implementation(kernel)
        assert torch.equal(model(**inputs).logits, expected)
        assert float(expected.abs().max()) < 1.5
        weights = model(**inputs, output_attentions=True).attentions
        # Scores lie between -2 and 2, so that no key weighs e^4 times what another does.
        for row, length in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
            last = weights[1][row, :, length - 1, :length]
            assert float((last.amax(-1) / last.amin(-1)).max()) <= 54.6


def test_bounds_can_be_left_out() -> None:
    free = FAMILY.tiny | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    model = Gemma2ForCausalLM(Gemma2Config(**free)).eval()
    with torch.no_grad():
        assert float(model(**batch(FAMILY, Gemma2ForCausalLM)).logits.abs().max()) > 1.5


@pytest.mark.reference
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_embeddings_are_scaled_in_their_own_type(dtype: torch.dtype) -> None:
    """The root of 48 is 6.9282, in bfloat16 6.9375."""
    size = {"hidden_size": 48}
    ours, theirs = pair(FAMILY, Gemma2Model, **size)
    ids = torch.arange(99)[None]
    ours, theirs = ours.to(dtype), theirs.to(dtype)
    with torch.no_grad():
        mine = ours.get_input_embeddings()(ids)
        assert mine.dtype == dtype
        assert torch.equal(mine, theirs.get_input_embeddings()(ids))
        root = torch.tensor(48.0).sqrt().to(dtype)
        assert torch.equal(mine[0], ours.embed_tokens.weight * root)


@pytest.mark.reference
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_equals_the_reference(dtype: str, tmp_path: Path) -> None:
    """To the bit: norms, scores and bounds round where the reference rounds."""
    import transformers

    pair(FAMILY, Gemma2ForCausalLM)[0].save_pretrained(tmp_path)
    ours = Gemma2ForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    theirs = transformers.Gemma2ForCausalLM.from_pretrained(tmp_path, dtype=dtype, attn_implementation="eager")
    inputs = batch(FAMILY, Gemma2ForCausalLM)
    with torch.no_grad():
        compare(ours(**inputs, output_hidden_states=True), theirs(**inputs, output_hidden_states=True), 0.0)


def test_a_resized_vocabulary_keeps_scale_and_bound() -> None:
    model = Gemma2ForCausalLM(Gemma2Config(**FAMILY.tiny)).eval()
    inputs = batch(FAMILY, Gemma2ForCausalLM)
    with torch.no_grad():
        expected = model(**inputs).logits
        model.resize_token_embeddings(120)
        grown = model(**inputs).logits
    assert grown.shape[-1] == 120
    assert error(grown[..., :99], expected) <= SINGLE
    assert model.lm_head.weight is model.backbone.embed_tokens.weight


@pytest.mark.reference
def test_decoding_past_the_window_equals_the_reference() -> None:
    """Padded on the left, a prompt and then token by token."""
    ours, theirs = pair(FAMILY, Gemma2ForCausalLM)
    ids = torch.randint(5, 99, (3, 16), generator=torch.Generator().manual_seed(6))
    mask = (torch.arange(16) >= torch.tensor([[0], [3], [6]])).long()
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    caches, start = [None, None], 0
    for end in (8, *range(9, 17)):
        part = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end], "position_ids": positions[:, start:end]}
        with torch.no_grad():
            mine = ours(**part, past_key_values=caches[0], use_cache=True)
            other = theirs(**part, past_key_values=caches[1], use_cache=True)
        compare(mine, other, SINGLE, only=mask[:, start:end])
        caches, start = [mine.past_key_values, other.past_key_values], end


def test_new_norms_scale_by_one() -> None:
    model = Gemma2Model(Gemma2Config(**FAMILY.tiny))
    norms = [value for name, value in model.named_parameters() if "norm" in name]
    assert len(norms) == 4 * 2 + 1
    assert not any(value.any() for value in norms)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"attn_logit_softcapping": 0.0}, "attn_logit_softcapping"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"sliding_window": None}, "sliding_window"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"hidden_activation": "gellu"}, "'gelu'"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_impossible_settings_are_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Gemma2Model(Gemma2Config(**FAMILY.tiny | wrong))


def test_the_activation_has_another_name() -> None:
    with pytest.warns(TranseptWarning, match="'hidden_act'.*'hidden_activation'"):
        config = Gemma2Config(**FAMILY.tiny | {"hidden_act": "gelu"})
    assert config.hidden_activation == "gelu_pytorch_tanh"
