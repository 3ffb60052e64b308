"""`gradwatch check`: its exit code is the gate, its formats are read by machines."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from make_run import make_history, make_run

from gradwatch.analysis.rules import Finding
from gradwatch.cli import main
from gradwatch.report.text import render_check_json, render_check_text, render_github


def call(*args):
    return CliRunner().invoke(main, ["check", *map(str, args)])


@pytest.fixture
def healthy(tmp_path):
    return make_run(tmp_path / "healthy")


@pytest.fixture
def sick(tmp_path):
    return make_run(tmp_path / "sick", nan_at=50)


@pytest.fixture
def warned(tmp_path, monkeypatch):
    findings = [Finding("spike", "warning", ("a",), 5, 6), Finding("clip-inert", "note", (), 0, 9)]
    monkeypatch.setattr("gradwatch.analysis.rules.diagnose", lambda history: findings)
    return make_run(tmp_path / "warned")


@pytest.mark.parametrize(
    ("run", "options", "code"),
    [
        ("healthy", (), 0),
        ("healthy", ("--fail-on", "warning"), 0),
        ("sick", (), 1),
        ("sick", ("--fail-on", "warning"), 1),
        ("warned", (), 0),
        ("warned", ("--fail-on", "error"), 0),
        ("warned", ("--fail-on", "warning"), 1),
    ],
)
@pytest.mark.parametrize("kind", ["text", "json", "github"])
def test_the_exit_code_is_the_gate(run, options, code, kind, request):
    result = call(request.getfixturevalue(run), *options, "--format", kind)
    assert (result.exit_code, result.stderr) == (code, "")


def test_a_policy_that_met_no_step_fails_where_warnings_do(tmp_path):
    folder = str(make_run(tmp_path, steps=0))
    assert call(folder).exit_code == 0
    assert call(folder, "--fail-on", "warning").exit_code == 1


def test_a_note_never_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("gradwatch.analysis.rules.diagnose", lambda history: [Finding("clip-inert", "note", (), 0, 9)])
    assert call(make_run(tmp_path), "--fail-on", "warning").exit_code == 0


@pytest.mark.parametrize("options", [(), ("--fail-on", "note"), ("--format", "xml")])
def test_bad_input_is_exit_code_2(options, tmp_path, healthy):
    result = call(tmp_path / "nope" if not options else healthy, *options)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize("table", ["layers", "steps"])
@pytest.mark.parametrize("how", ["cut", "emptied", "removed"])
def test_a_run_of_which_one_table_is_gone_is_not_judged(table, how, tmp_path):
    run = make_run(tmp_path)
    parts = [*(run / table).glob("*.parquet")]
    assert parts
    for part in parts:
        part.write_bytes(part.read_bytes()[:300]) if how == "cut" else part.unlink()
    if how == "removed":
        (run / table).rmdir()
    result = call(run)
    if table == "layers" and how != "cut":  # it cannot be told that there were any, and the verdict says so
        assert "judged by its total norm and what was logged: layers were not recorded" in result.stdout
        return
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert "cannot be judged: nothing of its table of" in line or "no recorded step yet" in line


@pytest.mark.parametrize("charset", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", ["check", "show"])
def test_a_terminal_that_has_not_all_of_unicode_gets_what_it_has(command, charset, warned):
    result = CliRunner(charset=charset).invoke(main, [command, str(warned)])
    assert result.exit_code == 0, result.exception
    assert "verdict" in result.stdout if command == "show" else "spike" in result.stdout


@pytest.mark.parametrize(
    "words",
    [["sync"], ["check"], ["ui", "--store"], ["run", "--log", "none", "--dir"], ["demo", "--out"]],
    ids=" ".join,
)
def test_a_name_that_no_file_system_takes_is_one_line(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    result = CliRunner().invoke(main, [*words, "x" * 300, *(["x.py"] if words[0] == "run" else [])])
    assert result.exit_code == 2, result.exception
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")


@pytest.mark.parametrize(
    ("made", "code", "said"),
    [
        ({}, 0, ""),
        ({"close": "FAILED"}, 1, "the run ended as failed after 60 steps\n"),
        ({"close": "KILLED"}, 1, "the run ended as killed after 60 steps\n"),
        ({"steps": 9}, 1, ""),  # too short to judge
    ],
)
def test_a_strict_gate_wants_a_run_that_ended_well(made, code, said, tmp_path):
    make_run(tmp_path / "gate", **{"steps": 60, "clip": None, **made})
    assert call(tmp_path / "gate").exit_code == 0  # the only run of a folder
    strict = call(tmp_path / "gate", "--strict")
    assert (strict.exit_code, strict.stderr) == (code, said)
    told = json.loads(call(tmp_path / "gate", "--format", "json").stdout)
    assert told["unsound"] == said.splitlines()


def test_a_strict_gate_wants_the_whole_record_and_a_run(tmp_path):
    folder = make_run(tmp_path / "gate")
    part = next((folder / "layers").glob("part-*"))
    part.write_bytes(part.read_bytes()[:100])
    make_run(tmp_path / "two")
    make_run(tmp_path / "two")
    assert [call(tmp_path / "gate", *words).exit_code for words in ([], ["--strict"])] == [0, 1]
    assert [call(tmp_path / name, "--strict").exit_code for name in ("none", "two")] == [2, 2]


def test_several_runs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gradwatch.open_run.open_histories", lambda refs, empty: [make_history(), make_history()])
    result = call("experiment:mnist")
    assert result.exit_code == 2
    assert "is 2 runs, and check wants one" in result.stderr


def test_what_is_missing_goes_to_standard_error(monkeypatch):
    history = replace(make_history(), problems=("layers: parts 3 to 4 are missing",))
    monkeypatch.setattr("gradwatch.open_run.open_histories", lambda refs, empty: [history])
    result = call("latest", "--format", "json")
    assert json.loads(result.stdout)["findings"] == []
    assert result.stderr == "incomplete: layers: parts 3 to 4 are missing\n"


def test_json_has_the_findings_with_their_keys(sick):
    data = json.loads(call(sick, "--format", "json").stdout)
    assert list(data) == ["run", "verdict", "findings", "unsound"]
    assert data["run"] == "mlp"
    (found,) = data["findings"]
    assert {"rule", "severity", "layers", "first_step", "last_step", "evidence", "cause", "cure"} <= set(found)
    assert (found["rule"], found["layers"], found["first_step"]) == ("nonfinite", ["blocks.0.mlp.weight"], 50)


def test_json_has_no_number_that_json_lacks():
    text = render_check_json("a", [Finding("spike", "error", (), 0, 1, {"x": float("inf"), "y": float("nan")})])
    assert json.loads(text, parse_constant=pytest.fail)["findings"][0]["evidence"] == {"x": None, "y": None}


def test_the_text_says_what_where_why_and_what_to_do(sick):
    text = call(sick).stdout
    assert text.startswith("mlp: 1 error\n\nerror: nonfinite at step 50 in blocks.0.mlp.weight\n  step 50")
    assert "SkipNonfinite()" in text
    assert "steps: 1" in text


def test_consequences_stand_under_their_root():
    below = Finding("nonfinite", "error", ("b",), 9, 9, cause="Overflow.")
    text = render_check_text("r", [Finding("exploding", "error", (), 3, 9, consequences=(below,))])
    assert text.startswith("r: 1 error\n")
    assert "\n  What follows from it:\n    error: nonfinite at step 9 in b\n" in text
    assert "nonfinite at step 9 in b" in render_github("r", [Finding("e", "error", (), 3, 9, consequences=(below,))])


def test_a_healthy_run_says_so(healthy):
    assert call(healthy).stdout == "mlp: no findings\n"
    assert call(healthy, "--format", "github").stdout == ""
    said = json.loads(call(healthy, "--format", "json").stdout)
    assert said == {"run": "mlp", "verdict": "no findings", "findings": [], "unsound": []}


def test_a_run_that_is_too_short_to_judge_passes_and_says_so(tmp_path):
    short = make_run(tmp_path, steps=8)
    results = {kind: call(short, "--fail-on", "warning", "--format", kind) for kind in ("text", "json", "github")}
    assert {result.exit_code for result in results.values()} == {0}
    assert results["text"].stdout == "mlp: no findings, too short to judge: 32 steps are wanted\n"
    assert json.loads(results["json"].stdout)["verdict"] == "too short to judge"
    assert results["github"].stdout == "::notice title=mlp%3A too short to judge::32 steps are wanted\n"


@pytest.mark.parametrize(("severity", "command"), [("error", "error"), ("warning", "warning"), ("note", "notice")])
def test_github_gets_one_escaped_workflow_command_for_each_finding(severity, command):
    evil = Finding("spike", severity, ("a,b: 100%\n::error::x",), 5, 6, {"x": 1.5}, "It is 5%,\r\nsay: we.", "Clip.")
    text = render_github("r:1,2", [evil])
    assert text == (
        f"::{command} title=r%3A1%2C2%3A spike at step 5 in a%2Cb%3A 100%25%0A%3A%3Aerror%3A%3Ax"
        "::It is 5%25,%0D%0Asay: we.%0AClip.%0Ax: 1.5\n"
    )


def test_control_characters_do_not_reach_the_terminal():
    assert "\x1b" not in render_check_text("r\x1b[2J", [Finding("spike", "error", ("\x1b[31m",), 5, 6)])


def test_it_needs_neither_torch_nor_what_draws(sick):
    code = (
        "import sys; from gradwatch.cli import main\n"
        f"assert main(['check', {str(sick)!r}], standalone_mode=False) == 1\n"
        "assert not {'torch', 'mlflow', 'matplotlib', 'plotly'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
