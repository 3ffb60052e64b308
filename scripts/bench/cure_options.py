"""Follows the options that main findings name, as `gradwatch sweep --cures` does, and counts what they do.

    python scripts/bench/cure_options.py taught searched   # adds groups to docs/measurements/cure_options.json
    python scripts/bench/cures.py --page                   # docs/findings/cures.md shows the counts

Each sick training of these groups, with one seed: as it is, and where its main finding names options, with each of them
and by the expert. Nobody reads words here: what is only said in words is not counted. No name is kept. A group takes
some minutes.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from cures import OPTIONS, Row, Trained, did, score
from unseen import SICK, Sick, of_group


def tried(training: Sick) -> Row:
    """What was found of a training, and what each option did."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trained = Trained(Path(folder))
        judged = trained.judged(training, 0)
        main, options = judged.main, {}
        if main and main.tries:
            ill, expert = (trained.score(training, 0, done, done == "ill") for done in ("ill", "expert"))
            for text, last in trained.with_options(training, 0, main.tries).items():
                options[text] = did(*map(score, (expert["first"], ill["last"], last, expert["last"])), spread=0.0)
        return {"found": main and main.rule, "right": judged.right, "options": options}


def main() -> None:
    """The groups that are asked for; what is known of others stays."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("gradwatch").setLevel(logging.CRITICAL)
    for name in sys.argv[1:]:
        rows = []
        for training in of_group(SICK, name):
            rows.append(tried(training))
            print(name, rows[-1], file=sys.stderr, flush=True)
        known = json.loads(OPTIONS.read_text(encoding="utf-8")) if OPTIONS.exists() else {}
        OPTIONS.write_text(json.dumps(known | {name: rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
