"""Speech that models write: answers equal to the reference's pipeline, batches and streams that change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.thorough import in_turn
from transept import AutoProcessor, WhisperProcessor, draw, pipeline
from transept.adapt.pack import can_pack
from transept.errors import FormatError, InputError, InputTypeError
from transept.layers.linear import Packed
from transept.pipelines import transcription

from .media_models import rated
from .speech_models import RATE, save_writer, talk

SHORT, LONG = talk(8), talk(70)
CASES: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "text": (SHORT, {}),
    "times": (SHORT, {"return_timestamps": True}),
    "words": (SHORT, {"return_timestamps": "word"}),
    "language": (SHORT, {"return_language": True}),
    "language_and_times": (SHORT, {"return_language": True, "return_timestamps": True}),
    "translated": (SHORT, {"generate_kwargs": {"num_beams": 3, "task": "translate", "language": "german"}}),
    "long": (LONG, {"return_timestamps": True}),
    "long_words": (LONG, {"return_timestamps": "word"}),
    "chunks": (LONG, {"chunk_length_s": 20, "return_timestamps": True}),
    "chunks_of_text": (LONG, {"chunk_length_s": 20, "generate_kwargs": {"language": "fr"}}),
}


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> Path:
    return save_writer(tmp_path_factory.mktemp("writer"))


@pytest.fixture(scope="module")
def write(writer) -> Any:
    return pipeline("automatic-speech-recognition", writer)


@pytest.fixture(scope="module")
def reference(writer) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers.pipeline("automatic-speech-recognition", model=str(writer))


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", in_turn(CASES, 4))
def test_answers_match_the_reference(case, write, reference) -> None:
    sound, options = CASES[case]
    assert write(rated(sound), **options) == reference(rated(sound), **options)


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_defaults_are_the_references(tmp_path) -> None:
    import transformers

    folder = save_writer(tmp_path, num_beams=None, max_new_tokens=None, max_length=None)
    ours = pipeline("automatic-speech-recognition", folder)
    assert ours.settings(ours.options)["num_beams"] == 5
    assert ours.settings(ours.options)["max_new_tokens"] == 256
    with pytest.raises(InputError, match="`max_new_tokens`"):
        ours(rated(SHORT), max_new_tokens=0)
    assert transformers.AutomaticSpeechRecognitionPipeline._default_generation_config.num_beams == 5


@pytest.mark.skipif(not can_pack(), reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("wide", [False, True])
def test_weights_are_packed_where_plain_products_are_slow(writer, write, wide, monkeypatch) -> None:
    monkeypatch.setattr(transcription, "is_wide", lambda: wide)
    made = pipeline("automatic-speech-recognition", model=writer)
    assert any(isinstance(module, Packed) for module in made.model.modules()) != wide
    assert made((talk(2), RATE)) == write((talk(2), RATE))
    plain = pipeline("automatic-speech-recognition", model=writer, packed=False)
    assert not any(isinstance(module, Packed) for module in plain.model.modules())


def test_a_batch_answers_as_each_alone(write) -> None:
    sounds = [rated(talk(seconds, seed)) for seed, seconds in enumerate((3, 40, 8, 65))]
    for options in ({"return_timestamps": True}, {"return_timestamps": "word", "batch_size": 4}):
        assert write(sounds, **options) == [write(sound, **options) for sound in sounds]


def test_a_stream_gives_the_pieces_as_they_are_written(write) -> None:
    seen: list[tuple[float, float]] = []
    pieces = list(write.stream(rated(LONG), lambda done, total: seen.append((done, total)), return_timestamps="word"))
    assert "".join(piece["text"] for piece in pieces) == write(rated(LONG), return_timestamps=True)["text"]
    assert seen[0] == (0.0, 70.0)
    assert seen[-1] == (70.0, 70.0)
    assert all(piece["timestamp"][0] <= piece["timestamp"][1] for piece in pieces)
    assert all(list(word) == ["text", "timestamp"] for piece in pieces for word in piece["words"])


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    """A file of 70 seconds."""
    path = tmp_path_factory.mktemp("sounds") / "long.wav"
    soundfile.write(path, LONG, RATE)
    return path


def test_a_long_file_is_written_in_windows_as_in_one_piece(write, recording, monkeypatch) -> None:
    options: dict[str, Any] = {"return_timestamps": "word", "generate_kwargs": {"condition_on_prev_tokens": True}}
    whole = list(write.stream({"bytes": recording.read_bytes()}, **options))
    monkeypatch.setattr(type(write.feature_extractor), "load", lambda *_: pytest.fail("the whole sound was read"))
    assert list(write.stream(recording, **options)) == whole
    with pytest.raises(FormatError, match="lasts longer than the 60 seconds"):
        next(write.stream(recording, max_seconds=60))


def test_an_interrupted_transcript_goes_on_where_a_window_began(write, recording) -> None:
    pieces: list[dict[str, Any]] = []
    told: list[tuple[float, int]] = []
    pieces.extend(write.stream(recording, lambda done, total: told.append((done, len(pieces)))))
    done, kept = told[-3]
    assert kept > 0
    assert list(write.stream(recording, start=done)) == pieces[kept:]
    begun: list[float] = []
    options = {"generate_kwargs": {"condition_on_prev_tokens": True}}  # what a window writes depends on those before
    next(write.stream(recording, lambda done, total: begun.append(done), start=done, **options))
    assert begun == [0]


def test_the_processor_is_the_two_parts(writer) -> None:
    processor = AutoProcessor.from_pretrained(writer)
    assert isinstance(processor, WhisperProcessor)
    inputs = processor(SHORT, sampling_rate=RATE, text="the dog", return_tensors="np")
    assert inputs["input_features"].shape == (1, 80, 3000)
    assert inputs["labels"].tolist() == [processor.tokenizer("the dog")["input_ids"]]
    assert processor.get_prompt_ids("fox").tolist() == processor.tokenizer.get_prompt_ids("fox").tolist()
    places = processor.get_decoder_prompt_ids(task="translate", language="fr")
    assert [place for place, _ in places] == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_timestamps": "char"}, "`return_timestamps` is 'char'"),
        ({"chunk_length_s": -1}, "`chunk_length_s` must be seconds from 0"),
        ({"chunk_length_s": 10, "stride_length_s": 5}, "a chunk of 10 s has no room"),
        ({"chunk_length_s": 40}, "a chunk of 40 s is longer than a window of 30 s"),
        ({"generate_kwargs": {"language": "klingon"}}, "'klingon' is not known"),
        ({"generate_kwargs": {"tongue": "fr"}}, "takes no `tongue`"),
    ],
)
def test_what_is_wrong_is_named(write, options, message) -> None:
    with pytest.raises(InputError, match=message):
        write(rated(LONG), **options)


def test_what_is_no_sound_is_named(write) -> None:
    with pytest.raises(InputTypeError, match="`generate_kwargs` must be a mapping"):
        write(rated(SHORT), generate_kwargs=["language"])
    with pytest.raises(InputError, match="no samples"):
        write(rated(SHORT[:0]))
    with pytest.raises(InputError, match="nan|NaN|finite"):
        write(rated(np.full(1600, np.nan, np.float32)))
    for sound in (np.zeros(16000, np.float32), 20 * talk(33), talk(0.001)):  # silence, noise, a moment
        assert isinstance(write(rated(sound))["text"], str)


def test_words_are_drawn_below_the_wave_form() -> None:
    chunks = [{"text": " Mister", "timestamp": (0.2, 0.9)}, {"text": " Fox", "timestamp": (0.9, None)}]
    for seconds, rows in ((3, 1), (40, 4)):
        image = draw(rated(talk(seconds)), {"text": " Mister Fox", "chunks": chunks})
        assert image.height > 100 * rows
        assert len(set(image.convert("L").tobytes())) > 5
    with pytest.raises(InputError, match="a piece has no times"):
        draw(rated(SHORT), {"text": "", "chunks": [{"text": "a"}]})


def test_the_task_is_told_from_the_checkpoint(tmp_path: Path) -> None:
    assert pipeline(model=save_writer(tmp_path)).task == "automatic-speech-recognition"
