"""Operations of the table of names, each undone by its inverse, and older spellings of stored names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from tests.models.families import Family
from tests.models.harness import EVERY, settings
from transept.checkpoint.keys import Fused, KeyMap, Table, Unflattened
from transept.checkpoint.names import Names
from transept.core.model import Model
from transept.errors import InputError

PARTS = ("q", "k", "v")


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)[:, None] * torch.ones(1, 3, dtype=torch.long)


# Two groups of two, one and one row, as grouped heads are; and the order in which they are stored.
OURS = {"q.weight": rows(0, 1, 4, 5), "k.weight": rows(2, 6), "v.weight": rows(3, 7)}
WHOLE = [0, 1, 4, 5, 2, 6, 3, 7]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("groups", "order"), [(1, WHOLE), (2, list(range(8)))])
def test_fused_parts_are_joined_and_taken_apart(groups: int, order: list[int], transposed: bool) -> None:
    keys = KeyMap({"qkv": Fused(PARTS, transposed=transposed, groups=groups)})
    stored = keys.save(OURS)
    assert list(stored) == ["qkv.weight"]
    assert torch.equal(stored["qkv.weight"], rows(*order).T if transposed else rows(*order))
    for name, tensor in OURS.items():
        recipe = keys.recipe(name)
        assert recipe.stored_shape([OURS[part].shape for part in recipe.parts]) == tuple(stored["qkv.weight"].shape)
        assert torch.equal(recipe.take(stored["qkv.weight"], [4, 2, 2]), tensor)
        assert recipe.rearranges(tensor) == (transposed or groups > 1)


def test_fused_vectors_are_grouped_too() -> None:
    keys = KeyMap({"h.*.qkv": Fused(tuple(f"layers.*.{part}" for part in PARTS), transposed=True, groups=2)})
    ours = {f"layers.3.{name[0]}.bias": tensor[:, 0] for name, tensor in OURS.items()}
    stored = keys.save(ours)
    assert {name: value.tolist() for name, value in stored.items()} == {"h.3.qkv.bias": list(range(8))}
    taken = {name: keys.recipe(name).take(stored["h.3.qkv.bias"], [4, 2, 2]) for name in ours}
    assert all(torch.equal(taken[name], ours[name]) for name in ours)


def test_parts_of_one_group_are_not_copied() -> None:
    stored = torch.arange(24.0).view(8, 3)
    taken = KeyMap({"qkv": Fused(PARTS)}).recipe("k.weight").take(stored, [4, 2, 2])
    assert taken.data_ptr() == stored[4].data_ptr()
    assert taken.is_contiguous()


def test_all_parts_are_needed() -> None:
    keys = KeyMap({"qkv": Fused(PARTS, groups=2)})
    with pytest.raises(InputError, match=r"'q\.weight' is stored with others as 'qkv\.weight', but there is no 'v\.weight'"):
        keys.save({name: tensor for name, tensor in OURS.items() if name != "v.weight"})


def test_one_tensor_has_one_place() -> None:
    table: Table = {"qkv": Fused(PARTS, groups=2), "query": "q"}
    with pytest.raises(ValueError, match="'query' and 'qkv' both map to 'q'"):
        KeyMap(table)


@pytest.mark.parametrize("transposed", [False, True])
def test_an_axis_may_be_stored_as_two(transposed: bool) -> None:
    keys = KeyMap({"h.*.q": Unflattened("layers.*.q_proj.weight", 3, transposed=transposed)})
    ours = {"layers.1.q_proj.weight": torch.arange(24.0).view((6, 4) if transposed else (4, 6))}
    stored, recipe = keys.save(ours)["h.1.q"], keys.recipe("layers.1.q_proj.weight")
    assert stored.shape == (4, 3, 2) == recipe.stored_shape([ours["layers.1.q_proj.weight"].shape])
    assert float(stored[1, 2, 0]) == float(ours["layers.1.q_proj.weight"][(4, 1) if transposed else (1, 4)])
    assert torch.equal(recipe.take(stored, []), ours["layers.1.q_proj.weight"])
    assert recipe.rearranges(stored) == transposed


LEGACY: Table = {
    "layers.*": ("encoder.layer.*", {"mlp.fc1": "intermediate.dense", "mlp": "feed"}),
    "layers.*.mlp.fc1.scale": "encoder.layer.*.scale",
    "a": "b",
    "b": "c",
    "transformer": "",
    "**.LayerNorm.gamma": "LayerNorm.weight",
}


@pytest.mark.parametrize(
    ("stored", "known"),
    [
        ("layers.3.mlp.fc1.weight", "encoder.layer.3.intermediate.dense.weight"),
        ("layers.3.mlp.fc2.weight", "encoder.layer.3.feed.fc2.weight"),
        ("layers.3.mlp.fc1.scale", "encoder.layer.3.scale"),  # the longest counts
        ("layers.x.weight", "layers.x.weight"),
        ("bert.layers.0.bias", "encoder.layer.0.bias"),  # behind the prefix too
        ("neck.layers.0.mlp.fc1.weight", "neck.layers.0.mlp.fc1.weight"),  # what stands elsewhere is something else
        ("encoder.layer.0.mlp.fc1.weight", "encoder.layer.0.mlp.fc1.weight"),
        ("a.a.b", "b.a.b"),  # once, and never what has been respelled
        ("b.a", "c.a"),
        ("transformer.wte", "wte"),
        ("cls.predictions.LayerNorm.gamma", "cls.predictions.LayerNorm.weight"),
        ("LayerNorm.gamma.gamma", "LayerNorm.weight.gamma"),
        ("LayerNorms.gamma", "LayerNorms.gamma"),
    ],
)
def test_older_spellings_are_whole_paths(stored: str, known: str) -> None:
    assert Names(legacy=LEGACY, base="bert").canonical([stored]) == {known: stored}


def test_a_network_in_a_task_has_its_own_spellings() -> None:
    family = Names(legacy={"layers": "encoder.layer"}, base="vit")
    task = family.below("model", "vit", loose=True) | Names({"neck": "neck"}, heads=frozenset({"neck"}))
    for prefix in ("vit.", ""):
        names = task.canonical([f"{prefix}layers.0.weight", "neck.layers.0.weight"])
        assert list(names) == ["neck.layers.0.weight", "vit.encoder.layer.0.weight"]


def every_names(names: Names) -> Iterator[Names]:
    yield names
    for child in names.children:
        yield from every_names(child.names)


def spellings(names: Names) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Older paths and today's."""
    nodes = [tree.root for tree in names._spellings]
    for node in nodes:
        nodes += node.below.values()
        if node.value is not None:
            yield node.path, node.value.split(".")


@pytest.mark.parametrize(("family", "cls"), EVERY)
def test_older_spellings_and_todays_are_one_name(family: Family, cls: type[Model]) -> None:
    for names in every_names(cls.names_of(cls.config_class(**settings(family, cls)))):
        for pair in spellings(names):
            older, today = (".".join(["0" if part == "*" else part for part in path if part]) for path in pair)
            found = [names.canonical([f"{path}.weight".removeprefix(".")]) for path in (older, today)]
            assert found[0].keys() == found[1].keys()
