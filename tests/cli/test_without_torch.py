"""Every command that reads works where torch is not installed, as docs/ci.md says how."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from make_run import make_run
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
# torch as if it were not installed: neither imported nor found.
CODE = """
import importlib.abc, sys
class Away(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Away())
import json
from click.testing import CliRunner
from gradwatch.cli import main
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main, words)
    print(json.dumps([words[0], done.exit_code, done.stderr[-300:], repr(done.exception)]))
assert "torch" not in sys.modules
"""


def called(place, commands):
    """What each command came to: its name, exit code, the end of what it said on stderr, what it raised."""
    start = [sys.executable, "-c", CODE, json.dumps([[str(word) for word in words] for words in commands])]
    done = subprocess.run(start, cwd=place, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_reading_command_works_without_torch(tmp_path, store, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    run, other = (make_run(tmp_path / "gradwatch-runs", steps=60, seed=seed) for seed in (0, 1))
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{i},{1 / (i + 1)}\n" for i in range(40)))
    commands = [
        ["show", run], ["check", run], ["check", run, "--format", "sarif"], ["compare", run, other],
        ["report", run, "-o", "one.html"], ["report", run, other, "-o", "many.html"],
        ["export", run, "--to", "csv"], ["export", run, "--to", "parquet"], ["export", run, "--to", "tensorboard"],
        ["import", "log.csv"], ["sync", run], ["monitor", "--once"], ["ui", "--help"],
    ]  # fmt: skip
    found = called(tmp_path, commands)
    assert len(found) == len(commands)
    assert [one for one in found if one[1]] == []


@pytest.mark.slow
def test_a_command_that_trains_says_that_torch_is_missing(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    ((_, code, said, _),) = called(tmp_path, [["run", "--log", "none", "train.py"]])
    assert code != 0
    assert "torch" in said


def test_the_recipe_names_what_the_package_needs_but_torch():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(text).name for text in project["dependencies"]} - {"torch", "tomli"}
    page = (ROOT / "docs" / "ci.md").read_text()
    (line,) = re.findall(r"^\$ pip install (click .*)$", page, re.MULTILINE)
    assert set(line.split()) == needed
    assert "$ pip install --no-deps gradwatch\n" in page
