"""`transept inspect`: what a checkpoint is made of, told without loading it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.pipelines.media_models import save_audio_model, save_image_model

from .commands import WORDS, Outcome, save_text_model


@pytest.fixture
def broken(classifier, tmp_path) -> Path:
    """A copy of a checkpoint, to be spoilt."""
    return Path(shutil.copytree(classifier, tmp_path / "broken"))


@pytest.fixture
def look(command) -> Any:
    def look(path: Path, code: int = 0) -> dict[str, Any]:
        done: Outcome = command("inspect", path, "--json")
        assert done.err == ""
        assert done.code == code, done.out
        found = json.loads(done.out)
        assert found["loadable"] is (code == 0)
        return found

    return look


def findings(found: dict[str, Any], level: str) -> str:
    return "\n".join(finding["message"] for finding in found["findings"] if finding["level"] == level)


def settings(directory: Path, name: str = "config.json", **changes: Any) -> None:
    values = json.loads((directory / name).read_text())
    (directory / name).write_text(json.dumps(values | changes))


def test_parameters_by_part(classifier, look):
    from transept import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    found = look(classifier)
    assert found["architecture"] == "BertForSequenceClassification"
    assert found["config"]["hidden_size"] == 32
    parts = found["parts"]
    assert parts["parameters"] == model.num_parameters() == sum(found["dtypes"].values())
    assert found["memory"] == {"float32": 4 * model.num_parameters(), "bfloat16": 2 * model.num_parameters()}
    assert found["dtypes"] == {"F32": model.num_parameters()}
    assert found["stored_bytes"] == (classifier / "model.safetensors").stat().st_size == found["files"]["model.safetensors"]
    assert found["preprocessing"]["class"] == "BertTokenizer"
    assert findings(found, "error") == findings(found, "warning") == ""
    backbone, head = parts["children"]
    layers = next(part for part in backbone["children"] if part["name"] == "encoder.layer × 2")
    assert layers["parameters"] == sum(p.numel() for p in model.backbone.layers.parameters())
    assert head["parameters"] == 32 * 2 + 2

    def check(part: dict[str, Any]) -> None:
        if part["children"]:
            assert sum(child["parameters"] for child in part["children"]) == part["parameters"], part["name"]
        for child in part["children"]:
            check(child)

    check(parts)


def test_tied_weights_count_once(tmp_path, look):
    from transept import AutoModelForMaskedLM

    save_text_model(tmp_path, "BertForMaskedLM")
    found = look(tmp_path)
    assert found["parts"]["parameters"] == AutoModelForMaskedLM.from_pretrained(tmp_path).num_parameters()
    assert "is tied to" in findings(found, "note")
    assert sum(child["parameters"] for child in found["parts"]["children"]) == found["parts"]["parameters"]
    assert [child["shared"] for child in found["parts"]["children"]] == [0, len(WORDS) * 32]


def test_no_weights_are_read(broken, look):
    """Five gigabytes, of which the disk holds no more than the header; reading them would fill memory with zeros."""
    resource = pytest.importorskip("resource", reason="the system does not tell how much memory a process has used")
    from transept.core.loading import Unfilled
    from transept.models.bert import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "intermediate_size": 8192}
    with torch.device("meta"), Unfilled():
        model = BertForSequenceClassification(BertConfig(vocab_size=64, max_position_embeddings=64, **sizes))
    header, end = {}, 0
    for name, tensor in model.checkpoint_names().keys.save(model.state_dict()).items():
        begin, end = end, end + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    data = json.dumps(header).encode()
    with open(broken / "model.safetensors", "wb") as file:
        file.write(len(data).to_bytes(8, "little") + data)
        file.truncate(8 + len(data) + end)
    settings(broken, vocab_size=64, id2label=None, label2id=None, **sizes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = look(broken)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    assert found["memory"]["float32"] == end > 4.8e9


def test_labels_are_shown_where_there_are_some(classifier, tmp_path, look, command):
    assert look(classifier)["config"]["labels"] == ["BAD", "GOOD"]
    assert "labels: BAD, GOOD" in command("inspect", classifier).out
    plain = look(save_text_model(tmp_path / "plain", "BertModel"))["config"]
    assert not {"labels", "num_labels"} & plain.keys()
    assert look(save_text_model(tmp_path / "unnamed"))["config"]["num_labels"] == 2


@pytest.mark.parametrize("kind", ["picture", "sound"])
def test_pictures_and_sounds(kind, tmp_path, look):
    if kind == "picture":
        found = look(save_image_model(tmp_path))
        assert found["preprocessing"] == {
            "class": "ViTImageProcessor",
            "size": {"height": 30, "width": 30},
            "do_normalize": True,
        }
        assert found["config"]["image_size"] == 30
    else:
        found = look(save_audio_model(tmp_path))
        assert found["preprocessing"]["class"] == "Wav2Vec2Processor"
        assert found["preprocessing"]["sampling_rate"] == 16000
    assert found["findings"] == []


def test_it_is_drawn(command, classifier, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    done = command("inspect", classifier, terminal=("out",))
    lines = done.out.splitlines()
    assert lines[0] == f"BertForSequenceClassification  {classifier}"
    assert any(line.startswith("│  ├─ encoder.layer × 2 ") and "█" in line for line in lines)
    assert any(line.startswith("└─ classifier ") for line in lines)
    assert any(line.startswith("memory ") for line in lines)
    assert done.err == ""


def test_missing_tokenizer(broken, look):
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (broken / name).unlink()
    assert "no tokenizer can be loaded" in findings(look(broken), "warning")


def test_missing_weights(broken, look):
    (broken / "model.safetensors").unlink()
    assert "'model.safetensors' is not there" in findings(look(broken, 1), "error")


def test_pickled_weights_only(broken, look):
    torch.save(load_file(broken / "model.safetensors"), broken / "pytorch_model.bin")
    (broken / "model.safetensors").unlink()
    message = findings(look(broken), "warning")
    assert "pickles only (pytorch_model.bin)" in message
    assert "save_pretrained" in message


def test_weights_that_do_not_fit(broken, look):
    state = load_file(broken / "model.safetensors")
    name = "bert.encoder.layer.0.attention.self.query.weight"
    state["bert.encoder.layer.7.output.dense.bias"] = state.pop(name)
    save_file(state, broken / "model.safetensors")
    message = findings(look(broken, 1), "error")
    assert "1 missing, 1 unexpected" in message
    assert "bert.encoder.layer.0.attention.self.query.weight" in message


def test_a_new_head(broken, look):
    state = load_file(broken / "model.safetensors")
    save_file({name: value for name, value in state.items() if not name.startswith("classifier")}, broken / "model.safetensors")
    assert "classifier.weight" in findings(look(broken), "warning")


def test_weights_of_another_head(classifier, broken, look):
    settings(broken, architectures=["BertModel"])
    assert "classifier.weight" in findings(look(broken), "note")


def test_a_truncated_file(broken, look):
    data = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(data[:-100])
    assert "may be truncated" in findings(look(broken, 1), "error")


def test_unknown_keys_code_and_classes(broken, look):
    settings(broken, brand_new_setting=1, auto_map={"AutoModel": "code.Model"}, architectures=["BertForDancing"])
    (broken / "code.py").write_text("raise SystemExit")
    found = look(broken)
    notes = findings(found, "note")
    assert "brand_new_setting" in notes
    assert "never run" in notes
    assert "code.py" in notes
    assert "BertForDancing" in findings(found, "warning")
    assert found["architecture"] == "BertModel"


def test_more_tokens_than_embeddings(broken, look):
    save_text_model(broken, "BertModel", vocab_size=9, id2label={0: "BAD", 1: "GOOD"})
    assert "the model has embeddings for 9" in findings(look(broken), "warning")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "brt"}, "'bert'"),
        ({"hidden_size": 33}, "`hidden_size`"),
        ({"num_hidden_layers": 10**9}, "`num_hidden_layers`"),
        ({"hidden_act": "gelo"}, "gelu"),
    ],
    ids=str,
)
def test_configs_that_describe_no_model(broken, look, changes, message):
    settings(broken, **changes)
    assert message in findings(look(broken, 1), "error")


def test_a_repository_without_cached_weights(classifier, hub, look):
    files = {path.name: path.read_bytes() for path in classifier.iterdir()}
    hub.add("someone/classifier", files)
    found = look(Path("someone/classifier"))
    assert "its weights are not in the cache" in findings(found, "note")
    assert found["parts"]["parameters"] > 0
    assert not any("safetensors" in request for request in hub.requests)
