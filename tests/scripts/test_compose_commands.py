"""Every command of compose.yaml and the Dockerfile, run without Docker: the services together, and each image alone."""

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from compose_files import SERVICES, filled, instructions
from mlflow_server import free_port, postgres, postgres_program, status, until

yaml = pytest.importorskip("yaml")
pytest.importorskip("mlflow")
ROOT = Path(__file__).parents[2]


class Outside:
    """The services' own commands, environments and health checks, run by this machine with its `places` for theirs."""

    def __init__(self, folder, places):
        self.folder, self.places, self.running = folder, places, {}

    def here(self, text, secrets):
        text = filled(text, secrets)
        for theirs, ours in self.places.items():
            text = text.replace(theirs, ours)
        return text

    def environment(self, stage, service, secrets):
        images = dict(pair.split("=", 1) for value in instructions(stage, "ENV") for pair in value.split())
        found = {**images, **service.get("environment", {})}
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW", "GRADWATCH"))}
        return {**plain, **{name: self.here(value, secrets) for name, value in found.items()}, "PYTHONPATH": str(ROOT)}

    def command(self, given, secrets):
        program, *rest = [self.here(word, secrets) for word in given]
        ours = {"python": [], "mlflow": ["-m", "mlflow"], "gradwatch": ["-m", "gradwatch"]}
        return [sys.executable, *ours[program], *rest]

    def start(self, name, command, environment):
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def start_service(self, name, secrets):
        """As compose would: the image's entrypoint and environment, then the service's."""
        service = SERVICES[name]
        stage = service["build"]["target"]
        entry = yaml.safe_load((instructions(stage, "ENTRYPOINT") or ["[]"])[0])
        command = self.command([*entry, *service["command"]], secrets)
        self.start(name, command, self.environment(stage, service, secrets))

    def is_healthy(self, name):
        """What the service's own health check says of it."""
        kind, *check = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        return subprocess.run(self.command(check, {}), capture_output=True, check=False, timeout=60).returncode == 0

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def until_healthy(self, name):
        def look():
            assert self.running[name].poll() is None, self.log(name)[-2000:]
            return self.is_healthy(name)

        until(look, 150)

    def end(self, name):
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "data").mkdir()
    mlflow_port, monitor_port = free_port(), free_port()
    places = {
        "mlflow:5000": f"127.0.0.1:{mlflow_port}",
        "5000": str(mlflow_port),
        "9464": str(monitor_port),
        "0.0.0.0": "127.0.0.1",
        "/etc/gradwatch/basic_auth.ini": str(ROOT / "scripts" / "basic_auth.ini"),
        "/data/": f"{tmp_path}/data/",
    }
    services = Outside(tmp_path, places)
    services.mlflow, services.monitor = f"http://127.0.0.1:{mlflow_port}", f"http://127.0.0.1:{monitor_port}"
    try:
        yield services
    finally:
        for name in list(services.running):
            services.end(name)


def with_login(url, user, password):
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    return urllib.request.Request(url, headers={"Authorization": f"Basic {login}"})


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_commands_of_compose_run_together_and_its_health_checks_tell_who_is_well(outside):
    if postgres_program("initdb") is None:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("flask_wtf")
    psycopg2 = pytest.importorskip("psycopg2")
    secrets = {
        "POSTGRES_PASSWORD": "abcdef0123456789",
        "MLFLOW_ADMIN_PASSWORD": "fedcba9876543210",
        "MLFLOW_SECRET_KEY": "k" * 48,
    }
    names = SERVICES["postgres"]["environment"]
    with postgres(secrets["POSTGRES_PASSWORD"]) as address:
        there = address.rpartition("@")[2].partition("/")[0]
        connection = psycopg2.connect(address.replace("+psycopg2", ""))
        connection.autocommit = True
        connection.cursor().execute(f"CREATE DATABASE {names['POSTGRES_DB']} OWNER {names['POSTGRES_USER']}")
        connection.close()
        outside.places["postgres:5432"] = there
        check = SERVICES["postgres"]["healthcheck"]["test"][1:]
        host, port = there.split(":")
        program = shutil.which(check[0]) or postgres_program(check[0])
        asked = subprocess.run(
            [program, *check[1:]], env={"PGHOST": host, "PGPORT": port}, capture_output=True, check=False
        )
        assert asked.returncode == 0, asked.stdout

        assert not outside.is_healthy("mlflow")
        outside.start_service("mlflow", secrets)
        outside.until_healthy("mlflow")
        search = f"{outside.mlflow}/api/2.0/mlflow/experiments/search?max_results=1"
        assert status(search) == 401
        assert status(with_login(search, "admin", "wrong")) == 401
        assert status(with_login(search, "admin", secrets["MLFLOW_ADMIN_PASSWORD"])) == 200
        stranger = urllib.request.Request(search, headers={"Host": "evil.example"})
        assert status(stranger) == 403

        assert not outside.is_healthy("monitor")
        outside.start_service("monitor", secrets)
        outside.until_healthy("monitor")
        passes = "gradwatch_monitor_passes_total 1.0"
        until(lambda: passes in urllib.request.urlopen(f"{outside.monitor}/metrics", timeout=10).read().decode(), 60)

        for name in ("monitor", "mlflow"):
            shown = Path(f"/proc/{outside.running[name].pid}/cmdline").read_bytes()
            assert not any(secret.encode() in shown for secret in secrets.values())
            outside.end(name)
            assert not outside.is_healthy(name)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_server_image_alone_runs_outside_docker(outside):
    command = outside.command(yaml.safe_load(instructions("server", "CMD")[0]), {})
    outside.start("server", command, outside.environment("server", {}, {}))
    until(lambda: outside.running["server"].poll() is not None or outside.is_healthy("mlflow"), 150)
    assert outside.running["server"].poll() is None, outside.log("server")[-2000:]
    assert (outside.folder / "data" / "mlflow.db").exists()
    assert status(f"{outside.mlflow}/api/2.0/mlflow/experiments/search?max_results=1") == 200


def test_the_command_line_image_alone_runs_outside_docker(outside):
    entry, options = (yaml.safe_load(instructions("cli", name)[0]) for name in ("ENTRYPOINT", "CMD"))
    command = outside.command([*entry, *options], {})
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=outside.environment("cli", {}, {}))
    assert "monitor" in shown.stdout
