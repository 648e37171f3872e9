"""The command as a module: ``python -m transept.cli``."""

from __future__ import annotations

import sys

from transept.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
