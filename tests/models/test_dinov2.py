"""What DINOv2 and its variant with registers do that no other family does: images of any size, masked patches, states as maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from transept.core.auto import AutoBackbone, AutoModelForImageClassification
from transept.errors import ConfigError, InputError
from transept.models.dinov2 import Dinov2Backbone, Dinov2Config, Dinov2ForImageClassification, Dinov2Model
from transept.models.dinov2_with_registers import (
    Dinov2WithRegistersBackbone,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
)

from .families.settings import DINO
from .harness import check_config_file, compare

pytestmark = pytest.mark.reference

BOTH = [pytest.param("Dinov2", id="plain"), pytest.param("Dinov2WithRegisters", id="registers")]
SIZES = [(16, 16), (24, 24), (12, 28), (28, 12), (18, 35), (4, 64), (8, 8)]


def pair(name: str, kind: str, **more: Any) -> tuple[Any, Any]:
    """Ours and theirs with equal weights."""
    torch.manual_seed(0)
    settings = DINO | more
    theirs = getattr(transformers, name + kind)(getattr(transformers, f"{name}Config")(**settings)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    kinds = {cls.__name__: cls for cls in (Dinov2Model, Dinov2Backbone, Dinov2WithRegistersModel, Dinov2WithRegistersBackbone)}
    ours = kinds[name + kind](kinds[name + kind].config_class(**settings)).eval()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def images(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", BOTH)
def test_images_of_any_size(name: str, size: tuple[int, int]) -> None:
    for kind in ("Model", "Backbone"):
        ours, theirs = pair(name, kind)
        with torch.no_grad():
            compare(ours(images(*size)), theirs(images(*size)), 1e-5)


@pytest.mark.parametrize("name", BOTH)
def test_positions_are_resized_in_float32(name: str) -> None:
    ours, theirs = (model.bfloat16() for model in pair(name, "Model"))
    found, expected = (
        ours.embeddings.positions((3, 7)),
        theirs.embeddings.interpolate_pos_encoding(torch.zeros(1, 22, 32), 12, 28),
    )
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", BOTH)
def test_backbones_read_what_tasks_store(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Dinov2Config if name == "Dinov2" else Dinov2WithRegistersConfig
    task = AutoModelForImageClassification.from_config(config(**DINO)).eval()  # type: ignore[arg-type]
    task.save_pretrained(tmp_path)
    maps = AutoBackbone.from_pretrained(tmp_path)(images(16, 16)).feature_maps
    expected = task(images(16, 16), output_hidden_states=True).hidden_states[0][:, task.backbone.prefix_tokens :]
    torch.testing.assert_close(maps[0].flatten(2).transpose(1, 2), task.backbone.norm(expected))


@pytest.mark.parametrize("name", BOTH)
def test_gradients_reach_resized_positions(name: str) -> None:
    ours, theirs = pair(name, "Model")
    for model in (ours, theirs):
        model(images(12, 28)).last_hidden_state.square().sum().backward()
    torch.testing.assert_close(
        ours.embeddings.position_embeddings.grad, theirs.embeddings.position_embeddings.grad, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", BOTH)
def test_positions_of_a_rectangular_model(name: str) -> None:
    torch.manual_seed(0)
    kind, config = (Dinov2Model, Dinov2Config) if name == "Dinov2" else (Dinov2WithRegistersModel, Dinov2WithRegistersConfig)
    model = kind(config(**DINO | {"image_size": [8, 24]}))  # type: ignore[arg-type]
    positions, whole = model.embeddings.positions, model.embeddings.position_embeddings
    assert whole.shape == (1, 13, 32)
    assert torch.equal(positions((2, 6)), whole)
    found = positions((4, 6))[:, 1:].view(4, 6, 32)
    # Half of the rows are resized as each column alone would be.
    table = whole[:, 1:].view(1, 2, 6, 32).permute(0, 3, 1, 2)
    columns = [
        torch.nn.functional.interpolate(table[..., i : i + 1], size=(4, 1), mode="bicubic", antialias=name != "Dinov2")
        for i in range(6)
    ]
    torch.testing.assert_close(found.permute(2, 0, 1)[None], torch.cat(columns, dim=3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BOTH)
def test_masked_patches(name: str) -> None:
    ours, theirs = pair(name, "Model")
    masked = torch.rand(2, 16, generator=torch.Generator().manual_seed(2)) < 0.4
    with torch.no_grad():
        found, plain = ours(images(16, 16), masked), ours(images(16, 16))
        compare(found, theirs(images(16, 16), masked), 1e-5)
    assert not torch.allclose(found.pooler_output, plain.pooler_output)
    with pytest.raises(InputError, match="shape"):
        ours(images(16, 16), masked[:, :5])


def test_a_model_without_a_mask_token() -> None:
    ours, _ = pair("Dinov2", "Model", use_mask_token=False)
    with pytest.raises(InputError, match="no embedding for masked patches"):
        ours(images(16, 16), torch.ones(2, 16, dtype=torch.bool))


@pytest.mark.parametrize("name", BOTH)
def test_hidden_positions(name: str) -> None:
    ours, theirs = pair(name, "Model")
    mask = torch.ones(2, 17 + (4 if "Registers" in name else 0), dtype=torch.long)
    mask[1, -6:] = 0
    with torch.no_grad():
        compare(ours(images(16, 16), attention_mask=mask), theirs(images(16, 16), attention_mask=mask), 1e-5)


def test_a_gated_layer_is_two_thirds_as_large() -> None:
    model = Dinov2Model(Dinov2Config(**DINO | {"use_swiglu_ffn": True}))  # type: ignore[arg-type]
    assert model.layers[0].mlp.up_proj.weight.shape == (48, 32)  # two thirds of 64, and what lacks to a multiple of eight


def test_registers_are_not_in_maps_but_in_states() -> None:
    ours, _ = pair("Dinov2WithRegisters", "Backbone", num_register_tokens=3)
    assert [tuple(each.shape) for each in ours(images(12, 20)).feature_maps] == [(2, 32, 3, 5)] * 2
    assert ours.channels == [32, 32]
    states, _ = pair("Dinov2WithRegisters", "Backbone", num_register_tokens=3, reshape_hidden_states=False)
    assert [tuple(each.shape) for each in states(images(12, 20)).feature_maps] == [(2, 19, 32)] * 2


def test_whole_rows_are_left_out_in_training() -> None:
    torch.manual_seed(0)
    model = Dinov2Model(Dinov2Config(**DINO | {"drop_path_rate": 1 - 1e-7, "num_hidden_layers": 1})).train()
    states = model(images(16, 16), output_hidden_states=True).hidden_states
    assert torch.equal(states[0], states[1])


def test_it_trains() -> None:
    torch.manual_seed(0)
    settings = DINO | {"initializer_range": 0.02, "layerscale_value": 1.0, "num_labels": 2}
    model = Dinov2ForImageClassification(Dinov2Config(**settings)).train()
    pixels, labels = torch.randn(32, 3, 16, 16) * 0.3, torch.arange(32) % 2
    pixels[labels == 1, 0, :8] += 0.5
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(30):
        loss = model(pixel_values=pixels, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 < losses[0]


def test_configs() -> None:
    check_config_file(Dinov2Config, {"model_type": "dinov2", "mlp_ratio": 3, "out_features": ["stage2", "stage7"]})
    check_config_file(Dinov2WithRegistersConfig, {"model_type": "dinov2_with_registers", "num_register_tokens": 2})
    for wrong in (
        {"patch_size": 0},
        {"patch_size": 300},
        {"image_size": [224]},
        {"out_features": ["stage13"]},
        {"num_hidden_layers": 2**30},
    ):
        with pytest.raises(ConfigError):
            Dinov2Config(**wrong)  # type: ignore[arg-type]
    assert isinstance(AutoBackbone.from_config(Dinov2Config(**DINO)), Dinov2Backbone)
    assert isinstance(AutoModelForImageClassification.from_config(Dinov2Config(**DINO)), Dinov2ForImageClassification)
