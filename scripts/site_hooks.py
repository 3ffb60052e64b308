"""What mkdocs calls while it builds the site: the page about Python's names, the pages of findings, links out.

The pages are written for the code host, where a link into the code or the tests works. The site has neither: there such
a link is its text. Run as a script this prints docs/llms.txt, the list of all pages for a language model.
"""

import logging
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FINDINGS = "FINDINGS"  # in the nav of site.yml
OWN_PAGES = {"findings/judgement.md", "findings/cures.md", "findings/false_alarms.md"}  # have a place of their own
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")
log = logging.getLogger("mkdocs.hooks")
LOADED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']((?:https?:)?//[^"']+)""")
REFERENCE = "reference.md"
CALLBACKS = ("lightning.GradWatch", "transformers.GradWatchCallback")


def finding_pages() -> list[str]:
    """The pages about rules in the order of their index, which comes first."""
    index = (ROOT / "docs" / "findings" / "index.md").read_text(encoding="utf-8")
    linked = dict.fromkeys(f"findings/{name}" for name in re.findall(r"\]\(([\w-]+\.md)\)", index))
    return ["findings/index.md", *(page for page in linked if page not in OWN_PAGES)]


def reference() -> str:
    """The page of all public names: what mkdocstrings makes of their docstrings, by the module they live in."""
    sys.path.insert(0, str(ROOT))
    import gradwatch

    text = ["# Python", "Every public name, from its docstring. All but the callbacks are imported from `gradwatch`."]
    for home, names in gradwatch._HOMES.items():
        text.append(f"## {home.removeprefix('gradwatch.').replace('_', ' ').split('.')[-1].capitalize()}")
        text += [f"::: {home}.{name}\n    options:\n      heading_level: 3" for name in names]
    text.append("## Callbacks")
    text += [f"::: gradwatch.adapters.{name}\n    options:\n      heading_level: 3" for name in CALLBACKS]
    return "\n\n".join(text) + "\n"


def without_links_out(text: str, page: str) -> str:
    """The page with the text of each link that leads out of docs/ in the place of the link; code blocks as they are."""

    def kept(found: re.Match[str]) -> str:
        target = found[2]
        away = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)).startswith("..")
        return found[1] if away and not re.match(r"\w+:", target) else found[0]

    pieces = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(piece if piece.startswith("```") else LINK.sub(kept, piece) for piece in pieces)


def with_findings(nav: list[Any]) -> list[Any]:
    """The nav of site.yml with the pages of findings where it has only their place."""
    for part in nav:
        for entries in part.values():
            for entry in entries if isinstance(entries, list) else []:
                entry.update({name: finding_pages() for name, page in entry.items() if page == FINDINGS})
    return nav


# ------------------------------------------------------------------------------------------------------------- llms.txt


def said_of_pages() -> dict[str, str]:
    """What the two indexes say of each page they lead to, without links."""
    said = {}
    for folder in ("", "findings/"):
        index = (ROOT / "docs" / folder / "index.md").read_text(encoding="utf-8")
        for _, page, text in re.findall(r"^\| \[([^\]]+)\]\(([\w/-]+\.md)\) \| (.*) \|$", index, re.MULTILINE):
            said[folder + page] = LINK.sub(r"\1", text.rpartition(" | ")[2])
    return said


def entries_of(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """Title and page of each entry of a part of the nav, those of findings too."""
    for entry in entries:
        for title, page in entry.items():
            yield from [(Path(one).stem, one) for one in page] if isinstance(page, list) else [(title, page)]


def llms(config: dict[str, Any]) -> str:
    """The text of docs/llms.txt: every page of the nav with what its index says of it (https://llmstxt.org)."""
    said = said_of_pages()
    text = [f"# {config['site_name']}", f"> {config['site_description']}"]
    for part in with_findings(config["nav"]):
        for title, entries in part.items():
            if isinstance(entries, list):
                pages = [(name, page) for name, page in entries_of(entries) if page != REFERENCE]
                lines = [f"- [{name}]({page})" + (f": {said[page]}" if page in said else "") for name, page in pages]
                text += [f"## {title}", "\n".join(lines)]
    return "\n\n".join(text) + "\n"


# --------------------------------------------------------------------------------------------------- mkdocs calls these


def on_config(config: Any) -> Any:
    """Put the pages of findings into the nav, and make anchors as the code host does."""
    from pymdownx.slugs import slugify

    config["nav"] = with_findings(config["nav"])
    config["mdx_configs"]["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the page that lies nowhere."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, REFERENCE, content=reference()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Take out of a page the links that the site cannot follow."""
    return without_links_out(markdown, page.file.src_uri)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Warn of a page that would load something from elsewhere: the site has all that it needs."""
    for address in LOADED.findall(output):
        log.warning("%s loads %s", page.file.src_uri, address)
    return output


def on_post_build(config: Any) -> None:
    """Lay the Markdown beside each page, where llms.txt leads to it."""
    docs = Path(config["docs_dir"])
    for page in docs.rglob("*.md"):
        shutil.copyfile(page, Path(config["site_dir"]) / page.relative_to(docs))


if __name__ == "__main__":
    import yaml

    print(llms(yaml.safe_load((ROOT / "scripts" / "site.yml").read_text(encoding="utf-8"))), end="")
