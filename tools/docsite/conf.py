"""Sphinx settings of the documentation site. tools/docs_site.sh copies this file next to the pages."""

project = "gb10.cluster"
copyright = "the gb10.cluster authors"  # noqa: A001  Sphinx names it so
html_title = "gb10.cluster"
extensions = ["myst_parser", "sphinx_antsibull_ext"]
html_theme = "sphinx_ansible_theme"
html_copy_source = False
html_show_sphinx = False
highlight_language = "YAML+Jinja"
pygments_style = "ansible"
default_role = "any"
myst_heading_anchors = 4
suppress_warnings = [
    "ref.ref",  # labels of docs.ansible.com, which the build does not ask for
    "myst.header",  # generated pages begin with a comment
    "myst.xref_missing",  # links to source files, and to the anchors of generated pages
    "misc.highlighting_failure",
]
