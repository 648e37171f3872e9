"""What is generated is up to date, links lead somewhere, and the documentation can be built."""

from __future__ import annotations

import pickle
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType

import pytest

from tests.thorough import in_turn

from . import document_tables, public

# In code that is quoted in a sentence or imported in a snippet.
NAME = re.compile(r"\b(transept(?:\.\w+)+)\b(?![\w/-])")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
PAGES = [*sorted(document_tables.ROOT.glob("*.md")), *sorted((document_tables.ROOT / "docs").rglob("*.md"))]


def test_the_stub_lists_every_public_name() -> None:
    assert public.STUB.read_text(encoding="utf-8") == public.stub(), "run: python -m tests.public"


def test_the_tables_hold_what_preprocessors_state() -> None:
    assert public.PREPROCESSORS.read_text(encoding="utf-8") == public.preprocessor_tables(), "run: python -m tests.public"


def test_a_model_type_has_one_preprocessor_of_each_kind() -> None:
    for ending in public.ENDINGS.values():
        classes = {name: types for found in public.preprocessors().values() for name, types in found.items()}
        stated = [each for name, types in classes.items() if public.ending(name) == ending for each in types]
        assert len(stated) == len({*stated}) > 0, ending


def test_every_public_name_can_be_imported() -> None:
    import transept

    for name in transept.__all__:
        assert getattr(transept, name) is not None


@pytest.mark.parametrize(("page", "marker"), document_tables.TABLES)
def test_the_tables_are_up_to_date(page: str, marker: str) -> None:
    path, table = document_tables.ROOT / page, document_tables.TABLES[page, marker]()
    assert f"<!-- {marker} -->" in path.read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8") == document_tables.written(path, marker, table), (
        "run: python -m tests.document_tables"
    )


def test_the_readme_can_be_read_in_three_minutes() -> None:
    assert len((document_tables.ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_map_of_rooms_is_the_tree() -> None:
    """Every folder of the package has a line, and what a line names is there."""
    readme = (document_tables.ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^src/transept/\n((?:  .+\n)+)", readme, re.MULTILINE)
    assert block
    names = [name for line in block[1].splitlines() for name in re.findall(r"^  ((?:\S+ )+) ", line)[0].split()]
    source = document_tables.ROOT / "src/transept"
    assert {name.removesuffix("/") for name in names if name.endswith("/")} == {
        path.parent.name for path in source.glob("*/__init__.py")
    }
    assert not [name for name in names if not (source / name).exists()]
    assert len(names) == len({*names})


def test_links_between_pages_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in LINK.findall(page.read_text(encoding="utf-8"))]
    assert len(links) > 10
    assert not [(str(page), link) for page, link in links if "://" not in link and not (page.parent / link).exists()]


# All pages are built with the modules of one part, so that a run takes a quarter of them.
PARTS = 4


@pytest.mark.long
@pytest.mark.parametrize("part", in_turn(range(PARTS), 1))
def test_the_documentation_is_built_without_a_warning(part: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    # Reading pages and resolving their links gives all warnings; writing HTML takes as long again, and so do lists of types.
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "dummy", "-D", f"part={part}/{PARTS}"]
    if not request.config.getoption("--thorough"):
        command += ["-D", "autodoc_typehints=none", "-D", "smartquotes=0"]
    done = subprocess.run(
        [*command, "docs", str(tmp_path)], cwd=document_tables.ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    described = {*pickle.loads((tmp_path / ".doctrees/environment.pickle").read_bytes()).domaindata["py"]["objects"]}
    assert modules_of(part) <= described
    assert not missing_from(described, modules_of(part))


def modules_of(part: int) -> set[str]:
    """The modules of a part that the reference describes."""
    source = document_tables.ROOT / "src"
    files = (path for path in (source / "transept").rglob("*.py") if path.name != "__main__.py")
    names = (path.relative_to(source).with_suffix("").parts for path in files)
    every = sorted(".".join(each for each in name if each != "__init__") for name in names)
    return {name for name in every[part::PARTS] if name.count(".") and not name.startswith("transept.cli")}


def missing_from(described: set[str], modules: set[str]) -> list[str]:
    """Public names of ours, defined in some modules, that the built reference does not describe."""
    import transept

    values = [value for name in transept.__all__ if isinstance(value := getattr(transept, name), type | FunctionType)]
    ours = {f"{value.__module__}.{value.__qualname__}" for value in values if value.__module__ in modules}
    return sorted(ours - described)


def test_the_reference_has_every_room() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (document_tables.ROOT / "docs/reference").glob("*.md"))
    listed = set(re.findall(r"^```\{modules\} transept\.(\w+)$", pages, re.MULTILINE))
    source = document_tables.ROOT / "src/transept"
    rooms = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert listed == rooms - {"__init__", "__main__", "cli"}  # the command has a page of its own, and no names to import


def test_dotted_names_in_the_documents_exist() -> None:
    names = {(page.name, name) for page in PAGES for name in NAME.findall(page.read_text(encoding="utf-8"))}
    assert len(names) > 30
    assert not [(page, name) for page, name in sorted(names) if not exists(name)]


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or what a module or class holds."""
    if name == "transept.as_transformers":  # which is not to be imported behind the reference
        return find_spec(name) is not None
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
