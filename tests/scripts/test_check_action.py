"""The composite action of docs/examples: its file is one, and its commands do what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from make_run import make_run

FILE = Path(__file__).parents[2] / "docs/examples/check-action/action.yml"
ACTION = yaml.safe_load(FILE.read_text())


def test_it_is_an_action():
    subprocess.run(["check-jsonschema", "--builtin-schema", "vendor.github-actions", FILE], check=True,
                   env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})  # fmt: skip


def test_inputs_reach_the_shell_as_variables_alone():
    """An input in the text of a command would be run."""
    used = {name for step in ACTION["runs"]["steps"] for name in re.findall(r"inputs\.([\w-]+)", str(step))}
    assert used == ACTION["inputs"].keys()
    assert not [step for step in ACTION["runs"]["steps"] if "${{" in step["run"]]


@pytest.mark.slow
@pytest.mark.parametrize(("nan_at", "code"), [(None, 0), (50, 1)])
def test_it_fails_the_job_on_what_is_found(nan_at, code, tmp_path):
    step = ACTION["runs"]["steps"][-1]
    values = {"run": str(make_run(tmp_path, nan_at=nan_at)), "fail-on": "error", "sarif": "found.sarif"}
    env = {name: values[re.search(r"inputs\.([\w-]+)", text)[1]] for name, text in step["env"].items()}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], cwd=tmp_path, check=False, text=True,
                          capture_output=True, env={**os.environ, **env, "PATH": path})  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "")
    assert ("::error " in done.stdout) == bool(code)
    assert '"2.1.0"' in (tmp_path / "found.sarif").read_text()
