"""What ViT adds to the derived suite: sizes of images, masked patches, both namings of its weights, and bad images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from transept.errors import CheckpointError, ConfigError, InputError, InputTypeError, TranseptWarning
from transept.models.vit import ViTConfig, ViTForImageClassification, ViTForMaskedImageModeling, ViTModel

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, check_same, compare, labels, pair, stored

FAMILY = next(family for family in FAMILIES if family.model_type == "vit")
TINY = FAMILY.tiny
# config.json of the published base model, its thousand labels cut to three.
BASE = {
    "architectures": ["ViTForImageClassification"],
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 768,
    "id2label": {"0": "tench", "1": "goldfish", "2": "great white shark"},
    "image_size": 224,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "label2id": {"tench": 0, "goldfish": 1, "great white shark": 2},
    "layer_norm_eps": 1e-12,
    "model_type": "vit",
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 16,
    "qkv_bias": True,
    "transformers_version": "4.13.0.dev0",
}


def pixels(*size: int, rows: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(rows, channels, *size, generator=torch.Generator().manual_seed(5))


def run(model: Any, *args: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **inputs)


@pytest.mark.reference
@pytest.mark.parametrize("extra", [{}, {"torch_dtype": "float32"}, {"encoder_stride": 8, "dtype": "bfloat16"}])
def test_reads_published_config_files(extra: dict[str, Any]) -> None:
    check_config_file(ViTConfig, BASE | extra)


@pytest.mark.reference
@pytest.mark.parametrize("size", [(16, 16), (32, 32), (8, 8), (24, 12), (18, 35)])
def test_positions_are_interpolated_for_other_sizes(size: tuple[int, int]) -> None:
    ours, theirs = pair(FAMILY, ViTModel)
    given = {"pixel_values": pixels(*size), "interpolate_pos_encoding": True}
    compare(run(ours, **given), run(theirs, **given), SINGLE)


@pytest.mark.reference
def test_paints_images_of_other_sizes() -> None:
    ours, theirs = pair(FAMILY, ViTForMaskedImageModeling)
    given = {"pixel_values": pixels(24, 24), "interpolate_pos_encoding": True}
    compare(run(ours, **given), run(theirs, **given), SINGLE)
    wide = {"pixel_values": pixels(8, 24), "interpolate_pos_encoding": True}  # which the reference cannot
    assert run(ours, **wide, bool_masked_pos=torch.ones(2, 12)).reconstruction.shape == (2, 3, 8, 24)


@pytest.mark.reference
def test_images_and_patches_need_not_be_square() -> None:
    size = {"image_size": (16, 24), "patch_size": (4, 8), "num_channels": 1}
    ours, theirs = pair(FAMILY, ViTModel, **size)
    given = {"pixel_values": pixels(16, 24, channels=1)}
    expected = run(ours, **given)
    compare(expected, run(theirs, **given), SINGLE)
    compare(run(ours, **given, interpolate_pos_encoding=True), expected, 0.0)
    assert run(ours, pixels(8, 16, channels=1), interpolate_pos_encoding=True).last_hidden_state.shape == (2, 5, 32)


@pytest.mark.reference
def test_mask_token_and_attention_mask() -> None:
    ours, theirs = pair(FAMILY, ViTForMaskedImageModeling, attention="eager")
    hidden = torch.rand(2, 16, generator=torch.Generator().manual_seed(0)) < 0.4
    attend = torch.ones(2, 17, dtype=torch.long)
    attend[0, 3:6] = 0
    given = {"pixel_values": pixels(16, 16), "bool_masked_pos": hidden, "attention_mask": attend}
    see = {"output_hidden_states": True, "output_attentions": True}
    compare(run(ours.backbone, **given, **see), run(theirs.vit, **given, **see), SINGLE)
    compare(run(ours, **given, **see), run(theirs, **given, **see), SINGLE)
    nothing = run(ours, pixels(16, 16), torch.zeros(2, 16, dtype=torch.bool))
    assert nothing.loss == 0.0


@pytest.mark.reference
@pytest.mark.parametrize("cls", [ViTModel, ViTForImageClassification, ViTForMaskedImageModeling])
def test_reads_the_names_of_the_reference_in_memory(cls: Any, tmp_path: Path) -> None:
    ours, theirs = pair(FAMILY, cls)
    ours.config.save_pretrained(tmp_path)
    state = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
    assert not state.keys() & stored(_saved(ours, tmp_path / "old")).keys() - {name for name in state if "layer." not in name}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = cls.from_pretrained(tmp_path)
    check_same(again, ours, lambda model: run(model, **batch(FAMILY, cls)))


def _saved(model: Any, directory: Path) -> Any:
    model.save_pretrained(directory)
    return directory


def test_backbone_checkpoints_load_into_tasks_and_back(tmp_path: Path) -> None:
    base = ViTModel(ViTConfig(**TINY))
    base.save_pretrained(tmp_path / "base")
    with pytest.warns(TranseptWarning, match="newly initialised.*mask_token"):
        task = ViTForMaskedImageModeling.from_pretrained(tmp_path / "base")
    assert (task.backbone.embeddings.mask_token == 0).all()
    assert torch.equal(
        task.backbone.embeddings.cls_token, base.embeddings.cls_token
    )  # which shares a module with the new mask token
    tables = [model.embeddings.position_embeddings for model in (task.backbone, base)]
    assert torch.equal(*tables)
    assert float(task.head[0].weight.detach().std()) == pytest.approx(TINY["initializer_range"], rel=0.1)
    task.save_pretrained(tmp_path / "task")
    with pytest.warns(TranseptWarning, match="newly initialised.*pooler"):
        back = ViTModel.from_pretrained(tmp_path / "task")
    assert back.load_report is not None
    assert set(back.load_report.unexpected) == {"decoder.0.weight", "decoder.0.bias", "vit.embeddings.mask_token"}
    assert torch.equal(back.layers[1].mlp.up_proj.weight, base.layers[1].mlp.up_proj.weight)


@pytest.mark.reference
def test_classes_several_labels_and_numbers() -> None:
    ours, theirs = pair(FAMILY, ViTForImageClassification, num_labels=3)
    inputs = batch(FAMILY, ViTForImageClassification)
    for wanted in (torch.tensor([0, 2, 1]), torch.tensor([[1.0, 0, 1]] * 3)):
        ours.config.problem_type = theirs.config.problem_type = None
        compare(run(ours, **inputs, labels=wanted), run(theirs, **inputs, labels=wanted), SINGLE)
    with pytest.raises(InputError, match="label 3 at \\[1\\] is not one of the 3 classes"):
        run(ours, **inputs, labels=torch.tensor([0, 3, 1]))


@pytest.mark.reference
def test_without_classes_the_logits_are_the_state() -> None:
    ours, theirs = pair(FAMILY, ViTForImageClassification, num_labels=0)
    inputs = batch(FAMILY, ViTForImageClassification)
    compare(run(ours, **inputs), run(theirs, **inputs), SINGLE)
    assert run(ours, **inputs).logits.shape == (3, 32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_take_the_type_of_the_model(dtype: torch.dtype) -> None:
    model = ViTForMaskedImageModeling(ViTConfig(**TINY)).eval().to(dtype)
    inputs = batch(FAMILY, ViTForMaskedImageModeling)
    out = run(model, **inputs, **labels(FAMILY, ViTForMaskedImageModeling, inputs))
    assert out.reconstruction.dtype == dtype
    assert out.loss.dtype == torch.float32
    assert torch.isfinite(out.loss)


def test_patches_are_the_input_embeddings() -> None:
    model = ViTForImageClassification(ViTConfig(**TINY))
    patches = model.get_input_embeddings()
    assert patches is model.vit.embeddings.patch_embeddings
    model.set_input_embeddings(twin := type(patches)(3, 32, (4, 4)))
    assert model.vit.embeddings.patch_embeddings is twin


BAD = [
    ([[1.0]], InputTypeError, "must be a tensor, but is list"),
    (torch.zeros(3, 16, 16), InputError, r"must be \(batch, channels, height, width\) of floats"),
    (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), InputError, "torch.uint8.*image processor"),
    (torch.zeros(1, 16, 16, 3), InputError, "has 16 channels, but the model takes 3"),
    (torch.zeros(1, 3, 16, 20), InputError, "16 x 20 pixels.*16 x 16.*interpolate_pos_encoding"),
    (torch.full((1, 3, 16, 16), torch.nan), InputError, r"holds nan at \[0, 0, 0, 0\]"),
    (None, InputTypeError, "NoneType"),
]


@pytest.mark.parametrize(("given", "kind", "message"), BAD)
def test_bad_images_are_named(given: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        ViTModel(ViTConfig(**TINY))(given)


def test_bad_masks_and_sizes_are_named() -> None:
    model = ViTForMaskedImageModeling(ViTConfig(**TINY))
    with pytest.raises(InputError, match=r"`bool_masked_pos` has the shape \(2, 17\), but must be \(2, 16\)"):
        model(pixels(16, 16), torch.ones(2, 17))
    with pytest.raises(InputError, match="`attention_mask` has the shape"):
        model(pixels(16, 16), attention_mask=torch.ones(2, 16))
    with pytest.raises(InputError, match=r"no embedding for masked patches.*use_mask_token"):
        ViTModel(ViTConfig(**TINY))(pixels(16, 16), torch.ones(2, 16))
    with pytest.raises(InputError, match=r"images of 3 x 16 pixels hold no patch"):
        model(pixels(3, 16), interpolate_pos_encoding=True)
    with pytest.raises(InputError, match="multiples of the patch size"):
        model(pixels(18, 16), torch.ones(2, 16), interpolate_pos_encoding=True)
    other = ViTForMaskedImageModeling(ViTConfig(**TINY | {"encoder_stride": 2}))
    assert run(other, pixels(16, 16)).reconstruction.shape == (2, 3, 8, 8)
    with pytest.raises(InputError, match=r"`encoder_stride` \(2\) must equal `patch_size`"):
        other(pixels(16, 16), torch.ones(2, 16))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 33}, "multiple of `num_attention_heads`"),
        ({"patch_size": 17}, "must fit into `image_size`"),
        ({"patch_size": 0}, "must fit into `image_size`"),
        ({"image_size": [16, 16, 16]}, r"must be one number or \[height, width\]"),
        ({"image_size": 2**30}, "must fit into `image_size`"),
        ({"num_channels": 0}, "`num_channels` .* must be at least 1"),
        ({"pooler_act": "tanhh"}, "no activation 'tanhh'.*tanh"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ViTModel(ViTConfig(**TINY | settings))


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    ViTModel(ViTConfig(**TINY)).save_pretrained(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"mismatched  embeddings.position_embeddings: \(1, 17, 32\) in the file, \(1, 65, 32\)"
    ):
        ViTModel.from_pretrained(tmp_path, image_size=32)


@pytest.mark.reference
def test_starts_as_the_reference_does() -> None:
    import transformers

    large = TINY | {"hidden_size": 64, "image_size": 64, "initializer_range": 0.02}
    ours = ViTForMaskedImageModeling(ViTConfig(**large))
    theirs = transformers.ViTForMaskedImageModeling(transformers.ViTConfig(**large)).state_dict()
    names, keys = ours.checkpoint_names().canonical(theirs), ours.checkpoint_names().keys
    for name, mine in ours.state_dict().items():
        other = theirs[names[keys.recipe(name).stored]]
        assert float(mine.std()) == pytest.approx(float(other.std()), rel=0.2, abs=1e-6), name


def test_there_are_no_token_embeddings_to_resize() -> None:
    with pytest.raises(InputError, match="ViTModel has no token embeddings, but Patches"):
        ViTModel(ViTConfig(**TINY)).resize_token_embeddings(10)
