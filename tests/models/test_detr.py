"""What DETR has of its own: files with timm's names, padding, what is not trained, the set loss, and what cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from transept.core.auto import AutoModel
from transept.errors import ConfigError, InputError, InputTypeError
from transept.models.detr import DetrConfig, DetrForObjectDetection, DetrForSegmentation, DetrModel
from transept.models.timm_backbone import TimmBackbone
from transept.objectives.matching import MatchingWeights, corners, detection_terms, generalized_iou, matched

TINY: dict[str, Any] = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 6, "num_labels": 3} | {
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
}
BACKBONE = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [1] * 4}
BACKBONE |= {"out_indices": [1, 2, 3, 4]}


def model(cls: Any = DetrForObjectDetection, **more: Any) -> Any:
    torch.manual_seed(0)
    return cls(DetrConfig(**TINY, backbone_config=BACKBONE, **more)).eval()


def pixels(*size: int, rows: int = 1) -> Tensor:
    return torch.randn(rows, 3, *size, generator=torch.Generator().manual_seed(3))


def target(*boxes: tuple[float, ...], labels: tuple[int, ...] = ()) -> dict[str, Tensor]:
    return {"class_labels": torch.tensor(labels, dtype=torch.long), "boxes": torch.tensor(boxes).reshape(-1, 4)}


def test_files_of_the_original_checkpoints(tmp_path: Path) -> None:
    """Their config names a network of timm, and their weights have its names."""
    torch.manual_seed(0)
    ours = DetrForObjectDetection(DetrConfig(**TINY, use_timm_backbone=True, backbone="resnet18")).eval()
    assert isinstance(ours.backbone.features, TimmBackbone)
    assert ours.config.backbone_config.out_indices == [1, 2, 3, 4]
    ours.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    prefix = "model.backbone.conv_encoder.model."
    assert {f"{prefix}conv1.weight", f"{prefix}bn1.running_mean", f"{prefix}layer2.0.downsample.1.weight"} <= stored.keys()
    assert not any("num_batches_tracked" in name for name in stored)
    # Some files hold counts that frozen norms drop.
    stored[f"{prefix}layer2.0.downsample.1.num_batches_tracked"] = torch.tensor(5)
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    old = {"model_type": "detr", "use_timm_backbone": True, "backbone": "resnet18", "backbone_config": None, **TINY}
    again = DetrForObjectDetection.from_pretrained(tmp_path, config=DetrConfig.from_dict(old))
    assert torch.equal(again(pixels(64, 80)).pred_boxes, ours(pixels(64, 80)).pred_boxes)
    assert type(AutoModel.from_pretrained(tmp_path)) is DetrModel


def test_stem_and_first_stage_are_never_trained(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    for each in (model(), DetrForObjectDetection.from_pretrained(tmp_path)):
        features = each.backbone.features
        fixed = {name for name, parameter in features.named_parameters() if not parameter.requires_grad}
        assert fixed == {name for name, _ in features.named_parameters() if name.startswith(("embedder.", "encoder.stages.0."))}
    timm = DetrModel(DetrConfig(**TINY, use_timm_backbone=True, backbone="resnet18")).features
    fixed = {name for name, parameter in timm.named_parameters() if not parameter.requires_grad}
    assert fixed == {name for name, _ in timm.named_parameters() if name.startswith(("conv1.", "layer1."))}
    whole = model(DetrModel)
    whole.freeze_backbone()
    assert not any(parameter.requires_grad for parameter in whole.features.parameters())
    whole.unfreeze_backbone()
    assert all(parameter.requires_grad for parameter in whole.features.parameters())


@pytest.mark.parametrize(
    "settings", [{}, {"position_embedding_type": "learned", "auxiliary_loss": True}], ids=["sine", "learned"]
)
@pytest.mark.parametrize("cls", [DetrForObjectDetection, DetrForSegmentation])
def test_images_of_a_batch_are_seen_as_alone(cls: Any, settings: dict[str, Any]) -> None:
    """By their sizes; beside a mask alone, convolutions see padding, as in the reference."""
    ours = model(cls, **settings)
    for module in (ours.backbone.decoder, ours.class_head, ours.box_head, ours.backbone.queries):  # boxes that lie apart
        for weight in module.parameters():
            torch.nn.init.normal_(weight, std=0.4 if weight.ndim > 1 else 1.0)
    images = [pixels(64, 96)[0], pixels(97, 61)[0], pixels(33, 40)[0], pixels(64, 96, rows=2)[1]]
    padded, mask = torch.zeros(4, 3, 97, 96), torch.zeros(4, 97, 96)
    for row, image in enumerate(images):
        height, width = image.shape[1:]
        padded[row, :, :height, :width], mask[row, :height, :width] = image, 1
    sizes = torch.tensor([image.shape[1:] for image in images])
    targets = [target((0.5, 0.5, 0.2, 0.3), labels=(1,)) for _ in images]
    for each in targets:
        each["masks"] = torch.ones(1, 97, 96)
    together = ours(padded, pixel_mask=mask, image_sizes=sizes, labels=targets)
    assert together.loss.isfinite()
    if cls is DetrForSegmentation:
        assert together.pred_masks.shape == ours(padded, pixel_mask=mask).pred_masks.shape
    for row, image in enumerate(images):
        alone = ours(image[None])
        for name in ("pred_boxes", "logits", "last_hidden_state"):
            assert torch.allclose(together[name][row], alone[name][0], atol=2e-5), name
    assert (ours(padded, pixel_mask=mask).pred_boxes - together.pred_boxes).abs().max() > 1e-3
    whole = ours(images[0][None], pixel_mask=torch.ones(1, 64, 96))
    assert torch.allclose(whole.pred_boxes, ours(images[0][None]).pred_boxes, atol=1e-6)


@pytest.mark.parametrize("auxiliary", [False, True])
def test_encoder_and_decoder_compute_where_the_tree_has_them(auxiliary: bool) -> None:
    ours, seen = model(auxiliary_loss=auxiliary), {}
    for name in ("encoder", "decoder"):
        stack = ours.get_submodule(f"model.{name}")
        stack.register_forward_hook(lambda module, given, out, name=name: seen.update({name: out}))
    output = ours(pixels(64, 64))
    assert torch.equal(seen["encoder"].last_hidden_state, output.encoder_last_hidden_state)
    assert torch.equal(seen["decoder"].last_hidden_state, output.last_hidden_state)
    middle = seen["decoder"].intermediate_hidden_states
    assert middle is None if not auxiliary else middle.shape == (2, *output.last_hidden_state.shape)


def test_sizes_that_cannot_be() -> None:
    for wrong in (torch.tensor([[65, 64]]), torch.tensor([[0, 5]]), torch.tensor([[5, 5], [5, 5]]), torch.tensor([5, 5])):
        with pytest.raises(InputError, match="`image_sizes` must be"):
            model()(pixels(64, 64), image_sizes=wrong)
    with pytest.raises(InputTypeError, match="`image_sizes` must be a tensor"):
        model()(pixels(64, 64), image_sizes=[(64, 64)])


def test_pairs_are_the_cheapest() -> None:
    logits, boxes = torch.randn(1, 3, 4), torch.rand(1, 3, 4) * 0.2 + 0.3
    targets = [target(*boxes[0, [2, 0]].tolist(), labels=(1, 2))]
    queries, found = matched(logits, boxes, targets, MatchingWeights(class_cost=0.0))[0]
    assert list(zip(queries.tolist(), found.tolist(), strict=True)) == [(0, 1), (2, 0)]


def test_overlap_by_definition() -> None:
    a, b = torch.tensor([0.5, 0.5, 1.0, 1.0]), torch.tensor([1.0, 0.5, 1.0, 1.0])
    assert corners(b).tolist() == [0.5, 0.0, 1.5, 1.0]
    assert torch.isclose(generalized_iou(corners(a), corners(b)), torch.tensor(0.5 / 1.5))
    far = torch.tensor([2.5, 0.5, 1.0, 1.0])
    assert torch.isclose(generalized_iou(corners(a), corners(far)), torch.tensor(-1 / 3))


def test_images_without_objects_have_a_loss() -> None:
    terms = detection_terms(torch.randn(1, 3, 4), torch.rand(1, 3, 4), [target()], MatchingWeights())
    assert terms["loss_bbox"].mean == terms["loss_giou"].mean == 0
    assert terms["loss_ce"].mean > 0
    output = model()(pixels(64, 64), labels=[target()])
    assert output.loss.isfinite()


def test_predictions_that_are_no_numbers_do_not_stop_the_matching() -> None:
    logits = torch.full((1, 3, 4), torch.nan)
    queries, _ = matched(logits, torch.rand(1, 3, 4), [target((0.5, 0.5, 0.1, 0.1), labels=(0,))], MatchingWeights())[0]
    assert len(queries) == 1


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        (torch.tensor([1]), InputTypeError, "a list with a mapping for each image"),
        ([target(), target()], InputError, "2 images, but there are 1"),
        ([{"boxes": torch.zeros(0, 4)}], InputError, "no tensor 'class_labels'"),
        ([target((0.5, 0.5, 0.1, 0.1), labels=(3,))], InputError, "target 0 of image 0 is of class 3"),
        ([target((0.5, 0.5, -0.1, 0.1), labels=(1,))], InputError, "the box of target 0 of image 0"),
        ([target((0.5, 0.5, torch.nan, 0.1), labels=(1,))], InputError, "the box of target 0"),
        ([target((0.5, 0.5, 0.1, 0.1), labels=(1, 2))], InputError, r"must be \(2, 4\)"),
    ],
)
def test_targets_that_cannot_be(labels: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        model()(pixels(64, 64), labels=labels)


def test_inputs_and_settings_that_cannot_be() -> None:
    with pytest.raises(InputError, match="pixel_mask"):
        model()(pixels(64, 64), pixel_mask=torch.ones(1, 32, 32))
    with pytest.raises(InputError, match="square maps"):
        model(DetrModel)(inputs_embeds=torch.randn(1, 5, 32))
    with pytest.raises(InputError, match="positions for 50 rows"):
        model(position_embedding_type="learned")(pixels(32, 52 * 32))
    with pytest.raises(ConfigError, match="d_model"):
        DetrConfig(**TINY | {"d_model": 30}, backbone_config=BACKBONE)
    with pytest.raises(InputError, match="maps of three stages"):
        DetrForSegmentation(DetrConfig(**TINY, backbone_config=BACKBONE | {"out_indices": [4]}))


def test_states_in_place_of_images() -> None:
    ours = model(DetrModel)
    features = ours.look(pixels(64, 64), None)
    given = features.projected.flatten(2).transpose(1, 2)
    assert torch.allclose(ours(inputs_embeds=given).last_hidden_state, ours(pixels(64, 64)).last_hidden_state, atol=1e-6)


def test_scipy_waits_for_a_loss() -> None:
    code = "import sys; from transept import DetrForObjectDetection, DetrImageProcessor; print(sorted({'scipy', 'PIL'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"
