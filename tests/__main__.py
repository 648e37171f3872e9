"""All checks, one after another: `python -m tests`."""

from __future__ import annotations

import subprocess
import sys

CHECKS = [
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    ["codespell"],
    ["mypy"],
    ["lint-imports"],
    [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *sys.argv[1:]],
]

if __name__ == "__main__":
    for check in CHECKS:
        print("$", *check, flush=True)
        code = subprocess.run(check, check=False).returncode
        if code:
            sys.exit(code)
