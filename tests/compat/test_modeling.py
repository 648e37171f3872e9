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
