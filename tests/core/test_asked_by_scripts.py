"""What scripts ask of models beside forward passes: vocabularies of another size, masks, heads that are removed, caches."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
import transformers as reference

import transept
from transept import DynamicCache, EncoderDecoderCache, StaticCache
from transept.errors import InputError, TranseptWarning, UnsupportedError
from transept.models.bart import BartConfig, BartForConditionalGeneration
from transept.models.bert import BertConfig, BertForSequenceClassification, BertModel
from transept.models.gpt2 import GPT2Config, GPT2LMHeadModel
from transept.models.llama import LlamaConfig, LlamaForCausalLM
from transept.models.t5 import T5Config, T5ForConditionalGeneration


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


IDS = torch.tensor([[1, 5, 6, 7]])
SIZES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"vocab_size": 30, "max_position_embeddings": 20}


def bert(**settings: Any) -> BertModel:
    return BertModel(BertConfig(**SIZES, **settings)).eval()


def gpt2(**settings: Any) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=30, n_positions=40, **settings)).eval()


def t5() -> T5ForConditionalGeneration:
    sizes: dict[str, Any] = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 30}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()


# --- vocabularies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_are_the_mean_or_those_of_a_new_model(tied: bool) -> None:
    model = gpt2(tie_word_embeddings=tied)
    old = {"embeddings": model.get_input_embeddings().weight.detach().clone(), "head": model.lm_head.weight.detach().clone()}
    mean = copy.deepcopy(model).resize_token_embeddings(33, mean_resizing=True).weight[30:]
    assert torch.allclose(mean, old["embeddings"].mean(0).expand(3, -1))
    torch.manual_seed(0)
    table = model.resize_token_embeddings(33, None, False)
    for layer, kept in ((table, old["embeddings"]), (model.lm_head, old["head"])):
        assert layer.weight.shape == (33, 8)
        assert torch.equal(layer.weight[:30], kept)
        assert 0.005 < layer.weight[30:].std() < 0.05  # `initializer_range` is 0.02
    assert (table.weight is model.lm_head.weight) is tied
    assert model.config.vocab_size == 33


@pytest.mark.parametrize(("size", "multiple"), [(33, 8), (None, 8), (31, 2), (20, None)])
def test_sizes_of_the_reference(size: int | None, multiple: int | None) -> None:
    settings: dict[str, Any] = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 30}
    theirs = reference.GPT2LMHeadModel(reference.GPT2Config(**settings))
    ours = gpt2()
    shapes = [model.resize_token_embeddings(size, pad_to_multiple_of=multiple).weight.shape for model in (ours, theirs)]
    assert shapes[0] == shapes[1]
    assert ours.config.vocab_size == theirs.config.vocab_size
    with pytest.raises(InputError, match=r"in multiples of 1\.3"):
        ours.resize_token_embeddings(43, pad_to_multiple_of=1.3)  # type: ignore[arg-type]


def test_other_models_take_the_same_arguments() -> None:
    model = BartForConditionalGeneration(BartConfig(d_model=16, encoder_layers=1, decoder_layers=1, vocab_size=30))
    assert model.resize_token_embeddings(31, pad_to_multiple_of=4, mean_resizing=False).weight.shape == (32, 16)
    assert model.final_bias.shape == (1, 32)


# --- masks and inputs ------------------------------------------------------------------------------------------------------


def test_masks_as_what_is_added_to_scores() -> None:
    mask, low = torch.tensor([[1, 1, 0]]), torch.finfo(torch.float32).min
    model = bert()
    assert model.get_extended_attention_mask(mask, (1, 3)).tolist() == [[[[0, 0, low]]]]
    assert model.invert_attention_mask(mask).tolist() == [[[[0, 0, low]]]]
    assert model.get_extended_attention_mask(torch.ones(1, 2, 3), (1, 2), dtype=torch.float16).shape == (1, 1, 2, 3)
    causal = bert(is_decoder=True).get_extended_attention_mask(mask, (1, 2))
    assert causal.tolist() == [[[[0, 0, low], [0, 0, low]]]]
    with pytest.raises(InputError, match="but has the shape"):
        model.get_extended_attention_mask(torch.ones(3), (1, 3))


def test_the_decoders_inputs_are_the_labels_one_later() -> None:
    labels = torch.tensor([[4, 5, -100]])
    assert t5()._shift_right(labels).tolist() == [[0, 4, 5]]


# --- heads -----------------------------------------------------------------------------------------------------------------


def test_removed_heads_are_gone_and_the_others_as_before(tmp_path: Path) -> None:
    model = bert()
    silent, before = copy.deepcopy(model), sum(p.numel() for p in model.parameters())
    projection = silent.layers[0].self_attn.o_proj
    with torch.no_grad():
        projection.weight[:, :4] = 0  # of the first head
    model.prune_heads({0: [0]})
    assert before - sum(p.numel() for p in model.parameters()) == 3 * 4 * (8 + 1) + 4 * 8
    torch.testing.assert_close(model(IDS)[0], silent(IDS)[0])
    assert model.config.pruned_heads == {0: [0]}
    model.prune_heads({0: [0], 1: [1]})
    assert model.config.pruned_heads == {0: [0], 1: [1]}
    model.save_pretrained(tmp_path)
    again = BertModel.from_pretrained(tmp_path)
    assert torch.equal(again(IDS)[0], model(IDS)[0])
    with pytest.raises(InputError, match=r"the heads \[0\] of 1 cannot be removed"):
        model.prune_heads({0: [1]})
    with pytest.raises(UnsupportedError, match="several stacks"):
        t5().prune_heads({0: [0]})
    task = BertForSequenceClassification(BertConfig(**SIZES))
    task.prune_heads({1: {0}})
    assert task.backbone.layers[1].self_attn.o_proj.in_features == 4


# --- caches ----------------------------------------------------------------------------------------------------------------


def test_a_static_cache_takes_the_arguments_of_all_versions() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    options: dict[str, Any] = {"max_batch_size": 1, "device": "cpu", "dtype": torch.float32}
    cache = StaticCache(config=model.config, max_cache_len=16, **options)
    assert torch.allclose(model(IDS, past_key_values=cache).logits, model(IDS).logits, atol=1e-6)
    assert cache.get_seq_length() == 4
    assert model.generate(IDS, past_key_values=StaticCache(model.config, 16, batch_size=1), max_new_tokens=3).shape == (1, 7)


@pytest.mark.parametrize("static", [True, False])
def test_a_cache_of_both_sides(static: bool) -> None:
    model = t5()
    own = StaticCache(max_cache_len=8) if static else DynamicCache()
    cache = EncoderDecoderCache(own, DynamicCache())
    first = model(IDS, decoder_input_ids=IDS[:, :2], past_key_values=cache)
    assert first.past_key_values is cache
    assert (cache.get_seq_length(), own.get_seq_length(), cache.cross_attention_cache.get_seq_length()) == (2, 2, 4)
    assert cache.is_updated == {0: True, 1: True}
    states = (first.encoder_last_hidden_state,)
    rest = model(encoder_outputs=states, decoder_input_ids=IDS[:, 2:], past_key_values=copy.deepcopy(cache)).logits
    whole = model(IDS, decoder_input_ids=IDS)
    torch.testing.assert_close(rest, whole.logits[:, 2:])
    assert type(whole.past_key_values) is EncoderDecoderCache
    cache.crop(1)
    assert own.get_seq_length() == 1
    written = model.generate(IDS, max_new_tokens=3, return_dict_in_generate=True)
    assert isinstance(written.past_key_values, EncoderDecoderCache)
    again = EncoderDecoderCache(StaticCache(max_cache_len=8) if static else DynamicCache(), DynamicCache())
    assert torch.equal(model.generate(IDS, past_key_values=again, max_new_tokens=3), written.sequences)


def test_a_cache_of_both_sides_is_copied_and_a_tree() -> None:
    cache = t5()(IDS, decoder_input_ids=IDS).past_key_values
    for twin in (pickle.loads(pickle.dumps(cache)), pytree.tree_map(torch.clone, cache)):
        assert type(twin) is EncoderDecoderCache
        assert twin.self_attention_cache.layers is twin.layers
        assert torch.equal(twin.cross[1].keys, cache.cross_attention_cache.layers[1].keys)


# --- settings of generation ------------------------------------------------------------------------------------------------


def test_settings_that_are_set_on_a_model() -> None:
    model = gpt2(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    with pytest.warns(TranseptWarning, match="no setting 'language'"):
        model.generation_config.language = "hindi"
    assert model.generation_config.to_dict()["language"] == "hindi"
    assert model.generate(IDS, max_new_tokens=1, trust_remote_code=True).shape == (1, 5)
    with pytest.raises(InputError, match="takes no `task`"):
        model.generate(IDS, max_new_tokens=2, task="x")


def test_models_tell_their_vocabulary_and_configs_have_no_plans() -> None:
    config = transept.T5Config(vocab_size=30, d_model=16, d_kv=8, num_heads=2, num_layers=1, d_ff=16, decoder_start_token_id=0)
    model = transept.T5Model(config)
    assert model.vocab_size == 30
    assert model(**model.dummy_inputs, attention_mask=torch.ones(3, 5)).last_hidden_state.shape == (3, 5, 16)
    assert model._shift_right(torch.tensor([[5, 6, 7]])).tolist() == [[0, 5, 6]]
    assert config.base_model_tp_plan is config.base_model_pp_plan is None
    sizes = {"hidden_sizes": [8], "depths": [1], "embedding_size": 8}
    with pytest.raises(AttributeError, match="vocab_size"):
        _ = transept.ResNetModel(transept.ResNetConfig(**sizes)).vocab_size
    assert "bool_masked_pos" not in inspect.signature(transept.ViTForImageClassification.forward).parameters
    assert "bool_masked_pos" in inspect.signature(transept.ViTModel.forward).parameters


def test_networks_without_embeddings_can_be_asked_for_gradients_of_inputs() -> None:
    sizes = {"hidden_sizes": [8], "depths": [1], "embedding_size": 8}
    model = transept.ResNetModel(transept.ResNetConfig(**sizes))
    model.enable_input_require_grads()
    model.disable_input_require_grads()
