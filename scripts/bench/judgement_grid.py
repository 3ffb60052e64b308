"""Trains every ordinary disease on every ordinary task of tests/scenarios/grid.py, and prints what the rules say of it.

    python scripts/bench/judgement_grid.py --keep GRID              # an hour or two; what lies there is read again
    python scripts/bench/judgement_grid.py --keep GRID --only vae   # those with this in their name
    python scripts/bench/judgement_grid.py --keep GRID --part 1/2   # every second one, for two processes side by side

A training is sick if its score is clearly worse than that of the untouched task; a variant is healthy if it won six
tenths of what that won. Rules are changed with it, so its totals say nothing of other trainings: judgement.md does. The
exit code is 0 whatever was found.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "scenarios")]

import grid_variants  # noqa: E402, F401
from grid import DISEASES, VARIANTS, DoesNotFit, Recipe  # noqa: E402
from grid_tasks import TASKS, Task  # noqa: E402
from unseen import Outcome, clearly_worse  # noqa: E402

import gradwatch  # noqa: E402
from gradwatch.analysis.rules import diagnose  # noqa: E402

UNTOUCHED = "untouched"


def trained(task: Task, change: str, keep: Path) -> Outcome | None:
    """The training of a task with a change, from `keep` where it lies there; None where the change does not fit."""
    place = keep / f"{change}@{task.name}"
    scores = place / "scores.json"
    if not scores.exists():
        recipe = Recipe.of(task)
        try:
            if change in DISEASES:
                DISEASES[change][0](recipe)
            elif change in VARIANTS:
                VARIANTS[change](recipe)
            outcome = recipe.train(place)
        except (DoesNotFit, ValueError, gradwatch.WatchError):  # a distribution refuses NaN, a Watch the wrong net
            return None
        scores.write_text(json.dumps([outcome.first, outcome.last]), encoding="utf-8")
    folder = next(path for path in place.iterdir() if path.is_dir())
    return Outcome(gradwatch.open_history(folder), *json.loads(scores.read_text(encoding="utf-8")))


def said(change: str, outcome: Outcome, untouched: Outcome) -> tuple[str, list[str]]:
    """How right the rules are of a training, and the roots that they name."""
    roots = [finding.rule for finding in diagnose(outcome.history) if finding.severity != "note"]
    if change in DISEASES:
        if not clearly_worse(outcome, untouched):
            return "unharmed", roots
        expected = DISEASES[change][1]
        right = "right" if roots and roots[0] in expected else "named" if expected & {*roots} else "wrong"
        return right if roots else "silent", roots
    if outcome.first - outcome.last < 0.6 * abs(untouched.first - untouched.last):
        return "learns less", roots
    return "false alarm" if roots else "healthy", roots


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, help="a folder for what is trained")
    parser.add_argument("--only", default="", help="those with this in their name")
    parser.add_argument("--part", default="1/1", help="which of how many parts")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    warnings.simplefilter("ignore")
    logging.getLogger("gradwatch").setLevel(logging.CRITICAL)
    counts: Counter[str] = Counter()
    every = [(task, change) for task in TASKS for change in (UNTOUCHED, *DISEASES, *VARIANTS)]
    for task, change in every[part - 1 :: parts]:
        if args.only not in f"{change}@{task.name}":
            continue
        outcome, untouched = (trained(task, name, args.keep) for name in (change, UNTOUCHED))
        if outcome is None or untouched is None:
            continue
        how, roots = said(change, outcome, untouched)
        counts[how] += 1
        if how not in ("right", "healthy", "unharmed", "learns less"):
            print(f"{how:12s}{change}@{task.name}: {', '.join(roots) or 'nothing'}")
    print(", ".join(f"{how} {count}" for how, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
