"""Submodules under the reference's names: reading, replacing, freezing."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import transept
from tests.models.families import Family
from tests.models.harness import EVERY, FIRST, originals
from tests.thorough import in_turn
from transept.core.model import Model
from transept.core.naming import Part
from transept.errors import InputError, MissingNameError

TEXT: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert(**more: Any) -> Any:
    return transept.BertForSequenceClassification(transept.BertConfig(**TEXT, intermediate_size=37, **more)).eval()


def gpt2() -> Any:
    return transept.GPT2LMHeadModel(transept.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4)).eval()


def t5() -> Any:
    return transept.T5ForConditionalGeneration(transept.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=37, num_layers=2))


def llama() -> Any:
    return transept.LlamaForSequenceClassification(transept.LlamaConfig(**TEXT, intermediate_size=37, pad_token_id=0))


def vit() -> Any:
    more = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
    return transept.ViTForImageClassification(transept.ViTConfig(image_size=8, patch_size=4, **more))


def test_a_replaced_head_is_used_saved_and_read(tmp_path: Path) -> None:
    model, ids = bert(num_labels=5), torch.arange(8)[None]
    model.classifier = head = nn.Linear(32, 5)
    nn.init.zeros_(head.weight)
    nn.init.constant_(head.bias, 3.0)
    assert model.classifier is head
    assert torch.equal(model(ids).logits, torch.full((1, 5), 3.0))
    assert "classifier" not in dict(model.named_children())
    model.save_pretrained(tmp_path)
    again = transept.BertForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(again.classifier.bias, head.bias)
    assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("make", "name"),
    [(llama, "score"), (vit, "classifier"), (gpt2, "lm_head"), (t5, "lm_head")],
    ids=["llama", "vit", "gpt2", "t5"],
)
def test_heads_of_other_families(make: Any, name: str) -> None:
    model = make()
    old = getattr(model, name)
    fresh = nn.Linear(old.in_features, old.out_features, old.bias is not None)
    setattr(model, name, fresh)
    assert getattr(model, name) is fresh
    assert any(module is fresh for module in model.modules())
    assert all(module is not old for module in model.modules())


def test_a_subclass_that_sets_the_head_in_its_constructor() -> None:
    class Own(transept.BertForSequenceClassification):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.classifier = nn.Linear(32, 7)

    model = Own(transept.BertConfig(**TEXT, intermediate_size=37))
    assert model(torch.arange(8)[None]).logits.shape == (1, 7)


def test_reading_step_by_step() -> None:
    model = bert()
    assert model.bert is model.backbone
    query = model.bert.encoder.layer[0].attention.self.query
    assert query is model.backbone.layers[0].self_attn.q_proj
    assert model.get_submodule("bert.encoder.layer.0.attention.self.query") is query
    assert model.get_parameter("bert.encoder.layer.0.attention.self.query.weight") is query.weight
    layers = model.bert.encoder.layer
    assert len(layers) == 2
    assert next(iter(layers)).attention.self.query is query
    assert layers[-1].output.dense is model.backbone.layers[1].mlp.down_proj
    assert len(layers[:1]) == 1
    assert {id(p) for p in layers[0].parameters()} == {id(p) for p in model.backbone.layers[0].parameters()}
    assert "attention.self.query.weight" in dict(layers[0].named_parameters())
    assert t5().encoder.block[1].layer[1].DenseReluDense.wi.out_features == 37
    assert t5().shared.num_embeddings == 99
    assert vit().vit.encoder.layer[0].attention.attention.query.in_features == 32
    assert llama().backbone.layers[0].self_attn.q_proj.in_features == 32


def test_replacing_deep_inside() -> None:
    model = bert()
    model.bert.encoder.layer[0].attention.self.query = fresh = nn.Linear(32, 32)
    assert model.backbone.layers[0].self_attn.q_proj is fresh
    assert model.bert.encoder.layer[0].attention.self.query is fresh
    model.bert.embeddings.word_embeddings = table = nn.Embedding(50, 32)
    assert model.get_input_embeddings() is table


def test_a_part_is_our_module_where_there_is_one() -> None:
    model, seen = bert(), []
    layer = model.bert.encoder.layer[0]
    assert isinstance(layer, Part)
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(module))
    model(torch.arange(8)[None])
    handle.remove()
    assert seen == [model.backbone.layers[0]]
    layer.train()
    assert model.backbone.layers[0].dropout.training
    with pytest.raises(MissingNameError, match="no one module"):
        model.bert.encoder.layer[0].attention.register_forward_hook(print)


def test_several_of_ours_are_named() -> None:
    model = gpt2()
    for ask in (
        lambda: model.transformer.h[0].attn.c_attn,
        lambda: model.get_submodule("transformer.h.0.attn.c_attn"),
    ):
        with pytest.raises(AttributeError) as caught:
            ask()
        assert all(f"self_attn.{part}_proj" in str(caught.value) for part in "qkv")
    assert len(list(model.transformer.h[0].attn.parameters())) == 8
    with pytest.raises(AttributeError, match=r"q_proj\.weight"):
        model.get_parameter("transformer.h.0.attn.c_attn.weight")
    with pytest.raises(AttributeError):
        model.transformer.h[0].attn.c_attn = nn.Linear(32, 96)


def test_other_names_are_as_in_any_module() -> None:
    model = bert()
    model.extra = nn.Linear(2, 2)
    assert dict(model.named_children())["extra"] is model.extra
    assert not hasattr(model, "nonsense")
    with pytest.raises(AttributeError):
        model.get_submodule("bert.nonsense")
    assert isinstance(pickle.loads(pickle.dumps(model)).bert, transept.BertModel)
    assert copy.deepcopy(model).classifier is not model.classifier


def test_reference_names() -> None:
    names = transept.reference_names(bert())
    assert names["backbone.layers.0.self_attn.q_proj.weight"] == "bert.encoder.layer.0.attention.self.query.weight"
    assert names["head.out_proj.bias"] == "classifier.bias"
    assert transept.reference_names(gpt2())["backbone.layers.1.self_attn.k_proj.weight"] == "transformer.h.1.attn.c_attn.weight"


def test_freezing() -> None:
    model = bert()
    frozen = transept.freeze(model, "encoder.layer.0", "bert.embeddings", "backbone.layers.1.mlp")
    assert set(frozen) == {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert any(name.startswith("backbone.layers.0.") for name in frozen)
    assert model.head.out_proj.weight.requires_grad
    with pytest.raises(InputError, match="encoder"):
        transept.freeze(model, "encoders")
    assert len(transept.freeze(model)) == len(list(model.parameters()))


def test_names_of_modules_also_end_as_the_references() -> None:
    wrapped = nn.Sequential(bert())
    queries = [name for name, _ in wrapped.named_modules() if name.endswith(".query")]
    assert queries == [f"0.model.layers.{layer}.self_attn.q_proj" for layer in range(2)]
    assert queries == [name for name, _ in wrapped.named_modules() if name.endswith(("q_proj", "nothing"))]
    assert [name for name, _ in bert().named_modules() if name.endswith("classifier")] == ["head.out_proj"]
    assert not any(name.endswith("querie") for name, _ in bert().named_modules())
    assert sum(name.endswith(".c_attn") for name, _ in gpt2().named_modules()) == 6
    assert {type(pickle.loads(pickle.dumps(name))) for name, _ in bert().named_modules()} == {str}


@pytest.mark.parametrize(("family", "cls"), in_turn(EVERY, whole=FIRST, share=6))
def test_every_module_of_the_reference_is_found(family: Family, cls: type[Model]) -> None:
    """A stored layer is our layer of the same numbers, or the error says which of ours it is."""
    ours, _, stored = originals(family, cls)
    known = {name for name in (*transept.reference_names(ours).values(), *stored) if "*" not in name}
    held = ours.checkpoint_names().canonical(known)
    seen = 0
    for name in held:
        path, _, leaf = name.rpartition(".")
        if not path or leaf != "weight" or not set(ours.checkpoint_names().keys.ours(name)) & ours.state_dict().keys():
            continue
        try:
            module = ours.get_submodule(path)
        except MissingNameError as error:
            assert "Its tensors are in" in str(error)
            continue
        seen += 1
        assert isinstance(module, nn.Module)
        tensor = stored.get(held[name])
        if tensor is not None and isinstance(weight := getattr(module, "weight", None), torch.Tensor):
            assert weight.numel() == tensor.numel()
            assert torch.equal(weight.double().sum().float(), tensor.double().sum().float())
    assert seen
