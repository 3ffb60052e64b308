"""`watch.show()`: the run below a notebook's cell, drawn anew while it goes on; elsewhere a line that helps."""

import contextlib
import queue
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch.recording import notebook_view


@pytest.fixture
def make_watch(tmp_path):
    made = []

    def make(**options):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        made.append(gradwatch.watch(model, optimizer, log=None, dir=tmp_path, verbose=False, **options))
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
        return made[-1]

    yield make
    for watch in made:
        watch.close()


@pytest.fixture
def displayed(monkeypatch):
    """What a notebook displays, in order: a kernel's shell, and IPython's `display`."""
    seen = []
    handle = SimpleNamespace(update=lambda bundle, raw: seen.append(bundle))
    shell = SimpleNamespace(kernel=object(), get_parent=lambda: {"metadata": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(
        sys.modules,
        "IPython.display",
        SimpleNamespace(display=lambda bundle, raw, display_id: (seen.append(bundle), handle)[1]),
    )
    return seen


def test_without_a_notebook_it_says_what_to_do(make_watch, capsys, monkeypatch):
    watch = make_watch()
    for shell in (None, SimpleNamespace()):  # plain Python; IPython in a terminal
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        watch.show()
        said = capsys.readouterr().err
        assert said.endswith(f"in another terminal: gradwatch show --follow {watch.dir}\n")
        assert said.count("\n") == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "gradwatch-show"]


def test_the_training_goes_on_however_long_the_view_takes(make_watch, displayed, monkeypatch):
    lines = queue.Queue()
    process = contextlib.nullcontext()
    process.stdout, process.returncode = iter(lines.get, b""), 1
    monkeypatch.setattr(notebook_view.subprocess, "Popen", lambda *_, **__: process)
    watch = make_watch()
    watch.show()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "gradwatch-show"]
    assert [list(bundle) for bundle in displayed] == [["text/plain"]]
    lines.put(b'{"text/html": "<pre>a look</pre>"}\n')
    lines.put(b"")
    thread.join()
    assert displayed[1] == {"text/html": "<pre>a look</pre>"}
    assert f"in a terminal: gradwatch show --follow {watch.dir}" in displayed[-1]["text/plain"]


@pytest.mark.slow
def test_of_a_closed_watch_it_shows_the_end(make_watch, displayed):
    watch = make_watch(clip="ClipByGlobalNorm(0.1)")
    watch.log(loss=0.5)
    watch.close()
    watch.show()
    assert "step 3" in displayed[-1]["text/plain"]
    assert "finished" in displayed[-1]["text/plain"]
    assert "threshold 0.1" in displayed[-1]["text/html"]


CELLS = [
    """import threading, time, torch, gradwatch
from IPython.display import DisplayHandle

drawn, update = [], DisplayHandle.update
def noted(self, bundle, **words):
    update(self, bundle, **words)
    drawn.append(bundle["text/plain"])
DisplayHandle.update = noted

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
watch = gradwatch.watch(model, optimizer, log=None, verbose=False, flush_every=0.5)
watch.show()""",
    """def train():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)

while "running" not in "".join(drawn):
    train()""",
    """watch.close()
[thread.join() for thread in threading.enumerate() if thread.name == "gradwatch-show"]""",
]


@pytest.mark.slow
def test_a_notebook_that_is_run_shows_the_run_below_its_first_cell(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import AsyncKernelManager

    manager = AsyncKernelManager()
    manager.kernel_spec.argv[0] = sys.executable
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    below = []

    def look(cell, cell_index, **_):
        below.append([output.data.get("text/html", "") for output in notebook.cells[0].outputs])

    client = nbclient.NotebookClient(
        notebook, km=manager, on_cell_executed=look, resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    one, two = below[1:]
    assert len(one) == len(two) == 1  # in its place
    assert "total norm" in one[0]
    assert "running" in one[0]
    assert "finished" in two[0]
