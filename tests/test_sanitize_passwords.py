"""Passwords in tracking URIs, in every form that urllib or SQLAlchemy reads: written, printed and shown nowhere."""

import json
import logging
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from make_run import make_run
from training import mlp
from training import watch as watched

from gradwatch.cli import main
from gradwatch.cli.options import PublicFormatter
from gradwatch.errors import WatchError
from gradwatch.sanitize import check_uri, public_error, public_text, public_uri

CASES = int(os.environ.get("GRADWATCH_FUZZ", "0"))
SECRET = "S3CRETpw"
USER = "hidden-user"
# Nobody listens on port 1, and no driver is called nosuch: what they say of that is said at once.
HTTP = [
    f"http://{USER}:{SECRET}@127.0.0.1:1/x",
    f"HTTPS://{USER}:a@{SECRET}@127.0.0.1:1",
    f"http://{USER}:a/{SECRET}@127.0.0.1:1",
    f"http://{USER}:a?{SECRET}@127.0.0.1:1",
    f"http://{USER}:a#{SECRET}@127.0.0.1:1",
    f"http://{USER}:a b{SECRET}@127.0.0.1:1",
    f"http://{USER}:[{SECRET}@127.0.0.1:1",
    f"ht\ntp://{USER}:{SECRET}@127.0.0.1:1",
    f"http://127.0.0.1:1/?token={SECRET}",
]
DATABASE = [
    f"postgresql+nosuch://{USER}:{SECRET}@h/db",
    f"postgresql+nosuch://{USER}:a/{SECRET}@h/db",
    f"postgresql+nosuch://{USER}:a?{SECRET}@h/db",
    f"postgresql+nosuch://{USER}:a#{SECRET}@h/db",
    f"postgresql+nosuch://{USER}:a@{SECRET}@h/db",
    f"postgresql+nosuch://{USER}:a@b/{SECRET}@h/db",
    f"postgresql+nosuch://{USER}:[{SECRET}@h/db",
    f"postgresql+nosuch://a@{USER}:b/{SECRET}@h/db",
    f"postgresql+nosuch://h/db?user={USER}&password={SECRET}",
    f"postgresql+nosuch://h/db?sslmode=require&p%61ssword={SECRET}%26more#x",
    f"postgresql+nosuch://h/db?password=a?{SECRET}",
    f"mssql+nosuch:///?odbc_connect=DRIVER%3Dx%3BPWD%3D{SECRET}",
]
WHOLE = [*HTTP, *DATABASE]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def hides(text):
    return SECRET not in text and USER not in text


