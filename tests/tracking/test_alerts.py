"""Alerts: each error once, to a real HTTP server and a real process, whatever the receiver does."""

import hashlib
import hmac
import json
import logging
import shlex
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from make_run import make_run

from gradwatch.analysis.rules import Finding
from gradwatch.cli import main
from gradwatch.errors import RunError
from gradwatch.tracking import alerts, notifiers, summary
from gradwatch.tracking.alerts import Alerts
from gradwatch.tracking.monitor import Monitor
from gradwatch.tracking.notifiers import SIGNATURE, AlertError, message, notifier, sample, sign
from gradwatch.tracking.sync import sync

mlflow = pytest.importorskip("mlflow")
SAID = {
    **sample(),
    "cause": "A cause.",
    "cure": 'A "cure".',
    "run": '<!channel> & "co"',
    "summary": "nonfinite at step 50\nin a",
}


@pytest.fixture
def hook():
    """A webhook on loopback: what it was sent, and the status codes it is to answer with first."""
    found = SimpleNamespace(bodies=[], headers=[], answers=[])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            found.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            found.headers.append(dict(self.headers))
            status = found.answers.pop(0) if found.answers else 200
            self.send_response(status)
            if status == 302:
                self.send_header("Location", found.url)
            self.end_headers()

        def do_GET(self):
            self.send_response(200)  # where a redirect that is followed ends
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/T000/secret-path"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture
def sick(store, tmp_path, monkeypatch):
    """Delivers a run with an error; its id."""
    monkeypatch.setattr(summary, "render", lambda history, folder: [])
    monkeypatch.setattr(alerts, "SETTLE_SECONDS", 0.05)

    def deliver(nan_at=50):
        target = {"tracking_uri": store, "experiment_name": "exp", "run_id": None, "joined": False}
        folder = make_run(tmp_path / "runs", mlflow=target, nan_at=nan_at)
        (outcome,) = sync(folder)
        assert outcome.done
        return json.loads((folder / "cursor.json").read_text())["run_id"]

    return deliver


@pytest.mark.slow
def test_an_error_is_told_once_even_after_a_restart(store, sick, hook):
    run_id, _ = sick(), sick(nan_at=None)
    for _ in range(2):
        monitor = Monitor(store, alerts=Alerts(notifier(hook.url), store, "https://mlflow.example.org"))
        for _ in range(2):
            assert monitor.run_once()
    (body,) = map(json.loads, hook.bodies)
    assert body["rule"] == "nonfinite"
    assert body["severity"] == "error"
    assert body["summary"] == "nonfinite at step 50 in blocks.0.mlp.weight"
    assert body["layers"] == ["blocks.0.mlp.weight"]
    assert body["run"] == "mlp"
    assert body["run_id"] == run_id
    assert body["url"].startswith(f"https://mlflow.example.org/#/experiments/1/runs/{run_id}")
    assert body["cure"]
    assert body["cause"]
    assert abs(body["time"] - time.time()) < 60
    assert mlflow.MlflowClient(store).get_run(run_id).data.tags["gradwatch.notified"].startswith("nonfinite#")
    assert hook.headers[0]["Content-Type"] == "application/json"
    assert SIGNATURE not in hook.headers[0]


def test_a_new_error_of_a_known_run_is_told(store, sick, hook, tmp_path):
    run_id = sick()
    monitor = Monitor(store, alerts=Alerts(notifier(hook.url), store))
    monitor.run_once()
    known = ("blocks.0.mlp.weight", "z.weight")  # it has spread since
    found = [
        Finding(rule, severity, layers, 1, 2, optimizer=optimizer).to_json()
        for rule, severity, layers, optimizer in [
            ("nonfinite", "error", known, ""),
            ("nonfinite", "error", ("other.weight",), ""),
            ("nonfinite", "error", known, "SGD"),
            ("exploding", "error", (), ""),
            ("spike", "warning", (), ""),
        ]
    ]
    (tmp_path / "findings.json").write_text(json.dumps({"run": "mlp", "findings": found}))
    client = mlflow.MlflowClient(store)
    client.log_artifact(run_id, str(tmp_path / "findings.json"), "gradwatch")
    for text in ("error nonfinite at step 1; error exploding at step 1", "error exploding at step 1"):
        client.set_tag(run_id, "gradwatch.findings", text)
        monitor.run_once()
    told = [json.loads(body) for body in hook.bodies]
    assert [(one["rule"], one["layers"][:1], one["optimizer"]) for one in told] == [
        ("nonfinite", ["blocks.0.mlp.weight"], ""),
        ("nonfinite", ["other.weight"], ""),
        ("nonfinite", ["blocks.0.mlp.weight"], "SGD"),
        ("exploding", [], ""),
    ]


