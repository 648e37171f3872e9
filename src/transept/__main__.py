"""The command as a module, ``python -m transept``; or with ``--as-transformers`` a program of the reference."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command, or the program; gives the exit code."""
    if sys.argv[1:2] == ["--as-transformers"]:
        from transept.compat.as_transformers import run

        run(sys.argv[2:])
        return 0
    from transept.cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
