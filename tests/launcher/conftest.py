"""A sweep without the seconds that imports take."""

import functools
import multiprocessing.forkserver

import pytest
from click.testing import CliRunner

from gradwatch.cli import main
from gradwatch.launcher.fork_server import can_fork
from gradwatch.launcher.sweep import task as task_of


@pytest.fixture(scope="module")
def server_of_our_own():
    """The fork server that the trainings ask for, not one that another test started with other modules, or will."""
    if can_fork():
        multiprocessing.forkserver._forkserver._stop()
    yield
    if can_fork():
        multiprocessing.forkserver._forkserver._stop()


@pytest.fixture
def sweep(server_of_our_own, monkeypatch):
    """A sweep in this process, its trainings in forks of one that has imported torch; gives what it printed.

    All but the seconds that imports take is as it is from a shell, where a Ctrl-C, MLflow and prefixes are tested.
    """
    monkeypatch.setattr("gradwatch.launcher.sweep.task", functools.partial(task_of, warm=True))

    def call(*args, code=0):
        done = CliRunner(env={"COLUMNS": "220"}).invoke(main, ["sweep", *args])
        assert done.exit_code == code, done.output
        return done.stdout

    return call
