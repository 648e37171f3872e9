"""``transept serve`` as a process: how signals end it, where it listens, and options that cannot be."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.pace import within
from transept.cli.main import main

from .conftest import Stream, until


class Process:
    """``transept serve`` in a process, with the lines that it tells."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "transept.cli", "serve", f"tiny={folder}", "--json", "--threads", "1", *options]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.popen.stdout is not None
        self.told = json.loads(self.popen.stdout.readline())

    def end(self, *signals: int) -> int:
        for number in signals:
            self.popen.send_signal(number)
            time.sleep(0.1)
        try:
            code = self.popen.wait(30)
        finally:
            self.popen.kill()
            self.out, self.err = self.popen.communicate()
        return code


@pytest.fixture
def process(folder: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    made = Process(folder, "--port", "0", *request.param)
    yield made
    made.popen.kill()
    made.popen.communicate()


@pytest.mark.parametrize("process", [("--grace", "20")], indirect=True)
def test_a_signal_lets_answers_end_and_takes_no_more(process: Process) -> None:
    url = process.told["url"]
    with httpx.Client(base_url=url) as idle:
        assert idle.get("/ready").status_code == 200
        streams = [Stream(url, prompt=["a"] * 16) for _ in range(3)]
        process.popen.send_signal(signal.SIGTERM)
        until(lambda: idle.get("/ready").status_code == 503)
        refused = httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "a"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert idle.get("/health").status_code == 200
        for stream in streams:
            stream.join()
            assert stream.lines[-1] == "data: [DONE]"
    with within(4):
        assert process.end() == 0
    assert process.err == ""


LONG = {"prompt": ["a"] * 40}  # which takes longer than any of these tests


@pytest.mark.parametrize("process", [("--grace", "0", "--max-rows", "2")], indirect=True)
def test_no_grace_ends_streams_with_an_error(process: Process) -> None:
    stream = Stream(process.told["url"], **LONG)
    with within(4):
        assert process.end(signal.SIGINT) == 0
    stream.join()
    assert stream.error["code"] == "draining"
    assert process.err == ""


@pytest.mark.parametrize("process", [("--grace", "1000", "--max-rows", "2")], indirect=True)
def test_a_second_signal_ends_at_once_and_leaves_no_child(process: Process) -> None:
    stream = Stream(process.told["url"], **LONG)
    children = psutil.Process(process.popen.pid).children(recursive=True)
    with within(2):
        assert process.end(signal.SIGTERM, signal.SIGTERM) == 128 + signal.SIGTERM
    stream.join()
    assert stream.lines[-1] != "data: [DONE]"
    assert not children


def test_a_unix_socket(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    made = Process(folder, "--uds", str(path))
    with httpx.Client(base_url="http://localhost", transport=httpx.HTTPTransport(uds=str(path))) as client:
        assert made.told["url"] == f"unix:{path}"
        assert client.post("/v1/completions", json={"model": "tiny", "prompt": "a"}).status_code == 200
    assert made.end(signal.SIGKILL) == -signal.SIGKILL
    assert path.exists()  # left over, and taken away by the next one
    again = Process(folder, "--uds", str(path))
    assert again.end(signal.SIGTERM) == 0
    assert not path.exists()
    path.write_text("a file")
    assert main(["serve", f"tiny={folder}", "--uds", str(path)]) == 1
    assert path.read_text() == "a file"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (["PATH/none"], 1),
        (["PATH", "PATH"], 1),
        (["a b=PATH"], 1),
        (["=PATH"], 1),
        (["a/b/c=PATH"], 1),
        (["PATH", "--port", "65536"], 1),
        (["PATH", "--port", "x"], 2),
        (["PATH", "--host", "0.0.0.0"], 1),
        (["PATH", "--host", "192.0.2.1", "--insecure"], 1),
        (["PATH", "--uds", "PATH/socket", "--port", "1"], 1),
        (["PATH", "--uds", "PATH/none/socket"], 1),
        (["PATH", "--api-key-file", "PATH/none"], 1),
        (["PATH", "--max-rows", "0"], 2),
        (["PATH", "--max-queue", "-1"], 2),
        (["PATH", "--max-body", "8 parsecs"], 2),
        (["PATH", "--cache-memory", "much"], 2),
        (["PATH", "--dtype", "float7"], 2),
        (["PATH", "--device", "cudo"], 1),
        (["PATH", "--task", "fly"], 1),
        (["PATH", "--unknown"], 2),
        *[(["PATH", f"--{name}-timeout", "0"], 1) for name in ("header", "body", "write", "request")],
        *[(["PATH", "--watchdog", text], 2) for text in ("nan", "inf", "-1", "5 minutes", "")],
        (["PATH", "--watchdog", "0"], 1),
        (["PATH", "--grace", "soon"], 2),
    ],
)
def test_what_cannot_be_served_is_one_line(
    folder: Path, given: list[str], code: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRANSEPT_API_KEY", raising=False)
    assert main(["serve", *(word.replace("PATH", str(folder)) for word in given)]) == code
    told = capfd.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert "Traceback" not in told.err
