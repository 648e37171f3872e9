"""Names that scripts import: those of other modules, and those that are not here."""

from __future__ import annotations

import importlib
import importlib.util
import random
import subprocess
import sys
import warnings

import pytest
import torch

import transept
from transept.errors import TranseptWarning

IMPORTS = [
    ("transept", "PreTrainedModel"),
    ("transept", "PretrainedConfig"),
    ("transept", "logging"),
    ("transept", "set_seed"),
    ("transept", "is_torch_available"),
    ("transept.utils", "logging"),
    ("transept.utils", "is_peft_available"),
    ("transept.utils", "ModelOutput"),
    ("transept.utils.logging", "get_logger"),
    ("transept.cache_utils", "DynamicCache"),
    ("transept.cache_utils", "StaticCache"),
    ("transept.generation", "GenerationConfig"),
    ("transept.generation", "StoppingCriteriaList"),
    ("transept.modeling_outputs", "BaseModelOutput"),
    ("transept.modeling_utils", "PreTrainedModel"),
    ("transept.configuration_utils", "PretrainedConfig"),
    ("transept.tokenization_utils_base", "BatchEncoding"),
    ("transept.trainer_utils", "set_seed"),
]


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_names_and_where_scripts_import_them_from(module: str, name: str) -> None:
    found = importlib.import_module(module)
    namespace: dict[str, object] = {}
    exec(f"from {module} import {name}", namespace)
    assert namespace[name] is getattr(found, name)
    assert not hasattr(found, "nonsense")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("SamModel", r"not here \(yet\)"),
        ("DebertaV2ForMaskedLM", r"not here \(yet\)"),
        ("BitsAndBytesConfig", "quantize"),
        ("BertForMaskedLm", "BertForMaskedLM"),
    ],
)
def test_names_that_are_not_here(name: str, what: str) -> None:
    with pytest.raises(AttributeError, match=what) as caught:
        getattr(transept, name)
    if "not here" in what:
        assert "Did you mean" not in str(caught.value)
    with pytest.raises(ImportError, match=what):
        exec(f"from transept import {name}")
    assert not hasattr(transept, name)


def test_other_modules_are_not_found_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("transept.nonsense")
    assert importlib.util.find_spec("transept.nonsense") is None


def test_base_classes() -> None:
    assert issubclass(transept.GPT2LMHeadModel, transept.PreTrainedModel)
    assert issubclass(transept.GPT2Config, transept.PretrainedConfig)


def test_one_seed_for_all() -> None:
    transept.set_seed(7)
    first = random.random(), torch.rand(1).item()
    transept.set_seed(7)
    assert first == (random.random(), torch.rand(1).item())


def test_verbosity() -> None:
    from transept import logging

    before = logging.get_verbosity()
    with warnings.catch_warnings(record=True) as caught:
        try:
            logging.set_verbosity_error()
            warnings.warn("x", TranseptWarning, stacklevel=1)
            assert not caught
            logging.set_verbosity_warning()
            warnings.warn("y", TranseptWarning, stacklevel=1)
            assert len(caught) == 1
        finally:
            logging.set_verbosity(before)


def test_modules_of_names_cost_nothing_before_they_are_used() -> None:
    code = "import sys, transept.utils.logging, transept.cache_utils; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
