"""What is generated is up to date, and imports point down."""

from __future__ import annotations

from . import public, tables


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
