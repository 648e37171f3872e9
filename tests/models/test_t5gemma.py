"""T5Gemma's classifiers, by both stacks or by the encoder alone, equal the reference's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from transept.core.model import Model
from transept.errors import TranseptWarning
from transept.models.t5gemma import (
    T5GemmaConfig,
    T5GemmaEncoderModel,
    T5GemmaForConditionalGeneration,
    T5GemmaForSequenceClassification,
    T5GemmaForTokenClassification,
)

from .families import FAMILIES
from .harness import ROUNDED, SINGLE, batch, compare, error, gradients, labels, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "t5gemma")
CLASSIFIERS: list[type[Model]] = [T5GemmaForSequenceClassification, T5GemmaForTokenClassification]


@pytest.mark.reference
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("pad", ["left", "right", "none"])
@pytest.mark.parametrize("cls", CLASSIFIERS)
def test_classifiers_equal_reference(cls: type[Model], pad: str, both: bool) -> None:
    ours, theirs = pair(FAMILY, cls, is_encoder_decoder=both, num_labels=3)
    inputs, only = batch(FAMILY, cls, pad=pad), None
    labelled = inputs | labels(FAMILY, cls, inputs)
    if cls is T5GemmaForTokenClassification:
        only = inputs["attention_mask"]
        only = F.pad(only[:, :-1], (1, 0), value=1) if both else only  # what the decoder reads begins one position earlier
        labelled["labels"] = labelled["labels"].masked_fill(only == 0, -100)
    compare(ours(**inputs, output_hidden_states=True), theirs(**inputs, output_hidden_states=True), SINGLE, only=only)
    mine, other = ours(**labelled).loss, theirs(**labelled).loss
    assert error(mine, other) <= SINGLE
    found, expected = gradients(ours, mine), gradients(theirs, other)
    largest = max(float(value.norm()) for value in expected.values())
    assert found.keys() == expected.keys()
    assert all(float((found[name] - value).norm()) <= 1e-5 * largest for name, value in expected.items())
    if pad != "left":  # where padding that sees nothing becomes no number in the reference's float64
        assert error(ours.double()(**labelled).loss, theirs.double()(**labelled).loss) <= ROUNDED


def test_classifiers_of_the_encoder_alone_are_made_of_whole_models(tmp_path: Path) -> None:
    whole = T5GemmaForConditionalGeneration(T5GemmaConfig(**FAMILY.tiny))
    whole.save_pretrained(tmp_path)
    with pytest.warns(TranseptWarning, match="newly initialised.*: score.out_proj.weight, score.out_proj.bias"):
        alone = T5GemmaForSequenceClassification.from_pretrained(tmp_path, is_encoder_decoder=False)
    assert isinstance(alone.backbone, T5GemmaEncoderModel)
    assert not T5GemmaForTokenClassification(whole.config, is_encoder_decoder=False).config.is_encoder_decoder
    ids = torch.tensor([[5, 6, 7, 1]])
    assert torch.equal(alone(ids, decoder_input_ids=ids).logits, alone(ids).logits)
    states = whole.eval().get_encoder()(ids).last_hidden_state
    assert torch.equal(alone.backbone(ids).last_hidden_state, states)


def test_heads_begin_the_smaller_the_more_rows_they_have() -> None:
    settings = {name: FAMILY.tiny[name] | {"initializer_range": 0.5, "hidden_size": 256} for name in ("encoder", "decoder")}
    config = T5GemmaConfig(**settings, num_labels=64)
    weights = T5GemmaForTokenClassification(config).head.out_proj.weight.detach()
    assert float(weights.std()) == pytest.approx(0.5 / 8, rel=0.05)
