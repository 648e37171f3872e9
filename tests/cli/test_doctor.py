"""`transept doctor`: what works and what to install."""

from __future__ import annotations

import importlib.metadata
import json
import tomllib
from pathlib import Path

import pytest

from transept.cli import installation
from transept.cli.installation import requirements


def report(done) -> dict[str, dict]:
    return {check["name"]: check for check in json.loads(done.out)["checks"]}


def test_everything_is_there(command):
    done = command("doctor")
    assert (done.code, done.err) == (0, "")
    for name in (
        "Python",
        "transept",
        "torch",
        "numpy",
        "safetensors",
        "tokenizers",
        "jinja2",
        "tqdm",
        "pillow",
        "cores",
        "cpu",
    ):
        assert f" {name} " in done.out


def test_the_requirements_are_the_distributions(command):
    core = {name.lower().replace("_", "-") for name, _, extra in requirements() if extra is None}
    assert core == {"torch", "numpy", "safetensors", "tokenizers", "huggingface-hub", "jinja2", "tqdm"}
    assert {(name, extra) for name, _, extra in requirements() if extra in ("vision", "audio")} == {
        ("pillow", "vision"),
        ("soundfile", "audio"),
        ("soxr", "audio"),
    }
    found = report(command("doctor", "--json"))
    assert found["torch"]["value"] == importlib.metadata.version("torch")


def test_what_files_are_read_is_told(command):
    found = report(command("doctor", "--json"))
    assert ".csv" in found["tables"]["value"]
    assert "transept train TASK --data FILE" in found["tables"]["value"]
    assert "a folder; save .heic" in found["pictures"]["value"]
    assert "transept transcribe" in found["sounds"]["value"]
    assert ".gguf" in found["models"]["value"]


def test_the_extra_for_conversations_is_told(command, monkeypatch):
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.0" if name == "prompt_toolkit" else version(name))
    check = report(command("doctor", "--json"))["prompt_toolkit"]
    assert check["state"] == "optional"
    assert check["remedy"].startswith('pip install "transept[chat]" (for ')


def not_installed(name: str) -> None:
    raise importlib.metadata.PackageNotFoundError(name)


def test_sources_that_are_not_installed_are_well(command, monkeypatch):
    """Of a source tree the requirements stand in its `pyproject.toml`; whether it is installed, and of when, does not count."""
    monkeypatch.setattr(importlib.metadata, "requires", not_installed)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert len(requirements()) == len(project["dependencies"]) + sum(map(len, project["optional-dependencies"].values()))
    done = command("doctor", "--json")
    found = report(done)
    assert (done.code, found["torch"]["state"], found["soxr"]["state"]) == (0, "ok", "ok")
    assert found["transept"]["value"].endswith(f", the sources in {Path(installation.__file__).parents[1]}")
    assert "reinstall" not in done.out


def test_an_installed_distribution_tells_its_requirements(monkeypatch):
    monkeypatch.setattr(installation, "__file__", "/nowhere/lib/python3/site-packages/transept/cli/installation.py")
    lines = ["torch>=2.11", 'soxr>=0.5; extra == "audio"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
    assert requirements() == [("torch", "2.11", None), ("soxr", "0.5", "audio")]


def test_a_copy_of_the_package_alone_is_told(command, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "requires", not_installed)
    monkeypatch.setattr(installation, "__file__", "/nowhere/transept/cli/installation.py")
    done = command("doctor", "--json")
    assert done.code == 0
    assert report(done)["requirements"]["remedy"] == "pip install transept"


@pytest.mark.parametrize(("package", "code"), [("soxr", 0), ("safetensors", 1)])
def test_what_is_missing_has_a_remedy(command, monkeypatch, package, code):
    version = importlib.metadata.version

    def hidden(name: str) -> str:
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", hidden)
    done = command("doctor", "--json")
    assert done.code == code
    assert json.loads(done.out)["ok"] is (code == 0)
    check = report(done)[package]
    assert check["state"] == ("missing" if code else "optional")
    assert check["remedy"].startswith("pip install ")
    assert f"to do: {package}: pip install" in command("doctor").out


def test_what_is_too_old_has_a_remedy(command, monkeypatch):
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.9.1+cpu" if name == "torch" else version(name))
    check = report(command("doctor", "--json"))["torch"]
    assert check["state"] == "missing"
    assert "too old" in check["value"]


def test_secrets_are_not_shown(command, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    monkeypatch.setenv("HF_ENDPOINT", "https://user:password@hub.example")
    done = command("doctor")
    assert "HF_TOKEN" in done.out
    assert "secretsecret" not in done.out
    assert "password" not in done.out


def test_the_cache_and_the_switch(command, hub_cache, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = report(command("doctor", "--json"))
    assert str(hub_cache) in found["hub"]["value"]
    assert "off" in found["network"]["value"]


def test_one_broken_part_does_not_hide_the_others(command, monkeypatch):
    import torch

    def fail() -> int:
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch, "get_num_threads", fail)
    done = command("doctor", "--json")
    assert done.code == 1
    assert "no driver" in report(done)["processor"]["value"]
    assert report(done)["network"]["state"] == "ok"
