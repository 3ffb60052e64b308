"""Trains the unseen trainings of tests/scenarios and prints docs/findings/judgement.md: an expert beside the rules.

    python scripts/bench/judgement.py > docs/findings/judgement.md
    python scripts/bench/judgement.py --only lora     # those of the tuning half whose name has "lora" in it
    python scripts/bench/judgement.py --held-out      # the totals of the other half: once, when the rules are done
    python scripts/bench/judgement.py --afresh        # of a group by others, once; so `--blind`, ...
    python scripts/bench/judgement.py --afresh --keep # and what was found first goes into first_readings.json
    python scripts/bench/judgement.py --afresh --seed 1   # the same trainings with other weights and batches
    python scripts/bench/judgement.py --track-record  # what that file says of each rule, as the rules have it
    python scripts/bench/judgement.py --check         # that all are what they are said to be, by their scores alone

It takes some minutes. The exit code is 0 whatever was found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[2]
FIRST = ROOT / "docs" / "measurements" / "first_readings.json"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "scenarios")]

import unseen.every  # noqa: E402, F401
from nets import SEED  # noqa: E402
from unseen import HEALTHY, SICK, UNNAMED, Healthy, Outcome, Sick, fault, label, of_group  # noqa: E402

from gradwatch.analysis.rules import Finding, diagnose  # noqa: E402
from gradwatch.analysis.rules.finding import Confidence  # noqa: E402
from gradwatch.analysis.rules.track_record import TRACK_RECORD, expected_share  # noqa: E402
from gradwatch.formatting import percent  # noqa: E402

HEAD = """\
# Judgement

What the rules say of trainings that they were not written for, beside what an expert said before a rule saw them. A
sick training has a cured twin, and its loss is clearly worse; a healthy one learns. Both are checked without any rule
(`scripts/bench/judgement.py --check`; some of them in the tests). Of the errors and warnings that no other
finding explains (the roots), the first is **right** when an expert would accept it; **named** counts an accepted one in
any place; **beside** counts sick trainings with a root that an expert would not accept. A name in *italics* is wanted,
and no finding has it yet. A finding is **likely** when the record leaves one cause and its rule has a good track record
(below), else **possible**; one on a healthy training is counted as wrong.

Half of the trainings of the first group may be looked at while the rules change: they are below. The other half,
`HELD_OUT` in [tests/scenarios/unseen](../../tests/scenarios/unseen/__init__.py), and all the other groups there, each a
folder, were **read once, with the rules frozen** (`scripts/bench/judgement.py --held-out`, `--blind`, ...), and looked
at only then. Who wrote the other groups had not read the rules. What a new training can expect is in the last rows, not
in the table of the tuning half, although the rules had learnt from each group before the next one was read.

