"""``transept transcribe``: text as it is written, subtitles, JSON, and files that fail by themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.pipelines.media_models import wav
from tests.pipelines.speech_models import save_writer, talk
from transept import pipeline
from transept.cli.transcribe import clock, srt, vtt


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


def test_times_are_written_as_subtitles_have_them() -> None:
    assert clock(3723.4567, ",") == "01:02:03,457"
    pieces = [{"text": " a <b>\n& c", "timestamp": (0.0, 1.5)}, {"text": " ", "timestamp": (1.5, 2.0)}]
    assert srt(pieces) == "1\n00:00:00,000 --> 00:00:01,500\na <b> & c\n"
    assert vtt(pieces).splitlines()[-1] == "a &lt;b> &amp; c"
