"""What encoders read beside texts, such as the languages of rows and the boxes of words, and long texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as reference

import transept
from transept.errors import InputError
from transept.layers.attention.sparse import BlockSparseAttention

from .families import FAMILIES, Family
from .harness import SINGLE, batch, compare, error, pair
from .tables import table_labels

DECODES = {"is_decoder": True, "add_cross_attention": True}


def line(name: str) -> Family:
    return next(family for family in FAMILIES if family.model_type == name)


@pytest.mark.reference
@pytest.mark.parametrize("more", [{}, line("xmod").variants["before"]])
def test_rows_go_through_the_adapters_of_their_languages(more: dict[str, object]) -> None:
    ours, theirs = pair(line("xmod"), transept.XmodModel, **more)
    inputs = batch(line("xmod"), transept.XmodModel) | {"lang_ids": torch.tensor([2, 0, 2])}
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)


def test_languages_are_told_and_known() -> None:
    torch.manual_seed(0)
    config = transept.XmodConfig(**line("xmod").tiny | {"default_language": None})
    model = transept.XmodForSequenceClassification(config).eval()
    ids = torch.arange(5, 14)[None]
    with pytest.raises(InputError, match="language of the texts is not known"):
        model(ids)
    with pytest.raises(InputError, match="no adapter for 'de_CH'"):
        model.set_default_language("de_CH")
    with pytest.raises(InputError, match="languages 0 to 2"):
        model(ids, lang_ids=torch.tensor([3]))
    model.set_default_language("fr_XX")
    with torch.no_grad():
        assert error(model(ids).logits, model(ids, lang_ids=torch.tensor([2])).logits) <= SINGLE
    model.freeze_embeddings_and_language_adapters()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if "embeddings." in name or "adapter" in name}


@pytest.mark.reference
def test_words_stand_in_boxes() -> None:
    family = line("layoutlm")
    ours, theirs = pair(family, transept.LayoutLMModel)
    inputs = batch(family, transept.LayoutLMModel)
    first = torch.randint(0, 25, (*inputs["input_ids"].shape, 2), generator=torch.Generator().manual_seed(0))
    inputs["bbox"] = torch.cat([first, first + torch.tensor([3, 20])], dim=-1)
    with torch.no_grad():
        expected = ours(**inputs)
        compare(expected, theirs(**inputs), SINGLE)
        row, real = {name: value[1:2] for name, value in inputs.items()}, inputs["attention_mask"][1].bool()
        alone = ours(**{name: value[:, real] for name, value in row.items()}).last_hidden_state
    assert error(expected.last_hidden_state[1:2, real], alone) <= SINGLE
    with pytest.raises(InputError, match="widths and heights 0 to 49"):
        ours(**inputs | {"bbox": inputs["bbox"].flip(-1)})
    with pytest.raises(InputError, match=r"`bbox` has the shape \(3, 4, 4\)"):
        ours(**inputs | {"bbox": inputs["bbox"][:, :4]})


@pytest.mark.reference
@pytest.mark.parametrize("more", [{}, {"average_logits_per_cell": True, "positive_label_weight": 3.0}])
def test_cells_of_several_columns_are_answers(more: dict[str, object]) -> None:
    family = line("tapas")
    ours, theirs = pair(family, transept.TapasForQuestionAnswering, select_one_column=False, **more)
    inputs = batch(family, transept.TapasForQuestionAnswering)
    given = {name: value.float() for name, value in table_labels(inputs["token_type_ids"]).items() if name == "labels"}
    with torch.no_grad():
        compare(ours(**inputs | given), theirs(**inputs | given), SINGLE)
        assert error(ours(**inputs).logits, theirs(**inputs | given).logits) <= SINGLE


@pytest.mark.reference
def test_what_is_learnt_of_answers_may_be_drawn() -> None:
    family = line("tapas")
    more = family.variants["learnt"] | {"use_gumbel_for_cells": True, "use_gumbel_for_aggregation": True}
    ours, theirs = pair(family, transept.TapasForQuestionAnswering, **more)
    inputs = batch(family, transept.TapasForQuestionAnswering)
    inputs |= table_labels(inputs["token_type_ids"])
    found = []
    for model in (ours, theirs):
        torch.manual_seed(0)
        found.append(model(**inputs).loss)
    assert error(*found) <= 1e-3
    for name in ("float_answer", "numeric_values"):
        with pytest.raises(InputError, match=f"needs `{name}`"):
            ours(**inputs | {name: None})
    ours.config.cell_selection_preference = None
    with pytest.raises(InputError, match="`cell_selection_preference`"):
        ours(**inputs)


def test_token_types_of_tables_are_in_the_tables() -> None:
    model = transept.TapasModel(transept.TapasConfig(**line("tapas").tiny)).eval()
    inputs = batch(line("tapas"), transept.TapasModel)
    far = inputs["token_type_ids"].clone()
    far[1, 3, 2] = 8
    with pytest.raises(InputError, match="of kind 2 the model has the types 0 to 7"):
        model(**inputs | {"token_type_ids": far})
    with pytest.raises(InputError, match=r"needs \(3, 9, 7\)"):
        model(**inputs | {"token_type_ids": inputs["token_type_ids"][..., :3]})


@pytest.mark.reference
def test_answers_of_splinter_are_no_padding() -> None:
    family = line("splinter")
    ours, theirs = pair(family, transept.SplinterForQuestionAnswering)
    inputs = batch(family, transept.SplinterForQuestionAnswering, pad="right")
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        mine, other = ours(**inputs), theirs(**inputs)
    for name in ("start_logits", "end_logits"):
        assert error(mine[name][real], other[name][real]) <= SINGLE
        assert (mine[name][~real] < -1e30).all()


def test_the_vocabulary_of_mobilebert_grows_and_shrinks() -> None:
    torch.manual_seed(0)
    model = transept.MobileBertForMaskedLM(transept.MobileBertConfig(**line("mobilebert").tiny)).eval()
    ids = torch.arange(5, 14)[None]
    with torch.no_grad():
        before = model(ids).logits
        model.resize_token_embeddings(105)
        grown = model(ids).logits
        model.resize_token_embeddings(99)
        assert grown.shape == (1, 9, 105)
        assert error(grown[..., :99], before) <= SINGLE
        assert error(model(ids).logits, before) <= SINGLE


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning")
def test_pairs_of_bert_for_generation_equal_the_reference(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tiny = line("bert_generation").tiny
    encoder, decoder = (reference.BertGenerationConfig(**tiny, **more) for more in ({}, DECODES))
    parts = reference.BertGenerationEncoder(encoder), reference.BertGenerationDecoder(decoder)
    theirs = reference.EncoderDecoderModel(encoder=parts[0], decoder=parts[1]).eval()
    theirs.save_pretrained(tmp_path)
    ours = transept.EncoderDecoderModel.from_pretrained(tmp_path).eval()
    inputs = batch(line("bert_generation"), transept.BertGenerationEncoder)
    inputs["decoder_input_ids"] = inputs["input_ids"][:, :5].flip(1)
    with torch.no_grad():
        assert error(ours(**inputs).logits, theirs(**inputs).logits) <= SINGLE
        ids = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        options = {"max_new_tokens": 6, "decoder_start_token_id": 2, "do_sample": False, "eos_token_id": 1, "pad_token_id": 0}
        assert torch.equal(ours.generate(**ids, **options), theirs.generate(**ids, **options))
    halves = transept.EncoderDecoderModel.from_encoder_decoder_pretrained
    parts[0].save_pretrained(tmp_path / "encoder")
    parts[1].save_pretrained(tmp_path / "decoder")
    again = halves(tmp_path / "encoder", tmp_path / "decoder").eval()
    with torch.no_grad():
        assert error(again(**inputs).logits, ours(**inputs).logits) <= SINGLE


@pytest.mark.reference
@pytest.mark.parametrize("length", [24, 23])
def test_blocks_of_long_texts_attend_to_blocks(length: int) -> None:
    family, more = line("big_bird"), {"block_size": 2, "num_random_blocks": 3}
    ours, theirs = pair(family, transept.BigBirdModel, attention="eager", **more)
    inputs = batch(family, transept.BigBirdModel, length=length)
    with torch.no_grad():
        assert error(ours(**inputs).last_hidden_state, theirs(**inputs).last_hidden_state) <= SINGLE
        inputs = batch(family, transept.BigBirdModel, pad="none", length=length)
        mine, other = (model(**inputs, output_attentions=True) for model in (ours, theirs))
    assert error(mine.attentions, tuple(each[:, :, :length, :length] for each in other.attentions)) <= SINGLE


def test_blocks_that_are_drawn_are_no_neighbours() -> None:
    attention = BlockSparseAttention(16, 4, block=2, random=3).train()
    seen, once = attention.plan(14, 4, 1, torch.device("cpu"))
    assert seen.shape == (4, 12, 8)
    assert once.sum() == 12 * 8 - 2  # the second and the last block but one have an end beside them
    drawn, own = seen[..., 5:], torch.arange(1, 13)[None, :, None]
    assert all(len({*row.tolist()}) == 3 for row in drawn.flatten(0, 1))
    assert bool(((drawn - own).abs() > 1).all())
    assert bool(((drawn > 0) & (drawn < 13)).all())
    assert len({tuple(head.flatten().tolist()) for head in drawn}) == 4
    assert torch.equal(attention.plan(14, 4, 1, torch.device("cpu"))[0], seen)
    assert not torch.equal(attention.plan(14, 4, 2, torch.device("cpu"))[0], seen)


@pytest.mark.reference
def test_landmarks_stand_for_texts_of_one_length() -> None:
    family, more = line("nystromformer"), {"num_landmarks": 3, "segment_means_seq_len": 9}
    ours, theirs = (model.double() for model in pair(family, transept.NystromformerModel, **more))
    inputs = batch(family, transept.NystromformerModel)
    with torch.no_grad():
        together = ours(**inputs).last_hidden_state
        for row in range(3):  # the reference's rows depend on one another
            one = {name: value[row : row + 1] for name, value in inputs.items()}
            assert error(ours(**one).last_hidden_state, theirs(**one).last_hidden_state) <= 1e-10
            assert error(together[row : row + 1], ours(**one).last_hidden_state) <= 1e-10
        shown = ours(**one, output_attentions=True)
    assert error(shown.last_hidden_state, together[2:]) <= 1e-10
    assert error(shown.attentions[0].sum(dim=-1), torch.ones(1, 4, 9)) <= 0.1
    with pytest.raises(InputError, match="landmarks are for 9"):
        ours(inputs["input_ids"][:, :8])


@pytest.mark.reference
def test_tokens_with_global_attention_are_chosen_by_the_task() -> None:
    family, seps = line("longformer"), torch.tensor([3, 4, 7])
    ids = torch.randint(5, 99, (2, 8), generator=torch.Generator().manual_seed(0))
    ids[:, seps] = 2
    for name, given in (("QuestionAnswering", ids), ("MultipleChoice", ids[None]), ("SequenceClassification", ids)):
        ours, theirs = pair(family, getattr(transept, f"LongformerFor{name}"), attention="eager")
        with torch.no_grad():
            mine, other = (model(given, output_attentions=True, output_hidden_states=True) for model in (ours, theirs))
        assert compare(mine, other, SINGLE) <= SINGLE
        assert len(mine.global_attentions) == 2
    ids[1, 4] = 5
    with pytest.raises(InputError, match="row 1 has 2 separators"):
        pair(family, transept.LongformerForQuestionAnswering)[0](ids)
    with pytest.raises(InputError, match="cannot be for windows"):
        ours(ids, attention_mask=torch.ones(2, 8, 8))


@pytest.mark.reference
def test_entities_are_read_beside_words() -> None:
    ours, theirs = pair(line("luke"), transept.LukeForMaskedLM)
    inputs = batch(line("luke"), transept.LukeForMaskedLM)
    inputs["entity_labels"] = inputs["entity_ids"]
    with torch.no_grad():
        mine, other = ours(**inputs), theirs(**inputs)
        assert compare(mine, other, SINGLE) <= SINGLE
        assert mine.loss == mine.mep_loss
        plain = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        compare(ours.luke(**plain), theirs.luke(**plain), SINGLE)
    with pytest.raises(InputError, match="the entities 0 to 19"):
        ours(**inputs | {"entity_ids": inputs["entity_ids"] + 9})
    with pytest.raises(InputError, match="rows of one text"):
        ours(**inputs | {"seq_idx": (torch.arange(9) > 3).long()[None]})
    with pytest.raises(InputError, match="needs `entity_ids`"):
        transept.LukeForEntityClassification(ours.config)(**plain)


@pytest.mark.reference
@pytest.mark.parametrize("stride", [4, 3])
def test_characters_see_those_of_their_part(stride: int) -> None:
    ours, theirs = pair(line("canine"), transept.CanineModel, local_transformer_stride=stride)
    inputs = batch(line("canine"), transept.CanineModel, pad="none", length=13)
    padded = inputs | {"attention_mask": (torch.arange(13) < torch.tensor([13, 11, 12])[:, None]).long()}
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)
        assert error(ours(**inputs, output_attentions=True).last_hidden_state, theirs(**inputs).last_hidden_state) <= SINGLE
        real = padded["attention_mask"].bool()
        assert error(ours(**padded).last_hidden_state[real], theirs(**padded).last_hidden_state[real]) <= SINGLE
    with pytest.raises(InputError, match="1 characters, but a molecule is made of 2"):
        ours(torch.tensor([[5]]))


def test_lengths_are_masks_and_languages_are_told() -> None:
    torch.manual_seed(0)
    model = transept.XLMForSequenceClassification(transept.XLMConfig(**line("xlm").tiny, n_langs=3)).eval()
    ids, lengths = torch.randint(5, 99, (2, 6)), torch.tensor([6, 4])
    mask = (torch.arange(6) < lengths[:, None]).long()
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits
        assert error(model(ids, lengths=lengths).logits, expected) <= SINGLE
        assert error(model(ids, mask, langs=torch.full_like(ids, 2)).logits, expected) > SINGLE
    with pytest.raises(InputError, match="the languages 0 to 2"):
        model(ids, langs=torch.full_like(ids, 3))
    with pytest.raises(InputError, match="there are 2 rows"):
        model(ids, lengths=lengths[:1])
