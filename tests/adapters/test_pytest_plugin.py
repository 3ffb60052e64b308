"""The pytest plugin: a test that trains badly fails, and who does not use it pays nothing."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

try:
    import tomllib
except ImportError:
    import tomli as tomllib

PLUGIN = "gradwatch.adapters.pytest_plugin"
TESTS = """
import pytest, torch

def train(watched, lr=0.01, steps=60, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    watch = watched(model, optimizer, **options)
    for _ in range(steps):
        loss = ((model(torch.randn(16, 4)) - 1) ** 2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        watch.log(loss=loss)

def test_healthy(gradwatch_watch):
    train(gradwatch_watch)

def test_diverges(gradwatch_watch):
    train(gradwatch_watch, lr=1e20)

def test_fails_by_itself(gradwatch_watch):
    train(gradwatch_watch, lr=1e20)
    assert False, "its own"

def test_no_step(gradwatch_watch):
    train(gradwatch_watch, steps=0)

@pytest.mark.gradwatch(fail_on="nothing")
def test_bad_mark(gradwatch_watch):
    train(gradwatch_watch)

@pytest.mark.gradwatch(fail_on="warning")
def test_a_policy_without_a_step(gradwatch_watch):
    train(gradwatch_watch, clip="ClipByGlobalNorm(1.0)", steps=0)

def test_several(gradwatch_watch):
    train(gradwatch_watch, name="a")
    train(gradwatch_watch, name="b")

def test_unwatched():
    pass
"""


def run(tmp_path, *options):
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "--strict-markers", *options]
    return subprocess.run(words, check=False, cwd=tmp_path, env=env, capture_output=True, text=True)


def test_a_test_fails_on_what_its_training_shows(tmp_path):
    (tmp_path / "test_training.py").write_text(TESTS)
    done = run(tmp_path, "-rA", "--tb=short")
    summary = [line for line in done.stdout.splitlines() if "::" in line and line.isascii()]
    summary = [line for line in summary if line.startswith(("PASSED", "FAILED", "ERROR"))]
    found = {line.split("::")[1].split()[0]: line.split()[0] for line in summary}
    assert found == {
        "test_healthy": "PASSED", "test_diverges": "FAILED", "test_fails_by_itself": "FAILED", "test_no_step": "FAILED",
        "test_bad_mark": "FAILED", "test_a_policy_without_a_step": "FAILED", "test_several": "PASSED",
        "test_unwatched": "PASSED",
    }, done.stdout  # fmt: skip
    assert "gradwatch found:\nerror: " in done.stdout
    assert done.stdout.count("\ngradwatch found:") == 3  # not of the test that failed by itself
    assert "its own" in done.stdout
    assert "gradwatch found:\nno step: " in done.stdout
    assert "policy-never-acts" in done.stdout
    assert "wanted error or warning" in done.stdout


def test_who_does_not_use_it_pays_nothing(tmp_path):
    (tmp_path / "test_plain.py").write_text(
        "import sys\n\ndef test_plain():\n"
        "    assert not {'torch', 'numpy', 'pandas', 'pyarrow', 'mlflow', 'click'} & set(sys.modules)\n"
    )
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout


def test_pytest_finds_it():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"gradwatch": PLUGIN}
    assert importlib.import_module(PLUGIN).gradwatch_watch
