"""Signals are noted, and their handlers are put back."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest

from transept.training.checkpoint.signals import Ended, SignalWatch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals that end a run at its next update")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_is_noted(number: signal.Signals, code: int) -> None:
    before = signal.getsignal(number)
    with SignalWatch() as watch:
        watch.end("nothing came")
        signal.raise_signal(number)
        assert (watch.ended_by, watch.save) == (number, False)
        with pytest.raises(Ended, match="saved") as ended:
            watch.end("saved")
        assert ended.value.code == code
        assert pickle.loads(pickle.dumps(ended.value)).code == code
    assert signal.getsignal(number) is before


def test_the_second_one_does_what_it_does() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), SignalWatch():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_usr1_saves_and_goes_on() -> None:
    with SignalWatch() as watch:
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR1)
        assert watch.save
        assert watch.ended_by is None


def test_ignored_ones_stay_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with SignalWatch() as watch:
            signal.raise_signal(signal.SIGTERM)
            assert watch.ended_by is None
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("active", [True, False])
def test_nothing_is_set_elsewhere(active: bool) -> None:
    before, found = signal.getsignal(signal.SIGINT), []

    def run() -> None:
        with SignalWatch(active):
            found.append(signal.getsignal(signal.SIGINT))

    if active:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
    assert found == [before]


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_program_ends_with_the_signal_s_code(name: str, code: int) -> None:
    program = f"import signal\nfrom transept.training.checkpoint.signals import SignalWatch\nwith SignalWatch() as w:\n    signal.raise_signal(signal.{name})\nw.end('x')"
    assert subprocess.run([sys.executable, "-c", program], env=os.environ, check=False).returncode == code
