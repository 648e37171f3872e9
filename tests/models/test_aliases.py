"""Model types that are a family's by another name: their classes, defaults, files and results are the reference's."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import transept
from tests.thorough import in_turn
from transept import AutoConfig, AutoModel, models
from transept.core.auto import family as module_of
from transept.core.model import Backbone, Model

from .families import FAMILIES, Family
from .harness import SINGLE, batch, check_config_file, classes, compare, labels, originals, stored

BY_TYPE = {family.model_type: family for family in FAMILIES}
OTHERS = {name: replace(BY_TYPE[alias.family], model_type=name) for name, alias in models.ALIASES.items()}
EVERY = [pytest.param(family, cls, id=cls.__name__) for family in OTHERS.values() for cls in classes(family)]
FIRST = [case for case in EVERY if case.values[1] is classes(case.values[0])[0]]


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls"), in_turn(EVERY, 8, whole=FIRST))
def test_results_and_files_are_the_references(family: Family, cls: type[Model], tmp_path: Path) -> None:
    ours, theirs, tensors = originals(family, cls)
    inputs = batch(family, cls)
    inputs |= labels(family, cls, inputs) | ({"use_cache": False} if family.modality == "seq2seq" else {})
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)
    ours.save_pretrained(tmp_path)
    found = stored(str(tmp_path))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in found)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["model_type"], written["architectures"]) == (theirs.config.model_type, [type(theirs).__name__])
    assert type(AutoConfig.from_pretrained(tmp_path)) is cls.config_class
    assert type(pickle.loads(pickle.dumps(ours))) is cls


@pytest.mark.reference
@pytest.mark.parametrize("model_type", OTHERS)
def test_names_and_defaults_are_the_references(model_type: str) -> None:
    import transformers

    alias, family = models.ALIASES[model_type], module_of(models.ALIASES[model_type].family)
    config = getattr(transept, f"{alias.names[1]}Config")
    check_config_file(config, {"model_type": model_type})
    names = {name for name in dir(transformers) if re.match(rf"{alias.names[1]}(Config|Model|EncoderModel|For\w+)$", name)}
    assert names == {
        name for name in transept.__all__ if re.match(rf"{alias.names[1]}(Config|Model|EncoderModel|For\w+)$", name)
    }
    for name in names:
        assert issubclass(getattr(transept, name), getattr(family, name.replace(alias.names[1], alias.names[0])))


@pytest.mark.parametrize(("family", "cls"), [case for case in EVERY if case.id.endswith("Model")])
def test_auto_classes_find_them(family: Family, cls: type[Backbone]) -> None:
    config = AutoConfig.for_model(family.model_type, **family.tiny)
    assert type(config) is cls.config_class
    assert type(AutoModel.from_config(config)) is getattr(models, cls.__name__.replace("Encoder", ""))
    with pytest.raises(AttributeError, match="no attribute 'MT5ForNothing'"):
        getattr(models, "MT5ForNothing")  # noqa: B009 (an editor knows that it is not there)
