"""Every rule has a page in docs/findings that says what its code does, and the index leads to it."""

import inspect
import re
from pathlib import Path

from gradwatch.analysis.rules import RULES, Finding

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "findings"
NAMES = {rule.__name__.replace("_", "-"): rule for rule in RULES}
SECTIONS = ["How it is computed", "A real run", "What to do", "When it is wrong"]


def page(name):
    return (ROOT / Finding(name, "note", (), 0, 0).docs).read_text(encoding="utf-8")


def missing(name):
    """What the page of a rule should have, and has not."""
    text = page(name)
    if not text.startswith(f"# {name}\n"):
        yield "its name as the title"
    if re.findall(r"^## (.*)$", text, re.MULTILINE) != SECTIONS:
        yield f"the sections {SECTIONS}"
    if "Severity: **" not in text:
        yield "the severity"
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text):
        if (FOLDER / picture).stat().st_size >= 60_000:
            yield f"{picture} in less than 60 kB"


def test_the_page_of_every_rule_has_all_it_should():
    assert [f"{name}: {fault}" for name in NAMES for fault in missing(name)] == []


def defaults(name):
    """The defaults of a rule as its page tells them, and as they are."""
    shown = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page(name), re.MULTILINE))
    arguments = list(inspect.signature(NAMES[name]).parameters.values())[1:]
    return shown, {argument.name: repr(argument.default) for argument in arguments}


def test_the_defaults_on_the_pages_are_those_of_the_code():
    told = {name: defaults(name) for name in NAMES}
    assert {name: both for name, both in told.items() if both[0] != both[1]} == {}


def test_every_rule_says_where_it_comes_from():
    assert [name for name, rule in NAMES.items() if "Source:" not in inspect.getdoc(rule)] == []


def test_the_index_lists_every_rule_and_nothing_else():
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[([\w-]+)\]\(\1\.md\) \|", index, re.MULTILINE)) == set(NAMES)
    assert {page.stem for page in FOLDER.glob("*.md")} - {"judgement", "cures"} == {*NAMES, "index", "false_alarms"}
    assert {picture.stem for picture in (FOLDER / "images").iterdir()} <= set(NAMES)
