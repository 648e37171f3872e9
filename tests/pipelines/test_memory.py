"""Batches that do not fit are halved, and rows that are done leave: answers stay those of each input alone."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from transept.errors import InputError, TranseptWarning
from transept.pipelines.base import InputsError

from .writers import Watch, pipe

TEXTS = ["A text.", "Another one, longer.", "x", "Some more words", "Nothing", "Here", "There it is.", "The last one"]
GREEDY = {"max_new_tokens": 6, "do_sample": False}
ERRORS = {
    "device": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    "cpu": lambda: RuntimeError("[enforce fail] . DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
    "linux": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes. Error code 12"),
    "python": MemoryError,
}


@pytest.mark.parametrize(
    ("task", "name", "options"),
    [
        ("text-generation", "LlamaForCausalLM", {}),
        ("text-generation", "LlamaForCausalLM", {"do_sample": True, "seed": 5, "num_return_sequences": 2}),
        ("text2text-generation", "T5ForConditionalGeneration", {}),
        ("text2text-generation", "BartForConditionalGeneration", {"do_sample": True, "seed": 5}),
        ("summarization", "BartForConditionalGeneration", {"num_beams": 2}),
        ("translation_en_to_de", "BartForConditionalGeneration", {}),
    ],
)
def test_a_batch_that_does_not_fit_is_halved_and_that_is_said_once(task: str, name: str, options: dict[str, Any]) -> None:
    write = pipe(task, name)
    alone = [write(text, **GREEDY | options) for text in TEXTS]
    module = write.model.backbone if task == "text-generation" else write.model.get_encoder()
    watch = Watch(module, 3, ERRORS["device"])
    with pytest.warns(TranseptWarning, match=r"batch of 8 rows.*batch_size=4") as said:
        together = write(TEXTS, **GREEDY | options)
    assert together == alone
    assert len(said) == 1
    assert max(rows for rows, _ in watch.shapes) == 2


@pytest.mark.parametrize("kind", ERRORS)
def test_every_allocator_is_understood(kind: str) -> None:
    write = pipe("text-generation", "LlamaForCausalLM")
    alone = [write(text, **GREEDY) for text in TEXTS]
    Watch(write.model.backbone, 4, ERRORS[kind])
    with pytest.warns(TranseptWarning, match="not enough memory"):
        assert write(TEXTS, **GREEDY) == alone


def test_memory_that_ends_in_the_middle_of_writing_costs_nothing() -> None:
    """The batch is written anew, from generators in their first state."""
    write = pipe("text-generation", "LlamaForCausalLM")
    settings = GREEDY | {"do_sample": True, "seed": 1}
    alone = [write(text, **settings) for text in TEXTS]
    watch = Watch(write.model.backbone, None, ERRORS["cpu"])

    def later(module: Any, args: Any) -> None:
        watch.most = 2 if len(watch.shapes) > 3 else None

    write.model.backbone.register_forward_pre_hook(later, prepend=True)
    with pytest.warns(TranseptWarning, match="batch of 8 rows"):
        assert write(TEXTS, **settings) == alone


def test_an_input_that_does_not_fit_alone_loses_no_other() -> None:
    write = pipe("text-generation", "LlamaForCausalLM")
    expected = write("Hello", **GREEDY)

    def full(module: Any, args: Any, given: Any) -> None:
        if given["input_ids"].shape[1] > 100:
            raise torch.OutOfMemoryError("no room")

    write.model.backbone.register_forward_pre_hook(full, with_kwargs=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TranseptWarning)
        found = write(["Hello", "x" * 200, "Hello"], **GREEDY, on_error="return")
        with pytest.raises(InputsError, match="input 1 cannot be answered: there is not enough memory for this input alone"):
            write(["Hello", "x" * 200], **GREEDY)
    assert isinstance(found[1], InputError)
    assert [found[0], found[2]] == [expected, expected]


def test_other_failures_are_not_taken_for_memory() -> None:
    write = pipe("text-generation", "LlamaForCausalLM")
    Watch(write.model.backbone, 0, lambda: RuntimeError("size mismatch"))
    with pytest.raises(RuntimeError, match="size mismatch"):
        write(TEXTS, **GREEDY)


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 4}])
@pytest.mark.parametrize(
    ("task", "name"), [("text-generation", "LlamaForCausalLM"), ("summarization", "BartForConditionalGeneration")]
)
def test_rows_that_are_done_leave_the_batch(task: str, name: str, options: dict[str, Any]) -> None:
    write = pipe(task, name)
    settings = {"max_new_tokens": 8, "do_sample": False, "return_tensors": True, "eos_token_id": None} | options
    if task == "text-generation":
        settings["return_full_text"] = False
    key = "summary_token_ids" if task == "summarization" else "generated_token_ids"
    first = write(TEXTS, **settings)[0][0][key]
    settings["eos_token_id"] = first[3]
    watch = Watch(write.model.backbone if task == "text-generation" else write.model.get_decoder())
    together = write(TEXTS, **settings)
    rows = [shape[0] for shape in watch.shapes]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == 8 > rows[-1]
    ended = [one[0][key] for one in together]
    steps = [ids.index(first[3]) + 1 if first[3] in ids else len(ids) for ids in ended]
    assert sum(rows) == sum(steps) - (task == "summarization") * len(TEXTS)  # the start token is not written
    for text, ids in zip(TEXTS, ended, strict=True):
        one = write(text, **settings)[0][key]
        assert ids[: len(one)] == one


def test_without_a_generator_a_row_rows_stay_so_that_the_drawing_is_that_of_the_call() -> None:
    write = pipe("text-generation", "LlamaForCausalLM")
    settings = {"max_new_tokens": 6, "do_sample": True, "eos_token_id": list(range(2, 200))}
    watch = Watch(write.model.backbone)
    torch.manual_seed(0)
    write(TEXTS, **settings)
    assert {rows for rows, _ in watch.shapes} == {8}


def test_seeds_are_checked() -> None:
    write = pipe("text-generation", "LlamaForCausalLM")
    with pytest.raises(InputError, match="`seed` must be a whole number"):
        write("Hello", seed=-1)
    with pytest.raises(InputError, match="`seed` has no part in beam sampling"):
        write("Hello", seed=1, do_sample=True, num_beams=2)
