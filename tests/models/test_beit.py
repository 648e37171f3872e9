"""What BEiT adds to the derived suite: biases over grids, masked patches and their visual tokens, and heads for pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from transept.adapt.pack import pack
from transept.core.auto import AutoBackbone
from transept.errors import ConfigError, InputError
from transept.layers.conv import StochasticDepth
from transept.models.beit import (
    BeitBackbone,
    BeitConfig,
    BeitForImageClassification,
    BeitForMaskedImageModeling,
    BeitForSemanticSegmentation,
    BeitModel,
)

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, check_same, compare, error, gradients, labels, pair, stored, whole_loss

FAMILY = next(family for family in FAMILIES if family.model_type == "beit")
TINY = FAMILY.tiny
ALL = {"use_absolute_position_embeddings": True, "use_shared_relative_position_bias": True}
# config.json of the published model for the 150 classes of ADE20K, these cut to two.
ADE = {
    "architectures": ["BeitForSemanticSegmentation"],
    "attention_probs_dropout_prob": 0.0,
    "auxiliary_channels": 256,
    "auxiliary_concat_input": False,
    "auxiliary_loss_weight": 0.4,
    "auxiliary_num_convs": 1,
    "drop_path_rate": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 768,
    "id2label": {"0": "wall", "1": "building"},
    "image_size": 640,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "label2id": {"building": 1, "wall": 0},
    "layer_norm_eps": 1e-12,
    "layer_scale_init_value": 0.1,
    "model_type": "beit",
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "out_indices": [3, 5, 7, 11],
    "patch_size": 16,
    "pool_scales": [1, 2, 3, 6],
    "semantic_loss_ignore_index": 255,
    "transformers_version": "4.11.0.dev0",
    "use_absolute_position_embeddings": False,
    "use_auxiliary_head": True,
    "use_mask_token": False,
    "use_mean_pooling": True,
    "use_relative_position_bias": True,
    "use_shared_relative_position_bias": False,
    "vocab_size": 8192,
}


def pixels(*size: int, rows: int = 2) -> Tensor:
    return torch.randn(rows, 3, *size, generator=torch.Generator().manual_seed(5))


def run(model: Any, *args: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **inputs)


@pytest.mark.reference
def test_reads_published_config_files() -> None:
    check_config_file(BeitConfig, ADE)
    old = {name: value for name, value in ADE.items() if name != "out_indices"} | {"segmentation_indices": [3, 5, 7, 11]}
    assert BeitConfig.from_dict(old).out_features == ["stage3", "stage5", "stage7", "stage11"]


@pytest.mark.reference
@pytest.mark.parametrize("size", [(16, 16), (18, 17), (32, 32), (8, 8), (24, 12)])
def test_positions_and_biases_are_resized_for_other_grids(size: tuple[int, int]) -> None:
    ours, theirs = pair(FAMILY, BeitModel, **ALL)
    compare(run(ours, pixels(*size)), run(theirs, pixels(*size)), SINGLE)
    given = {"pixel_values": pixels(*size), "interpolate_pos_encoding": True}
    compare(run(ours, **given), run(theirs, **given), SINGLE)


@pytest.mark.reference
def test_pixels_of_pictures_that_are_not_square() -> None:
    ours, theirs = pair(FAMILY, BeitForSemanticSegmentation)
    wanted = torch.randint(0, 3, (2, 24, 32), generator=torch.Generator().manual_seed(1))
    compare(run(ours, pixels(24, 32), wanted), run(theirs, pixels(24, 32), wanted), SINGLE)


def test_biases_by_definition_on_grids_that_are_not_square() -> None:
    model = BeitModel(BeitConfig(**TINY | {"image_size": [12, 20]})).eval()
    layer = model.layers[0].self_attn.position_bias
    nn.init.normal_(layer.table)
    _, ctx = model.begin(pixels(12, 20))
    bias = layer(ctx)[0].permute(1, 2, 0)
    for query in range(15):
        for key in range(15):
            down, right = query // 5 - key // 5 + 2, query % 5 - key % 5 + 4
            assert torch.equal(bias[1 + query, 1 + key], layer.table[down * 9 + right])
    assert (bias[0, 1:] == layer.table[-3]).all()
    assert (bias[1:, 0] == layer.table[-2]).all()
    assert (bias[0, 0] == layer.table[-1]).all()
    # A table that grows with the distance of columns alone keeps doing so on a wider grid, and says nothing of rows.
    with torch.no_grad():
        layer.table[:-3] = torch.arange(-4.0, 5.0).repeat(5)[:, None]
    wide = layer(model.begin(pixels(20, 40))[1])[0, 0, 1:, 1:].view(5, 10, 5, 10)
    torch.testing.assert_close(wide, wide[:1, :, :1].expand_as(wide))
    assert (wide[0, :, 0].diff(dim=0) >= 0).all()
    assert wide[0, 9, 0, 0].item() == pytest.approx(4.0)


@pytest.mark.reference
def test_masked_patches_and_attention_masks() -> None:
    ours, theirs = pair(FAMILY, BeitModel, attention="eager", use_shared_relative_position_bias=True)
    hidden = torch.rand(2, 16, generator=torch.Generator().manual_seed(0)) < 0.4
    attend = torch.ones(2, 17, dtype=torch.long)
    attend[0, 3:6] = 0
    given = {"pixel_values": pixels(16, 16), "bool_masked_pos": hidden, "attention_mask": attend}
    see = {"output_hidden_states": True, "output_attentions": True}
    compare(run(ours, **given, **see), run(theirs, **given, **see), SINGLE)


def masked() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(3, 16, generator=generator) < torch.tensor([[0.4], [0.1], [0.7]])
    return {
        "pixel_values": pixels(16, 16, rows=3),
        "bool_masked_pos": hidden,
        "labels": torch.randint(0, 20, (int(hidden.sum()),), generator=generator),
    }


@pytest.mark.reference
def test_visual_tokens_of_several_masked_patches() -> None:
    ours, theirs = pair(FAMILY, BeitForMaskedImageModeling)
    given = masked()
    compare(run(ours, **given), run(theirs, **given), SINGLE)
    given["labels"][2] = -100
    compare(run(ours, **given), run(theirs, **given), SINGLE)


def test_masked_patches_are_what_is_counted() -> None:
    model = BeitForMaskedImageModeling(BeitConfig(**TINY)).double().eval()
    given = masked() | {"pixel_values": pixels(16, 16, rows=3).double()}
    whole, start, parts = run(model, **given), 0, []
    count = whole.loss_terms["masked_patches"].count
    assert count == given["bool_masked_pos"].sum()
    for row in range(3):
        part = {name: value[row : row + 1] for name, value in given.items() if name != "labels"}
        stop = start + int(part["bool_masked_pos"].sum())
        part, start = part | {"labels": given["labels"][start:stop]}, stop
        parts.append(run(model, **part, num_items_in_batch=count).loss)
    assert float(sum(parts)) == pytest.approx(float(whole.loss), rel=1e-12)
    none = {"bool_masked_pos": torch.zeros(3, 16, dtype=torch.bool), "labels": torch.zeros(0, dtype=torch.long)}
    assert run(model, **given | none).loss.isnan()


def test_labels_that_are_not_those_of_masked_patches() -> None:
    model = BeitForMaskedImageModeling(BeitConfig(**TINY))
    given = masked()
    with pytest.raises(InputError, match=r"`labels` has the shape \(3,\), but `bool_masked_pos` is true for"):
        model(**given | {"labels": torch.zeros(3, dtype=torch.long)})
    with pytest.raises(InputError, match="there is no `bool_masked_pos`"):
        model(given["pixel_values"], labels=given["labels"])
    with pytest.raises(InputError, match="no embedding for masked patches.*`use_mask_token`"):
        BeitForMaskedImageModeling(BeitConfig(**TINY | {"use_mask_token": False}))(**given)


def filled(model: Any) -> Any:
    for index, tensor in enumerate(model.state_dict().values()):
        if tensor.is_floating_point():
            nn.init.normal_(tensor, 1.0 if index % 2 else 0.0, 0.2)
    return model.eval()


@pytest.mark.reference
def test_the_masked_task_with_two_norms_survives_a_round_trip(tmp_path: Path) -> None:
    import transformers

    settings = TINY | {"use_mean_pooling": False, "initializer_range": 0.2}
    torch.manual_seed(0)
    theirs = filled(transformers.BeitForMaskedImageModeling(transformers.BeitConfig(**settings)))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = BeitForMaskedImageModeling.from_pretrained(tmp_path / "theirs")
    compare(run(ours, **masked()), run(theirs, **masked()), SINGLE)
    ours.save_pretrained(tmp_path / "ours")
    mine, other = stored(str(tmp_path / "ours")), stored(str(tmp_path / "theirs"))
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    check_same(BeitForMaskedImageModeling.from_pretrained(tmp_path / "ours"), ours, lambda model: run(model, **masked()))
    base = BeitModel.from_pretrained(tmp_path / "ours")
    assert torch.equal(base.norm.weight, ours.backbone.norm.weight)  # and not the head's
    base.save_pretrained(tmp_path / "base")
    with pytest.warns(UserWarning, match=r"newly initialised.*: layernorm.weight, layernorm.bias, lm_head"):
        again = BeitForMaskedImageModeling.from_pretrained(tmp_path / "base")
    assert torch.equal(again.backbone.norm.weight, ours.backbone.norm.weight)
    assert (again.head_norm.weight == 1).all()


@pytest.mark.reference
@pytest.mark.parametrize("settings", [{}, {"use_mean_pooling": False}])
def test_pooling_with_and_without_a_mean(settings: dict[str, Any]) -> None:
    for cls in (BeitModel, BeitForImageClassification):
        ours, theirs = pair(FAMILY, cls, **settings)
        compare(run(ours, pixels(16, 16)), run(theirs, pixels(16, 16)), SINGLE)
        assert error(ours.body.embeddings.cls_token, torch.ones(1, 1, 32)) > 0


@pytest.mark.reference
@pytest.mark.parametrize(
    "settings",
    [
        {"auxiliary_num_convs": 2, "auxiliary_concat_input": True, "pool_scales": [1, 3]},
        {"auxiliary_num_convs": 0, "auxiliary_channels": 32, "auxiliary_loss_weight": 1.5},
        {"use_auxiliary_head": False, "use_mean_pooling": False, "out_indices": [0, 1, 2, 3]},
    ],
)
def test_heads_for_pixels(settings: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs = pair(FAMILY, BeitForSemanticSegmentation, **settings)
    inputs = batch(FAMILY, BeitForSemanticSegmentation)
    inputs |= labels(FAMILY, BeitForSemanticSegmentation, inputs)
    for each in (ours, theirs):
        each.train()  # norms over the batch count what they see
    compare(ours(**inputs), theirs(**inputs), 10 * SINGLE)
    found, expected = run(ours.eval(), **inputs), run(theirs.eval(), **inputs)
    compare(found, expected, 10 * SINGLE)
    terms = found.loss_terms
    assert list(terms) == (["segmentation", "auxiliary"] if ours.config.use_auxiliary_head else ["segmentation"])
    ours.save_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "theirs")
    assert stored(str(tmp_path)).keys() == stored(str(tmp_path / "theirs")).keys()
    check_same(BeitForSemanticSegmentation.from_pretrained(tmp_path), ours, lambda model: run(model, **inputs))


@pytest.mark.reference
@pytest.mark.parametrize("cls", [BeitModel, BeitForMaskedImageModeling, BeitForSemanticSegmentation, BeitBackbone])
def test_reads_the_names_of_the_reference_in_memory(cls: Any, tmp_path: Path) -> None:
    more = {"add_fpn": True} if cls is BeitBackbone else {}
    ours, theirs = pair(FAMILY, cls, **ALL, **more)
    ours.config.save_pretrained(tmp_path)
    state = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    check_same(cls.from_pretrained(tmp_path), ours, lambda model: run(model, **batch(FAMILY, cls)))


@pytest.mark.reference
def test_a_pyramid_of_feature_maps(tmp_path: Path) -> None:
    ours, theirs = pair(FAMILY, BeitBackbone, add_fpn=True, out_indices=[0, 1, 2, 4])
    found = run(ours, pixels(16, 24))
    compare(found, run(theirs, pixels(16, 24)), SINGLE)
    assert [tuple(each.shape[2:]) for each in found.feature_maps] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    theirs.save_pretrained(tmp_path)
    again = AutoBackbone.from_pretrained(tmp_path)
    check_same(again, ours, lambda model: run(model, pixels(16, 24)))
    with pytest.raises(InputError, match="cannot be halved"):
        ours(pixels(4, 16))


@pytest.mark.reference
def test_states_in_the_place_of_maps() -> None:
    ours, theirs = pair(FAMILY, BeitBackbone, reshape_hidden_states=False, out_indices=[0, 3])
    compare(run(ours, pixels(16, 16)), run(theirs, pixels(16, 16)), SINGLE)


def test_a_task_checkpoint_gives_maps(tmp_path: Path) -> None:
    model = BeitForSemanticSegmentation(BeitConfig(**TINY | {"use_mean_pooling": False})).eval()
    model.save_pretrained(tmp_path)
    maps = AutoBackbone.from_pretrained(tmp_path, out_indices=[2])
    assert isinstance(maps, BeitBackbone)
    state = run(model, pixels(16, 16), output_hidden_states=True).hidden_states[2]
    assert torch.equal(run(maps, pixels(16, 16)).feature_maps[0].flatten(2).transpose(1, 2), state[:, 1:])


def test_layers_are_left_out_more_often_the_deeper_they_are() -> None:
    model = BeitModel(BeitConfig(**TINY | {"drop_path_rate": 0.3}))
    rates = [module.rate for module in model.modules() if isinstance(module, StochasticDepth)]
    assert rates == pytest.approx([0.0, 0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    model = BeitModel(BeitConfig(**TINY | {"drop_path_rate": 1.0, "num_hidden_layers": 2, "out_indices": [2]}))
    first, second, last = model.train()(pixels(16, 16), output_hidden_states=True).hidden_states
    assert not torch.equal(first, second)
    assert torch.equal(second, last)


@pytest.mark.reference
def test_starts_as_the_reference_does() -> None:
    import transformers

    large = TINY | ALL | {"hidden_size": 64, "initializer_range": 0.02, "auxiliary_channels": 64}
    for cls in (BeitForMaskedImageModeling, BeitForSemanticSegmentation):
        ours = cls(BeitConfig(**large))
        theirs = getattr(transformers, cls.__name__)(transformers.BeitConfig(**large)).state_dict()
        names, keys = ours.checkpoint_names().canonical(theirs), ours.checkpoint_names().keys
        for name, mine in ours.state_dict().items():
            other = theirs[names[keys.recipe(name).stored]].float()
            deviations = (float(each.float().std(correction=0)) for each in (mine, other))
            assert next(deviations) == pytest.approx(next(deviations), rel=0.25, abs=1e-6), name
            assert float(mine.float().mean()) == pytest.approx(float(other.mean()), abs=0.02), name


def test_gradients_of_resized_biases() -> None:
    model = BeitForMaskedImageModeling(BeitConfig(**TINY | ALL))
    hidden = torch.zeros(2, 24, dtype=torch.bool)
    hidden[:, 3] = True
    found = gradients(model, whole_loss(model(pixels(16, 24), hidden, torch.tensor([1, 2]))))
    assert found.keys() == {name for name, _ in model.named_parameters()}


def test_packed_models_give_the_same() -> None:
    model = filled(BeitModel(BeitConfig(**TINY)))
    expected = run(model, pixels(16, 16))
    compare(run(pack(model), pixels(16, 16)), expected, SINGLE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch_size": 17}, "must fit into `image_size`"),
        ({"add_fpn": True, "out_indices": [1, 2]}, "needs four `out_indices`"),
        ({"add_fpn": True, "reshape_hidden_states": False}, "needs four `out_indices`, and `reshape_hidden_states`"),
        ({"pool_scales": [0]}, "must be at least 1"),
        ({"auxiliary_num_convs": -1}, r"in \[0,"),
        ({"drop_path_rate": 1.5}, r"in \[0, 1\]"),
        ({"out_indices": [9]}, "numbers of the 5 stages"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BeitConfig(**TINY | settings)


def test_pixels_need_four_layers() -> None:
    with pytest.raises(InputError, match=r"reads four layers, but `out_indices` is \[2\]"):
        BeitForSemanticSegmentation(BeitConfig(**TINY | {"out_indices": [2]}))
