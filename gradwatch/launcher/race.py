"""`gradwatch sweep --stop-losers`: a race of policies over seeds, in which one that can hardly win gets no more.

Source: Maron and Moore 1994, "Hoeffding races"; here with the intervals over seeds that the comparison shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gradwatch.analysis import intervals
from gradwatch.analysis.comparison import Comparison
from gradwatch.analysis.final_values import diverged
from gradwatch.analysis.groups import counted, higher_is_better, metric_names
from gradwatch.history import History
from gradwatch.launcher.pool import Task
from gradwatch.launcher.sweep import Job, Record, task
from gradwatch.launcher.sweep_summary import history_of
from gradwatch.policies.intervention import NONE, Intervention
from gradwatch.report.model import RunSummary


class Race:
    """The trainings of a sweep, of which those of a policy are left out once its interval lies beyond the best one's.

    The baseline always gets all its seeds: the others are compared with it.
    """

    def __init__(self, jobs: Sequence[Job], metric: str | None, rises: bool | None, baseline: str | None) -> None:
        self.every, self.metric, self.rises, self.baseline = jobs, metric, rises, baseline or NONE
        self.stopped: dict[Intervention, int] = {}  # after how many seeds
        self.todo: list[Job] = []  # what was handed to the pool, in its order
        self._waiting: set[Path] = set()  # what an earlier training of these was worth does not count
        self._values: dict[Path, float] = {}

    @property
    def jobs(self) -> list[Job]:
        """The trainings, without those that were left out."""
        return [job for job in self.every if job.policy not in self.stopped or Record.read(job) is not None]

    def tasks(self, todo: Sequence[Job], timeout: float | None) -> Iterator[Task]:
        """What is to be trained, looked at again for each when a slot is free."""
        self._waiting = {job.folder for job in todo}
        for job in todo:
            if not self._has_lost(job.policy):
                self.todo.append(job)
                begun = task(job, timeout)
                self._waiting.discard(job.folder)
                yield begun

    def outcome(self, settled: Comparison, runs: Sequence[RunSummary]) -> Comparison:
        """The comparison with what was stopped ahead of its notes."""
        if not self.stopped:
            return settled
        seeds = len({job.seed for job in self.every})
        named = ", ".join(f"{policy.label} after {count} of {seeds} seeds" for policy, count in self.stopped.items())
        note = (
            f"Stopped early (--stop-losers): {named}: the 95 % interval of {self.metric} lay wholly beyond that of the "
            "best policy then. It was looked at after each training, so that a verdict over what was stopped is less "
            "certain than it says."
        )
        return replace(settled, notes=(note, *settled.notes))

    def _has_lost(self, policy: Intervention) -> bool:
        if policy in self.stopped or policy.label == self.baseline:
            return policy in self.stopped
        found: dict[Intervention, list[float]] = {}
        for job in self.every:
            value = self._value(job)
            if value is not None:
                found.setdefault(job.policy, []).append(value)
        means = {one: intervals.mean(values) for one, values in found.items() if one not in self.stopped}
        means = {one: mean for one, mean in means.items() if mean.has_interval}
        if policy not in means or self.rises is None:
            return False
        sign = 1 if self.rises else -1
        best = max(means.values(), key=lambda mean: sign * mean.value)
        own = means[policy]
        lost = own.high < best.low if self.rises else own.low > best.high
        if lost:
            self.stopped[policy] = len(found[policy])
        return lost

    def _value(self, job: Job) -> float | None:
        """What the final value of a training counts as; None while it is not over."""
        if job.folder in self._waiting:
            return None
        if job.folder not in self._values:
            record = Record.read(job)
            history = None if record is None else history_of(job)
            if record is None or history is None:
                return None
            self._decide(history)
            if self.metric is None:
                return None
            counts = record.over or diverged(history, self.metric)
            value = counted(history, self.metric)
            self._values[job.folder] = value if counts else float("nan")
        return self._values[job.folder]

    def _decide(self, history: History) -> None:
        """By which value, and which way: as the comparison does, by the first run that is over."""
        if self.metric is None:
            self.metric = next(iter(metric_names([history])), None)
        if self.rises is None and self.metric is not None:
            self.rises = higher_is_better(self.metric, [history])
