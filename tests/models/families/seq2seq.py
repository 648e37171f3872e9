"""Encoder–decoders of texts."""

from __future__ import annotations

from typing import Any

from .settings import ALL, SHARP, STACKS, TEXT, Family

# What most stacks of BART's kind can switch.
SWITCHES: dict[str, dict[str, Any]] = {
    "untied": {"tie_word_embeddings": False},
    "scaled": {"scale_embedding": True, "activation_function": "relu"},
    "uneven": {"decoder_layers": 1, "decoder_ffn_dim": 21, "decoder_attention_heads": 2},
}
# Small stacks of T5's kind.
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 6, "d_ff": 37, "num_layers": 3, "num_heads": 4, "num_decoder_layers": 2}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "decoder_start_token_id": 0}

# Small stacks of ProphetNet's kind, of which texts reach into the last buckets.
TEXT_OF_NGRAMS = {"vocab_size": 99, "hidden_size": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "encoder_ffn_dim": 37}
TEXT_OF_NGRAMS |= {"num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "decoder_ffn_dim": 37}
TEXT_OF_NGRAMS |= {"max_position_embeddings": 64, "num_buckets": 8, "relative_max_distance": 6, "initializer_range": SHARP}

# One of T5Gemma's stacks, whose second layer sees all.
GEMMA = TEXT | {"intermediate_size": 37, "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 4}
GEMMA |= {"sliding_window": 4, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "initializer_range": SHARP}

SEQ2SEQ = [
    Family(
        "bart",
        STACKS | {"init_std": SHARP},
        modality="seq2seq",
        variants=SWITCHES,
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
        variants=SWITCHES,
    ),
    Family(
        "marian",
        STACKS | {"init_std": SHARP, "activation_function": "swish", "pad_token_id": 98, "decoder_start_token_id": 98},
        modality="seq2seq",
        rounded=ALL,  # the reference's waves are float32
        computed=("embed_positions",),
        variants={
            **SWITCHES,
            "apart": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 99},
        },
    ),
    Family(
        "t5",
        T5,
        modality="seq2seq",
        left_padded_alone=True,
        rounded=ALL,  # the reference norms in float32
        variants={
            "unscaled": {"tie_word_embeddings": False},
            "gated": {"feed_forward_proj": "gated-gelu"},
            "silu": {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 0.1},
        },
    ),
    Family(
        "pegasus",
        STACKS | {"init_std": SHARP},
        modality="seq2seq",
        rounded=ALL,
        computed=("embed_positions",),
        variants=SWITCHES,
    ),
    Family(
        "m2m_100",
        STACKS | {"init_std": SHARP, "scale_embedding": False, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
        modality="seq2seq",
        left_padded_alone=True,
        variants=SWITCHES,
    ),
    Family(
        "nllb-moe",
        STACKS
        | {"init_std": SHARP, "scale_embedding": False, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
        | {"num_experts": 3, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
        modality="seq2seq",
        left_padded_alone=True,
        rounded=ALL,  # the reference routes in float32
        variants={
            **SWITCHES,
            "sparse": {"encoder_sparse_step": 1, "decoder_sparse_step": 0, "router_bias": True, "moe_token_dropout": 0.0},
        },
    ),
    Family(
        "fsmt",
        {name: value for name, value in STACKS.items() if name != "vocab_size"}
        | {"src_vocab_size": 99, "tgt_vocab_size": 99, "init_std": SHARP, "num_beams": 1, "max_length": 20, "use_cache": False},
        modality="seq2seq",
        left_padded_alone=True,
        computed=("embed_positions",),
        variants={
            "tied": {"tie_word_embeddings": True},
            "unscaled": {"scale_embedding": False, "activation_function": "gelu"},
            "uneven": SWITCHES["uneven"],
            "apart": {"src_vocab_size": 103},
        },
        exempt={
            "test_decoders_read_what_labels_say": "the reference's decoder reads the encoder's ids beside labels",
        },
    ),
    Family("blenderbot", STACKS | {"init_std": SHARP}, modality="seq2seq", variants=SWITCHES),
    Family("blenderbot-small", STACKS | {"init_std": SHARP}, modality="seq2seq", variants=SWITCHES),
    Family("plbart", STACKS | {"init_std": SHARP, "scale_embedding": False}, modality="seq2seq", variants=SWITCHES),
    Family(
        "umt5",
        T5,
        modality="seq2seq",
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "silu": {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 0.1},
            "plain": {"feed_forward_proj": "relu"},
        },
    ),
    Family(
        "switch_transformers",
        {name: value for name, value in T5.items() if name != "num_layers"}
        | {"num_layers": 4, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 1, "num_experts": 3},
        modality="seq2seq",
        left_padded_alone=True,
        rounded=ALL,
        variants={
            "unscaled": {"tie_word_embeddings": False, "router_bias": True},
            "dense": {"num_sparse_encoder_layers": 9, "num_sparse_decoder_layers": 0, "dense_act_fn": "gelu_new"},
            "sparse": {"num_sparse_encoder_layers": 4, "num_sparse_decoder_layers": 2, "layer_norm_epsilon": 0.1},
        },
    ),
    Family(
        "led",
        {name: value for name, value in STACKS.items() if name != "max_position_embeddings"}
        | {
            "init_std": SHARP,
            "attention_window": 4,
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 32,
        },
        modality="seq2seq",
        rounded=ALL,
        variants={"windows": {"attention_window": [4, 16]}, "untied": SWITCHES["untied"], "uneven": SWITCHES["uneven"]},
    ),
    Family(
        "longt5",
        T5 | {"local_radius": 2, "global_block_size": 4},
        modality="seq2seq",
        left_padded_alone=True,
        rounded=ALL,
        reads_padding=True,
        variants={
            "sums": {"encoder_attention_type": "transient-global"},
            "gated": {"feed_forward_proj": "gated-gelu", "local_radius": 7},
            "short": {"encoder_attention_type": "transient-global", "global_block_size": 16},
        },
    ),
    Family(
        "bigbird_pegasus",
        STACKS | {"init_std": SHARP, "scale_embedding": False, "block_size": 1, "num_random_blocks": 1},
        modality="seq2seq",
        averages_heads=True,
        variants=SWITCHES | {"full": {"attention_type": "original_full", "use_bias": True}},
        exempt={"test_padded_equals_alone": "which block all see follows from how far a batch is padded, as in training"},
    ),
    Family(
        "mvp",
        STACKS | {"init_std": SHARP, "prompt_length": 3, "prompt_mid_dim": 6},
        modality="seq2seq",
        variants=SWITCHES,
    ),
    Family(
        "pegasus_x",
        STACKS | {"init_std": SHARP, "scale_embedding": False, "block_size": 4, "num_global_tokens": 3},
        modality="seq2seq",
        rounded=ALL,
        variants=SWITCHES | {"in_place": {"stagger_local_blocks": False, "block_size": 2}},
        exempt={
            "test_equals_reference": "its encoder shows states of what fills up blocks, and global tokens in a tuple: see test_pegasus_x.py"
        },
    ),
    Family(
        "prophetnet",
        TEXT_OF_NGRAMS,
        modality="seq2seq",
        rounded=ALL,  # the reference weighs in float32
        averages_heads=True,
        variants={
            "untied": SWITCHES["untied"],
            "uneven": {
                "num_decoder_layers": 1,
                "decoder_ffn_dim": 21,
                "num_decoder_attention_heads": 2,
                "activation_function": "relu",
            },
            "next": {"ngram": 1},
            "three": {"ngram": 3, "num_buckets": 6, "relative_max_distance": 4, "eps": 0.2},
            "alone": {"disable_ngram_loss": True, "eps": 0.1},
        },
    ),
    Family(
        "t5gemma",
        {"encoder": GEMMA, "decoder": GEMMA | {"hidden_size": 24}, "vocab_size": 99},
        modality="seq2seq",
        left_padded_alone=True,
        rounded=ALL,  # the reference norms in float32
        variants={
            "untied": {"tie_word_embeddings": False},
            "unbounded": {
                "encoder": GEMMA | {"attn_logit_softcapping": None, "attention_bias": True},
                "decoder": GEMMA | {"final_logit_softcapping": None, "num_hidden_layers": 3},
            },
        },
    ),
]
