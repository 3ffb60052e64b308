"""Whether MLflow answers or hangs, the training process does the same: counted, which no noise of a machine enters."""

import sys
import threading
import time
from collections import Counter

import pytest
import torch
from faulty_proxy import hang, ok
from training import mlp, train, watch

from gradwatch import open_history
from gradwatch.storage.folder import last_part
from gradwatch.tracking.settings import MLFLOW_SETTINGS

mlflow = pytest.importorskip("mlflow")

CHANGES = ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "os.link", "os.symlink", "subprocess.Popen")
WRITING = set("wax+")
counting: list[Counter] = []  # where what this process does is counted, if it is


def hook(event, args):
    """Count what changes files, starts processes or opens connections, on the training's thread and gradwatch's own."""
    thread = threading.current_thread()
    if not counting or not (thread is threading.main_thread() or thread.name.startswith("gradwatch")):
        return
    if event.startswith("socket.") or event in CHANGES or (event == "open" and WRITING & set(str(args[1]))):
        counting[-1][thread.name, event] += 1


@pytest.fixture(scope="module", autouse=True)
def audited():
    sys.addaudithook(hook)  # it stays for the life of the process, and counts nothing outside of `work`


def work(uri, client, proxy, fault, parent):
    """What a watched training did in 384 steps, after its courier had met the server: its calls, and parts written."""
    proxy.always = fault
    run_id = client.create_run("0").info.run_id
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, parent, log="mlflow", delivery="courier", run_id=run_id, flush_every=1000.0)
    try:
        train(model, optimizer, 10, after_step=lambda model, loss: watching.log(loss=loss))
        watching.state_dict()  # the first rows leave by the clock, all others by their number
        end, met = time.monotonic() + 120, proxy.met[fault.__name__]
        while proxy.met[fault.__name__] <= met:
            assert time.monotonic() < end, "the courier asks for nothing"
            time.sleep(0.05)
        before = last_part(watching.dir)
        counting.append(found := Counter())
        for _ in range(3):
            train(model, optimizer, 128, after_step=lambda model, loss: watching.log(loss=loss))
            watching.state_dict()
        counting.clear()
        parts = last_part(watching.dir) - before
        assert len(open_history(watching.dir)) == 394
    finally:
        counting.clear()
        watching.close(timeout=0)
        watching._courier.process.kill()
    return found, parts


@pytest.mark.slow
def test_the_training_does_the_same_whether_the_server_hangs_or_not(server, proxy, tmp_path, monkeypatch):
    for name, value in MLFLOW_SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
    client = mlflow.MlflowClient(server[0])
    healthy, hanging = (work(proxy.url, client, proxy, fault, tmp_path / fault.__name__) for fault in (ok, hang))
    assert hanging == healthy
    calls, parts = hanging
    assert not [event for _, event in calls if event.startswith("socket.") or event == "subprocess.Popen"]
    # both tables, once for each checkpoint, and the first part once more, which gets a column that came later
    assert calls["gradwatch-writer", "os.rename"] == 2 * parts + 1 == 7