| read once | sick | right | named | nothing said | healthy | with an error | with a warning | likely ones right |
|---|---|---|---|---|---|---|---|---|
| held out | 27 | 17 | 18 | 6 | 26 | 1 | 1 | 11 of 13 |
| blind | 28 | 15 | 17 | 8 | 35 | 1 | 2 | 10 of 14 |
| fresh, later | 28 | 21 | 22 | 6 | 28 | 2 | 1 | 15 of 18 |
| novel | 30 | 23 | 23 | 6 | 30 | 0 | 2 | 19 of 20 |
| reported | 30 | 17 | 17 | 8 | 30 | 0 | 0 | 11 of 12 |
| asked | 30 | 22 | 22 | 4 | 30 | 0 | 1 | 14 of 16 |
| told | 30 | 19 | 19 | 5 | 30 | 0 | 0 | 15 of 17 |
| met | 30 | 13 | 13 | 13 | 30 | 0 | 2 | 8 of 11 |
| sent | 30 | 16 | 16 | 6 | 50 | 2 | 9 | 13 of 28 |
| heard | 30 | 16 | 16 | 8 | 50 | 0 | 6 | 6 of 8 |
| daily | 40 | 25 | 25 | 8 | 50 | 0 | 0 | 7 of 7 |
| common | 0 | | | | 26 | 0 | 4 | 0 of 0 |
| typical | 36 | 16 | 18 | 14 | 50 | 1 | 4 | 6 of 7 |
| visible | 36 | 22 | 22 | 5 | 40 | 1 | 2 | 5 of 6 |
| again | 36 | 27 | 27 | 1 | 36 | 0 | 3 | 7 of 10 |
| anew | 36 | 21 | 21 | 12 | 50 | 0 | 2 | 2 of 2 |
| afresh | 36 | 20 | 21 | 10 | 50 | 0 | 5 | 4 of 4 |
| further | 36 | 20 | 20 | 11 | 60 | 0 | 2 | 1 of 2 |
| onward | 36 | 20 | 20 | 8 | 60 | 0 | 4 | 5 of 5 |
| beyond | 36 | 18 | 18 | 15 | 60 | 0 | 2 | 4 of 6 |
| threads | 36 | 19 | 19 | 11 | 60 | 0 | 5 | 8 of 9 |
| posted | 36 | 24 | 26 | 5 | 60 | 0 | 0 | 10 of 11 |
| solved | 36 | 23 | 23 | 8 | 60 | 0 | 0 | 9 of 10 |
| brought | 36 | 29 | 29 | 5 | 60 | 0 | 0 | 16 of 16 |
| raised | 36 | 22 | 23 | 9 | 60 | 1 | 1 | 14 of 16 |
| gathered | 36 | 24 | 25 | 7 | 60 | 0 | 1 | 9 of 10 |
| collected | 36 | 24 | 24 | 3 | 60 | 1 | 0 | 9 of 11 |
| picked | 36 | 27 | 27 | 6 | 60 | 0 | 1 | 14 of 15 |
| noted | 36 | 18 | 18 | 7 | 60 | 0 | 2 | 9 of 11 |
| traced | 36 | 26 | 27 | 7 | 60 | 0 | 1 | 11 of 11 |
| shared | 36 | 26 | 26 | 6 | 60 | 0 | 1 | 15 of 15 |
| quoted | 36 | 21 | 21 | 9 | 60 | 0 | 1 | 10 of 10 |
| pooled | 36 | 19 | 19 | 11 | 60 | 0 | 1 | 11 of 11 |
| searched | 35 | 15 | 18 | 11 | 60 | 0 | 1 | 12 of 12 |
| taught | 36 | 18 | 18 | 9 | 60 | 0 | 0 | 7 of 8 |
| closed | 35 | 16 | 16 | 12 | 59 | 0 | 0 | 8 of 8 |
| listed | 36 | 30 | 30 | 2 | 63 | 0 | 3 | 19 of 21 |
| recalled | 36 | 31 | 31 | 2 | 60 | 0 | 1 | 14 of 15 |
| remembered | 36 | 29 | 29 | 3 | 60 | 0 | 3 | 20 of 22 |
| known | 36 | 30 | 30 | 1 | 60 | 1 | 3 | 18 of 18 |
| familiar | 36 | 29 | 29 | 3 | 60 | 0 | 1 | 19 of 19 |
| everyday | 36 | 28 | 28 | 3 | 60 | 0 | 0 | 15 of 15 |
| usual | 36 | 32 | 32 | 3 | 60 | 0 | 3 | 20 of 20 |
| regular | 36 | 27 | 27 | 5 | 60 | 0 | 1 | 15 of 15 |
| habitual | 36 | 28 | 28 | 5 | 60 | 0 | 2 | 16 of 17 |
| ordinary | 36 | 30 | 31 | 3 | 60 | 0 | 1 | 17 of 17 |
| routine | 36 | 28 | 28 | 7 | 60 | 0 | 1 | 17 of 17 |
| standard | 36 | 30 | 30 | 3 | 60 | 0 | 0 | 19 of 19 |
| general | 36 | 27 | 28 | 4 | 60 | 0 | 1 | 15 of 15 |
| prevalent | 36 | 27 | 27 | 7 | 60 | 0 | 0 | 14 of 14 |
| frequent | 36 | 31 | 33 | 3 | 60 | 0 | 1 | 17 of 17 |
| customary | 36 | 22 | 22 | 11 | 60 | 0 | 0 | 12 of 12 |
| workaday, the latest | 36 | **31** | 32 | 4 | 60 | **0** | **1** | 16 of 16 |

Where the sick ones are from, and which a record hardly shows, as their authors thought:

