"""`gradwatch sweep --search N`: trials that Optuna draws, each trained with every seed, pruned by severe findings."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from gradwatch.analysis.comparison import Comparison
from gradwatch.analysis.final_values import diverged
from gradwatch.analysis.groups import SEARCHED, counted, metric_names
from gradwatch.analysis.rules import diagnose
from gradwatch.errors import RunError
from gradwatch.launcher.pool import End, Task
from gradwatch.launcher.search_space import Space, rounded
from gradwatch.launcher.sweep import OUTPUT, Job, Record, Sweep, digest, require_ended, task
from gradwatch.launcher.sweep_summary import history_of
from gradwatch.policies.intervention import Intervention
from gradwatch.report.model import RunSummary
from gradwatch.tracking.tags import Tag

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

STUDY = "study.log"  # Optuna's journal, in the sweep's folder
POLICY, WHY = "policy", "why"  # what we note of a trial: what it trained with, why it has no value


def load_optuna() -> ModuleType:
    """Optuna.

    Raises:
        RunError: it is not installed.
    """
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise RunError(f"optuna cannot be loaded ({error}): pip install 'gradwatch[optuna]'") from error


@dataclass
class _Running:
    """A trial whose seeds are being trained; `values` are those of the seeds that ended."""

    trial: Trial
    values: list[float] = field(default_factory=list)
    is_over: bool = False


class Search:
    """A study of Optuna in the folder of a sweep; the same again goes on with it.

    A trial is pruned when one of its runs is halted by a severe finding, or diverged; it failed when one of them ended
    with another error, and else has the mean of the final values over its seeds. Whatever ended counts as one of the
    `wanted`. The script as it is, without a policy, is trained first, to compare with; it is no trial.
    """

    def __init__(self, asked: Sweep, space: Space, wanted: int, metric: str, rises: bool) -> None:
        optuna = load_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.asked, self.space, self.wanted, self.metric, self.rises = asked, space, wanted, metric, rises
        self.states = optuna.trial.TrialState
        self.lock = threading.Lock()  # trials are told in the pool's threads
        parts = [repr(space), metric, rises, asked.seeds, asked.set_seed, asked.options, asked.source]
        self.study = _open_study(asked.home / STUDY, f"{metric}-{digest(parts)}", rises)
        for trial in self.study.get_trials(states=[self.states.RUNNING]):  # interrupted: the same is trained again
            for seed in asked.seeds if POLICY in trial.user_attrs else ():
                require_ended(asked.job(_policy(trial), seed))
            self.study.tell(trial.number, state=self.states.FAIL)
            self.study.enqueue_trial(trial.params)
        # not the same numbers again that the study began with
        self.study.sampler = optuna.samplers.TPESampler(seed=len(self.study.trials), constant_liar=True)
        self.unchanged = [asked.job(Intervention(), seed) for seed in asked.seeds]
        self.todo: list[Job] = []  # what was handed to the pool, in its order

    @property
    def ended(self) -> list[FrozenTrial]:
        """The trials that ended, not those that were interrupted."""
        over = (self.states.COMPLETE, self.states.PRUNED, self.states.FAIL)
        return [
            trial for trial in self.study.get_trials(states=over) if trial.value is not None or WHY in trial.user_attrs
        ]

    @property
    def jobs(self) -> list[Job]:
        """All trainings so far: the script as it is, and those of the trials that ended, each once."""
        policies = dict.fromkeys(_policy(trial) for trial in self.ended)
        made = [*self.unchanged, *(self._job(policy, seed) for policy in policies for seed in self.asked.seeds)]
        return [job for job in {job.folder: job for job in made}.values() if job.folder.exists()]

    @property
    def begun(self) -> list[Job]:
        """All trainings that were begun so far, with those of a trial that was interrupted."""
        return [*{job.folder: job for job in (*self.jobs, *self.todo)}.values()]

    @property
    def total(self) -> int:
        """How many trainings there are at most."""
        return (self.wanted + 1) * len(self.asked.seeds)

    @property
    def done(self) -> int:
        """How many of them were over when this began, those of trials that were given up as well."""
        return min(self.wanted, len(self.ended)) * len(self.asked.seeds) + sum(job.is_over for job in self.unchanged)

    @property
    def has_failed(self) -> bool:
        """Whether a training ended with an error that no finding explains."""
        failed = any(trial.state == self.states.FAIL for trial in self.ended)
        return failed or not all(job.is_over for job in self.unchanged)

    def tasks(self, timeout: float | None, force: bool) -> Iterator[Task]:
        """What is to be trained, a trial drawn when a slot is free; what is finished already is not trained again."""
        for job in self.unchanged:
            if force or not job.is_over:
                self.todo.append(job)
                yield task(job, timeout)
        is_logged = False
        for _ in range(self.wanted - len(self.ended)):
            is_logged = is_logged or self._is_logged()
            running = _Running(self.study.ask())
            policy = self.space.draw(running.trial)
            running.trial.set_user_attr(POLICY, policy.arguments)
            for seed in self.asked.seeds:
                job = self._job(policy, seed, running.trial)
                if job.is_over and not force:
                    self._tell(running, job)
                elif not running.is_over:
                    self.todo.append(job)
                    yield self._task(running, job, timeout)

    def outcome(self, settled: Comparison, runs: Sequence[RunSummary]) -> Comparison:
        """The comparison with what came of the search ahead of its notes."""
        ended = self.ended
        done = [trial for trial in ended if trial.state == self.states.COMPLETE]
        trials = f"{len(ended)} trial{'s' * (len(ended) != 1)}"
        lines = [f"A search of {trials} by {self.metric}: {len(done)} trained to their end{self._cut(ended)}."]
        if done:
            best = self.study.best_trial
            policy = _policy(best)
            lines.append(
                f"Best: trial {best.number}, {policy.label}, {self.metric} {best.value:.4g}. The best of many is "
                "partly the luckiest: train it again, with seeds that the search did not have, and beside none."
            )
        return replace(settled, notes=(*lines, *settled.notes))

    def _cut(self, ended: list[FrozenTrial]) -> str:
        """`, 3 pruned (exploding 2, nonfinite 1), 1 failed`."""
        said = ""
        for state, word in ((self.states.PRUNED, "pruned"), (self.states.FAIL, "failed")):
            found = [trial.user_attrs.get(WHY, "") for trial in ended if trial.state == state]
            whys = ", ".join(f"{why} {found.count(why)}" for why in dict.fromkeys(found))
            said += f", {len(found)} {word} ({whys})" if found else ""
        return said

    def _is_logged(self) -> bool:
        """Whether the script logs the metric; False while its training without a policy goes on or failed.

        Raises:
            RunError: that has ended well without it, and no trial would have a value.
        """
        for job in (job for job in self.unchanged if job.is_over):
            history = history_of(job)
            if history is None:
                raise RunError(f"the script trained nothing that a trial could be judged by: see {job.folder / OUTPUT}")
            if not diverged(history):
                metric_names([history], self.metric)
                return True
        return False

    def _job(self, policy: Intervention, seed: int | None, trial: Trial | None = None) -> Job:
        words: tuple[str, ...] = ("--halt-on", "error")
        if trial is not None:
            pairs = {f"{SEARCHED}{name}": rounded(value) for name, value in trial.params.items()}
            words += ("--tag", f"{Tag.TRIAL}={trial.number}")
            words += tuple(word for name, value in pairs.items() for word in ("--param", f"{name}={value}"))
        return self.asked.job(policy, seed, words)

    def _task(self, running: _Running, job: Job, timeout: float | None) -> Task:
        made = task(job, timeout)

        def at_end(end: End) -> None:
            made.at_end(end)
            if end.cut != "interrupted":
                self._tell(running, job)

        return replace(made, at_end=at_end)

    def _tell(self, running: _Running, job: Job) -> None:
        """A training of a trial ended: end the trial, if it is over with that."""
        history = history_of(job)
        value = counted(history, self.metric) if history is not None else float("nan")
        with self.lock:
            if running.is_over:
                return
            running.values.append(value)
            if job.is_over and np.isfinite(value):
                if len(running.values) == len(self.asked.seeds):
                    self._end(running, float(np.mean(running.values)))
                return
            found = [finding.rule for finding in diagnose(history) if finding.severity == "error"] if history else []
            record = Record.read(job)
            why = found[0] if found else "no value" if job.is_over else record.status if record else "not started"
            self._end(running, None, why, pruned=bool(found))

    def _end(self, running: _Running, value: float | None, why: str = "", pruned: bool = False) -> None:
        running.is_over = True
        if value is None:
            running.trial.set_user_attr(WHY, why)
            self.study.tell(running.trial, state=self.states.PRUNED if pruned else self.states.FAIL)
        else:
            self.study.tell(running.trial, value)


def _open_study(path: Path, name: str, rises: bool) -> Study:
    """Optuna's study of this name in a journal, a new one if there is none.

    Raises:
        RunError: the journal cannot be read.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if path.exists():
        with open(path, "rb+") as file:  # without the line in which a sweep was killed: the next would be put behind it
            file.truncate(file.read().rfind(b"\n") + 1)
    try:
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))), study_name=name,
            direction="maximize" if rises else "minimize", load_if_exists=True,
        )  # fmt: skip
    except OSError:
        raise
    except Exception as error:  # whatever a line that is no record of Optuna's brings about in it
        raise RunError(
            f"{path} cannot be read as a study of Optuna ({type(error).__name__}: {error}): move it away, and the same "
            "command begins another study; what is trained already is kept"
        ) from error


def _policy(trial: FrozenTrial) -> Intervention:
    return Intervention.of(trial.user_attrs[POLICY])
