"""The end of a delivery: what MLflow is told once all of a run is there (verdict, report, description, status)."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwatch.diagnosis import finding_tags, write_findings
from gradwatch.history import History, Layer, Run
from gradwatch.rules import Finding, diagnose, verdict
from gradwatch.stores import MAX_VALUES
from gradwatch.stores.files import now_iso
from gradwatch.stores.parts import deliverable_parts, is_shared, read_whole
from gradwatch.stores.views import description, worst_layers

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

log = logging.getLogger("gradwatch")

MOST_FINDINGS = 5  # in the description, each with its cure; the report has them all


def conclude(client: MlflowClient, run_id: str, experiment_id: str, folder: Path, joined: bool) -> None:
    """Tell MLflow how the run in `folder` went, all its parts together. A joined run's status stays the user's own."""
    from gradwatch.stores import mlflow as store

    history = read_whole(folder, deliverable_parts(folder) if is_shared(folder) else None, MAX_VALUES)
    run = history.run
    findings, worst = judge(history)
    said = verdict(history, findings)
    tags = {**finding_tags(findings), "gradwatch.verdict": said, "gradwatch.worst_layer": worst}
    store.set_tags(client, run_id, tags)
    if len(history):
        store.upload(client, run_id, write_findings(folder, run.name, findings))
        with tempfile.TemporaryDirectory(prefix="gradwatch-") as temporary:
            for path in render(history, Path(temporary)):
                store.upload(client, run_id, path)
        facts = {"Verdict": said, "Clip": str(run.clip), "Renorm": str(run.renorm)}
        cures = {f"{f.severity} {f.summary}": f"{f.cause} {f.cure}" for f in findings[:MOST_FINDINGS]}
        store.set_description(client, run_id, description(history, experiment_id, run_id, facts, cures))
    store.set_status(client, run_id, run.status, run.ended, joined)
    log.info("%s: delivered, %s: %s", folder, run.status, said)


@cache
def rehearse() -> None:
    """Make a report of two steps and throw it away: who closes a run must not wait for imports and first uses."""
    step = np.arange(2)
    run = Run("rehearsal", now_iso(), layers=(Layer("weight", (1,)),))
    norms = {"grad_norm": np.ones((2, 1), np.float32)}
    history = History(run, ("weight",), step, step * 0, ("", ""), norms, {"grad_norm": np.ones(2)})
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