| group | mistakes | hardly show | of these right | of the others |
|---|---|---|---|---|
| held out, blind, fresh, novel | of their authors' choice | | | |
| reported, asked, told | that people asked or told about in public | | | |
| met | the same, as a search met them | 9 | 1 | 12 of 21 |
| sent, heard | the same, of trainings that are unstable or do not learn | 12 | 2 | 30 of 48 |
| daily | ordinary mishaps, paired with tasks by lot | 11 | 2 | 23 of 29 |
| typical | of published taxonomies of faults, and bugs of public code as a search met them | 14 | 1 | 15 of 22 |
| visible, again, anew, afresh, further, onward, beyond | that show in what is recorded, tasks by lot | 0 | | |
| threads to pooled | of public threads, that show | 0 | | |
| searched | the first thread with a cause that a search gave to each of 36 usual questions | 0 | | |
| taught | drawn by lot from 171 mistakes that published guides warn of | 0 | | |
| closed | drawn by lot from 98 causes that issues of many libraries were closed with | 0 | | |
| listed to workaday | drawn by lot from what their authors had met themselves, 40 mistakes each | 0 | | |

The mistakes and tasks of `daily` and of the seven groups from `visible` to `beyond` were written down before any
code. Left out was what did no harm by its scores or was there already. `searched` was drawn otherwise: each of its
authors asked a search the same usual questions as users do (loss stuck at 0.693, segmentation predicts only
background), and took the first answer with a cause, common or not, there already or not; to one question there was
none. The authors of `taught` listed what published guides of training warn of (Karpathy's recipe, CS231n, PyTorch's
notes, guides of GANs and of reinforcement learning), gradients' concern or not, and drew 18 each by lot; of nine no
finding is called what they expect. Those of `closed` listed the causes that issues of many libraries were closed
with, a user's mistake or a bug that was mended, and drew by lot, too; of eight no finding is called what they expect.
The authors of the last seventeen groups, three each, listed 40 mistakes from memory, of code and of settings, before
they saw anything, drew twelve by lot, and (but for `listed`) had a sentence of each finding beside its name. That is
what people get wrong every day: 490 of these 612 are right. Of twelve more, by the reading of who changes the rules,
what is said is the mistake, under a name that was not expected (a ReLU at the output is `targets-out-of-range`, a
sigmoid was `softmax-twice`, weights of 0 were `dead-layer`, as were units that a step threw out and biases far below 0,
sums over neighbours are `bad-initialisation`). Of the healthy ones of `sent` and later half are ordinary, half unusual;
all of `common` are unusual.

- **What is right** is mostly said of a number that is not finite, of what is not trained, of what is clipped or
  scheduled away. **What is silent or wrong** is mostly a rate that is too high for a part, a loss that falls all the
  same, and what is put together wrongly. Of the 122 of the last seventeen groups that are not right 69 are silent
  (among them augmentations that change what is asked for, which a record does not show), of the 19 of `closed` twelve,
  of the 18 of `taught` nine, of the 20 of `searched` eleven, of the 17 of `pooled` eleven, of the 15 of `quoted` nine,
  of the 10 of `shared` six, of the 10 of `traced` seven, of the 18 of `noted` seven, of the 9 of `picked` six, of the
  12 of `collected` three, of `gathered` seven, of the 14 of `raised` nine, of the 7 of `brought` five, of the 13 of
  `solved` eight, of the 12 of `posted` five, of the 17 of `threads` eleven, of the 18 of `beyond` fifteen, of the 16
  of `onward` eight, of `further` eleven, of `afresh` ten.
- **What was warned of the healthy ones**: of eleven in `sent` four were reinforcement learning that logs no return,
  and six had learnt nearly all there was to learn; of six in `heard` three were of no progress; of five in `afresh`
  and in `threads` two are ordinary trainings. Of the two in `raised` one is a loss below 0 by nature, the other
  writes gradients that `autograd.grad` gives it, of the one in `gathered` some weights had no gradient at first, and
  of that in `collected` a critic's scores drifted; of none of them is it said any more.
- Of the 23 healthy ones that were spoken of in the last seventeen groups seven grow harder as they go (longer rows, a
  stronger adversary) and two log an overlap as a loss; of those that log what grows it is not said any more.
- **What was seen too early**: descriptions of some held out; what was found in nine of `met` and in some of
  `typical`, by their authors, after what is expected had been written, and so of some of `further` and `solved`; two
  of `brought` were given one more name or another part by activations or seeds that their authors had seen; findings
  of eleven of `raised`, whose names were left as they were, and of a healthy one; five of `threads` got another name,
  or one more, when their author had seen their gradients, though no finding; a few lines of the changelog, by the
  author of `heard`; what was said on stderr of the first versions of 29 of the sick ones of `prevalent`, whose names
  were left as they were but for a synonym, and whose trainings were changed by their scores alone, as their authors
  say; live warnings of up to nine of `taught` and six of `closed`, whose names had been written before
  (two more of `closed` that were changed after such a warning, one of them healthy, are left out).
