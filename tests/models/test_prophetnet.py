"""ProphetNet's streams: what they see, their losses, steps with a cache, and its halves as models by themselves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from transept.core.model import Model
from transept.errors import ConfigError, InputError
from transept.heads.task import loss_alone
from transept.models.prophetnet import (
    ProphetNetConfig,
    ProphetNetDecoder,
    ProphetNetEncoder,
    ProphetNetForCausalLM,
    ProphetNetForConditionalGeneration,
    ProphetNetModel,
)

from .families import FAMILIES
from .harness import SINGLE, batch, compare, error, gradients, labels, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "prophetnet")
WRITERS = (ProphetNetForConditionalGeneration, ProphetNetForCausalLM)
IDS = torch.randint(5, 99, (2, 9), generator=torch.Generator().manual_seed(0))


def own(cls: type[Model] = ProphetNetForConditionalGeneration, **more: Any) -> Any:
    torch.manual_seed(0)
    settings = {name: value for name, value in FAMILY.tiny.items() if name != "initializer_range"}
    return cls(ProphetNetConfig(**settings | {"init_std": 0.25} | more)).eval()


@pytest.mark.reference
def test_attentions_equal_the_reference_which_shows_scores_of_some() -> None:
    ours, theirs = pair(FAMILY, ProphetNetModel, attention="eager", ngram=3)
    inputs = batch(FAMILY, ProphetNetModel) | {"output_attentions": True, "output_hidden_states": True}
    with torch.no_grad():
        mine, other = ours(**inputs), theirs(**inputs)
    for name in ("encoder_attentions", "cross_attentions"):
        other[name] = tuple(scores.softmax(dim=-1) for scores in other[name])
    assert mine.decoder_ngram_attentions[0].shape == (3, 3, 4, 7, 14)
    compare(mine, other, SINGLE)
    assert list(mine) == list(other)


@pytest.mark.reference
@pytest.mark.parametrize("cls", WRITERS)
@pytest.mark.parametrize("variant", FAMILY.variants)
def test_losses_and_gradients_of_variants_equal_the_reference(cls: type[Model], variant: str) -> None:
    ours, theirs = pair(FAMILY, cls, **FAMILY.variants[variant])
    inputs = batch(FAMILY, cls)
    inputs |= labels(FAMILY, cls, inputs)
    mine, other = ours(**inputs, use_cache=False), theirs(**inputs, use_cache=False)
    compare(mine, other, SINGLE)
    with loss_alone():
        alone = ours(**inputs).loss
    assert error(alone, other.loss) <= SINGLE
    found, expected = gradients(ours, alone), gradients(theirs, other.loss)
    assert found.keys() == expected.keys()
    largest = max(float(gradient.norm()) for gradient in expected.values())  # biases of keys have none but rounding
    assert all(float((found[name] - gradient).norm()) <= 1e-5 * largest for name, gradient in expected.items())


@pytest.mark.reference
def test_read_at_once_equals_the_steps_of_the_reference() -> None:
    """Of which its own texts that are read at once differ (see `repair_streams`), but no step."""
    ours, theirs = pair(FAMILY, ProphetNetForCausalLM)
    steps, cache = [], None
    with torch.no_grad():
        for place in range(IDS.shape[1]):
            step = theirs(IDS[:, place : place + 1], past_key_values=cache, use_cache=True)
            steps, cache = [*steps, step.logits], step.past_key_values
        whole = ours(IDS)
    assert error(whole.logits, torch.cat(steps, dim=1)) <= SINGLE


@pytest.mark.reference
@pytest.mark.parametrize(
    "how", [{}, {"num_beams": 3}, {"num_beams": 4, "length_penalty": 2.0}], ids=["greedy", "beams", "long"]
)
def test_writes_what_the_reference_writes(how: dict[str, Any]) -> None:
    ours, theirs = pair(FAMILY, ProphetNetForConditionalGeneration)
    inputs = {name: value for name, value in batch(FAMILY, ProphetNetModel).items() if not name.startswith("decoder_")}
    asked = how | {"max_new_tokens": 12, "do_sample": False}
    assert torch.equal(ours.generate(**inputs, **asked), theirs.generate(**inputs, **asked))


@pytest.mark.parametrize("static", [False, True])
def test_steps_with_padding_on_the_left_equal_the_whole(static: bool) -> None:
    from transept import StaticCache

    model = own(ProphetNetForCausalLM, ngram=3)
    mask = torch.ones_like(IDS)
    mask[1, :3] = 0
    cache: Any = StaticCache(model.config, 12) if static else None
    with torch.no_grad():
        whole, parts = model(IDS, attention_mask=mask, output_hidden_states=True), []
        for start, end in ((0, 5), (5, 6), (6, 9)):
            parts.append(model(IDS[:, start:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True))
            cache = parts[-1].past_key_values
    for name, axis in (("logits", 1), ("logits_ngram", 2)):
        assert error(torch.cat([part[name] for part in parts], dim=axis)[0], whole[name][0]) <= SINGLE
        rows = torch.cat([part[name] for part in parts], dim=axis).select(0, 1).unbind(axis - 1)
        assert error(rows[3:], whole[name].select(0, 1).unbind(axis - 1)[3:]) <= SINGLE
    assert len(whole.hidden_states_ngram) == 3
    assert whole.hidden_states_ngram[0].shape == (2, 27, 32)


def test_streams_see_nothing_of_what_they_predict() -> None:
    model, other = own(ProphetNetForCausalLM, ngram=3), IDS.clone()
    other[:, 6] = 98
    with torch.no_grad():
        one, two = model(IDS), model(other)
    assert error(one.logits[:, :6], two.logits[:, :6]) <= SINGLE
    for stream in (0, 1):  # of the second and the third
        same = 6 + stream + 1
        assert error(one.logits_ngram[:, stream, :same], two.logits_ngram[:, stream, :same]) <= SINGLE
        assert error(one.logits_ngram[:, stream, same], two.logits_ngram[:, stream, same]) > 1e-3


@pytest.mark.parametrize("tied", [True, False])
def test_halves_and_the_decoder_alone_read_a_whole_models_checkpoint(tmp_path: Path, tied: bool) -> None:
    whole = own(tie_word_embeddings=tied)
    whole.save_pretrained(tmp_path)
    halves = {ProphetNetEncoder: whole.backbone.encoder, ProphetNetDecoder: whole.backbone.decoder}
    for cls, half in halves.items():
        found = cls.from_pretrained(tmp_path).state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in half.state_dict().items())
    writer = ProphetNetForCausalLM.from_pretrained(tmp_path)
    states, mask = torch.randn(2, 4, 32), torch.ones(2, 4)
    with torch.no_grad():
        expected = whole(encoder_outputs=(states,), attention_mask=mask, decoder_input_ids=IDS)
        assert error(writer(IDS, encoder_hidden_states=states).logits_ngram, expected.logits_ngram) <= SINGLE
    writer.resize_token_embeddings(105)
    writer.save_pretrained(tmp_path / "larger")
    again = ProphetNetForCausalLM.from_pretrained(tmp_path / "larger")
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in writer.state_dict().items())


def test_as_many_positions_as_the_table_has_rows_for() -> None:
    model = own(max_position_embeddings=9)
    model(IDS, decoder_input_ids=IDS[:, :7])  # the encoder's last position shares a row, as in training
    for inputs in ({"decoder_input_ids": IDS[:, :8]}, {"decoder_input_ids": IDS[:, :2], "input_ids": IDS.repeat(1, 2)}):
        with pytest.raises(InputError, match="positions"):
            model(**{"input_ids": IDS} | inputs)


def test_wrong_inputs_are_named() -> None:
    decoder = partial(own(ProphetNetDecoder, add_cross_attention=False), IDS)
    with pytest.raises(InputError, match="`attention_mask` must be"):
        decoder(attention_mask=torch.ones(2, 9, 9))
    with pytest.raises(InputError, match="no cross-attention"):
        decoder(encoder_hidden_states=torch.zeros(2, 4, 32))
    with pytest.raises(ConfigError, match="half of `num_buckets`"):
        ProphetNetConfig(relative_max_distance=16)
