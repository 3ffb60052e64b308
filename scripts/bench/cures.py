"""Follows the advice of each sick training's main finding, trains it again, and prints docs/findings/cures.md.

    python scripts/bench/cures.py > docs/findings/cures.md             # and writes docs/measurements/cures.json
    python scripts/bench/cures.py --only lora --keep /tmp/trained      # the rows of some; what is trained is kept
    python scripts/bench/cures.py --only lora --update > docs/findings/cures.md  # these rows anew, others stay
    python scripts/bench/cures.py --page > docs/findings/cures.md      # from the JSON, nothing is trained
    python scripts/bench/cures.py --held-out                           # the totals of the other half: once, at the end

Each is trained as it is, with each cure of its main finding, and by the expert: with three seeds, those of the groups
that were read once with one. It takes an hour. The exit code is 0 whatever was found, and 2 where an advice is only
words that nobody has read yet.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from judgement import ROOT, Judged
from nets import SEED
from readings import READINGS, Reading
from readings_afresh import READ_AFRESH
from readings_last import READ_LAST
from readings_since import READ_SINCE
from torch.optim import Optimizer
from trainings import Treatment, policies_in, treated
from twins import TOLD_BY_LOSSES
from unseen import SICK, Sick, group, of_group

from gradwatch.analysis.rules import Finding, diagnose
from gradwatch.errors import WatchError
from gradwatch.history import History
from gradwatch.launcher.cures import applied
from gradwatch.open_run import open_history
from gradwatch.policies.intervention import Intervention

RESULTS = ROOT / "docs" / "measurements" / "cures.json"
OPTIONS = ROOT / "docs" / "measurements" / "cure_options.json"  # by cure_options.py
FOLLOWED = ROOT / "docs" / "measurements" / "advice_followed.json"  # by hand, with one seed; scores by its trainings
FIRST = ROOT / "docs" / "measurements" / "cures_first.json"  # the same of `LATEST`, before a word of advice was changed
SEEDS = 3
LATEST = ("sent", "heard")
TODAY = (*LATEST, "afresh")  # those whose totals the page shows one by one
READ_ONCE = (
    "blind",
    "fresh",
    "novel",
    "reported",
    "asked",
    *TODAY,
)  # groups that were counted once, and looked at since
READ = READINGS | READ_SINCE | READ_LAST | READ_AFRESH
WRITTEN_FOR = {training.name: training for training in TOLD_BY_LOSSES}
HEAD = """\
# Cures that were tried

Each sick training of the [judgement](judgement.md)'s half that may be looked at; below them those of its groups that
were read once and looked at since (not two of them; with one seed); and those that the rules were written for (their
pictures are on the rules' pages). Each three times over with the same three seeds: as it is, with the advice of its
main finding followed to the letter, and with an expert's fix. All rows are of the rules as they stood when this page
was made. The main finding is the first root that is an error or a warning; seeds of which nothing is said stay as they
are. Where a finding has options that can be tried on an unchanged script (as `gradwatch sweep --cures` does), the first
of them is the advice; *best* is the best of all of them. Where it has only words, or words that go beyond the options,
the advice is a person's reading of them (tests/scenarios/readings.py, readings_since.py, readings_last.py and
readings_afresh.py, written before it was tried). Some words lead a reader to the expert's own fix: such an advice helps
by definition if it is read rightly, so the others are counted apart, and tell more: a reader who does not know the
fault may stop at another of the places that the words name. The expert's fix was written before a rule saw the
training. Rules and words of the cures were changed with all of these trainings in view: of a new one expect less.

The score is the training's own, lower is better, the median over the seeds; ∞ is one that diverged. The expert's gain
is measured from the untreated score, or from where the training began if that is lower. An advice **helps** if it has
half of that gain at least, **a little** from a tenth on. It makes a training **worse** if its score is above the
untreated one by more than a tenth of that gain and by more than the seeds differ (their median absolute deviation).
`scripts/bench/cures.py` makes this page from docs/measurements/cures.json.

