"""GGUF files that are written here: read again they are the same model, and the format's own library unpacks them alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import transept
from tests.models.families import FAMILIES
from tests.models.families.experts import LONG
from tests.models.harness import classes, settings
from tests.preprocess.text.conftest import DATA
from tests.thorough import in_turn
from transept.adapt.gguf import save_gguf
from transept.checkpoint.block_writing import encode
from transept.checkpoint.blocks import decode
from transept.checkpoint.keys import Fused
from transept.errors import FileError, InputError, UnsupportedError
from transept.quantized.linear import few_bits
from transept.storage.gguf import read_gguf
from transept.storage.gguf_encodings import ENCODINGS

# What the tests' small models have otherwise than the released ones that the format is for.
USUAL: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"sliding_window": 4096},
    "Qwen2ForCausalLM": {"use_sliding_window": False, "sliding_window": None},
    "Qwen3ForCausalLM": {"use_sliding_window": False, "sliding_window": None},
    "Qwen3MoeForCausalLM": {"norm_topk_prob": True, "mlp_only_layers": None},
    "Qwen2MoeForCausalLM": {"mlp_only_layers": None},
    "Dots1ForCausalLM": {"layer_types": None, "max_window_layers": None},
    "Cohere2ForCausalLM": {"layer_types": None, "sliding_window_pattern": None},
    "StableLmForCausalLM": {"qk_layernorm": False},
    "GptOssForCausalLM": dict.fromkeys(("swiglu_limit", "sliding_window", "layer_types")),
    "DeepseekV2ForCausalLM": {"n_group": None, "topk_group": None},
    "GraniteMoeHybridForCausalLM": {"position_embedding_type": "nope"},
    "MiniCPM3ForCausalLM": dict.fromkeys(("v_head_dim", "scale_emb", "scale_depth", "dim_model_base")),
    "FalconMambaForCausalLM": {"mixer_rms_eps": None},
    "Gemma2ForCausalLM": {"query_pre_attn_scalar": 12},
    "Gemma3ForCausalLM": {
        "query_pre_attn_scalar": 12,
        "layer_types": None,
        "sliding_window_pattern": None,
        "rope_parameters": None,
    },
    "JambaForCausalLM": {"num_hidden_layers": 4},
    "NemotronHForCausalLM": {"time_step_min": None, "layer_types": ["linear_attention", "moe", "full_attention", "moe"]},
    "PhimoeForCausalLM": {"router_jitter_noise": None},
    "Llama4ForCausalLM": dict.fromkeys(("attention_chunk_size", "moe_layers")),
    "SmolLM3ForCausalLM": {"no_rope_layers": [1, 1], "no_rope_layer_interval": None},
}
USED = ("LlamaForCausalLM", "Qwen3ForCausalLM", "GPT2LMHeadModel")
WRITERS = {
    cls.__name__: (family, cls)
    for family in FAMILIES
    for cls in classes(family)
    if cls.__name__.endswith(("ForCausalLM", "LMHeadModel")) and "gguf" in vars(getattr(cls, "backbone_class", cls))
}
# OLMo 3's files are OLMo 2's, EXAONE 4's do not say which layers of a small model slide, and those of BERT have no head.
OTHERS = {"Olmo3ForCausalLM", "Exaone4ForCausalLM", "BertLMHeadModel", "RobertaForCausalLM", "XLMRobertaForCausalLM"}


def tiny(**more: Any) -> transept.LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}
    return transept.LlamaForCausalLM(transept.LlamaConfig(**(sizes | more))).eval()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_blocks_are_of_the_format_and_near_the_numbers(name: str) -> None:
    """As near as those of the format's own library, where it can round; the K encodings as their bits allow.

    A step of 4 bits over the range of 32 normal numbers, some 4 deviations, is off by 4 / 15 / sqrt(12) = 0.077 of them.
    """
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.01, 3, 64)[:, None]
    x[0], x[1] = 0, 1
    number, kind = next((number, kind) for number, kind in ENCODINGS.items() if kind.name == name)
    data = encode(name, x)
    assert data.shape == (64, 512 // kind.block * kind.size)
    found = decode(name, data.view(-1, kind.size)).view(64, 512)
    theirs = gguf.dequantize(data.numpy(), gguf.GGMLQuantizationType(number))
    assert np.array_equal(found.numpy(), theirs)
    error = ((found - x).norm() / x.norm()).item()
    if name in ("Q4_K", "Q6_K"):
        assert error < {"Q4_K": 0.078, "Q6_K": 0.02}[name]
    else:
        usual = torch.from_numpy(
            gguf.dequantize(gguf.quantize(x.numpy(), gguf.GGMLQuantizationType(number)), gguf.GGMLQuantizationType(number))
        )
        assert error <= ((usual - x).norm() / x.norm()).item() * 1.001
    assert (found[0] == 0).all()


@pytest.mark.parametrize("name", in_turn(sorted(WRITERS.keys() - OTHERS), 15, whole=USED))
def test_models_are_read_as_they_were(name: str, tmp_path: Path) -> None:
    model, again = written(name, tmp_path)
    ids = torch.randint(5, model.config.vocab_size, (2, 9))
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, again(input_ids=ids).logits)
    assert type(again) is type(model) or name == "MistralForCausalLM"


def test_products_of_queries_keys_and_values_are_read_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As older files of GLM-4 have them; matrices of few bits stay so."""
    usual, body = transept.models.glm.GlmModel.gguf, transept.models.glm.GlmModel
    fused = Fused(tuple(f"self_attn.{name}_proj" for name in "qkv"))
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40}
    config = transept.GlmConfig(
        **sizes, num_key_value_heads=2, head_dim=16, **dict.fromkeys(("pad_token_id", "eos_token_id"), 1)
    )
    model = transept.GlmForCausalLM(config).eval()
    save_gguf(model, tmp_path / "usual.gguf", "q8_0")
    apart = dict.fromkeys(f"attn_{name}" for name in "qkv") | {"attn_qkv": fused}
    monkeypatch.setattr(body, "gguf", replace(usual, layer={**usual.layer, **apart}))
    save_gguf(model, tmp_path / "fused.gguf", "q8_0")
    monkeypatch.undo()
    one, other = (transept.AutoModelForCausalLM.from_pretrained(tmp_path / f"{name}.gguf") for name in ("usual", "fused"))
    assert few_bits(one).keys() == few_bits(other).keys()
    wanted = one.dequantize().state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in other.dequantize().state_dict().items())


