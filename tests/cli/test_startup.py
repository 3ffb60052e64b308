"""Starting is quick because what is slow to import is imported late; a mistyped start is told in one line."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from gradwatch.cli import main

COMMANDS = main.list_commands(click.Context(main))
SLOW = ("torch", "mlflow", "numpy", "pandas", "pyarrow", "matplotlib", "plotly", "jinja2", "rich", "sklearn")


def imported(code):
    """Which of the slow packages a fresh interpreter has after `code`."""
    code += f"\nimport sys\nprint('|', *({set(SLOW)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.rpartition("|")[2].split()


def helped(*words):
    return f"from gradwatch.cli import main; main({[*words, '--help']}, standalone_mode=False)"


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS)])
def test_help_imports_nothing_that_is_slow(words):
    assert imported(helped(*words)) == []


REFUSED = f"""
import sys
from gradwatch.cli import main
for words in (
    ["run", "--clip", "ClipByGlobalNrom(1)", "train.py"],
    ["run", "--clip", "ClipByGlobalNorm", "nowhere.py"],
    ["run", "--renorm", "AGC()", "-m", "train"],
    ["sweep", "--clip", "none", "--clip", "ClipByGlobalNrom(1)", "train.py"],
    ["sweep", "--renorm", "MaxNorm(mx_value=1)", "nowhere.py"],
    ["run", "train.py"],  # what gradwatch.toml says
    ["sweep", "train.py"],
):
    try:
        main(words)
    except SystemExit as end:
        print(end.code, *({set(SLOW)} & set(sys.modules)))
"""


def test_a_policy_that_makes_no_sense_is_refused_before_anything_slow_is_imported(tmp_path):
    (tmp_path / "train.py").write_text("print('started')")
    (tmp_path / "gradwatch.toml").write_text("clip = 'AGCC()'\n[sweep]\nclips = ['AGCC()']")
    done = subprocess.run([sys.executable, "-c", REFUSED], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["2"] * 7
    said = done.stderr.splitlines()
    assert [line.startswith("Error: ") for line in said] == [True] * 7
    for line, advice in zip(
        said,
        ["did you mean ClipByGlobalNorm?", "as in ClipByGlobalNorm(1.0)", "pass it as clip=",
         "did you mean ClipByGlobalNorm?", "did you mean max_value?", "did you mean AGC?", "did you mean AGC?"],
        strict=True,
    ):  # fmt: skip
        assert advice in line


def test_importing_gradwatch_imports_nothing_that_is_slow():
    assert imported("import gradwatch") == []


@pytest.mark.slow
def test_watching_needs_nothing_that_only_reading_and_delivering_need():
    found = set(imported("import gradwatch; gradwatch.watch"))
    assert "torch" in found
    assert not found & {"mlflow", "pandas", "matplotlib", "plotly", "sklearn"}


WATCHED = """
import sys, torch, gradwatch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with gradwatch.watch(model, optimizer, log=None, dir=sys.argv[-1], verbose=False):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_nor_does_recording(tmp_path):
    """Arrow imports pandas for the first array that is made of a numpy one, in the middle of a training."""
    code = f"{WATCHED}\nprint('|', *({set(SLOW)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], check=True, capture_output=True, text=True)
    found = done.stdout.rpartition("|")[2].split()
    assert "pyarrow" in found
    assert not {"mlflow", "pandas", "matplotlib", "plotly", "sklearn"} & set(found)


def test_a_slow_import_would_be_found():
    assert imported("import numpy") == ["numpy"]


@pytest.mark.parametrize(
    "words",
    [["shwo"], ["--foo"], ["show"], ["show", "--folow", "x"], ["show", "a", "b"], ["check", "--fail-on", "x", "y"]],
)
def test_usage_errors_are_one_line_on_stderr(words):
    result = CliRunner().invoke(main, words, prog_name="gradwatch")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "wanted gradwatch" in result.stderr
