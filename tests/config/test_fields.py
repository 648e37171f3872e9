"""Settings that become text."""

from __future__ import annotations

import pytest

from transept.config.fields import HIDDEN, SECRETS, without_secrets


@pytest.mark.parametrize("name", [*sorted(SECRETS), "HUB_TOKEN"])
def test_no_secret_is_written_at_any_depth(name: str) -> None:
    given = {name: "hf_1", "model_kwargs": {name: {"a": "hf_1"}}, "steps": [{name: "hf_1"}, ({name: ["hf_1"]},)]}
    assert "hf_1" not in str(without_secrets(given))
    assert without_secrets(given)[name] == HIDDEN
    assert given[name] == "hf_1"


def test_what_is_no_secret_stays() -> None:
    given = {"token": None, "eos_token": "</s>", "max_new_tokens": 3, "stop": ["a"], "nested": {"pad_token": "p"}}
    assert without_secrets(given) == given
