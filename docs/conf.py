"""The documentation site: Sphinx over the Markdown pages of this repository.

    python -m sphinx -q -W -n -c docs . build/site

The source folder is the repository itself, so that a link from a page to README.md, or to a file of the sources,
means the same on the site and in the repository. Docstrings are plain text with ``names`` in double backquotes:
``docstring_as_rst`` makes reStructuredText of them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from itertools import takewhile

import raxlog
from sphinx.application import Sphinx

project = "raxlog"
author = "the raxlog authors"
project_copyright = ""
version = release = raxlog.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**.md"]
exclude_patterns = ["build", "dist", "tests", "spark-warehouse", "*.egg-info", "**/__pycache__", ".*"]
highlight_language = "none"
nitpicky = True
nitpick_ignore_regex = [  # of types
    ("py:.*", r"(raxlog\.)?(storage|stream|index|recovery|testing|tools|store|pipeline|transaction|typed)\..*"),
    ("py:.*", r"(collections|os|datetime|pathlib|typing|threading|asyncio|types|enum)\..*"),
    ("py:.*", r"(pa|pc|pyarrow|duckdb|polars|redis|taskiq)\..*"),
    ("py:.*", r"([A-Za-z]\w*|raxlog\.\w+Error)"),  # a type of the standard library, or an alias
]

myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page included whole begins where it likes

copybutton_prompt_text = "$ "  # the button copies the commands of a console block, without what they print

html_theme = "furo"
html_title = f"raxlog {release}"
html_css_files = ["width.css"]
html_extra_path = ["site"]  # index.html, which leads to docs/index.html; llms.txt
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
autodoc_docstring_signature = False
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

COLUMN = re.compile(r"^( *)((?:``[^`]+``(?:, ?)?)+)(?: {2,}(\S.*))?$")


def docstring_as_rst(lines: list[str]) -> Iterator[str]:
    """A docstring as reStructuredText: rows of ``name``  meaning as definitions, deeper text as it is written."""
    waiting = list(lines)
    while waiting:
        line = waiting.pop(0)
        row = COLUMN.match(line)
        further = row[1] + " " if row else ""
        if row and (row[3] or (waiting and waiting[0].startswith(further))):
            deeper = [row[3] or "", *takewhile(lambda more, further=further: more.startswith(further), waiting)]
            del waiting[: len(deeper) - 1]
            yield from ("", row[2], "    " + _escaped(" ".join(part.strip() for part in deeper).strip()), "")
        elif line.startswith((" ", ">>>")):
            block = [line, *takewhile(lambda more: more.startswith((" ", ">>>")) or not more, waiting)]
            del waiting[: len(block) - 1]
            yield from ("", "::", "", *("    " + part for part in block), "")
        else:
            yield _escaped(line)


def _escaped(text: str) -> str:
    """Plain text: what is not between double backquotes has no meaning for reStructuredText."""
    parts = re.split(r"(``.+?``)", text)
    return "".join(part if at % 2 else re.sub(r"([*_`|\\])", r"\\\1", part) for at, part in enumerate(parts))


def contents(index: str, caption: bool = True) -> Iterator[str]:
    """The tables of a page of links as tables of contents: a hidden one for each of its sections."""
    for section in re.split(r"^## ", index, flags=re.M)[1:]:
        pages = re.findall(r"^\| \[[^]]+\]\((\S+)\.md\)", section, re.M)
        title = [f":caption: {section.splitlines()[0]}"] if caption else []
        if pages:
            yield "\n".join(["```{toctree}", ":hidden:", *title, "", *pages, "```", ""])


def setup(app: Sphinx) -> None:
    """Have autodoc read docstrings as they are written here, and Sphinx the index as it is written."""
    def changed(app: Sphinx, what: str, name: str, about: object, options: object, lines: list[str]) -> None:
        if what == "module" or "Alias for field number" in "".join(lines):
            lines.clear()
        lines[:] = docstring_as_rst(lines)

    def read(app: Sphinx, page: str, source: list[str]) -> None:
        if page == root_doc:
            source[0] += "\n" + "\n".join(contents(source[0]))
        elif page == "docs/reference/cli":
            source[0] += "\n" + "\n".join(contents(source[0], caption=False))

    def copied(app: Sphinx, failure: Exception | None) -> None:  # what site/llms.txt links to
        for page in app.env.found_docs if failure is None else ():
            target = app.outdir / f"{page}.md"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(app.env.doc2path(page), target)

    app.connect("autodoc-process-docstring", changed)
    app.connect("build-finished", copied)
    app.connect("source-read", read)
