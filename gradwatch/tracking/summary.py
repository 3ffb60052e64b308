"""The summary of a run in MLflow: verdict, findings, report, description.

The courier logs it once all of a run is delivered; the monitor logs it again when there is more to read, or when a
newer gradwatch judges.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwatch.analysis.rules import Finding, diagnose, verdict
from gradwatch.history import History, Layer, Run
from gradwatch.policies.intervention import Intervention
from gradwatch.storage.downsample import MAX_VALUES
from gradwatch.storage.folder import now_iso
from gradwatch.storage.shared_folder import deliverable_parts, read_joint_manifest, read_whole
from gradwatch.tracking.live_findings import finding_tags, write_findings
from gradwatch.tracking.tags import Tag
from gradwatch.tracking.views import description, worst_layers

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger("gradwatch")

MOST_FINDINGS = 5  # in the description, each with its cure; the report has them all


@dataclass(frozen=True)
class Summary:
    """What there is to say of a run: tags, files for its artifacts, and the description (None: nothing to describe)."""

    tags: dict[str, str]
    files: tuple[Path, ...] = ()
    note: str | None = None


def finish_run(client: MlflowClient, run_id: str, experiment_id: str, folder: Path, joined: bool) -> None:
    """Log in MLflow how the run in `folder` went, all its parts together. A joined run's status stays the user's own.

    Where a monitor looks after the store (`GRADWATCH_MONITORED`), only the status is set.
    """
    from gradwatch.tracking import client as store
    from gradwatch.tracking import reader

    run, outcome = read_joint_manifest(folder), "left to the monitor"
    if not is_monitored():
        history = read_whole(folder, deliverable_parts(folder), MAX_VALUES)
        with tempfile.TemporaryDirectory(prefix="gradwatch-") as temporary:
            summary = summarize(history, folder, Path(temporary), experiment_id, run_id)
            log_summary(client, run_id, summary)
        outcome = summary.tags[Tag.VERDICT]
    store.set_tags(client, run_id, {Tag.DELIVERED: f"{run.ended} attempt {run.attempt}"})
    store.set_status(client, run_id, run.status, run.ended, joined)
    if not is_monitored():
        store.set_tags(client, run_id, {Tag.CONCLUDED: str(reader.fingerprint(client, run_id))})
    log.info("%s: delivered, %s: %s", folder, run.status, outcome)


def is_monitored() -> bool:
    """Whether `GRADWATCH_MONITORED` says that a monitor looks after the store: it makes findings and report there."""
    return os.environ.get("GRADWATCH_MONITORED", "").lower() in ("1", "true", "yes")


def summarize(history: History, folder: Path, rendered: Path, experiment_id: str, run_id: str) -> Summary:
    """Judge the run and render its report: `findings.json` in its own `folder`, pages and pictures in `rendered`."""
    run = history.run
    findings, worst = judge(history)
    said = verdict(history, findings)
    tags = {**finding_tags(findings, "running" if run.status == "RUNNING" else said), Tag.WORST_LAYER: worst}
    if not len(history):
        return Summary({**tags, Tag.VERDICT: said})
    tags[Tag.JUDGED] = str(history.step.max())
    scaled = Intervention(None, None, run.lr_scale, run.warmup)
    facts = {"Verdict": tags[Tag.VERDICT], "Clip": str(run.clip), "Renorm": str(run.renorm)}
    facts |= {"Learning rate": scaled.label} if scaled.arguments else {}
    cures = {f"{f.severity} {f.summary}": f"{f.cause} {f.cure}" for f in findings[:MOST_FINDINGS]}
    note = description(history, experiment_id, run_id, facts, cures)
    files = (write_findings(folder, run.name, findings, said), *render(history, rendered))
    return Summary(tags, files, note)


def log_summary(client: MlflowClient, run_id: str, summary: Summary) -> None:
    """Bring the run's tags, artifacts and description up to date. To do so twice changes nothing."""
    from gradwatch.tracking import client as store

    store.set_tags(client, run_id, summary.tags)
    for path in summary.files:
        store.upload(client, run_id, path)
    if summary.note is not None:
        store.set_description(client, run_id, summary.note)


@cache
def rehearse() -> None:
    """Make a report of two steps and throw it away: who closes a run must not wait for imports and first uses."""
    step = np.arange(2)
    run = Run("rehearsal", now_iso(), layers=(Layer("weight", (1,)),))
    norms = {"grad_norm": np.ones((2, 1), np.float32)}
    history = History.of(run, ("weight",), step, step * 0, ("", ""), norms, {"grad_norm": np.ones(2)})
    judge(history)
    with tempfile.TemporaryDirectory(prefix="gradwatch-") as temporary:
        render(history, Path(temporary))


def judge(history: History) -> tuple[list[Finding], str]:
    """The findings, and the layer that the first is about (of a healthy run, the one that was clipped most)."""
    findings = diagnose(history)
    layers = [name for finding in findings[:1] for name in finding.layers[:1]]
    order = worst_layers(history) if len(history) else []
    return findings, (layers or [history.layers[i] for i in order[:1]] or [""])[0]


def render(history: History, folder: Path) -> list[Path]:
    """`report.html` and `overview.png` in `folder`; a report that fails must not keep the data from being delivered."""
    from gradwatch.report import build_report, render_html, write_overview

    made = []
    with _logged("report.html"):
        (folder / "report.html").write_text(render_html(build_report([history])), encoding="utf-8")
        made.append(folder / "report.html")
    with _logged("overview.png"):
        write_overview(history, folder / "overview.png")
        made.append(folder / "overview.png")
    return made


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("%s could not be made; the rest is delivered", what)
