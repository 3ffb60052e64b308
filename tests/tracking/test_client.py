"""Eight processes that deliver at once, to one SQLite store and to one server: none fails, none loses a point."""

import multiprocessing

import pytest
from make_run import make_run
from mlflow_server import all_there

mlflow = pytest.importorskip("mlflow")

PROCESSES = 5


def deliver(folder, gate):
    """The work of one process; it begins when all are there."""
    from gradwatch.tracking import summary
    from gradwatch.tracking.sync import sync

    summary.render = lambda history, folder: []
    gate.wait(120)
    (outcome,) = sync(folder)
    assert outcome.done, outcome.error


@pytest.mark.slow
@pytest.mark.parametrize("where", ["fresh", "server"])
def test_five_processes_deliver_at_once(where, tmp_path, request):
    if where == "fresh":  # nobody has made its tables yet
        uri = store = f"sqlite:///{tmp_path / 'fresh' / 'mlflow.db'}"
    else:
        uri, store = request.getfixturevalue("server")
    target = {"tracking_uri": uri, "experiment_name": "five", "run_id": None, "joined": False}
    folders = [make_run(tmp_path, name=f"run{i}", seed=i, steps=40, window=2, mlflow=target) for i in range(PROCESSES)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "gradwatch.tracking.sync",
            "gradwatch.tracking.summary",
            "gradwatch.tracking.client",
            "mlflow.store.tracking.sqlalchemy_store",
            "mlflow.store.tracking.rest_store",
            "alembic.context",
            "pandas",
            "scipy.stats",
        ]
    )  # imported once, not by each
    gate = context.Barrier(PROCESSES)
    workers = [context.Process(target=deliver, args=(folder, gate)) for folder in folders]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(200)
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    for folder in folders:
        all_there(store, folder)
    client = mlflow.MlflowClient(uri)
    assert len(client.search_runs([client.get_experiment_by_name("five").experiment_id])) == PROCESSES