"""
BEFORE = """\
`sent` and `heard` were tried before a word of advice was changed for them, and stand so in
docs/measurements/cures_first.json: that is what a new training can expect. The rules had been changed after both were
read, the advice had not been tried. Of one training that diverges (flow-by-sgd-at-the-rate-of-adam) the reading was
changed since as well: a mean alone does not bring its loss near 1, and the words go on to a lower rate and a clip. The
groups `told` and `met` between them were not tried, nor those from `daily` to `anew`. The latest, `afresh`, was tried
when rules had been changed for it, and the words of three findings as well (a scale that nothing lowers, a warm-up that
begins anew, rates of groups)."""
OF_OPTIONS = """\
The sick trainings of {groups}, with one seed, by `scripts/bench/cure_options.py`: {some} of {all} have a main finding
that names options which can be tried on an unchanged script, and this is what the first of them did. Nobody read words
for it."""
OF_STRANGERS = """\
The advice on each sick training of {groups}, as the rules gave it when that group was
read once, was followed by one of three people for each group who had written neither: to the letter, one try each, and
nothing where nothing was said. They had the code before them to change it, and with it what its author thinks is wrong;
that they were asked to leave aside. After `usual` the words of three cures were changed, for the three that helped a
little; after `routine` those of `shapes-broadcast`, which turned the wrong one of two shapes and was followed by its
sense; after `workaday` those for a frozen body, for masks, for values that grow and for a divergence that weighs much
(docs/measurements/advice_followed.json)."""
WORDS = ("helps", "a little", "nothing", "worse")
Row = dict[str, Any]
Results = dict[str, list[Row]]  # by training, a row for each seed


# ----------------------------------------------------------------------------------------------------------- trainings


class Trained:
    """Trainings in a folder, by name, seed and what was done: none is trained twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, training: Sick, seed: int, done: str) -> Path:
        return self.folder / training.name / f"{seed}-{quote(done, safe='')[:150]}"

    def score(self, training: Sick, seed: int, done: str, ill: bool = True, treatment: Treatment | None = None) -> Row:
        """Its first and last score; None for one that is not finite. `refused` where watch() does not take it."""
        place = self.place(training, seed, done)
        outcome = place / "outcome.json"
        if not outcome.exists():
            SEED[0] = seed
            place.mkdir(parents=True, exist_ok=True)
            try:
                with treated(treatment or Treatment()):
                    found = training.train(place, ill)
                row: Row = {"first": _number(found.first), "last": _number(found.last)}
            except WatchError as error:
                row = {"refused": str(error)}
            except Exception as error:  # what an advice brings to an end is lost
                if treatment is None:
                    raise
                row = {"first": None, "last": None, "raised": str(error)}
            outcome.write_text(json.dumps(row))
        return dict(json.loads(outcome.read_text()))

    def untreated(self, training: Sick, seed: int) -> History:
        """What was recorded of it as it is."""
        self.score(training, seed, "ill")
        return open_history(next(self.place(training, seed, "ill").glob("*/")))

    def with_options(self, training: Sick, seed: int, options: Sequence[str]) -> dict[str, float | None]:
        """Its last score with each of these options of `gradwatch run`."""
        untreated, unchanged = self.score(training, seed, "ill"), Intervention.of(self.untreated(training, seed).run)
        asked = {text: Treatment(applied(unchanged, text).arguments) for text in options}
        return {
            text: last_score(self.score(training, seed, text, treatment=treatment), untreated)
            for text, treatment in asked.items()
        }

    def judged(self, training: Sick, seed: int) -> Judged:
        """The untreated run's roots."""
        return Judged(training, diagnose(self.untreated(training, seed)))


