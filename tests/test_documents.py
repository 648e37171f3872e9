"""What is generated is up to date, links lead somewhere, and the documentation can be built."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import public, tables

LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
PAGES = [*sorted(tables.ROOT.glob("*.md")), *sorted((tables.ROOT / "docs").rglob("*.md"))]
NEEDED = ("sphinx", "furo", "myst_parser")
LACKING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


def test_the_stub_lists_every_public_name() -> None:
    assert public.STUB.read_text(encoding="utf-8") == public.stub(), "run: python -m tests.public"


def test_every_public_name_can_be_imported() -> None:
    import transept

    for name in transept.__all__:
        assert getattr(transept, name) is not None


def test_the_readme_lists_every_family() -> None:
    readme = tables.ROOT / "README.md"
    assert readme.read_text(encoding="utf-8") == tables.written(readme, "families", tables.families()), (
        "run: python -m tests.tables"
    )


def test_links_between_pages_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(page.read_text(encoding="utf-8"))]
    assert len(links) > 10
    assert not [(str(page), link) for page, link in links if "://" not in link and not (page.parent / link).exists()]


@pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)}")
def test_the_documentation_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=tables.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "index.html").is_file()
