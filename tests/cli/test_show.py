"""The commands that read: report, compare, show; and what `gradwatch` itself does with errors and imports."""

import contextlib
import csv
import functools
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from make_run import make_run
from mlflow_server import until

import gradwatch
from gradwatch import open_run
from gradwatch.cli import COMMANDS, main


@pytest.fixture
def runs(tmp_path):
    return [str(make_run(tmp_path, steps=40, seed=seed, clip=clip)) for clip in ("AGC(0.01)", None) for seed in (0, 1)]


def call(*args, **options):
    return CliRunner().invoke(main, [str(arg) for arg in args], **options)


def test_report_writes_the_page_where_it_says(runs, tmp_path):
    result = call("report", *runs, "-o", tmp_path / "out.html")
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "out.html") in result.output
    assert "4 runs compared" in (tmp_path / "out.html").read_text()


def test_report_says_of_several_runs_which_are_not_healthy(tmp_path):
    healthy = make_run(tmp_path, steps=60, name="healthy", params={"lr": "1"})
    sick = make_run(tmp_path, steps=60, name="sick", params={"lr": "2"}, nan_at=40)
    for order in ([healthy, sick], [sick, healthy]):
        said = call("report", *order, "-o", tmp_path / "out.html").output.splitlines()
        assert said[1] == "1 of 2 runs have no findings."
        assert said[2].startswith("sick: nonfinite at step ")
        assert len(said) == 3
    assert call("report", healthy, "-o", tmp_path / "out.html").output.splitlines()[1:] == ["Verdict: no findings"]


def test_a_folder_of_runs_stands_for_them_and_of_a_sweeps_training_the_last_attempt_counts(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / "runs", steps=40, seed=seed, clip=None)
        job = tmp_path / "runs" / "sweep-x" / f"AGC-seed{seed}"
        make_run(job, steps=10, seed=seed, clip="AGC(0.01)", name="a")
        make_run(job, steps=40, seed=seed, clip="AGC(0.01)", name="b")
        (job / "job.json").write_text("{}")
    for words in (["runs"], [str(p.relative_to(tmp_path)) for p in (tmp_path / "runs").iterdir()]):
        result = call("compare", *(tmp_path / word for word in words), "--format", "csv")
        assert result.exit_code == 0, result.output
        assert {row["policy"]: int(row["runs"]) for row in csv.DictReader(io.StringIO(result.stdout))} == {
            "none": 2,
            "AGC(0.01)": 2,
        }


def test_runs_that_ended_otherwise_or_earlier_are_named(tmp_path):
    whole = make_run(tmp_path, steps=40, seed=0)
    cut = make_run(tmp_path, steps=19, seed=1, close="KILLED", name="short")
    said = call("compare", whole, cut).output
    assert "did not end well and count as they are: short (killed after 19 steps)" in " ".join(said.split())
    assert "from 19 to 40 steps" in " ".join(said.split())
    assert "count as they are" not in call("compare", whole, whole).output


def test_a_run_that_was_killed_and_could_not_say_so_is_named_and_a_run_counts_once(tmp_path, monkeypatch):
    whole, cut = (make_run(tmp_path, steps=steps, seed=0, name=name, close=close)
                  for steps, name, close in ((40, "whole", "FINISHED"), (19, "gone", "RUNNING")))  # fmt: skip
    monkeypatch.setattr("gradwatch.storage.run_state.is_gone", lambda *process: True)
    said = " ".join(call("compare", whole, cut, tmp_path).output.split())
    assert "did not end well and count as they are: gone (killed after 19 steps)" in said
    assert "One seed each, whose repeats count once: there is no interval" in said
    assert "95 % interval" not in said
    rows = csv.DictReader(io.StringIO(call("compare", whole, cut, tmp_path, "--format", "csv").stdout))
    assert [row["runs"] for row in rows] == ["2"]


def test_report_has_a_name_of_its_own(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("report", runs[0]).exit_code == call("report", runs[0], "--format", "md").exit_code == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "report.md").read_text().startswith("# mlp")


@pytest.mark.parametrize(("kind", "start"), [("html", "<!doctype"), ("md", "# mlp"), ("json", "{"), ("csv", "name,")])
def test_report_goes_to_standard_output(runs, kind, start):
    result = call("report", runs[0], "--format", kind, "-o", "-")
    assert result.exit_code == 0
    assert result.stdout.startswith(start)


