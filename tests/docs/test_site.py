"""The site: each page has a place in it, and the list of pages for a language model is that of its nav.

That it builds without a warning is what `scripts/site` says, which `scripts/test --all` runs.
"""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def config():
    return yaml.safe_load((ROOT / "scripts" / "site.yml").read_text(encoding="utf-8"))


def test_every_page_has_a_place(hooks, config):
    nav = hooks.with_findings(config["nav"])
    placed = [page for part in nav for entries in part.values() if isinstance(entries, list)
              for _, page in hooks.entries_of(entries)]  # fmt: skip
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"index.md"}
    assert sorted(placed) == sorted(pages | {hooks.REFERENCE})


def test_the_list_of_pages_is_that_of_the_nav(hooks, config):
    wanted = "docs/llms.txt is old; wanted: python scripts/site_hooks.py > docs/llms.txt"
    assert (DOCS / "llms.txt").read_text(encoding="utf-8") == hooks.llms(config), wanted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see [the code](../gradwatch/x.py)", "see the code"),
        ("see [a page](live.md#halting)", "see [a page](live.md#halting)"),
        ("see [a site](https://example.org)", "see [a site](https://example.org)"),
        ("![a picture](../x.png)", "![a picture](../x.png)"),
        ("```text\n[x](../y)\n```", "```text\n[x](../y)\n```"),
    ],
)
def test_a_link_that_leads_out_of_the_site_is_its_text(hooks, text, shown):
    assert hooks.without_links_out(text, "run.md") == shown


@pytest.mark.parametrize(
    ("html", "loads"),
    [
        ('<script src="https://unpkg.com/shim"></script>', ["index.md loads https://unpkg.com/shim"]),
        ('<link rel="stylesheet" href="//fonts.example.org/a.css">', ["index.md loads //fonts.example.org/a.css"]),
        ('<script src="assets/bundle.js"></script><a href="https://example.org">a link</a>', []),
    ],
)
def test_what_a_page_would_load_from_elsewhere_is_a_warning(hooks, caplog, html, loads):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    assert hooks.on_post_page(html, page) == html
    assert caplog.messages == loads
