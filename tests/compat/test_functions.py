"""Functions that code imports from the reference's modules give what the reference's give."""

from __future__ import annotations

import importlib
import logging as python_logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import transept
from transept import InputError, UnsupportedError
from transept.errors import FileError, VersionError

RNG = np.random.default_rng(0)
PICTURE = RNG.integers(0, 256, (3, 9, 7), dtype=np.uint8)
SOUND = RNG.standard_normal(400).astype(np.float32)
X = torch.randn(2, 4, 3, 8, generator=torch.Generator().manual_seed(0))
NESTED = {"a": torch.arange(6).view(2, 3), "b": [torch.ones(2)]}
BOXES = np.array([[0.5, 0.5, 0.2, 0.4]])
FILTERS = {"num_frequency_bins": 33, "num_mel_filters": 8, "min_frequency": 0, "max_frequency": 8000, "sampling_rate": 16000}
WINDOW = np.hanning(64)
LOGITS = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([[1, 2, -100, 4, 0, 3], [-100, -100, 2, 2, 1, 0]])
FIVE = transformers.BertConfig(num_labels=5)
CALLS: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("activations", "ACT2FN.__getitem__", ("gelu_new",), {}),
    ("loss.loss_utils", "fixed_cross_entropy", (LOGITS[0], LABELS[0], 7), {}),
    ("loss.loss_utils", "ForCausalLMLoss", (LOGITS, LABELS, 5), {}),
    ("loss.loss_utils", "ForCausalLMLoss", (LOGITS, LABELS, 5), {"num_items_in_batch": torch.tensor(9), "use_cache": True}),
    ("loss.loss_utils", "ForCausalLMLoss", (LOGITS.half(), None, 5), {"shift_labels": LABELS}),
    ("loss.loss_utils", "ForMaskedLMLoss", (LOGITS, LABELS, 5), {"num_items_in_batch": 4}),
    ("loss.loss_utils", "ForTokenClassification", (LOGITS, LABELS, FIVE), {"num_items_in_batch": 4}),
    ("loss.loss_utils", "ForSequenceClassificationLoss", (LABELS[1, 2:4], LOGITS[0, :2], FIVE), {}),
    (
        "loss.loss_utils",
        "ForQuestionAnsweringLoss",
        (LOGITS[0], LOGITS[1], LABELS[0, :1].repeat(6), LABELS[0, 3:4].repeat(6)),
        {},
    ),
    ("image_transforms", "rescale", (PICTURE, 1 / 255), {}),
    ("image_transforms", "normalize", (PICTURE, [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]), {}),
    ("image_transforms", "normalize", (PICTURE.transpose(1, 2, 0), 0.5, 0.5), {"data_format": "channels_first"}),
    ("image_transforms", "resize", (PICTURE, (5, 4)), {}),
    ("image_transforms", "resize", (PICTURE.astype(np.float32) / 255, (5, 4)), {"resample": 3}),
    ("image_transforms", "center_crop", (PICTURE, (4, 5)), {}),
    ("image_transforms", "center_crop", (PICTURE, (12, 5)), {}),
    ("image_transforms", "flip_channel_order", (PICTURE,), {}),
    ("image_transforms", "center_to_corners_format", (BOXES,), {}),
    ("image_transforms", "corners_to_center_format", (torch.tensor(BOXES),), {}),
    ("image_transforms", "rgb_to_id", (np.arange(60, dtype=np.uint8).reshape(4, 5, 3),), {}),
    ("image_transforms", "rgb_to_id", ([3, 2, 1],), {}),
    ("image_transforms", "id_to_rgb", (np.arange(20).reshape(4, 5) * 70001,), {}),
    ("image_transforms", "id_to_rgb", (70000,), {}),
    ("image_transforms", "to_channel_dimension_format", (PICTURE, "channels_last"), {}),
    ("image_utils", "get_image_size", (PICTURE,), {}),
    ("image_utils", "infer_channel_dimension_format", (PICTURE,), {}),
    ("audio_utils", "mel_filter_bank", (), FILTERS),
    ("audio_utils", "mel_filter_bank", (), {**FILTERS, "norm": "slaney", "mel_scale": "slaney"}),
    ("audio_utils", "window_function", (20, "povey"), {"frame_length": 32}),
    ("audio_utils", "window_function", (20,), {"periodic": False}),
    ("audio_utils", "spectrogram", (SOUND, WINDOW, 64, 32), {"power": 2.0, "log_mel": "dB", "db_range": 40.0}),
    ("audio_utils", "spectrogram", (SOUND, WINDOW, 64, 32), {"fft_length": 128, "preemphasis": 0.97, "remove_dc_offset": True}),
    ("audio_utils", "spectrogram", (SOUND, WINDOW, 64, 32), {"center": False, "power": None}),
    ("audio_utils", "hertz_to_mel", (440.0,), {"mel_scale": "slaney"}),
    ("models.llama.modeling_llama", "rotate_half", (X,), {}),
    ("models.llama.modeling_llama", "repeat_kv", (X, 2), {}),
    ("models.llama.modeling_llama", "apply_rotary_pos_emb", (X, X + 1, X[:, 0], X[:, 1]), {}),
    ("models.bart.modeling_bart", "shift_tokens_right", (torch.tensor([[5, 6, -100]]), 1, 2), {}),
    ("models.mixtral.modeling_mixtral", "load_balancing_loss_func", ((X[0, 0], X[0, 1]), 8, 2), {}),
    ("trainer_pt_utils", "nested_concat", (NESTED["a"], torch.arange(8).view(2, 4)), {}),
    ("trainer_pt_utils", "nested_numpify", (NESTED,), {}),
    ("trainer_pt_utils", "nested_truncate", (NESTED["b"], 1), {}),
    (
        "trainer_pt_utils",
        "get_parameter_names",
        (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2)), [torch.nn.LayerNorm]),
        {},
    ),
    ("trainer_utils", "denumpify_detensorize", ({"a": np.float32(1.5), "b": [torch.tensor(2)]},), {}),
    ("utils", "to_py_obj", ({"a": torch.tensor([1, 2]), "b": (np.float32(1.5), "x")},), {}),
    ("utils.generic", "to_numpy", ([1, 2],), {}),
    ("modelcard", "make_markdown_table", ([{"Epoch": 1.0, "Loss": 0.123456}, {"Epoch": 2.0, "Loss": 12}],), {}),
]


