"""What the reference's example programs ask for beside the public names."""

from __future__ import annotations

import numpy as np
import torch
import transformers
from PIL import Image
from transept.models.wav2vec2.modeling_wav2vec2 import (  # type: ignore[import-not-found, unused-ignore]
    WAV2VEC2_ADAPTER_SAFE_FILE,
    _compute_mask_indices,
    _sample_negative_indices,
)

import transept
from transept import DetrImageProcessor, Wav2Vec2Config, Wav2Vec2ForCTC, XLNetConfig
from transept.environment.packages import is_torch_xla_available

SIZES = {"vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 2), "num_conv_pos_embeddings": 4}
SIZES |= {"num_conv_pos_embedding_groups": 2, "adapter_attn_dim": 4, "do_stable_layer_norm": True, "feat_extract_norm": "layer"}


def test_hidden_frames_and_their_negatives() -> None:
    torch.manual_seed(0)
    real = torch.arange(40) < torch.tensor([[40], [30]])
    mask = _compute_mask_indices((2, 40), 0.5, 4, attention_mask=real)
    assert mask.dtype == bool
    assert 8 <= mask[0].sum() <= 24
    assert not mask[1, 30:].any()
    negatives = _sample_negative_indices((2, 40), 3, mask_time_indices=mask)
    assert negatives.shape == (2, 40, 3)
    for row, frame in np.argwhere(mask):
        chosen = negatives[row, frame] - 40 * row
        assert mask[row, chosen].all()
        assert frame not in chosen


def test_lengths_and_weights_of_a_language_are_the_references() -> None:
    ours = Wav2Vec2ForCTC(Wav2Vec2Config(**SIZES))
    theirs = transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**SIZES))
    mask = (torch.arange(200) < torch.tensor([[200], [120]])).long()
    frames = int(theirs._get_feat_extract_output_lengths(200))
    assert torch.equal(
        ours._get_feature_vector_attention_mask(frames, mask), theirs._get_feature_vector_attention_mask(frames, mask)
    )
    assert ours._get_adapters().keys() == theirs._get_adapters().keys()
    assert WAV2VEC2_ADAPTER_SAFE_FILE.format("fra") == "adapter.fra.safetensors"


def test_small_things() -> None:
    assert list(XLNetConfig().keys_to_ignore_at_inference) == transformers.XLNetConfig().keys_to_ignore_at_inference
    assert is_torch_xla_available(check_is_tpu=True) is False
    assert transept.utils.is_torch_xla_available() is False
    # Libraries that augment pictures make floats of classes.
    rows = [{"category_id": 2.0, "area": 4.0, "bbox": [1, 1, 2, 2], "iscrowd": 0}]
    found = DetrImageProcessor()(Image.new("RGB", (20, 20)), {"image_id": 1, "annotations": rows}, return_tensors="pt")
    assert found["labels"][0]["class_labels"].tolist() == [2]
