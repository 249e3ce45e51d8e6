"""Sphinx configuration: `make docs` builds the site into docs/_build/html."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]
# Notebooks run in kernels of their own, which start worker processes: they need the package too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")])
)

import dask_marsched  # noqa: E402  # needs the path

project = "dask-marsched"
author = "the dask-marsched developers"
project_copyright = author
version = release = dask_marsched.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    # ours, in docs/_ext
    "api_reference",
    "drawings",
    "options",
]
exclude_patterns = ["_build", "_ext", "**.ipynb_checkpoints"]

# -- Markdown and notebooks --------------------------------------------------------------------
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
# A notebook runs again only when it has changed; in a fresh clone all of them run.
nb_execution_mode = "cache"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True

# -- API reference -----------------------------------------------------------------------------
autodoc_typehints = "none"  # numpydoc's sections name the types
autodoc_member_order = "bysource"
autosummary_generate = True
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
# Types of other projects cannot be resolved without their inventories. `DOCS_INTERSPHINX=1` fetches
# these and links to them.
nitpick_ignore_regex = [(r"py:.*", r"(?!dask_marsched\.[A-Za-z_]+$).*")]
if os.environ.get("DOCS_INTERSPHINX"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "dask": ("https://docs.dask.org/en/stable", None),
        "distributed": ("https://distributed.dask.org/en/stable", None),
    }

# -- HTML --------------------------------------------------------------------------------------
html_theme = "pydata_sphinx_theme"
html_title = "dask-marsched"
html_static_path = ["_static"]
html_css_files = ["marsched.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "dask-marsched"},
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "changelog": [], "contributing": []}

copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
