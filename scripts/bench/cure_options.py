"""Follows the options that main findings name, as `gradwatch sweep --cures` does, and counts what they do.

    python scripts/bench/cure_options.py           # docs/measurements/cure_options.json; an hour on two cores
    python scripts/bench/cures.py --page           # docs/findings/cures.md shows the counts

Every sick training, with one seed: as it is, and where its main finding names options, with each of them and by the
expert. Nobody reads words here: what is only said in words is not counted. No name is kept: some of these trainings
only count.
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from cures import OPTIONS, Row, Trained, did, last_score, score
from trainings import Treatment
from unseen import SICK, group

from gradwatch.launcher.cures import applied
from gradwatch.policies.intervention import Intervention


def tried(name: str) -> Row:
    """What was found of a training, and what each option did."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("gradwatch").setLevel(logging.CRITICAL)
    training = SICK[name]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trained = Trained(Path(folder))
        judged = trained.judged(training, 0)
        main, options = judged.main, {}
        if main and main.tries:
            ill, expert = (trained.score(training, 0, done, done == "ill") for done in ("ill", "expert"))
            unchanged = Intervention.of(trained.untreated(training, 0).run)
            for text in main.tries:
                asked = Treatment(applied(unchanged, text).arguments)
                last = last_score(trained.score(training, 0, text, treatment=asked), ill)
                options[text] = did(*map(score, (expert["first"], ill["last"], last, expert["last"])), spread=0.0)
        return {"group": group(training), "found": main and main.rule, "right": judged.right, "options": options}


def main() -> None:
    """All of them, on two cores."""
    rows: list[Row] = []
    try:
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            for row in pool.map(tried, SICK):
                rows.append(row)
                print(f"{len(rows)} of {len(SICK)}: {row}", flush=True)
    finally:  # what was trained for an hour is kept
        OPTIONS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