- **What was changed in what is expected**: two findings were named after `novel` was written, and added to four of it
  by somebody who had not read the rules, before the reading; names of findings that came later, or came to see more,
  were added to 92 trainings that had been read. Of ten of `typical` no finding is called what their authors expect.
  Two of `visible` and `again` are wrong by a name alone: what no optimizer holds was a case of `no-gradient` then.
- **The same with another seed**, other weights and batches, by rules that had learnt from them as they were written:
  with `--seed 2`, looked at once, 30 of `traced` and 24 of `noted` were right (32 and 28 as written; with it some are
  sick no more, and count as wrong), and of their 120 healthy ones none had an error and one a warning. With `--seed 1`
  31 of `prevalent` were right, with none of 60 healthy ones spoken of.
- **Of `shared` and `quoted`**, written by eight at the same time and read by the same rules, five threads are in
  both.
- Up to `sent` all that left one cause was **likely**. There that was right in 13 of 28 trainings, and the track
  record of each rule has counted since.

The same script made this page.

"""


TRACK = """\
## Track record

How often a rule was right where it came first and left one cause: on the trainings of the last readings above, as their
experts had written, by the rules of that day (`docs/measurements/first_readings.json`). What is to be expected of it is
(right + 1) / (of + 2), by Laplace's rule of succession: from 80 % on, and where one cause is left, its findings are
*likely*. A rule that never came first is not among them, and *possible*.

| rule | right | to be expected |
|---|---|---|""".splitlines()


@dataclass(frozen=True)
class Judged:
    """A training and the roots that were found in it."""

    training: Sick | Healthy
    roots: list[Finding]

    @property
    def serious(self) -> list[str]:
        """The rules of its errors and warnings, as they are ranked."""
        return [f.rule for f in self.roots if f.severity != "note"]

    @property
    def main(self) -> Finding | None:
        """The first error or warning."""
        return next((f for f in self.roots if f.severity != "note"), None)

    @property
    def accepted(self) -> frozenset[str]:
        return self.training.expected if isinstance(self.training, Sick) else frozenset()

    @property
    def right(self) -> bool:
        return bool(self.serious) and self.serious[0] in self.accepted

    @property
    def named(self) -> bool:
        return any(rule in self.accepted for rule in self.serious)

    @property
    def beside(self) -> bool:
        return any(rule not in self.accepted for rule in self.serious)


def judged(training: Sick | Healthy) -> Judged:
    """Train it and ask the rules."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        outcome: Outcome = training.train(place, True) if isinstance(training, Sick) else training.train(place)
        return Judged(training, diagnose(outcome.history))


def totals(group: str, sick: Sequence[Judged], healthy: Sequence[Judged]) -> list[str]:
    """The table of the counts."""
    right, named, beside = (sum(getattr(j, what) for j in sick) for what in ("right", "named", "beside"))
    silent = sum(not j.serious for j in sick)
    errors, warnings = (
        sum(any(f.severity == severity for f in j.roots) for j in healthy) for severity in ("error", "warning")
    )
    return [
        "| half | sick | right | named | beside | nothing said | healthy | with an error | with a warning |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| {group} | {len(sick)} | {right} | {named} | {beside} | {silent} | {len(healthy)} | {errors} | {warnings} |",
    ]


def by_confidence(sick: Sequence[Judged], healthy: Sequence[Judged]) -> list[str]:
    """The table of how often the main finding is right, by how sure it is of its cause."""
    lines = ["| confidence | main findings | right |", "|---|---|---|"]
    for confidence in get_args(Confidence):
        main = [j for j in (*sick, *healthy) if j.main and j.main.confidence == confidence]
        lines.append(f"| {confidence} | {len(main)} | {sum(j.right for j in main)} |")
    return lines


def kept(name: str, sick: Sequence[Judged], healthy: Sequence[Judged]) -> list[dict[str, Any]]:
    """What `FIRST` keeps of a reading: of each training the rule that came first, and whether that was right."""
    rows = []
    for kind, judgements in (("sick", sick), ("healthy", healthy)):
        for j in judgements:
            said = {"rule": j.main.rule, "severity": j.main.severity} if j.main else {"rule": None, "severity": None}
            one_cause = j.main is not None and not j.main.alternatives
            right = j.right if kind == "sick" else not j.serious
            rows.append({"group": name, "kind": kind, **said, "one_cause": one_cause, "right": right})
    return rows


