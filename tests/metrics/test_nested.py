"""Trees of tensors, smoothed labels, samplers and names of parameters, against the reference's functions of these names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from transept import trainer_pt_utils as ours  # type: ignore[attr-defined]
from transept import trainer_utils  # type: ignore[attr-defined]
from transept.errors import InputTypeError

pytestmark = pytest.mark.reference


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = [*found.values()], [*expected.values()]
    if isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, Tensor | np.ndarray):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
    else:
        assert found == expected


def tree(rows: int, width: int) -> Any:
    torch.manual_seed(rows)
    leaf = torch.randn(rows, width, 2)
    return {"a": (leaf, [leaf[:, 0].double()]), "b": torch.arange(rows)}


def test_trees_are_the_references() -> None:
    import transformers.trainer_pt_utils as theirs

    one, other = tree(2, 3), tree(3, 4)
    for name, given in (
        ("nested_concat", (one, other)),
        ("nested_concat", (one, other, 0)),
        ("nested_concat", (ours.nested_numpify(one), ours.nested_numpify(other))),
        ("nested_concat", (torch.tensor(1.0), torch.tensor(2.0))),
        ("nested_detach", (one,)),
        ("nested_numpify", (other,)),
        ("nested_truncate", (other, 2)),
        ("find_batch_size", (other,)),
    ):
        same(getattr(ours, name)(*given), getattr(theirs, name)(*given))
    assert ours.nested_numpify(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32
    with pytest.raises(InputTypeError, match="Tensor and ndarray cannot be joined"):
        ours.nested_concat(torch.ones(2), np.ones(2))


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("items", [None, 7, torch.tensor(7.0)])
def test_smoothed_labels_are_the_references(shift: bool, items: Any) -> None:
    import transformers.trainer_pt_utils as theirs

    torch.manual_seed(0)
    labels = torch.randint(0, 5, (3, 6))
    labels[0, 2:] = -100
    output = {"logits": torch.randn(3, 6, 5)}
    found = ours.LabelSmoother(epsilon=0.2)(output, labels, shift_labels=shift, num_items_in_batch=items)
    torch.testing.assert_close(found, theirs.LabelSmoother(epsilon=0.2)(output, labels, shift, items), rtol=1e-6, atol=1e-6)


def test_rows_of_like_length_come_as_from_the_reference() -> None:
    import transformers.trainer_pt_utils as theirs

    lengths = torch.randint(1, 50, (131,), generator=torch.Generator().manual_seed(1)).tolist()
    data = [{"input_ids": [0] * length} for length in lengths]
    for given in ({"lengths": lengths}, {"dataset": data}, {"lengths": torch.tensor(lengths)}):
        found, expected = (
            library.LengthGroupedSampler(4, generator=torch.Generator().manual_seed(3), **given) for library in (ours, theirs)
        )
        assert len(found) == len(expected)
        assert [*found] == [*expected]


def test_names_of_parameters_are_the_references() -> None:
    import transformers.trainer_pt_utils as theirs

    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), "b": nn.Linear(2, 2)})
    model.register_parameter("Own", nn.Parameter(torch.ones(1)))
    for given in (([nn.LayerNorm],), ([nn.LayerNorm], [r"bias"]), ([], [r"^own", r"^0\."])):
        assert ours.get_parameter_names(model, *given) == theirs.get_parameter_names(model, *given)


def test_numbers_of_metrics_and_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.trainer_utils as theirs

    metrics = {"a": np.float32(1.5), "b": [torch.tensor(2), "x"], "c": (np.int64(3), torch.ones(2))}
    same(trainer_utils.denumpify_detensorize(metrics), theirs.denumpify_detensorize(metrics))
    for data in ([1], iter([1]), nn.ModuleList(), nn.Linear(1, 1)):
        assert trainer_utils.has_length(data) == theirs.has_length(data)
    monkeypatch.setattr("time.time", lambda: 12.0)
    for given in ((6,), (6, 3), (6, 3, 9)):
        assert trainer_utils.speed_metrics("eval", 10.0, *given) == theirs.speed_metrics("eval", 10.0, *given)


def test_workers_are_seeded_as_by_the_reference() -> None:
    import transformers.trainer_utils as theirs

    drawn = []
    for library in (trainer_utils, theirs):
        torch.manual_seed(5)
        library.seed_worker(0, 2, 1)
        drawn.append((float(torch.rand(())), float(np.random.rand())))  # noqa: NPY002
    assert drawn[0] == drawn[1]
    before = torch.are_deterministic_algorithms_enabled()
    try:
        trainer_utils.enable_full_determinism(3, warn_only=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.deterministic = False