def written(name: str, tmp_path: Path, **more: Any) -> tuple[Any, Any]:
    """A small model of a class, and the one that is read from its file."""
    family, cls = WRITERS[name]
    torch.manual_seed(0)
    values = settings(family, cls) | USUAL.get(name, {}) | more
    model = cls(cls.config_class(**{key: value for key, value in values.items() if value is not None})).eval()
    save_gguf(model, tmp_path / "model.gguf", "f32")
    return model, transept.AutoModelForCausalLM.from_pretrained(tmp_path / "model.gguf")


@pytest.mark.parametrize("model_type", ["t5", "umt5"])
@pytest.mark.parametrize("more", [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}], ids=["tied", "gated"])
def test_encoder_decoders_and_encoders_are_read_as_they_were(model_type: str, more: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    name = model_type.upper()
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "vocab_size": 99}
    config = getattr(transept, f"{name}Config")(**sizes, **({"feed_forward_proj": "relu"} | more), decoder_start_token_id=0)
    model = getattr(transept, f"{name}ForConditionalGeneration")(config).eval()
    save_gguf(model, tmp_path / "model.gguf", "f32")
    again = transept.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model.gguf")
    ids, written = torch.randint(5, 99, (2, 9)), torch.randint(5, 99, (2, 5))
    with torch.no_grad():
        one, other = (each(input_ids=ids, decoder_input_ids=written).logits for each in (model, again))
    assert torch.equal(one, other)
    assert type(again) is type(model)
    encoder = getattr(transept, f"{name}EncoderModel")(config).eval()
    save_gguf(encoder, tmp_path / "encoder.gguf", "f32")
    assert transept.AutoConfig.from_pretrained(tmp_path / "encoder.gguf").architectures == [type(encoder).__name__]
    alone = type(encoder).from_pretrained(tmp_path / "encoder.gguf")
    with torch.no_grad():
        assert torch.equal(encoder(input_ids=ids)[0], alone(input_ids=ids)[0])


