"""Wav2Vec2Processor and AutoProcessor: two parts as one, in both layouts."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import types

import numpy as np
import pytest
import transformers
from transformers import AutoProcessor as ReferenceAuto

from transept.errors import ConfigError, FileError, InputError, InputTypeError, TranseptWarning, UnsupportedError
from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer
from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor
from transept.preprocess.auto import AutoProcessor
from transept.preprocess.features import BatchFeature
from transept.preprocess.image.vit import ViTImageProcessor
from transept.preprocess.processors.wav2vec2 import Wav2Vec2Processor

VOCAB = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVK'XJQZ"])}
RATE = 16000
SOUNDS = [np.sin(np.arange(length) / 7).astype(np.float32) for length in (900, 1200)]


@pytest.fixture
def ours():
    return Wav2Vec2Processor(Wav2Vec2FeatureExtractor(return_attention_mask=True), Wav2Vec2CTCTokenizer(VOCAB))


@pytest.fixture
def reference(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps(VOCAB))
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    return transformers.Wav2Vec2Processor(extractor, transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json")))


def compare(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        # samples reach 1.5 in size, which single precision rounds to 1e-7; ids and masks are equal
        assert np.allclose(np.asarray(found[name]), np.asarray(expected[name]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("tensors", ["np", "pt"])
def test_calls_match_the_reference(ours, reference, tensors):
    options = {"padding": True, "return_tensors": tensors}
    for inputs in (
        {"audio": SOUNDS, "sampling_rate": RATE},
        {"text": ["HELLO", "A B"]},
        {"audio": SOUNDS, "text": ["HELLO", "A B"], "sampling_rate": RATE, "pad_to_multiple_of": 64},
        {"audio": SOUNDS, "sampling_rate": RATE, "audio_kwargs": {"return_attention_mask": False}},
        {"audio": SOUNDS, "text": ["A", "B"], "sampling_rate": RATE, "text_kwargs": {"padding": "max_length", "max_length": 9}},
    ):
        inputs = options | inputs
        if "text_kwargs" in inputs:  # which the reference refuses beside the same option for both
            del inputs["padding"]
            inputs["audio_kwargs"] = {"padding": True}
        compare(ours(**copy.deepcopy(inputs)), reference(**copy.deepcopy(inputs)))
    compare(ours(SOUNDS[0], sampling_rate=RATE), reference(SOUNDS[0], sampling_rate=RATE))
    assert ours(text="HELLO").input_ids == reference(text="HELLO").input_ids


def test_pad_matches_the_reference(ours, reference):
    features = [{"input_values": sound} for sound in SOUNDS]
    labels = [{"input_ids": ours.tokenizer.encode(text)} for text in ("HELLO", "A")]
    for options in ({}, {"padding": "longest"}, {"pad_to_multiple_of": 32}):
        inputs = {"return_tensors": "pt"} | options
        compare(ours.pad(copy.deepcopy(features), **inputs), reference.pad(copy.deepcopy(features), **inputs))
        compare(ours.pad(labels=labels, **inputs), reference.pad(labels=labels, **inputs))
        both = reference.pad(copy.deepcopy(features), labels=labels, **inputs)
        compare(ours.pad(input_features=copy.deepcopy(features), labels=labels, **inputs), both)
    with pytest.raises(InputError, match="neither input_features nor labels"):
        ours.pad()


def test_decoding_and_names(ours, reference):
    path = [11, 0, 11, 5, 5, 15, 0, 15, 8]
    assert ours.decode(path) == reference.decode(path)
    assert ours.batch_decode([path, path[:3]]) == reference.batch_decode([path, path[:3]])
    assert ours.batch_decode([path], output_word_offsets=True).word_offsets[0][0]["end_offset"] == 9
    assert ours.model_input_names == reference.model_input_names
    assert isinstance(ours(text="A"), BatchFeature)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert copied(text="HELLO").input_ids == ours(text="HELLO").input_ids
    assert "Wav2Vec2FeatureExtractor" in repr(ours)


def test_calls_that_say_too_little_or_too_much(ours):
    with pytest.raises(InputError, match="neither audio nor text"):
        ours()
    with pytest.raises(InputError, match=r"no option 'sample_rate'. Did you mean 'sampling_rate'"):
        ours(SOUNDS, sample_rate=RATE)
    with pytest.warns(TranseptWarning, match=f"are taken to have {RATE} Hz"):
        ours(SOUNDS)
    with pytest.raises(InputTypeError, match="SequenceFeatureExtractor is needed, but Wav2Vec2CTCTokenizer was passed"):
        Wav2Vec2Processor(ours.tokenizer, ours.feature_extractor)


# Files


@pytest.mark.parametrize("legacy", [False, True])
def test_ours_to_the_reference_and_back(tmp_path, ours, legacy):
    ours.save_pretrained(tmp_path / "ours", legacy_format=legacy)
    names = {path.name for path in (tmp_path / "ours").iterdir()}
    assert names == {
        "preprocessor_config.json" if legacy else "processor_config.json",
        "vocab.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    }
    for loaded in (
        transformers.Wav2Vec2Processor.from_pretrained(tmp_path / "ours"),
        ReferenceAuto.from_pretrained(tmp_path / "ours"),
    ):
        assert type(loaded) is transformers.Wav2Vec2Processor
        inputs = {"audio": SOUNDS, "text": ["HELLO", "A B"], "sampling_rate": RATE, "padding": True, "return_tensors": "np"}
        compare(ours(**inputs), loaded(**inputs))
        loaded.save_pretrained(tmp_path / "theirs")
    for back in (Wav2Vec2Processor.from_pretrained(tmp_path / "theirs"), AutoProcessor.from_pretrained(tmp_path / "theirs")):
        assert type(back) is Wav2Vec2Processor
        assert back.feature_extractor == ours.feature_extractor
        assert back.tokenizer.get_vocab() == ours.tokenizer.get_vocab()


def test_overrides_go_to_the_part_that_knows_them(tmp_path, ours):
    ours.save_pretrained(tmp_path)
    loaded = Wav2Vec2Processor.from_pretrained(tmp_path, do_lower_case=True, do_normalize=False)
    assert loaded.tokenizer.do_lower_case
    assert not loaded.feature_extractor.do_normalize
    with pytest.raises(InputError, match="no setting 'do_normalise'"):
        Wav2Vec2Processor.from_pretrained(tmp_path, do_normalise=False)


def test_auto_goes_by_the_files(tmp_path, ours, monkeypatch):
    """A model without a processor's name: what its files are for decides."""
    ours.save_pretrained(tmp_path / "named_nowhere", legacy_format=True)
    file = tmp_path / "named_nowhere/preprocessor_config.json"
    values = json.loads(file.read_text())
    del values["processor_class"]
    file.write_text(json.dumps(values))
    assert type(AutoProcessor.from_pretrained(tmp_path / "named_nowhere")) is Wav2Vec2Processor
    (tmp_path / "named_nowhere/vocab.json").unlink()
    assert AutoProcessor.from_pretrained(tmp_path / "named_nowhere") == ours.feature_extractor

    ViTImageProcessor(size=9).save_pretrained(tmp_path / "picture")
    assert AutoProcessor.from_pretrained(tmp_path / "picture", do_rescale=False) == ViTImageProcessor(size=9, do_rescale=False)
    (tmp_path / "picture/preprocessor_config.json").write_text('{"size": 9}')
    (tmp_path / "picture/config.json").write_text('{"model_type": "vit"}')
    assert AutoProcessor.from_pretrained(tmp_path / "picture") == ViTImageProcessor(size=9)

    seen = []
    tokenizer = types.SimpleNamespace(from_pretrained=lambda *args, **options: seen.append((args, options)) or "tokenizer")
    monkeypatch.setitem(sys.modules, "transept.preprocess.text.auto", types.SimpleNamespace(AutoTokenizer=tokenizer))
    (tmp_path / "text").mkdir()
    (tmp_path / "text/tokenizer.json").write_text("{}")
    assert AutoProcessor.from_pretrained(tmp_path / "text", subfolder="") == "tokenizer"
    assert seen == [((tmp_path / "text",), {"subfolder": ""})]