def test_an_alert_that_did_not_arrive_is_sent_again_later_and_later(store, sick, hook, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "gradwatch")
    sick()
    hook.answers += [500, 429, 302, 200]
    alerts = Alerts(notifier(hook.url), store)
    monitor = Monitor(store, alerts=alerts)
    monitor.run_once()
    monitor.run_once()
    assert len(hook.bodies) == 1  # it is not time yet
    pauses = []
    for _ in range(3):
        ((run_id, (_, backoff)),) = alerts._retries.items()
        pauses.append(backoff.pause)
        alerts._retries[run_id] = (0.0, backoff)
        monitor.run_once()
    assert pauses == [10, 20, 40]
    assert len(hook.bodies) == 4  # a redirect was not followed
    assert alerts._retries == {}
    assert (monitor.health.notified, monitor.health.not_notified, monitor.health.errors) == (1, 3, 0)
    lines = [record.message for record in caplog.records if record.module == "alerts"]
    assert lines == [
        "an alert was not delivered: 127.0.0.1 answers 500; a later pass tries again",
        "alerts are delivered again",
    ]


@pytest.mark.parametrize("status", [300, 302, 304, 404])
def test_only_200_to_299_is_delivered(hook, status):
    hook.answers += [status]
    with pytest.raises(AlertError, match=f"answers {status}"):
        notifier(hook.url)(SAID)


def test_a_pass_whose_alert_failed_hands_it_on_and_does_not_end_well(store, sick, hook, caplog):
    """As cron starts it: each pass is another process, and the next one need not wait."""
    sick()
    failed = CliRunner().invoke(main, ["monitor", "--tracking-uri", store, "--once", "--notify", "false"])
    assert failed.exit_code == 1
    assert "an alert was not delivered: false ended with exit code 1; a later pass tries again" in caplog.text
    told = CliRunner().invoke(main, ["monitor", "--tracking-uri", store, "--once", "--notify", hook.url])
    assert (told.exit_code, len(hook.bodies)) == (0, 1)


def test_a_receiver_is_tried_before_it_is_needed(store, hook):
    words = ["monitor", "--tracking-uri", store, "--test-notify", "--notify"]
    tried = CliRunner().invoke(main, [*words, hook.url])
    assert (tried.exit_code, tried.output) == (0, "delivered: a test, of no run\n")
    assert json.loads(hook.bodies[0])["run"] == "a-test-of-alerts"
    hook.answers += [500]
    assert CliRunner().invoke(main, [*words, hook.url]).output == "Error: not delivered: 127.0.0.1 answers 500\n"
    assert CliRunner().invoke(main, words[:-1]).exit_code == 2


def test_runs_that_are_lost_are_told_where_that_is_asked_for(store, sick, hook, monkeypatch):
    client, run_id = mlflow.MlflowClient(store), sick(nan_at=None)
    now = time.monotonic()
    monkeypatch.setattr(alerts, "time", SimpleNamespace(monotonic=lambda: now, time=time.time, sleep=time.sleep))
    plain, asked = (Monitor(store, alerts=Alerts(notifier(hook.url), store, lost_after=s)) for s in (None, 600.0))

    def told(*seconds):
        nonlocal now
        for later in seconds:
            now += later
            assert plain.run_once()
            assert asked.run_once()
        rules = [json.loads(body)["rule"] for body in hook.bodies]
        hook.bodies.clear()
        return rules

    assert told(0, 601) == []  # it ended well
    client.set_terminated(run_id, "KILLED")
    assert told(0, 1) == ["run-killed"]
    client.update_run(run_id, status="RUNNING")
    assert told(0, 599) == []
    client.log_metric(run_id, "more", 0.25)
    assert told(2, 599) == []
    assert told(2, 2) == ["run-silent"]


