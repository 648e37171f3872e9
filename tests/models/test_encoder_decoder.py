"""What pairs of two models add to the derived suite: how they are put together, and who cannot be a half."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from transept.core.auto import AutoConfig, AutoModelForSeq2SeqLM
from transept.errors import ConfigError, InputError, TranseptWarning, UnsupportedError
from transept.heads.task import loss_alone
from transept.models.bart import BartConfig, BartForCausalLM
from transept.models.bert import BertConfig, BertForMaskedLM, BertLMHeadModel, BertModel
from transept.models.encoder_decoder import EncoderDecoderConfig, EncoderDecoderModel
from transept.models.gpt2 import GPT2Config, GPT2LMHeadModel
from transept.models.llama import LlamaConfig, LlamaForCausalLM
from transept.models.t5 import T5Config, T5Model

from .families.settings import STACKS, TEXT
from .harness import DOUBLE, SINGLE, check_same, compare, error, stored

BERT = BertConfig(**TEXT, intermediate_size=37)
READER = BertConfig(**TEXT, intermediate_size=37, is_decoder=True, add_cross_attention=True)
IDS = torch.randint(5, 99, (2, 7), generator=torch.Generator().manual_seed(0))


def seen(model: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)


def test_two_checkpoints_make_a_pair(tmp_path: Path) -> None:
    BertForMaskedLM(BERT).save_pretrained(tmp_path / "reads")
    GPT2LMHeadModel(GPT2Config(**TEXT)).save_pretrained(tmp_path / "writes")
    options = {"encoder_hidden_act": "relu", "decoder_start_token_id": 1, "pad_token_id": 0}
    with pytest.warns(TranseptWarning) as told:
        pair = EncoderDecoderModel.from_encoder_decoder_pretrained(tmp_path / "reads", tmp_path / "writes", **options)
    assert ["pooler" in str(told[0].message), "cross_attn" in str(told[1].message), len(told)] == [True, True, 2]
    assert not pair.training
    assert (pair.config.decoder_start_token_id, pair.config.encoder.hidden_act) == (1, "relu")
    assert pair.decoder.config.add_cross_attention
    assert pair.config.encoder is pair.encoder.config
    assert float(pair.decoder.backbone.layers[0].cross_attn.kv_proj.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    pair.save_pretrained(tmp_path / "pair")
    assert {name.partition(".")[0] for name in stored(str(tmp_path / "pair"))} == {"encoder", "decoder"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "pair")
    assert type(again) is EncoderDecoderModel
    assert AutoConfig.from_pretrained(tmp_path / "pair") == again.config
    check_same(again, pair, lambda model: seen(model, input_ids=IDS, labels=IDS))
    with pytest.raises(InputError, match="no decoder was named"):
        EncoderDecoderModel.from_encoder_decoder_pretrained(encoder_model=BertModel(BERT))


@pytest.mark.reference
def test_pairs_of_the_reference_of_other_sizes(tmp_path: Path) -> None:
    import transformers

    reads = transformers.BertConfig(**TEXT, intermediate_size=37)
    writes = transformers.GPT2Config(**(TEXT | {"hidden_size": 24}), add_cross_attention=True, tie_word_embeddings=False)
    config = transformers.EncoderDecoderConfig(encoder=reads, decoder=writes, decoder_start_token_id=1, pad_token_id=0)
    theirs = transformers.EncoderDecoderModel(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = EncoderDecoderModel.from_pretrained(tmp_path)
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :4], "token_type_ids": torch.ones_like(IDS)}
    compare(seen(ours, **inputs), seen(theirs, **inputs), SINGLE)
    ours.save_pretrained(tmp_path / "ours")
    assert stored(str(tmp_path / "ours")).keys() == stored(str(tmp_path)).keys()


def test_decoding_with_a_cache() -> None:
    pair = EncoderDecoderModel(encoder=BertModel(BERT), decoder=BertLMHeadModel(READER)).eval()
    ids = IDS.clone()
    ids[:, 0] = 0  # it may start with padding
    whole = seen(pair, input_ids=IDS, decoder_input_ids=ids, output_attentions=True)
    assert len(whole.cross_attentions) == len(whole.encoder_attentions) == 2
    encoded, cache = pair.get_encoder()(IDS), None
    for start, end in ((0, 3), (3, 4), (4, 7)):
        given = {"encoder_outputs": encoded, "decoder_input_ids": ids[:, start:end], "past_key_values": cache}
        part = seen(pair, **given, use_cache=True, logits_to_keep=1)
        cache = part.past_key_values
        assert error(part.logits, whole.logits[:, end - 1 : end]) <= SINGLE
    as_tuple = seen(pair, input_ids=IDS, decoder_input_ids=ids, return_dict=False)
    assert error(as_tuple[0], whole.logits) <= SINGLE


def test_switches_reach_both_halves() -> None:
    pair = EncoderDecoderModel(encoder=BertModel(BERT), decoder=BertLMHeadModel(READER))
    pair.set_attn_implementation("eager")
    pair.gradient_checkpointing_enable()
    assert all(stack.kernel_name == "eager" and stack.recompute is not None for stack in (pair.encoder, pair.decoder.body))
    assert pair.is_gradient_checkpointing
    pair.config.decoder_start_token_id, pair.config.pad_token_id = 1, 0
    pair(IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None for name, p in pair.named_parameters() if "pooler" not in name)


def test_who_cannot_be_a_half() -> None:
    reader = BertLMHeadModel(READER)
    with pytest.raises(InputError, match="LlamaForCausalLM has no cross-attention"):
        EncoderDecoderModel(encoder=BertModel(BERT), decoder=LlamaForCausalLM(LlamaConfig(**TEXT, intermediate_size=37)))
    with pytest.raises(InputError, match="BertModel predicts no next token"):
        EncoderDecoderModel(encoder=BertModel(BERT), decoder=BertModel(BERT))
    with pytest.raises(InputError, match="T5Model is no encoder"):
        EncoderDecoderModel(encoder=T5Model(T5Config(d_model=32, num_layers=1, d_ff=8)), decoder=reader)
    with pytest.raises(InputError, match="from a config, or from"):
        EncoderDecoderModel(encoder=BertModel(BERT))
    with pytest.raises(InputError, match="vocabularies of their own"):
        EncoderDecoderModel(encoder=BertModel(BERT), decoder=reader).resize_token_embeddings(7)
    with pytest.raises(ConfigError, match="`encoder` of EncoderDecoderConfig must be a config"):
        EncoderDecoderConfig(encoder={"vocab_size": 3})
    with pytest.raises(UnsupportedError, match="nowhere"):
        EncoderDecoderConfig(encoder={"model_type": "nowhere"})
    with pytest.raises(InputError, match="decoder_start_token_id"):
        EncoderDecoderModel(encoder=BertModel(BERT), decoder=reader)(IDS, labels=IDS)


def test_the_decoder_of_an_encoder_decoder_is_a_half_too() -> None:
    config = BartConfig(**STACKS)
    pair = EncoderDecoderModel(encoder=BertModel(BERT), decoder=BartForCausalLM(config)).eval()
    assert seen(pair, input_ids=IDS, decoder_input_ids=IDS[:, :3]).logits.shape == (2, 3, 99)
    joined = EncoderDecoderConfig.from_encoder_decoder_configs(BERT, BertConfig(**TEXT, intermediate_size=37))
    assert joined.decoder.add_cross_attention
    assert not BERT.add_cross_attention


@pytest.mark.parametrize("writer", ["bert", "gpt2", "bart"])
def test_a_loss_alone_needs_no_logits_of_the_rest(writer: str) -> None:
    torch.manual_seed(0)
    decoders: dict[str, Any] = {
        "bert": lambda: BertLMHeadModel(READER),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**TEXT, add_cross_attention=True)),
        "bart": lambda: BartForCausalLM(BartConfig(**STACKS | {"is_decoder": True})),
    }
    encoder, decoder = BertModel(BERT), decoders[writer]()
    config = EncoderDecoderConfig(encoder=encoder.config, decoder=decoder.config, decoder_start_token_id=1, pad_token_id=0)
    pair = EncoderDecoderModel(config, encoder, decoder).eval().double()
    labels = IDS.masked_fill(IDS % 3 == 0, -100)
    inputs = {"input_ids": IDS, "labels": labels, "output_hidden_states": True}
    whole, sizes = pair(**inputs), []
    wanted = torch.autograd.grad(whole.loss, [*pair.parameters()], allow_unused=True)
    pair.decoder.lm_head.register_forward_hook(lambda module, given, output: sizes.append(output.shape[:-1].numel()))
    with loss_alone():
        alone = pair(**inputs)
    assert alone.logits is None
    assert sum(sizes) == int((labels != -100).sum())
    assert len(alone.decoder_hidden_states) == len(whole.decoder_hidden_states)
    assert error(alone.loss, whole.loss) <= DOUBLE
    found = torch.autograd.grad(alone.loss, [*pair.parameters()], allow_unused=True)
    largest = max(float(each.abs().max()) for each in wanted if each is not None)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        assert one is None or float((one - other).abs().max()) <= DOUBLE * largest


def test_decoders_of_any_family_are_told_so() -> None:
    config = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(), GPT2Config())
    assert config.decoder is not None
    assert [config.decoder.is_decoder, config.decoder.add_cross_attention] == [True, True]
    assert EncoderDecoderConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


def test_models_that_were_loaded_keep_their_weights_in_a_pair(tmp_path: Path) -> None:
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
    writer = BertLMHeadModel(BertConfig(**sizes, is_decoder=True, add_cross_attention=True))
    BertModel(BertConfig(**sizes)).save_pretrained(tmp_path)
    reader = BertModel.from_pretrained(tmp_path)
    before = {name: tensor.clone() for name, tensor in reader.state_dict().items()}
    pair = EncoderDecoderModel(encoder=reader, decoder=writer)
    assert all(torch.equal(tensor, pair.state_dict()[f"encoder.{name}"]) for name, tensor in before.items())
