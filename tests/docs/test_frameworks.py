"""docs/frameworks.md says of no framework more than was run: each row names the test that ran it, or was not tried."""

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")][
    1:
]
TRIED = {what: rest for what, *rest in ROWS if not rest[1].startswith("not tried")}
NAMED = re.compile(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")


def packages(version):
    """What `pip` calls them, with the versions that were tried: `torch 2.13.0, peft 0.21.2`."""
    return [tuple(each.split()) for each in version.split(", ")]


def test_there_is_a_table():
    assert len(TRIED) > 10
    assert all(len(row) == 4 for row in ROWS)


@pytest.mark.parametrize("what", TRIED)
def test_what_was_tried_names_tests_that_are_there(what):
    version, _, how = TRIED[what]
    named = NAMED.findall(how)
    assert named, f"{what}: no test is named, as [`test_...`](../tests/...py)"
    texts = [(ROOT / path).read_text(encoding="utf-8") for _, path in named]
    for (test, path), text in zip(named, texts, strict=True):
        assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{path} has no {test}"
    assert all(len(pair) == 2 and Version(pair[1]) for pair in packages(version))


@pytest.mark.parametrize("what", TRIED)
def test_what_is_not_installed_with_the_tests_was_run_by_hand(what):
    """What `.[dev]` brings runs in continuous integration; the test of anything else skips there."""
    version, _, how = TRIED[what]
    assert how.startswith(("the tests", "by hand"))
    wanted = importlib.metadata.requires("gradwatch") or []
    extras = {re.match(r"[\w.-]+", each).group() for each in wanted}
    absent = [package for package, _ in packages(version) if package not in extras]
    assert how.startswith("by hand") == bool(absent), f"{absent} of {what}"


@pytest.mark.parametrize("what", TRIED)
def test_no_newer_version_is_claimed_than_the_one_that_runs_here(what):
    for package, version in packages(TRIED[what][0]):
        try:
            here = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        assert Version(here) >= Version(version), f"{package} {here} is installed"


def test_what_was_not_tried_claims_nothing():
    for what, version, came, how in ROWS:
        assert (what in TRIED) or (version, how) == ("", ""), f"{what}: {came}"
