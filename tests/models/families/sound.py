"""Families that read sound."""

from __future__ import annotations

from .settings import BLOCK, SHARP, STACKS, TEXT, WAVE, XVECTOR, Family

SOUND = [
    Family(
        "wav2vec2",
        WAVE | XVECTOR | {"num_negatives": 5, "codevector_dim": 16, "proj_codevector_dim": 12, "num_codevectors_per_group": 8},
        modality="audio",
        variants={
            "stable": {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True, "adapter_attn_dim": 5},
            "weighted": {"use_weighted_layer_sum": True, "num_conv_pos_embeddings": 15, "mask_time_prob": 0.0},
        },
    ),
    Family(
        "whisper",
        {name: value for name, value in STACKS.items() if name != "max_position_embeddings"}
        | {"num_mel_bins": 8, "max_source_positions": 6, "max_target_positions": 20, "init_std": SHARP}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3, "classifier_proj_size": 12},
        modality="speech",
        variants={
            "untied": {"tie_word_embeddings": False},
            "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 21, "decoder_attention_heads": 2, "activation_function": "relu"},
        },
    ),
    Family(
        "speech_encoder_decoder",
        {
            "encoder": BLOCK
            | {"model_type": "wav2vec2", "conv_dim": [16, 24], "conv_stride": [5, 4], "conv_kernel": [10, 8]}
            | {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0},
            "decoder": TEXT | {"model_type": "gpt2", "initializer_range": SHARP, "add_cross_attention": True},
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
        modality="speech",
        variants={
            "berts": {
                "decoder": TEXT
                | {"model_type": "bert", "hidden_size": 24, "is_decoder": True, "add_cross_attention": True}
                | {"intermediate_size": 37},
            },
        },
    ),
    Family(
        "hubert",
        WAVE,
        modality="audio",
        variants={
            "stable": {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True},
            "normed": {"conv_pos_batch_norm": True, "feat_proj_layer_norm": False, "num_conv_pos_embeddings": 15},
        },
    ),
    Family(
        "wavlm",
        WAVE | XVECTOR | {"num_buckets": 16, "max_bucket_distance": 20},
        modality="audio",
        averages_heads=True,
        variants={
            "stable": {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True},
            "weighted": {"use_weighted_layer_sum": True, "num_conv_pos_embeddings": 15, "mask_time_prob": 0.0},
        },
    ),
    Family(
        "audio_spectrogram_transformer",
        BLOCK | {"patch_size": 4, "frequency_stride": 3, "time_stride": 2, "max_length": 14, "num_mel_bins": 10},
        modality="speech",
        variants={"unbiased": {"qkv_bias": False, "hidden_act": "relu"}},
    ),
]
