"""The page about a rule, docs/findings/RULE.md: inside a report, and as an address that a terminal opens.

It comes with the package, and in a checkout lies beside it: a report needs no network, and has the page of the version
that judged it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from markupsafe import Markup

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "docs" / "findings", PACKAGE.parent / "docs" / "findings")


def page_of(rule: str) -> Path | None:
    """The page about `rule`; None where it was not installed."""
    return next((page for folder in FOLDERS if (page := folder / f"{rule}.md").is_file()), None)


def address(rule: str) -> str:
    """The page's URL, empty where there is none."""
    page = page_of(rule)
    return page.as_uri() if page else ""


@cache
def page_html(rule: str) -> Markup:
    """The page without its title, its pictures and its links to other pages, which a report does not hold."""
    from markdown_it import MarkdownIt

    page = page_of(rule)
    if page is None:
        return Markup("")
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    for token in ("image", "link_open", "link_close"):
        reader.add_render_rule(token, _nothing)
    return Markup(reader.render(page.read_text(encoding="utf-8").partition("\n")[2]))


def _nothing(*_: object) -> str:
    return ""
