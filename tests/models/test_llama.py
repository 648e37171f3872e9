"""What Llama adds to the derived suite: layouts of its files, where tasks keep it, and a trained checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from transept.errors import CheckpointError, ConfigError, InputError, TranseptWarning
from transept.models.llama import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForQuestionAnswering,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    LlamaModel,
)

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, compare, error, pair, stored

FAMILY = {family.model_type: family for family in FAMILIES}["llama"]
TINY = FAMILY.tiny
# config.json of published checkpoints: of Llama 2 with 7 and of Llama 3.1 with 8 billion parameters, and a longer CodeLlama.
LLAMA_2 = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
LLAMA_3 = LLAMA_2 | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
LONGER = LLAMA_2 | {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 1000000, "head_dim": 128}
REAL = Path(__file__).parents[2] / "../shared/data/weights/stories260K"


@pytest.mark.reference
@pytest.mark.parametrize("values", [LLAMA_2, LLAMA_3, LONGER], ids=["2", "3.1", "longer"])
def test_files_of_the_older_layout(values: dict[str, Any]) -> None:
    check_config_file(LlamaConfig, values)
    assert LlamaConfig.from_dict(values).head_dim == 128


@pytest.mark.reference
def test_positions_beyond_the_configured_length_equal_the_reference() -> None:
    ours, theirs = pair(FAMILY, LlamaModel, max_position_embeddings=8)
    ids = torch.randint(5, 99, (2, 40))
    with torch.no_grad():
        compare(ours(ids), theirs(ids), SINGLE)


@pytest.mark.reference
@pytest.mark.parametrize("kept", [1, 3, torch.tensor([0, 5])], ids=str)
def test_logits_of_some_positions_equal_the_reference(kept: Any) -> None:
    ours, theirs = pair(FAMILY, LlamaForCausalLM)
    inputs = batch(FAMILY, LlamaForCausalLM)
    with torch.no_grad():
        mine, other = ours(**inputs, logits_to_keep=kept), theirs(**inputs, logits_to_keep=kept)
    assert error(mine.logits, other.logits) <= SINGLE


@pytest.mark.reference
def test_given_positions_equal_the_reference() -> None:
    ours, theirs = pair(FAMILY, LlamaModel)
    inputs = batch(FAMILY, LlamaModel, pad="left")
    real = inputs["attention_mask"]
    inputs["position_ids"] = (real.cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE, only=real)
    with pytest.raises(InputError, match=r"position_ids.*\(9,\)"):
        ours(inputs["input_ids"], real, position_ids=torch.arange(9))


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["right", "left"])
def test_classifies_by_the_last_token(pad: str) -> None:
    ours, theirs = pair(FAMILY, LlamaForSequenceClassification)
    inputs = batch(FAMILY, LlamaForSequenceClassification, pad=pad)
    with torch.no_grad():
        logits = ours(**inputs).logits
        assert error(logits, theirs(**inputs).logits) <= SINGLE
        for row, real in enumerate(inputs["attention_mask"].bool()):
            alone = ours(inputs["input_ids"][row : row + 1, real]).logits
            assert error(logits[row : row + 1], alone) <= SINGLE
        embeds = ours.get_input_embeddings()(inputs["input_ids"])
        given = ours(inputs_embeds=embeds, attention_mask=inputs["attention_mask"]).logits
        assert error(given, logits) <= SINGLE  # where the reference reads padding, and says so
        ours.config.pad_token_id = None
        assert error(ours(**inputs).logits, logits) <= SINGLE  # the mask tells the ends as well
        with pytest.raises(InputError, match="pad_token_id"):
            ours(inputs["input_ids"])  # nothing does


def test_tasks_read_each_others_checkpoints(tmp_path: Path) -> None:
    config = LlamaConfig(**TINY)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "language")
    with pytest.warns(TranseptWarning, match="qa_outputs"):
        answers, info = LlamaForQuestionAnswering.from_pretrained(tmp_path / "language", output_loading_info=True)
    assert info["unexpected_keys"] == {"lm_head.weight"}
    answers.save_pretrained(tmp_path / "answers")
    names = set(stored(str(tmp_path / "answers")))
    assert {name.split(".")[0] for name in names} == {"transformer", "qa_outputs"}
    with pytest.warns(TranseptWarning, match="lm_head"):
        language = LlamaForCausalLM.from_pretrained(tmp_path / "answers")
    bare = LlamaModel.from_pretrained(tmp_path / "answers")
    bare.save_pretrained(tmp_path / "bare")
    assert "layers.0.self_attn.q_proj.weight" in stored(str(tmp_path / "bare"))
    with pytest.warns(TranseptWarning, match="qa_outputs"):
        again = LlamaForQuestionAnswering.from_pretrained(tmp_path / "bare")
    for model in (language.model, bare, again.transformer):
        for name, tensor in answers.transformer.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor), name


def test_stored_frequencies_are_ignored(tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(**TINY)).save_pretrained(tmp_path)
    state = stored(str(tmp_path))
    extra = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(4) for layer in range(2)}
    save_file(state | extra, tmp_path / "model.safetensors")
    _, info = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["unexpected_keys"] == extra.keys()
    save_file(state | {"model.layers.0.self_attn.rotary.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="unexpected"):
        LlamaForCausalLM.from_pretrained(tmp_path)


def test_untied_unless_asked_for() -> None:
    assert LlamaForCausalLM(LlamaConfig(**TINY)).lm_head.weight is not None
    for tied in (True, False):
        model = LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=tied))
        assert (model.lm_head.weight is model.backbone.embed_tokens.weight) == tied


def test_token_classifiers_drop_out_as_the_reference_does() -> None:
    assert LlamaForTokenClassification(LlamaConfig(**TINY)).head.dropout.p == 0.1
    assert LlamaForTokenClassification(LlamaConfig(**TINY, classifier_dropout=0.0)).head.dropout.p == 0.0
    assert LlamaForSequenceClassification(LlamaConfig(**TINY)).head.dropout.p == 0.0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"num_attention_heads": 5}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_attention_heads"),
        ({"pad_token_id": 99}, "pad_token_id"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"head_dim": 7}, "in pairs"),
        ({"hidden_act": "sillu"}, "'silu'"),
    ],
)
def test_impossible_settings_are_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        LlamaModel(LlamaConfig(**TINY | wrong))


def test_an_encoders_states_are_refused() -> None:
    with pytest.raises(InputError, match="no cross-attention"):
        LlamaModel(LlamaConfig(**TINY))(torch.ones(1, 3, dtype=torch.long), encoder_hidden_states=torch.zeros(1, 3, 32))


@pytest.fixture
def stories() -> Path:
    if not (REAL / "hf").is_dir():
        pytest.skip(f"a trained Llama of 260,000 parameters is missing: {REAL}")
    return REAL


@pytest.mark.real_data
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_trained_model_tells_the_known_story(stories: Path, kernel: str) -> None:
    golden = json.loads((stories / "golden_greedy.json").read_text())
    model = LlamaForCausalLM.from_pretrained(stories / "hf")
    model.set_attn_implementation(kernel)
    ids, cache = list(golden["prompt_ids"]), None
    with torch.no_grad():
        while len(ids) < len(golden["greedy_ids"]):
            fresh = ids if cache is None else ids[-1:]
            out = model(torch.tensor([fresh]), past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            ids.append(int(out.logits[0, -1].argmax()))
        whole = model(torch.tensor([ids])).logits[0]
    assert ids == golden["greedy_ids"]
    known = torch.tensor(golden["first32_logits_last_position"])
    assert float((whole[31] - known).abs().max()) <= 1e-4  # known to five places
    assert whole.argmax(-1)[:-1].tolist() == ids[1:]
    assert cache is not None
    assert cache.get_seq_length() == len(ids) - 1


@pytest.mark.real_data
@pytest.mark.reference
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_a_trained_model_equals_the_reference(stories: Path, kernel: str) -> None:
    import transformers

    ids = torch.tensor([json.loads((stories / "golden_greedy.json").read_text())["greedy_ids"]])
    theirs = transformers.LlamaForCausalLM.from_pretrained(stories / "hf", attn_implementation=kernel)
    ours = LlamaForCausalLM.from_pretrained(stories / "hf", attn_implementation=kernel)
    with torch.no_grad():
        mine, other = ours(ids, labels=ids), theirs(ids, labels=ids, use_cache=False)
    compare(mine, other, SINGLE)
