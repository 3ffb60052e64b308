"""Runs tasks on a Ray cluster: one Ray task for each, with its CPUs, GPUs and memory.

What a task leaves comes back through its folder, on a file system that the nodes share, or through MLflow.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from gradwatch.errors import RunError
from gradwatch.launcher.local_pool import GRACE_SECONDS, run_process
from gradwatch.launcher.pool import POLL_SECONDS, Control, End, Moment, Resources, Task, run_all
from gradwatch.launcher.reaper import Reaper
from gradwatch.launcher.sweep import let_deliver, thread_counts

ATTEMPTS = 4  # as Ray's own tasks by default: one, and three more after a node or a worker died
MAX_AT_A_TIME = 256  # each waits in a thread here; Ray starts them as there is room
OURS = ("MLFLOW_", "GRADWATCH_")  # what a node's environment has no say in
NOT_SENT = ("_VISIBLE_DEVICES", "_NUM_THREADS")  # a machine's own


def run_on_ray(
    tasks: Iterable[Task], at_a_time: int, resources: Resources, say: Callable[[str], None]
) -> Generator[Moment, None, None]:
    """Run the tasks as `run_all` does, on the cluster at RAY_ADDRESS, one that was started here, or one of our own.

    A task whose node or worker dies is tried again, elsewhere. A process on a node ends with its Ray task, and that
    with this process.

    Raises:
        RunError: Ray is not installed, there is no cluster at that address, or it is one of Ray Client.
    """
    ray = _import_ray()
    with _connected(ray):
        cpus, gpus, memory = _wanted(ray, resources, say)
        submit = ray.remote(_train).options(num_cpus=cpus, num_gpus=gpus, memory=memory, max_retries=0).remote
        sent = _sent(dict(os.environ), cpus)
        slots = [partial(_run, ray, partial(submit, sys.executable, sent))] * min(at_a_time, MAX_AT_A_TIME)
        yield from run_all(tasks, slots)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RunError(f"Ray cannot be loaded ({error}): pip install 'gradwatch[ray]'") from error
    return ray


@contextlib.contextmanager
def _connected(ray: Any) -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of our own tells nobody of its use
    address = os.environ.get("RAY_ADDRESS", "this machine")
    if address.startswith("ray://"):
        raise RunError(
            f"RAY_ADDRESS={address} is Ray Client, which stays outside the cluster, and a sweep reads what its "
            "trainings write to their folders. Start it on a node of the cluster, with RAY_ADDRESS=auto, or by ray job "
            "submit -- gradwatch sweep --on ray ..."
        )
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunError(
            f"no Ray cluster at {address}: {said}; start one, or set RAY_ADDRESS to one's address"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _wanted(ray: Any, asked: Resources, say: Callable[[str], None]) -> tuple[int, float, int | None]:
    """CPUs, GPUs and bytes for each task. If not said: a GPU and its share of the CPUs, or a CPU."""
    nodes: list[dict[str, float]] = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = asked.gpus if asked.gpus is not None else float(any(node.get("GPU") for node in nodes))
    shares = [node.get("CPU", 0) * gpus // node["GPU"] for node in nodes if node.get("GPU")] if gpus else []
    cpus = asked.cpus or max(1, int(min(shares, default=1)))
    wanted = {"CPU": cpus, "GPU": gpus, "memory": asked.memory or 0}
    if not any(all(node.get(name, 0) >= value for name, value in wanted.items()) for node in nodes):
        needs = ", ".join(f"{value:g} {name}" for name, value in wanted.items() if value)
        say(f"Note: no node of the Ray cluster has {needs}: the trainings wait until one joins it.")
    return cpus, gpus, asked.memory


def _sent(environment: dict[str, str], cpus: int) -> dict[str, str]:
    return {
        **{name: value for name, value in environment.items() if not name.endswith(NOT_SENT)},
        **thread_counts(cpus, environment),
    }


def _run(ray: Any, submit: Callable[..., Any], task: Task, control: Control) -> End:
    """A slot: one task on the cluster, as often as it takes."""
    died: list[str] = []
    while True:
        token = f"gradwatch: waits for a node of the Ray cluster ({uuid.uuid4().hex})\n"
        task.output.write_text(token)
        began = time.monotonic()
        folder = str(task.folder or Path.cwd())
        ref = submit(list(task.command), dict(task.environment), str(task.output), token, task.timeout, folder)
        try:
            end = _end_of(ray, ref, partial(_has_begun, task.output, token), control)
        except ray.exceptions.RayTaskError as error:  # the node could not even try
            end = End(None, time.monotonic() - began, problem=str(error.cause).splitlines()[0])
        except ray.exceptions.RayError as error:
            died.append(_why(error))
            if len(died) < ATTEMPTS and not control.stop.is_set():
                continue
            end = End(-signal.SIGKILL, time.monotonic() - began)
        if control.stop.is_set() and end.code != 0:
            return End(end.code, end.seconds, "interrupted")
        again = f"tried {len(died) + 1} times, as {died[-1]}" if died and end.code != -signal.SIGKILL else ""
        lost = f"{died[-1]}, {len(died)} times" if died and not again else ""
        return End(end.code, end.seconds, end.cut, ", ".join(filter(None, [end.problem, again, lost])))


def _end_of(ray: Any, ref: Any, has_begun: Callable[[], bool], control: Control) -> End:
    """The end of a Ray task; when we are to stop, it is cancelled, and closes its run."""
    cancelled = begun = False
    while not ray.wait([ref], timeout=POLL_SECONDS)[0]:
        if control.stop.is_set() and not cancelled:
            ray.cancel(ref, force=False)
            cancelled = True
        if control.hurry.is_set():
            with contextlib.suppress(ValueError):  # too late
                ray.cancel(ref, force=True)
            return End(None, 0.0, "interrupted")
        if not begun and has_begun():
            control.begun()
            begun = True
    return End(*ray.get(ref))


def _has_begun(output: Path, token: str) -> bool:
    return not _reads(output, token)


def _reads(output: Path, token: str) -> bool:
    """Whether this file begins with what was written on the other machine: whether both see the same one."""
    try:
        with open(output) as file:
            return file.read(len(token)) == token
    except (OSError, UnicodeDecodeError):
        return False


def _why(error: Exception) -> str:
    kinds = {
        "NodeDiedError": "its node died",
        "LocalRayletDiedError": "its node died",
        "WorkerCrashedError": "its worker on the node died",
        "OutOfMemoryError": "its node ran out of memory",
    }
    return kinds.get(type(error).__name__, type(error).__name__)


# -------------------------------------------------------------------------------------------------------- on a node


def _train(
    python: str, sent: Mapping[str, str], command: Sequence[str], own: Mapping[str, str], output: str, token: str,
    timeout: float | None, folder: str,
) -> tuple[int | None, float, str, str]:  # fmt: skip
    """Run a command on this node, with its Python in the place of the sweep's; returns the fields of an `End`."""
    place, shared = Path(output), _reads(Path(output), token)
    if not shared and not _is_server(sent.get("MLFLOW_TRACKING_URI", "")):
        said = (
            f"node {socket.gethostname()} does not see {place.parent}: pass --dir a folder on a file system that all "
            "nodes share, or set MLFLOW_TRACKING_URI to a tracking server"
        )
        return None, 0.0, "", said
    if not Path(folder).is_dir():
        return None, 0.0, "", f"node {socket.gethostname()} has no folder {folder}, where the script is to be started"
    place.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        **sent,
        **os.environ,
        **{k: v for k, v in sent.items() if k.startswith(OURS) or k.endswith(NOT_SENT)},
    }
    words = [sys.executable if word == python else word for word in command]
    end = _supervised(Task(words, own, place, timeout, folder=Path(folder)), environment)
    if not shared and not end.cut:
        let_deliver(place.parent)  # nobody else can see when its run has arrived
    return end.code, end.seconds, end.cut, end.problem


def _supervised(task: Task, environment: Mapping[str, str]) -> End:
    """The end of a task that is run beside this thread: `ray.cancel` interrupts it, as Ctrl-C would."""
    stop = threading.Event()
    # a cluster that was started in the background ignores SIGINT, with all that it starts: nothing would be interrupted
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with Reaper(GRACE_SECONDS) as reaper, ThreadPoolExecutor(1) as executor:
        try:
            control = Control(lambda: None, stop, threading.Event())
            future = executor.submit(_unblocked, run_process, reaper, environment, task, control)
            while not future.done():
                try:
                    wait([future], 0.2)
                except KeyboardInterrupt:
                    stop.set()
            return future.result()
        except OSError as error:
            return End(None, 0.0, problem=f"{task.command[0]}: {error.strerror}")
        finally:
            stop.set()
            signal.signal(signal.SIGINT, before)


def _unblocked(call: Callable[..., End], *args: Any) -> End:
    """Call it so that its processes hear signals: Ray's workers may have them blocked, and processes inherit that."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    return call(*args)


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://", "databricks"))