def track_record(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Of each rule how often it was right, and how often it came first and left one cause; the most frequent first."""
    said = [row for row in rows if row["rule"] and row["one_cause"]]
    counts = Counter(row["rule"] for row in said)
    return {rule: (sum(r["right"] for r in said if r["rule"] == rule), of) for rule, of in counts.most_common()}


def found(roots: Sequence[Finding]) -> str:
    """The findings in a cell, notes in brackets."""
    return ", ".join(f"({f.rule})" if f.severity == "note" else f"{f.rule} ({f.severity})" for f in roots) or "none"


def row(judged: Judged) -> str:
    """One training of the tuning half."""
    training = judged.training
    if isinstance(training, Healthy):
        return f"| {training.name} | {found(judged.roots)} |"
    pages = {page.stem for page in (ROOT / "docs" / "findings").glob("*.md")}
    names = ", ".join(name if name in pages else f"*{name}*" for name in sorted(training.expected))
    right = "right" if judged.right else "named" if judged.named else "no"
    return f"| {training.name} | {names} | {training.where} | {training.cure} | {found(judged.roots)} | {right} |"


def page(sick: Sequence[Judged], healthy: Sequence[Judged]) -> str:
    """The page as Markdown."""
    lines = [*totals("tuning", sick, healthy), "", *by_confidence(sick, healthy), "", *TRACK]
    record = sorted(TRACK_RECORD.items(), key=lambda one: (-expected_share(one[0]), one[0]))
    lines += [f"| {rule} | {right} of {of} | {percent(expected_share(rule))} |" for rule, (right, of) in record]
    lines += ["", "## Sick", "", "| training | an expert | where | cure | found | right |", "|---|---|---|---|---|---|"]
    lines += [row(j) for j in sick]
    lines += ["", "## Healthy", "", "| training | found |", "|---|---|", *(row(j) for j in healthy)]
    return HEAD + "\n".join(lines)


def check(only: str) -> int:
    """Print what the scores of the trainings say against them; 1 where they say something."""
    faults = 0
    for training in (*SICK.values(), *HEALTHY.values()):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            said = fault(training, Path(folder)) if only in training.name else None
        if said:
            print(f"{label(training)}: {said}")
            faults += 1
    return int(faults > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    for name in ("held-out", *UNNAMED):
        words = f"the totals of those {name.replace('-', ' ')}, and nothing else"
        what.add_argument(f"--{name}", dest="group", action="store_const", const=name.replace("-", " "), help=words)
    what.add_argument("--check", action="store_true", help="ask no rule: are they sick, or healthy, by their scores")
    what.add_argument("--track-record", action="store_true", help="what the readings that were kept say of each rule")
    parser.add_argument("--keep", action="store_true", help="add what was found first to first_readings.json")
    parser.add_argument("--seed", type=int, default=0, help="added to that of each training")
    parser.add_argument("--only", default="", help="those with this in their name")
    args = parser.parse_args(arguments)
    if args.group in UNNAMED and args.only:
        parser.error(f"--{args.group} is of all of them: the totals of some would say what was found in one")
    if args.keep and args.seed:
        parser.error("--keep is of what was found first, with the seeds that the trainings were written with")
    SEED[0] = args.seed
    first: list[dict[str, Any]] = json.loads(FIRST.read_text(encoding="utf-8"))
    if args.track_record:
        print(*(f"    {rule!r}: {right, of}," for rule, (right, of) in track_record(first).items()), sep="\n")
        return 0
    if args.check:
        return check(args.only)
    name = args.group or "tuning"
    groups: list[list[Judged]] = []
    for trainings in (of_group(SICK, name), of_group(HEALTHY, name)):
        groups.append([])
        for training in trainings:
            if args.only in training.name:
                groups[-1].append(judged(training))
                print(f"{len(groups[-1])} of {len(trainings)}", file=sys.stderr)
    if args.keep:
        lines = ",\n".join(map(json.dumps, [*first, *kept(name, *groups)]))
        FIRST.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    counts = [*totals(name, *groups), "", *by_confidence(*groups)]
    print(page(*groups) if name == "tuning" else "\n".join(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
