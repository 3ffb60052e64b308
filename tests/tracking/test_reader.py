"""What a tracking server lists of a run's files: nothing is written outside the run's own folder, and it ends."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from make_run import make_run

pytest.importorskip("mlflow")

from mlflow.exceptions import MlflowException

from gradwatch.analysis.rules import Finding
from gradwatch.cli import main
from gradwatch.tracking import reader
from gradwatch.tracking.artifact_places import UnfitError
from gradwatch.tracking.monitor import Monitor

NAMES = ["../x", "../../x", "..", ".", "", "/etc/passwd", "//x", "a/../../x", "..\\x", "C:\\x", "C:x",
         "\\\\host\\x", "a\x00b", "x" * 5000 + ".parquet", ".hidden", "~", "$HOME", "a\nb", "\u202erun.json",
         "run.json/", "%2e%2e%2fx", "..%2fx", "-rf", "con:",
         "part-000009.parquet/../../../x"]  # fmt: skip
RUN = "0" * 32


class Server:
    """An MLflow client and artifact store at once, of a server that lists what it likes and has all it is asked for."""

    tracking_uri = "http://127.0.0.1:9"

    def __init__(self, run: Path, lists=lambda folder: []):
        self.run, self.lists, self.asked = run, lists, 0
        self.info = SimpleNamespace(artifact_uri="mlflow-artifacts:/0/none", run_name="x", status="FINISHED",
                                    run_id=RUN, experiment_id="0", end_time=1)  # fmt: skip
        self.data = SimpleNamespace(tags={}, metrics={})

    def get_run(self, run_id):
        return self

    def list_artifacts(self, run_id, folder):
        self.asked += 1
        here = self.run / folder.removeprefix("gradwatch").lstrip("/")
        yield from map(self.item, [f"{folder}/{path.name}" for path in here.iterdir()] if here.is_dir() else [])
        yield from self.lists(folder)

    def item(self, path, is_dir=None):
        place = self.run / path.removeprefix("gradwatch").lstrip("/")
        return SimpleNamespace(path=path, is_dir=place.is_dir() if is_dir is None else is_dir, file_size=9)

    def _download_file(self, path, to):
        place = self.run / path.removeprefix("gradwatch/")
        Path(to).write_bytes(place.read_bytes() if place.is_file() else b"hostile")


@pytest.fixture
def server(tmp_path, monkeypatch):
    (tmp_path / "server").mkdir()
    server = Server(make_run(tmp_path / "server", steps=40))
    monkeypatch.setattr(reader, "get_artifact_repository", lambda *_: server)
    monkeypatch.setattr(reader, "connect", lambda uri: server)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.tracking_uri)
    return server


def fetched(server, tmp_path):
    """Fetch the run into a folder; what is there then, and that nothing is anywhere else."""
    to = tmp_path / "to" / "here"
    to.mkdir(parents=True)
    before = set(tmp_path.rglob("*"))
    folder = reader.fetch(server, RUN, to)
    new = set(tmp_path.rglob("*")) - before
    assert all(to in path.parents for path in new)
    return {str(path.relative_to(folder)) for path in new if path.is_file()}


def test_names_that_lead_elsewhere_are_left_out(server, tmp_path):
    honest = fetched(server, tmp_path / "1")
    assert "run.json" in honest
    server.lists = lambda folder: [
        server.item(path, is_dir) for name in NAMES for path in (name, f"{folder}/{name}") for is_dir in (True, False)
    ]
    assert fetched(server, tmp_path / "2") == honest


@pytest.mark.parametrize("name", ["run.json", "layers", "steps", "parts.json"])
def test_a_folder_that_is_called_like_a_file_and_a_file_like_a_folder(server, tmp_path, name):
    server.lists = lambda folder: [server.item(f"{folder}/{name}", is_dir) for is_dir in (True, False)]
    honest = {"run.json", *(f"{t}/{part.name}" for t in ("layers", "steps") for part in (server.run / t).iterdir())}
    assert fetched(server, tmp_path / "to") - {"parts.json"} == honest


def test_folders_that_hold_each_other_end(server, tmp_path):
    server.lists = lambda folder: [server.item(f"{folder}/a", True), server.item(f"{folder}/layers", True)]
    assert "run.json" in fetched(server, tmp_path / "to")
    assert server.asked < 20


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (lambda folder: ((f"{folder}/f{i}", False) for i in range(6_000)), "5,000 files"),
        (lambda folder: ((f"{folder}/d{i}", True) for i in range(300)), "256 parts"),
    ],
    ids=["files", "folders"],
)
def test_a_list_without_end(server, tmp_path, monkeypatch, kind, words):
    monkeypatch.setattr(reader, "MAX_FILES", 5_000)
    server.lists = lambda folder: (server.item(*item) for item in kind(folder) if folder == "gradwatch")
    started = time.process_time()
    with pytest.raises(UnfitError, match=words):
        reader.fetch(server, RUN, tmp_path)
    reader.tables(server, RUN)
    assert time.process_time() - started < 10
    assert server.asked < 600


def told(server):
    """What `gradwatch show` says of the run."""
    result = CliRunner().invoke(main, ["show", RUN])
    assert result.exit_code == 2, result.exception
    assert result.stderr.count("\n") == 1
    return result.stderr


def strange(item):
    def lists(folder):
        raise item

    return lists


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("path"), "cannot be understood"), (TypeError("int"), "cannot be understood"),
        (ConnectionError("500 for http://u:secret@h/x"), "500 for"), (MlflowException("Invalid path"), "Invalid path"),
        (OSError("\x1b[31m"), "cannot read"), (OSError(), "OSError"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_list_that_is_none_is_one_line(server, error, words):
    server.lists = strange(error)
    said = told(server)
    assert words in said
    assert "secret" not in said
    assert said[:-1].isprintable()


def test_a_run_whose_list_has_no_end_is_marked_and_the_others_go_on(server, monkeypatch):
    server.lists = lambda folder: [server.item(f"gradwatch/d{i}", True) for i in range(300 * (folder == "gradwatch"))]
    tags = {}
    monkeypatch.setattr("gradwatch.tracking.client.set_tags", lambda client, run_id, new: tags.update(new))
    monkeypatch.setattr(reader, "find_watched", lambda client, experiments: [server] * 4)
    monitor = Monitor("http://127.0.0.1:9")
    monitor.client = server
    assert monitor.run_once()  # four in a row are no server that is away
    assert "256 parts" in tags["gradwatch.corrupt"]
    assert monitor.health.corrupt == 4


@pytest.mark.parametrize(
    "text", ["[]", "null", "{}", '{"findings": 3}', '{"findings": [3]}', "[" * 100_000, "\x00", '{"findings": [{}]}'],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_findings_that_cannot_be_read_are_none(server, text):
    from gradwatch.tracking.alerts import _read_findings

    (server.run / "findings.json").write_text(text)
    assert _read_findings(server, RUN) == []


def test_findings_are_read(server):
    from gradwatch.tracking.alerts import _read_findings

    finding = Finding("nonfinite", "error", ("a",), 5, 6, {"steps": 1.0}, "cause", "cure")
    (server.run / "findings.json").write_text(json.dumps({"findings": [finding.to_json()]}))
    assert _read_findings(server, RUN) == [finding]
