"""`transept convert`: a model in another format or in fewer bits, which is then a model as any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import transept
from transept.adapt.gguf import save_gguf
from transept.cli.convert import _GGUF


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> Path:
    """A small Llama with a tokenizer of bytes, as GPT-2's."""
    path: Path = tmp_path_factory.mktemp("writer")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["the cat sat on the mat, and the dog sat there too"] * 4, trainer)
    transept.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>").save_pretrained(path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transept.LlamaConfig(vocab_size=300, eos_token_id=0, bos_token_id=None, **sizes)
    transept.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("source", ["model.gguf", "folder"])
def test_nothing_is_written_that_the_source_lacks(command, source: str, tmp_path: Path) -> None:
    """Neither a pooler that no file has, nor a tokenizer; a head that lacks is an error."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
    model = transept.BertModel(transept.BertConfig(**sizes), add_pooling_layer=False)
    if source == "folder":
        model.save_pretrained(tmp_path / source)
    else:
        save_gguf(model, tmp_path / source, "f32")
    done = command("convert", tmp_path / source, tmp_path / "out", "--to", "f32")
    assert (done.code, "no tokenizer" in done.err, "initialised" in done.err) == (0, True, False), done.err
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in written.items())


def test_a_head_that_the_source_lacks_is_an_error(command, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
    config = transept.BertConfig(**sizes)
    transept.BertModel(config).save_pretrained(tmp_path / "folder")
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path / "folder")
    done = command("convert", tmp_path / "folder", tmp_path / "out", "--to", "int8")
    assert (done.code, "does not have classifier.weight" in done.err) == (1, True), done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["gguf:q8_0", "gguf:q4_k_m", "int8", "int4", "bf16"])
def test_what_is_written_is_a_model(command, writer, target: str, tmp_path: Path) -> None:
    output = tmp_path / ("model.gguf" if target.startswith(_GGUF) else "model")
    done = command("convert", writer, output, "--to", target, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["parameters"] == transept.AutoModelForCausalLM.from_pretrained(writer).num_parameters()
    assert told["bytes"] > 0
    written = command("generate", "--model", output, "a b c", "--max-new-tokens", "3", "--json")
    assert written.code == 0, written.err
    assert command("inspect", output).code == 0
    again = command("convert", writer, output, "--to", target)
    assert (again.code, "is there already" in again.err) == (1, True)
    assert command("convert", output, tmp_path / "back", "--to", "f32").code == 0
    assert command("convert", writer, output, "--to", target, "--force").code == 0


def test_what_cannot_be_written_is_said_at_once(command, writer, tmp_path: Path) -> None:
    for arguments, message in (
        ((writer, tmp_path / "model", "--to", "gguf:q8_0"), "ends in .gguf"),
        ((writer, tmp_path / "model.gguf", "--to", "int4"), "is a folder"),
        ((tmp_path / "none", tmp_path / "model.gguf", "--to", "gguf:q8_0"), "no such directory"),
    ):
        done = command("convert", *arguments)
        assert (done.code, message in done.err) == (1, True), done.err
    assert command("convert", writer, tmp_path / "model.gguf", "--to", "gguf:q9").code == 2
    assert not list(tmp_path.iterdir())
