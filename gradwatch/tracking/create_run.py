"""Creates the MLflow run of a script that is watched, or settles it: a process that `launcher.mlflow_run` starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from gradwatch.sanitize import public_error, public_uri


def _create(order: Mapping[str, Any]) -> dict[str, Any]:
    from gradwatch.tracking import client as store

    uri = store.full_uri(order.get("tracking_uri"))
    client = store.connect(uri)
    run_id, experiment = store.start_run(client, uri, order["name"], order.get("tags", {}))
    return {
        "tracking_uri": public_uri(uri),
        "full_uri": uri,
        "experiment_id": experiment,
        "run_id": run_id,
        "joined": False,
    }


def _settle(order: Mapping[str, Any]) -> dict[str, Any]:
    from gradwatch.tracking import client as store

    store.settle_run(store.connect(store.full_uri(order["tracking_uri"])), order["run_id"], order["status"])
    return {}


def main(what: str, order: str) -> None:
    """The child: one order, one line of JSON."""
    try:
        answer = {"create": _create, "settle": _settle}[what](json.loads(order))
    except Exception as error:
        answer = {"problem": public_error(error)}
    try:
        print(json.dumps(answer), flush=True)
    except BrokenPipeError:  # the script is over
        if "run_id" in answer:
            _settle({**answer, "tracking_uri": answer["full_uri"], "status": "FINISHED"})
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