def test_two_monitors_tell_of_an_error_once(store, sick, hook, monkeypatch):
    monkeypatch.setattr(alerts, "SETTLE_SECONDS", 1.0)
    sick()
    monitors = [Monitor(store, alerts=Alerts(notifier(hook.url), store)) for _ in range(3)]
    threads = [threading.Thread(target=monitor.run_once) for monitor in monitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for monitor in monitors:
        monitor.run_once()
    assert len(hook.bodies) == 1


def test_a_claim_of_a_monitor_that_died_runs_out(store, sick, hook):
    run_id = sick()
    client = mlflow.MlflowClient(store)
    client.set_tag(run_id, "gradwatch.notifying", f"another {time.time():.0f}")
    Monitor(store, alerts=Alerts(notifier(hook.url), store)).run_once()
    assert hook.bodies == []
    client.set_tag(run_id, "gradwatch.notifying", f"another {time.time() - 61:.0f}")
    Monitor(store, alerts=Alerts(notifier(hook.url), store)).run_once()
    assert len(hook.bodies) == 1


def test_what_ended_long_ago_is_no_news(store, sick, hook):
    run_id = sick()
    client = mlflow.MlflowClient(store)
    client.set_terminated(run_id, "FINISHED", int(1000 * (time.time() - 90_000)))
    Monitor(store, alerts=Alerts(notifier(hook.url), store)).run_once()
    assert hook.bodies == []
    client.set_terminated(run_id, "FINISHED", int(1000 * (time.time() - 80_000)))
    Monitor(store, alerts=Alerts(notifier(hook.url), store)).run_once()
    assert len(hook.bodies) == 1


@pytest.mark.slow
def test_findings_files_from_strangers_tell_nothing_and_stop_nothing(store, sick, hook, tmp_path):
    for text in ("[1]", "{", '{"findings": [{"rule": "x"}]}', '{"findings": ' + "[" * 100_000):
        (tmp_path / "findings.json").write_text(text)
        mlflow.MlflowClient(store).log_artifact(sick(), str(tmp_path / "findings.json"), "gradwatch")
    good = sick()
    monitor = Monitor(store, alerts=Alerts(notifier(hook.url), store))
    assert monitor.run_once()
    assert monitor.health.errors == 0
    assert [json.loads(body)["run_id"] for body in hook.bodies] == [good]


# -------------------------------------------------------------------------------------------------------- destinations


def test_what_is_posted_is_signed(hook):
    notifier(hook.url.replace("http", "HTTP", 1), secret="s3cret")(SAID)
    assert json.loads(hook.bodies[0]) == SAID
    expected = hmac.new(b"s3cret", hook.bodies[0], hashlib.sha256).hexdigest()
    assert hook.headers[0][SIGNATURE] == f"sha256={expected}"
    assert "s3cret" not in str(hook.headers)


def test_a_command_reads_the_message_without_a_shell(tmp_path):
    script = tmp_path / "told.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write(sys.argv[2] + sys.stdin.read())")
    notifier(f"{shlex.join([sys.executable, str(script), str(tmp_path / 'out')])} '$(id); a b'")(SAID)
    assert (tmp_path / "out").read_text() == "$(id); a b" + json.dumps(SAID)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("http://127.0.0.1:9/T000/secret-path", "127.0.0.1: ConnectionError"),
        (f"{shlex.quote(sys.executable)} -c 'raise SystemExit(3)' --token secret-path", "ended with exit code 3"),
        (f"{shlex.quote(sys.executable)} -c 'import time; time.sleep(9)' secret-path", "took longer than 1 s"),
        (f"{shlex.quote(sys.executable)} not-there secret-path", "ended with exit code 2"),
    ],
)
def test_what_does_not_arrive_says_why_and_no_secret(target, why, monkeypatch):
    monkeypatch.setattr(notifiers, "SEND_SECONDS", 1.0)
    with pytest.raises(AlertError, match=why) as caught:
        notifier(target)(SAID)
    assert "secret" not in str(caught.value)


def test_slack_shows_what_strangers_wrote_as_text(hook):
    notifier(hook.url, "slack")(SAID)
    text = json.loads(hook.bodies[0])["text"]
    assert "*nonfinite* in <http://127.0.0.1:5000/#/" in text
    assert '|&lt;!channel&gt; &amp; "co">: nonfinite at step 50\nin a\nA cause.\n*What to do:* A "cure".' in text


def test_a_template_of_ones_own(hook, tmp_path):
    (tmp_path / "mine.j2").write_text('{"summary": {{ (rule ~ ": " ~ summary)|tojson }}, "tags": {{ layers|tojson }}}')
    notifier(hook.url, str(tmp_path / "mine.j2"))(SAID)
    assert json.loads(hook.bodies[0]) == {"summary": f"nonfinite: {SAID['summary']}", "tags": ["a.weight"]}


@pytest.mark.parametrize(
    "text",
    ["{{ rule }}", '{"a": {{ missing|tojson }}}', "{% if %}", "{{ ''.__class__.__name__|tojson }}"],
)
def test_a_template_that_makes_no_json_or_reaches_out_is_refused(tmp_path, text):
    (tmp_path / "bad.j2").write_text(text)
    with pytest.raises(RunError, match="makes no JSON of a message"):
        notifier("http://127.0.0.1:9/", str(tmp_path / "bad.j2"))


