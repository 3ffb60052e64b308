"""`check --format sarif`: what code scanning reads."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from make_run import make_history, make_run

from gradwatch.analysis.rules import Finding, diagnose
from gradwatch.cli import main
from gradwatch.report.sarif import render_sarif


def an_object(required=(), **properties):
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def a_list(of):
    return {"type": "array", "items": of}


# What the schema of SARIF 2.1.0 says of the parts that are used; it allows no others.
TEXT, BAG = {"type": "string", "minLength": 1}, {"type": "object"}
MESSAGE = an_object(["text"], text=TEXT, markdown=TEXT)
RULE = an_object(["id"], id=TEXT, shortDescription=MESSAGE, help=MESSAGE)
FILE = an_object(
    artifactLocation=an_object(uri={"type": "string", "pattern": r"^[\w:/.~%+-]+$"}),
    region=an_object(startLine={"type": "integer", "minimum": 1}),
)
PLACE = an_object(
    physicalLocation=FILE, logicalLocations=a_list(an_object(fullyQualifiedName=TEXT, kind={"const": "member"}))
)
RESULT = an_object(
    ["message"], ruleId=TEXT, ruleIndex={"type": "integer", "minimum": 0}, message=MESSAGE, properties=BAG,
    level={"enum": ["none", "note", "warning", "error"]}, locations=a_list(PLACE),
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
)  # fmt: skip
DRIVER = an_object(["name"], name=TEXT, version=TEXT, rules=a_list(RULE))
RUN = an_object(["tool"], tool=an_object(["driver"], driver=DRIVER), results=a_list(RESULT), properties=BAG,
                columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]})  # fmt: skip
LOG = an_object(["version", "runs"], **{"$schema": TEXT, "version": {"const": "2.1.0"}, "runs": a_list(RUN)})


def valid(text):
    log = json.loads(text, parse_constant=pytest.fail)  # JSON has no NaN
    jsonschema.validate(log, LOG)
    (run,) = log["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    return run


def test_findings_are_results_of_their_rules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = make_run(Path("runs"), nan_at=50, name="a b")
    result = CliRunner().invoke(main, ["check", str(folder), "--format", "sarif"])
    assert (result.exit_code, result.stderr) == (1, "")
    (found,) = valid(result.stdout)["results"]
    assert (found["ruleId"], found["level"]) == ("nonfinite", "error")
    (place,) = found["locations"]
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "blocks.0.mlp.weight"
    uri = place["physicalLocation"]["artifactLocation"]["uri"]
    assert (tmp_path / uri).is_file()
    assert "SkipNonfinite()" in found["message"]["text"]


def test_a_healthy_run_has_no_results_and_says_its_verdict(tmp_path):
    result = CliRunner().invoke(main, ["check", str(make_run(tmp_path)), "--format", "sarif"])
    run = valid(result.stdout)
    assert (result.exit_code, run["results"], run["properties"]["verdict"]) == (0, [], "no findings")


def test_every_rule_severity_and_hostile_name_is_valid(tmp_path):
    hostile = Finding("spike", "note", ("a\x1b[31m", "\u202eb"), 5, 6, {"x": float("inf"), "y": float("nan")}, "C", "D")
    below = Finding("dead-layer", "warning", ("c",), 7, 8)
    findings = [*diagnose(make_history(nan_at=50)), hostile, replace(hostile, rule="no-such-rule"),
                replace(below, severity="error", consequences=(below,))]  # fmt: skip
    run = valid(render_sarif(make_history().run, findings, "spike", tmp_path))
    assert [result["level"] for result in run["results"]] == ["error", "note", "note", "error"]
    texts = [result["message"]["text"] for result in run["results"]]
    texts += [layer["fullyQualifiedName"] for layer in run["results"][1]["locations"][0]["logicalLocations"]]
    assert not {"\x1b", "\u202e"} & set("".join(texts))
    assert "What follows from it: dead-layer at step 7 in c" in run["results"][-1]["message"]["text"]


def test_the_place_is_the_script_that_was_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my train.py").write_text("")
    command = {"target": "my train.py", "folder": str(tmp_path), "module": False}
    trained = replace(make_history().run, command=command)
    run = valid(render_sarif(trained, [Finding("spike", "error", (), 5, 6)], "", None))
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "my%20train.py"}


def test_a_run_without_a_folder_has_no_place():
    run = valid(render_sarif(make_history().run, [Finding("spike", "error", ("a",), 5, 6)], "", None))
    assert "physicalLocation" not in run["results"][0]["locations"][0]


def test_the_same_finding_of_a_run_is_known_again(tmp_path):
    one, other = (Finding("spike", "error", (layer,), 5, 6) for layer in "ab")
    found = valid(render_sarif(make_history().run, [one, replace(one, first_step=4), other], "", tmp_path))["results"]
    marks = [result["partialFingerprints"]["gradwatch/v1"] for result in found]
    assert marks[0] == marks[1] != marks[2]