SCALES = ("embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out")
OTHER_WORDS: dict[str, tuple[str, dict[str, Any]]] = {
    "groups": ("FalconForCausalLM", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "groups, one norm": (
        "FalconForCausalLM",
        {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1},
    ),
    "heads": ("FalconForCausalLM", {"multi_query": False}),
    "multipliers": (
        "FalconH1ForCausalLM",
        {f"{name}_multiplier": 0.3 + 0.2 * place for place, name in enumerate(SCALES)}
        | {"tie_word_embeddings": False, "mlp_multipliers": [0.7, 0.9], "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9]}
        | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "attention_bias": True},
    ),
    "clipped": ("MptForCausalLM", {"attn_config": {"clip_qkv": 0.5}, "n_heads": 4, "tie_word_embeddings": False}),
    "one number": ("HunYuanMoEV1ForCausalLM", {"moe_topk": [3, 3]}),
    "plain positions": ("ApertusForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "scaled positions": (
        "PhimoeForCausalLM",
        {"rope_parameters": LONG | {"long_mscale": 1.2}, "lm_head_bias": True, "attention_bias": True},
    ),
    "no experts": ("NemotronHForCausalLM", {"layer_types": ["mlp", "full_attention", "linear_attention"], "mlp_bias": True}),
    "keys as values": (
        "Gemma4ForCausalLM",
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0, "final_logit_softcapping": 1.5}
        | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 9},
    ),
    "sizes": ("Lfm2ForCausalLM", {"block_ffn_dim_multiplier": 1.5, "full_attn_idxs": [1], "layer_types": None}),
}


