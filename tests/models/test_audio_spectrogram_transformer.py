"""What AST adds to the derived suite: its grid of overlapping patches, files of today's reference, kinds of problems, bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from transept.errors import ConfigError, InputError, InputTypeError
from transept.models.audio_spectrogram_transformer import ASTConfig, ASTForAudioClassification, ASTModel

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, compare, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "audio_spectrogram_transformer")


@pytest.mark.reference
@pytest.mark.parametrize("extra", [{}, {"time_stride": 16, "patch_size": [16, 8]}])
def test_reads_published_config_files(extra: dict[str, Any]) -> None:
    values = {"model_type": "audio-spectrogram-transformer", "architectures": ["ASTForAudioClassification"], "max_length": 128}
    check_config_file(ASTConfig, values | extra)


@pytest.mark.reference
@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_kinds_of_problems_equal_the_reference(problem: str) -> None:
    ours, theirs = pair(FAMILY, ASTForAudioClassification, problem_type=problem)
    inputs = batch(FAMILY, ASTForAudioClassification) | {"labels": torch.rand(3, 2).round()}
    compare(ours(**inputs), theirs(**inputs), SINGLE)


def test_patches_overlap_and_rows_are_frequencies() -> None:
    ours = ASTModel(ASTConfig(**FAMILY.tiny)).eval()
    assert ours.config.grid == (3, 6)
    x = torch.zeros(1, 14, 10)
    before = ours.begin(x)[0]
    x[0, 13, 0] = 1.0  # the last frame at the lowest frequency belongs to the last patch of the first row
    moved = (ours.begin(x)[0] - before).abs().sum(dim=-1)[0].nonzero().flatten().tolist()
    assert moved == [2 + 5]
    assert ASTConfig().grid == (12, 101)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(1, 10, 14), r"has the shape \(1, 10, 14\), but the model takes \(batch, frames, bins\) with 14 x 10"),
        (torch.zeros(0, 14, 10), "is empty"),
        (torch.full((1, 14, 10), float("inf")), "holds inf"),
        (torch.zeros(14, 10), "must be .batch, frames, bins"),
        ([[0.0]], "must be a tensor, but is list"),
    ],
)
def test_what_is_no_spectrogram_is_an_error(values: Any, message: str) -> None:
    with pytest.raises((InputError, InputTypeError), match=message):
        ASTForAudioClassification(ASTConfig(**FAMILY.tiny))(values)


@pytest.mark.parametrize(
    "wrong", [{"patch_size": 99}, {"patch_size": [4]}, {"max_length": 10**9}, {"frequency_stride": 0}, {"num_mel_bins": 0}]
)
def test_sizes_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="patch_size|stride|num_mel_bins"):
        ASTConfig(**FAMILY.tiny | wrong)
