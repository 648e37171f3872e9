"""Packed layers: the same numbers, names and files as the plain ones."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transept
from transept.adapt.pack import FoldedConv, PackedLinear, TiedLinear, can_pack, pack
from transept.errors import InputError
from transept.layers.linear import PlainLinear, Projection
from transept.layers.mlp import ACTIVATIONS, MLP, GatedMLP
from transept.quantized.fused import can_fuse

pytestmark = pytest.mark.skipif(not can_pack(), reason="this PyTorch has no oneDNN")
HALF = [dtype for dtype in (torch.bfloat16, torch.float16) if can_pack(dtype)]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 60}
MODELS = [
    "BertModel",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "DistilBertForMaskedLM",
    "ElectraForMaskedLM",
    "MPNetModel",
    "RobertaForSequenceClassification",
    "LlamaForSequenceClassification",
    "GPT2LMHeadModel",
    "ModernBertModel",
]


def make(name: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    cls = getattr(transept, name)
    kind = cls.config_class
    sizes = dict(SIZES)
    if name.startswith("DistilBert"):
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "vocab_size": 60}
    elif name.startswith("GPT2"):
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 60, "bos_token_id": 0, "eos_token_id": 0}
    elif name.startswith("ModernBert"):
        sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return cls(kind(**{**sizes, **settings, "initializer_range": 0.2})).eval()


def output(model: Any) -> Tensor:
    ids = torch.arange(3, 51).reshape(3, 16)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    with torch.inference_mode():
        found: Tensor = model(ids, attention_mask=mask)[0]
    return found


def relative(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).abs().max() / other.float().abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_a_packed_model_computes_the_same(name: str) -> None:
    plain = make(name)
    packed = pack(copy.deepcopy(plain))
    assert sum(isinstance(module, PackedLinear) for module in packed.modules()) >= 8
    assert relative(output(packed), output(plain)) < 1e-5


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    plain = make("BertModel").to(dtype)
    packed = pack(copy.deepcopy(plain))
    assert packed.dtype == dtype
    assert relative(output(packed), output(plain)) < 3e-2  # both round to 8 or 11 bits, in another order
    assert relative(output(packed), output(make("BertModel"))) < 5e-2


@pytest.mark.parametrize("name", MODELS)
def test_names_and_values_stay(name: str) -> None:
    plain = make(name)
    packed = pack(copy.deepcopy(plain))
    before, after = plain.state_dict(), packed.state_dict()
    assert list(after) == list(before)
    for key, value in before.items():
        assert type(after[key]) is Tensor
        assert torch.equal(after[key], value)
    assert packed.num_parameters() == plain.num_parameters()
    assert packed.get_memory_footprint() == plain.get_memory_footprint()


@pytest.mark.parametrize("name", ["BertForMaskedLM", "LlamaForCausalLM", "GPT2LMHeadModel"])
def test_saving_a_packed_model_gives_the_same_checkpoint(tmp_path: Path, name: str) -> None:
    plain = make(name)
    plain.save_pretrained(tmp_path / "plain")
    pack(copy.deepcopy(plain)).save_pretrained(tmp_path / "packed")
    assert (tmp_path / "packed/model.safetensors").read_bytes() == (tmp_path / "plain/model.safetensors").read_bytes()
    again = type(plain).from_pretrained(tmp_path / "packed")
    assert torch.equal(output(again), output(plain))


def test_loading_into_a_packed_model(tmp_path: Path) -> None:
    other = make("BertModel")
    nn.init.normal_(other.layers[0].mlp.up_proj.weight)
    packed = pack(make("BertModel"))
    assert packed.load_state_dict(other.state_dict()).missing_keys == []
    assert relative(output(packed), output(other)) < 1e-5
    wrong = other.state_dict()
    wrong["encoder.layer.0.intermediate.dense.weight"] = torch.zeros(47, 32)
    with pytest.raises(
        RuntimeError, match=r"size mismatch for encoder.layer.0.intermediate.dense.weight.*\[47, 32\].*\[48, 32\]"
    ):
        packed.load_state_dict(wrong)
    del wrong["encoder.layer.0.intermediate.dense.weight"]
    with pytest.raises(RuntimeError, match="Missing key.*encoder.layer.0.intermediate.dense.weight"):
        packed.load_state_dict(wrong)
    assert relative(output(packed), output(other)) < 1e-5


CAPABILITY = pytest.mark.parametrize("capability", ["AVX2", "AVX512"])


def capable_of(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)


@CAPABILITY
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_every_activation(monkeypatch: pytest.MonkeyPatch, act: str, capability: str) -> None:
    """Where there is AVX2 alone, oneDNN is slow at all but the simplest."""
    capable_of(monkeypatch, capability)
    plain = make("BertModel", hidden_act=act)
    packed = pack(copy.deepcopy(plain))
    assert relative(output(packed), output(plain)) < 1e-5
    joined = [module.up_proj.act for module in packed.modules() if type(module) is MLP]
    could = act not in ("quick_gelu", "relu2", "relu6", "leaky_relu", "mish", "linear")
    could = could if capability == "AVX512" else act == "relu"
    assert (joined != ["linear", "linear"]) == could


@CAPABILITY
@pytest.mark.parametrize("act", ["silu", "gelu", "mish"])
def test_the_activation_of_a_gate(monkeypatch: pytest.MonkeyPatch, act: str, capability: str) -> None:
    capable_of(monkeypatch, capability)
    plain = make("LlamaForSequenceClassification", hidden_act=act)
    packed = pack(copy.deepcopy(plain))
    assert relative(output(packed), output(plain)) < 1e-5
    joined = [module.gate_proj.act for module in packed.modules() if type(module) is GatedMLP]
    assert (joined != ["linear", "linear"]) == (act != "mish" and capability == "AVX512")


def test_the_two_kinds_of_gelu_are_not_mistaken() -> None:
    layer = nn.Linear(4, 4).requires_grad_(False)
    x = torch.linspace(-4, 4, 400).reshape(100, 4)
    exact, tanh = PackedLinear(layer, "gelu")(x), PackedLinear(layer, "gelu_new")(x)
    assert torch.allclose(exact, nn.functional.gelu(layer(x)), atol=1e-6)
    assert torch.allclose(tanh, nn.functional.gelu(layer(x), approximate="tanh"), atol=1e-6)
    assert (exact - tanh).abs().max() > 1e-5


@pytest.mark.parametrize(("name", "path"), [("BertForMaskedLM", "lm_head.decoder"), ("GPT2LMHeadModel", "lm_head")])
def test_tied_decoders_multiply_by_a_copy(name: str, path: str) -> None:
    model = pack(make(name))
    decoder = model.get_submodule(path)
    assert type(decoder) is TiedLinear
    table = model.get_input_embeddings().weight
    assert decoder.weight is table
    assert decoder.packed_bytes == 0
    before = output(model)
    assert decoder.packed_bytes == table.nbytes
    with torch.no_grad():
        table.mul_(2)
        expected = nn.functional.linear(torch.ones(3, 32), table, decoder.bias)
        assert torch.allclose(decoder(torch.ones(3, 32)), expected, atol=1e-4)
        table.data = table.data / 2
    assert torch.equal(output(model), before)
    x = torch.ones(3, 32, requires_grad=True)
    decoder(x).sum().backward()  # by the plain weight
    assert table.grad is not None
    untied = pack(make(name, tie_word_embeddings=False))
    assert type(untied.get_submodule(path)) is PackedLinear


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM"])
def test_a_packed_vocabulary_grows_and_shrinks(name: str, tie: bool) -> None:
    plain = make(name, tie_word_embeddings=tie)
    packed = pack(copy.deepcopy(plain))
    for rows in (64, 77, 55):
        for model in (plain, packed):
            model.resize_token_embeddings(rows)
        assert packed.config.vocab_size == rows
        assert output(packed).shape[-1] == rows
        assert relative(output(packed), output(plain)) < 1e-5
        for key, value in plain.state_dict().items():
            assert torch.equal(packed.state_dict()[key], value)
    decoder = packed.get_output_embeddings()
    if can_fuse(plain):
        assert type(decoder) is PlainLinear
        return
    assert type(decoder) is (TiedLinear if tie else PackedLinear)
    assert (decoder.out_features, decoder.weight.requires_grad) == (55, tie)
    assert decoder.weight.is_mkldnn != tie


@pytest.mark.parametrize("name", ["BertModel", "LlamaForSequenceClassification"])
def test_queries_keys_and_values_are_one_product(name: str) -> None:
    plain = make(name)
    packed = pack(copy.deepcopy(plain))
    before, after = plain.body.layers[0].self_attn, packed.body.layers[0].self_attn
    x = torch.randn(2, 3, 32)
    for part in ("q_proj", "k_proj", "v_proj"):
        one, other = getattr(before, part), getattr(after, part)
        assert type(other) is Projection
        assert torch.equal(one.weight, other.weight)
        assert torch.allclose(one(x), other(x), atol=1e-5)
    expected = output(plain)
    with torch.no_grad():
        for model in (plain, packed):  # a layer in the place of one of the three is used
            model.body.layers[0].self_attn.k_proj = nn.Linear(32, 32)
            nn.init.constant_(model.body.layers[0].self_attn.k_proj.weight, 0.1)
            nn.init.zeros_(model.body.layers[0].self_attn.k_proj.bias)
    assert relative(output(packed), output(plain)) < 1e-5
    assert relative(output(packed), expected) > 1e-3


def test_projections_with_biases_of_some_stay_apart() -> None:
    model = make("BertModel")
    model.body.layers[0].self_attn.k_proj.bias = None
    before, packed = output(model), pack(copy.deepcopy(model))
    assert type(packed.layers[0].self_attn.q_proj) is PackedLinear
    assert type(packed.layers[1].self_attn.q_proj) is Projection
    assert relative(output(packed), before) < 1e-5


def test_shapes_that_are_not_contiguous_or_empty() -> None:
    layer = nn.Linear(8, 6).requires_grad_(False)
    packed, x = PackedLinear(layer), torch.randn(4, 5, 8)
    for y in (x[:, 0], x.transpose(0, 1), x[:, ::2], x[0, 0], torch.zeros(0, 8), torch.zeros(3, 0, 8)):
        assert torch.allclose(packed(y), layer(y), atol=1e-6)
    bare = nn.Linear(8, 6, bias=False).requires_grad_(False)
    assert torch.allclose(PackedLinear(bare)(x), bare(x), atol=1e-6)


def test_packing_twice_changes_nothing() -> None:
    model = pack(make("BertModel"))
    before = output(model)
    assert torch.equal(output(pack(model)), before)


def test_copies_and_pickles() -> None:
    model = pack(make("BertForMaskedLM"))
    expected = output(model)
    assert torch.equal(output(copy.deepcopy(model)), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = pickle.loads(pickle.dumps(model))
    assert torch.equal(output(again), expected)


def test_a_packed_model_may_change_its_type_but_not_leave_the_cpu() -> None:
    model = pack(make("BertModel"))
    expected = output(model)
    for dtype in HALF:
        assert relative(output(copy.deepcopy(model).to(dtype)), expected) < 5e-2
    assert torch.equal(output(model.cpu().float()), expected)
    with pytest.raises(InputError, match="cannot be moved to 'meta'.*packed=False"):
        copy.deepcopy(model).to("meta")
    with pytest.raises(InputError, match=r"torch\.float64.*packed=False"):
        copy.deepcopy(model).double()


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(InputError, match="training mode"):
        pack(make("BertModel").train())
    with pytest.raises(InputError, match=r"torch\.float64"):
        pack(make("BertModel").double())
    with pytest.raises(InputError, match="'meta'"):
        pack(make("BertModel").to("meta"))
    assert not can_pack(torch.float64)


def pictured(act: str = "relu") -> Any:
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 1], "hidden_act": act, "layer_type": "basic"}
    model = transept.ResNetModel(transept.ResNetConfig(**sizes))
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 1).sub_(0.7 if name.endswith("mean") else 0.0)
    return model.eval()


@pytest.mark.parametrize("act", ["relu", "gelu", "tanh", "gelu_fast"])
def test_convolutions_with_folded_norms_compute_the_same(act: str) -> None:
    plain = pictured(act)
    packed, x = pack(copy.deepcopy(plain)), torch.randn(2, 3, 40, 33)
    assert sum(isinstance(module, FoldedConv) for module in packed.modules()) == 8
    with torch.inference_mode():
        ours, expected = packed(x, output_hidden_states=True), plain(x, output_hidden_states=True)
        assert relative(ours.last_hidden_state, by_parts(plain, x)) < 1e-5
        assert all(relative(*pair) < 1e-5 for pair in zip(ours.hidden_states, expected.hidden_states, strict=True))


def by_parts(model: Any, x: Tensor) -> Tensor:
    """The last states of a ResNet, computed with its convolutions and norms one by one."""

    def step(layer: Any, x: Tensor, act: Any) -> Tensor:
        return act(layer.norm(layer.conv(x)))

    x = model.stem_pool(step(model.stem, x, model.stem.act))
    for block in (block for stage in model.layers for block in stage.blocks):
        first, second = block.convs
        rest = x if isinstance(block.shortcut, nn.Identity) else step(block.shortcut, x, nn.Identity())
        x = second.act(step(second, step(first, x, first.act), nn.Identity()) + rest)
    return x


def test_folded_convolutions_are_saved_copied_and_follow_their_parts() -> None:
    plain, x = pictured(), torch.randn(1, 3, 32, 32)
    packed = pack(copy.deepcopy(plain))
    assert packed.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in packed.state_dict().items())
    with torch.no_grad():
        before = packed(x)[0]
        assert torch.equal(pickle.loads(pickle.dumps(packed))(x)[0], before)
        for model in (plain, packed):
            model.stem.norm.weight.mul_(2)
            model.layers[0].blocks[0].convs[0].conv.weight.add_(0.1)
        assert relative(before, plain(x)[0]) > 1e-3
        assert relative(packed(x)[0], plain(x)[0]) < 1e-5
    for model in (plain, packed):  # gradients go through the parts
        model(x)[0].sum().backward()
    assert relative(packed.stem.norm.weight.grad, plain.stem.norm.weight.grad) < 1e-5


def test_watched_and_replaced_parts_of_convolutions_are_used() -> None:
    model, seen = pictured(), []
    model.stem.norm.register_forward_hook(lambda module, given, made: seen.append(made.shape))
    pack(model)(torch.randn(1, 3, 32, 32))
    assert seen == [(1, 8, 16, 16)]
