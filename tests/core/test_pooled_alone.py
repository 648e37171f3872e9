"""Pooled states without the others of the last layer: the same ones, by every family, and the others wherever they are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.core.test_rows import LENGTHS, RAGGED, made, texts
from tests.models.families import Family
from tests.models.harness import BACKBONES, USED, batch
from tests.thorough import crossed
from transept.core.model import Backbone
from transept.layers.pool import pooled_alone
from transept.models.bert import BertConfig, BertModel
from transept.models.clip import CLIPConfig, CLIPModel
from transept.outputs import ModelOutput

# Sums are taken in another order, of numbers near one, a few hundred at a time.
TOLERANCE = 2e-12
# The families whose pooled states are made of one of each row.
FIRST = {"ViTModel", "DeiTModel", "DPTModel", "Dinov2Model", "Dinov2WithRegistersModel", "BlipVisionModel", "CLIPVisionModel"}
FIRST |= {"BertModel", "RobertaModel", "XLMRobertaModel", "MPNetModel", "BlipTextModel", "CLIPTextModel", "AlbertModel"}
FIRST |= {"ErnieModel", "MegatronBertModel", "RobertaPreLayerNormModel", "XLMRobertaXLModel", "JinaEmbeddingsV3Model"}
FIRST |= {
    "EsmModel",
    "RemBertModel",
    "XmodModel",
    "SqueezeBertModel",
    "LayoutLMModel",
    "MobileBertModel",
    "BigBirdModel",
    "LongformerModel",
    "TapasModel",
}


def doubled(inputs: dict[str, Any]) -> dict[str, Any]:
    floats = {name for name, value in inputs.items() if torch.is_tensor(value) and value.is_floating_point()}
    return {name: value.double() if name in floats else value for name, value in inputs.items()}


@pytest.mark.parametrize(("family", "cls", "attention"), crossed(BACKBONES, ["sdpa", "eager"], 120, whole=USED))
def test_pooled_states_are_the_same(family: Family, cls: type[Backbone], attention: str) -> None:
    model, inputs = made(family, cls), doubled(batch(family, cls))
    model.set_attn_implementation(attention)
    with torch.no_grad():
        whole = model(**inputs)
        with pooled_alone():
            alone, recorded = model(**inputs), model(**inputs, output_hidden_states=True)
    if not isinstance(whole, ModelOutput) or whole.get("pooler_output") is None:
        return
    torch.testing.assert_close(alone.pooler_output, whole.pooler_output, rtol=0, atol=TOLERANCE)
    assert torch.equal(recorded.last_hidden_state, whole.last_hidden_state)
    left_out = alone.last_hidden_state.shape != whole.last_hidden_state.shape
    assert left_out == (cls.__name__ in FIRST), cls.__name__


@pytest.mark.parametrize(("family", "cls"), [case for case in RAGGED if case.values[1].__name__ in FIRST])
def test_of_rows_without_padding(family: Family, cls: type[Backbone]) -> None:
    model = made(family, cls)
    joined = torch.cat(texts(int(model.config.vocab_size)), dim=1)
    with torch.no_grad():
        whole = model(joined, lengths=LENGTHS)
        with pooled_alone():
            alone = model(joined, lengths=LENGTHS)
    torch.testing.assert_close(alone.pooler_output, whole.pooler_output, rtol=0, atol=TOLERANCE)
    assert alone.last_hidden_state.shape[:2] == (1, len(LENGTHS))


def test_packed_texts_training_and_attentions_are_whole() -> None:
    config = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    model, ids = BertModel(config).eval(), torch.randint(5, 30, (2, 6))
    numbers = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    with torch.no_grad(), pooled_alone():
        assert model(ids, seq_idx=numbers).last_hidden_state.shape == (2, 6, 8)
        shown = model(ids, output_attentions=True)
        assert shown.last_hidden_state.shape == (2, 6, 8)
        assert shown.attentions[-1].shape == (2, 2, 6, 6)
        assert model(ids).last_hidden_state.shape == (2, 1, 8)
        assert model.train()(ids).last_hidden_state.shape == (2, 6, 8)
    with torch.no_grad():
        assert model.eval()(ids).last_hidden_state.shape == (2, 6, 8)


def test_vectors_to_compare_by() -> None:
    """Texts end at different places; in float32 numbers differ by rounding alone."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    text = sizes | {"vocab_size": 60, "max_position_embeddings": 9, "eos_token_id": 59}
    picture = sizes | {"image_size": 12, "patch_size": 4}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=picture, projection_dim=8)).eval()
    ids = torch.randint(3, 59, (3, 9))
    ids[0, 8], ids[1, 3], ids[2, 0] = 59, 59, 59
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, {"pixel_values": torch.randn(3, 3, 12, 12)}
    with torch.no_grad():
        for ask, inputs in zip((model.get_text_features, model.get_image_features), given, strict=True):
            whole = ask(**inputs)
            with pooled_alone():
                alone = ask(**inputs)
            assert alone.last_hidden_state.shape == (3, 1, 16)
            torch.testing.assert_close(alone.pooler_output, whole.pooler_output, rtol=0, atol=1e-6)