def test_what_cannot_be_loaded(tmp_path, ours):
    (tmp_path / "processor_config.json").write_text('{"processor_class": "ClapProcessor"}')
    with pytest.raises(UnsupportedError, match="names the processor 'ClapProcessor'"):
        AutoProcessor.from_pretrained(tmp_path)
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "SamImageProcessor"}')
    with pytest.raises(UnsupportedError, match="'SamImageProcessor', which is not supported"):
        AutoProcessor.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"feature_extractor_type": "ClapFeatureExtractor"}')
    with pytest.raises(UnsupportedError, match="'ClapFeatureExtractor', which is not supported"):
        AutoProcessor.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"processor_class": "Wav2Vec2Processor", "feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": -5}'
    )
    with pytest.raises(ConfigError, match="`sampling_rate`"):
        AutoProcessor.from_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"processor_class": "Wav2Vec2Processor", "feature_extractor_type": "Wav2Vec2FeatureExtractor"}'
    )
    with pytest.raises(FileError, match=r"vocab\.json"):
        AutoProcessor.from_pretrained(tmp_path)
    with pytest.raises(InputTypeError, match=r"AutoProcessor\.from_pretrained"):
        AutoProcessor()


def test_the_language_of_a_model_for_many(tmp_path):
    vocab = {"eng": VOCAB, "fra": VOCAB | {"É": len(VOCAB)}}
    made = Wav2Vec2Processor(Wav2Vec2FeatureExtractor(), Wav2Vec2CTCTokenizer(vocab, target_lang="eng"))
    made.save_pretrained(tmp_path)
    for auto in (AutoProcessor, ReferenceAuto):
        assert auto.from_pretrained(tmp_path).tokenizer.target_lang == "eng"
        chosen = auto.from_pretrained(tmp_path, target_lang="fra")
        assert chosen.tokenizer.target_lang == "fra"
        assert list(chosen(text="É").input_ids) == [len(VOCAB)]