def test_report_by_one_metric(runs):
    data = json.loads(call("report", *runs, "--metric", "loss", "--format", "json", "-o", "-").stdout)
    assert "loss" in data["comparison"][0]
    assert "val_accuracy" not in data["comparison"][0]


def test_compare_prints_one_row_per_policy(runs):
    result = call("compare", *runs)
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if re.match(r"\s*(AGC\S*|none)\s+\d", line)]
    assert [(row[0], row[1]) for row in rows] == [("AGC(0.01)", "2"), ("none", "2")]


def test_show_prints_head_verdict_and_layers(tmp_path):
    result = call("show", make_run(tmp_path, steps=100, nan_at=50))
    assert result.exit_code == 0, result.output
    assert "nonfinite at step 50 in blocks.0.mlp.weight" in result.stdout
    assert "100 (finished)" in result.stdout
    assert "head.bias" in result.stdout


def test_show_says_when_a_run_ended_without_close(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    folder = make_run(tmp_path, steps=40, pid=gone.pid, host=socket.gethostname())
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**manifest, "status": "RUNNING"}))
    assert "ended without close at step 39" in call("show", folder).stdout
    assert (run := gradwatch.open_history(folder).run).status == "KILLED"
    assert run.crashed


@pytest.mark.parametrize("command", ["compare", "report"])
@pytest.mark.parametrize("name", ["a" * 5000, "\0"])
def test_what_cannot_be_the_name_of_a_file_is_one_line(command, name):
    refused(call(command, name), "is no run")


