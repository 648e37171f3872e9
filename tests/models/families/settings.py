"""What a family's line says, and the settings that several lines share."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Family:
    """What the suite cannot find out by itself.

    `tiny` are the settings of a small random model. `modality` chooses the inputs. `left_padded_alone` tells whether a row
    padded on the left equals the row alone (positions that are relative or derived from the mask). `variants` are further
    settings to check, on top of `tiny`. `rounded` names the classes whose float64 results the reference computes in
    float32. `computed` are parts of the names of what the reference stores and ours computes. `beyond` are the classes that
    the reference lacks, which have tests of their own. `averages_heads` tells that the reference shows no attention of each
    head, but their mean, or scores. `reads_padding` tells that the reference reads padding as text, so that it is compared
    without. `exempt` names the tests that cannot hold, and why.
    """

    model_type: str
    tiny: dict[str, Any]
    modality: str = "text"
    left_padded_alone: bool = False
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    rounded: Container[str] = ()
    decoder: dict[str, Any] | None = None  # settings that make it a decoder, where it can be one
    token_types: bool = False
    computed: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    averages_heads: bool = False
    reads_padding: bool = False
    exempt: dict[str, str] = field(default_factory=dict)


class _All:
    def __contains__(self, name: object) -> bool:
        return True


ALL = _All()

# Weights so large that attention is far from uniform, and a wrong angle or scale is seen.
SHARP = 0.25

TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
# Large weights: with the usual small ones attention is all but even, and states hardly differ between positions.
BLOCK = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "initializer_range": 0.2,
}

BEIT = BLOCK | {"vocab_size": 20, "image_size": 16, "patch_size": 4, "num_hidden_layers": 4, "layer_scale_init_value": 0.5}
BEIT |= {"drop_path_rate": 0.0, "out_indices": [1, 2, 3, 4], "num_labels": 3, "auxiliary_channels": 12}
DINO = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2, "image_size": 16, "patch_size": 4}
DINO |= {"initializer_range": 0.2, "layerscale_value": 0.5, "out_indices": [0, -1]}

WAVE = BLOCK | {"vocab_size": 32, "conv_dim": [16, 24], "conv_stride": [5, 4], "conv_kernel": [10, 8], "layerdrop": 0.0}
WAVE |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 12}
XVECTOR = {"tdnn_dim": [16, 20, 24], "tdnn_kernel": [5, 3, 1], "tdnn_dilation": [1, 2, 1], "xvector_output_dim": 18}

# Sequences of nine are longer than what `dynamic` and `longrope` begin to stretch at; heads have four pairs to turn.
ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 4}
FACTORS = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_parameters": ROPE | {"rope_type": "linear", "factor": 4.0}},
    "dynamic": {"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 2.5}, "max_position_embeddings": 4},
    "yarn": {"rope_parameters": ROPE | {"rope_type": "yarn", "factor": 16.0}},
    "longrope": {"rope_parameters": ROPE | FACTORS | {"rope_type": "longrope"}},
    "longrope_short": {"rope_parameters": ROPE | FACTORS | {"rope_type": "longrope", "original_max_position_embeddings": 32}},
    "llama3": {"rope_parameters": ROPE | BANDS | {"rope_type": "llama3", "factor": 8.0}},
}
# Of the stacks of an encoder–decoder.
STACKS = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
}

# The last ids are those that sequences begin and end with.
BLIP_TEXT = TEXT | {"intermediate_size": 37, "initializer_range": 0.2, "encoder_hidden_size": 32}
BLIP_TEXT |= {"bos_token_id": 98, "sep_token_id": 97}

# Models that read texts with pictures of any size.
READER = TEXT | {"intermediate_size": 37, "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": SHARP}
READER |= {"bos_token_id": 1, "eos_token_id": 2}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
TOKENS = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
WITH_PICTURES = {"text_config": READER | MROPE, **TOKENS}
EYE = {"depth": 2, "num_heads": 2, "patch_size": 4, "initializer_range": SHARP}
SIZED = {
    **dict.fromkeys(
        ("test_compiles_whole", "test_compiles_with_inductor", "test_exports"),
        "sizes of pictures are read from tensors; the text model compiles: see test_qwen2_vl.py",
    ),
    "test_cached_equals_uncached": "a picture is read at once: see test_qwen2_vl.py",
}
# The two networks of models that compare texts with images.
TOWER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
TEXT_TOWER = TOWER | {
    "vocab_size": 99,
    "max_position_embeddings": 16,
    "pad_token_id": 1,
    "bos_token_id": 97,
    "eos_token_id": 98,
}
IMAGE_TOWER = TOWER | {"image_size": 16, "patch_size": 4}
SHARED = {"projection_dim": 12, "initializer_factor": 4.0}

# The decoder alone.
WRITER = {name: value for name, value in STACKS.items() if not name.startswith("encoder_")} | {"init_std": SHARP}