def _number(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def seeds(training: Sick) -> range:
    """Those that it is trained with."""
    return range(1 if group(training) in READ_ONCE else SEEDS)


def unread(training: Sick, trained: Trained) -> list[str]:
    """The advice on it that is only words and has no reading yet."""
    missing = {}
    for seed in seeds(training):
        judged = trained.judged(training, seed)
        main = judged.main
        if main and not main.tries and (training.name, main.rule) not in READ:
            missing[main.rule] = f"{training.name}, {main.rule}, seed {seed}: {main.cause} {main.cure}"
    return list(missing.values())


def tried(training: Sick, trained: Trained) -> list[Row]:
    """A row for each seed: the main finding, its advice, and the scores."""
    rows = []
    for seed in seeds(training):
        judged = trained.judged(training, seed)
        untreated, expert = (trained.score(training, seed, done, done == "ill") for done in ("ill", "expert"))
        row: Row = {"found": None, "right": judged.right, "advice": None, "tries": {}}
        row |= {"first": expert["first"], "untreated": untreated["last"], "expert": expert["last"]}
        main = judged.main
        if main:
            row["found"] = main.rule
            row["tries"] = trained.with_options(training, seed, main.tries)
            read = READ.get((training.name, main.rule))
            if read and (read.beyond or not main.tries):
                row |= {"advice": read.said, "as_expert": read.as_expert}
                row["treated"] = last_score(_read(training, trained, seed, main, read), untreated)
            else:
                row["advice"] = main.tries[0]
                row["treated"] = row["tries"][main.tries[0]]
        rows.append({"treated": untreated["last"], **row})
    return rows


def _read(training: Sick, trained: Trained, seed: int, main: Finding, read: Reading) -> Row:
    if read.as_expert:
        return trained.score(training, seed, "expert", ill=False)
    if read.instead:
        instead = read.instead
        return trained.score(replace(training, train=lambda folder, _: instead(folder)), seed, f"words-{main.rule}")
    rate = re.search(r"with lr=([^ ]+)", main.cure)
    if read.from_cure:
        asked = Treatment({"clip": policies_in(main)[0]}, rate and at_rate(float(rate[1])), replace_clips=True)
        return trained.score(training, seed, f"{asked.watch['clip']} {rate and rate[0]}", treatment=asked)
    if read.change is None:
        return trained.score(training, seed, "ill")
    change = read.change

    def followed(net: Any, optimizer: Optimizer) -> None:
        change(net, optimizer)
        if rate:
            at_rate(float(rate[1]))(net, optimizer)

    named = (
        applied(Intervention.of(trained.untreated(training, seed).run), main.tries[0]).arguments if main.tries else {}
    )
    done = f"words-{main.rule}{rate[0] if rate else ''}{main.tries[0] if main.tries else ''}"
    return trained.score(training, seed, done, treatment=Treatment(named, followed))


def at_rate(rate: float) -> Callable[[Any, Optimizer], None]:
    """A change: all of the optimizer's groups begin at a rate."""

    def change(net: Any, optimizer: Optimizer) -> None:
        for own in optimizer.param_groups:
            own["lr"] = rate

    return change


def last_score(row: Row, untreated: Row) -> float | None:
    """What cannot be followed changes nothing."""
    last: float | None = untreated["last"] if "refused" in row else row["last"]
    return last


# ---------------------------------------------------------------------------------------------------------------- page


def score(value: float | None) -> float:
    return math.inf if value is None else value


def middle(rows: Sequence[Row], what: str) -> float:
    """The median of a column."""
    return median(score(row[what]) for row in rows)


def spread(rows: Sequence[Row]) -> float:
    """How far the untreated seeds are apart: their median absolute deviation, 0 where most diverged."""
    untreated = middle(rows, "untreated")
    return median(abs(score(row["untreated"]) - untreated) for row in rows) if math.isfinite(untreated) else 0.0


def best(row: Row) -> float:
    """The best that any cure of the finding did."""
    return min(map(score, (row["treated"], *row["tries"].values())))


def did(first: float, untreated: float, treated: float, expert: float, spread: float) -> str:
    """What an advice did: `helps`, `a little`, `nothing` or `worse`."""
    begin = min(untreated, first)
    if treated > untreated + max(0.1 * (begin - expert), spread):
        return "worse"
    won = (begin - treated) / (begin - expert)
    return "helps" if won >= 0.5 else "a little" if won >= 0.1 else "nothing"


def result(rows: Sequence[Row], every: Sequence[Row] | None = None) -> str:
    """The same of the medians of these seeds, out of `every` seed; `nothing said` of none of them."""
    if not any(row["found"] for row in rows):
        return "nothing said"
    return did(*(middle(rows, what) for what in ("first", "untreated", "treated", "expert")), spread(every or rows))


def totals(half: str, results: Results) -> list[str]:
    """The counts: of all, of those whose main finding is right in most seeds, of those whose advice is no expert's fix
    in any seed, by the best cure, and of single seeds.
    """
    right = [rows for rows in results.values() if sum(row["right"] for row in rows) > len(rows) / 2]
    by_best = [[{**row, "treated": best(row)} for row in rows] for rows in results.values()]
    own = [rows for rows in results.values() if not any(row.get("as_expert") for row in rows)]
    kinds = {
        half: [result(rows) for rows in results.values()],
        "of these, the finding is right": [result(rows) for rows in right],
        "of these, the advice is not read as the expert's fix": [result(rows) for rows in own],
        "by the best cure that is named": [result(rows) for rows in by_best],
        "single seeds": [result([row], rows) for rows in results.values() for row in rows],
    }
    return counted(kinds, (*WORDS, "nothing said"))


def counted(kinds: dict[str, list[str]], words: Sequence[str]) -> list[str]:
    """A line for each kind: how often each of the words was said of it."""
    lines = [f"| | trainings | {' | '.join(words)} |", "|---" * (len(words) + 2) + "|"]
    for name, each in kinds.items():
        counts = Counter(each)
        lines.append(f"| {name} | {len(each)} | {' | '.join(str(counts[word]) for word in words)} |")
    return lines


def agreement(results: Results) -> str:
    """In how many trainings all seeds have one main finding (or none), and which are the others."""
    apart = [name for name, rows in results.items() if len({row["found"] for row in rows}) > 1]
    others = f"; not of {', '.join(apart)}" if apart else ""
    return f"The main finding is the same for all {SEEDS} seeds of {len(results) - len(apart)} trainings{others}."


def page(results: Results) -> str:
    """The page as Markdown."""
    known = {name: rows for name, rows in results.items() if name in WRITTEN_FOR}
    once = {name: rows for name, rows in results.items() if name in SICK and group(SICK[name]) in READ_ONCE}
    tuning = {name: rows for name, rows in results.items() if name not in known | once}
    lines = [*totals("tuning", tuning), "", agreement(tuning), *table(tuning)]
    lines += ["", "## What was read once", "", *totals("read once", once), *before(once), *table(once)]
    lines += ["", "## Followed by strangers", "", *by_strangers()]
    lines += ["", "## Options alone", "", *by_options()]
    lines += ["", "## What rules were written for", "", *totals("known", known), "", agreement(known), *table(known)]
    return HEAD + "\n".join(lines) + "\n"


def by_strangers() -> list[str]:
    """What came of advice that others followed."""
    groups = json.loads(FOLLOWED.read_text(encoding="utf-8"))
    kinds = {}
    for told in groups:
        kinds[f"all of `{told['group']}`"] = [row["result"] for row in told["trainings"]]
        kinds[f"of `{told['group']}`, where the finding is right"] = [
            row["result"] for row in told["trainings"] if row["right"]
        ]
    *others, last = (f"`{told['group']}`" for told in groups)
    named = f"{', '.join(others)} and {last}"
    return [*OF_STRANGERS.format(groups=named).splitlines(), "", *counted(kinds, WORDS)]


def by_options() -> list[str]:
    """What the first option did, and the best one, of all trainings whose main finding has any."""
    every = json.loads(OPTIONS.read_text(encoding="utf-8"))
    rows = [row for own in every.values() for row in own if row["options"]]
    firsts = [(row, next(iter(row["options"].values()))) for row in rows]
    kinds = {
        "all": [came for _, came in firsts],
        "of these, the finding is right": [came for row, came in firsts if row["right"]],
        "by the best of its options": [min(row["options"].values(), key=WORDS.index) for row in rows],
    }
    for rule, _ in Counter(row["found"] for row in rows).most_common():
        kinds[f"`{rule}`"] = [came for row, came in firsts if row["found"] == rule]
    said = OF_OPTIONS.format(
        groups=", ".join(f"`{name}`" for name in every), some=len(rows), all=sum(map(len, every.values()))
    )
    return [*said.splitlines(), "", *counted(kinds, WORDS)]


def before(results: Results) -> list[str]:
    """The latest groups at their first reading, beside what they are today, and what was made worse then."""
    first = json.loads(FIRST.read_text(encoding="utf-8"))
    lines: list[str] = []
    for name in TODAY:
        then = [(f"{name}, at first", first)] if name in LATEST else []
        for half, each in [*then, (f"{name}, today", results)]:
            counted = totals(half, {key: rows for key, rows in each.items() if group(SICK[key]) == name})
            lines += [*([] if lines else counted[:2]), counted[2], counted[4]]
    worse = ", ".join(f"{key} ({rows[0]['advice']})" for key, rows in first.items() if result(rows) == "worse")
    return ["", BEFORE, "", *lines, "", f"At first these were made worse: {worse}."]


def table(results: Results) -> list[str]:
    """A line for each training."""
    lines = ["", "| training | found | advice | an expert | as it is | with the advice | best | expert's | result |",
              "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, rows in results.items():
        found = ", ".join(dict.fromkeys(row["found"] or "none" for row in rows))
        advice = "; ".join(dict.fromkeys(_code(row["advice"]) for row in rows if row["advice"])) or "none"
        scores = [middle(rows, "untreated"), middle(rows, "treated"), median(map(best, rows)), middle(rows, "expert")]
        cells = [
            name,
            found,
            advice,
            (SICK | WRITTEN_FOR)[name].cure,
            *("∞" if math.isinf(s) else f"{s:.3g}" for s in scores),
        ]
        lines.append(f"| {' | '.join(cells)} | {result(rows)} |")
    return lines


def _code(advice: str) -> str:
    return f"`{advice}`" if advice.startswith("--") else advice


def to_be_looked_at() -> list[Sick]:
    """Those of the page, in its order."""
    return [*(training for name in ("tuning", *READ_ONCE) for training in of_group(SICK, name)), *TOLD_BY_LOSSES]


def _is_of(training: Sick, wanted: str) -> bool:
    return not wanted or (training.name in SICK and group(training) == wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="the totals of the held-out half, and nothing else")
    parser.add_argument("--page", action="store_true", help="train nothing: print the page from the JSON")
    parser.add_argument("--only", default="", help="those with this in their name; the JSON stays as it is")
    parser.add_argument("--group", default="", help="those of this group that was read once")
    parser.add_argument("--update", action="store_true", help="put what --only trained into the JSON, and print it all")
    parser.add_argument("--keep", type=Path, help="a folder for what is trained; what lies there is not trained again")
    args = parser.parse_args()
    if args.page:
        print(page(json.loads(RESULTS.read_text(encoding="utf-8"))), end="")
        return 0
    warnings.simplefilter("ignore")
    logging.getLogger("gradwatch").setLevel(logging.CRITICAL)
    half = of_group(SICK, "held out") if args.held_out else to_be_looked_at()
    chosen = [training for training in half if args.only in training.name and _is_of(training, args.group)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trained = Trained(args.keep or Path(folder))
        missing = [line for training in chosen for line in unread(training, trained)]
        if missing:
            print(
                "Advice in words that tests/scenarios/readings*.py do not read yet:",
                *missing,
                sep="\n",
                file=sys.stderr,
            )
            return 2
        results = {}
        for training in chosen:
            results[training.name] = tried(training, trained)
            print(f"{len(results)} of {len(chosen)}", file=sys.stderr)
    if args.held_out:
        print("\n".join(totals("held out", results)))
        return 0
    if args.update:
        known = json.loads(RESULTS.read_text(encoding="utf-8")) | results
        results = {training.name: known[training.name] for training in half if training.name in known}
    if args.update or not (args.only or args.group):
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(page(results), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
