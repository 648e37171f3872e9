"""What RoBERTa adds to the derived suite: counted positions, its decoder, and the layouts of its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from transept import XLMRobertaConfig, XLMRobertaForCausalLM, XLMRobertaModel
from transept.errors import ConfigError, InputError
from transept.models.roberta import (
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForSequenceClassification,
    RobertaModel,
)

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, check_decoder, compare, error, pair, stored

FAMILY = {family.model_type: family for family in FAMILIES}
TINY = FAMILY["roberta"].tiny
# config.json of the published base models.
BASE = {
    "architectures": ["RobertaForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "roberta",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}
MULTILINGUAL = BASE | {
    "architectures": ["XLMRobertaForMaskedLM"],
    "model_type": "xlm-roberta",
    "output_past": True,
    "position_embedding_type": "absolute",
    "transformers_version": "4.17.0.dev0",
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 250002,
}


@pytest.mark.reference
@pytest.mark.parametrize(("cls", "values"), [(RobertaConfig, BASE), (XLMRobertaConfig, MULTILINGUAL)])
def test_reads_published_config_files(cls: Any, values: dict[str, Any]) -> None:
    check_config_file(cls, values)


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["right", "left"])
@pytest.mark.parametrize(("name", "cls"), [("roberta", RobertaForCausalLM), ("xlm_roberta", XLMRobertaForCausalLM)])
def test_decoder_with_cross_attention_and_cache(name: str, cls: Any, pad: str) -> None:
    check_decoder(FAMILY[name], cls, pad=pad)


@pytest.mark.reference
@pytest.mark.parametrize(("name", "cls"), [("roberta", RobertaModel), ("xlm_roberta", XLMRobertaModel)])
def test_embeddings_of_a_padded_batch_all_count(name: str, cls: Any) -> None:
    ours, theirs = pair(FAMILY[name], cls)
    inputs = batch(FAMILY[name], cls)
    given = {"inputs_embeds": ours.get_input_embeddings()(inputs["input_ids"]), "attention_mask": inputs["attention_mask"]}
    with torch.no_grad():
        compare(ours(**given), theirs(**given), SINGLE)


def test_embeddings_are_counted_on_from_the_cache() -> None:
    torch.manual_seed(0)
    model = RobertaModel(RobertaConfig(**TINY, is_decoder=True)).eval()
    embeds = torch.randn(2, 6, 32)
    with torch.no_grad():
        whole = model(inputs_embeds=embeds).last_hidden_state
        cache = model(inputs_embeds=embeds[:, :4], use_cache=True).past_key_values
        rest = model(inputs_embeds=embeds[:, 4:], past_key_values=cache).last_hidden_state
    assert error(rest, whole[:, 4:]) <= SINGLE


def test_as_many_tokens_as_positions_behind_the_padding_id() -> None:
    model = RobertaModel(RobertaConfig(**TINY)).eval()  # 64 positions, of which 0 and 1 are none
    real, padded = torch.full((1, 63), 7), torch.full((1, 70), 1)
    padded[:, :62] = 7
    with torch.no_grad():
        expected = model(real[:, :62]).last_hidden_state
        assert error(model(padded).last_hidden_state[:, :62], expected) <= SINGLE
        with pytest.raises(InputError, match="63 tokens, but there are embeddings for 62"):
            model(real)
        with pytest.raises(InputError, match="63 tokens"):
            model(inputs_embeds=torch.randn(1, 63, 32))


@pytest.mark.parametrize("pad", [None, 64, -1, 99])
def test_needs_a_padding_id_to_count_from(pad: int | None) -> None:
    with pytest.raises(ConfigError, match="pad_token_id"):
        RobertaConfig(**TINY | {"pad_token_id": pad})


def test_old_checkpoints_load(tmp_path: Path) -> None:
    """Files of earlier years hold tied weights twice, position ids as a buffer, and a pooler that no head reads."""
    torch.manual_seed(0)
    model = RobertaForMaskedLM(RobertaConfig(**TINY)).eval()
    model.save_pretrained(tmp_path)
    state = stored(str(tmp_path))
    state["lm_head.decoder.weight"] = state["roberta.embeddings.word_embeddings.weight"].clone()
    state["lm_head.decoder.bias"] = state["lm_head.bias"].clone()
    state["roberta.embeddings.position_ids"] = torch.arange(64)[None]
    state["roberta.pooler.dense.weight"], state["roberta.pooler.dense.bias"] = torch.randn(32, 32), torch.randn(32)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ids = batch(FAMILY["roberta"], RobertaModel)["input_ids"]
    with torch.no_grad():
        expected = model(ids).logits
        assert error(RobertaForMaskedLM.from_pretrained(tmp_path)(ids).logits, expected) == 0.0
        assert (
            error(RobertaModel.from_pretrained(tmp_path)(ids).last_hidden_state, model.backbone(ids).last_hidden_state) == 0.0
        )
    with pytest.warns(UserWarning, match=r"newly initialised.*classifier\.dense\.weight"):
        classifier = RobertaForSequenceClassification.from_pretrained(tmp_path)
    assert (
        error(
            classifier.state_dict()["roberta.embeddings.word_embeddings.weight"],
            state["roberta.embeddings.word_embeddings.weight"],
        )
        == 0.0
    )


def test_dropout_of_the_choice_is_the_hidden_one() -> None:
    config = RobertaConfig(**TINY, classifier_dropout=0.7, hidden_dropout_prob=0.2)
    assert RobertaForMultipleChoice(config).head.dropout.p == 0.2
    assert RobertaForSequenceClassification(config).head.dropout.p == 0.7


def test_vocabulary_grows_with_its_tied_head() -> None:
    model = RobertaForMaskedLM(RobertaConfig(**TINY)).eval()
    before = model(torch.tensor([[0, 7, 2]])).logits
    model.resize_token_embeddings(103)
    after = model(torch.tensor([[0, 7, 2]])).logits
    assert after.shape[-1] == 103
    assert error(after[..., :99], before) <= SINGLE
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_layers_run_in_parts() -> None:
    """So that they can stand on several devices."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 60}
    model = XLMRobertaModel(XLMRobertaConfig(**sizes)).eval()
    ids = torch.arange(2, 14).view(2, 6)
    x, ctx = model.begin(ids, output_hidden_states=True)
    output = model.end(model.run(model.run(x, ctx, stop=1), ctx, 1), ctx)
    whole = model(ids, output_hidden_states=True)
    assert torch.equal(output.last_hidden_state, whole.last_hidden_state)
    assert len(output.hidden_states) == len(whole.hidden_states) == 4
