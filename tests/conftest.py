"""Fixtures that several test files share."""

import gc
import logging
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from writers import writers_ended

# The models of the tests are tiny, and pytest's workers fill the cores: more threads would only be in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # until all is imported: it would go through all of torch again and again
# Where there is no GPU, Triton's kernels run in its interpreter: it has to know before anything imports it.
os.environ.setdefault("TRITON_INTERPRET", str(int(not Path("/dev/nvidiactl").exists())))
os.environ.pop("COLUMNS", None)  # a width that somebody exported: tables would leave columns out

# A shell starts what stands before an & with SIGINT ignored, nohup does so with SIGHUP, and whoever they start inherits
# that. Tests send both.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

QUICK = pytest.StashKey[bool]()  # whether the slow tests are left out

# The files that take longest, longest first: the workers begin with them, so that none is left with one at the end.
LONGEST = [
    "test_truth", "test_sweep", "test_distributed", "test_rewind", "test_chaos", "test_ray_pool", "test_unseen",
    "test_outages", "test_run_options", "test_html", "test_target_diseases", "test_service", "test_launches",
    "test_run", "test_sync_and_ui", "test_cures", "test_bench", "test_search", "test_hooks", "test_demo", "test_writer",
    "test_sanitize", "test_gpu", "test_docs", "test_tracking_server", "test_advice_agrees", "test_gradients",
    "test_rewind_ranks", "test_multi_tensor", "test_alerts", "test_judgement", "test_rules_any_history",
    "test_sanitize_fuzz", "test_ranks_that_end", "test_courier_process", "test_cuda_rules", "test_close_interrupted",
    "test_interrupted", "test_other_defaults", "test_slurm", "test_courier", "test_callbacks", "test_compose_commands",
    "test_package",
]  # fmt: skip


# What needs a real MLflow, or a whole training framework, is slow whatever it does: each takes seconds to import.
MLFLOW = {"empty_store", "store", "server", "proxy"}
FRAMEWORKS = Path(__file__).parent / "adapters"


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="the slow tests too, and those in a browser")


def pytest_configure(config):
    """The quick tests, unless all are asked for, or some by their file, name or mark."""
    named = config.args_source is config.ArgsSource.ARGS or config.option.keyword or config.option.markexpr
    config.stash[QUICK] = not config.option.all and not named
    if config.stash[QUICK]:
        config.option.markexpr = "not slow and not browser"


def pytest_ignore_collect(collection_path, config):
    """Files that are slow as a whole are not even imported."""
    return (config.stash[QUICK] and collection_path == FRAMEWORKS) or None


@pytest.hookimpl(tryfirst=True)  # before items are left out by their marks
def pytest_collection_modifyitems(items):
    """Mark what is slow by what it needs, and put the longest files first; the order within a file stays."""
    for item in items:
        if MLFLOW & set(item.fixturenames):
            item.add_marker("slow")
    stale = set(LONGEST) - {path.stem for path in Path(__file__).parent.rglob("test_*.py")}
    if stale:
        raise pytest.UsageError(f"LONGEST in {__file__} names {', '.join(sorted(stale))}; there is no such file")
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


LISTENED_TO = {"gradwatch.recording.torch_patches": "_seen", "gradwatch.recording.backward_calls": "heard"}


def _listened_to():
    """What tells a watch of calls of torch's, of what is imported by now."""
    return [getattr(sys.modules[module], name) for module, name in LISTENED_TO.items() if module in sys.modules]


@pytest.fixture(autouse=True)
def nobody_listens_on():
    """A watch that a test leaves open, in the middle of a step, say, hears of nothing that later tests do."""
    before = {id(listener) for each in _listened_to() for listener in each.listeners}
    yield
    for each in _listened_to():
        for listener in each.listeners:
            if id(listener) not in before:
                each.leave(listener)


def pytest_collection_finish():
    """Leave what is imported by now out of every later garbage collection, which would go through all of torch."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    """What is never collected is reported as leaked by Triton as the process ends."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def own_levels():
    """What a command that runs for long sets for its process (`log_to_stdout`) ends with the test that ran it here."""
    loggers = [logging.getLogger(name) for name in ("gradwatch", "urllib3")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def own_writers():
    """No test writes on while the next one runs."""
    with writers_ended():
        yield


@pytest.fixture(autouse=True)
def own_backward():
    """A Watch that this test leaves open does not hear of a later test's backward: torch's own is back by then."""
    yield
    if calls := sys.modules.get("gradwatch.recording.backward_calls"):
        for listener in calls.heard.listeners:
            calls.heard.leave(listener)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory, worker_id):
    """A fresh MLflow database, made once for all workers: creating its tables takes seconds."""
    pytest.importorskip("mlflow")
    from gradwatch.tracking.client import connect

    root = tmp_path_factory.getbasetemp()
    file = (root if worker_id == "master" else root.parent) / "template" / "mlflow.db"
    connect(f"sqlite:///{file}")
    return file


@pytest.fixture
def store(empty_store, tmp_path, monkeypatch):
    """The URI of an own, empty SQLite store in `tmp_path`, which is also the working directory."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return f"sqlite:///{Path(tmp_path) / 'mlflow.db'}"


@pytest.fixture(scope="session")
def server(empty_store, tmp_path_factory):
    """The address of a real MLflow server on loopback, and of its SQLite database; one for each of pytest's workers."""
    from mlflow_server import mlflow_server

    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "mlflow.db")
    store = f"sqlite:///{folder / 'mlflow.db'}"
    with mlflow_server(store, folder) as url:
        yield url, store


@pytest.fixture
def proxy(server):
    """A proxy before that server, which fails when told to."""
    from faulty_proxy import FaultyProxy

    with FaultyProxy(server[0]) as made:
        yield made


@pytest.fixture
def own_accelerator():
    """Accelerate keeps its settings in globals: this test has its own."""
    state = pytest.importorskip("accelerate.state")

    def reset():
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()

    reset()
    yield
    reset()
