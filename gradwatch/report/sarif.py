"""What `gradwatch check` found as SARIF 2.1.0, which code scanning of GitHub, GitLab and Azure DevOps reads.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gradwatch._version import __version__
from gradwatch.analysis.rules import Finding
from gradwatch.history import Run
from gradwatch.report.pages import page_of
from gradwatch.report.wording import evidence_text, where_text
from gradwatch.sanitize import plain, printable
from gradwatch.storage.folder import MANIFEST

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render_sarif(run: Run, findings: Sequence[Finding], said: str, place: Path | None) -> str:
    """A SARIF log of one run: a result for each finding, its consequences in its message; the rules that they are of.

    A result's place is the script, where `gradwatch run` trained it, else the manifest in `place`, the run's folder:
    code scanning wants a file. A run of MLflow has none. Layers are logical locations. `said` is the verdict.
    """
    rules = list(dict.fromkeys(finding.rule for finding in findings))
    driver = {"name": "gradwatch", "version": __version__, "rules": [_rule(name) for name in rules]}
    results = [_result(run, finding, rules.index(finding.rule), _uri(run, place)) for finding in findings]
    told = {"run": printable(run.name), "verdict": printable(said)}
    found = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints", "properties": told}
    return json.dumps(plain({"$schema": SCHEMA, "version": "2.1.0", "runs": [found]}), indent=2) + "\n"


def _rule(name: str) -> dict[str, Any]:
    page = page_of(name)
    text = page.read_text(encoding="utf-8") if page else ""
    title = text.partition("\n")[0].removeprefix("# ") or name
    return {"id": name, "shortDescription": {"text": title}, "help": {"text": text or name, "markdown": text or name}}


def _result(run: Run, finding: Finding, index: int, uri: str | None) -> dict[str, Any]:
    follows = ", ".join(other.summary for other in finding.consequences)
    lines = [finding.summary, where_text(finding), finding.cause, finding.cure, evidence_text(finding),
             follows and f"What follows from it: {follows}"]  # fmt: skip
    key = f"{run.name} {finding.rule} {finding.optimizer} {' '.join(finding.layers)}"
    layers = [{"fullyQualifiedName": printable(name), "kind": "member"} for name in finding.layers]
    file = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}} if uri else {}
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,  # error, warning and note are SARIF's own words
        "message": {"text": _printable_lines(lines)},
        "locations": [{**file, **({"logicalLocations": layers} if layers else {})}],
        "partialFingerprints": {"gradwatch/v1": hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]},
        "properties": {
            "firstStep": finding.first_step,
            "lastStep": finding.last_step,
            "evidence": dict(finding.evidence),
            "confidence": finding.confidence,
            "tries": list(finding.tries),
        },
    }


def _printable_lines(lines: Sequence[str]) -> str:
    """Lines of text without what steers a terminal or a page; empty ones are left out."""
    return "\n".join(printable(line) for line in lines if line)


def _uri(run: Run, place: Path | None) -> str | None:
    """The script that was trained, else the manifest; relative to here where it lies below, as scanners want it."""
    command = run.command or {}
    script = Path(command["folder"], command["target"]) if command and not command["module"] else None
    file = script if script is not None and script.is_file() else place and place / MANIFEST
    if file is None:
        return None
    found, here = file.resolve(), Path.cwd().resolve()
    return quote(found.relative_to(here).as_posix()) if found.is_relative_to(here) else found.as_uri()
