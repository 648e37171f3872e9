"""What LayoutLMv3 does that no other family does: boxes, pictures of any size behind words, biases that train."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from transept.adapt.pack import can_pack, pack
from transept.adapt.quantize import quantize
from transept.core.auto import AutoConfig, AutoModelForTokenClassification
from transept.errors import ConfigError, InputError
from transept.models.layoutlmv3 import (
    LayoutLMv3Config,
    LayoutLMv3ForQuestionAnswering,
    LayoutLMv3ForSequenceClassification,
    LayoutLMv3ForTokenClassification,
    LayoutLMv3Model,
    patch_boxes,
)
from transept.quantized.eight_bits import can_quantize

from .documents import document_batch, random_boxes
from .families import FAMILIES
from .harness import check_config_file, compare, error, gradients

pytestmark = pytest.mark.reference

TINY = next(family.tiny for family in FAMILIES if family.model_type == "layoutlmv3")
KINDS = {cls.__name__: cls for cls in (LayoutLMv3Model, LayoutLMv3ForSequenceClassification)}
KINDS |= {cls.__name__: cls for cls in (LayoutLMv3ForTokenClassification, LayoutLMv3ForQuestionAnswering)}
INPUTS = document_batch(TINY)
TEXT = {name: value for name, value in INPUTS.items() if name != "pixel_values"}
PICTURE = {"pixel_values": INPUTS["pixel_values"]}


def pair(kind: str, **more: Any) -> tuple[Any, Any]:
    """Ours and theirs with equal weights."""
    torch.manual_seed(0)
    theirs = getattr(transformers, kind)(transformers.LayoutLMv3Config(**TINY | more)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ours = KINDS[kind](LayoutLMv3Config(**TINY | more)).eval()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def run(model: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.parametrize("inputs", [TEXT, PICTURE], ids=["words", "picture"])
@pytest.mark.parametrize("kind", KINDS)
def test_words_alone_and_pictures_alone(kind: str, inputs: dict[str, Tensor]) -> None:
    if kind == "LayoutLMv3ForTokenClassification" and inputs is PICTURE:
        ours, _ = pair(kind)
        with pytest.raises(InputError, match="no words"):
            ours(**inputs)
        return
    for more in ({}, {"has_spatial_attention_bias": False}, {"has_relative_attention_bias": False}):
        ours, theirs = pair(kind, **more)
        for seen in ({}, {"output_hidden_states": True, "output_attentions": True}):
            compare(run(ours, **inputs, **seen), run(theirs, **inputs, **seen), 1e-5)


def test_parts_that_a_config_leaves_out() -> None:
    ours, theirs = pair("LayoutLMv3Model", visual_embed=False)
    compare(run(ours, **TEXT), run(theirs, **TEXT), 1e-5)
    with pytest.raises(InputError, match="reads no pictures"):
        ours(**INPUTS)
    ours, theirs = pair("LayoutLMv3Model", text_embed=False)
    compare(run(ours, **PICTURE), run(theirs, **PICTURE), 1e-5)
    with pytest.raises(InputError, match="reads no words"):
        ours(**TEXT)


def test_ten_classes_have_a_head_of_two_layers() -> None:
    for classes in (9, 10):
        ours, theirs = pair("LayoutLMv3ForTokenClassification", num_labels=classes)
        compare(run(ours, **INPUTS), run(theirs, **INPUTS), 1e-5)
        assert (ours.head.dense is None) == (classes < 10)


def test_without_boxes_all_words_stand_in_the_corner() -> None:
    ours, theirs = pair("LayoutLMv3Model")
    given = {name: value for name, value in INPUTS.items() if name != "bbox"}
    compare(run(ours, **given), run(theirs, **given), 1e-5)
    assert torch.equal(run(ours, **given)[0], run(ours, **given, bbox=torch.zeros(3, 9, 4, dtype=torch.long))[0])


def test_embeddings_may_be_given() -> None:
    """The reference cannot do it for words alone."""
    ours, _ = pair("LayoutLMv3Model")
    whole = document_batch(TINY, pad="none")
    for inputs in (whole, {name: value for name, value in whole.items() if name != "pixel_values"}):
        given = {name: value for name, value in inputs.items() if name != "input_ids"}
        given["inputs_embeds"] = ours.get_input_embeddings()(inputs["input_ids"])
        compare(run(ours, **given), run(ours, **inputs), 1e-5)


@pytest.mark.parametrize("pad", ["right", "left"])
@pytest.mark.parametrize("picture", [True, False])
def test_padded_equals_alone(pad: str, picture: bool) -> None:
    ours, _ = pair("LayoutLMv3Model", has_relative_attention_bias=pad == "right")
    inputs = document_batch(TINY, pad=pad)
    pixels = inputs.pop("pixel_values")
    together = run(ours, **inputs, **({"pixel_values": pixels} if picture else {})).last_hidden_state
    for row in range(3):
        real = inputs["attention_mask"][row].bool()
        single = {name: value[row : row + 1, real] for name, value in inputs.items()}
        single |= {"pixel_values": pixels[row : row + 1]} if picture else {}
        kept = torch.cat([real, torch.ones(together.shape[1] - 9, dtype=torch.bool)])
        assert error(together[row : row + 1, kept], run(ours, **single).last_hidden_state) <= 1e-5


# The whole model as a plain computation, for what the reference does not do.


def _bucket(distance: int, buckets: int, furthest: int) -> int:
    half, far = buckets // 2, abs(distance)
    exact = half // 2
    if far >= exact:
        far = min(exact + int(math.log(far / exact) / math.log(furthest / exact) * (half - exact)), half - 1)
    return far + (half if distance > 0 else 0)


def _plain_bias(state: dict[str, Tensor], order: list[int], boxes: list[list[int]]) -> Tensor:
    """(heads, S, S): for each pair of positions the sum of three numbers, one table each."""
    size = len(order)
    rows = []
    for i in range(size):
        for j in range(size):
            near = state["encoder.rel_pos_bias.weight"][:, _bucket(order[j] - order[i], 8, 6)]
            across = state["encoder.rel_pos_x_bias.weight"][:, _bucket(boxes[j][0] - boxes[i][0], 16, 300)]
            down = state["encoder.rel_pos_y_bias.weight"][:, _bucket(boxes[j][3] - boxes[i][3], 16, 300)]
            rows.append(near + across + down)
    return torch.stack(rows, dim=1).view(-1, size, size)


def plain(state: dict[str, Tensor], ids: Tensor, boxes: Tensor, pixels: Tensor) -> Tensor:
    """The states of one page without padding, from the tensors of a file."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)

    table = {name: state[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    table |= {name: state[f"embeddings.{name}_position_embeddings.weight"] for name in "xyhw"}
    x = table["word"][ids] + table["token_type"][0] + table["position"][torch.arange(len(ids)) + 2]
    left, top, right, bottom = boxes.T
    parts = [table["x"][left], table["y"][top], table["x"][right], table["y"][bottom]]
    x = norm("embeddings.LayerNorm", x + torch.cat([*parts, table["h"][bottom - top], table["w"][right - left]], dim=-1))
    grid = F.conv2d(pixels[None], state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=4)[0]
    rows, columns = grid.shape[1:]
    positions = state["pos_embed"][0, 1:].view(4, 4, -1).permute(2, 0, 1)[None]
    resized = F.interpolate(positions, size=(rows, columns), mode="bicubic", align_corners=False)[0]
    patches = (grid + resized).flatten(1).T
    picture = torch.cat([state["cls_token"][0] + state["pos_embed"][0, :1], patches])
    x = norm("LayerNorm", torch.cat([x, norm("norm", picture, 1e-6)]))
    order = [*range(len(ids)), *range(1 + rows * columns)]
    places = [[1, 1, 999, 999]] + [
        [1000 * c // columns, 1000 * r // rows, 1000 * (c + 1) // columns, 1000 * (r + 1) // rows]
        for r in range(rows)
        for c in range(columns)
    ]
    bias = _plain_bias(state, order, [*boxes.tolist(), *places])
    for layer in range(2):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            linear(f"{at}.attention.self.{name}", x).view(len(x), 4, 8).transpose(0, 1) for name in ("query", "key", "value")
        )
        weights = ((q @ k.transpose(1, 2) + bias) / math.sqrt(8)).softmax(-1)
        gathered = linear(f"{at}.attention.output.dense", (weights @ v).transpose(0, 1).flatten(1))
        x = norm(f"{at}.attention.output.LayerNorm", x + gathered)
        inner = linear(f"{at}.output.dense", F.gelu(linear(f"{at}.intermediate.dense", x)))
        x = norm(f"{at}.output.LayerNorm", x + inner)
    return x


@pytest.mark.parametrize("size", [(16, 16), (8, 24), (20, 12), (4, 4), (19, 33)])
def test_pictures_of_any_size_and_trained_biases(size: tuple[int, int]) -> None:
    """Of other pictures than square ones of its size, and in the gradients of biases, the reference is no oracle."""
    ours, theirs = (model.double() for model in pair("LayoutLMv3Model"))
    generator = torch.Generator().manual_seed(3)
    ids, boxes = torch.randint(5, 99, (7,), generator=generator), random_boxes(1, 7, generator)
    pixels = torch.randn(3, *size, generator=generator, dtype=torch.float64)
    state = {name: tensor.detach().clone().requires_grad_() for name, tensor in theirs.state_dict().items()}
    expected = plain(state, ids, boxes[0], pixels)
    given = {"input_ids": ids[None], "bbox": boxes, "pixel_values": pixels[None]}
    found = ours(**given).last_hidden_state[0]
    assert error(found, expected) <= 1e-10
    if size == (16, 16):
        assert error(theirs(**given).last_hidden_state[0], expected) <= 1e-10
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    (expected * weights).sum().backward()
    ours_by_name = gradients(ours, (found * weights).sum())
    for name in (f"encoder.rel_{table}_bias.weight" for table in ("pos", "pos_x", "pos_y")):
        plainly = state[name].grad
        assert plainly is not None
        assert float(plainly.abs().max()) > 0
        assert error(ours_by_name[name], plainly) <= 1e-8
    assert error(ours_by_name["pos_embed"], state["pos_embed"].grad) <= 1e-8


def test_boxes_of_patches_cover_the_page() -> None:
    theirs = transformers.LayoutLMv3Model(transformers.LayoutLMv3Config(**TINY))
    for size in ((14, 14), (3, 7), (1, 1)):
        assert torch.equal(patch_boxes(*size, torch.device("cpu")), theirs.create_visual_bbox(size))


def test_texts_that_are_packed_into_one_row() -> None:
    ours, _ = pair("LayoutLMv3Model")
    inputs = {name: value[:2] for name, value in document_batch(TINY, pad="none").items() if name != "pixel_values"}
    inputs.pop("attention_mask")
    packed = {name: value.flatten(0, 1)[None] for name, value in inputs.items()}
    packed["seq_idx"] = torch.arange(18)[None] // 9
    assert error(run(ours, **packed).last_hidden_state.view(2, 9, -1), run(ours, **inputs).last_hidden_state) <= 1e-5
    with pytest.raises(InputError, match="pixel_values"):
        ours(**packed, pixel_values=PICTURE["pixel_values"][:1])


def _questions(rows: int, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """Five words anywhere on a page, and the place of the one that is furthest up, or to the left: the question says which."""
    words = torch.rand(rows, 8, generator=generator).argsort(1)[:, :5] + 10
    corners = torch.randint(0, 950, (rows, 5, 2), generator=generator)
    kind = torch.randint(0, 2, (rows, 1), generator=generator)
    ends = torch.tensor([0, 2]).expand(rows, 2)
    boxes = torch.cat([corners, corners + 50], dim=2)
    first = corners.gather(2, kind[:, None].expand(rows, 5, 1))[..., 0].argmin(1)
    ids = torch.cat([ends[:, :1], kind + 5, ends[:, 1:], words], dim=1)
    return {"input_ids": ids, "bbox": F.pad(boxes, (0, 0, 3, 0))}, first + 3


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Steps so small that threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_it_learns_where_words_stand() -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.05, "max_rel_2d_pos": 1000}
    model = LayoutLMv3ForQuestionAnswering(LayoutLMv3Config(**TINY | plain)).train()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(400):
        inputs, places = _questions(32, generator)
        model(**inputs, start_positions=places, end_positions=places).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    inputs, places = _questions(300, generator)
    model.eval()

    def right(**changed: Tensor) -> float:
        return float((run(model, **inputs | changed).start_logits.argmax(1) == places).float().mean())

    assert right() > 0.9
    assert right(bbox=torch.zeros_like(inputs["bbox"])) < 0.4


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"input_ids": None, "pixel_values": None}, "pass either `input_ids` or `inputs_embeds`"),
    "outside": ({"bbox": INPUTS["bbox"] + 1024}, "`bbox` holds .* 0 to 1023"),
    "negative": ({"bbox": INPUTS["bbox"] - 1001}, "`bbox` holds -"),
    "sides": ({"bbox": INPUTS["bbox"].flip(2)}, "a box of negative width"),
    "height": ({"bbox": INPUTS["bbox"][..., [0, 3, 2, 1]]}, "a box of negative height"),
    "fewer": ({"bbox": INPUTS["bbox"][:, :5]}, "`bbox` has the shape"),
    "floats": ({"bbox": INPUTS["bbox"].float()}, "`bbox` must be"),
    "flat": ({"bbox": INPUTS["bbox"][..., 0]}, "`bbox` must be"),
    "channels": ({"pixel_values": torch.zeros(3, 1, 16, 16)}, "1 channels"),
    "no pixels": ({"pixel_values": torch.zeros(3, 3, 0, 16)}, "is empty"),
    "no patch": ({"pixel_values": torch.zeros(3, 3, 3, 16)}, "hold no patch"),
    "rows": ({"pixel_values": torch.zeros(2, 3, 16, 16)}, "3 rows of words, but 2 pictures"),
    "nan": ({"pixel_values": torch.full((3, 3, 16, 16), math.nan)}, "holds nan"),
    "pairs": ({"attention_mask": torch.ones(3, 9, 9)}, "pairs of positions"),
    "longer": ({"attention_mask": torch.ones(3, 26)}, "`attention_mask` has the shape"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_named(case: str) -> None:
    ours, _ = pair("LayoutLMv3Model")
    given, told = WRONG[case]
    with pytest.raises(InputError, match=told):
        ours(**INPUTS | given)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"coordinate_size": 5}, "coordinate_size"),
        ({"rel_pos_bins": 2}, "rel_pos_bins"),
        ({"max_rel_2d_pos": 2}, "max_rel_2d_pos"),
        ({"patch_size": 17}, "patch_size"),
        ({"input_size": [16, 16, 16]}, "image_size"),
        ({"pad_token_id": None}, "pad_token_id"),
        ({"max_2d_position_embeddings": 0}, "max_2d_position_embeddings"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        LayoutLMv3Config(**TINY | settings)


def test_config_files_and_sizes_of_two_sides() -> None:
    check_config_file(LayoutLMv3Config, {"model_type": "layoutlmv3", **TINY, "second_input_size": 112})
    config = AutoConfig.for_model("layoutlmv3", **TINY | {"input_size": [8, 24], "patch_size": [4, 8]})
    model = AutoModelForTokenClassification.from_config(config)
    assert model.backbone.pos_embed.shape == (1, 1 + 2 * 3, 32)
    assert model(**TEXT, pixel_values=torch.zeros(3, 3, 8, 24)).logits.shape == (3, 9, 2)


@pytest.mark.skipif(
    not (can_pack() and can_quantize()), reason="this PyTorch has no oneDNN, or this processor does not multiply integers"
)
def test_biases_of_distances_are_looked_up_in_packed_models_too() -> None:
    ours, _ = pair("LayoutLMv3Model")
    expected = run(ours, **INPUTS).last_hidden_state
    torch.testing.assert_close(run(pack(deepcopy(ours)), **INPUTS).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
    assert error(run(quantize(ours), **INPUTS).last_hidden_state, expected) < 0.1
