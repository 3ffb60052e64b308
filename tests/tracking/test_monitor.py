"""The monitor against a real SQLite store: what is found reaches every run, whatever becomes of server and runs."""

import contextlib
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner
from make_run import as_block, make_history, make_run

from gradwatch.cli import main
from gradwatch.errors import RunError
from gradwatch.storage.folder import create_folder, last_part
from gradwatch.storage.writer import RunWriter
from gradwatch.tracking import health, reader, summary
from gradwatch.tracking.courier import Courier
from gradwatch.tracking.health import Health, serve
from gradwatch.tracking.monitor import Monitor, _even
from gradwatch.tracking.sync import sync

mlflow = pytest.importorskip("mlflow")


@pytest.fixture(autouse=True)
def quick_report(monkeypatch):
    def render(history, folder):
        (folder / "report.html").write_text(f"<h1>{len(history)} steps</h1>")
        return [folder / "report.html"]

    monkeypatch.setattr(summary, "render", render)


@pytest.fixture
def recorded(store, tmp_path, monkeypatch):
    """Delivers a run from a machine that does no more than record; gives the client and the run's id."""

    def deliver(monitored=True, **options):
        monkeypatch.setenv("GRADWATCH_MONITORED", str(monitored))
        target = {"tracking_uri": store, "experiment_name": "exp", "run_id": None, "joined": False}
        folder = make_run(tmp_path / "runs", window=20, mlflow=target, **options)
        (outcome,) = sync(folder)
        assert outcome.done, outcome
        return mlflow.MlflowClient(store), json.loads((folder / "cursor.json").read_text())["run_id"]

    return deliver


def artifacts(client, run_id):
    return {item.path.removeprefix("gradwatch/") for item in client.list_artifacts(run_id, "gradwatch")}


def fetch(client, run_id, name, tmp_path):
    with open(client.download_artifacts(run_id, f"gradwatch/{name}", tmp_path)) as file:
        return file.read()


def calls_of(monitor, monkeypatch):
    """The names of the client's calls that change something or read artifacts, from now on."""
    found = []
    for name in ("log_batch", "set_tag", "delete_tag", "log_artifact", "list_artifacts", "download_artifacts"):
        monkeypatch.setattr(monitor.client, name, lambda *args, name=name, **kwargs: found.append(name))
    return found


def test_what_a_machine_only_recorded_is_judged_by_the_monitor(store, recorded, tmp_path):
    client, run_id = recorded(nan_at=50)
    before = client.get_run(run_id)
    assert before.info.status == "FINISHED"
    assert before.data.tags["gradwatch.verdict"] == "running"
    assert not {"report.html", "findings.json"} & artifacts(client, run_id)
    points = client.get_metric_history(run_id, "grad_norm/total")

    monitor = Monitor(store)
    assert monitor.run_once()
    tags = client.get_run(run_id).data.tags
    summary = "nonfinite at step 50 in blocks.0.mlp.weight"
    assert tags["gradwatch.verdict"] == summary
    assert tags["gradwatch.worst_layer"] == "blocks.0.mlp.weight"
    assert summary in tags["mlflow.note.content"]
    assert json.loads(fetch(client, run_id, "findings.json", tmp_path))["findings"][0]["summary"] == summary
    assert fetch(client, run_id, "report.html", tmp_path) == "<h1>200 steps</h1>"
    assert client.get_run(run_id).info.status == "FINISHED"
    assert client.get_metric_history(run_id, "grad_norm/total") == points
    assert (monitor.health.seen, monitor.health.updated, monitor.health.errors) == (1, 1, 0)


def test_it_says_what_the_courier_would_have_said(store, recorded):
    client, alone = recorded(monitored=False, nan_at=50)
    _, watched = recorded(nan_at=50)
    Monitor(store).run_once()
    said = [client.get_run(run_id).data.tags for run_id in (alone, watched)]
    for name in ("gradwatch.verdict", "gradwatch.findings", "gradwatch.judged", "gradwatch.worst_layer"):
        assert said[0][name] == said[1][name]
    assert said[0]["mlflow.note.content"].replace(alone, watched) == said[1]["mlflow.note.content"]


