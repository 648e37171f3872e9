"""Recordings over HTTP, asked by the official client and by forms that are no requests."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

from tests.pipelines.media_models import save_audio_model, sound, wav
from tests.pipelines.speech_models import save_writer, talk
from transept import pipeline
from transept.batch.encode import encode
from transept.serving.doors import Options
from transept.serving.tasks import TaskModel

from .conftest import Server
from .test_tasks import assert_near

SHARED = Path(__file__).resolve().parents[3] / "shared/data"
TASK = "automatic-speech-recognition"
SPOKEN = {"writer": talk(3), "letters": sound(3.0)}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    writer, letters = (tmp_path_factory.mktemp(name) for name in SPOKEN)
    return {"writer": save_writer(writer), "letters": save_audio_model(letters)}


@pytest.fixture(scope="module")
def hearing(folder: Path, paths: dict[str, Path]) -> Iterator[Server]:
    models = [TaskModel(name, str(path)) for name, path in paths.items()]
    made = Server(folder, Options(grace=2.0, max_body=2**21), beside=models)
    yield made
    made.close()


@pytest.fixture
def client(hearing: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{hearing.url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("name", SPOKEN)
def test_answers_are_those_of_the_pipeline(client: openai.OpenAI, paths: dict[str, Path], name: str) -> None:
    pipe, file = pipeline(TASK, paths[name]), wav(SPOKEN[name])
    wanted = pipe(file)["text"]
    assert wanted
    told = client.audio.transcriptions.create(model=name, file=("../../../etc/passwd", file), temperature=0)
    assert told.text == wanted
    assert client.audio.transcriptions.create(model=name, file=file, response_format="text").strip() == wanted.strip()
    whole: Any = client.audio.transcriptions.create(model=name, file=file, response_format="verbose_json")
    assert whole.duration == pytest.approx(len(SPOKEN[name]) / 16000)
    if name == "letters":
        assert (whole.text, whole.segments) == (wanted, None)
        return
    timed = pipe(file, return_timestamps=True, return_language=True)
    assert whole.text == timed["text"]
    assert [piece.text for piece in whole.segments] == [chunk["text"] for chunk in timed["chunks"]]
    starts = [chunk["timestamp"][0] for chunk in timed["chunks"]]
    assert all(piece.start == start for piece, start in zip(whole.segments, starts, strict=True) if start is not None)
    assert all(isinstance(side, float) for piece in whole.segments for side in (piece.start, piece.end))
    assert whole.language == timed["chunks"][0]["language"]


def test_the_language_may_be_told(client: openai.OpenAI, paths: dict[str, Path]) -> None:
    told = client.audio.transcriptions.create(model="writer", file=wav(SPOKEN["writer"]), language="de")
    assert told.text == pipeline(TASK, paths["writer"])(wav(SPOKEN["writer"]), generate_kwargs={"language": "de"})["text"]
    for name, language in (("letters", "de"), ("writer", "xx"), ("writer", "1")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.audio.transcriptions.create(model=name, file=wav(SPOKEN["writer"]), language=language)
        assert "language" in refused.value.message


def test_long_recordings_are_read_in_chunks(client: openai.OpenAI, paths: dict[str, Path]) -> None:
    spoken = io.BytesIO()
    soundfile.write(spoken, sound(70.0), 16000, format="FLAC")
    file = spoken.getvalue()
    told = client.audio.transcriptions.create(model="letters", file=file)
    assert told.text == pipeline(TASK, paths["letters"])(file, chunk_length_s=30.0)["text"]


@pytest.mark.real_data
def test_a_true_recording(client: openai.OpenAI, paths: dict[str, Path]) -> None:
    if not (SHARED / "audio/jfk.flac").is_file():
        pytest.skip(f"the recording is missing: {SHARED / 'audio'}")
    with (SHARED / "audio/jfk.flac").open("rb") as file:
        told: Any = client.audio.transcriptions.create(model="letters", file=file, response_format="verbose_json")
    assert told.text == pipeline(TASK, paths["letters"])(SHARED / "audio/jfk.flac")["text"]
    assert told.duration == 11


def test_several_at_once_equal_each_alone(hearing: Server, client: openai.OpenAI, paths: dict[str, Path]) -> None:
    files = [wav(sound(1.0 + number / 4, number)) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = pool.map(lambda file: client.audio.transcriptions.create(model="letters", file=file).text, files)
    assert [*found] == [answer["text"] for answer in pipeline(TASK, paths["letters"])(files)]


def test_tasks_hear_urls_of_data(hearing: Server, paths: dict[str, Path], tmp_path: Path) -> None:
    urls = ["data:audio/wav;base64," + base64.b64encode(wav(sound(1.0, seed))).decode() for seed in (1, 2)]
    found = httpx.post(f"{hearing.url}/v1/tasks/{TASK}", json={"model": "letters", "inputs": urls})
    assert_near(found.json(), json.loads(encode(pipeline(TASK, paths["letters"])(urls))))
    file = tmp_path / "a.wav"
    file.write_bytes(wav(sound(1.0)))
    for given in (str(file), file.as_uri(), "http://127.0.0.1:1/a.wav", {"path": str(file)}, {"array": [0.0]}, [0.0]):
        refused = httpx.post(f"{hearing.url}/v1/tasks/{TASK}", json={"model": "letters", "inputs": [urls[0], given]})
        assert refused.status_code == 400
        assert (refused.json()["error"]["param"], "data:" in refused.text) == ("inputs.1", True)


def flac(seconds: float) -> bytes:
    held = io.BytesIO()
    soundfile.write(held, np.zeros(round(seconds * 8000), np.int16), 8000, format="FLAC")
    return held.getvalue()


GOOD = {"model": "letters"}
FORMS: dict[str, tuple[dict[str, Any], bytes | None, str | None, str]] = {
    "no file": (GOOD, None, "file", "missing"),
    "no model": ({}, flac(1), "model", "missing"),
    "of another task": ({"model": "tiny"}, flac(1), None, "text-generation"),
    "of no model": ({"model": "no"}, flac(1), "model", "no model"),
    "empty": (GOOD, b"", "file", ""),
    "no sound": (GOOD, b"%PDF-1.4 of /etc/passwd", "file", "30 minutes"),
    "cut short": (GOOD, wav(sound(1.0))[:9000], "file", "truncated"),
    "nothing in it": (GOOD, wav(sound(1.0)[:0]), "file", "no samples"),
    "too short": (GOOD, wav(sound(1.0)[:100]), None, "one frame"),
    "too long": (GOOD, flac(1801), "file", "30 minutes"),
    "format": (GOOD | {"response_format": "srt"}, flac(1), "response_format", ""),
    "temperature": (GOOD | {"temperature": "0.2"}, flac(1), "temperature", ""),
    "stream": (GOOD | {"stream": "true"}, flac(1), "stream", "stream"),
    "prompt": (GOOD | {"prompt": "Hi"}, flac(1), "prompt", "prompt"),
    "times": (GOOD | {"timestamp_granularities[]": "word"}, flac(1), "timestamp_granularities[]", ""),
    "twice": ({"model": ["letters", "letters"]}, flac(1), "model", "twice"),
    "long field": ({"model": "a" * 5000}, flac(1), None, "form"),
    "long name": ({"model": "a" * 300}, flac(1), "model", ""),
    "many fields": ({str(number): "a" for number in range(17)}, flac(1), None, "form"),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_are_no_requests(hearing: Server, name: str) -> None:
    data, file, param, told = FORMS[name]
    files = {} if file is None else {"file": ("a.wav", file)}
    found = httpx.post(f"{hearing.url}/v1/audio/transcriptions", data=data, files=files or {"other": ("", b"")})
    assert found.status_code == (404 if name == "of no model" else 400), found.text
    error = found.json()["error"]
    assert told in error["message"]
    assert "passwd" not in found.text
    if file is not None:
        assert error["param"] == param


def test_bodies_that_are_no_forms(hearing: Server, caplog: pytest.LogCaptureFixture) -> None:
    url, form = f"{hearing.url}/v1/audio/transcriptions", {"content-type": "multipart/form-data; boundary=x"}

    def asked(content: bytes, headers: dict[str, str] = form, url: str = url) -> int:
        return httpx.post(url, content=content, headers=headers).status_code

    part = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nletters\r\n'
    for body in (b"", b"--x--\r\n", b"x" * 999, part, part[:30], b"\x00" * 99, part.replace(b"name", b"x"), part * 2):
        assert asked(body) == 400
    for kind in ("", "; boundary=", '; boundary="\x7f"', "; boundary=x; charset=zip", "; boundary=" + "x" * 999):
        assert asked(part + b"--x--\r\n", {"content-type": "multipart/form-data" + kind}) == 400
    assert asked(b"{}", {"content-type": "application/json"}) == 415
    assert asked(part, url=f"{hearing.url}/v1/classify") == 415
    assert asked(part, form | {"origin": "http://evil.example"}) == 403
    assert asked(part, form | {"origin": hearing.url}) == 400
    assert asked(b" " * (2**21 + 1)) == 413
    assert httpx.get(f"{hearing.url}/health").status_code == 200
    assert not [record for record in caplog.records if record.name.startswith("python_multipart")]
