"""The tags of an MLflow run that gradwatch sets; `docs/mlflow.md` and `docs/service.md` promise them."""

from __future__ import annotations

from gradwatch.analysis.optimizers import settings
from gradwatch.history import Run
from gradwatch.policies.intervention import Intervention


class Tag:
    """A tag's key. Couriers and monitors of other versions look for the same ones."""

    VERSION = "gradwatch.version"  # of the gradwatch that recorded it: the run is a watched one
    GROUP = "gradwatch.group"  # policy and learning rate: the saved view has a mean and a band for each
    FOLDER = "gradwatch.folder"  # the host and run folder that it is created for: none is created twice
    VERDICT = "gradwatch.verdict"
    FINDINGS = "gradwatch.findings"
    WORST_LAYER = "gradwatch.worst_layer"
    JUDGED = "gradwatch.judged"  # the last step that the findings speak of
    FIRST_NONFINITE_STEP = "gradwatch.first_nonfinite_step"
    FIRST_NONFINITE_LAYER = "gradwatch.first_nonfinite_layer"
    DELIVERED = "gradwatch.delivered"  # all of the run is here
    CONCLUDED = "gradwatch.concluded"  # what the findings and the report were drawn from
    CORRUPT = "gradwatch.corrupt"  # why the run cannot be read
    NOTIFIED = "gradwatch.notified"  # the errors that alerts were sent for
    NOTIFYING = "gradwatch.notifying"  # which monitor is about to send one, and since when
    SWEEP = "gradwatch.sweep"
    SWEEP_JOB = "gradwatch.sweep_job"
    TRIAL = "gradwatch.trial"  # the number of the trial in its search
    DESCRIPTION = "mlflow.note.content"


def run_group(run: Run, others: str | None = None) -> str:
    """What runs that differ in their seed share: `ClipByGlobalNorm(1.0), lr 0.1`. Of a run of parts that of each part;
    `others` is what it has of them already.
    """
    rates = dict.fromkeys(rate for each in run.optimizers if (rate := settings(each).get("lr")))
    own = ", ".join([Intervention.of(run).label, *([f"lr {' and '.join(rates)}"] if rates else ())])
    if not run.part:
        return own
    return "; ".join(sorted({*(others.split("; ") if others else ()), f"{run.part}: {own}"}))
