"""What DeiT adds to the derived suite: two tokens before the patches, two heads, and feature maps of plain encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transept.core.auto import AutoBackbone, AutoModelForImageClassification
from transept.kinds.feature_maps import FeatureMaps
from transept.models.deit import (
    DeiTBackbone,
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    DeiTForMaskedImageModeling,
    DeiTModel,
)
from transept.models.vit import ViTBackbone, ViTConfig, ViTForImageClassification, ViTModel

from .families import FAMILIES
from .harness import SINGLE, compare, pair, stored

FAMILY = next(family for family in FAMILIES if family.model_type == "deit")
TINY = FAMILY.tiny


def pixels(*size: int, rows: int = 2) -> Tensor:
    return torch.randn(rows, 3, *size, generator=torch.Generator().manual_seed(5))


def run(model: Any, *args: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **inputs)


@pytest.mark.reference
@pytest.mark.parametrize("size", [(16, 16), (32, 32), (24, 12), (18, 35)])
def test_positions_are_interpolated_for_other_sizes(size: tuple[int, int]) -> None:
    ours, theirs = pair(FAMILY, DeiTModel)
    given = {"pixel_values": pixels(*size), "interpolate_pos_encoding": True}
    compare(run(ours, **given), run(theirs, **given), SINGLE)


@pytest.mark.reference
def test_mask_token_and_attention_mask() -> None:
    ours, theirs = pair(FAMILY, DeiTForMaskedImageModeling, attention="eager")
    hidden = torch.rand(2, 16, generator=torch.Generator().manual_seed(0)) < 0.4
    attend = torch.ones(2, 18, dtype=torch.long)
    attend[0, 3:6] = 0
    given = {"pixel_values": pixels(16, 16), "bool_masked_pos": hidden, "attention_mask": attend}
    compare(run(ours, **given), run(theirs, **given), SINGLE)
    wide = run(ours, pixels(8, 24), torch.ones(2, 12), interpolate_pos_encoding=True)  # which the reference cannot
    assert wide.reconstruction.shape == (2, 3, 8, 24)


@pytest.mark.reference
@pytest.mark.parametrize("classes", [0, 5])
def test_the_mean_of_two_heads(classes: int) -> None:
    ours, theirs = pair(FAMILY, DeiTForImageClassificationWithTeacher, num_labels=classes)
    out = run(ours, pixels(16, 16), output_hidden_states=True)
    compare(out, run(theirs, pixels(16, 16), output_hidden_states=True), SINGLE)
    assert list(out.keys()) == ["logits", "cls_logits", "distillation_logits", "hidden_states"]
    assert torch.equal(out.logits, (out.cls_logits + out.distillation_logits) / 2)
    assert isinstance(run(ours, pixels(16, 16), return_dict=False), tuple)


def test_a_checkpoint_of_two_heads_is_loaded_with_both(tmp_path: Path) -> None:
    config = DeiTConfig(**TINY)
    assert isinstance(AutoModelForImageClassification.from_config(config), DeiTForImageClassification)
    model = DeiTForImageClassificationWithTeacher(config)
    model.save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert isinstance(again, DeiTForImageClassificationWithTeacher)
    assert torch.equal(again.distillation_head.weight, model.distillation_head.weight)
    assert type(again).__name__.endswith(AutoModelForImageClassification.tasks)  # by which pipelines take it
    assert again.card_data()["pipeline_tag"] == "image-classification"
    assert {"cls_classifier.weight", "distillation_classifier.bias"} <= stored(str(tmp_path)).keys()


@pytest.mark.reference
def test_starts_as_the_reference_does() -> None:
    import transformers

    large = TINY | {"hidden_size": 64, "image_size": 64, "initializer_range": 0.02}
    ours = DeiTForMaskedImageModeling(DeiTConfig(**large))
    theirs = transformers.DeiTForMaskedImageModeling(transformers.DeiTConfig(**large)).state_dict()
    names, keys = ours.checkpoint_names().canonical(theirs), ours.checkpoint_names().keys
    for name, mine in ours.state_dict().items():
        other = theirs[names[keys.recipe(name).stored]]
        assert float(mine.std()) == pytest.approx(float(other.std()), rel=0.2, abs=1e-6), name


@pytest.mark.parametrize(
    ("config", "backbone", "plain"),
    [(ViTConfig(**TINY), ViTBackbone, ViTModel), (DeiTConfig(**TINY), DeiTBackbone, DeiTModel)],
)
def test_maps_are_the_states_of_patches(config: Any, backbone: Any, plain: Any, tmp_path: Path) -> None:
    model = plain(config).eval()
    torch.nn.init.normal_(model.embeddings.position_embeddings)
    model.save_pretrained(tmp_path)
    maps = AutoBackbone.from_pretrained(tmp_path, out_indices=[0, 1, 2])
    assert type(maps) is backbone
    assert isinstance(maps, FeatureMaps)
    assert maps.channels == [32, 32, 32]
    given = {"pixel_values": pixels(16, 24), "interpolate_pos_encoding": True, "output_hidden_states": True}
    states, found = run(model, **given).hidden_states, run(maps, **given)
    for state, each in zip(states, found.feature_maps, strict=True):
        assert torch.equal(each, state[:, model.prefix_tokens :].transpose(1, 2).reshape(2, 32, 4, 6))
    assert len(found.hidden_states) == 3
    maps.save_pretrained(tmp_path / "maps")
    again = AutoBackbone.from_pretrained(tmp_path / "maps")
    assert again.out_features == ["stem", "stage1", "stage2"]
    assert torch.equal(run(again, **given).feature_maps[1], found.feature_maps[1])


def test_maps_of_a_classifier_and_their_gradients(tmp_path: Path) -> None:
    ViTForImageClassification(ViTConfig(**TINY)).save_pretrained(tmp_path)
    maps = AutoBackbone.from_pretrained(tmp_path)
    maps.train()(pixels(16, 16)).feature_maps[0].square().sum().backward()
    assert all(parameter.grad is not None for parameter in maps.parameters())
