"""Couriers and servers that fail: whatever a real MLflow server does, every point arrives, and arrives once."""

import random
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from faulty_proxy import answer, drop, hang, late, ok, reset, swallow
from make_run import make_run
from mlflow_server import all_there, wanted

from gradwatch.storage.delivery_cursor import read_cursor
from gradwatch.storage.folder import write_json
from gradwatch.tracking import summary
from gradwatch.tracking import sync as syncing
from gradwatch.tracking.courier import Courier
from gradwatch.tracking.settings import MLFLOW_SETTINGS
from gradwatch.tracking.sync import follow, sync

mlflow = pytest.importorskip("mlflow")

TIMEOUT = 3  # seconds until the client gives a request up
QUICK = (reset, drop, swallow, answer(500), answer(429, Retry_After="3600"), answer(503))
SLOW = (hang, late(TIMEOUT + 0.5))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(summary, "render", lambda history, folder: [])
    monkeypatch.setattr(syncing, "rehearse", lambda: None)
    monkeypatch.setattr(syncing, "LONGEST_PAUSE", 0.5)
    monkeypatch.setattr(syncing, "FIRST_PAUSE", 0.01)
    for name, value in {**MLFLOW_SETTINGS, "MLFLOW_HTTP_REQUEST_TIMEOUT": str(TIMEOUT)}.items():
        monkeypatch.setenv(name, value)


def run_for(proxy, parent, name="outage", **options):
    where = {"tracking_uri": proxy.url, "experiment_name": name, "run_id": None, "joined": False}
    return make_run(parent, name=name, **{"window": 2, "mlflow": where, **options})


def run_of(server, cursor):
    return mlflow.MlflowClient(server[0]).get_run(cursor["run_id"])


def twenty(seed, *slow):
    """Twenty faults, with answers in between so that the delivery gets on."""
    rng = random.Random(seed)
    faults = [*slow, *QUICK * 4][:20]
    for fault in rng.sample(faults, 20):
        yield from [ok] * rng.randint(0, 1)
        yield fault


@pytest.mark.slow
def test_through_twenty_faults_every_point_arrives_once(server, proxy, tmp_path):
    folder = run_for(proxy, tmp_path, steps=900)
    proxy.plan(twenty(1), where="log-batch")
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.done
    cursor = all_there(server[1], folder)
    assert proxy.left == 0, "not all faults were met"
    assert run_of(server, cursor).info.status == "FINISHED"
    assert sum(wanted(folder).values()) > 10_000


@pytest.mark.slow
def test_faults_of_every_kind_at_any_request(server, proxy, tmp_path):
    folder = run_for(proxy, tmp_path, name="any", steps=100)
    proxy.plan(due for fault in twenty(2, *SLOW) for due in (ok, fault))
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.done
    all_there(server[1], folder)
    client = mlflow.MlflowClient(server[0])
    assert len(client.search_runs([client.get_experiment_by_name("any").experiment_id])) == 1
    assert set(proxy.met) == {fault.__name__ for fault in (ok, *QUICK, *SLOW)}


def test_a_server_that_is_away_at_first_and_comes_back(server, proxy, tmp_path, caplog):
    caplog.set_level("INFO", "gradwatch")
    proxy.stop_listening()
    folder = run_for(proxy, tmp_path, steps=20)
    (outcome,) = sync(folder)
    assert not outcome.done
    back = threading.Timer(1.5, proxy.listen)
    back.start()
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.done
    all_there(server[1], folder)
    assert caplog.text.count("not delivered yet") == 1  # not one for every try
    assert "MLflow answers again" in caplog.text


def runs_ever_made(server, name):
    client = mlflow.MlflowClient(server[0])
    experiment = client.get_experiment_by_name(name).experiment_id
    return client.search_runs([experiment], run_view_type=mlflow.entities.ViewType.ALL)


def test_a_run_whose_creation_was_not_answered_is_found_again(server, proxy, tmp_path):
    folder = run_for(proxy, tmp_path, name="twins", steps=20)
    proxy.plan([swallow], where="runs/create")
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.done
    assert proxy.met["swallow"] == 1
    (run,) = runs_ever_made(server, "twins")
    assert run.info.run_id == all_there(server[1], folder)["run_id"]


