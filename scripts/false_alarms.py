"""Trains the healthy trainings of tests/scenarios and prints docs/findings/false_alarms.md: what the rules say of them.

    python scripts/false_alarms.py > docs/findings/false_alarms.md
    python scripts/false_alarms.py --half tuning    # the ones that thresholds may be chosen by

It takes a few minutes. The exit code is 1 where a healthy training is called sick by an error.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "scenarios")]

from healthy import HEALTHY, Healthy, held_out, tuning  # noqa: E402

from gradwatch.rules import RULES, Finding, diagnose  # noqa: E402

HEAD = """\
# False alarms

{count} trainings that go well: many kinds of nets, optimizers, learning rates within a factor of ten of good ones,
schedules, clips, dtypes. Whatever a rule finds in them with the severity of an error or a warning is a false alarm.
Thresholds were chosen by the even numbers; the odd ones are held out. `scripts/false_alarms.py` makes this page from
[tests/scenarios/healthy.py](../../tests/scenarios/healthy.py); {rules} rules ran on each training.

| half | trainings | with an error | with a warning | notes |
|---|---|---|---|---|
"""


def findings_of(training: Healthy) -> list[Finding]:
    """Everything that is found in it, the consequences too."""
    with tempfile.TemporaryDirectory() as folder:
        roots = diagnose(training.train(Path(folder)))
    return [f for root in roots for f in (root, *root.consequences)]


def row(name: str, found: list[list[Finding]]) -> str:
    """One line of the first table."""
    errors, warnings = (sum(any(f.severity == s for f in each) for each in found) for s in ("error", "warning"))
    notes = sum(f.severity == "note" for each in found for f in each)
    return f"| {name} | {len(found)} | {errors} | {warnings} | {notes} |"


def page(found: dict[Healthy, list[Finding]]) -> str:
    """The page as Markdown."""
    halves = {"tuning": [f for h, f in found.items() if h.number % 2 == 0]}
    halves["held out"] = [f for h, f in found.items() if h.number % 2]
    lines = [row(name, each) for name, each in halves.items() if each]
    counts = Counter((f.rule, f.severity) for each in found.values() for f in each)
    lines += ["", "| rule | severity | findings |", "|---|---|---|"]
    lines += [f"| [{rule}]({rule}.md) | {severity} | {n} |" for (rule, severity), n in sorted(counts.items())]
    lines += ["", "| number | training | findings |", "|---|---|---|"]
    for h, each in found.items():
        text = "; ".join(f"{f.severity}: {f.summary}" for f in each)
        lines.append(f"| {h.number} | {h.name} | {text or 'none'} |")
    return HEAD.format(count=len(found), rules=len(RULES)) + "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=["tuning", "held-out", "both"], default="both")
    half = parser.parse_args().half
    chosen = {"tuning": tuning(), "held-out": held_out(), "both": HEALTHY}[half]
    found = {}
    for training in chosen:
        found[training] = findings_of(training)
        print(f"{training.number} {training.name}", file=sys.stderr)
    print(page(found))
    return int(any(f.severity == "error" for each in found.values() for f in each))


if __name__ == "__main__":
    sys.exit(main())
