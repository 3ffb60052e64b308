"""Every rule has a page in docs/findings that says what its code does, and the index leads to it."""

import inspect
import re
from pathlib import Path

import pytest

from gradwatch.analysis.rules import RULES, Finding

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "findings"
NAMES = {rule.__name__.replace("_", "-"): rule for rule in RULES}
SECTIONS = ["How it is computed", "A real run", "What to do", "When it is wrong"]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_rule_has_all_it_should(name):
    page = ROOT / Finding(name, "note", (), 0, 0).docs
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert "Severity: **" in text
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text):
        assert (FOLDER / picture).stat().st_size < 60_000


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_on_a_page_are_those_of_the_code(name):
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE))
    arguments = list(inspect.signature(NAMES[name]).parameters.values())[1:]
    assert shown == {argument.name: repr(argument.default) for argument in arguments}


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_says_where_it_comes_from(name):
    assert "Source:" in inspect.getdoc(NAMES[name])


def test_the_index_lists_every_rule_and_nothing_else():
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \[([\w-]+)\]\(\1\.md\) \|", index, re.MULTILINE)) == set(NAMES)
    assert {page.stem for page in FOLDER.glob("*.md")} == {*NAMES, "index", "false_alarms"}
    assert {picture.stem for picture in (FOLDER / "images").iterdir()} <= set(NAMES)
