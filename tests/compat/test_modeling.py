"""What code does with the parts of a model: modules that are called or watched by themselves, layers of one's own."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import transept

IDS = torch.tensor([[5, 6, 7, 2, 8], [9, 4, 3, 2, 2]])
SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
OF_DISTILBERT = {"vocab_size": 40, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
# A family -> its embeddings' class in the reference's file, settings.
EMBEDDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("BertEmbeddings", SMALL),
    "Roberta": ("RobertaEmbeddings", SMALL | {"pad_token_id": 1}),
    "Electra": ("ElectraEmbeddings", SMALL | {"embedding_size": 8}),
    "DistilBert": ("Embeddings", OF_DISTILBERT),
    "MPNet": ("MPNetEmbeddings", SMALL),
    "ModernBert": ("ModernBertEmbeddings", SMALL | {"pad_token_id": 0, "global_attn_every_n_layers": 2}),
}


@pytest.mark.reference
@pytest.mark.parametrize("family", EMBEDDINGS)
def test_embeddings_of_texts_are_called_and_watched_as_in_the_reference(family: str) -> None:
    name, settings = EMBEDDINGS[family]
    theirs = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**settings)).eval()
    ours = getattr(transept, f"{family}Model")(getattr(transept, f"{family}Config")(**settings)).eval()
    ours.load_state_dict(theirs.state_dict())
    expected = theirs.embeddings(input_ids=IDS)
    torch.testing.assert_close(ours.embeddings(input_ids=IDS), expected, rtol=0, atol=1e-6)  # rounding of float32
    seen: list[Tensor] = []
    handle = ours.embeddings.register_forward_hook(lambda module, inputs, output: seen.append(output))
    ours(input_ids=IDS, attention_mask=torch.ones_like(IDS))
    handle.remove()
    torch.testing.assert_close(seen[0], expected, rtol=0, atol=1e-6)
    path = f"transept.models.{family.lower()}.modeling_{family.lower()}"
    kind = getattr(importlib.import_module(path), name)
    made = kind(ours.config)
    assert type(ours.embeddings) is kind
    made.load_state_dict(ours.embeddings.state_dict())
    ours.embeddings = made.eval()
    assert ours.get_submodule("embeddings") is made
    assert ours.get_input_embeddings() is next(part for part in made.children() if isinstance(part, nn.Embedding))
    handle = made.register_forward_hook(lambda module, inputs, output: output * 0)
    changed = ours(input_ids=IDS).last_hidden_state
    handle.remove()
    assert not torch.allclose(changed, ours(input_ids=IDS).last_hidden_state)


def test_feature_encoders_of_sound_are_frozen_by_the_references_name() -> None:
    sizes = {"conv_dim": [8, 8], "conv_stride": [2, 2], "conv_kernel": [3, 3], "num_conv_pos_embeddings": 4}
    model = transept.Wav2Vec2ForCTC(transept.Wav2Vec2Config(**SMALL, **sizes, num_conv_pos_embedding_groups=2))
    model.wav2vec2.feature_extractor._freeze_parameters()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith("wav2vec2.feature_extractor.")}
    assert frozen


def test_a_layer_of_ones_own_is_computed_again_in_the_backward_pass() -> None:
    from transept.modeling_layers import GradientCheckpointingLayer

    calls = []

    class Layer(GradientCheckpointingLayer):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
            calls.append(scale)
            return torch.tanh(self.linear(x)) * scale

    layer, x = Layer(), torch.ones(2, 3)
    layer(x, scale=2.0).sum().backward()
    expected, calls[:] = layer.linear.weight.grad.clone(), []
    layer.zero_grad()
    layer.gradient_checkpointing = True
    layer(x, scale=2.0).sum().backward()
    assert calls == [2.0, 2.0]
    assert torch.equal(layer.linear.weight.grad, expected)
    layer.eval()(x)
    assert calls == [2.0, 2.0, 1.0]
    model = transept.BertModel(transept.BertConfig(**SMALL))
    assert [name for name, part in model.named_modules() if isinstance(part, GradientCheckpointingLayer)] == [
        f"encoder.layer.{index}" for index in range(model.config.num_hidden_layers)
    ]
    assert not isinstance(model.encoder.layer[0], Layer)
    assert isinstance(layer, Layer)


STATES = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
ADDED = torch.zeros(2, 1, 1, 5).index_fill(3, torch.tensor([4]), -1e9)  # nobody sees the last position
OF_GPT2 = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2}
OF_VIT = {name: size for name, size in SMALL.items() if name != "vocab_size"} | {"image_size": 16, "patch_size": 8}


def both(family: str, settings: dict[str, Any]) -> list[Any]:
    """The reference's model and ours, with one state."""
    theirs = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**settings)).eval()
    ours = getattr(transept, f"{family}Model")(getattr(transept, f"{family}Config")(**settings)).eval()
    ours.load_state_dict(theirs.state_dict())
    return [ours, theirs]


