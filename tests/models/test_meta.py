"""Models that a checkpoint will fill are built without memory, and without PyTorch's compiler, whose import takes a second."""

from __future__ import annotations

import subprocess
import sys

BUILD = """
import sys, warnings
import torch
from tests.models.families import FAMILIES
from transept import AutoConfig
from transept.core.loading import Unfilled
from transept.core.auto import resolve

warnings.simplefilter("ignore")
for family in FAMILIES:
    with torch.device("meta"), Unfilled():
        cls = resolve(family.model_type, "Model", "ForDepthEstimation", "ForCausalLM", "QuestionEncoder", "GenerationEncoder")
        model = cls(AutoConfig.for_model(family.model_type, **family.tiny))
    assert model.device.type == "meta"
    assert "torch._dynamo" not in sys.modules, family.model_type
"""


def test_no_family_needs_the_compiler_to_be_built() -> None:
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-600:]
