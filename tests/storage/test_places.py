"""What is named in one working directory is found from another."""

import os

import pytest

from gradwatch.errors import RunError
from gradwatch.storage.places import absolute_folder, absolute_uri


@pytest.mark.parametrize(
    ("uri", "means"),
    [
        ("sqlite:///mlflow.db", "sqlite:///{}/mlflow.db"),
        ("sqlite:///./a/../b.db?timeout=3", "sqlite:///{}/b.db?timeout=3"),
        ("sqlite+pysqlite:///b.db", "sqlite+pysqlite:///{}/b.db"),
        ("./mlruns", "{}/mlruns"),
        ("mlruns", "{}/mlruns"),
        ("file:./mlruns", "file://{}/mlruns"),
        ("file:mlruns", "file://{}/mlruns"),
    ],
)
def test_a_relative_store_is_one_of_this_folder(uri, means, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_uri(uri) == means.format(tmp_path)


@pytest.mark.parametrize(
    "uri",
    ["", "sqlite:////a/b.db", "sqlite://", "sqlite:///:memory:", "sqlite:///file:b.db?uri=true", "/a/mlruns",
     "file:///a/mlruns", "http://host:5000", "http://[::1", "postgresql://u:p/w@h/db", "databricks",
     "databricks://profile", "uc"],
)  # fmt: skip
def test_what_is_absolute_or_no_path_stays_as_it_is(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_uri(uri) == uri


def test_where_the_working_directory_was_removed_a_uri_stays_and_a_folder_is_refused(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert absolute_uri("sqlite:///b.db") == "sqlite:///b.db"
        assert absolute_folder("/runs").as_posix() == "/runs"
        with pytest.raises(RunError, match="pass dir= an absolute path"):
            absolute_folder("runs")
    finally:
        os.chdir(tmp_path)
