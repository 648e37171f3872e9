"""Checkpoints of several processes: ordinary files, which any other number of processes goes on from."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import transept
from tests.fuzz.mutate import mutated, text_of
from tests.thorough import in_turn
from tests.training.small import Head, head, ours, quiet, rows
from transept import Trainer, TrainingArguments
from transept.errors import CheckpointError, FileError, FormatError, TrainingError, TranseptWarning
from transept.parallel.streams import read_shards, shapes_in

from .ranks import Ranks

FORMS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {"gradient_accumulation_steps": 2}),
    "ddp": (2, {}),
    "stage-1": (2, {"zero_stage": 1}),
    "stage-3": (2, {"fsdp": "full_shard"}),
    "offload": (2, {"fsdp": "full_shard offload"}),
    "adafactor": (2, {"fsdp": "full_shard", "optim": "adafactor"}),  # means over rows and columns, whole on all
    "tensor": (2, {"tp_size": 2, "gradient_accumulation_steps": 2}),
    "tensor and shards": (4, {"tp_size": 2, "fsdp": "full_shard"}),
    "files": (2, {"fsdp": "full_shard", "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}, "ema_decay": 0.5}),
    "files of stages": (
        4,
        {"pp_size": 2, "fsdp": "full_shard", "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}},
    ),
    "stages": (2, {"pp_size": 2, "gradient_accumulation_steps": 2}),
}


def train(made: Head, folder: str, settings: dict[str, Any], updates: int, resume: bool) -> dict[str, Any]:
    """A run up to that many updates, which saves after each second."""
    model = ours(made)
    more = {"per_device_train_batch_size": 2, "max_steps": updates, "save_strategy": "steps", "save_steps": 2}
    more |= {"learning_rate": 1e-2, "lr_scheduler_type": "constant"}
    arguments = TrainingArguments(**quiet(Path(folder), **(more | settings)))
    trainer = Trainer(model, arguments, train_dataset=rows(made.rows, 11))
    trainer.train(resume_from_checkpoint=resume or None)
    weights = trainer.form.collect(model.state_dict())
    return {
        "losses": [each["loss"] for each in trainer.state.log_history if "loss" in each],
        "weights": {name: each.numpy() for name, each in weights.items()},
        "files": sorted(path.name for path in Path(folder, f"checkpoint-{updates}").iterdir()),
    }


def run(form: str, ranks: Ranks, made: Head, folder: Path, updates: int, resume: bool = False) -> dict[str, Any]:
    world, settings = FORMS[form]
    if world == 1:
        return train(made, str(folder), settings, updates, resume)
    found: dict[str, Any] = ranks.run(world, train, made, str(folder), settings, updates, resume)[0]
    return found


@pytest.mark.parametrize("form", in_turn(["ddp", "stage-1", "stage-3", "offload", "adafactor", "tensor", "stages", "files"], 4))
@pytest.mark.filterwarnings("ignore:.*`max_steps`:transept.errors.TranseptWarning")
def test_a_run_goes_on_bit_for_bit(form: str, ranks: Ranks, tmp_path: Path) -> None:
    made = head("GPT2LMHeadModel")
    whole = run(form, ranks, made, tmp_path / "whole", 4)
    run(form, ranks, made, tmp_path / "parts", 2)
    after = run(form, ranks, made, tmp_path / "parts", 4, resume=True)
    assert [each.hex() for each in after["losses"]] == [each.hex() for each in whole["losses"]]
    for name, each in whole["weights"].items():
        np.testing.assert_array_equal(after["weights"][name], each, err_msg=name)


CHANGES = [
    ("one", "ddp"),
    ("ddp", "one"),
    ("stage-3", "one"),
    ("one", "stage-3"),
    ("stage-1", "ddp"),
    ("stage-3", "stage-1"),
    ("tensor", "stage-3"),
    ("one", "tensor"),
    ("stages", "stage-3"),
    ("one", "stages"),
    ("files of stages", "one"),
    ("files of stages", "stages"),
]


@pytest.mark.parametrize(("before", "after"), in_turn([pytest.param(*forms, id="-".join(forms)) for forms in CHANGES], 4))
def test_a_run_goes_on_in_another_form(before: str, after: str, ranks: Ranks, tmp_path: Path) -> None:
    made = head("GPT2LMHeadModel")
    whole = run("one", ranks, made, tmp_path / "whole", 4)
    run(before, ranks, made, tmp_path / "parts", 2)
    with warnings.catch_warnings(action="ignore"):
        found = run(after, ranks, made, tmp_path / "parts", 4, resume=True)
    np.testing.assert_allclose(found["losses"], whole["losses"], atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*`max_steps` was 2:transept.errors.TranseptWarning")
def test_the_rows_of_an_update_stay_as_they_are(ranks: Ranks, tmp_path: Path) -> None:
    made = head("GPT2LMHeadModel")
    whole = run("one", ranks, made, tmp_path / "whole", 4)
    run("ddp", ranks, made, tmp_path / "parts", 2)
    with pytest.warns(TranseptWarning, match=r"had 2 processes and has 1: gradient_accumulation_steps is 2 now.*has 4 rows"):
        found = train(made, str(tmp_path / "parts"), {}, 4, True)
    np.testing.assert_allclose(found["losses"], whole["losses"], atol=1e-5)


@pytest.mark.parametrize("form", in_turn(["ddp", "stage-1", "stage-3", "tensor", "tensor and shards", "stages"], 3))
def test_files_are_those_of_one_process(form: str, ranks: Ranks, tmp_path: Path) -> None:
    made = head("LlamaForCausalLM")
    still = {"learning_rate": 0.0}
    alone = train(made, str(tmp_path / "one"), still, 4, False)
    world, settings = FORMS[form]
    found = ranks.run(world, train, made, str(tmp_path / "two"), settings | still, 4, False)[0]
    assert [name for name in found["files"] if not name.startswith("random")] == [
        name for name in alone["files"] if not name.startswith("random")
    ]
    for name in ("config.json", "model.safetensors"):
        paths = (tmp_path / folder / "checkpoint-4" / name for folder in ("one", "two"))
        one, two = (path.read_bytes() for path in paths)
        assert one == two
    model = transept.AutoModelForCausalLM.from_pretrained(tmp_path / "two" / "checkpoint-4")
    assert type(model) is transept.LlamaForCausalLM
    assert json.loads((tmp_path / "two/checkpoint-4/MANIFEST.json").read_text())["step"] == 4


def fail_to_save(made: Head, folder: str, settings: dict[str, Any]) -> str:
    """Train where the last checkpoint cannot be written."""
    import os

    from transept.training.checkpoint import saved_run

    def full(*args: Any, **kwargs: Any) -> Any:
        raise FileError("the disk is full.", path=folder)

    if os.environ["RANK"] == "0":
        saved_run.write_checkpoint = full
    try:
        train(made, folder, settings, 4, False)
    except (TrainingError, FileError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        from transept.training.checkpoint.directory import write_checkpoint

        saved_run.write_checkpoint = write_checkpoint
    return "nothing"


@pytest.mark.parametrize("form", ["ddp", "stage-3", "stages"])
def test_a_save_fails_in_all_processes(form: str, ranks: Ranks, tmp_path: Path) -> None:
    found = ranks.run(2, fail_to_save, head("BertForSequenceClassification"), str(tmp_path), FORMS[form][1])
    assert found[0].startswith("FileError")
    assert "disk is full" in found[0]
    assert found[1].startswith("TrainingError: process 0 failed, and so all 2 end: FileError")


def parts_of(folder: Path, *parts: tuple[Any, list[int]], dtype: torch.dtype = torch.float32) -> Path:
    """Files of one part each of a tensor ``w``: its shape, and where it says that it begins."""
    for number, (shape, begin) in enumerate(parts):
        told = json.dumps({"w": {"saved_offsets": begin}})
        path = folder / f"shard-{number + 1:05}-model-00001-of-00001.safetensors"
        save_file({"w": torch.full(shape, float(number), dtype=dtype)}, path, {"DCP_SHARDING_INFO": told})
    return folder


def test_parts_of_tensors_fill_them(tmp_path: Path) -> None:
    quarters = [((2, 1), [0, 0]), ((2, 2), [0, 1]), ((1, 1), [2, 0]), ((1, 2), [2, 1]), ((0, 3), [3, 0])]
    assert shapes_in(parts_of(tmp_path, *quarters)) == {"w": ((3, 3), torch.float32)}
    read_shards(tmp_path, {"w": (found := torch.empty(3, 3))})
    assert found.tolist() == [[0, 1, 1], [0, 1, 1], [2, 3, 3]]


@pytest.mark.parametrize(
    "parts",
    [
        [((2,), [0]), ((2,), [3])],  # a hole
        [((2,), [0]), ((2,), [1])],  # one row twice
        [((2,), [0]), ((2,), [0])],
        [((1,), [10**15])],  # which would take petabytes
        [((1,), [2**63 - 2])],
        [((2, 2), [0, 0]), ((2, 1), [0, 2]), ((1, 3), [3, 0])],
        [((2,), [0]), ((2, 1), [2, 0])],
        [((2,), [0, 0])],
        [((2,), [-1])],
        [((2,), [0.5])],
        [((), [0])],
    ],
    ids=str,
)
def test_parts_of_tensors_that_do_not_fill_them(tmp_path: Path, parts: list[Any]) -> None:
    with pytest.raises(FormatError, match="shard|all parts"):
        shapes_in(parts_of(tmp_path, *parts))


def test_mutated_places_of_parts_are_refused_or_right(tmp_path: Path) -> None:
    """What is read is that of the parts, whatever a file says of where they belong, and PyTorch reads it as it was checked."""
    places = {"w": {"saved_offsets": [0, 2]}, "v": {"saved_offsets": [0]}}
    refused = 0
    for number in range(100):
        text = text_of(mutated(places, Random(number)), Random(number)).encode("utf-8", "replace").decode()
        tensors = {"w": torch.ones(3, 2), "v": torch.ones(4)}
        save_file({"w": torch.zeros(3, 2)}, tmp_path / "a.safetensors")
        save_file(tensors, tmp_path / "b.safetensors", {"DCP_SHARDING_INFO": text})
        try:
            known = shapes_in(tmp_path)
        except FormatError:
            refused += 1
            continue
        assert known == {"w": ((3, 4), torch.float32), "v": ((4,), torch.float32)}
        read = {name: torch.empty(shape) for name, (shape, _) in known.items()}
        read_shards(tmp_path, read)
        assert read["w"].tolist() == [[0, 0, 1, 1]] * 3
        assert read["v"].tolist() == [1] * 4
    assert 50 < refused < 100


@pytest.mark.parametrize(
    "note",
    [
        5,
        None,
        ["w"],
        "[" * 100_000,
        '{"w": {"saved_offsets": [0]}, "w": {"saved_offsets": [1]}}',
        '{"w": {"saved_offsets": [true]}}',
        '{"w": {"saved_offsets": [1e400]}}',
        '{"w": {"saved_offsets": [99999999999999999999]}}',
        '{"w": {"saved_offsets": null}}',
        '{"w": [0]}',
        '{"v": {"saved_offsets": [0]}}',
        "null",
        "\x00",
    ],
    ids=lambda note: repr(note)[:40],
)
def test_hostile_notes_of_shards_are_typed_errors(note: Any, tmp_path: Path) -> None:
    path = tmp_path / "shard-00001-model-00001-of-00001.safetensors"
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": {"DCP_SHARDING_INFO": note}, "w": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(FormatError, match="shard-00001"):
        shapes_in(tmp_path)


def test_mutated_headers_of_shards_are_refused_or_right(tmp_path: Path) -> None:
    path = tmp_path / "shard-00001-model-00001-of-00001.safetensors"
    save_file({"w": torch.ones(3, 2)}, path, {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [0, 0]}})})
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, refused = json.loads(data[8 : 8 + length]), 0
    for number in range(100):
        text = text_of(mutated(header, Random(number)), Random(number)).encode("utf-8", "surrogatepass")
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
        try:
            known = shapes_in(tmp_path)
        except FormatError:
            refused += 1
            continue
        read = {name: torch.zeros(shape, dtype=kind) for name, (shape, kind) in known.items()}
        read_shards(tmp_path, read)
        assert all(value.view(-1).view(torch.uint8).tolist() == [0, 0, 128, 63] * 6 for value in read.values())
    assert refused > 50


@pytest.mark.parametrize(
    "told", ["nonsense", '{"weights.w": {"saved_offsets": "x"}}', '{"weights.w": {"saved_offsets": [7]}}', "[]"]
)
def test_shards_that_do_not_tell_where_they_belong(told: str, tmp_path: Path) -> None:
    save_file(
        {"weights.w": torch.ones(3)}, tmp_path / "shard-00001-model-00001-of-00001.safetensors", {"DCP_SHARDING_INFO": told}
    )
    with pytest.raises((CheckpointError, FormatError), match="shard"):
        read_shards(tmp_path, {"weights.w": torch.zeros(3)}, shapes_in(tmp_path))
