"""`gradwatch.objective`: what a watched training is worth to a study of Optuna, or that its trial is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch.distributed as dist

from gradwatch.analysis.final_values import final
from gradwatch.analysis.groups import metric_names
from gradwatch.analysis.rules import diagnose
from gradwatch.errors import RunError
from gradwatch.history import History
from gradwatch.launcher.search import load_optuna
from gradwatch.measure.distributed import rank, world_size
from gradwatch.open_run import open_history
from gradwatch.storage.downsample import MAX_VALUES

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

    from gradwatch.recording.watch import Watch


def objective(trial: BaseTrial | None, run: Watch | History, metric: str) -> float:
    """Report a logged value of a run to its trial, as of the last step, and end the trial where that is no use.

    Call it after each evaluation, of a training that goes on (its record is read and diagnosed, which takes
    milliseconds, of a long run tenths of a second), or once of a run that is over; what it returns last is what the
    study's objective returns:

        def train(trial):
            clip = gradwatch.ClipByGlobalNorm(trial.suggest_float("max_norm", 0.1, 10, log=True))
            with gradwatch.watch(model, optimizer, clip=clip) as watch:
                for epoch in range(10):
                    watch.log(val_loss=train_and_evaluate())
                    value = gradwatch.objective(trial, watch, "val_loss")
            return value

    In a distributed training call it on every rank with its Watch: rank 0 decides, by the record that it writes, and
    all return its value or are pruned together.

    Args:
        trial: the trial of this training; None on other ranks than 0, which need none.
        run: its Watch, or its History.
        metric: the name of a logged value; of one that was logged on most steps the mean of the last 20 counts.

    Returns:
        The value: the higher, the better, or the other way, as the study says.

    Raises:
        optuna.TrialPruned: the run has a finding that is an error, such as `exploding` or `nonfinite`, the value is
            not finite, or the study's own pruner gives the trial up.
        RunError: nothing of that name was logged yet, or Optuna is not installed.

    """
    if isinstance(run, History) or world_size() == 1:
        return _judged(trial, run, metric)
    told: list[float | Exception] = [0.0]
    if rank() == 0:
        try:
            told = [_judged(trial, run, metric)]
        except Exception as error:  # the others wait for it
            told = [error]
    dist.broadcast_object_list(told, src=0, device=run._stepper.layout.device)
    if isinstance(told[0], Exception):
        raise told[0]
    return told[0]


def _judged(trial: BaseTrial | None, run: Watch | History, metric: str) -> float:
    pruned = load_optuna().TrialPruned
    if trial is None:
        raise RunError("objective(None, ...) is for the ranks other than 0 of a run that goes on: wanted a trial")
    history = run if isinstance(run, History) else open_history(run.dir, MAX_VALUES)
    metric_names([history], metric)
    value, step = final(history, metric), int(history.step[-1])
    if np.isfinite(value):
        trial.report(value, step)
    for finding in diagnose(history):
        if finding.severity == "error":
            raise pruned(f"{finding.summary}. {finding.cause}")
    if not np.isfinite(value):
        raise pruned(f"{metric} is {value} at step {step}")
    if trial.should_prune():
        raise pruned(f"{metric} was {value:.4g} at step {step}: given up by the study's pruner")
    return value
