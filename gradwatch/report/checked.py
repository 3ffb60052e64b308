"""What `gradwatch check` prints: the findings of one run as text, as JSON, or as annotations of a GitHub workflow."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gradwatch.report.findings import counts_text, evidence_text, finding_lines
from gradwatch.report.text import plain
from gradwatch.rules import Finding
from gradwatch.untrusted import printable, terminal

_GITHUB = {"error": "error", "warning": "warning", "note": "notice"}


def render_check_text(run: str, findings: Sequence[Finding]) -> str:
    """The verdict in one line, then each finding with its numbers, cause and cure."""
    lines = [f"{run}: {counts_text(findings) or 'no findings'}"]
    for finding in findings:
        lines += ["", *finding_lines(finding)]
    return "\n".join(map(terminal, lines)) + "\n"


def render_check_json(run: str, findings: Sequence[Finding]) -> str:
    """`{"run": ..., "findings": [...]}`; a number that is not finite is null."""
    return json.dumps(plain({"run": run, "findings": [f.to_json() for f in findings]}), indent=2) + "\n"


def render_github(run: str, findings: Sequence[Finding]) -> str:
    """One workflow command per finding, its consequences in the message: `::error title=...::message`.

    Source: GitHub's workflow commands; escapes as in actions/toolkit `command.ts`.
    """
    return "".join(
        f"::{_GITHUB[finding.severity]} title={_property(f'{run}: {finding.summary}')}::{_data(_message(finding))}\n"
        for finding in findings
    )


def _message(finding: Finding) -> str:
    follows = ", ".join(consequence.summary for consequence in finding.consequences)
    lines = [finding.cause, finding.cure, evidence_text(finding), follows and f"What follows from it: {follows}"]
    return "\n".join(filter(None, lines))


def _data(text: str) -> str:
    return printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
