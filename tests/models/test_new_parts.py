"""Families that are not in the package, each written from its parts in a few lines, equal the reference in float64.

They show what the parts can do: rotary tables by kind of layer and of neighbouring pairs, norms of queries and keys, and
sandwich norms.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from transept.checkpoint.names import Names
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig
from transept.layers import Attention, FusedGatedMLP, SandwichNorm
from transept.layers.rotary import rotate_interleaved
from transept.models.llama import ATTENTION, LlamaModel

from .families import Family
from .harness import DOUBLE, batch, compare, pair
from .test_llamas import in_double

pytestmark = pytest.mark.reference


class Glm4Config(DecoderConfig):
    model_type = "glm4"
    default_share = 0.5

    head_dim: int = 128
    hidden_act: str = "silu"
    eos_token_id: int | list[int] | None = None
    attention_bias: bool = True


class Glm4Attention(Attention):
    rotate = staticmethod(rotate_interleaved)


class Glm4Model(LlamaModel):
    config_class = Glm4Config
    block_class = SandwichNorm
    names = LlamaModel.names | Names(
        {
            "layers.*.self_attn": ("layers.*.self_attn", ATTENTION),
            "layers.*.mlp": "layers.*.mlp",
            "layers.*.input_layernorm": "layers.*.self_attn_norm",
            "layers.*.post_attention_layernorm": "layers.*.mlp_norm",
            "layers.*.post_self_attn_layernorm": "layers.*.self_attn_post_norm",
            "layers.*.post_mlp_layernorm": "layers.*.mlp_post_norm",
        }
    )

    def attention(self, layer: int, **more: Any) -> Attention:
        return super().attention(layer, kind=Glm4Attention, out_bias=False, **more)

    def feed_forward(self, layer: int) -> nn.Module:
        return FusedGatedMLP(self.config.hidden_size, self.config.intermediate_size, self.config.hidden_act)


class Glm4ForCausalLM(ForCausalLM[Glm4Model]): ...


# The root of the hidden size is whole: the reference keeps it in float32.
TINY = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 37, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY |= {"head_dim": 12, "initializer_range": 0.2, "pad_token_id": 0, "max_position_embeddings": 64}
GLM = TINY | {"num_hidden_layers": 2, "eos_token_id": 2}
CASES = [
    pytest.param(Family("glm4", GLM), Glm4ForCausalLM, id="glm4"),
    pytest.param(Family("glm4", GLM | {"partial_rotary_factor": 1.0}), Glm4ForCausalLM, id="glm4-whole"),
]


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize(("family", "cls"), CASES)
def test_equals_the_reference(family: Family, cls: Any, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair(family, cls, attention=kernel)
    ours, theirs = ours.double(), theirs.double()
    for pad in ("right", "none"):
        inputs = batch(family, cls, pad=pad) | {"output_hidden_states": True}
        with torch.no_grad():
            mine = ours(**inputs)
        compare(mine, in_double(theirs, monkeypatch, **inputs), DOUBLE)


@pytest.mark.parametrize(("family", "cls"), CASES)
def test_cached_equals_uncached(family: Family, cls: Any) -> None:
    ours = pair(family, cls)[0].double()
    ids = batch(family, cls, pad="none")["input_ids"]
    with torch.no_grad():
        whole, cache = ours(input_ids=ids).logits, None
        for start, end in ((0, 5), (5, 6), (6, 9)):
            step = ours(input_ids=ids[:, start:end], past_key_values=cache, use_cache=True)
            torch.testing.assert_close(step.logits, whole[:, start:end], rtol=1e-10, atol=1e-10)
            cache = step.past_key_values
