"""Trains what the rules misjudge with the cures of `sweep --usual-cures`, and prints the table of docs/sweep.md.

    python scripts/bench/usual_cures.py           # and writes docs/measurements/usual_cures.json; half an hour
    python scripts/bench/usual_cures.py --page    # from the JSON, nothing is trained

Of every sick training whose main finding an expert would not accept, or that has none: as it is, with each usual cure
and with the expert's fix, one seed. What a cure did is judged as in docs/findings/cures.md. No name is kept: some of
these trainings only count.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cures import WORDS, Row, Trained, did, score
from judgement import ROOT
from unseen import SICK

from gradwatch.launcher.cures import usual_cures

RESULTS = ROOT / "docs" / "measurements" / "usual_cures.json"


def tried(trained: Trained) -> list[Row]:
    """A row for each training that is misjudged: what each usual cure did, by its options (a warm-up without its N)."""
    rows = []
    for done, training in enumerate(SICK.values(), 1):
        print(f"{done} of {len(SICK)}", file=sys.stderr)
        if trained.judged(training, 0).right:
            continue
        ill, expert = (trained.score(training, 0, name, name == "ill") for name in ("ill", "expert"))
        row: Row = {}
        for text, last in trained.with_options(training, 0, usual_cures(trained.untreated(training, 0))).items():
            came = did(*map(score, (expert["first"], ill["last"], last, expert["last"])), spread=0.0)
            row[text.rpartition(" ")[0] if text.startswith("--warmup") else text] = came
        rows.append(row)
    return rows


def table(rows: Sequence[Row]) -> str:
    """How many trainings each cure helped, and how many the best of them."""
    lines = [f"| of {len(rows)} trainings | {' | '.join(WORDS)} |", "|---|---|---|---|---|"]
    for text in rows[0]:
        counts = Counter(row[text] for row in rows)
        lines.append(f"| `{text}` | {' | '.join(str(counts[word]) for word in WORDS)} |")
    best = Counter(min(row.values(), key=WORDS.index) for row in rows)
    lines.append(f"| the best of these | {' | '.join(str(best[word]) for word in WORDS)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="train nothing: print the table from the JSON")
    parser.add_argument("--keep", type=Path, help="a folder for what is trained; what lies there is not trained again")
    args = parser.parse_args()
    if not args.page:
        warnings.simplefilter("ignore")
        logging.getLogger("gradwatch").setLevel(logging.CRITICAL)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            rows = tried(Trained(args.keep or Path(folder)))
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
