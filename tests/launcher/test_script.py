"""`gradwatch run SCRIPT` behaves as `python SCRIPT` does, whatever the script."""

import os
import signal
import subprocess
import sys
import time

import pytest
from in_the_wild import SCRIPTS, environment


def both(*words, cwd=SCRIPTS, stdin="a\nb\n", options=(), **extra):
    """What plain Python did with these words, and what `gradwatch run` did."""
    return [
        subprocess.run([sys.executable, *how, *words], cwd=cwd, input=stdin, capture_output=True, text=True,
                       env={**environment(), **extra}, timeout=60, check=False)
        for how in ([], ["-m", "gradwatch", "run", "--log", "none", *options])
    ]  # fmt: skip


def without_ours(text):
    return "".join(line for line in text.splitlines(True) if not line.startswith("gradwatch: "))


@pytest.mark.parametrize(
    "words",
    [
        ["reads_stdin.py", "--lr", "1", "-h"],
        [str(SCRIPTS / "reads_stdin.py")],
        ["asks.py"],
        ["quits.py"],
        ["broken.txt"],
        ["-m", "package", "--clip", "mine"],
        ["-mpackage", "--warmup", "10"],
        ["package", "x"],
        ["hook_that_raises.py"],
    ],
    ids=" ".join,
)
def test_streams_and_exit_code_are_those_of_python(words):
    plain, watched = both(*words, stdin="" if words == ["asks.py"] else "a\nb\n")
    assert watched.stdout == plain.stdout
    assert without_ours(watched.stderr) == plain.stderr
    assert watched.returncode == plain.returncode


def test_modules_of_the_working_directory_are_not_taken_for_ours(tmp_path):
    (tmp_path / "click.py").write_text("raise SystemExit('not ours')")
    (tmp_path / "script.py").write_text("print('ran')")
    assert both("script.py", cwd=tmp_path)[1].stdout == "ran\n"


def test_the_comparison_would_see_a_difference():
    plain, watched = both("reads_stdin.py", options=["--metric-regex", "x=(y)"])
    assert plain.stdout == watched.stdout
    assert "no newline" in plain.stdout
    assert plain.returncode == 3


def test_ctrl_c_ends_it_by_the_signal():
    code = "import time; print('ready', flush=True); time.sleep(30)"
    ends = []
    for how in ([], ["-m", "gradwatch", "run", "--log", "none"]):
        script = subprocess.Popen(
            [sys.executable, *how, "/dev/stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment(),
        )  # fmt: skip
        script.stdin.write(code)
        script.stdin.close()
        script.stdin = None
        assert script.stdout.readline() == "ready\n"
        time.sleep(0.2)
        script.send_signal(signal.SIGINT)
        _, err = script.communicate(timeout=20)
        ends.append((script.returncode, err))
    assert ends[0] == ends[1]
    assert ends[0][0] == -signal.SIGINT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no script: wanted gradwatch run"),
        (["nowhere.py"], "can't open file 'nowhere.py': No such file"),
        (["-m", "no.such.module"], "cannot run module 'no.such.module'"),
        (["--metric-regex", "loss", "x.py"], "wanted NAME=PATTERN"),
        (["--metric-regex", "loss=(", "x.py"], "is no regular expression"),
        (["--tag", "x", "x.py"], "wanted KEY=VALUE"),
        (["--log", "none", "--clip", "Clip(1)", "argparse_script.py"], "Clip"),
        (["--log", "none", "--clip", "MaxNorm(1.0)", "argparse_script.py"], "constrains weights"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, tmp_path):
    done = subprocess.run([sys.executable, "-m", "gradwatch", "run", "--dir", tmp_path, *words], cwd=SCRIPTS,
                          capture_output=True, text=True, env=environment(), timeout=60, check=False)  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert message in line
    assert not done.stdout


@pytest.mark.parametrize("does", ["", "import torch; torch.ones(2, requires_grad=True).sum().backward()"])
def test_a_policy_that_a_script_has_nothing_for_leaves_a_run_that_says_so(does, tmp_path):
    (tmp_path / "script.py").write_text(does)
    _, watched = both("script.py", cwd=tmp_path, options=["--clip", "ClipByGlobalNorm(1.0)", "--dir", "runs"])
    (line,) = watched.stderr.splitlines()
    assert "never acted" in line
    (run,) = (tmp_path / "runs").iterdir()
    assert str(run.name) in line


def test_what_a_script_sets_before_it_imports_torch_counts(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sorted({'torch', 'numpy', 'mlflow', 'pandas'} & set(sys.modules)))")
    done = both(str(script), cwd=tmp_path)
    assert [d.stdout for d in done] == ["[]\n", "[]\n"]
    assert not os.listdir(tmp_path / "gradwatch-runs") if (tmp_path / "gradwatch-runs").exists() else True