@pytest.mark.slow
def test_a_run_that_a_slow_server_made_twice_keeps_no_empty_twin(server, proxy, tmp_path):
    folder = run_for(proxy, tmp_path, name="slow-twins", steps=200)
    proxy.plan([late(TIMEOUT + 0.5)], where="runs/create")
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.done
    made = runs_ever_made(server, "slow-twins")
    assert len(made) == 2, "the server did not make it twice"
    assert [run.info.run_id for run in made if run.info.lifecycle_stage == "active"] == [
        all_there(server[1], folder)["run_id"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403])
def test_credentials_that_expire_are_said_once_and_tried_slowly(server, proxy, tmp_path, caplog, status):
    caplog.set_level("INFO", "gradwatch")
    folder = run_for(proxy, tmp_path, name=f"expired{status}", steps=20)
    proxy.always = answer(status, "You are not authenticated")
    (outcome,) = sync(folder)
    assert (outcome.done, outcome.lasting, outcome.slow) == (False, False, True)
    assert "MLFLOW_TRACKING_TOKEN" in outcome.error
    first = syncing.RetryingCourier(Courier(folder), 0.01)
    first.deliver_if_due()
    assert first.backoff.pause == syncing.LONGEST_PAUSE  # accounts get locked by those who try too often
    caplog.clear()

    def renew():
        proxy.always = ok

    threading.Timer(1.0, renew).start()
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.done
    assert caplog.text.count("refuses the credentials") == 1
    all_there(server[1], folder)


def test_an_answer_that_is_not_mlflows_does_not_end_the_delivery(server, proxy, tmp_path):
    folder = run_for(proxy, tmp_path, steps=20)
    proxy.plan([answer(404, "<html>no such backend</html>"), answer(400, "<html>starting</html>")])
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.done


@pytest.mark.slow
def test_a_run_deleted_under_its_courier_is_said_with_the_way_back(server, proxy, tmp_path):
    folder = run_for(proxy, tmp_path, name="deleted", steps=200)
    assert next(sync(folder)).done
    cursor = read_cursor(folder)
    write_json(folder / "cursor.json", {**cursor, "next_step": 100, "done": False})  # as in the middle of it
    client = mlflow.MlflowClient(server[0])
    client.delete_run(cursor["run_id"])
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.lasting
    assert "mlflow runs restore" in outcome.error
    client.restore_run(cursor["run_id"])
    assert next(sync(folder)).done
    all_there(server[1], folder)


@pytest.mark.slow
def test_a_server_too_slow_for_large_requests_gets_smaller_ones(server, proxy, tmp_path):
    """It takes a second for 100 points: a request of 1,000 is never answered in time, however often it is sent."""

    def slow(exchange):
        if "log-batch" in exchange.path:
            time.sleep(int(exchange.headers["Content-Length"]) / 10_000)
        ok(exchange)

    proxy.always = slow
    folder = run_for(proxy, tmp_path, name="slow", steps=40)
    (outcome,) = follow(folder, poll=0.01)
    assert outcome.done
    assert proxy.met["slow"] < 100
    all_there(server[1], folder)


@pytest.mark.slow
@pytest.mark.parametrize("direct", [False, True])
def test_a_database_that_others_lock(server, proxy, tmp_path, direct):
    """Through the server the client gives up first, sends again, and the server carries out both."""
    folder = run_for(proxy, tmp_path, name=f"locked{direct}", steps=300)
    file = server[1].removeprefix("sqlite:///")
    held = threading.Event()

    def lock():
        with sqlite3.connect(file, timeout=60) as other:
            other.execute("BEGIN EXCLUSIVE")
            held.set()
            time.sleep(TIMEOUT + 1.5)
            other.rollback()

    if direct:
        folder = make_run(tmp_path, window=2, mlflow={"tracking_uri": server[1], "run_id": None}, steps=300)
    thread = threading.Thread(target=lock)
    thread.start()
    held.wait()
    (outcome,) = follow(folder, poll=0.01)
    thread.join()
    assert outcome.done
    all_there(server[1], folder)


def test_the_chaos_script_tells_what_arrived_whole(monkeypatch):
    """tests/scripts/test_chaos.py lets it count."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "bench"))
    import chaos_outages

    assert chaos_outages.Tally(10, 10, 0, 0, {}).whole
    assert not chaos_outages.Tally(10, 9, 1, 0, {}).whole
    assert not chaos_outages.Tally(10, 10, 0, 1, {}).whole
