"""Classes of parts under the reference's names: built from a config, derived from, and matched."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers as reference
from torch import Tensor, nn

import transept
from transept.errors import UnsupportedError

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = SIZES | {"vocab_size": 40, "max_position_embeddings": 32}
DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "vocab_size": 40, "max_position_embeddings": 32}
VIT = SIZES | {"image_size": 8, "patch_size": 4}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 40}
IDS, PIXELS = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 1]]), torch.linspace(-3, 3, 384).view(2, 3, 8, 8).sin()
STATES = torch.linspace(-2, 2, 128).view(2, 4, 16).sin()
WIDE = torch.linspace(-2, 2, 192).view(2, 4, 24).sin()

PARTS = [
    *[("bert", "Bert", name, TEXT, (STATES,)) for name in ("SelfAttention", "Attention", "Intermediate", "Layer", "Encoder")],
    *[("bert", "Bert", name, TEXT, (WIDE, STATES)) for name in ("Output",)],
    *[("bert", "Bert", name, TEXT, (STATES, STATES)) for name in ("SelfOutput",)],
    *[("bert", "Bert", name, TEXT, (STATES,)) for name in ("LMPredictionHead", "OnlyMLMHead", "PredictionHeadTransform")],
    *[("bert", "Bert", name, TEXT, (STATES[:, 0],)) for name in ("OnlyNSPHead",)],
    ("bert", "Bert", "Pooler", TEXT, (STATES,)),
    ("bert", "Bert", "PreTrainingHeads", TEXT, (STATES, STATES[:, 0])),
    *[("roberta", "Roberta", name, TEXT, (STATES,)) for name in ("ClassificationHead", "LMHead", "Encoder", "Pooler")],
    ("roberta", "Roberta", "Embeddings", TEXT, (IDS,)),
    *[("electra", "Electra", name, TEXT, (STATES,)) for name in ("DiscriminatorPredictions", "ClassificationHead")],
    *[("mpnet", "MPNet", name, TEXT, (STATES,)) for name in ("Intermediate", "LMHead", "Encoder")],
    *[("distilbert", "", name, DISTIL, (STATES,)) for name in ("Transformer", "TransformerBlock", "FFN")],
    *[("vit", "ViT", name, VIT, (PIXELS,)) for name in ("Embeddings", "PatchEmbeddings")],
    *[("vit", "ViT", name, VIT, (STATES,)) for name in ("Layer", "Attention", "MLP", "Pooler")],
    *[("t5", "T5", name, T5, (STATES,)) for name in ("LayerFF", "LayerSelfAttention", "Attention", "DenseActDense")],
    ("llama", "Llama", "MLP", TEXT, (STATES,)),
]


def fill(module: nn.Module) -> Iterator[str]:
    """Fill the parameters by their names, which are given."""
    for name, parameter in module.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        yield name


def made(lib: Any, family: str, name: str, settings: dict[str, Any]) -> Any:
    file = importlib.import_module(f"{lib.__name__}.models.{family}.modeling_{family}")
    config = importlib.import_module(f"{lib.__name__}.models.{family}.configuration_{family}")
    kinds = {"t5": "T5", "bert": "Bert", "roberta": "Roberta", "electra": "Electra", "mpnet": "MPNet", "vit": "ViT"}
    kinds |= {"distilbert": "DistilBert", "llama": "Llama"}
    return getattr(file, name)(getattr(config, f"{kinds[family]}Config")(**settings)).eval()


def first(value: Any) -> Tensor:
    while not isinstance(value, Tensor):
        value = value[0]
    return value


@pytest.mark.reference
@pytest.mark.parametrize(("family", "prefix", "name", "settings", "inputs"), PARTS)
def test_parts_of_a_config_are_the_references(
    family: str, prefix: str, name: str, settings: dict[str, Any], inputs: tuple[Tensor, ...]
) -> None:
    ours, theirs = (made(lib, family, prefix + name, settings) for lib in (transept, reference))
    assert [*fill(ours)] == [*fill(theirs)]
    with torch.no_grad():
        torch.testing.assert_close(first(ours(*inputs)), first(theirs(*inputs)), rtol=1e-4, atol=1e-5)


def derived(lib: Any) -> Any:
    file = importlib.import_module(f"{lib.__name__}.models.bert.modeling_bert")

    class Narrow(file.BertIntermediate):  # type: ignore[misc, name-defined]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.dense = nn.Linear(16, 8)

    class Output(file.BertOutput):  # type: ignore[misc, name-defined]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.dense = nn.Linear(8, 16)

        def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
            return 2 * super().forward(hidden_states, input_tensor)  # type: ignore[no-any-return]

    class Layer(file.BertLayer):  # type: ignore[misc, name-defined]
        def __init__(self, config: Any, layer_idx: int | None = None) -> None:
            super().__init__(config, layer_idx)
            self.intermediate, self.output = Narrow(config), Output(config)

        def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            return hidden_states + super().forward(hidden_states, *args, **kwargs)

    config = lib.BertConfig(**TEXT)
    model = lib.BertModel(config)
    model.encoder.layer = nn.ModuleList(Layer(config, index) for index in range(2))
    return model.eval()


@pytest.mark.reference
def test_derived_parts_compute_in_a_model_as_in_the_reference() -> None:
    ours, theirs = derived(transept), derived(reference)
    assert [*fill(ours)] == [*fill(theirs)]
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    torch.testing.assert_close(ours(IDS, mask)[0], theirs(IDS, mask)[0], rtol=1e-4, atol=1e-5)
    ours(IDS).last_hidden_state.sum().backward()
    assert all(parameter.grad is not None for name, parameter in ours.named_parameters() if "pooler" not in name)


def test_instances_are_all_that_compute_such_a_part() -> None:
    from transept.models.bert.modeling_bert import BertIntermediate, BertSelfOutput  # type: ignore[import-not-found]

    layer = transept.BertModel(transept.BertConfig(**TEXT)).encoder.layer[0]
    assert isinstance(layer.intermediate, BertIntermediate)
    assert not isinstance(layer.intermediate, BertSelfOutput)
    assert type(BertIntermediate(transept.BertConfig(**TEXT))) is type(layer.intermediate)


def test_what_a_config_does_not_lead_to_is_said() -> None:
    from transept.models.bert.modeling_bert import BertIntermediate

    with pytest.raises(UnsupportedError, match="has no part 'Intermediate'"):
        BertIntermediate(transept.LlamaConfig(**TEXT))
    with torch.device("meta"):
        assert next(BertIntermediate(transept.BertConfig(**TEXT)).parameters()).is_meta


def test_what_all_families_share_is_not_replaced_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    from transept.models.llama import modeling_llama  # type: ignore[attr-defined]

    with pytest.raises(UnsupportedError, match="`forward` cannot be replaced for all of them"):
        modeling_llama.LlamaAttention.forward = lambda *args: None
    for name in ("LlamaRMSNorm", "LlamaAttention", "apply_rotary_pos_emb"):
        with pytest.raises(UnsupportedError, match=f"do not look for '{name}' in transept.models.llama.modeling_llama"):
            setattr(modeling_llama, name, nn.Identity)
    monkeypatch.setattr(modeling_llama, "of_my_own", 3, raising=False)
    assert modeling_llama.of_my_own == 3
