"""Options and fixtures of all tests."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from transept.environment import tiles

from . import failures
from .hub_server import HubServer
from .report import record
from .thorough import is_taken, turn_of_commit

if "PYTEST_XDIST_WORKER" in os.environ:  # with a core each, workers that start more threads wait for one another's
    os.environ.setdefault("OMP_NUM_THREADS", "1")
tiles.settle()  # before PyTorch computes, for the reference and for programs that tests start
# PyTorch keeps compiled graphs on the disk, and runs those of other threads and processors too, which ends in a crash.
FOR = ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
KEPT = "-".join(["transept-inductor", *(os.environ.get(name, "any") for name in FOR)])
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / KEPT))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds",
        type=float,
        default=16.0,
        help="how long the fuzz suite mutates files, all its parts together",
    )
    parser.addoption("--kills", type=int, default=12, help="how many runs are killed, half of them while they save")
    parser.addoption("--failures", type=int, default=2, help="how many writes of each kind fail in saves")
    parser.addoption("--thorough", action="store_true", help="every case, where a share of them is tested otherwise")
    parser.addoption("--turn", type=int, help="which share is tested, a number; otherwise the commit says it")
    parser.addoption("--report", type=Path, help="write the worst errors against the reference to this file")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell runs in the background; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    failures.pytest_configure(config)
    if config.option.turn is None:
        config.option.turn = turn_of_commit()
    path = config.getoption("--report")
    if path is not None:
        record(path, config)


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--thorough"):
        return "cases: all"
    return f"cases: a share of what is tested in turns; --turn {config.option.turn} takes the same share"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    if exitstatus and config.get_verbosity() < 0:  # which leaves out the header
        terminalreporter.write_line(pytest_report_header(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--thorough"):
        parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            parts[is_taken(item.iter_markers("thorough"), config.option.turn)].append(item)
        items[:] = parts[True]
        config.hook.pytest_deselected(items=parts[False])
    items.sort(key=lambda item: item.get_closest_marker("long") is None)  # so that no worker ends with one while others wait


def pytest_collection_finish() -> None:
    """Collect garbage seldom, and not among all that was imported: it is a tenth of the time otherwise."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache in place of the user's, and no token."""
    from huggingface_hub import constants

    cache = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    return cache


@pytest.fixture
def hub(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub on this machine that huggingface_hub speaks to."""
    from huggingface_hub import constants

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server
