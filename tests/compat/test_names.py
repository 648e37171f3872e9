"""Names that scripts import: those of other modules, and those that are not here."""

from __future__ import annotations

import importlib
import importlib.util
import random
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import transept
from transept.compat.table import MODULES, PARTS, ROOT
from transept.core.auto import config_class, model_types
from transept.errors import TranseptWarning, UnsupportedError

IMPORTS = [
    ("transept", "PreTrainedModel"),
    ("transept", "PretrainedConfig"),
    ("transept", "logging"),
    ("transept", "set_seed"),
    ("transept", "is_torch_available"),
    ("transept.utils", "logging"),
    ("transept.utils", "is_peft_available"),
    ("transept.utils", "ModelOutput"),
    ("transept.utils.logging", "get_logger"),
    ("transept.cache_utils", "DynamicCache"),
    ("transept.cache_utils", "StaticCache"),
    ("transept.generation", "GenerationConfig"),
    ("transept.generation", "StoppingCriteriaList"),
    ("transept.compat.outputs", "BaseModelOutput"),
    ("transept.modeling_utils", "PreTrainedModel"),
    ("transept.configuration_utils", "PretrainedConfig"),
    ("transept.tokenization_utils_base", "BatchEncoding"),
    ("transept.trainer_utils", "set_seed"),
    ("transept", "CONFIG_MAPPING"),
    ("transept", "ProcessorMixin"),
    ("transept", "is_wandb_available"),
    ("transept.activations", "ACT2FN"),
    ("transept.audio_utils", "mel_filter_bank"),
    ("transept.data.data_collator", "DataCollatorMixin"),
    ("transept.data.metrics", "glue_compute_metrics"),
    ("transept.file_utils", "WEIGHTS_NAME"),
    ("transept.generation.logits_process", "TopKLogitsWarper"),
    ("transept.generation.stopping_criteria", "StoppingCriteria"),
    ("transept.generation.streamers", "BaseStreamer"),
    ("transept.generation.utils", "GenerationMixin"),
    ("transept.image_transforms", "center_to_corners_format"),
    ("transept.image_utils", "PILImageResampling"),
    ("transept.integrations", "is_deepspeed_zero3_enabled"),
    ("transept.loss.loss_utils", "LOSS_MAPPING"),
    ("transept.masking_utils", "create_causal_mask"),
    ("transept.modeling_rope_utils", "ROPE_INIT_FUNCTIONS"),
    ("transept.modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
    ("transept.models.auto.modeling_auto", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    ("transept.models.bert", "BertTokenizer"),
    ("transept.models.bert.modeling_bert", "BertForMaskedLM"),
    ("transept.models.bert.tokenization_bert_fast", "BertTokenizerFast"),
    ("transept.models.camembert.modeling_camembert", "CamembertModel"),
    ("transept.models.clip.image_processing_clip", "CLIPImageProcessor"),
    ("transept.models.llama.modeling_llama", "apply_rotary_pos_emb"),
    ("transept.models.wav2vec2.feature_extraction_wav2vec2", "Wav2Vec2FeatureExtractor"),
    ("transept.optimization", "get_scheduler"),
    ("transept.pipelines.pt_utils", "KeyDataset"),
    ("transept.pytorch_utils", "Conv1D"),
    ("transept.testing_utils", "CaptureLogger"),
    ("transept.tokenization_python", "PythonBackend"),
    ("transept.tokenization_utils_base", "PaddingStrategy"),
    ("transept.tokenization_utils_sentencepiece", "SentencePieceBackend"),
    ("transept.tokenization_utils_tokenizers", "TokenizersBackend"),
    ("transept.trainer_pt_utils", "LabelSmoother"),
    ("transept.trainer_utils", "speed_metrics"),
    ("transept.utils", "PushToHubMixin"),
    ("transept.utils.versions", "require_version"),
]


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_names_and_where_scripts_import_them_from(module: str, name: str) -> None:
    found = importlib.import_module(module)
    namespace: dict[str, object] = {}
    exec(f"from {module} import {name}", namespace)
    assert namespace[name] is getattr(found, name)
    assert not hasattr(found, "nonsense")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("SamModel", r"not here \(yet\)"),
        ("YolosForObjectDetection", r"not here \(yet\)"),
        ("TFBertModel", "use BertModel"),
        ("AdamW", "torch.optim.AdamW"),
        ("BertForMaskedLm", "BertForMaskedLM"),
    ],
)
def test_names_that_are_not_here(name: str, what: str) -> None:
    with pytest.raises(AttributeError, match=what) as caught:
        getattr(transept, name)
    if "not here" in what:
        assert "Did you mean" not in str(caught.value)
    with pytest.raises(ImportError, match=what):
        exec(f"from transept import {name}")
    assert not hasattr(transept, name)