def call(package: str, module: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function: Any = importlib.import_module(f"{package}.{module}")
    for part in name.split("."):
        function = getattr(function, part)
    return function(*args, **kwargs)


def plain(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return value(X)
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    return value.value if hasattr(value, "value") and isinstance(value, str) else value


@pytest.mark.reference
@pytest.mark.parametrize(("module", "name", "args", "kwargs"), CALLS, ids=[f"{module}.{name}" for module, name, *_ in CALLS])
def test_equal_to_the_reference(module: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    expected = plain(call("transformers", module, name, args, kwargs))
    found = plain(call("transept", module, name, args, kwargs))
    if name in (
        "make_markdown_table",
        "get_parameter_names",
        "to_py_obj",
        "denumpify_detensorize",
        "hertz_to_mel",
        "infer_channel_dimension_format",
    ):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)


@pytest.mark.reference
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["create_causal_mask", "create_sliding_window_causal_mask", "create_bidirectional_mask"])
@pytest.mark.parametrize("padded", [False, True])
def test_masks(name: str, kind: str, padded: bool) -> None:
    from transformers import masking_utils

    config = transformers.MistralConfig(sliding_window=3, hidden_size=8, num_attention_heads=2, attn_implementation=kind)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]) if padded else None
    states = torch.zeros(2, 5, 8)
    last = {} if "bidirectional" in name else {"past_key_values": None}
    expected = getattr(masking_utils, name)(config=config, inputs_embeds=states, attention_mask=mask, **last)
    found = call("transept", "masking_utils", name, (config, states, mask), last)
    assert (found is None) == (expected is None)
    if expected is not None:
        real = slice(None) if mask is None else mask.bool()  # what padding sees is nobody's concern
        assert torch.equal(found.expand_as(expected)[:, 0][real], expected[:, 0][real])


