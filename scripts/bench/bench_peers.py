"""gradwatch beside other ways to record every layer's norms: same model, same steps, recorded at every step.

Each way trains in a process of its own, and only one of them runs at a time: between its rounds a way and all its
helpers (a courier, wandb's service) are stopped. A round is a number of real training steps of a small batch; rounds go
over the ways in a new order each time, and the figures are medians over rounds. What the ways do is in `peers.py`.

    python scripts/bench/bench_peers.py [--rounds 9] [--models mlp-6] [--ways '.item() loop'] [-o bench_peers.json]
    python scripts/bench/bench_peers.py --minutes 4 --seconds 0.5                    # as many rounds as there is time
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import random
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from bench_common import MODELS, OPTIMIZERS, machine, named, small_batch
from bench_output import arguments, publish, write
from peers import BARE, CLIP, OURS, WAYS, missing, versions

STEPS = {"transformer-74": 20, "linear-1000": 20, "mlp-6": 500}  # of a round: long enough for blocks to be written
WARM = 5  # steps before the first round
END_SECONDS = 10.0  # that a way and its helpers have to end
WHAT = {
    "step_ms": "a whole step: forward, backward, clip, recording, optimizer step",
    "phase_ms": "the part of it after backward; absent where a way works inside backward",
    "cpu_ms": "processor time of a step, of the training process and all its helpers together",
    "to_bare": "whole step divided by the uninstrumented one of the same round",
    "added_ms": "the whole step less that of torch's clip_grad_norm_ in the same round, so what recording adds to a "
    "loop that clips; of a way that does not clip, and of clip_grad_norm_, less the uninstrumented one",
    "added_phase_ms": "the same of the part after backward",
    "times_gradwatch": "added_ms divided by that of `gradwatch, files`; absent where that one is not above 0",
    "times_gradwatch_phase": "the same of added_phase_ms",
    "times_gradwatch_over_bare": "what clipping and recording cost together: the step less the uninstrumented one, "
    "divided by that of `gradwatch, files`; by the part after backward where there is one",
    "times_gradwatch_cpu": "added processor time divided by that of `gradwatch, files`, against the same bases",
}


class Round(NamedTuple):
    """One round of one way, in seconds a step."""

    whole: float
    phase: float
    cpu: float


def train(pipe: Connection, name: str, threads: int) -> None:
    """A way's process. It is sent a (model, optimizer), rounds of (steps, seconds at most), then None; and so on."""
    torch.set_num_threads(threads)
    try:
        pipe.send(None)
        for model, optimizer in iter(pipe.recv, None):
            _train_case(pipe, name, model, optimizer)
            pipe.send(None)
    except (Exception, SystemExit):
        pipe.send(traceback.format_exc())


def _train_case(pipe: Connection, name: str, model: str, optimizer: str) -> None:
    torch.manual_seed(0)
    net = MODELS[model]()
    loss = small_batch(net)
    stepper = OPTIMIZERS[optimizer](net.parameters())
    numbers = itertools.count()

    def steps(count: int, most: float) -> tuple[float, float, int]:
        began, phase = time.perf_counter(), 0.0
        for done in range(1, count + 1):  # noqa: B007
            stepper.zero_grad()
            loss().backward()
            backward = time.perf_counter()
            finish(next(numbers))
            now = time.perf_counter()
            phase += now - backward
            if now - began > most:
                break
        return now - began, phase, done

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        WAYS[name].open(net, stepper, Path(folder)) as finish,
    ):
        steps(WARM, 60.0)
        pipe.send(None)
        for task in iter(pipe.recv, None):
            pipe.send(steps(*task))