def turned(model: Any) -> Any:
    return model.rotary_emb(STATES, torch.arange(5)[None])


# A family, its settings, and how code calls one of its parts by itself.
CALLS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "layer": ("Bert", SMALL, lambda m: m.encoder.layer[0](STATES)),
    "layer with a mask": ("Bert", SMALL, lambda m: m.encoder.layer[0](STATES, ADDED)),
    "layer with a mask by name": ("Bert", SMALL, lambda m: m.encoder.layer[0](STATES, attention_mask=ADDED)),
    "layer of DistilBERT": ("DistilBert", OF_DISTILBERT, lambda m: m.transformer.layer[0](STATES)),
    "causal layer": ("GPT2", OF_GPT2, lambda m: m.h[1](STATES)),
    "causal attention": ("GPT2", OF_GPT2, lambda m: m.h[1].attn(STATES)[0]),
    "feed-forward layer": ("GPT2", OF_GPT2, lambda m: m.h[1].mlp(STATES)),
    "layer over patches": ("ViT", OF_VIT, lambda m: m.layers[0](STATES)),
    "rotary tables": ("Llama", SMALL, lambda m: torch.cat(turned(m))),
    "turned layer": ("Llama", SMALL, lambda m: m.layers[0](STATES, position_embeddings=turned(m))),
    "turned attention": (
        *("Llama", SMALL),
        lambda m: m.layers[0].self_attn(STATES, position_embeddings=turned(m), attention_mask=None)[0],
    ),
}


@pytest.mark.reference
@pytest.mark.parametrize("name", CALLS)
@torch.no_grad()
def test_parts_are_called_by_themselves_as_in_the_reference(name: str) -> None:
    family, settings, call = CALLS[name]
    ours, theirs = (call(model) for model in both(family, settings))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # the reference's kernel is another one


@torch.no_grad()
def test_what_a_layer_alone_cannot_do_is_refused() -> None:
    llama = transept.LlamaModel(transept.LlamaConfig(**SMALL)).eval()
    with pytest.raises(transept.errors.InputError, match="needs `position_embeddings`"):
        llama.layers[0](STATES)
    with pytest.raises(transept.errors.UnsupportedError, match="takes no `past_key_values`"):
        llama.layers[0](STATES, position_embeddings=turned(llama), past_key_values=transept.DynamicCache())
    t5 = transept.T5EncoderModel(transept.T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, vocab_size=40))
    with pytest.raises(transept.errors.UnsupportedError, match="T5Block needs what its model prepares"):
        t5.encoder.block[0](STATES)


def test_rotary_embeddings_are_made_of_a_config() -> None:
    from transept.models.llama.modeling_llama import LlamaRotaryEmbedding

    model = transept.LlamaModel(transept.LlamaConfig(**SMALL))
    made = LlamaRotaryEmbedding(config=model.config)
    positions = torch.arange(5)[None]
    assert all(torch.equal(one, other) for one, other in zip(made(STATES, positions), turned(model), strict=True))
    assert made.inv_freq.shape == (4,)