def written(folder):
    """What the files below the folder hold, by name."""
    return {str(path): path.read_text(errors="replace") for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("uri", WHOLE)
def test_an_address_and_a_text_that_holds_it_lose_their_logins(uri, monkeypatch):
    assert hides(public_uri(uri))
    assert public_uri(public_uri(uri)) == public_uri(uri)
    if " " not in uri and "\n" not in uri:
        assert hides(public_text(f"cannot reach '{uri}', nor (HTTP://{USER}:{SECRET}@h/x?y=a@b)"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert hides(public_text(f"cannot reach {uri}: it is away"))
    assert hides(public_error(ValueError(f"cannot reach {uri}")))


@pytest.mark.parametrize(
    ("uri", "public"),
    [
        ("http://me:secret@host:5000/x", "http://host:5000/x"),
        ("http://host:5000/users/me@example.org", "http://host:5000/users/me@example.org"),
        ("http://[::1]:5000/a@b", "http://[::1]:5000/a@b"),
        ("http://host/#/experiments/1?viewStateShareKey=x", "http://host/#/experiments/1?viewStateShareKey=x"),
        ("postgresql://u:p@ss@db/mlflow", "postgresql://db/mlflow"),
        ("postgresql://u:p/w@db:5432/mlflow?sslmode=require", "postgresql://db:5432/mlflow?sslmode=require"),
        ("postgresql://db/mlflow?user=u&sslmode=require&pwd=a#b&x=1", "postgresql://db/mlflow?sslmode=require&x=1"),
        ("sqlite:////tmp/a@b/mlflow.db", "sqlite:////tmp/a@b/mlflow.db"),
        ("sqlite:///mlflow.db", "sqlite:///mlflow.db"),
        ("databricks://profile:prefix", "databricks://profile:prefix"),
        ("C:\\runs\\a@b", "C:\\runs\\a@b"),
    ],
)
def test_the_rest_of_an_address_stays(uri, public):
    assert public_uri(uri) == public


SIGNS = st.text(st.sampled_from("aZ0/?#@:&=+%[] ;.\\'\""), min_size=1, max_size=12)


@settings(deadline=None, database=None, derandomize=not CASES, max_examples=CASES or 300)
@given(password=SIGNS, user=SIGNS, scheme=st.sampled_from(["postgresql", "mysql+pymysql", "http", "https"]), text=SIGNS)
@example(password="a/b", user="u", scheme="postgresql", text="?password=c")
def test_what_the_two_parsers_take_for_a_login_is_never_public(password, user, scheme, text):
    """The password is given a mark at its end, which is looked for: single signs are everywhere."""
    url = pytest.importorskip("sqlalchemy.engine.url")
    uri = f"{scheme}://{user}:{password}{SECRET}@host/{text}"
    secrets = []
    try:
        parts = urlsplit(uri)
        secrets += [parts.username, parts.password]
    except ValueError:
        pass
    if not scheme.startswith("http"):
        try:
            made = url.make_url(uri)
            secrets += [made.username, made.password, *(v for k, v in made.query.items() if k == "password")]
        except (ValueError, url.exc.ArgumentError):
            pass
    public = public_uri(uri)
    for secret in filter(None, secrets):
        assert SECRET not in unquote(secret) or SECRET not in unquote(public), (uri, public)


@pytest.mark.parametrize(
    "uri", ["http://[::1", "http://h h", f"http://u:{SECRET}/x@h", f"http://h:{SECRET}", "http://:5000"]
)
def test_what_is_no_address_is_refused_without_its_words(uri):
    with pytest.raises(ValueError, match="no address") as refused:
        check_uri(uri)
    assert hides(str(refused.value))
    assert refused.value.__suppress_context__, "a traceback would show what urllib says"


# ------------------------------------------------------------------------------------------------------- the training


def fake_mlflow(uri, active):
    info = types.SimpleNamespace(run_id="r1", experiment_id=3)
    fluent = types.SimpleNamespace(_active_experiment_id="7")
    return types.SimpleNamespace(
        active_run=lambda: types.SimpleNamespace(info=info) if active else None,
        get_tracking_uri=lambda: uri,
        tracking=types.SimpleNamespace(fluent=fluent),
    )


@pytest.mark.parametrize(
    "way", ["environment", "set_tracking_uri", "active run", "argument", "argument without run_id"]
)
@pytest.mark.parametrize("uri", WHOLE)
def test_a_training_writes_no_password(uri, way, tmp_path, monkeypatch, capfd):
    torch = pytest.importorskip("torch")
    options = {"delivery": "none", "log": "mlflow", "verbose": True}
    monkeypatch.setitem(sys.modules, "mlflow", fake_mlflow("sqlite:///x.db", False))
    if way == "environment":
        monkeypatch.delitem(sys.modules, "mlflow")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    elif way in ("set_tracking_uri", "active run"):
        monkeypatch.setitem(sys.modules, "mlflow", fake_mlflow(uri, way == "active run"))
    else:
        options |= {"tracking_uri": uri, "run_id": "r1" if way == "argument" else None}
    model = mlp()
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            watched(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path, **options).close(timeout=0)
            texts = written(tmp_path)
            assert {"run.json", "model.txt"} <= {Path(name).name for name in texts}
        except WatchError as error:
            texts = {"the error": str(error)}
            assert way.startswith("argument")
    said = [*texts.values(), *(str(w.message) for w in caught), *capfd.readouterr()]
    assert [text for text in said if SECRET in text or USER in text] == []


# ------------------------------------------------------------------------------------------------------- the commands


@pytest.mark.slow
@pytest.mark.parametrize("uri", WHOLE)
def test_no_command_writes_or_prints_a_password(uri, tmp_path, monkeypatch, caplog, capsys):
    """The store cannot be reached, so that each says why; what starts a process shows the words of its command."""
    pytest.importorskip("mlflow")
    from gradwatch.launcher import mlflow_run
    from gradwatch.tracking import create_run
    from gradwatch.tracking.settings import MLFLOW_SETTINGS

    for name, value in MLFLOW_SETTINGS.items():
        monkeypatch.setenv(name, value)
    caplog.set_level("DEBUG", "gradwatch")
    caplog.handler.setFormatter(PublicFormatter())  # as `log_to_stdout` does
    monkeypatch.setattr(logging.getLogger(), "handlers", [*logging.getLogger().handlers])
    monkeypatch.setattr("gradwatch.tracking.sync.TRIES", 1)
    monkeypatch.chdir(tmp_path)
    started = []

    def start(words, **options):
        started.append(words)
        raise OSError("no process in this test")

    folder = make_run(tmp_path / "runs", mlflow={"tracking_uri": public_uri(uri), "run_id": None, "joined": False})
    said = []

    def call(*words, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        result = CliRunner().invoke(main, [str(word) for word in words])
        said.append((words, result.output))
        assert isinstance(result.exception, SystemExit | None), (words, result.exception)
        for name in environment:
            monkeypatch.delenv(name)

    for environment, more in (({"MLFLOW_TRACKING_URI": uri}, ()), ({}, ("--tracking-uri", uri))):
        (folder / "cursor.json").unlink(missing_ok=True)
        call("sync", folder, *more, **environment)
        call("monitor", "--once", *more, **environment)
    call("ui", MLFLOW_TRACKING_URI=uri)
    call("ui", "--store", uri)
    call("run", "--show-config", MLFLOW_TRACKING_URI=uri)
    call("show", "0" * 32, MLFLOW_TRACKING_URI=uri)
    call("compare", "experiment:e", MLFLOW_TRACKING_URI=uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    create_run.main("create", json.dumps({"name": "n"}))
    said.append(("create_run", capsys.readouterr().out))
    assert "problem" in said[-1][1]
    monkeypatch.setattr(subprocess, "Popen", start)
    target = {"tracking_uri": public_uri(uri), "run_id": "r"}
    mlflow_run._child("settle", {**target, "status": "FAILED"})
    assert len(started) == 1

    texts = {**written(tmp_path), **{str(words): text for words, text in said}, "log": caplog.text}
    texts["processes"] = str(started)
    assert {"run.json"} <= {Path(name).name for name in texts}
    assert [name for name, text in texts.items() if SECRET in text or USER in text] == []


@pytest.mark.slow
def test_the_list_of_processes_does_not_show_the_address_that_ui_serves(store, tmp_path):
    """The server's own workers, too, are looked at."""
    from mlflow_server import mlflow_server

    renamed = Path(tmp_path / "mlflow.db").rename(tmp_path / f"{SECRET}.db")
    with mlflow_server(f"sqlite:///{renamed}", tmp_path):
        words = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _is_ours(path, tmp_path)]
    assert any(b"mlflow" in line for line in words)
    assert [line for line in words if SECRET.encode() in line] == []


def _is_ours(cmdline, folder):
    try:
        return (cmdline.parent / "cwd").readlink() == folder
    except OSError:
        return False
