"""`gradwatch sweep --stop-losers`: which policies get no more seeds, and that it is said."""

import numpy as np
import pytest
import race_errors
from click.testing import CliRunner
from make_run import changed, make_history

from gradwatch.analysis.comparison import settle
from gradwatch.cli import main
from gradwatch.launcher import race as race_module
from gradwatch.launcher.pool import End
from gradwatch.launcher.race import Race
from gradwatch.launcher.sweep import Sweep, policies

GOOD, BAD = "ClipByGlobalNorm(1.0)", "ClipByNorm(0.01)"


@pytest.fixture
def race(tmp_path, monkeypatch):
    """`run(losses)` races policies whose seeds end with these losses; the Race, and the jobs in their order."""
    histories = {}
    monkeypatch.setattr(race_module, "history_of", lambda job: histories[job.folder])

    def run(losses, baseline=None, rises=None, metric="val_loss", again=None):
        seeds = range(len(losses["none"]))
        asked = Sweep("train.py", (), False, tuple(policies([*losses], [])), tuple(seeds), folder=tmp_path)
        made = Race(asked.jobs(), metric, rises, baseline)
        for task in made.tasks([job for job in asked.jobs() if job not in (again or ())], None):
            job = made.todo[-1]
            history = make_history(40, clip=job.policy.clip, params={"seed": str(job.seed)})
            values = {**history.per_step, "val_loss": np.full(40, losses[job.policy.label][job.seed])}
            histories[job.folder] = changed(history, per_step=values)
            task.at_end(End(0, 1.0))
        return made

    return run


FAR = {"none": [1.0, 1.1, 1.05, 0.98], GOOD: [0.9, 1.0, 0.95, 0.91], BAD: [9.0, 9.1, 9.05, 9.02]}


def test_a_policy_whose_interval_lies_beyond_the_best_gets_no_more_seeds(race):
    found = race(FAR)
    assert {policy.label: count for policy, count in found.stopped.items()} == {BAD: 2}
    trained = [job.label for job in found.jobs]
    assert len(trained) == 10
    assert f"{BAD}, seed 1" in trained
    assert f"{BAD}, seed 2" not in trained
    settled = found.outcome(settle([make_history(40)]), ())
    assert settled.notes[0].startswith(
        f"Stopped early (--stop-losers): {BAD} after 2 of 4 seeds: the 95 % interval of val_"
    )


def test_intervals_that_overlap_stop_nothing_nor_does_one_seed(race):
    assert race({"none": [1.0, 2.0, 1.5], GOOD: [1.2, 1.9, 1.7]}).stopped == {}
    one = race({"none": [1.0], BAD: [99.0]})
    assert one.stopped == {}
    assert one.outcome("as it was", ()) == "as it was"


def test_the_baseline_gets_all_its_seeds(race):
    assert race({"none": FAR[BAD], GOOD: FAR[GOOD]}).stopped == {}
    assert [policy.label for policy in race({"none": FAR[BAD], GOOD: FAR[GOOD]}, baseline=GOOD).stopped] == ["none"]


def test_which_way_is_better_counts(race):
    assert [policy.label for policy in race(FAR, baseline=BAD, rises=True).stopped] == ["none", GOOD]


def test_the_same_command_again_decides_the_same(race):
    first = race(FAR)
    again = race(FAR, again=first.jobs)
    assert again.todo == []
    assert again.jobs == first.jobs


def test_it_goes_with_policies_that_are_given_one_by_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    words = ["sweep", "--stop-losers", "--search", "3", "--lr-scale", "0.1..10", "--metric", "loss", "train.py"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "leave --search or --cures out" in done.stderr


def test_how_often_it_is_wrong_is_as_the_page_says():
    rng = np.random.default_rng(0)
    assert race_errors.stopped(2, 10, 4000, rng).any(axis=1).mean() == pytest.approx(0.02, abs=0.01)
    assert race_errors.stopped(10, 10, 4000, rng).any(axis=1).mean() == pytest.approx(0.38, abs=0.03)
