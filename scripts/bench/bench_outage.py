"""What a hanging MLflow server costs a training step: its 99th percentile, against a healthy server.

Two trainings of the same model live in this process, each watched and with its courier: one delivers to an MLflow
server on loopback, the other to the same server through a proxy that takes every request and never answers. They take
turns of `--turn` steps, in an order that changes from turn to turn, so that both meet the same noise of the machine;
the couriers and the server are on it too. A step is forward, backward, `optimizer.step()` and `watch.log()`, by the
clock and in CPU time of the training's thread, which the noise of a shared machine does not enter. A round gives the
ratios of the percentiles, hanging over healthy; the figures are medians over the rounds, and the same over all steps
together. At the end `close()` of each is timed: the courier of a server that hangs is given its whole time.

    python scripts/bench/bench_outage.py [--rounds 15] [--steps 1000] [--turn 20] [-o bench_outage.json]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_common import MODELS, machine, small_batch
from bench_output import arguments, publish

import gradwatch
from gradwatch.storage.delivery_cursor import read_cursor

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from faulty_proxy import FaultyProxy, hang
from mlflow_server import mlflow_server

READY_SECONDS = 120.0
SIDES = ("healthy", "hanging")
Steps = list[tuple[float, float]]


class Training:
    """A watched loop whose courier delivers to `uri`."""

    def __init__(self, uri: str, model: str, parent: Path) -> None:
        torch.manual_seed(0)
        net = MODELS[model]()
        self.loss: Callable[[], torch.Tensor] = small_batch(net)
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
        os.environ["MLFLOW_TRACKING_URI"] = uri
        self.watch = gradwatch.watch(net, self.optimizer, clip="ClipByGlobalNorm(1.0)", dir=parent, verbose=False)

    def steps(self, count: int) -> list[tuple[float, float]]:
        """The seconds that each of `count` steps took, by the clock and of CPU time."""
        taken = []
        for _ in range(count):
            began, cpu = time.perf_counter(), time.thread_time()
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            self.optimizer.step()
            self.watch.log(loss=loss.detach())
            taken.append((time.perf_counter() - began, time.thread_time() - cpu))
        return taken

    def close(self) -> float:
        """How long `close()` takes."""
        began = time.perf_counter()
        self.watch.close()
        return time.perf_counter() - began


def ready(trainings: dict[str, Training], proxy: FaultyProxy) -> None:
    """Train until the one courier delivers and the other hangs: what they need to start is nobody's step."""
    end = time.monotonic() + READY_SECONDS
    while not (read_cursor(trainings["healthy"].watch.dir).get("next_step") and proxy.met["hang"]):
        if time.monotonic() > end:
            raise SystemExit("the couriers did not start")
        for training in trainings.values():
            training.steps(20)


def one_round(trainings: dict[str, Training], steps: int, turn: int) -> dict[str, Steps]:
    taken: dict[str, Steps] = {side: [] for side in SIDES}
    for number in range(-(-steps // turn)):
        for side in SIDES if number % 2 else SIDES[::-1]:
            taken[side] += trainings[side].steps(turn)
    return taken


def figures(rounds: list[dict[str, Steps]]) -> dict[str, Any]:
    """The percentiles of each side over all rounds, and their ratios: round by round, and over all steps together."""
    out: dict[str, Any] = {}
    for column, name in enumerate(("clock", "cpu")):
        each = [{side: 1000 * np.array(taken[side])[:, column] for side in SIDES} for taken in rounds]
        every = {side: np.concatenate([taken[side] for taken in each]) for side in SIDES}
        found: dict[str, Any] = {
            side: {
                **{f"p{q}_ms": round(float(np.percentile(values, q)), 3) for q in (50, 99)},
                "max_ms": round(float(values.max()), 3),
            }
            for side, values in every.items()
        }
        for q in (50, 99):
            ratios = [float(np.percentile(t["hanging"], q) / np.percentile(t["healthy"], q)) for t in each]
            found[f"p{q}_ratio"] = round(statistics.median(ratios), 3)
            found[f"p{q}_ratios"] = [round(ratio, 3) for ratio in sorted(ratios)]
            found[f"p{q}_ratio_of_all"] = round(
                float(np.percentile(every["hanging"], q) / np.percentile(every["healthy"], q)), 3
            )
        out[name] = found
    return out


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--steps", type=int, default=1000, help="of each training in a round")
    parser.add_argument("--turn", type=int, default=20, help="steps until it is the other one's turn")
    parser.add_argument("--model", choices=list(MODELS), default="mlp-6")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradwatch-outage-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        with mlflow_server(f"sqlite:///{folder / 'mlflow.db'}", folder) as url, FaultyProxy(url) as proxy:
            proxy.always = hang
            uris = dict(zip(SIDES, (url, proxy.url), strict=True))
            trainings = {side: Training(uris[side], asked.model, folder / side) for side in SIDES}
            ready(trainings, proxy)
            rounds = [one_round(trainings, asked.steps, asked.turn) for _ in range(asked.rounds)]
            report = {
                "what": "training steps with the MLflow server hanging and healthy; see the script for what is counted",
                "model": asked.model,
                "rounds": asked.rounds,
                "steps_a_round": asked.steps,
                **figures(rounds),
                "hung_requests": proxy.met["hang"],
                "close_seconds": {side: round(training.close(), 2) for side, training in trainings.items()},
                "environment": machine(),
            }
            for training in trainings.values():  # the couriers go on without their training; not without their server
                courier = training.watch._courier.process
                if courier is not None:
                    courier.kill()
                    courier.wait()
    publish(report, asked.output)


if __name__ == "__main__":
    main()
