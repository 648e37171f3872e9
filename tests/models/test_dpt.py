"""What DPT and Depth Anything do that no other family does: rectangles, other families' states, and training for depths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from transept.core.auto import AutoModelForDepthEstimation
from transept.errors import ConfigError, InputError, TranseptWarning, UnsupportedError
from transept.models.depth_anything import DepthAnythingConfig, DepthAnythingForDepthEstimation
from transept.models.dinov2 import Dinov2Backbone
from transept.models.dinov2_with_registers import Dinov2WithRegistersBackbone
from transept.models.dpt import DPTConfig, DPTForDepthEstimation, DPTForSemanticSegmentation, DPTModel
from transept.objectives.depth import scale_invariant

from .families import FAMILIES
from .families.settings import DINO
from .harness import check_config_file, compare

pytestmark = pytest.mark.reference

TINY: dict[str, dict[str, Any]] = {family.model_type: family.tiny for family in FAMILIES}
STATES = DINO | {"model_type": "dinov2", "out_indices": [0, 1, 2], "reshape_hidden_states": False}
OVER_DINO = TINY["dpt"] | {"backbone_config": STATES}


def images(height: int, width: int, rows: int = 2) -> Tensor:
    return torch.randn(rows, 3, height, width, generator=torch.Generator().manual_seed(1))


def pair(cls: Any, directory: Path, **settings: Any) -> tuple[Any, Any]:
    """Ours read from a file of the reference, and theirs that wrote it."""
    torch.manual_seed(0)
    theirs = getattr(transformers, cls.__name__)
    theirs = theirs(theirs.config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    theirs.save_pretrained(directory)
    return cls.from_pretrained(directory), theirs


def same(ours: Any, theirs: Any, pixels: Tensor) -> None:
    with torch.no_grad():
        compare(ours(pixels, output_hidden_states=True), theirs(pixels, output_hidden_states=True), 1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"use_batch_norm_in_fusion_residual": True, "add_projection": True}], ids=["", "more"]
)
def test_dpt_over_another_network(settings: dict[str, Any], tmp_path: Path) -> None:
    settings = settings | ({"fusion_hidden_size": 256} if settings else {})  # which the reference's projection has
    ours, theirs = pair(DPTForDepthEstimation, tmp_path, **OVER_DINO | settings)
    assert isinstance(ours.backbone, Dinov2Backbone)
    for size in ((16, 16), (8, 20), (19, 12)):
        same(ours, theirs, images(*size))
    ours.save_pretrained(tmp_path / "again")
    one, other = load_file(tmp_path / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    again = transformers.DPTForDepthEstimation.from_pretrained(tmp_path / "again")
    same(ours, again, images(8, 20))


@pytest.mark.parametrize("size", [(16, 16), (8, 20), (24, 12), (19, 30), (4, 4)])
def test_depth_anything_of_any_size(size: tuple[int, int], tmp_path: Path) -> None:
    ours, theirs = pair(DepthAnythingForDepthEstimation, tmp_path, **TINY["depth_anything"])
    same(ours, theirs, images(*size))
    assert ours(images(*size)).predicted_depth.shape == (2, size[0] // 4 * 4, size[1] // 4 * 4)


def test_squares_of_another_size(tmp_path: Path) -> None:
    for cls in (DPTModel, DPTForDepthEstimation, DPTForSemanticSegmentation):
        ours, theirs = pair(cls, tmp_path / cls.__name__, **TINY["dpt"])
        same(ours, theirs, images(24, 24))


@pytest.mark.parametrize("cls", [DPTForDepthEstimation, DPTForSemanticSegmentation])
def test_rectangles(cls: Any, tmp_path: Path) -> None:
    """The reference takes rectangles where another network is read, whose rows and columns it passes on; so may its own ViT."""
    ours, theirs = pair(cls, tmp_path, **TINY["dpt"])
    plain, neck = theirs.neck.forward, theirs.neck
    neck.forward = lambda hidden_states, *_: plain(hidden_states, 3, 7)
    same(ours, theirs, images(12, 28))


def test_registers_are_left_out() -> None:
    states = STATES | {"model_type": "dinov2_with_registers", "num_register_tokens": 2}
    torch.manual_seed(0)
    model = DepthAnythingForDepthEstimation(DepthAnythingConfig(**TINY["depth_anything"] | {"backbone_config": states}))
    assert isinstance(model.backbone, Dinov2WithRegistersBackbone)
    model = model.eval()
    grid = model.neck(model.backbone(images(8, 12)).feature_maps, 3, (2, 3))
    torch.testing.assert_close(model.head(grid[-1], (8, 12)), model(images(8, 12)).predicted_depth)


def test_a_backbone_reads_what_tasks_store(tmp_path: Path) -> None:
    torch.manual_seed(0)
    task = DPTForDepthEstimation(DPTConfig(**TINY["dpt"])).eval()
    task.save_pretrained(tmp_path)
    with pytest.warns(TranseptWarning, match="pooler"):
        model = DPTModel.from_pretrained(tmp_path)
    states = model(images(16, 16), output_hidden_states=True).hidden_states
    for one, other in zip(states, task(images(16, 16), output_hidden_states=True).hidden_states, strict=True):
        torch.testing.assert_close(one, other)
    states_alone = AutoModelForDepthEstimation.from_pretrained(tmp_path)
    torch.testing.assert_close(states_alone(images(16, 16)).predicted_depth, task(images(16, 16)).predicted_depth)


def test_files_may_lack_the_part_that_is_not_used(tmp_path: Path) -> None:
    ours, _ = pair(DPTForDepthEstimation, tmp_path, **TINY["dpt"])
    stored = load_file(tmp_path / "model.safetensors")
    fewer = {name: tensor for name, tensor in stored.items() if "fusion_stage.layers.0.residual_layer1" not in name}
    assert len(fewer) == len(stored) - 4
    save_file(fewer, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.warns(TranseptWarning):
        again = DPTForDepthEstimation.from_pretrained(tmp_path)
    assert torch.equal(again(images(16, 16)).predicted_depth, ours(images(16, 16)).predicted_depth)


def test_losses_of_depths() -> None:
    torch.manual_seed(0)
    labels = torch.rand(2, 30, 20) * 5 + 0.1
    for model in (
        DPTForDepthEstimation(DPTConfig(**TINY["dpt"])),
        DepthAnythingForDepthEstimation(DepthAnythingConfig(**TINY["depth_anything"] | {"depth_estimation_type": "metric"})),
    ):
        model.eval()
        output = model(pixel_values=images(12, 20), labels=labels)
        torch.testing.assert_close(output.loss, scale_invariant(output.predicted_depth, labels).mean)
        assert list(output) == ["loss", "predicted_depth"]
        torch._dynamo.reset()
        whole = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(whole(pixel_values=images(12, 20), labels=labels).loss, output.loss)
        with pytest.raises(InputError, match="maps of depths"):
            model(pixel_values=images(12, 20), labels=labels[:1])


@pytest.mark.parametrize("kind", ["dpt", "depth_anything"])
def test_it_learns_depths(kind: str) -> None:
    """What is bright is near, in these images."""
    torch.manual_seed(0)
    usual = {"initializer_range": 0.02}
    model: Any
    if kind == "dpt":
        model = DPTForDepthEstimation(DPTConfig(**TINY["dpt"] | usual | {"backbone_config": STATES | usual}))
    else:
        metric = {"depth_estimation_type": "metric", "max_depth": 10, "backbone_config": STATES | usual}
        model = DepthAnythingForDepthEstimation(DepthAnythingConfig(**TINY["depth_anything"] | usual | metric))
    if kind == "dpt":
        torch.nn.init.constant_(model.head.conv3.bias, 2.0)  # zero has no gradient
    far = torch.nn.functional.interpolate(torch.rand(16, 1, 4, 4) * 4 + 1, size=16)
    pixels, labels = (3 - far).expand(-1, 3, -1, -1), far[:, 0]
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    losses = []
    for _ in range(60):
        loss = model(pixel_values=pixels, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_the_auxiliary_head_is_for_training_alone() -> None:
    torch.manual_seed(0)
    settings = TINY["dpt"]
    model = DPTForSemanticSegmentation(DPTConfig(**settings)).eval()
    labels = torch.randint(0, 3, (2, 16, 16))
    output = model(pixel_values=images(16, 16), labels=labels)
    assert {name: term.weight for name, term in output.loss_terms.items()} == {"segmentation": 1.0, "auxiliary": 0.4}
    without = DPTForSemanticSegmentation(DPTConfig(**settings | {"use_auxiliary_head": False})).eval()
    without.load_state_dict({k: v for k, v in model.state_dict().items() if "auxiliary" not in k})
    alone = without(pixel_values=images(16, 16), labels=labels)
    torch.testing.assert_close(alone.logits, output.logits)
    torch.testing.assert_close(alone.loss, output.loss_terms["segmentation"].mean)
    over = DPTForSemanticSegmentation(DPTConfig(**settings | {"backbone_config": STATES}))
    assert over(images(8, 16)).logits.shape == (2, 3, 16, 32)


def test_configs() -> None:
    check_config_file(DPTConfig, {"model_type": "dpt", "hidden_size": 1020, "readout_type": "add", "use_auxiliary_head": False})
    deep = DepthAnythingConfig(max_depth=80, depth_estimation_type="metric")
    theirs = transformers.DepthAnythingConfig.from_dict(deep.to_dict())
    found, expected = theirs.to_dict()["backbone_config"], transformers.DepthAnythingConfig().to_dict()["backbone_config"]
    assert {name: found.get(name) for name in expected} == expected
    assert (theirs.max_depth, theirs.depth_estimation_type) == (80, "metric")
    assert DepthAnythingConfig.from_dict(theirs.to_dict()).backbone_config == deep.backbone_config
    # As the files over DINOv2 have it: nothing is said of a ViT that is not there.
    absent = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size"))
    absent |= dict.fromkeys(("backbone_out_indices", "layer_norm_eps", "qkv_bias", "use_auxiliary_head", "num_channels"))
    config = DPTConfig.from_dict(OVER_DINO | absent | {"model_type": "dpt", "backbone": None, "is_hybrid": False})
    assert config.backbone_config is not None
    assert config.backbone_config.out_indices == [0, 1, 2]
    again = DPTConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()
    theirs = transformers.DPTConfig.from_dict(config.to_dict())
    assert theirs.backbone_config.reshape_hidden_states is False


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"backbone_out_indices": [0, 2, 1]}, "each once and in their order"),
    ({"backbone_out_indices": [-1, 0, 1]}, "numbers of layers from 0"),
    ({"reassemble_factors": [4, 2]}, r"no more numbers than `reassemble_factors` \(2\)"),
    ({"reassemble_factors": [4, 2, 0]}, "whole numbers"),
    ({"reassemble_factors": [4, 1.5, 1]}, "whole numbers"),
    ({"head_in_index": 3}, "one of 3 maps"),
    ({"backbone_config": STATES | {"reshape_hidden_states": True}}, "reshape_hidden_states=False"),
    ({"backbone_config": {"model_type": "bert"}}, "gives feature maps"),
    ({"backbone": "facebook/dinov2-base"}, "names another repository"),
    ({"patch_size": 17}, "must fit into"),
    ({"readout_type": "first"}, "readout_type"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DPTConfig(**TINY["dpt"] | settings)


def test_numbers_beyond_the_layers_are_passed_over() -> None:
    settings = TINY["dpt"] | {"backbone_out_indices": [0, 2, 7], "neck_hidden_sizes": [8, 8], "reassemble_factors": [2, 1]}
    models = [kind(**settings) for kind in (transformers.DPTConfig, DPTConfig)]
    theirs, ours = transformers.DPTForDepthEstimation(models[0]).eval(), DPTForDepthEstimation(models[1]).eval()
    ours.load_state_dict(theirs.state_dict())
    pixels = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(ours(pixels).predicted_depth, theirs(pixels).predicted_depth)


def test_more_settings_that_cannot_be() -> None:
    for indices in ([0, 1], [0, 1, 3]):
        with pytest.raises(ConfigError, match=r"as states are read \(2\)"):
            DPTForDepthEstimation(DPTConfig(**TINY["dpt"] | {"backbone_out_indices": indices}))
    with pytest.raises(UnsupportedError, match="hybrid"):
        DPTConfig(is_hybrid=True)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="hybrid"):
        DPTConfig.from_dict({"model_type": "dpt", "is_hybrid": True, "backbone_config": {"model_type": "bit"}})
    for settings, message in (
        ({"patch_size": 8}, "must be that of"),
        ({"patch_size": [4]}, "must be that of"),
        ({"reassemble_hidden_size": 16}, "must be the `hidden_size`"),
    ):
        with pytest.raises(ConfigError, match=message):
            DepthAnythingConfig(**TINY["depth_anything"] | settings)