@pytest.mark.reference
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["create_causal_mask", "create_sliding_window_causal_mask"])
def test_masks_of_blocks_and_of_functions(name: str, kind: str) -> None:
    from transformers import masking_utils

    config = transformers.MistralConfig(sliding_window=3, hidden_size=8, num_attention_heads=2, attn_implementation=kind)
    past = transformers.DynamicCache()
    past.update(torch.zeros(2, 1, 2, 4), torch.zeros(2, 1, 2, 4), 0)
    blocks = torch.tensor([[-1, 0, 0, 0, 0, 1, 1, -1], [0, 0, 0, 0, 0, 0, -1, -1]])
    functions = {
        "or_mask_function": lambda b, h, q, k: (q == 3) & (k == 7),
        "and_mask_function": lambda b, h, q, k: (k != 1) & (q - k > -3),
    }
    for states, cache in ((torch.zeros(2, 8, 8), None), (torch.zeros(2, 6, 8), past)):
        for more in (functions, {"block_sequence_ids": blocks}, {"block_sequence_ids": blocks[:, :7]}):
            told = {"past_key_values": cache, **more}
            expected = getattr(masking_utils, name)(config=config, inputs_embeds=states, attention_mask=None, **told)
            assert torch.equal(call("transept", "masking_utils", name, (config, states, None), told), expected)


def test_attention_of_ones_own() -> None:
    from transept.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    calls = []

    def counted(module: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(module)
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, *args, **kwargs)

    AttentionInterface.register("counted", counted)
    config = transept.LlamaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    model = transept.LlamaModel(config).eval()
    ids = torch.tensor([[1, 2, 3]])
    expected = model(ids).last_hidden_state
    model.set_attn_implementation("counted")
    torch.testing.assert_close(model(ids).last_hidden_state, expected)
    assert len(calls) == 2


def test_two_caches_as_one() -> None:
    own, cross = transept.DynamicCache(), transept.DynamicCache()
    cache = transept.EncoderDecoderCache(own, cross)
    cache.update(X, X, 0)
    assert own.get_seq_length() == cache.get_seq_length() == 3
    assert cache.cross is cross.layers
    assert cache.is_updated == {}


def test_mappings() -> None:
    from transept.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    from transept import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, TOKENIZER_MAPPING

    assert CONFIG_MAPPING["gpt2"] is transept.GPT2Config
    assert MODEL_FOR_CAUSAL_LM_MAPPING[transept.GPT2Config] is transept.GPT2LMHeadModel
    assert transept.ViTConfig not in MODEL_FOR_CAUSAL_LM_MAPPING
    assert {"llama", "gpt2", "bloom"} <= {config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING}
    assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["llama"] == "LlamaForCausalLM"
    assert MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["t5"] == "T5ForConditionalGeneration"
    assert transept.MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING[transept.DetrConfig] is transept.DetrForSegmentation
    assert TOKENIZER_MAPPING[transept.BertConfig] is transept.BertTokenizer
    assert not hasattr(transept, "MODEL_FOR_NONSENSE_MAPPING")


def test_classes_of_a_table_are_listed_one_by_one() -> None:
    from transept.models.auto import get_values

    assert get_values({"a": "One", "b": ("Two", "Three")}) == ["One", "Two", "Three"]
    assert transept.BertForMaskedLM in get_values(transept.MODEL_FOR_MASKED_LM_MAPPING)


def test_one_file_of_weights_is_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file
    from transept.modeling_utils import load_state_dict
    from transept.pytorch_utils import id_tensor_storage

    weights = {"a": torch.ones(2, 3), "b": torch.arange(3)}
    save_file(weights, tmp_path / "model.safetensors")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    for name in ("model.safetensors", "pytorch_model.bin"):
        found = load_state_dict(tmp_path / name)
        assert found.keys() == weights.keys()
        assert all(torch.equal(found[key], value) for key, value in weights.items())
    with pytest.raises(InputError, match="weights_only=False"):
        load_state_dict(tmp_path / "pytorch_model.bin", weights_only=False)
    assert id_tensor_storage(weights["a"]) == id_tensor_storage(weights["a"][1:]) != id_tensor_storage(weights["b"])


