"""Searches of MLflow for names that have quotes in them."""

import pytest
from mlflow import MlflowClient

from gradwatch.tracking.client import drop_twins, quoted
from gradwatch.tracking.tags import Tag


@pytest.mark.parametrize("value", ["plain", "it's", 'a "b"', """it's "b" """])
def test_a_search_takes_any_value(value, tmp_path):
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.create_experiment("quotes")
    run, twin = (client.create_run(experiment, tags={Tag.FOLDER: value}).info.run_id for _ in range(2))
    drop_twins(client, run, experiment, value)
    found = client.search_runs([experiment], f"tags.`{Tag.FOLDER}` = {quoted(value)}")
    both = "'" in value and '"' in value  # cannot be asked for
    assert [each.info.run_id for each in found] == ([] if both else [run])