@pytest.mark.parametrize(("name", "more"), OTHER_WORDS.values(), ids=OTHER_WORDS)
def test_what_files_say_in_other_words(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    model, again = written(name, tmp_path, **more)
    ids = torch.randint(5, model.config.vocab_size, (2, 9))
    with torch.no_grad():
        one, other = model(input_ids=ids).logits, again(input_ids=ids).logits
    assert (one - other).abs().max() < 1e-5 * one.abs().max()


def test_bert_is_read_as_it_was(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}
    config = transept.BertConfig(**sizes)
    with pytest.raises(UnsupportedError, match=r"pooler.dense.weight.*add_pooling_layer=False"):
        save_gguf(transept.BertModel(config), tmp_path / "model.gguf")
    with pytest.raises(UnsupportedError, match=r"cls.predictions.*with AutoModel, which leaves out the head"):
        save_gguf(transept.BertForMaskedLM(config), tmp_path / "model.gguf")
    model = transept.BertModel(config, add_pooling_layer=False).eval()
    save_gguf(model, tmp_path / "model.gguf", "f16")
    again = transept.BertModel.from_pretrained(tmp_path / "model.gguf", add_pooling_layer=False, dtype="float32")
    ids = torch.randint(5, 40, (2, 9))
    with torch.no_grad():  # the file's numbers have 16 bits
        assert (model(ids)[0] - again(ids)[0]).abs().max() < 1e-2


ENCODERS: dict[str, dict[str, Any]] = {
    "Roberta": {"max_position_embeddings": 40, "type_vocab_size": 1},
    "XLMRoberta": {"max_position_embeddings": 40},
    "ModernBert": {"global_attn_every_n_layers": 2, "local_attention": 6, "local_rope_theta": 5e3, "hidden_activation": "silu"}
    | {"cls_token_id": 1, "sep_token_id": 2},
    "NomicBert": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e3}},
    "JinaEmbeddingsV3": {},
    "EuroBert": {"num_key_value_heads": 1, "mask_token_id": 4},
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_are_read_as_they_were(name: str, tmp_path: Path) -> None:
    """RoBERTa's are BERT's in such files, which have no rows for positions that do not count."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 40}
    sizes |= {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
    kind, config = getattr(transept, f"{name}Model"), getattr(transept, f"{name}Config")(**sizes, **ENCODERS[name])
    options = {} if name in ("ModernBert", "EuroBert") else {"add_pooling_layer": False}
    model = kind(config, **options).eval()
    save_gguf(model, tmp_path / "model.gguf", "f32")
    same, read = (cls.from_pretrained(tmp_path / "model.gguf", **options) for cls in (kind, transept.AutoModel))
    ids = torch.randint(5, 40, (2, 9))
    with torch.no_grad():
        assert all(torch.equal(model(ids)[0], each(ids)[0]) for each in (same, read))
    assert type(read).__name__ == ("BertModel" if "Roberta" in name else f"{name}Model")


@pytest.mark.parametrize(
    ("encoding", "kinds"),
    [
        ("q8_0", {"Q8_0"}),
        ("q6_k", {"Q6_K"}),
        ("q4_k_m", {"Q4_K", "Q6_K"}),
        ("q4_0", {"Q4_0", "Q6_K"}),
        ("bf16", {"BF16"}),
    ],
)
def test_encodings(encoding: str, kinds: set[str], tmp_path: Path) -> None:
    model = tiny(tie_word_embeddings=False)
    done: list[tuple[int, int]] = []
    save_gguf(model, tmp_path / "model.gguf", encoding, progress=lambda *numbers: done.append(numbers))
    head = read_gguf(tmp_path / "model.gguf")
    assert {stored.encoding.name for stored in head.tensors.values() if len(stored.shape) == 2} == kinds
    assert {stored.encoding.name for stored in head.tensors.values() if len(stored.shape) == 1} == {"F32"}
    assert done[-1][0] == done[-1][1] == sum(stored.size for stored in head.tensors.values())
    again = transept.AutoModelForCausalLM.from_pretrained(tmp_path / "model.gguf")
    assert bool(few_bits(again)) is (encoding != "bf16")
    again.dequantize()
    for name, tensor in model.state_dict().items():  # four bits are off by less than a tenth of a normal number
        assert (again.state_dict()[name].float() - tensor).norm() < 0.1 * tensor.norm(), name


def test_weights_of_few_bits_are_written_again(tmp_path: Path) -> None:
    save_gguf(tiny(), tmp_path / "one.gguf", "q8_0")
    model = transept.AutoModelForCausalLM.from_pretrained(tmp_path / "one.gguf")
    save_gguf(model, tmp_path / "other.gguf", "q8_0")
    wanted = model.dequantize().state_dict()
    again = transept.AutoModelForCausalLM.from_pretrained(tmp_path / "other.gguf").dequantize().state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in wanted.items())


@pytest.mark.parametrize(
    "rope",
    [
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "longrope",
            "long_factor": [2.0] * 32,
            "short_factor": [1.0] * 32,
            "original_max_position_embeddings": 64,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_scaled_positions(rope: dict[str, Any], tmp_path: Path) -> None:
    model = tiny(rope_parameters=rope | {"rope_theta": 10000.0}, max_position_embeddings=256)
    save_gguf(model, tmp_path / "model.gguf", "f32")
    again = transept.AutoModelForCausalLM.from_pretrained(tmp_path / "model.gguf")
    ids = torch.randint(5, 96, (1, 100))
    with torch.no_grad():
        one, other = model(input_ids=ids).logits, again(input_ids=ids).logits
    assert (one - other).abs().max() < 1e-4 * one.abs().max()  # factors of 32 bits, of angles up to 100


def test_what_a_file_cannot_say_is_an_error(tmp_path: Path) -> None:
    place = tmp_path / "model.gguf"
    with pytest.raises(UnsupportedError, match="`hidden_act` of LlamaConfig is 'gelu'"):
        save_gguf(tiny(hidden_act="gelu"), place)
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(UnsupportedError, match="how positions turn"):
        save_gguf(tiny(rope_parameters=dynamic), place)
    with pytest.raises(InputError, match="no encoding 'q4'"):
        save_gguf(tiny(), place, "q4")
    config = transept.FNetConfig(vocab_size=40, hidden_size=32, num_hidden_layers=1, intermediate_size=32)
    with pytest.raises(UnsupportedError, match="no layout of GGUF files is known for FNetModel"):
        save_gguf(transept.FNetModel(config), place)
    with pytest.raises(FileError, match="cannot be written"):
        save_gguf(tiny(), tmp_path / "none" / "model.gguf")
    assert not list(tmp_path.iterdir())


TOKENIZERS = {
    "llama2": "LlamaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "bert-base-uncased": "BertTokenizer",
    "t5-small": "T5Tokenizer",
}


@pytest.mark.real_data
@pytest.mark.parametrize("name", in_turn(TOKENIZERS, 2))
def test_tokenizers(name: str, tmp_path: Path) -> None:
    """The file's gives the same ids for the text of each token, and for texts of many scripts, or writing fails."""
    tokenizer = getattr(transept, TOKENIZERS[name]).from_pretrained(DATA / "tokenizers" / name)
    tokenizer.chat_template = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
    save_gguf(tiny(vocab_size=len(tokenizer) + 3, num_hidden_layers=1), tmp_path / "model.gguf", "q4_0", tokenizer)
    again = transept.AutoTokenizer.from_pretrained(tmp_path / "model.gguf")
    assert again.chat_template == tokenizer.chat_template
    assert again("A naïve text: 漢字, 12345.").input_ids == tokenizer("A naïve text: 漢字, 12345.").input_ids
    assert again.eos_token_id == tokenizer.eos_token_id


def test_a_tokenizer_of_another_kind_is_an_error(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transept.PreTrainedTokenizerFast(tokenizer_object=backend)
    with pytest.raises(UnsupportedError, match="how the tokenizer splits texts"):
        save_gguf(tiny(), tmp_path / "model.gguf", tokenizer=tokenizer)
    with pytest.raises(UnsupportedError, match="has the token 2, but the model has 2 tokens"):
        save_gguf(tiny(vocab_size=2), tmp_path / "model.gguf", tokenizer=tokenizer)