def test_versions() -> None:
    from transept.utils import check_min_version
    from transept.utils.versions import require_version

    check_min_version("4.57.0.dev0")
    require_version("torch>=2.0")
    for wrong in (
        lambda: check_min_version("99.0.0"),
        lambda: require_version("torch>=99", "Get it."),
        lambda: require_version("no-such>1"),
    ):
        with pytest.raises(VersionError):
            wrong()


def test_files(tmp_path: Path) -> None:
    from transept.utils import cached_file

    (tmp_path / "config.json").write_text("{}")
    assert cached_file(tmp_path, "config.json") == str(tmp_path / "config.json")
    with pytest.raises(FileError, match=r"other\.json"):
        cached_file(tmp_path, "other.json")
    assert cached_file(tmp_path, "other.json", _raise_exceptions_for_missing_entries=False) is None
    with pytest.raises(InputError, match="nonsense"):
        cached_file(tmp_path, "config.json", nonsense=1)


def test_messages() -> None:
    from transept.testing_utils import CaptureLogger
    from transept.utils import logging

    logger = logging.get_logger("transept.something")
    with CaptureLogger(logger) as captured:
        logger.warning_once("said once")  # type: ignore[attr-defined]
        logger.warning_once("said once")  # type: ignore[attr-defined]
    assert captured.out == "said once\n"
    logging.enable_default_handler()
    logging.enable_explicit_format()
    handlers = logging.get_logger().handlers
    assert [type(handler).__mro__[1] for handler in handlers if handler.formatter is not None] == [python_logging.StreamHandler]
    logging.reset_format()
    logging.disable_default_handler()


def test_column_of_a_data_set() -> None:
    from transept.pipelines.pt_utils import KeyDataset, KeyPairDataset

    rows = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert KeyDataset(rows, "a")[1] == 3
    assert KeyPairDataset(rows, "a", "b")[0] == {"text": 1, "text_pair": 2}


def test_code_of_repositories_is_not_run(tmp_path: Path) -> None:
    from transept.dynamic_module_utils import get_class_from_dynamic_module, get_relative_import_files

    (tmp_path / "model.py").write_text("from .parts import Part\nimport os\n")
    (tmp_path / "parts.py").write_text("")
    assert get_relative_import_files(tmp_path / "model.py") == [str(tmp_path / "parts.py")]
    with pytest.raises(UnsupportedError, match="never run"):
        get_class_from_dynamic_module("model.Model", str(tmp_path))


def test_heads_that_go() -> None:
    from transept.pytorch_utils import Conv1D, find_pruneable_heads_and_indices, prune_linear_layer

    new, index = find_pruneable_heads_and_indices([1, 3, 0], 3, 2, {0})  # of four heads one went before
    assert new == {1, 3}
    assert index.tolist() == [2, 3]
    layer = torch.nn.Linear(3, 6)
    assert torch.equal(prune_linear_layer(layer, index)(X[0, 0, :, :3]), layer(X[0, 0, :, :3])[:, 2:4])
    turned = Conv1D(6, 3)
    assert torch.equal(turned(X[..., :3]), X[..., :3] @ turned.weight + turned.bias)


def test_metrics_of_glue() -> None:
    from transept.data.metrics import glue_compute_metrics

    preds, labels = np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0])
    assert glue_compute_metrics("mrpc", preds, labels) == {"acc": 0.5, "f1": 0.5, "acc_and_f1": 0.5}
    assert glue_compute_metrics("mnli", preds, labels) == {"mnli/acc": 0.5}
    assert glue_compute_metrics("cola", preds, labels)["mcc"] == pytest.approx(0)
    assert glue_compute_metrics("sts-b", preds * 2.0, preds * 1.0)["corr"] == pytest.approx(1)
    with pytest.raises(InputError, match="no task"):
        glue_compute_metrics("nonsense", preds, labels)


def test_tensors_of_one_process_are_its_own() -> None:
    from transept.trainer_pt_utils import distributed_concat, nested_gather

    tree = {"a": torch.arange(4), "b": [torch.ones(2, 3), None]}
    assert nested_gather(tree) is tree
    assert nested_gather(None) is None
    assert torch.equal(distributed_concat(torch.arange(4), 3), torch.arange(3))
