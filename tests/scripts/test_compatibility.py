"""docs/compatibility.md is what the script prints, and pyproject.toml bounds what gradwatch needs by what was run."""

import json
from pathlib import Path

import compatibility
import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
RESULTS = json.loads(compatibility.RESULTS.read_text(encoding="utf-8"))


def test_the_page_is_printed_from_the_results():
    found = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert found == compatibility.page(RESULTS), "scripts/bench/compatibility.py prints it"


@pytest.mark.parametrize("row", RESULTS)
def test_no_row_ran_below_the_bounds_and_the_oldest_at_them(row):
    """The versions that ran, not those that were asked for. What gradwatch needs since then is not in the row."""
    versions = RESULTS[row]["versions"]
    needed = [r for r in compatibility.NEEDED if r.marker is None and r.name in versions]
    bounds = {r.name: Version(compatibility.lower_bound(r)) for r in needed}
    ran = {name: Version(Version(versions[name]).base_version) for name in bounds}
    assert [name for name in bounds if ran[name] < bounds[name]] == []
    oldest = {"oldest torch": ["torch"], "oldest mlflow": ["mlflow"], "oldest of all": list(bounds)}
    assert [name for name in oldest.get(row, ()) if ran[name] != bounds[name]] == []


def test_what_ran_is_of_the_table_and_none_of_it_failed():
    assert {"newest of all"} <= set(RESULTS) <= set(compatibility.environments())
    assert {name: result["failing"] for name, result in RESULTS.items()} == {name: [] for name in RESULTS}


def test_what_fails_and_what_does_not_install_is_on_the_page():
    name, ran = "newest of all", RESULTS["newest of all"]
    failed = {**ran, "failed": 1, "failing": ["tests.a::test_b"]}
    shown = compatibility.page({name: failed, "oldest of all": {"pins": [], "not installed": "no torch"}})
    assert f"| {ran['passed']} | {ran['skipped']} | 1 |" in shown
    assert f"- {name}: `tests.a::test_b`\n- oldest of all: `no torch`" in shown
