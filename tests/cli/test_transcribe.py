"""``transept transcribe``: text as it is written, subtitles, JSON, and files that fail by themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.pipelines.media_models import save_audio_model, wav
from tests.pipelines.speech_models import save_writer, talk
from transept import pipeline
from transept.cli.transcribe import clock, srt, vtt
from transept.pipelines.transcription import TranscriptionPipeline


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> Path:
    return save_writer(tmp_path_factory.mktemp("writer"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sounds") / "talk.wav"
    path.write_bytes(wav(talk(45)))
    return path


def test_text_and_files_hold_what_is_said(command, writer, sound, tmp_path) -> None:
    paths = {form: tmp_path / f"out.{form}" for form in ("srt", "vtt", "json")}
    options = [part for form, path in paths.items() for part in (f"--{form}", path)]
    done = command("transcribe", sound, "--model", writer, "--word-times", *options)
    expected = pipeline("automatic-speech-recognition", writer)(str(sound), return_timestamps=True)
    assert done.code == 0
    found = json.loads(paths["json"].read_text())
    assert done.out.splitlines() == [text for chunk in found["chunks"] if (text := chunk["text"].strip())]
    assert found["text"] == expected["text"]
    words = [word for chunk in found["chunks"] for word in chunk["words"]]
    cues = [word for word in words if word["text"].strip()]
    assert paths["srt"].read_text().count(" --> ") == paths["vtt"].read_text().count(" --> ") == len(cues)
    assert paths["vtt"].read_text().startswith("WEBVTT\n\n")
    assert re.match(r"1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n", paths["srt"].read_text())


def test_several_sounds_fail_by_themselves(command, writer, sound, tmp_path) -> None:
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"no sound")
    done = command("transcribe", broken, sound, "--model", writer, "--json", tmp_path, "--language", "fr", "--num-beams", 1)
    assert done.code == 1
    assert any("broken.wav" in line for line in done.complaints)
    assert (tmp_path / "talk.json").exists()
    assert not (tmp_path / "broken.json").exists()


def test_what_is_wrong_is_told(command, writer, sound, tmp_path) -> None:
    assert command("transcribe", "none.wav", "--model", writer).complaints == [
        "transept: error: none.wav: there is no such file."
    ]
    assert "'klingon' is not known" in command("transcribe", sound, "--model", writer, "--language", "klingon").err
    assert command("transcribe", sound, sound, "--model", writer, "--srt", tmp_path / "one.srt").code == 2
    assert "is the sound itself" in command("transcribe", sound, "--model", writer, "--json", sound).err


def test_no_file_replaces_that_of_another_sound(command, writer, sound, tmp_path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / sound.name).write_bytes(sound.read_bytes())
    done = command("transcribe", sound, other / sound.name, "--model", writer, "--srt", tmp_path)
    assert done.code == 2
    assert f"two sounds have the name {sound.stem!r}" in done.err


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two sounds, one that is none, and a note."""
    path = tmp_path / "sounds"
    (path / "more").mkdir(parents=True)
    (path / "a.wav").write_bytes(wav(talk(3, 1)))
    (path / "more/b.wav").write_bytes(wav(talk(3, 2)))
    (path / "broken.wav").write_bytes(b"no sound")
    (path / "notes.txt").write_text("no sound")
    return path


