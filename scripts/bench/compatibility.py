"""Runs the core of the tests with the oldest and the newest of what gradwatch needs, and prints docs/compatibility.md.

    python scripts/bench/compatibility.py > docs/compatibility.md
    python scripts/bench/compatibility.py "oldest mlflow" > docs/compatibility.md    # this row again

Each environment is made, used and removed in a temporary folder: about 6 GB where torch brings CUDA, and ten minutes.
Oldest is the lower bound in pyproject.toml, newest what pip chooses. Results go to
docs/measurements/compatibility.json, where rows that were not asked for stay. The exit code is 1 where a test failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "measurements" / "compatibility.json"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EVERYTHING = map(Requirement, (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["mlflow"]))
NEEDED = [r for r in EVERYTHING if r.marker is None or r.marker.evaluate()]
FOR_TESTS = ["hypothesis", "pytest", "pytest-timeout", "pytest-xdist"]
SHOWN = ("torch", "mlflow", "numpy", "pandas", "pyarrow")
# Recording, its numbers, the files, judgement, report: the quick tests; and deliveries to MLflow from end to end.
CORE = ["analysis", "measure", "policies", "recording", "report", "storage", "tracking", "truth"]
DELIVERY = ["test_courier.py", "test_client.py", "test_tracking_server.py"]
HEAD = """\
# Compatibility

The core of the tests with the oldest and the newest releases of what gradwatch needs: the quick tests of
{core}; and of
`tests/tracking` the slow ones that deliver runs to a real MLflow. Oldest is the lower bound in `pyproject.toml`, newest
what pip chooses; so is, in every row, what it does not name. A row that is not there has not run yet.
`scripts/bench/compatibility.py` makes the environments, runs the tests and prints this page; all versions are in the
[JSON](measurements/compatibility.json).

| environment | Python | {shown} | passed | skipped | failed | on |
|---|---|{rule}---|---|---|---|
"""


def lower_bound(requirement: Requirement) -> str:
    """The release after `>=`."""
    return next(s.version for s in requirement.specifier if s.operator == ">=")


def environments() -> dict[str, list[str]]:
    """What each row of the table asks pip for, beside the bounds."""
    oldest = {r.name: f"{r.name}=={lower_bound(r)}" for r in NEEDED}
    return {
        "oldest torch": [oldest["torch"]],
        "oldest mlflow": [oldest["mlflow"]],
        "oldest of all": [*oldest.values()],
        "newest of all": ["torch"],
    }


def wanted(pins: list[str]) -> list[str]:
    """What pip is asked for: the pins, torch as `scripts/test` takes it, and the rest from its lower bound on."""
    pinned = {Requirement(pin).name for pin in pins}
    shell = (ROOT / "scripts" / "_venv.sh").read_text(encoding="utf-8").splitlines()
    usual = {"torch": next(line.split('"')[1] for line in shell if "TORCH_PIN=" in line)}
    rest = [usual.get(r.name, f"{r.name}>={lower_bound(r)}") for r in NEEDED if r.name not in pinned]
    return [*pins, *rest, *FOR_TESTS]


def tried(pins: list[str], folder: Path) -> dict[str, Any]:
    """Make the environment, run the tests in it, and say what came of it."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    for install in ([*pip, *wanted(pins)], [*pip, "--no-deps", "-e", str(ROOT)]):
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"pins": pins, "not installed": done.stderr.strip().splitlines()[-1]}
    code = (
        "import importlib.metadata as m, platform, sys; print(platform.python_version(), *map(m.version, sys.argv[1:]))"
    )
    names = [r.name for r in NEEDED]
    found = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True).stdout.split()
    counts = {"passed": 0, "skipped": 0, "failed": 0}
    failing: list[str] = []
    quick = ["-m", "not slow and not gpu and not browser", *(f"tests/{part}" for part in CORE)]
    slow = ["-m", "slow and not browser", *(f"tests/tracking/{file}" for file in DELIVERY)]
    # without what would point Python or MLflow elsewhere
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "PYTHONPATH", "GRADWATCH_"))}
    for name, which in (("quick", quick), ("slow", slow)):
        results = folder / f"{name}.xml"
        tests = [python, "-m", "pytest", "-n", "2", "--dist", "loadfile", f"--junitxml={results}", *which]
        subprocess.run(tests, cwd=ROOT, stdout=sys.stderr, check=False, env=plain)
        for case in ElementTree.parse(results).iter("testcase"):
            kinds = {child.tag for child in case}
            outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            counts[outcome] += 1
            if outcome == "failed":
                failing.append(f"{case.get('classname')}::{case.get('name')}")
    return {
        "pins": pins,
        "versions": dict(zip(["Python", *names], found, strict=True)),
        **counts,
        "failing": sorted(failing),
        "on": datetime.now(timezone.utc).date().isoformat(),
    }


def page(results: dict[str, dict[str, Any]]) -> str:
    """The page as Markdown."""
    core = ", ".join(f"`tests/{part}`" for part in CORE)
    text = HEAD.format(core=core, shown=" | ".join(SHOWN), rule="---|" * len(SHOWN))
    notes = []
    for name, result in results.items():
        if "not installed" in result:
            cells = [name, *["-"] * (len(SHOWN) + 1), "not installed", "", "", ""]
            notes.append(f"- {name}: `{result['not installed']}`")
        else:
            versions = [result["versions"][shown] for shown in ("Python", *SHOWN)]
            cells = [name, *versions, *(str(result[count]) for count in ("passed", "skipped", "failed")), result["on"]]
            notes += [f"- {name}: `{test}`" for test in result["failing"]]
        text += f"| {' | '.join(cells)} |\n"
    return text + ("\nFailing:\n\n" + "\n".join(notes) + "\n" if notes else "")


def main() -> int:
    todo = environments()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"rows of the table ({', '.join(todo)}); default all")
    rows = parser.parse_args().rows or list(todo)
    if unknown := set(rows) - set(todo):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(todo)}")
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in rows:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = tried(todo[name], Path(folder))
        results = {name: results[name] for name in todo if name in results}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(page(results), end="")
    return int(any(r.get("failing") or "not installed" in r for r in results.values()))


if __name__ == "__main__":
    sys.exit(main())