@pytest.mark.parametrize("text", ['{"steps": {{ evidence.steps|tojson }}}', '{"steps": {{ evidence.steps or "" }}}'])
def test_a_template_that_does_not_fit_a_message_is_an_alert_that_failed(tmp_path, text):
    (tmp_path / "mine.j2").write_text(text)
    tell = notifier("http://127.0.0.1:9/", str(tmp_path / "mine.j2"))
    with pytest.raises(AlertError, match="makes no JSON of this message"):
        tell({**SAID, "evidence": {"steps": ""} if " or " in text else {}})


def test_what_is_no_target_or_template_is_refused(tmp_path):
    for target in ("", "a 'b", "./not-there secret-path"):
        with pytest.raises(RunError, match="wanted a command or a URL") as caught:
            notifier(target)
        assert "secret" not in str(caught.value)
    for target in ("htp://host/secret", "http:///secret", "http://host:x/secret", "https:/host/secret", "http://"):
        with pytest.raises(RunError, match="is no webhook; wanted such as https://host/path") as caught:
            notifier(target)
        assert "secret" not in str(caught.value)
    with pytest.raises(RunError, match="wanted slack or a file"):
        notifier("true", str(tmp_path / "none.j2"))


def test_a_message_is_of_bounded_size():
    run = SimpleNamespace(info=SimpleNamespace(run_id="a", run_name=None, experiment_id="1"))
    nested = Finding("dead-layer", "warning", ("b",) * 9, 1, 2)
    found = Finding("vanishing", "error", ("a",) * 1000, 1, 2, {"x": float("nan")}, consequences=(nested,))
    said = message(found, run, "https://mlflow.example.org")
    assert said["docs"].startswith("https://mlflow.example.org/#/experiments/1/runs/a/artifacts/gradwatch/report.html")
    assert len(said["layers"]) == 20
    assert "consequences" not in said
    assert said["run"] == "a"
    json.dumps(said, allow_nan=False)


# ------------------------------------------------------------------------------------------------- hostile receivers


@pytest.fixture
def raw():
    """Starts a webhook that answers its connections, one after the other, as `answer(connection)` does; its address."""
    server = socket.create_server(("127.0.0.1", 0))

    def start(answer):
        def follow():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    answer(connection)

        threading.Thread(target=follow, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}/hook"

    yield start
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def test_of_an_endless_answer_only_the_status_is_read(raw):
    most, sent, ended = 64 * 2**20, [0], threading.Event()

    def answer(connection):
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while sent[0] < most:
                sent[0] += connection.send(b"x" * 65536)
        except OSError:
            pass
        ended.set()

    notifier(raw(answer))(SAID)
    assert ended.wait(60)
    assert sent[0] < most


def test_an_answer_that_drips_is_given_up_and_not_asked_for_again_meanwhile(raw, monkeypatch):
    monkeypatch.setattr(notifiers, "SEND_SECONDS", 0.5)
    stop = threading.Event()

    def answer(connection):
        for _ in range(100):  # each byte within the time of one read, all of them far beyond the time of an alert
            connection.sendall(b"H")
            if stop.wait(0.1):
                return

    send = notifier(raw(answer))
    with pytest.raises(AlertError, match=r"127\.0\.0\.1 took longer than"):
        send(SAID)
    with pytest.raises(AlertError, match=r"127\.0\.0\.1 is still answering an earlier alert"):
        send(SAID)
    stop.set()


def test_each_message_has_an_id_of_its_own():
    """Also that of an alert which is sent again: a receiver that refuses what it has seen must not refuse that."""
    assert len({sample()["id"] for _ in range(10)}) == 10


def test_the_check_that_the_docs_give_refuses_replays_old_and_forged_messages():
    page = (Path(__file__).parents[2] / "docs/service.md").read_text()
    (block,) = [text.partition("```")[0] for text in page.split("```python\n") if "def is_genuine" in text]
    found = {}
    exec(block, found)

    def genuine(secret="secret", **changes):
        body = json.dumps({**SAID, "time": now, **changes}).encode()
        return found["is_genuine"](body, sign(body, secret), "secret")

    now = time.time()  # SAID is as old as the import of this file
    assert genuine(id="a")
    assert not genuine(id="a")
    assert genuine(id="b")
    assert not genuine(id="c", secret="other")
    assert not genuine(id="d", time=now - 301)
    assert not found["is_genuine"](b"{}", "ü", "secret")
