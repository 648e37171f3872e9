"""Three replicas behind nginx, as `examples/nginx.conf` has it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml

from tests.forked import Forked
from transept.cli.main import parser

from .conftest import Server, until
from .test_server import wanted

ROOT = Path(__file__).parents[2]
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def serve(folder: str, log: str) -> None:
    import torch

    from transept.cli.main import main

    torch.set_num_threads(1)
    with open(log, "w") as sys.stdout:
        main(["serve", f"tiny={folder}", "--port", "0", "--json", "--max-rows", "8", "--max-queue", "8", "--grace", "0"])


def metric(url: str, name: str) -> float:
    """The sum of a counter or a gauge over its labels."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Replicas:
    """Processes on ports of their own, and nginx in front of them at ``url``."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.processes = [Forked(serve, str(folder), log=place / f"log{number}") for number in range(3)]
        for process in self.processes:
            until(lambda: process.log.exists() and process.log.read_text().endswith("\n"), 60)  # noqa: B023
        self.urls = [json.loads(process.log.read_text())["url"] for process in self.processes]
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        text = (ROOT / "examples/nginx.conf").read_text().replace("listen 8000", f"listen 127.0.0.1:{port}")
        for number, url in enumerate(self.urls, 1):
            text = text.replace(f"127.0.0.1:800{number}", url.removeprefix("http://"))
        paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        more = "".join(f"{path}_temp_path {place}/{path};" for path in paths) + "add_header X-Replica $upstream_addr always;"
        (place / "nginx.conf").write_text(text.replace("http {", f"http {{ access_log off; {more}"))
        user = "user root;" if os.geteuid() == 0 else ""
        line = [
            str(NGINX),
            "-c",
            str(place / "nginx.conf"),
            "-g",
            f"daemon off; pid {place}/pid; error_log {place}/errors; {user}",
        ]
        self.nginx = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        until(lambda: is_open(port))

    def ask(self, prompt: str = "a", tokens: int = 20) -> str:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        found = httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)
        assert found.status_code == 200, found.text
        return str(found.json()["choices"][0]["text"])

    def stream(self, prompt: str, begun: threading.Barrier | None = None, tokens: int = 20) -> tuple[str, str | None]:
        """The replica that answers, and the text, or ``None`` where the stream breaks off."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=60) as answer:
            replica, text = answer.headers["x-replica"].split(", ")[-1], ""
            try:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
                        if begun is not None:
                            begun.wait(30)
                            begun = None
                    if line == "data: [DONE]":
                        return replica, text
            except httpx.RemoteProtocolError:
                pass
            return replica, None

    def close(self) -> None:
        self.nginx.terminate()
        self.nginx.wait(10)
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def replicas(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    if NGINX is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    made = Replicas(folder, tmp_path_factory.mktemp("replicas"))
    yield made
    made.close()


def test_all_answers_are_right_and_all_replicas_work(replicas: Replicas, server: Server) -> None:
    prompts = [f"Number {number} of many" for number in range(24)]
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(replicas.ask, prompts))
        streamed = list(pool.map(lambda prompt: replicas.stream(prompt)[1], prompts))
    assert found == streamed == [wanted(server, prompt, 20) for prompt in prompts]
    assert all(metric(url, "transept_new_tokens_total") >= 20 for url in replicas.urls)


def test_a_client_that_leaves_frees_its_row(replicas: Replicas) -> None:
    def cancelled() -> float:
        return sum(metric(url, "transept_cancelled_total") for url in replicas.urls)

    before = cancelled()
    for streams in (True, False):
        body = {"model": "tiny", "prompt": ["a"] * 8, "max_tokens": 500, "stream": streams}
        patience = 60.0 if streams else 0.2
        try:
            with httpx.stream("POST", f"{replicas.url}/v1/completions", json=body, timeout=patience) as answer:
                next(answer.iter_lines())
        except httpx.ReadTimeout:
            assert not streams
    until(lambda: cancelled() == before + 2)
    until(lambda: not sum(metric(url, "transept_rows_running") for url in replicas.urls))


def test_a_full_replica_hands_on_what_it_is_asked(replicas: Replicas, server: Server) -> None:
    full = replicas.urls[0]
    body = {"model": "tiny", "prompt": ["a"] * 8, "max_tokens": 500}

    def refused() -> float:
        return metric(full, 'transept_requests_total{route="/v1/completions",status="429"}')

    with ThreadPoolExecutor(16) as pool:
        filling = []
        for name in ("transept_rows_running", "transept_requests_waiting"):
            filling.append(pool.submit(httpx.post, f"{full}/v1/completions", json=body, timeout=60))
            until(lambda: metric(full, name) == 8)  # noqa: B023
        found = [pool.submit(replicas.ask, f"full {number}") for number in range(9)]
        assert [each.result() for each in found] == [wanted(server, f"full {number}", 20) for number in range(9)]
        assert refused()
        assert {each.result().status_code for each in filling} == {200}


def test_a_killed_replica_loses_its_own_streams_alone(replicas: Replicas, server: Server) -> None:
    """Whole answers of which no byte was sent are given by another one."""
    prompts, begun = [f"Stream {number}" for number in range(6)], threading.Barrier(7)
    expected = [wanted(server, prompt, 400) for prompt in prompts]
    with ThreadPoolExecutor(12) as pool:
        whole = [pool.submit(replicas.ask, prompt, 400) for prompt in prompts]
        streams = [pool.submit(replicas.stream, prompt, begun, 400) for prompt in prompts]
        begun.wait(30)
        replicas.processes[1].kill()
        assert [each.result() for each in whole] == expected
        found = [each.result() for each in streams]
        again = list(pool.map(lambda prompt: replicas.ask(prompt, 400), prompts))
    lost = replicas.urls[1].removeprefix("http://")
    assert {replica for replica, text in found if text is None} == {lost}
    assert [text for _, text in found if text is not None] == [
        text for text, (_, found_text) in zip(expected, found, strict=True) if found_text is not None
    ]
    assert again == expected


def test_without_a_replica_clients_are_told_to_come_again(replicas: Replicas) -> None:
    for process in replicas.processes:
        process.kill()
        process.join()
    found = httpx.get(f"{replicas.url}/v1/models")
    assert (found.status_code, found.headers["retry-after"], found.json()["error"]["code"]) == (503, "1", "no_replica")


def test_what_examples_start_is_a_command() -> None:
    """Compose, systemd and Kubernetes; ports are those that nginx knows."""
    page, compose = (ROOT / "docs/how-to/scale.md").read_text(), (ROOT / "examples/compose.yaml").read_text()
    services = yaml.safe_load(compose)["services"]
    lines = [service["command"] for name, service in services.items() if name != "nginx"]
    assert [parser().parse_args(line.split()[1:]).port for line in lines] == [8001, 8002, 8003]
    lines = re.findall(r"^(?:\$ |ExecStart=/opt/transept/bin/)transept (serve .*)$", page, re.MULTILINE)
    assert [parser().parse_args(line.replace("%i", "7").split()).port for line in lines] == [8001, 8002, 8003, 8007]
    (manifest,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    deployment, service = yaml.safe_load_all(manifest)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    args = parser().parse_args(container["command"][1:])
    assert (args.port, args.host) == (container["ports"][0]["containerPort"], "0.0.0.0")
    assert service["spec"]["ports"][0]["targetPort"] == args.port
    known = re.findall(r"server 127.0.0.1:(\d+)", (ROOT / "examples/nginx.conf").read_text())
    assert known == ["8001", "8002", "8003"]