@pytest.mark.parametrize("monitored", [True, False])
def test_a_run_that_did_not_change_costs_nothing(store, recorded, monkeypatch, monitored):
    client, run_id = recorded(monitored)
    first = Monitor(store)
    first.run_once()
    assert first.health.updated == int(monitored)  # what its courier concluded is left alone
    again = Monitor(store)  # another one, or after a restart
    again.client = mlflow.MlflowClient(store)
    calls = calls_of(again, monkeypatch)
    assert again.run_once()
    assert calls == []
    monkeypatch.setattr("gradwatch.tracking.monitor.__version__", "9.9")  # whose rules may be others
    newer = Monitor(store)
    newer.run_once()
    assert newer.health.updated == 1
    assert reader.Fingerprint.of_tags(client.get_run(run_id).data.tags).version == "9.9"


def test_a_run_that_goes_on_is_judged_as_far_as_it_was_uploaded(store, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADWATCH_MONITORED", "1")
    target = {"tracking_uri": store, "experiment_name": "exp", "run_id": None, "joined": False}
    history = make_history(steps=300, nan_at=50, window=20, mlflow=target, pid=os.getpid(), host=socket.gethostname(),
                           created="2026-01-01T00:00:00+00:00")  # fmt: skip
    folder = create_folder(tmp_path, "live")
    carrier = Courier(folder)
    monkeypatch.setattr(carrier.diagnosis, "update", lambda last=False: None)  # a machine that has no time for it
    writer = RunWriter(folder, history.run, flush_seconds=0.0)
    monitor = Monitor(store)

    def take(start, stop):
        for row in range(start, stop):
            writer.append(as_block(history.slice(row, row + 1)))
            while last_part(folder) < row:
                time.sleep(0.005)
        carrier.deliver()
        monitor._due.clear()
        monitor.run_once()
        return mlflow.MlflowClient(store).get_run(carrier.cursor.run_id)

    assert "gradwatch.judged" not in take(0, 40).data.tags  # nothing is uploaded yet
    run = take(40, 140)
    judged = int(run.data.tags["gradwatch.judged"])
    assert 50 < judged < 140
    assert run.info.status == "RUNNING"
    assert run.data.tags["gradwatch.verdict"].startswith("nonfinite at step 50")
    writer.close("RUNNING")


def test_steps_of_a_run_that_goes_on_are_judged_once_both_tables_have_them(tmp_path):
    folder = make_run(tmp_path, close=None, steps=80, blocks=4)
    until = time.monotonic() + 10
    while last_part(folder) < 0 and time.monotonic() < until:
        time.sleep(0.05)
    for number in (7, 8):
        (folder / "layers" / f"part-{number:06d}.parquet").write_bytes(b"one that the steps have not reached")
    (folder / "steps" / "part-000007.parquet").write_bytes(b"as far as this")
    _even(folder)
    assert last_part(folder) == 7
    assert not (folder / "layers" / "part-000008.parquet").exists()


def redeliver(client, run_id, tmp_path, manifest="{"):
    """What a courier does that delivers a run's end again; by default with a manifest that cannot be read."""
    (tmp_path / "run.json").write_text(manifest)
    client.log_artifact(run_id, str(tmp_path / "run.json"), "gradwatch")
    client.set_tag(run_id, "gradwatch.delivered", f"again {time.time()}")


def test_a_corrupt_run_is_marked_and_the_others_go_on(store, recorded, tmp_path, caplog):
    client, bad = recorded()
    whole = fetch(client, bad, "run.json", tmp_path)
    redeliver(client, bad, tmp_path)
    _, good = recorded(nan_at=50)
    monitor = Monitor(store)
    assert monitor.run_once()
    assert monitor.run_once()
    assert (monitor.health.updated, monitor.health.corrupt, monitor.health.errors) == (1, 1, 0)
    assert client.get_run(good).data.tags["gradwatch.verdict"].startswith("nonfinite")
    assert client.get_run(bad).data.tags["gradwatch.corrupt"].startswith("run.json cannot be read as a run's manifest")
    assert [record.message.split(":")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        f"run {bad} is corrupt"
    ]
    Monitor(store).run_once()  # after a restart, too
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1

    redeliver(client, bad, tmp_path, whole + " ")  # it was delivered again, whole
    monitor.run_once()
    tags = client.get_run(bad).data.tags
    assert tags["gradwatch.verdict"] == "no findings" or "gradwatch.findings" in tags
    assert "gradwatch.corrupt" not in tags
    assert "report.html" in artifacts(client, bad)


@pytest.mark.parametrize("names", [["steps", "layers"], ["layers"]])
def test_tables_that_cannot_be_read_make_a_run_corrupt_or_its_report_incomplete(store, recorded, tmp_path, names):
    client, run_id = recorded()
    for table in names:
        for item in client.list_artifacts(run_id, f"gradwatch/{table}"):
            (tmp_path / item.path.split("/")[-1]).write_bytes(b"PAR1 but not really")
            client.log_artifact(run_id, str(tmp_path / item.path.split("/")[-1]), f"gradwatch/{table}")
    Monitor(store).run_once()
    tags = client.get_run(run_id).data.tags
    assert ("unreadable" in tags.get("gradwatch.corrupt", "")) == (len(names) == 2)
    assert ("gradwatch.judged" in tags) == (len(names) == 1)


def test_a_server_that_goes_away_and_comes_back_is_two_lines(store, recorded, caplog, monkeypatch):
    caplog.set_level("INFO", "gradwatch")
    client, run_id = recorded()
    caplog.clear()
    monitor = Monitor(store)
    own, away = reader.find_watched, [True]

    def find(*args):
        if away[0]:
            raise ConnectionError("no route to http://user:secret@host/api")
        return own(*args)

    monkeypatch.setattr(reader, "find_watched", find)
    assert [monitor.run_once() for _ in range(3)] == [False] * 3
    away[0] = False
    assert monitor.run_once()
    lines = [record.message for record in caplog.records if "answer" in record.message]
    assert [line.split(" ", 1)[1] for line in lines] == [
        "does not answer: no route to http://host/api; a later pass tries again",
        "answers again",
    ]
    assert monitor.health.errors == 3
    assert "report.html" in artifacts(client, run_id)


@pytest.mark.slow
def test_a_server_that_fails_in_the_middle_is_asked_again(store, recorded, monkeypatch, caplog):
    for seed in range(4):
        client, _ = recorded(seed=seed)
    monitor, own, asked = Monitor(store), reader.fetch, []

    def fetch(client, run_id, folder):
        asked.append(run_id)
        if len(asked) <= 4:
            raise ConnectionError("reset")
        return own(client, run_id, folder)

    monkeypatch.setattr(reader, "fetch", fetch)
    assert not monitor.run_once()
    assert len(asked) == 3  # it does not ask a server that is gone for each of its runs
    assert monitor.run_once()
    assert monitor.health.updated == 3
    assert monitor.run_once()
    assert monitor.health.updated == 4


def test_only_the_named_experiments_are_watched_and_those_that_are_not_there_are_said_once(store, recorded, caplog):
    client, run_id = recorded()
    client.create_experiment("another")
    caplog.clear()
    other = Monitor(store, ["another", "not there"])
    assert other.run_once()
    assert other.run_once()
    assert other.health.seen == 0
    assert [record.message.split(" has ")[1] for record in caplog.records] == ["no experiment 'not there' yet"]
    named = Monitor(store, ["exp"])
    assert named.run_once()
    assert named.health.seen == named.health.updated == 1


@pytest.mark.slow
def test_several_monitors_at_once_leave_one_result(store, recorded):
    for seed in range(3):
        client, run_id = recorded(seed=seed, nan_at=50)
    points = {m.key: len(client.get_metric_history(run_id, m.key)) for m in client.get_run(run_id).data._metric_objs}
    monitors = [Monitor(store) for _ in range(4)]
    threads = [threading.Thread(target=lambda m=m: [m.run_once() for _ in range(3)]) for m in monitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(m.health.succeeded for m in monitors)
    assert sum(m.health.updated for m in monitors) >= 3
    for run in reader.find_watched(client):
        assert run.data.tags["gradwatch.verdict"].startswith("nonfinite at step 50")
        assert {"report.html", "findings.json", "run.json", "layers", "steps"} <= artifacts(client, run.info.run_id)
    assert points == {key: len(client.get_metric_history(run_id, key)) for key in points}


def test_the_description_a_user_wrote_and_a_joined_runs_status_are_left_alone(store, recorded):
    client, run_id = recorded()
    client.set_tag(run_id, "mlflow.note.content", "mine")
    client.update_run(run_id, "FAILED")
    Monitor(store).run_once()
    run = client.get_run(run_id)
    assert run.data.tags["mlflow.note.content"] == "mine"
    assert run.info.status == "FAILED"


# ------------------------------------------------------------------------------------------------------- command line


def test_once_ends_with_1_when_a_run_could_not_be_brought_up_to_date(store, recorded, tmp_path, caplog):
    client, run_id = recorded()
    command = ["monitor", "--tracking-uri", store, "--once"]
    assert CliRunner().invoke(main, command).exit_code == 0
    redeliver(client, run_id, tmp_path)
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert f"run {run_id} is corrupt" in caplog.text
    assert CliRunner().invoke(main, command).exit_code == 0  # it is marked; there is nothing new to say
    assert CliRunner().invoke(main, ["monitor", "--tracking-uri", "sqlite:///none.db", "--once"]).exit_code == 2


def test_a_file_that_is_no_database_is_one_line_and_stays_alone(tmp_path):
    (tmp_path / "train.py").write_text("print(1)  # a training")
    result = CliRunner().invoke(main, ["monitor", "--tracking-uri", f"sqlite:///{tmp_path}/train.py", "--once"])
    assert result.exit_code == 2
    assert "is no SQLite database" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("listen", ["9464", ":9464", "127.0.0.1:x", "127.0.0.1:²", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_an_error(store, listen):
    result = CliRunner().invoke(main, ["monitor", "--tracking-uri", store, "--listen", listen])
    assert result.exit_code == 2
    assert "wanted HOST:PORT" in result.output


# -------------------------------------------------------------------------------------------------------------- health


def ask(server, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_health_of_a_monitor_is_served(store, recorded):
    pytest.importorskip("prometheus_client")
    recorded()
    monitor = Monitor(store, every=30)
    server = serve(monitor.health, "127.0.0.1", 0)
    try:
        assert ask(server, "/healthz")[0] == 200  # it has just begun
        monitor.run_once()
        _, page = ask(server, "/metrics")
        counts = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        assert float(counts["gradwatch_monitor_runs"]) == 1
        assert float(counts["gradwatch_monitor_updated_total"]) == 1
        assert float(counts["gradwatch_monitor_passes_total"]) == 1
        assert 0 < float(counts["gradwatch_monitor_pass_seconds"]) < 60
        assert abs(float(counts["gradwatch_monitor_last_success_timestamp_seconds"]) - time.time()) < 60
        for name in ("corrupt", "errors", "notified", "not_notified"):
            assert float(counts[f"gradwatch_monitor_{name}_total"]) == 0
        monitor.health.alive -= 91
        assert ask(server, "/healthz") == (503, "503 Service Unavailable\n")
        monitor.run_once()
        assert ask(server, "/healthz")[0] == 200
        assert ask(server, "/")[0] == 404
        with pytest.raises(RunError, match="choose another with --listen"):
            serve(Health(1), "127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def service():
    pytest.importorskip("prometheus_client")
    server = serve(Health(30), "127.0.0.1", 0)
    yield server
    server.shutdown()
    server.server_close()


def test_slow_clients_make_nobody_wait(service):
    with contextlib.ExitStack() as slow:
        for _ in range(5):
            client = slow.enter_context(socket.create_connection(service.server_address))
            client.sendall(b"GET /healthz HT")  # and no more
        assert ask(service, "/healthz")[0] == 200
        assert ask(service, "/metrics")[0] == 200


def test_a_client_that_drips_is_cut_off(service, monkeypatch):
    monkeypatch.setattr(health, "CLIENT_SECONDS", 0.2)
    with socket.create_connection(service.server_address, timeout=0.05) as client:
        for _ in range(200):
            try:
                client.sendall(b"G")
                if client.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("it may drip for ever")


def test_too_many_clients_are_turned_away_and_the_places_come_back(service, monkeypatch):
    service._free = threading.BoundedSemaphore(2)
    with contextlib.ExitStack() as slow:
        held = [slow.enter_context(socket.create_connection(service.server_address)) for _ in range(2)]
        with socket.create_connection(service.server_address, timeout=30) as third:
            assert third.recv(1) == b""
        for client in held:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            while client.recv(4096):
                pass
    assert service._free.acquire(timeout=30)
    assert service._free.acquire(timeout=30)
