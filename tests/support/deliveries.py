"""What tests of deliveries share: where to, a process that has ended, and a curve as MLflow has it."""

import subprocess
import sys


def curve(client, run, key):
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def target(store, **changes):
    return {"tracking_uri": store, "experiment_name": "exp", "run_id": None, "joined": False, **changes}
