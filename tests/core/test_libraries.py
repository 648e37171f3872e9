"""What peft, accelerate and TRL call, and these libraries themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import peft
import pytest
import torch
import transformers
from torch import Tensor, nn

import transept
from tests.models.families import Family
from tests.models.harness import EVERY, batch
from transept.core.model import Model
from transept.errors import InputError, UnsupportedError

TEXT: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.arange(5, 21).reshape(2, 8)
MASK = torch.ones_like(IDS)


def bert(cls: Any = None) -> Any:
    torch.manual_seed(0)
    return (cls or transept.BertForSequenceClassification)(
        transept.BertConfig(**TEXT, intermediate_size=37, num_labels=3)
    ).eval()


def gpt2() -> Any:
    torch.manual_seed(0)
    return transept.GPT2LMHeadModel(transept.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4)).eval()


def t5() -> Any:
    torch.manual_seed(0)
    config = transept.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2, decoder_start_token_id=0)
    return transept.T5ForConditionalGeneration(config).eval()


@pytest.mark.parametrize(("family", "cls"), EVERY)
def test_every_class_says_what_it_is(family: Family, cls: type[Model]) -> None:
    theirs = getattr(transformers, cls.__name__, None)
    assert cls.main_input_name == (next(iter(batch(family, cls))) if theirs is None else theirs.main_input_name)
    assert cls.supports_gradient_checkpointing
    assert cls.can_generate() == hasattr(cls, "generate")
    if theirs is not None:
        # The last positions of a convolution cannot be cut back either, which the reference does not say of its LFM2.
        assert cls._is_stateful == (theirs._is_stateful or cls.config_class.model_type in ("lfm2", "lfm2_moe"))
        assert cls._can_set_attn_implementation()
        assert cls._supports_sdpa


def test_a_config_may_ask_for_gradient_checkpointing() -> None:
    for cls in (transept.BertModel, transept.BertForSequenceClassification):
        assert cls(transept.BertConfig(**TEXT, gradient_checkpointing=True)).is_gradient_checkpointing
        assert not cls(transept.BertConfig(**TEXT, gradient_checkpointing=False)).is_gradient_checkpointing


def test_weights_are_not_loaded_within_the_meta_device(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)
    with torch.device("meta"), pytest.raises(InputError, match="'meta' holds no weights"):
        transept.BertForSequenceClassification.from_pretrained(tmp_path)


def test_small_methods() -> None:
    model = bert()
    assert model.base_model is model.bert is model.get_encoder()
    assert model.bert.base_model is model.bert
    writer = t5()
    assert writer.base_model is writer
    assert model.num_labels == 3
    assert model.warnings_issued == {}
    assert model.__dict__["name_or_path"] == ""
    model.post_init()
    model.add_model_tags(["mine", "mine"])
    assert model.card_data()["tags"][1:] == ["mine"]
    before = model.classifier.weight.clone()
    model.init_weights()
    assert not torch.equal(model.classifier.weight, before)
    with pytest.raises(InputError, match="no output embeddings"):
        model.set_output_embeddings(nn.Linear(2, 2))
    with pytest.raises(UnsupportedError):
        model._get_feat_extract_output_lengths(400)
    writer = gpt2()
    writer.set_output_embeddings(layer := nn.Linear(32, 99, bias=False))
    assert writer.lm_head is layer
    assert t5().get_encoder() is not None


def test_lengths_of_sound() -> None:
    config = transept.Wav2Vec2Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=37)
    assert transept.Wav2Vec2ForCTC(config)._get_feat_extract_output_lengths(16000) == 49


def test_the_name_of_what_was_loaded(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)
    assert transept.BertModel.from_pretrained(tmp_path).name_or_path == str(tmp_path)


def test_the_attention_of_the_config_follows() -> None:
    model = gpt2()
    model.set_attn_implementation("eager")
    assert model.config._attn_implementation == "eager"
    assert transept.GPT2LMHeadModel(model.config).kernel_name == "eager"


@pytest.mark.parametrize("make", [bert, gpt2, t5], ids=["bert", "gpt2", "t5"])
def test_inputs_require_gradients_when_asked(make: Any) -> None:
    model = make()
    transept.freeze(model)
    inputs: dict[str, Tensor] = {"input_ids": IDS}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = IDS
    assert not model(**inputs).logits.requires_grad
    model.enable_input_require_grads()
    assert model(**inputs).logits.requires_grad
    model.disable_input_require_grads()
    assert not model(**inputs).logits.requires_grad


def test_the_loss_function_is_that_of_the_forward_pass() -> None:
    model = gpt2()
    output = model(IDS, labels=IDS)
    assert torch.allclose(model.loss_function(output.logits, IDS, vocab_size=99), output.loss)
    shifted = nn.functional.pad(IDS, (0, 1), value=-100)[:, 1:]
    assert torch.allclose(model.loss_function(output.logits, IDS, shift_labels=shifted), output.loss)


def test_prepared_inputs() -> None:
    model = gpt2()
    cache = model(IDS).past_key_values
    given = model.prepare_inputs_for_generation(torch.cat([IDS, IDS[:, :1]], 1), past_key_values=cache)
    assert given["input_ids"].shape == (2, 1)


def roberta() -> Any:
    torch.manual_seed(0)
    config = transept.RobertaConfig(**TEXT, intermediate_size=37, num_labels=3, max_position_embeddings=40)
    return transept.RobertaForSequenceClassification(config).eval()


def llama() -> Any:
    torch.manual_seed(0)
    return transept.LlamaForCausalLM(transept.LlamaConfig(**TEXT, intermediate_size=37, max_position_embeddings=40)).eval()


# Makers of models, peft's name of the task, and how many layers peft's own choice of names adapts.
LORA: list[tuple[Callable[[], Any], str, int]] = [
    (bert, "SEQ_CLS", 4),
    (llama, "CAUSAL_LM", 4),
    (t5, "SEQ_2_SEQ_LM", 12),
    (lambda: bert(transept.BertForTokenClassification), "TOKEN_CLS", 4),
    (roberta, "SEQ_CLS", 4),
]
NAMES = [f"{task}-{layers}" for _, task, layers in LORA]


def _labels(task: str) -> Tensor:
    return torch.tensor([0, 2]) if task == "SEQ_CLS" else IDS % 3 if task == "TOKEN_CLS" else IDS


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False but the target module is `Conv1D`:UserWarning")  # of peft
@pytest.mark.parametrize(("make", "task", "layers"), LORA, ids=NAMES)
def test_lora_of_peft_by_its_own_names(make: Any, task: str, layers: int, tmp_path: Path) -> None:
    wrapped = peft.get_peft_model(make(), peft.LoraConfig(task_type=task, r=4))
    assert len(wrapped.base_model.targeted_module_names) == layers
    heads = [n for n, p in wrapped.named_parameters() if p.requires_grad and "lora_" not in n]
    assert bool(heads) == task.endswith("CLS")
    assert all(".classifier." in name for name in heads)
    inputs = {"input_ids": IDS, "attention_mask": MASK, "labels": _labels(task)}
    wrapped(**inputs).loss.backward()
    trained = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in trained)
    torch.optim.SGD(trained, 1.0).step()
    expected = wrapped.eval()(**inputs).logits
    assert not torch.allclose(expected, make()(**inputs).logits)
    wrapped.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(make(), tmp_path / "adapter").eval()
    torch.testing.assert_close(again(**inputs).logits, expected)
    merged = again.merge_and_unload()
    torch.testing.assert_close(merged(**inputs).logits, expected, rtol=1e-4, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    loaded = type(merged).from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(loaded(**inputs).logits, expected, rtol=1e-4, atol=1e-5)


def test_two_adapters_of_peft() -> None:
    wrapped = peft.get_peft_model(bert(), peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    wrapped.add_adapter("other", peft.LoraConfig(task_type="SEQ_CLS", target_modules=["value"]))
    wrapped.set_adapter("other")
    wrapped(IDS, labels=torch.tensor([0, 2])).loss.backward()
    adapted = {n.partition(".lora_")[0].rpartition(".")[2] for n, p in wrapped.named_parameters() if p.grad is not None}
    assert "value" in adapted
    assert "query" not in adapted


# Settings of peft, and the ranks of the layers that it adapts by them.
SETTINGS: list[tuple[dict[str, Any], list[int]]] = [
    ({"rank_pattern": {"layer.0.attention.self.query": 2}}, [2, 4]),
    ({"target_modules": r".*layer\.\d+\.attention\.self\.(query|value)"}, [4, 4, 4, 4]),
    ({"exclude_modules": r".*layer\.0\..*"}, [4]),
    ({"layers_to_transform": [0]}, [4]),
    ({"layer_replication": [(0, 2), (0, 2)]}, [4, 4, 4, 4]),
]


@pytest.mark.parametrize(("settings", "ranks"), SETTINGS, ids=[next(iter(settings)) for settings, _ in SETTINGS])
def test_settings_of_peft_are_honoured(settings: dict[str, Any], ranks: list[int]) -> None:
    config = peft.LoraConfig(**{"task_type": "SEQ_CLS", "target_modules": ["query"], "r": 4, **settings})
    wrapped = peft.get_peft_model(bert(), config)
    assert [len(parameter) for name, parameter in wrapped.named_parameters() if "lora_A" in name] == ranks
    wrapped(IDS, labels=torch.tensor([0, 2])).loss.backward()
    assert all(p.grad is not None for name, p in wrapped.named_parameters() if "lora_" in name)


@pytest.mark.parametrize(("make", "task", "layers"), LORA[:3], ids=NAMES[:3])
def test_prompt_tuning_of_peft(make: Any, task: str, layers: int) -> None:
    model = make()
    wrapped = peft.get_peft_model(model, peft.PromptTuningConfig(task_type=task, num_virtual_tokens=4))
    wrapped(input_ids=IDS, attention_mask=MASK, labels=_labels(task)).loss.backward()
    assert any(parameter.grad is not None for parameter in wrapped.prompt_encoder.parameters())
    if model.can_generate():
        written = wrapped.eval().generate(input_ids=IDS, attention_mask=MASK, max_new_tokens=3)
        assert written.shape[0] == 2


def test_accelerate_prepares_and_unwraps() -> None:
    accelerator, model = accelerate.Accelerator(cpu=True), bert()
    wrapped, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    loss = wrapped(IDS, MASK, labels=_labels("SEQ_CLS")).loss
    accelerator.backward(loss)
    optimizer.step()
    assert accelerator.unwrap_model(wrapped) is model
    assert accelerate.dispatch_model(model, device_map={"": "cpu"})(IDS).logits.shape == (2, 3)
