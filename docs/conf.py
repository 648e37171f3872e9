"""How Sphinx builds the documentation: `sphinx-build -W docs docs/_build`."""

project = "transept"
copyright = "the transept maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "transept"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