def test_folders_are_transcribed_and_what_is_done_is_left(command, writer, folder, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    line = ("transcribe", folder, "--glob", "**/*", "--model", writer, "--language", "en", "--srt", out, "--json", out)
    done = command(*line)
    assert done.code == 1
    assert "1 file is no input and is skipped" in done.complaints[0]
    assert done.complaints[1].startswith(f"transept: error: {folder / 'broken.wav'}: is corrupt")  # its name stands there once
    assert sorted(path.name for path in out.iterdir()) == [
        "a.json",
        "a.srt",
        "a.srt.note.json",
        "b.json",
        "b.srt",
        "b.srt.note.json",
    ]
    assert [line for line in done.out.splitlines() if line.startswith(str(folder))] == [
        f"{folder / name}:" for name in ("a.wav", "broken.wav", "more/b.wav")
    ]
    (out / "a.srt").write_text("corrected by hand")
    (out / "b.json").unlink()
    (folder / "broken.wav").write_bytes(wav(talk(3, 3)))
    done = command(*line, "--resume")
    assert (done.code, "1 of 3 sounds are done already" in done.err) == (0, True)
    assert (out / "a.srt").read_text() == "corrected by hand"
    assert (out / "b.json").exists()
    assert (out / "broken.srt").exists()
    (folder / "a.wav").write_bytes(wav(talk(3, 4)))
    done = command(*line, "--resume")
    assert (done.code, len(done.complaints)) == (1, 3)
    assert "a.srt: was begun with something else: what 'a.wav' holds has changed" in done.err
    done = command(*line, "--resume", "--translate")
    assert done.err.count("`translate` was not given and is 'True'") == 3
    (out / "a.srt.note.json").unlink()
    assert "a.srt: has no note" in command(*line, "--resume").err


def test_tables_of_sounds_become_tables_of_transcripts(command, writer, folder, tmp_path) -> None:
    table, out = folder / "calls.csv", tmp_path / "out.jsonl"
    table.write_text("call,recording,who\n7,a.wav,ada\n8,broken.wav,bob\n9,more/b.wav,eve\n")
    line = ("transcribe", table, "--column", "recording", "--id", "call", "--model", writer, "--language", "en")
    done = command(*line, "--output", out)
    assert (done.code, f"{out}: 2 answered, 1 failed" in done.err) == (1, True)
    rows = [json.loads(row) for row in out.read_text().splitlines()]
    assert [(row["call"], row["who"]) for row in rows] == [("7", "ada"), ("8", "bob"), ("9", "eve")]
    expected = pipeline("automatic-speech-recognition", writer)(
        str(folder / "a.wav"), return_timestamps=True, generate_kwargs={"language": "en"}
    )
    assert rows[0]["answer"]["text"] == expected["text"]
    assert rows[1]["error"]["code"] == "format"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.note.json", "sounds"]
    whole = out.read_bytes()
    out.unlink()
    Path(f"{out}.partial").write_bytes(whole.splitlines(keepends=True)[0])
    done = command(*line, "--output", out, "--resume")
    assert (done.code, out.read_bytes()) == (1, whole)
    assert str(folder / "a.wav") not in done.out
    (tmp_path / "list.txt").write_text(f"{folder / 'a.wav'}\n\n{folder / 'more/b.wav'}\n")
    done = command("transcribe", tmp_path / "list.txt", "--model", writer, "--language", "en", "--output", tmp_path / "out.csv")
    assert (done.code, (tmp_path / "out.csv").read_text().splitlines()[0]) == (0, "file,answer.text,answer.chunks")


@pytest.mark.parametrize("form", ["json", "output"])
def test_a_long_sound_goes_on_where_it_was_interrupted(command, writer, tmp_path, monkeypatch, form) -> None:
    sound = tmp_path / "long.wav"
    sound.write_bytes(wav(talk(40)))
    whole, out = tmp_path / ("whole.json" + "l" * (form == "output")), tmp_path / ("out.json" + "l" * (form == "output"))
    line = ("transcribe", sound, "--model", writer, "--language", "en", f"--{form}")
    done = command(*line, whole)
    assert done.code == 0
    stream, count = TranscriptionPipeline.stream, len(done.out.splitlines())
    starts = []

    def some(self, *given, start, **options):
        starts.append(start)
        for number, piece in enumerate(stream(self, *given, start=start, **options)):
            if len(starts) == 1 and number == count - 2:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(TranscriptionPipeline, "stream", some)
    done = command(*line, out)
    assert (done.code, "pieces are kept" in done.err) == (130, True)
    done = command(*line, out, "--resume")
    assert (done.code, starts[0]) == (0, 0)
    assert 0 < starts[1] < 40
    assert json.loads(out.read_text()) == json.loads(whole.read_text())
    assert not [path for path in tmp_path.iterdir() if ".partial" in path.name or ".sound" in path.name]


def test_longer_sounds_than_allowed_are_refused(command, writer, sound) -> None:
    done = command("transcribe", sound, "--model", writer, "--max-seconds", 40)
    assert (done.code, len(done.complaints)) == (1, 1)
    assert f"{sound}: lasts longer than the 40 seconds allowed. Cut it into pieces, or raise `max_seconds`" in done.err


def test_a_model_that_tells_no_times_is_named(command, sound, tmp_path) -> None:
    save_audio_model(tmp_path)
    done = command("transcribe", sound, "--model", tmp_path)
    assert (done.code, len(done.complaints), done.out) == (1, 1, "")
    assert "ForCTC does not write text with times. Use transept run automatic-speech-recognition." in done.err
    assert "generate_kwargs" not in done.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--resume"], "--resume needs a file to go on with"),
        (["--glob", "*"], "there is no folder"),
        (["--column", "x"], "--column and --id are for tables"),
        (["--output", "a.txt"], "--output must end in"),
        (["--max-seconds", "0"], "--max-seconds"),
    ],
)
def test_options_that_do_not_go_together(command, sound, more, words) -> None:
    done = command("transcribe", sound, "--model", "nowhere", *more)
    assert (done.code, len(done.complaints)) == (2, 1)
    assert words in done.err


def test_times_are_written_as_subtitles_have_them() -> None:
    assert clock(3723.4567, ",") == "01:02:03,457"
    pieces = [{"text": " a <b>\n& c", "timestamp": (0.0, 1.5)}, {"text": " ", "timestamp": (1.5, 2.0)}]
    assert srt(pieces) == "1\n00:00:00,000 --> 00:00:01,500\na <b> & c\n"
    assert vtt(pieces).splitlines()[-1] == "a &lt;b> &amp; c"
