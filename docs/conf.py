"""How Sphinx builds the documentation: `sphinx-build -W docs docs/_build`.

`-D part=1/4` describes the second quarter of the modules alone, beside all pages: what is wrong is found in parts, too.
"""

import gc
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain

project = "transept"
copyright = "the transept maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "transept"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_use_type_comments = False  # there are none, and looking for them takes a third of the time
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
# A name of the package is also a name of the module that defines it; either is the right target of a link.
suppress_warnings = ["ref.python"]

gc.disable()  # millions of nodes stay until the end, and looking for garbage among them takes a fifth of the time

SOURCE = Path(__file__).parent.parent / "src"
MODULES = re.compile(r"^```\{modules\} (\S+)\n```$", re.MULTILINE)


def modules(name: str) -> list[str]:
    """Every module of a package, or the name alone if it is a module."""
    files = (SOURCE / name.replace(".", "/")).rglob("*.py")
    paths = (file.relative_to(SOURCE).with_suffix("").parts for file in files if file.name != "__main__.py")
    return sorted(".".join(part for part in parts if part != "__init__") for parts in paths) or [name]


def describe_modules(app: Sphinx, _page: str, source: list[str]) -> None:
    """Put a section for each module in place of a block `{modules} transept.layers`."""
    number, parts = map(int, app.config.part.split("/"))
    taken = {*modules("transept")[number::parts]}
    section = "## `{0}`\n\n```{{eval-rst}}\n.. automodule:: {0}\n```\n"
    source[0] = MODULES.sub(
        lambda block: "\n".join(section.format(name) for name in modules(block[1]) if name in taken), source[0]
    )


def end_right_to_left(_app: Sphinx, doctree: nodes.document) -> None:
    """Move the tag that ends a page's direction behind its sections: it is written at the end of the last one."""
    if isinstance(doctree.next_node(), nodes.raw) and doctree.next_node().astext().startswith('<div dir="rtl"'):
        end = list(doctree.findall(nodes.raw))[-1]
        end.parent.remove(end)
        doctree.append(end)


class Documented(PythonDomain):
    """Looks a name up among those that end as it does.

    Sphinx goes through all that is documented for the type of each argument, which takes more time than all the rest.
    """

    counted, ends = 0, defaultdict[str, dict[str, Any]](dict)

    def find_obj(self, env: Any, modname: Any, classname: Any, name: str, *more: Any) -> list[Any]:
        """What a name may stand for."""
        if len(self.objects) != self.counted:
            self.counted = len(self.objects)
            self.ends.clear()
            for each, entry in self.objects.items():
                self.ends[each.rpartition(".")[2]][each] = entry
        few = self.ends.get(name.removesuffix("()").rpartition(".")[2], {})
        part: Any = SimpleNamespace(objects=few, object_types=self.object_types, objtypes_for_role=self.objtypes_for_role)
        return PythonDomain.find_obj(part, env, modname, classname, name, *more)


def setup(app: Sphinx) -> None:
    app.add_config_value("part", "0/1", "env")
    app.add_domain(Documented, override=True)
    app.connect("source-read", describe_modules)
    app.connect("doctree-read", end_right_to_left)
