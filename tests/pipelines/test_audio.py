"""Tasks over sounds: answers equal to the reference's, chunks that join exactly, batches that change nothing."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transept import pipeline
from transept.errors import FileError, FormatError, InputError, InputTypeError, TranseptError, TranseptWarning, UnsupportedError
from transept.pipelines.base import InputsError
from transept.pipelines.media import MOST_ITEMS
from transept.pipelines.tasks.automatic_speech_recognition import chunks

from .media_models import RATE, STABLE, rated, save_audio_model, save_image_model, sound, wav

SHARED = Path(__file__).resolve().parents[3] / "shared/data"
KINDS = {"group": {}, "layer": STABLE}
TIMES = [{"return_timestamps": unit} for unit in ("char", "word")]


@pytest.fixture(scope="module", params=KINDS)
def speech(request, tmp_path_factory) -> Path:
    return save_audio_model(tmp_path_factory.mktemp("speech"), **KINDS[request.param])


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> Path:
    labels = {i: f"word {i}" for i in range(6)}
    return save_audio_model(tmp_path_factory.mktemp("commands"), "Wav2Vec2ForSequenceClassification", **STABLE, id2label=labels)


@pytest.fixture(scope="module")
def classify(commands) -> Any:
    return pipeline("audio-classification", commands)


def reference(task: str, directory: Path) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.pipeline(task, model=str(directory))


def check_labels(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], tolerance: float = 1e-5) -> None:
    assert [answer["label"] for answer in ours] == [answer["label"] for answer in theirs]
    assert [answer["score"] for answer in ours] == pytest.approx([answer["score"] for answer in theirs], abs=tolerance)


# Speech recognition


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_transcripts_equal_the_reference(speech):
    ours, theirs = pipeline("automatic-speech-recognition", speech), reference("automatic-speech-recognition", speech)
    cuts = [{}, {"chunk_length_s": 2.0}, {"chunk_length_s": 1.5, "stride_length_s": (0.5, 0.3)}]
    cuts += [{"chunk_length_s": 2.0, "stride_length_s": 0.25}, {"chunk_length_s": 30}]
    for seconds in (0.03, 0.5, 5.3):
        samples = sound(seconds, seed=3)
        for options in (cut | times for cut in cuts for times in ({}, *TIMES)):
            answer = ours(rated(samples), **options)
            assert answer == theirs(rated(samples), **options), (seconds, options)
            assert set(answer) == ({"text", "chunks"} if "return_timestamps" in options else {"text"})
    assert len(set(ours(rated(samples))["text"])) > 5  # letters of all kinds, so that there was something to compare


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("context", [(0, 0), (3200, 1600), (1000, 7777), (0, 24000)])
def test_context_that_is_passed_along_equals_the_reference(speech, context):
    ours, theirs = pipeline("automatic-speech-recognition", speech), reference("automatic-speech-recognition", speech)
    given = {"raw": sound(2.0), "sampling_rate": RATE, "stride": context}
    assert ours(given, return_timestamps="char") == theirs(dict(given), return_timestamps="char")


@pytest.mark.parametrize(("hop", "field"), [(320, 400), (320, 320), (2, 7), (5, 31)])
def test_chunks_keep_every_frame_once(hop, field):
    random = np.random.default_rng(0)
    for _ in range(400):
        left, right = (int(n) * hop for n in random.integers(0, 6, 2))
        size = max(left + right + hop * int(random.integers(1, 9)), -(-field // hop) * hop)
        total = int(random.integers(field, 40 * size))
        kept = []
        for chunk in chunks(total, hop, field, size, left, right):
            assert 0 <= chunk.start < chunk.stop <= total
            assert chunk.start % hop == 0
            frames = range((chunk.stop - chunk.start - field) // hop + 1)
            kept += [chunk.start // hop + frame for frame in frames[chunk.first : chunk.end]]
        assert kept == list(range((total - field) // hop + 1))


@pytest.mark.parametrize(("size", "left", "right"), [(2.0, 0.4, 0.4), (1.0, 0.3, 0.2), (0.7, 0.2, 0.2), (4.0, 0.2, 0.3)])
def test_joined_logits_equal_those_of_one_pass(tmp_path, size, left, right):
    """Without layers that look at all frames, each frame sees 8 others (0.16 s) on its left and 7 on its right."""
    save_audio_model(tmp_path, **STABLE, num_hidden_layers=0)
    pipe = pipeline("automatic-speech-recognition", tmp_path)
    pipe.feature_extractor.do_normalize = False  # or each chunk would be as loud as the others
    for seconds in (0.1, size - 0.01, size, size + 0.01, 5.0, 7.777):
        samples = sound(seconds, seed=1)
        with torch.inference_mode():
            whole = pipe.model(torch.from_numpy(samples)[None]).logits[0]
            plan = chunks(len(samples), 320, 400, *(round(each * 50) * 320 for each in (size, left, right)))
            pieces = [pipe.model(torch.from_numpy(samples[c.start : c.stop])[None]).logits[0, c.first : c.end] for c in plan]
        joined = torch.cat(pieces)
        assert joined.shape == whole.shape
        assert (joined - whole).abs().max() < 1e-5 * whole.abs().max()
        options = {"chunk_length_s": size, "stride_length_s": [left, right]}
        for times in ({}, *TIMES):
            assert pipe(rated(samples), **options, **times) == pipe(rated(samples), **times)


def test_chunks_without_context_lose_no_time(speech):
    pipe = pipeline("automatic-speech-recognition", speech)
    samples = sound(4.0)
    rows = pipe.rows(None, samples, pipe.with_options({"chunk_length_s": 0.5, "stride_length_s": 0}))
    assert len(rows) == 8
    assert sum(map(len, pipe.forward(rows[:7], pipe.options)), len(pipe.forward(rows[7:], pipe.options)[0])) == 199
    assert pipe.model.backbone.feature_lengths(len(samples)) == 199


def test_mixed_lengths_equal_one_by_one_in_any_order(speech):
    pipe = pipeline("automatic-speech-recognition", speech)
    samples = [sound(0.1 + 0.13 * (seed % 11), seed) for seed in range(45)]
    alone = [pipe(rated(one), return_timestamps="char") for one in samples]
    order = np.random.default_rng(0).permutation(len(samples)).tolist()
    assert pipe([rated(samples[i]) for i in order], return_timestamps="char") == [alone[i] for i in order]
    assert list(pipe((rated(one) for one in samples), return_timestamps="char")) == alone
    small = pipeline("automatic-speech-recognition", speech, batch_size=2, budget=10**6)
    assert small([rated(one) for one in samples], return_timestamps="char") == alone


def test_only_models_that_padding_leaves_alone_are_padded(tmp_path):
    batches: dict[str, list[list[int]]] = {}
    for kind, settings in KINDS.items():
        pipe = pipeline("automatic-speech-recognition", save_audio_model(tmp_path / kind, **settings), budget=10**6)
        calls, forward = batches.setdefault(kind, []), pipe.forward

        def watched(samples, options, calls=calls, forward=forward):
            calls.append([len(sample.inputs["samples"]) for sample in samples])
            return forward(samples, options)

        pipe.forward = watched
        pipe([rated(sound(seconds)) for seconds in (0.5, 0.2, 0.5, 0.3, 0.2)])
    assert sorted(batches["group"]) == [[3200, 3200], [4800], [8000, 8000]]
    assert batches["layer"] == [[8000, 8000, 4800, 3200, 3200]]


def test_every_kind_of_input_gives_the_same_answer(speech, tmp_path):
    pipe = pipeline("automatic-speech-recognition", speech)
    samples = sound(1.0)
    data, path = wav(samples), tmp_path / "sound.wav"
    path.write_bytes(data)
    kinds: list[Any] = [path, str(path), data, io.BytesIO(data), (samples, RATE), rated(samples), {"bytes": data}]
    kinds += [{"raw": samples, "sampling_rate": RATE}, (torch.from_numpy(samples), RATE), rated(samples.astype(np.float64))]
    kinds += [rated(np.stack([samples, samples]))]
    expected = pipe(path)
    assert len(expected["text"]) > 5
    for kind in kinds:
        assert pipe(kind) == expected
    kinds[3].seek(0)
    assert pipe(kinds) == [expected] * len(kinds)
    assert pipe(samples, sampling_rate=RATE) == expected
    assert pipe(samples.tolist(), sampling_rate=RATE) == expected
    assert pipe([samples, samples.tolist()], sampling_rate=RATE) == [expected] * 2


def test_another_rate_is_resampled(speech):
    import soxr

    pipe = pipeline("automatic-speech-recognition", speech)
    slow = soxr.resample(sound(1.0), RATE, 8000)
    assert pipe(rated(slow, 8000)) == pipe(rated(soxr.resample(slow, 8000, RATE, quality="HQ")))
    given = {"raw": slow, "sampling_rate": 8000, "stride": (1600, 800)}
    again = {"raw": soxr.resample(slow, 8000, RATE, quality="HQ"), "sampling_rate": RATE, "stride": (3200, 1600)}
    assert pipe(given) == pipe(again)


def test_a_bare_array_has_the_models_rate(speech):
    pipe = pipeline("automatic-speech-recognition", speech)
    with pytest.warns(TranseptWarning, match=f"are taken to have {RATE} Hz"):
        assert pipe(sound(0.3)) == pipe(rated(sound(0.3)))


def test_bad_sounds_are_reported_by_position_and_lose_no_answer(speech, tmp_path):
    pipe = pipeline("automatic-speech-recognition", speech)
    good, data = rated(sound(0.3)), wav(sound(0.3))
    (tmp_path / "notes.wav").write_text("no sound")
    bad: dict[int, tuple[Any, type[TranseptError], str]] = {
        2: (rated(np.zeros(0, np.float32)), InputError, "empty"),
        3: (rated(np.array([0.1, np.nan, 0.2], np.float32)), InputError, "sample 1 of the audio is nan"),
        4: (rated(sound(0.02)), InputError, "320 samples at 16000 Hz, but the model needs at least 400"),
        6: (data[:30], FormatError, "truncated or corrupt"),
        7: (str(tmp_path / "missing.wav"), FileError, "no such audio"),
        8: (tmp_path / "notes.wav", FormatError, "not read"),
        9: (rated(sound(0.3), 7), InputError, "between 1000"),
        10: (object(), InputTypeError, "object"),
        11: ({"array": sound(0.3)}, InputError, "sampling rate"),
        12: ("https://example.com/a.wav", InputError, "URL"),
        13: ({**good, "stride": (1, 2, 3)}, InputError, '"stride"'),
        14: ({**good, "stride": (4000, 4000)}, InputError, '"stride"'),
    }
    inputs = [bad[i][0] if i in bad else good for i in range(17)]
    with pytest.raises(InputsError) as caught:
        pipe(inputs)
    assert caught.value.positions == sorted(bad)
    expected = pipe(good)
    for index, answer in enumerate(pipe(inputs, on_error="return")):
        if index in bad:
            assert isinstance(answer, bad[index][1]), answer
            assert bad[index][2] in str(answer)
        else:
            assert answer == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_timestamps": True}, "characters or words"),
        ({"return_timestamps": "sentence"}, "'sentence'"),
        ({"chunk_length_s": -1}, "`chunk_length_s`"),
        ({"chunk_length_s": float("nan")}, "`chunk_length_s`"),
        ({"chunk_length_s": "10"}, "`chunk_length_s`"),
        ({"chunk_length_s": 1.0, "stride_length_s": 0.5}, "no room"),
        ({"chunk_length_s": 0.01}, "no room"),
        ({"chunk_length_s": 2.0, "stride_length_s": (0.1, 0.1, 0.1)}, "`stride_length_s`"),
        ({"chunk_length_s": 2.0, "stride_length_s": -0.5}, "`stride_length_s`"),
        ({"chunk_length": 2.0}, "'chunk_length_s'"),
        ({"sampling_rate": 5}, "between 1000"),
    ],
    ids=str,
)
def test_wrong_options_are_named(speech, options, message):
    with pytest.raises(InputError, match=message):
        pipeline("automatic-speech-recognition", speech)(sound(0.2), **({"sampling_rate": RATE} | options))


def test_an_adapter_gives_texts_but_no_times(tmp_path):
    save_audio_model(tmp_path, **STABLE, add_adapter=True, num_adapter_layers=1)
    pipe = pipeline("automatic-speech-recognition", tmp_path)
    long, short = rated(sound(1.0)), rated(sound(0.3))
    assert pipe([long, short]) == [pipe(long), pipe(short)]
    with pytest.raises(UnsupportedError, match="adapter"):
        pipe(long, chunk_length_s=0.5)
    with pytest.raises(UnsupportedError, match="adapter"):
        pipe(long, return_timestamps="char")


def test_a_stream_is_consumed_lazily(speech):
    taken = itertools.count()
    stream = pipeline("automatic-speech-recognition", speech)(rated(sound(0.05, next(taken))) for _ in itertools.count())
    for _ in range(3 * MOST_ITEMS):
        next(stream)
    assert next(taken) <= 4 * MOST_ITEMS


# Classification


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": 2}, {"top_k": 100}, *({"function_to_apply": name} for name in ("softmax", "sigmoid", "none"))],
    ids=str,
)
def test_classes_equal_the_reference(commands, classify, options):
    # The reference forgets its default of five classes where any option is passed.
    theirs = reference("audio-classification", commands)(sound(1.3), **({"top_k": 5} | options))
    check_labels(classify(rated(sound(1.3)), **options), theirs)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("problem", ["multi_label_classification", "regression", None])
@pytest.mark.parametrize("settings", [{}, {**STABLE, "use_weighted_layer_sum": True}], ids=["group", "mixed layers"])
def test_classes_by_the_kind_of_problem_equal_the_reference(tmp_path, problem, settings):
    save_audio_model(tmp_path, "Wav2Vec2ForSequenceClassification", **settings, problem_type=problem, num_labels=4)
    ours = pipeline("audio-classification", tmp_path)(rated(sound(1.3)))
    check_labels(ours, reference("audio-classification", tmp_path)(sound(1.3)))


@pytest.mark.parametrize("kind", KINDS)
def test_classes_of_mixed_lengths_equal_one_by_one(tmp_path, kind):
    save_audio_model(tmp_path, "Wav2Vec2ForSequenceClassification", **KINDS[kind], num_labels=4)
    pipe = pipeline("audio-classification", tmp_path)
    samples = [rated(sound(0.1 + 0.07 * (seed % 7), seed)) for seed in range(40)]
    for answer, one in zip(pipe(samples), samples, strict=True):
        check_labels(answer, pipe(one), 1e-5)


def save_spectrogram_model(directory: Path, name: str) -> None:
    """A tiny model over spectrograms of a second, and its feature extractor."""
    import transept

    torch.manual_seed(0)
    if name.startswith("AST"):
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
        config: Any = transept.ASTConfig(**sizes, max_length=98, num_mel_bins=32, num_labels=4, initializer_range=0.3)
        transept.ASTFeatureExtractor(num_mel_bins=32, max_length=98).save_pretrained(directory)
    else:
        sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
        sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}
        config = transept.WhisperConfig(**sizes, num_mel_bins=32, max_source_positions=50, num_labels=4, init_std=0.3)
        transept.WhisperFeatureExtractor(feature_size=32, chunk_length=1).save_pretrained(directory)
    getattr(transept, name)(config).save_pretrained(directory)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["ASTForAudioClassification", "WhisperForAudioClassification"])
def test_classes_of_spectrograms_equal_the_reference(tmp_path, name):
    save_spectrogram_model(tmp_path, name)
    pipe = pipeline(model=tmp_path)
    assert pipe.task == "audio-classification"
    samples = [sound(0.3 + 0.4 * seed, seed) for seed in range(4)]
    theirs = reference("audio-classification", tmp_path)
    for answer, samples_alone in zip(pipe([rated(each) for each in samples]), samples, strict=True):
        check_labels(answer, theirs(samples_alone))
    silent = pipe(rated(np.zeros(8000, np.float32)))
    assert np.isfinite([each["score"] for each in silent]).all()
    answers = pipe([rated(samples[0]), rated(np.zeros(0, np.float32))], on_error="return")
    assert isinstance(answers[1], InputError)


def test_bad_sounds_and_options_of_classification(classify):
    good = rated(sound(0.2))
    answers = classify([good, {"array": sound(0.2)}, rated(sound(0.01))], on_error="return")
    check_labels(answers[0], classify(good), 1e-5)
    assert "sampling rate" in str(answers[1])
    assert "at least 400" in str(answers[2])
    with pytest.raises(InputError, match="'top_k'"):
        classify(good, topk=1)


def test_models_that_do_not_hear_are_refused(tmp_path, classify):
    from transept.models.bert import BertConfig, BertForSequenceClassification

    save_image_model(tmp_path / "picture")
    with pytest.raises(UnsupportedError, match="has no model 'ForAudioClassification'"):
        pipeline("audio-classification", tmp_path / "picture")
    tiny = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    text = BertForSequenceClassification(tiny)
    with pytest.raises(InputTypeError, match="reads sounds, and BertForSequenceClassification does not"):
        pipeline("audio-classification", text, feature_extractor=classify.feature_extractor)
    text.save_pretrained(tmp_path / "text")
    with pytest.raises(TranseptError, match="preprocessor_config"):
        pipeline("audio-classification", tmp_path / "text")


@pytest.mark.real_data
def test_real_recordings(speech):
    if not (SHARED / "audio").is_dir():
        pytest.skip(f"real recordings are missing: {SHARED / 'audio'}")
    derived, spoken = SHARED / "audio/derived", SHARED / "audio/fsdd/recordings"
    pipe = pipeline("automatic-speech-recognition", speech)
    formats = pipe(sorted(derived.iterdir()), chunk_length_s=4.0)
    assert len(formats) >= 4
    assert all(answer["text"] for answer in formats)
    digits = sorted(spoken.iterdir())[:30]
    assert pipe(digits) == [pipe(path) for path in digits]
    empty = SHARED / "audio/pydub/test1_empty.wav"
    assert isinstance(pipe([digits[0], empty], on_error="return")[1], TranseptError)
