"""Encoder–decoders of texts."""

from __future__ import annotations

from .settings import ALL, SHARP, STACKS, TEXT, Family

SEQ2SEQ = [
    Family(
        "bart",
        STACKS | {"init_std": SHARP},
        modality="seq2seq",
        variants={
            "untied": {"tie_word_embeddings": False},
            "scaled": {"scale_embedding": True, "activation_function": "relu"},
            "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 21, "decoder_attention_heads": 2},
        },
    ),
    Family(
        "encoder_decoder",
        {
            "encoder": TEXT | {"model_type": "bert", "intermediate_size": 37},
            "decoder": TEXT | {"model_type": "gpt2", "vocab_size": 87, "initializer_range": SHARP, "add_cross_attention": True},
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
        modality="seq2seq",
        variants={
            "berts": {
                "encoder": TEXT | {"model_type": "roberta", "intermediate_size": 37},
                "decoder": TEXT
                | {"model_type": "bert", "hidden_size": 24, "is_decoder": True, "add_cross_attention": True}
                | {"intermediate_size": 37},
            },
            "bart": {"decoder": STACKS | {"model_type": "bart", "init_std": SHARP}},
        },
    ),
    Family(
        "mbart",
        STACKS | {"init_std": SHARP},
        modality="seq2seq",
        variants={
            "untied": {"tie_word_embeddings": False},
            "scaled": {"scale_embedding": True, "activation_function": "relu"},
            "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 21, "decoder_attention_heads": 2},
        },
    ),
    Family(
        "marian",
        STACKS | {"init_std": SHARP, "activation_function": "swish", "pad_token_id": 98, "decoder_start_token_id": 98},
        modality="seq2seq",
        rounded=ALL,  # the reference's waves are float32
        computed=("embed_positions",),
        variants={
            "untied": {"tie_word_embeddings": False},
            "scaled": {"scale_embedding": True, "activation_function": "relu"},
            "apart": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 99},
            "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 21, "decoder_attention_heads": 2},
        },
    ),
    Family(
        "t5",
        {"vocab_size": 99, "d_model": 32, "d_kv": 6, "d_ff": 37, "num_layers": 3, "num_heads": 4}
        | {"num_decoder_layers": 2, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
        | {"decoder_start_token_id": 0},
        modality="seq2seq",
        left_padded_alone=True,
        rounded=ALL,  # the reference norms in float32
        variants={
            "unscaled": {"tie_word_embeddings": False},
            "gated": {"feed_forward_proj": "gated-gelu"},
            "silu": {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 0.1},
        },
    ),
]
