"""What WavLM adds to the derived suite: the attention of each head, any kernel, the shared table, and its settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transept.errors import ConfigError
from transept.models.wavlm import WavLMConfig, WavLMModel

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, error, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "wavlm")
pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")


@pytest.mark.reference
@pytest.mark.parametrize("extra", [{}, {"num_buckets": 320, "max_bucket_distance": 800, "ctc_loss_reduction": "mean"}])
def test_reads_published_config_files(extra: dict[str, Any]) -> None:
    values = {"model_type": "wavlm", "architectures": ["WavLMModel"], "hidden_size": 768, "num_ctc_classes": 80}
    check_config_file(WavLMConfig, values | extra)


@pytest.mark.reference
def test_the_mean_of_all_heads_is_what_the_reference_shows() -> None:
    ours, theirs = pair(FAMILY, WavLMModel)
    inputs = batch(FAMILY, WavLMModel)
    with torch.no_grad():
        mine, other = ours(**inputs, output_attentions=True), theirs(**inputs, output_attentions=True)
        fast = ours(**inputs)
    assert error(mine.last_hidden_state, other.last_hidden_state) <= SINGLE
    assert error(fast.last_hidden_state, mine.last_hidden_state) <= SINGLE
    for each, whole in zip(mine.attentions, other.attentions, strict=True):
        assert error(each.mean(dim=1), whole[:, 0]) <= SINGLE
        assert not torch.allclose(each[:, 0], each[:, 1])
        assert torch.allclose(each.sum(dim=-1), torch.ones(each.shape[:-1]))


def test_biases_are_gated_by_a_plain_computation() -> None:
    torch.manual_seed(0)
    ours = WavLMModel(WavLMConfig(**FAMILY.tiny)).eval()
    heads, layer = FAMILY.tiny["num_attention_heads"], ours.layers[0].self_attn
    x, ctx = ours.begin(torch.randn(1, 900))
    assert ctx.position_bias is not None
    q, k = (projection(x).view(-1, heads, 8).transpose(0, 1) for projection in (layer.q_proj, layer.k_proj))
    weights = []
    for head in range(heads):
        state = x[0].view(-1, heads, 8)[:, head]
        numbers = layer.gate(state)
        a, b = numbers[:, :4].sum(dim=1).sigmoid(), numbers[:, 4:].sum(dim=1).sigmoid()
        gate = a * (b * layer.gate_scale[0, head, 0, 0] - 1) + 2
        weights.append((q[head] @ k[head].T / 8**0.5 + gate[:, None] * ctx.position_bias[0, head]).softmax(dim=-1))
    ctx.attentions = []
    ctx.kernel = ours.context(output_attentions=True).kernel
    layer(x, ctx)
    assert error(ctx.attentions[0][0], torch.stack(weights)) <= SINGLE


def test_settings_out_of_range() -> None:
    with pytest.raises(ConfigError, match="num_buckets"):
        WavLMConfig(num_buckets=2)
    with pytest.raises(ConfigError, match="max_bucket_distance"):
        WavLMConfig(num_buckets=320, max_bucket_distance=80)
    layers = WavLMModel(WavLMConfig(**FAMILY.tiny | {"layerdrop": 0.5})).layers
    assert [layer.layerdrop for layer in layers] == [0.0, 0.5]
