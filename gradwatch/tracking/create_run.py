"""Creates the MLflow run of a script that is watched, or settles it: a process that `launcher.mlflow_run` starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from gradwatch.sanitize import public_error, public_uri

TAKEN = "taken\n"


def _create(order: Mapping[str, Any]) -> dict[str, Any]:
    from gradwatch.tracking import client as store

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from here on there may be a run: whoever is told of it ends it
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
    """The child: one order, one line of JSON. A run that is not taken (answered with `taken`) is settled again."""
    try:
        answer = {"create": _create, "settle": _settle}[what](json.loads(order))
    except Exception as error:
        answer = {"problem": public_error(error)}
    with contextlib.suppress(BrokenPipeError):  # the script is over
        print(json.dumps(answer), flush=True)
    if "run_id" in answer and sys.stdin.readline() != TAKEN:
        _settle({**answer, "tracking_uri": answer["full_uri"], "status": "FINISHED"})


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # what is left in a broken pipe's buffer is nobody's
