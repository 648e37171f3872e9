"""The models that `transept chat` names: those in the cache, and small ones for the memory of the machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import transept
from tests.checkpoint.gguf_files import gated, write
from tests.pipelines.test_text_generation import TEMPLATE, writer_at
from transept.cli.chat.models import SUGGESTIONS, cached, find, overview, suggested
from transept.core.loading import Unfilled
from transept.errors import InputError

TIED = {"tie_word_embeddings": True}
# Layers, size, size of the MLP, heads, heads of keys, size of a head, vocabulary.
SIZES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": ("Llama", 30, 576, 1536, 9, 3, 64, 49152),
    "HuggingFaceTB/SmolLM2-360M-Instruct": ("Llama", 32, 960, 2560, 15, 5, 64, 49152),
    "Qwen/Qwen2.5-0.5B-Instruct": ("Qwen2", 24, 896, 4864, 14, 2, 64, 151936),
    "Qwen/Qwen2.5-1.5B-Instruct": ("Qwen2", 28, 1536, 8960, 12, 2, 128, 151936),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": ("Llama", 24, 2048, 8192, 32, 32, 64, 49152),
    "HuggingFaceTB/SmolLM3-3B": ("SmolLM3", 36, 2048, 11008, 16, 4, 128, 128256),
    "Qwen/Qwen3-4B-Instruct-2507": ("Qwen3", 36, 2560, 9728, 32, 8, 128, 151936),
}


@pytest.mark.parametrize("model", SUGGESTIONS, ids=lambda model: model.name)
def test_figures_are_those_of_the_models(model):
    kind, layers, size, inner, heads, shared, head, words = SIZES[model.name]
    settings = {"num_hidden_layers": layers, "hidden_size": size, "intermediate_size": inner, "vocab_size": words}
    settings |= {"num_attention_heads": heads, "num_key_value_heads": shared} | ({"head_dim": head} if kind == "Qwen3" else {})
    with torch.device("meta"), Unfilled():
        made = getattr(transept, f"{kind}ForCausalLM")(getattr(transept, f"{kind}Config")(**settings, **TIED))
    assert made.num_parameters() == model.parameters
    assert model.position == layers * 2 * shared * head
    assert model.download < model.memory


def test_three_that_the_memory_allows():
    names = [each.name for each in SUGGESTIONS]
    for left in (0, 10**9, 2 * 10**9, 8 * 10**9, 10**12):
        found = suggested(left)
        assert len({each.name for each in found}) == 3
        assert sorted(found, key=lambda each: names.index(each.name)) == found
        fitting = sum(each.memory <= left for each in SUGGESTIONS)
        assert sum(each.memory > left for each in found) == max(3 - fitting, 0)
    assert suggested(10**12)[-1] is SUGGESTIONS[-1]
    assert suggested(None) == list(SUGGESTIONS[:3])


def test_without_a_model_they_are_listed(command, hub_cache, monkeypatch):
    monkeypatch.setattr("transept.environment.memory.memory_left", lambda _: 10**9)
    done = command("chat")
    assert (done.code, done.err) == (2, "")
    assert "Already here" not in done.out
    assert "1 GB of memory" in done.out
    assert "SmolLM2-135M-Instruct: 134.5 M parameters, 269 MB download, 863 MB memory\n" in done.out
    assert done.out.count("(more than is free)") == 2
    for each in SUGGESTIONS[:3]:
        assert f"    transept chat {each.name}\n" in done.out
    assert "transept pull HuggingFaceTB/SmolLM2-135M-Instruct" in done.out
    assert max(map(len, done.out.splitlines())) <= 100
    found = json.loads(command("chat", "--json").out)
    assert (found["memory_left"], found["cached"], len(found["suggested"])) == (10**9, [], 3)
    monkeypatch.setenv("COLUMNS", "40")
    narrow = command("chat", terminal=("out",)).out
    assert all(len(line) <= 40 or line.startswith("    ") for line in narrow.splitlines())
    assert narrow.split() == done.out.split()


@pytest.fixture
def cache(hub_cache) -> Path:
    """A cache with two models for chats, one that has no template, one that reads only, and a GGUF file."""
    writer = Path(writer_at(str(hub_cache / "models--me--tiny" / "snapshots" / "abc")))
    for name in ("you--other", "me--plain", "me--reader", "me--files", "me--broken"):
        shutil.copytree(writer, hub_cache / f"models--{name}" / "snapshots" / "abc")
    for folder in hub_cache.iterdir():
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("abc")
    of = {name: hub_cache / f"models--me--{name}" / "snapshots" / "abc" for name in ("plain", "reader", "files", "broken")}
    (of["plain"] / "chat_template.jinja").unlink()
    config = json.loads((writer / "config.json").read_text())
    (of["reader"] / "config.json").write_text(json.dumps(config | {"model_type": "bert", "architectures": ["BertModel"]}))
    (of["broken"] / "config.json").write_text("{")
    shutil.rmtree(of["files"])
    of["files"].mkdir()
    settings, tensors = gated("llama")
    write(of["files"] / "small-Q8_0.gguf", "llama", settings | {"tokenizer.chat_template": TEMPLATE}, tensors)
    write(of["files"] / "vision.gguf", "clip", {}, {})
    return hub_cache


def test_what_is_cached_is_listed_first(cache, command):
    assert [each.name for each in cached()] == ["me/tiny", "small-Q8_0.gguf", "you/other"]
    assert all(each.bytes > 1000 for each in cached())
    lines = overview(None)
    assert lines.index("    transept chat me/tiny") < lines.index(f"    transept chat {SUGGESTIONS[0].name}")
    assert "    transept chat small-Q8_0.gguf" in lines
    assert [each["name"] for each in json.loads(command("chat", "--json").out)["cached"]] == [each.name for each in cached()]


def test_a_name_is_found(cache, tmp_path, monkeypatch):
    file = str(cache / "models--me--files" / "snapshots" / "abc" / "small-Q8_0.gguf")
    assert find("tiny") == find("ME/Tiny") == "me/tiny"
    assert find("small-q8_0") == find("small-Q8_0.gguf") == file
    assert find("nowhere/else") == "nowhere/else"
    assert find(str(tmp_path)) == str(tmp_path)
    with pytest.raises(InputError, match="several GGUF files"):
        find("me/files")
    Path(file).with_name("vision.gguf").unlink()
    assert find("files") == file
    shutil.copytree(cache / "models--me--tiny", cache / "models--you--tiny")
    with pytest.raises(InputError, match="me/tiny, you/tiny"):
        find("tiny")
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    assert find("tiny") == "tiny"  # what is here comes before


@pytest.mark.parametrize("name", ["tiny", "me/tiny"])
def test_a_cached_model_starts(cache, command, monkeypatch, name):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    done = command("chat", name, "--max-new-tokens", 3, "--json", stdin=b"Hello\n")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["role"] == "assistant"


def test_mistyped_models(command, tmp_path, hub_cache, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert command("chat", "one", "--model", "two").code == 2
    for name, told in (
        (tmp_path, "config.json"),
        (tmp_path / "absent", "no such directory"),
        ("nobody/nothing", "not in the cache"),
        ("x/y/z", "looks like a path"),
    ):
        done = command("chat", name)
        assert (done.code, len(done.complaints)) == (1, 1)
        assert told in done.err
