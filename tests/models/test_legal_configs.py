"""What the reference's configs and its own tests take is legal, and computes the same."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as reference
from torch import Tensor

import transept
from transept.errors import ConfigError, TranseptWarning
from transept.models.mamba import MambaConfig
from transept.models.reformer import ReformerConfig, ReformerModel

TEXT: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
TEXT |= {"vocab_size": 30, "max_position_embeddings": 20, "projection_dim": 8}
MAMBA: dict[str, Any] = {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 1, "vocab_size": 30}
LOCAL: dict[str, Any] = {"attn_layers": ["local"], "local_attn_chunk_length": 4, "lsh_attn_chunk_length": None}
LOCAL |= {"lsh_attention_probs_dropout_prob": None}
LOCAL |= {"attention_head_size": 8, "hidden_size": 16, "num_attention_heads": 2, "feed_forward_size": 16, "vocab_size": 30}
LOCAL |= {"axial_pos_shape": [4, 4], "axial_pos_embds_dim": [8, 8], "max_position_embeddings": 16, "is_decoder": True}
STAGES: dict[str, Any] = {"embedding_size": 10, "hidden_sizes": [10, 20, 30, 42], "depths": [1, 1, 1, 1]}
STAGES |= {"out_features": ["stage2", "stage3", "stage4"]}
PATCHES: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
PATCHES |= {"out_features": ["stage1", "stage2"], "reshape_hidden_states": False}
DEPTH: dict[str, Any] = {"reassemble_hidden_size": 8, "fusion_hidden_size": 8, "head_hidden_size": 4, "patch_size": 14}
DETECTION: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 4,
    "decoder_ffn_dim": 4,
}
DETECTION |= {"num_queries": 3, "num_labels": 5, "use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False}

IDS = torch.tensor([[1, 5, 6, 7], [3, 9, 2, 1]])


def pixels(size: int) -> Tensor:
    return (torch.arange(3.0 * size * size) / 100).sin().view(1, 3, size, size)


@torch.no_grad()
def outputs(name: str, theirs: Any, inputs: Tensor, path: Path) -> list[tuple[Tensor, Tensor]]:
    """Of a model of that name the tensors that ours and the reference's compute, in pairs."""
    torch.manual_seed(0)
    model = getattr(reference, name)(theirs).eval()
    model.save_pretrained(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TranseptWarning)
        ours, expected = getattr(transept, name).from_pretrained(path)(inputs), model(inputs)
    names = [key for key, value in expected.items() if isinstance(value, Tensor)]
    return [(ours[key], expected[key]) for key in names]


def nested(**settings: Any) -> Any:
    return reference.DetrConfig(**DETECTION, backbone_config=reference.ResNetConfig(**settings))


@pytest.mark.parametrize(
    ("name", "config", "inputs"),
    [
        ("CLIPTextModelWithProjection", lambda: reference.CLIPTextConfig(**TEXT, eos_token_id=2), IDS),
        ("CLIPTextModelWithProjection", lambda: reference.CLIPTextConfig(**TEXT, eos_token_id=9), IDS),
        ("ResNetModel", lambda: reference.ResNetConfig(**STAGES), pixels(32)),
        ("ReformerModelWithLMHead", lambda: reference.ReformerConfig(**LOCAL), torch.arange(16)[None]),
        ("MambaForCausalLM", lambda: reference.MambaConfig(**MAMBA, intermediate_size=20, expand=3), IDS),
        ("DetrForObjectDetection", lambda: nested(**STAGES), pixels(64)),
        ("DetrForSegmentation", lambda: nested(**STAGES), pixels(64)),
        (
            "DepthAnythingForDepthEstimation",
            lambda: reference.DepthAnythingConfig(
                backbone_config=reference.Dinov2Config(**PATCHES), neck_hidden_sizes=[6, 4], **DEPTH
            ),
            pixels(28),
        ),
    ],
    ids=["largest id", "no end", "resnet", "reformer", "mamba", "detr", "masks", "depth"],
)
def test_what_the_reference_takes_is_legal(name: str, config: Any, inputs: Tensor, tmp_path: Path) -> None:
    pairs = outputs(name, config(), inputs, tmp_path)
    assert pairs
    for ours, expected in pairs:
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)


def test_a_text_without_an_end_is_told() -> None:
    model = transept.CLIPTextModel(transept.CLIPTextConfig(**TEXT, eos_token_id=9)).eval()
    with pytest.warns(TranseptWarning, match=r"row 0 of `input_ids` has no end token \(9\).*the first state is taken"):
        model(IDS)


def test_sizes_that_follow_unless_they_are_given() -> None:
    assert MambaConfig(hidden_size=8, expand=3).intermediate_size == 24
    config = MambaConfig(hidden_size=8, expand=3, intermediate_size=20)
    config.hidden_size = 16
    assert config.intermediate_size == 20


def test_numbers_of_layers_that_are_there_are_needed() -> None:
    with pytest.raises(ConfigError, match="`lsh_attn_chunk_length` of ReformerConfig must be a number, since `attn_layers`"):
        ReformerConfig(**LOCAL | {"attn_layers": ["local", "lsh"]})
    without = {"lsh_num_chunks_before": None, "lsh_num_chunks_after": None, "is_decoder": False}
    assert ReformerModel(ReformerConfig(**LOCAL | without))(torch.arange(16)[None])[0].shape == (1, 16, 32)


def test_more_sizes_of_maps_than_states_are_an_error_of_the_model() -> None:
    config = transept.DepthAnythingConfig(backbone_config={"model_type": "dinov2", **PATCHES}, **DEPTH)
    assert len(config.neck_hidden_sizes) == 4
    with pytest.raises(ConfigError, match=r"`neck_hidden_sizes` .* must have as many numbers as states are read \(2\)"):
        transept.DepthAnythingForDepthEstimation(config)
