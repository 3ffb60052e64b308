"""Outages between a run that goes on and its MLflow server: what arrives of it, and how often.

A run is written as a trainer writes it, while its courier, a process of its own, delivers to a real MLflow server
through a proxy that fails: connections refused, reset, cut in the middle of a request or after it (the server has done
what it was asked, and the courier never hears of it), no answer at all, one that comes too late, 500, 429 and 503, the
server killed, its database locked by somebody else. In which order and for how long comes from the seed. Each outage
lasts until the courier has met it, and is over before the next. Afterwards the points in the database are held against
those that the files hold.

The command line is that of scripts/bench/chaos.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from faulty_proxy import FaultyProxy, answer, drop, hang, late, ok, reset, swallow  # noqa: E402
from make_run import as_block, make_history  # noqa: E402
from mlflow_server import Server, in_the_store, postgres, wanted  # noqa: E402

from gradwatch.recording.courier_process import start_courier, wait_delivered  # noqa: E402
from gradwatch.storage.delivery_cursor import read_cursor  # noqa: E402
from gradwatch.storage.folder import create_folder  # noqa: E402
from gradwatch.storage.writer import RunWriter  # noqa: E402
from gradwatch.tracking.client import connect  # noqa: E402
from gradwatch.tracking.sync import POLL_SECONDS  # noqa: E402

TIMEOUT = 3  # seconds until the courier gives a request up
POINTS_A_STEP = 20  # of the run that is written, at least
BLOCK = 50  # steps that are handed over at once
FAULTS = (reset, drop, swallow, hang, late(TIMEOUT + 1), answer(500), answer(429, Retry_After="600"), answer(503))


@dataclass(frozen=True)
class Tally:
    """Points: in the files, in MLflow, missing there, there beyond once. `met`: what became of the requests."""

    produced: int
    delivered: int
    lost: int
    duplicated: int
    met: dict[str, int]

    @property
    def whole(self) -> bool:
        """Whether every point is in MLflow once."""
        return not (self.lost or self.duplicated)


def outages(
    seed: int = 0, count: int = 20, points: int = 100_000, store: str = "sqlite", seconds: float = 600.0
) -> Tally:
    """Deliver a run of about `points` points through `count` outages, and count; at most `seconds` after its end.

    Raises:
        FileNotFoundError: `store` is "postgresql" and PostgreSQL is not installed.
    """
    rng = random.Random(seed)
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(TIMEOUT)
    with tempfile.TemporaryDirectory(prefix="gradwatch-chaos-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        uri = stack.enter_context(postgres()) if store == "postgresql" else f"sqlite:///{folder / 'mlflow.db'}"
        if store != "postgresql":
            connect(uri)  # makes its tables
        server = Server(uri, folder)
        stack.callback(server.kill)
        server.start()
        proxy = stack.enter_context(FaultyProxy(server.url))
        writing = _write(folder, proxy.url, -(-points // POINTS_A_STEP), seed, count)
        run = next(writing)
        courier = start_courier(run)
        assert courier is not None
        stack.callback(courier.send_signal, signal.SIGKILL)
        for number, (name, outage) in enumerate(_plan(rng, count, proxy, server), start=1):
            _wait(lambda: proxy.met["ok"] > 0)
            with outage():
                next(writing)
                time.sleep(rng.uniform(POLL_SECONDS, 2 * TIMEOUT))
            step = _step(run)
            _wait(lambda at=step: _step(run) > at)
            print(f"outage {number} of {count} ({name}): {step:,} to {_step(run):,} steps", file=sys.stderr)
        for _ in writing:
            pass
        _finish(run, courier, seconds)
        expected, found = wanted(run), in_the_store(uri, str(read_cursor(run).get("run_id")))
        places = Counter((key, step) for key, step, *_ in found.elements())
        return Tally(
            produced=sum(expected.values()),
            delivered=sum((expected & found).values()),
            lost=sum((expected - found).values()),
            duplicated=sum(places.values()) - len(places),
            met=dict(proxy.met.most_common()),
        )


def _plan(
    rng: random.Random, count: int, proxy: FaultyProxy, server: Server
) -> list[tuple[str, Callable[[], contextlib.AbstractContextManager[None]]]]:
    """What goes wrong, in order: the name of each outage, and what lasts as long as it."""

    @contextlib.contextmanager
    def failing(fault: Any) -> Iterator[None]:
        met = proxy.met[fault.__name__]
        proxy.always = fault
        yield
        _wait(lambda: proxy.met[fault.__name__] > met)
        proxy.always = ok

    @contextlib.contextmanager
    def refused() -> Iterator[None]:
        proxy.stop_listening()
        yield
        proxy.listen()

    @contextlib.contextmanager
    def killed() -> Iterator[None]:
        server.kill()
        yield
        server.start()

    @contextlib.contextmanager
    def locked() -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(server.store.removeprefix("sqlite:///"), timeout=60)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield
            other.rollback()

    kinds = [(fault.__name__, partial(failing, fault)) for fault in FAULTS]
    kinds += [("refused", refused), ("server killed", killed)]
    if server.store.startswith("sqlite"):
        kinds.append(("database locked", locked))
    return rng.sample(kinds * -(-count // len(kinds)), count)


def _wait(until: Callable[[], bool], seconds: float = 150.0) -> None:
    """Until it is so; pauses between the tries of a courier last a minute at most."""
    end = time.monotonic() + seconds
    while not until():
        if time.monotonic() > end:
            raise TimeoutError(f"the courier did nothing for {seconds:.0f} seconds")
        time.sleep(0.05)


def _step(run: Path) -> int:
    return int(read_cursor(run).get("next_step", 0))


def _write(parent: Path, uri: str, steps: int, seed: int, pieces: int) -> Iterator[Path]:
    """Write a run piece by piece, as a trainer does; yields its folder before each."""
    target = {"tracking_uri": uri, "experiment_name": "chaos", "run_id": None, "joined": False}
    here = {"pid": os.getpid(), "host": os.uname().nodename, "created": "2026-01-01T00:00:00+00:00"}
    history = make_history(steps=steps, seed=seed, window=1, mlflow=target, **here)
    folder = create_folder(parent, "chaos")
    writer = RunWriter(folder, history.run, flush_seconds=0.2)
    piece = -(-steps // (pieces + 1))
    for start in range(0, steps, piece):
        yield folder
        stop = min(start + piece, steps)
        for at in range(start, stop, BLOCK):
            writer.append(as_block(history.slice(at, min(at + BLOCK, stop))))
    writer.close()
    yield folder


def _finish(run: Path, courier: subprocess.Popen[bytes], seconds: float) -> None:
    if not wait_delivered(run, seconds, courier)["done"]:
        print((run / "courier.log").read_text()[-2000:], file=sys.stderr)