class Trainer:
    """A way's process as seen from the bench: it and its helpers run only while it is asked something."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=train, args=(theirs, name, torch.get_num_threads()), daemon=True)
        self._met: set[psutil.Process] = set()  # it and every helper that was seen: one may outlive who started it
        self.process.start()
        theirs.close()
        stack.callback(self.end)
        self._answer()

    def ask(self, question: Any) -> Any:
        """What it answers; until then it runs."""
        each(self._family(), psutil.Process.resume)
        self.pipe.send(question)
        answer = self._answer()
        each(self._family(), psutil.Process.suspend)
        return answer

    def round(self, steps: int, most: float) -> Round:
        before = self._cpu()
        whole, phase, done = self.ask((steps, most))
        return Round(whole / done, phase / done, (self._cpu() - before) / done)

    def end(self) -> None:
        """Also after an error, in whatever it is doing: nothing must stay behind, least of all stopped."""
        family = self._family()
        each(family, psutil.Process.terminate)
        each(family, psutil.Process.resume)  # a process that is stopped hears of nothing
        _, deaf = psutil.wait_procs(family, END_SECONDS)
        each(deaf, psutil.Process.kill)
        self.process.join()

    def _answer(self) -> Any:
        try:
            answer = self.pipe.recv()
        except EOFError:
            answer = "its process died"
        if isinstance(answer, str):
            raise SystemExit(f"{self.name}: {answer}")
        return answer

    def _family(self) -> list[psutil.Process]:
        """It and its helpers, as far as they live."""
        with suppress(psutil.NoSuchProcess):
            self._met.add(psutil.Process(self.process.pid))
        for p in [*self._met]:
            with suppress(psutil.NoSuchProcess):
                self._met.update(p.children(recursive=True))
        self._met = {p for p in self._met if p.is_running()}
        return [*self._met]

    def _cpu(self) -> float:
        """Seconds that they have worked so far."""
        return sum(sum(p.cpu_times()[:2]) for p in self._family())


def each(processes: Iterable[psutil.Process], do: Callable[[psutil.Process], Any]) -> None:
    """Do it to each of these processes; one may have ended meanwhile."""
    for p in processes:
        with suppress(psutil.NoSuchProcess):
            do(p)


def measure(
    trainers: Sequence[Trainer], model: str, optimizer: str, rounds: int, steps: int, most: float, until: float
) -> dict[str, list[Round]]:
    """Every round of every way, one case: {way: [Round]}. No second one begins after `until`."""
    for trainer in trainers:
        trainer.ask((model, optimizer))
    found: dict[str, list[Round]] = {trainer.name: [] for trainer in trainers}
    for number in range(rounds + 1):  # one to warm up
        if number > 1 and time.monotonic() > until:
            break
        for trainer in random.Random(number).sample(trainers, len(trainers)):
            result = trainer.round(steps, most)
            if number:
                found[trainer.name].append(result)
    for trainer in trainers:
        trainer.ask(None)
    return found


def figures(found: dict[str, list[Round]]) -> dict[str, dict[str, float]]:
    """Medians over rounds, as `WHAT` defines them."""
    return {name: _figures(name, found) for name in found}


def _figures(name: str, found: dict[str, list[Round]]) -> dict[str, float]:
    phases = not WAYS[name].within
    out = {
        "step_ms": _median(r.whole for r in found[name]) * 1e3,
        "phase_ms": _median(r.phase for r in found[name]) * 1e3 if phases else None,
        "cpu_ms": _median(r.cpu for r in found[name]) * 1e3,
        "to_bare": _median(r.whole / b.whole for r, b in zip(found[name], found[BARE], strict=True)),
    }
    if name == BARE:
        return _present(out)
    added, ours = _added(name, found, _base(name)), _added(OURS, found, CLIP)
    over_bare, ours_over_bare = _added(name, found, BARE), _added(OURS, found, BARE)
    out["added_ms"] = added.whole * 1e3
    out["added_phase_ms"] = added.phase * 1e3 if phases else None
    if WAYS[name].clips and name not in (CLIP, OURS):
        out["times_gradwatch"] = _ratio(added.whole, ours.whole)
        out["times_gradwatch_phase"] = _ratio(added.phase, ours.phase) if phases else None
        out["times_gradwatch_over_bare"] = (
            _ratio(over_bare.phase, ours_over_bare.phase) if phases else _ratio(over_bare.whole, ours_over_bare.whole)
        )
        out["times_gradwatch_cpu"] = _ratio(added.cpu, ours.cpu)
    return _present(out)


def _base(name: str) -> str:
    """What a way's added time is added to: a loop that clips where it clips itself."""
    return CLIP if WAYS[name].clips and name != CLIP else BARE


def _added(name: str, found: dict[str, list[Round]], base: str) -> Round:
    pairs = list(zip(found[name], found[base], strict=True))
    return Round(*(_median(r[i] - b[i] for r, b in pairs) for i in range(len(Round._fields))))


def _ratio(added: float, ours: float) -> float | None:
    return added / ours if ours > 0 else None


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _present(values: dict[str, float | None]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items() if value is not None}


def main() -> None:
    parser = arguments(__doc__, rounds=9)
    parser.add_argument("--steps", type=int, help=f"of a round; by default {STEPS}")
    parser.add_argument("--seconds", type=float, default=2.0, help="after which a round of a slow way ends early")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="in all, after which no round but a first begins"
    )
    parser.add_argument("--models", default="", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--only", default="", help="cases whose name holds this text, such as 'fused'")
    parser.add_argument("--ways", default="", help=f"of {', '.join(WAYS)}; the bases are always there")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process is left behind stopped
    absent, about = missing(), machine()
    ways = named("--ways", args.ways, WAYS)
    ways = [name for name in WAYS if (name in ways or name in (BARE, CLIP, OURS)) and name not in absent]
    named_cases = {f"{m}, {o}": (m, o) for m in named("--models", args.models, MODELS) for o in OPTIMIZERS}
    cases = {case: both for case, both in named_cases.items() if args.only in case}
    results, report, rounds, end = {}, {}, args.rounds, time.monotonic() + args.minutes * 60
    with ExitStack() as stack:
        trainers = [Trainer(name, stack) for name in ways]
        for number, (case, (model, optimizer)) in enumerate(cases.items()):
            began, steps = time.monotonic(), args.steps or STEPS[model]
            until = began + (end - began) / (len(cases) - number)
            found = measure(trainers, model, optimizer, args.rounds, steps, args.seconds, until)
            results[case], rounds = figures(found), min(rounds, len(found[BARE]))
            print(f"{case}: done, {len(found[BARE])} rounds", file=sys.stderr)
            report = {
                "what": "training steps of a small batch, recorded at every step; medians over interleaved rounds",
                **about,
                "versions": versions(),
                "rounds": rounds,  # of the case that had the fewest
                "steps": args.steps or STEPS,
                "seconds": args.seconds,
                "figures": WHAT,
                "ways": {name: WAYS[name].records for name in ways},
                "absent": absent,
                "results": results,
            }
            write(report, args.output)  # after each case: an end before the last one costs no other
    publish(report, args.output)


if __name__ == "__main__":
    main()