@pytest.mark.parametrize("args", [("show", "nope"), ("compare", "nope"), ("report", "nope"), ("show", ".")])
def test_an_unknown_run_is_one_line(args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(call(*args), args[1])


@pytest.mark.parametrize(("command", "status"), [("report", "FINISHED"), ("show", "FINISHED"), ("check", "FAILED")])
def test_an_empty_run_is_one_line(command, status, tmp_path):
    clip = "ClipByNorm(1.0)" if status == "FAILED" else None  # a crash says nothing of the policy
    refused(call(command, make_run(tmp_path, close=status, steps=0, clip=clip)), "no recorded step")


@pytest.mark.parametrize("command", ["show", "report --format html", "report --format md", "report --format json",
                                     "report --format csv", "check", "check --follow"])  # fmt: skip
def test_an_empty_run_whose_policy_never_acted_is_shown_with_its_finding(command, tmp_path):
    folder = make_run(tmp_path, steps=0, clip="ClipByNorm(1.0)")
    output = ["-o", "-"] if "report" in command else []
    result = call(*command.split(), folder, *output)
    assert result.exit_code == 0, result.output
    assert "csv" in command or "was asked for and never acted: no step was seen" in result.stdout
    refused(call("compare", folder, folder), "never acted")


def test_an_output_that_cannot_be_written_is_one_line(runs, tmp_path):
    refused(call("report", runs[0], "-o", tmp_path / "no" / "a.html"), "cannot write")
    refused(call("report", runs[0], "-o", tmp_path), "cannot write")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--help",), ("show", "{run}"), ("compare", "{run}", "--format", "csv")])
def test_a_full_disk_behind_standard_output_is_one_line(runs, words):
    command = [sys.executable, "-m", "gradwatch", *(word.format(run=runs[0]) for word in words)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("Error: cannot write to standard output: ")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "words", [("compare", "x", "--target"), ("monitor", "--every"), ("sweep", "--timeout"), ("run", "--flush-every")]
)
def test_a_number_is_finite(words, value):
    result = call(*words, value)
    assert result.exit_code == 2
    assert value in result.stderr
    assert "is not" in result.stderr or "not in the range" in result.stderr


@pytest.mark.parametrize("command", ["compare", "report"])
def test_an_empty_run_of_an_experiment_is_left_out_and_one_that_cannot_be_read_is_not(
    command, runs, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    names = [*runs, str(make_run(tmp_path, steps=0, clip=None, close="FAILED"))]
    store = SimpleNamespace(watched_runs=lambda name: names)
    monkeypatch.setattr(open_run, "_remote", lambda: store)
    result = call(command, "experiment:mnist")
    assert result.exit_code == 0, result.output
    shutil.rmtree(runs[0])
    refused(call(command, "experiment:mnist"), "is no run")


def test_an_unknown_metric_is_one_line(runs):
    refused(call("compare", *runs, "--metric", "speed"), "logged: loss, val_accuracy")


def refused(result, words):
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.fullmatch(r"Error: .*\n", result.stderr)
    assert words in result.stderr


def test_ctrl_c_is_quiet(runs, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradwatch.open_run.open_histories", interrupted)
    result = call("show", runs[0])
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.slow
def test_a_closed_pipe_is_quiet(runs):
    command = f"{shlex.quote(sys.executable)} -m gradwatch report {shlex.quote(runs[0])} -o - | head -c 20"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.stdout == "<!doctype html>\n<htm"
    assert result.stderr == ""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_names_no_limit_that_there_is_not(name):
    assert "=None]" not in call(name, "--help").stdout


@pytest.mark.parametrize("name", ["report", "compare", "show"])
def test_every_command_has_help_with_an_example(name):
    result = call(name, "--help")
    assert result.exit_code == 0
    assert f"gradwatch {name} " in result.stdout.split("Example:")[1]
    assert COMMANDS[name] in result.stdout


def test_the_version():
    assert call("--version").stdout.strip() == f"gradwatch, version {gradwatch.__version__}"


def test_help_lists_the_commands_and_imports_nothing_heavy():
    code = (
        "import sys; from gradwatch.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'mlflow', 'pandas', 'plotly', 'matplotlib', 'numpy', 'rich', 'jinja2', 'pyarrow'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(re.search(rf"^  {name} +{re.escape(text)}$", result.stdout, re.M) for name, text in COMMANDS.items())
    assert result.stdout.endswith("heavy: []\n")


@pytest.mark.slow
def test_reading_never_imports_torch(runs, tmp_path):
    code = (
        "import sys; from gradwatch.cli import main\n"
        f"main(['report', *{runs!r}, '-o', {str(tmp_path / 'a.html')!r}], standalone_mode=False)\n"
        "assert not {'torch', 'mlflow', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ----------------------------------------------------------------------------------------------------- while it goes on

TRAINING = """
import pathlib, sys, time
import torch
import gradwatch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = gradwatch.watch(model, optimizer, clip="ClipByGlobalNorm(0.5)", log=None, dir=sys.argv[1])
for _ in range(5000):
    if pathlib.Path(sys.argv[1], "enough").exists():
        break
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss)
    time.sleep(0.02)
watch.close()
"""


@pytest.mark.slow
def test_a_run_of_another_process_is_followed_to_its_end_in_lines_and_on_a_screen(tmp_path):
    """Without a terminal a line for each look, until the run ends; on one a screen, which Ctrl-C leaves with 130."""
    import pty

    env = {**os.environ, "PYTHONPATH": str(Path(gradwatch.__file__).parents[1]), "TERM": "xterm", "COLUMNS": "80"}
    training = subprocess.Popen([sys.executable, "-c", TRAINING, str(tmp_path)], env=env)
    folder = until(lambda: next((part.parents[1] for part in tmp_path.glob("*/steps/*.parquet")), None))
    command = [sys.executable, "-m", "gradwatch", "show", "--follow", str(folder)]
    master, slave = pty.openpty()
    on_screen = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )  # fmt: skip
    os.close(slave)
    lines = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True)
    seen, first = b"", lines.stdout.readline()
    while b"total norm" not in seen:
        seen += os.read(master, 65536)
    on_screen.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(master, 65536):
            seen += data
    assert on_screen.wait(60) == 130
    assert b"Traceback" not in seen
    assert b"total norm" in seen.rpartition(b"\x1b[?1049l")[2]  # behind the screen, what it showed last stays
    (tmp_path / "enough").touch()
    rest, errors = lines.communicate(timeout=60)
    assert (training.wait(60), lines.returncode, errors) == (0, 0, "")
    assert " · running · " in first
    assert "threshold 0.5" in first + rest
    assert " · finished · " in rest.replace("\n", " ")


def test_what_is_no_folder_of_a_run_is_not_followed(tmp_path):
    refused(call("show", "--follow", tmp_path), "is not a run folder")
    refused(call("show", "--follow", "nowhere"), "is not a run folder")


def test_a_run_that_is_over_is_shown_once_and_latest_is_the_newest(tmp_path, monkeypatch):
    make_run(tmp_path / "gradwatch-runs", steps=60, nan_at=50)
    monkeypatch.chdir(tmp_path)
    result = call("show", "latest", "--follow")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("step 60 of 60") == 1
    assert "error: nonfinite at step 50" in result.stdout
    assert not list(tmp_path.rglob("findings.json"))  # it only looks