def test_other_modules_are_not_found_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("transept.nonsense")
    assert importlib.util.find_spec("transept.nonsense") is None


def test_base_classes() -> None:
    assert issubclass(transept.GPT2LMHeadModel, transept.PreTrainedModel)
    assert issubclass(transept.GPT2Config, transept.PretrainedConfig)


def test_one_seed_for_all() -> None:
    transept.set_seed(7)
    first = random.random(), torch.rand(1).item()
    transept.set_seed(7)
    assert first == (random.random(), torch.rand(1).item())


def test_verbosity() -> None:
    from transept import logging

    before = logging.get_verbosity()
    with warnings.catch_warnings(record=True) as caught:
        try:
            logging.set_verbosity_error()
            warnings.warn("x", TranseptWarning, stacklevel=1)
            assert not caught
            logging.set_verbosity_warning()
            warnings.warn("y", TranseptWarning, stacklevel=1)
            assert len(caught) == 1
        finally:
            logging.set_verbosity(before)


def test_modules_of_names_cost_nothing_before_they_are_used() -> None:
    code = "import sys, transept.utils.logging, transept.cache_utils; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_of_the_table_hides_one_of_ours() -> None:
    package = Path(transept.__file__).parent
    assert not [
        name for name in MODULES if (path := package / name.replace(".", "/")).is_dir() or path.with_suffix(".py").is_file()
    ]


def test_all_places_of_the_table_are_there() -> None:
    for place in {place for places in (*MODULES.values(), ROOT, PARTS) for place in places}:
        path, _, pairs = place.partition(": ")
        module = importlib.import_module(path if path in ("tokenizers", "typing") else f"transept.{path}")
        for name in (pair.partition(" as ")[0] for pair in pairs.split(", ") if pair):
            assert hasattr(module, name), place


@pytest.mark.parametrize("model_type", model_types())
def test_files_of_all_families(model_type: str) -> None:
    config = config_class(model_type)
    module = importlib.import_module(f"transept.models.{model_type}.configuration_{model_type}")
    assert getattr(module, config.__name__) is config


def test_modules_are_reached_without_another_import() -> None:
    code = "import transept; transept.utils.logging.set_verbosity_info(); transept.trainer_utils.set_seed(0); "
    code += "transept.models.bert.modeling_bert.BertModel; transept.generation.streamers.TextStreamer"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("from transept.models.bert.modeling_bert import BertCrossAttention", "modeling_bert has no name 'BertCrossAttention'"),
        ("from transept.integrations import HfDeepSpeedConfig", "fsdp"),
        ("from transept.utils import no_such_function", "transept.utils has no name 'no_such_function'"),
    ],
)
def test_absent_names_say_what_to_do(line: str, what: str) -> None:
    with pytest.raises(ImportError, match=what):
        exec(line)


def test_settings_of_quantised_checkpoints_can_be_made() -> None:
    assert transept.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4").to_dict()["load_in_4bit"] is True
    with pytest.raises(UnsupportedError, match="cannot be rounded by GPTQConfig"):
        transept.GPTQConfig(bits=4, dataset="c4").rounding()
