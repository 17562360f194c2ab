"""Sphinx configuration. `make docs` builds the site with warnings as errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from vlhmm import __version__

project = "vlhmm"
author = "vlhmm contributors"
copyright = "vlhmm contributors, Apache License 2.0"
version = release = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "myst_parser",
    "sphinx_copybutton",
    "generated_reference",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_static", "_ext"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# Docstrings write code in single backticks.
default_role = "code"
autosummary_generate = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

# The site is built without network access, so types of other projects have no page to link to.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|numpy|jaxtyping|pathlib|collections|os|transformers|tokenizers|typing|builtins)\..*"),
    (r"py:class", r"Tensor|NDArray|Bool|Float|Int"),
    # Docstrings name exceptions without their modules.
    (r"py:exc", r"\w+Error"),
    # Types of arguments that users do not construct.
    (r"py:class", r"vlhmm\.[a-z_]+\..*"),
]

html_theme = "furo"
html_title = f"vlhmm {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
