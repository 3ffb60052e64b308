"""Kills trainings and takes MLflow away at random moments, and counts: points produced, recorded, lost, duplicated.

`--kills N`: a small model trains with the default settings, in a process of its own that is killed with -9 after a
random time of up to `--span` seconds, and the next process resumes it from its last checkpoint; after `--lives`
processes a new run begins. Checkpoints are written every quarter of a second in one run and every three seconds in the
next; a checkpoint has what is recorded so far on disk. Each process notes every step that it took, with the time, in a
file of its own, line by line, at once: that is what was *produced*. A step that is taken again after a checkpoint is
produced twice, by two attempts. Each point is a row of the steps table and has to be there for its attempt.

- *recorded*: rows of the run's files. *unnoted*: rows of a step that was killed before it could note itself.
- *lost*: produced and not recorded. *duplicated*: rows of one step and one attempt beyond the first.
- *worst loss*: how long before the kill the first lost step of that process had been taken, in seconds.
- *gaps*: steps of the history that no attempt recorded, between its first and its last. *unreadable*: files that could
  not be read, after any of the kills. *not named*: kills after which the run was not said to have ended without close.

The seed settles the moments of the kills; what a machine gets done in that time is its own.

`--outages N`: what chaos_outages.py beside it does: a run is delivered to a real MLflow server through N outages, and
the points that arrived are counted.

`--interrupts N`: what chaos_interrupts.py beside it does: N times SIGINT into trainings, at random moments.

    python scripts/bench/chaos.py [--kills 100] [--outages 20] [--interrupts 1000] [--seed 0] [-o FILE]

Exit code 1 if more than that was lost, or anything is there twice.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

CHECKPOINT_SECONDS = (0.25, 3.0)  # by turns
BOUND = 5.0  # flush_every's default


# ---------------------------------------------------------------------------------------------------- one life of a run


def train(folder: str, life: int, every: float) -> None:
    """Train until killed, with a checkpoint `every` so many seconds; resume from the last one."""
    import torch
    from torch import nn

    import gradwatch

    home, checkpoint = Path(folder), Path(folder) / "checkpoint.pt"
    torch.set_num_threads(1)
    torch.manual_seed(life)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch = gradwatch.watch(model, optimizer, clip="ClipByGlobalNorm(1.0)", log=None, delivery="none",
                            dir=home / "runs", verbose=False)  # fmt: skip
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        watch.load_state_dict(saved["watch"])
        step = saved["watch"]["steps"]
    attempt, saved_at = watch.state_dict()["attempt"], time.monotonic()
    with open(home / f"life-{life}.txt", "w", buffering=1) as notes:
        notes.write(f"{watch.dir.name} {attempt}\n")
        while True:
            x = torch.randn(16, 32)
            loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            notes.write(f"{step} {time.time()}\n")
            watch.log(loss=loss)
            step += 1
            if time.monotonic() - saved_at > every:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "watch": watch.state_dict()}
                torch.save(state, checkpoint.with_suffix(".tmp"))
                checkpoint.with_suffix(".tmp").replace(checkpoint)
                saved_at = time.monotonic()
            time.sleep(0.002)


def live(context: Any, home: Path, life: int, every: float, seconds: float) -> float:
    """One process that lives `seconds`, its start included; returns when it was killed."""
    process = context.Process(target=train, args=(str(home), life, every))
    process.start()
    process.join(seconds)
    if process.exitcode is not None:
        raise SystemExit(f"the training ended by itself, with exit code {process.exitcode}")
    killed = time.time()
    process.kill()
    process.join()
    return killed


# ----------------------------------------------------------------------------------------------------- what was left


def rows(folder: Path) -> Counter[tuple[int, int]]:
    """How many rows the steps table holds of each (attempt, step)."""
    import pandas as pd

    from gradwatch.storage.folder import list_parts

    found: Counter[tuple[int, int]] = Counter()
    for part in list_parts(folder / "steps"):
        table = pd.read_parquet(part.path, columns=["attempt", "step"])
        found.update(zip(table.attempt.tolist(), table.step.tolist(), strict=True))
    return found


def look(home: Path, life: int, killed: float) -> dict[str, Any]:
    """What the process `life` produced, and what of it is in the files now."""
    from gradwatch import open_history
    from gradwatch.report import build_report
    from gradwatch.report.model import CRASHED
    from gradwatch.storage.run_reader import missing_steps

    notes = home / f"life-{life}.txt"
    lines = notes.read_text().split("\n")[:-1] if notes.exists() else []
    facts = {"produced": 0, "lost": 0, "worst_loss_seconds": 0.0, "unreadable": 0, "gaps": 0, "not_named": 0,
             "before_the_first_step": int(len(lines) < 2)}  # fmt: skip
    if len(lines) < 2:
        return facts
    folder, attempt = home / "runs" / lines[0].split()[0], int(lines[0].split()[1])
    taken = {int(step): float(at) for step, at in map(str.split, lines[1:])}
    there = rows(folder)
    lost = [step for step in taken if not there[attempt, step]]
    facts.update(produced=len(taken), lost=len(lost))
    if lost:
        facts["worst_loss_seconds"] = killed - taken[min(lost)]
    if there:
        history = open_history(folder)
        gaps = missing_steps(history.step)
        facts.update(gaps=len(gaps), unreadable=len(history.problems) - len(gaps))
        facts["not_named"] = int(CRASHED not in build_report([history]).runs[0].state)
    return facts


def kills(count: int, seed: int, span: float, lives: int, parent: Path) -> dict[str, Any]:
    """`count` kills; what was produced, recorded, lost and duplicated in all."""
    chance = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "gradwatch.recording.attach"])
    total: Counter[str] = Counter()
    worst, recorded, duplicated, merged, started = 0.0, 0, 0, 0, time.monotonic()
    for first in range(0, count, lives):
        home = parent / f"run-{first}"
        (home / "runs").mkdir(parents=True)
        every = CHECKPOINT_SECONDS[first // lives % 2]
        for life in range(first, min(first + lives, count)):
            facts = look(home, life, live(context, home, life, every, chance.uniform(0, span)))
            worst = max(worst, facts.pop("worst_loss_seconds"))
            total.update(facts)
            print(f"{life + 1}: {facts['produced']} produced, {facts['lost']} lost", flush=True)
        for folder in (home / "runs").iterdir():
            there = rows(folder)
            recorded, duplicated = recorded + sum(there.values()), duplicated + sum(there.values()) - len(there)
            merged += sum("-" in path.stem[5:] for path in (folder / "steps").glob("part-*.parquet"))
        shutil.rmtree(home)
    return {
        "kills": count, "seed": seed, "span_seconds": span, "lives_of_a_run": lives,
        "before_the_first_step": total["before_the_first_step"], "produced": total["produced"], "recorded": recorded,
        "unnoted": recorded - duplicated - (total["produced"] - total["lost"]), "lost": total["lost"],
        "lost_a_kill": round(total["lost"] / count, 1), "duplicated": duplicated,
        "worst_loss_seconds": round(worst, 2), "bound_seconds": BOUND, "gaps": total["gaps"],
        "unreadable": total["unreadable"], "not_named": total["not_named"], "merged_parts": merged,
        "minutes": round((time.monotonic() - started) / 60, 1),
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- the whole

NAMES = {
    "kills": "kills", "before_the_first_step": "of these, before the first step", "produced": "points produced",
    "recorded": "points recorded", "unnoted": "of these, taken but killed before they were noted",
    "lost": "points lost", "worst_loss_seconds": "worst loss of a kill, seconds", "duplicated": "points duplicated",
    "gaps": "gaps in a history", "unreadable": "unreadable files", "not_named": "crashes not named as such",
}  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """The figures as docs/reliability.md shows them."""
    lines = [f"| {name} | {found[key]:,} |\n" for key, name in NAMES.items()]
    return "| | |\n|---|---|\n" + "".join(lines)


INTERRUPTS = {
    "interrupts": "interrupts", "inside": "of these, inside gradwatch's own lines", "trainings": "trainings",
    "taken": "steps taken", "recorded": "steps recorded", "lost": "steps lost",
    "cut_short": "rows of steps that were cut short", "errors": "exceptions other than KeyboardInterrupt",
    "swallowed": "interrupts swallowed", "gradients_off": "gradients left off",
    "left": "trainings that left something behind",
}  # fmt: skip


def interrupt_table(found: dict[str, Any]) -> str:
    """The figures of the interrupts as docs/reliability.md shows them."""
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {found[key]:,} |\n" for key, name in INTERRUPTS.items())


def outage_table(found: dict[str, Any]) -> str:
    """The figures of the outages as docs/reliability.md shows them."""
    lines = [f"| points {name} | {found[name]:,} |\n" for name in ("produced", "delivered", "lost", "duplicated")]
    return "| | |\n|---|---|\n" + "".join(lines)


def main() -> None:
    from bench_output import arguments, cpu_name
    from chaos_outages import outages

    from gradwatch import __version__

    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=100, help="0 for none")
    parser.add_argument("--outages", type=int, default=20, help="0 for none")
    parser.add_argument("--interrupts", type=int, default=0)
    parser.add_argument("--points", type=int, default=100_000, help="of the run that is delivered through the outages")
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite", help="the MLflow server's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--span", type=float, default=6.0, help="the longest life of a process, in seconds")
    parser.add_argument("--lives", type=int, default=10, help="processes of one run")
    parser.add_argument("--dir", help="where to write; removed afterwards")
    args = parser.parse_args()
    report = {"machine": cpu_name(), "load": round(os.getloadavg()[0], 1), "gradwatch": __version__}
    good = True
    if args.kills:
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            found = kills(args.kills, args.seed, args.span, args.lives, Path(folder))
        report["kills"] = found
        print(table(found))
        good = found["worst_loss_seconds"] <= BOUND and not any(found[k] for k in ("duplicated", "gaps", "unreadable"))
    if args.outages:
        tally = outages(args.seed, args.outages, args.points, args.store)
        report["outages"] = {"outages": args.outages, **asdict(tally)}
        print(outage_table(report["outages"]))
        good = good and tally.whole
    if args.interrupts:
        from chaos_interrupts import interrupts

        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            found = report["interrupts"] = interrupts(args.interrupts, args.seed, Path(folder))
        print(interrupt_table(found))
        good = good and not any(found[key] for key in ("lost", "errors", "gradients_off", "left"))
    if args.output:
        args.output.write_text(json.dumps(report, indent=1) + "\n")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
