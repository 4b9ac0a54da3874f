"""Settings of Sphinx for the documents as a site; build.py lays out the pages."""

from __future__ import annotations

from millrace.installation import version as millrace_version

project = "Millrace"
copyright = "the Millrace authors, Apache-2.0"
release = version = millrace_version()
html_title = f"Millrace {version}"
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html"),
        *("sidebar/navigation.html", "versions.html", "sidebar/scroll-end.html"),
    ]
}
html_show_sphinx = False
html_copy_source = False
templates_path = ["_templates"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 6  # as GitHub names them
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
default_role = "code"
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure", "myst.xref_missing.external"]
