"""Names failures as they happen: a pytest plugin, since several processes' quiet progress is letters alone."""

from __future__ import annotations

import pytest


class Failures:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(trylast=True)  # behind the letter
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None and terminal.verbosity <= 0:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.splitlines()[0][:200] if crash and crash.message else report.when
            writer = self.config.get_terminal_writer()
            if writer.width_of_current_line:
                writer.line()
            writer.line(f"FAILED {report.nodeid}: {reason}", red=True)
            writer.flush()  # a pipe would keep it until the end


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers report to the process that prints
        config.pluginmanager.register(Failures(config))
