"""`gradwatch check`: the findings of one run as a gate for CI."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--fail-on", type=click.Choice(("error", "warning")), default="error", show_default=True,
              help="The least severe finding that fails the check.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Fail, too, where the run did not end well, is too short to judge, or "
              "where its record is incomplete.")  # fmt: skip
@click.option("--format", "kind", type=click.Choice(("text", "json", "github", "sarif")), default="text",
              show_default=True, help="How to print the findings; github: annotations of a workflow, sarif: for code "
              "scanning.")  # fmt: skip
@click.option("--follow", "following", is_flag=True,
              help="Wait for the end of the run in folder RUN, and keep its findings.json up to date.")  # fmt: skip
@click.pass_context
def check(ctx: click.Context, run: str, fail_on: str, strict: bool, kind: str, following: bool) -> None:
    """Check one run for findings: exit code 1 when there are, 0 when there are none.

    RUN may be the folder that holds the run's, too, if no other is in it. A run that is too short to judge has no
    findings: its verdict says so, and without --strict the exit code is 0.

    \b
    Example:
      gradwatch check latest
      gradwatch check gate --strict
      gradwatch check gradwatch-runs/20260131-120000-mlp --fail-on warning --format github
    """  # noqa: D301  (click reads the backspace)
    from gradwatch.analysis.rules import diagnose, verdict
    from gradwatch.analysis.rules.facts import LEAST_STEPS, steps_taken
    from gradwatch.errors import RunError
    from gradwatch.open_run import open_one
    from gradwatch.report.model import state
    from gradwatch.report.sarif import render_sarif
    from gradwatch.report.terminal import print_text
    from gradwatch.report.text import render_check_json, render_check_text, render_github
    from gradwatch.sanitize import terminal

    if following:
        from gradwatch.open_run import folder_to_follow
        from gradwatch.tracking.live_findings import looks

        for _ in looks(folder_to_follow(run)):
            pass  # each of them brings `findings.json` up to date
    history = open_one(run, "check", empty=True)
    lost = "layers" if not history.layers else "steps" if not history.per_step else ""
    if lost and (history.problems or (lost == "steps" and len(history))):
        why = f" ({history.problems[0]})" if history.problems else ""
        raise RunError(
            f"{run} cannot be judged: nothing of its table of {lost} can be read{why}; fetch it from a copy, or from "
            "the run's artifacts in MLflow"
        )
    findings = diagnose(history)
    said = verdict(history, findings)
    how, name = state(history), history.run.name
    unsound = [f"incomplete: {problem}" for problem in history.problems]
    if how not in ("finished", "running"):
        unsound.insert(0, f"the run {how if ' ' in how else f'ended as {how}'} after {len(history):,} steps")
    if kind == "sarif":
        text = render_sarif(history.run, findings, said, _folder(run))
    elif kind == "json":
        text = render_check_json(name, findings, said, unsound)
    else:
        text = (render_check_text if kind == "text" else render_github)(name, findings, said)
    print_text(text) if kind == "text" else click.echo(text, nl=False)
    for problem in unsound:
        click.echo(terminal(problem), err=True)
    failing = ("error",) if fail_on == "error" else ("error", "warning")
    fails = any(finding.severity in failing for finding in findings)
    ctx.exit(int(fails or (strict and (bool(unsound) or steps_taken(history) < LEAST_STEPS))))


def _folder(ref: str) -> Path | None:
    """The folder of the run, where it has one here."""
    from gradwatch.errors import RunError
    from gradwatch.open_run import folder_to_follow

    with contextlib.suppress(RunError):
        return folder_to_follow(ref)
    return None
