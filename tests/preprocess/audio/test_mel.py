"""Mel spectrograms are the reference's to 1e-4, their filters to the last digits, and what cannot be one is named."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from transept.errors import ConfigError, InputError, TranseptWarning, UnsupportedError
from transept.preprocess.audio.audio_spectrogram_transformer import ASTFeatureExtractor
from transept.preprocess.audio.mel import mel_filters, to_hertz, to_mel
from transept.preprocess.audio.whisper import WhisperFeatureExtractor
from transept.preprocess.auto import AutoFeatureExtractor

RATE = 16000
# The reference says of its own default settings that they are unusual.
pytestmark = pytest.mark.filterwarnings("ignore:At least one mel filter has all zero values:UserWarning")
# The reference computes Whisper's in float32 by another transform, and AST's in float64.
CLOSE = 1e-4


def sounds(*lengths: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    noise = [0.1 * rng.standard_normal(length) * np.abs(np.sin(np.arange(length) / 3000)) for length in lengths]
    return [(each + 0.2 * np.sin(np.arange(len(each)) / 7)).astype(np.float32) for each in noise]


def check(ours: Any, theirs: Any) -> None:
    assert list(ours.keys()) == list(theirs.keys())
    for name in theirs:
        for row, other in zip(ours[name], theirs[name], strict=True):
            row, other = np.asarray(row), np.asarray(other)
            assert (row.shape, row.dtype) == (other.shape, other.dtype)
            assert np.abs(row - other).max() <= CLOSE


@pytest.mark.reference
@pytest.mark.parametrize("scale", ["htk", "kaldi", "slaney"])
@pytest.mark.parametrize(("area", "straight"), [(False, False), (True, False), (False, True)])
def test_filters_are_the_references(scale: Any, area: bool, straight: bool) -> None:
    from transformers.audio_utils import mel_filter_bank

    for bins, frequencies, rate, low, high in [
        (80, 201, 16000, 0.0, 8000.0),
        (20, 257, 16000, 20, 7600),
        (40, 513, 48000, 50, 14000),
    ]:
        options = {"norm": "slaney" if area else None, "mel_scale": scale, "triangularize_in_mel_space": straight}
        theirs = mel_filter_bank(frequencies, bins, low, high, rate, **options)
        ours = mel_filters(bins, frequencies, rate, low, high, scale, area=area, straight_in_mel=straight)
        assert np.abs(ours - theirs).max() <= 1e-12


@pytest.mark.parametrize("scale", ["htk", "kaldi", "slaney"])
def test_pitch_goes_there_and_back(scale: Any) -> None:
    hertz = np.array([0.0, 20, 999, 1000, 1001, 8000, 20000])
    assert np.allclose(to_hertz(to_mel(hertz, scale), scale), hertz, rtol=1e-12)
    assert (np.diff(to_mel(hertz, scale)) > 0).all()


GRID = [
    *itertools.product(["max_length", "longest"], [True, False], [None, 8000], [True, False], [True, None]),
]


@pytest.mark.reference
@pytest.mark.parametrize(("padding", "truncation", "max_length", "masked", "normalised"), GRID)
def test_whisper_equals_the_reference(padding: Any, truncation: bool, max_length: Any, masked: bool, normalised: Any) -> None:
    from transformers import WhisperFeatureExtractor as Reference

    options: Any = {"padding": padding, "truncation": truncation, "max_length": max_length, "sampling_rate": RATE}
    options |= {"return_attention_mask": masked, "do_normalize": normalised}
    lengths = (12345, 7900, 3200) if truncation or padding == "longest" else (7900, 3200)
    ours = WhisperFeatureExtractor(chunk_length=2)(sounds(*lengths), **options)
    theirs = Reference(chunk_length=2)(sounds(*lengths), **options)
    if not masked:
        theirs.pop("attention_mask", None)  # with do_normalize it stays, and is over samples
    check(ours, theirs)


@pytest.mark.reference
@pytest.mark.parametrize("settings", [{}, {"feature_size": 128}, {"n_fft": 512, "hop_length": 200}, {"padding_value": 0.1}])
def test_whispers_settings(settings: dict[str, Any]) -> None:
    from transformers import WhisperFeatureExtractor as Reference

    given = {"sampling_rate": RATE, "return_tensors": "pt"}
    for wave in (*sounds(40000, 480000, 500001), np.zeros(3000, np.float32)):
        ours, theirs = (kind(**settings)(wave, **given) for kind in (WhisperFeatureExtractor, Reference))
        check(ours, theirs)
        assert ours.input_features.shape == (1, settings.get("feature_size", 80), 480000 // settings.get("hop_length", 160))


@pytest.mark.reference
def test_a_long_sound_is_as_long_as_it_is() -> None:
    from transformers import WhisperFeatureExtractor as Reference

    options: Any = {"padding": "longest", "truncation": False, "sampling_rate": RATE, "return_attention_mask": True}
    waves = sounds(700_000, 500_077)
    check(WhisperFeatureExtractor()(waves, **options), Reference()(waves, **options))


@pytest.mark.reference
@pytest.mark.parametrize(
    "settings", [{}, {"max_length": 20, "num_mel_bins": 40}, {"do_normalize": False}, {"mean": 0.5, "std": 2.0}]
)
def test_ast_equals_the_reference(settings: dict[str, Any]) -> None:
    from transformers import ASTFeatureExtractor as Reference

    waves = [*sounds(400, 16000, 12345, 200_000), np.zeros(5000, np.float32)]
    for tensors in ("pt", None):
        given = {"sampling_rate": RATE, "return_tensors": tensors}
        check(ASTFeatureExtractor(**settings)(waves, **given), Reference(**settings)(waves, **given))


@pytest.mark.reference
@pytest.mark.parametrize("name", ["WhisperFeatureExtractor", "ASTFeatureExtractor"])
def test_files_go_there_and_back(name: str, tmp_path: Any) -> None:
    import transformers

    settings = {"max_length": 100, "mean": 0.5} if name.startswith("AST") else {"feature_size": 128, "chunk_length": 3}
    theirs = getattr(transformers, name)(**settings)
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    values = json.loads(path.read_text())
    if not name.startswith("AST"):  # old files hold what is computed
        path.write_text(json.dumps(values | {"mel_filters": [[0.0]], "n_samples": 480000, "nb_max_frames": 3000}))
    ours = AutoFeatureExtractor.from_pretrained(tmp_path)
    assert type(ours).__name__ == name
    ours.save_pretrained(tmp_path / "ours")
    again = getattr(transformers, name).from_pretrained(tmp_path / "ours")
    assert again.to_dict() == theirs.to_dict()
    wave = sounds(9000)[0]
    check(ours(wave, sampling_rate=RATE), theirs(wave, sampling_rate=RATE))
    assert type(ours).from_dict(ours.to_dict()) == ours


def test_tensors_and_dither() -> None:
    wave = torch.from_numpy(sounds(8000)[0])
    extractor = WhisperFeatureExtractor(chunk_length=1)
    found = extractor(wave, sampling_rate=RATE, return_tensors="pt").input_features
    assert found.shape == (1, 80, 100)
    noisy = WhisperFeatureExtractor(chunk_length=1, dither=1e-3)(wave, sampling_rate=RATE, return_tensors="pt").input_features
    assert 0 < float((noisy - found).abs().max()) < 4
    assert (extractor.n_samples, extractor.nb_max_frames) == (16000, 100)


@pytest.mark.parametrize("make", [WhisperFeatureExtractor, ASTFeatureExtractor])
def test_bad_sounds_are_errors(make: Any) -> None:
    extractor, good = make(), sounds(800)[0]
    for wave in ([], np.zeros(0, np.float32)):
        with pytest.raises(InputError, match=r"no sample|holds no|empty"):
            extractor(wave, sampling_rate=RATE)
    bad = good.copy()
    bad[17] = np.nan
    with pytest.raises(InputError, match="sample 17 of the audio is nan"):
        extractor([good, bad], sampling_rate=RATE)
    with pytest.warns(TranseptWarning, match="are taken to have 16000 Hz"):
        extractor(good)


def test_what_makes_no_frame_is_an_error() -> None:
    with pytest.raises(InputError, match="sound 1 has 399 samples, but a frame needs 400"):
        ASTFeatureExtractor()(sounds(400, 399), sampling_rate=RATE)
    with pytest.raises(InputError, match="sound 0 has 100 samples, but a frame needs at least 160"):
        WhisperFeatureExtractor()(sounds(100)[0], padding="longest", sampling_rate=RATE)
    with pytest.raises(UnsupportedError, match="'cuda'"):
        WhisperFeatureExtractor()(sounds(500)[0], sampling_rate=RATE, device="cuda")
    for wrong in ({"n_fft": 0}, {"feature_size": 10**9}, {"chunk_length": 10**6}, {"hop_length": 0}, {"dither": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            WhisperFeatureExtractor(**wrong)
