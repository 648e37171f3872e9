"""Tensors that are stored row by row, and as one."""

from __future__ import annotations

import pytest
import torch

from transept.checkpoint.keys import Fused, KeyMap, Stacked, Table

TABLE: Table = {
    "h.*": (
        "layers.*",
        {
            "experts.*.w1.weight": Stacked("experts.gate"),
            "experts.*.w3.weight": Stacked("experts.up"),
            "experts.*.w2.weight": Stacked("experts.down"),
            "experts.gate_up": Fused(("experts.gate", "experts.up"), axis=1),
            "norm": "mlp_norm",
        },
    )
}
KEYS = KeyMap(TABLE)
STATE = {
    "layers.7.experts.gate": torch.arange(24.0).view(3, 2, 4),
    "layers.7.experts.up": torch.arange(24.0, 60.0).view(3, 3, 4),
    "layers.7.experts.down": torch.arange(60.0, 84.0).view(3, 4, 2),
    "layers.7.mlp_norm.weight": torch.ones(4),
}


def test_rows_are_saved_under_names_of_their_own() -> None:
    saved = KEYS.save(STATE)
    assert len(saved) == 10
    assert torch.equal(saved["h.7.experts.2.w3.weight"], STATE["layers.7.experts.up"][2])
    assert torch.equal(saved["h.7.norm.weight"], torch.ones(4))


def test_slots_are_the_rows_and_give_the_state_back() -> None:
    slots = KEYS.slots(STATE)
    assert list(slots)[:4] == [f"layers.7.experts.gate.{row}" for row in range(3)] + ["layers.7.experts.up.0"]
    assert KEYS.owner("layers.7.experts.gate.2") == "layers.7.experts.gate"
    assert KEYS.owner("layers.7.mlp_norm.weight") == "layers.7.mlp_norm.weight"
    recipe = KEYS.recipe("layers.7.experts.gate.2")
    assert recipe.stored == "h.7.experts.2.w1.weight"
    assert recipe.rearranges(slots["layers.7.experts.gate.2"])
    back = KEYS.stack(slots)
    assert back.keys() == STATE.keys()
    assert all(torch.equal(back[name], STATE[name]) for name in STATE)


def test_what_is_stored_as_one_is_read_as_one() -> None:
    stored = {
        "h.7.experts.gate_up": torch.cat([STATE["layers.7.experts.gate"], STATE["layers.7.experts.up"]], dim=1),
        "h.7.experts.down": STATE["layers.7.experts.down"],
        "h.7.norm.weight": torch.ones(4),
    }
    slots = KEYS.slots(STATE, stored)
    assert slots.keys() == STATE.keys()
    for name, tensor in STATE.items():
        recipe = KEYS.recipe(name)
        assert recipe.stored_shape([STATE[part].shape for part in recipe.parts or (name,)]) == stored[recipe.stored].shape
        assert torch.equal(recipe.take(stored[recipe.stored], recipe.lengths(STATE)), tensor)


def test_parts_are_joined_along_any_axis() -> None:
    keys, halves = KeyMap({"ab": Fused(("a", "b"), axis=1, groups=2)}), {"a": torch.ones(2, 4), "b": torch.zeros(2, 2)}
    saved = keys.save(halves)["ab"]
    assert saved[0].tolist() == [1, 1, 0, 1, 1, 0]
    for name, tensor in halves.items():
        assert torch.equal(keys.recipe(name).take(saved, keys.recipe(name).lengths(halves)), tensor)


def test_two_rules_for_one_row_are_refused() -> None:
    with pytest.raises(ValueError, match=r"both map to 'experts\.gate\.\*'"):
        KeyMap({"experts.*.w1": Stacked("experts.gate"), "mlps.*.gate": Stacked("experts.gate")})
