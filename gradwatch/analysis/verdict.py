"""Which policy to take: the verdict over one policy against the baseline, and the winner of a setting in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradwatch.analysis import intervals
from gradwatch.analysis.intervals import NAN, Estimate
from gradwatch.history import History

BETTER, WORSE, NO_DIFFERENCE, NOT_JUDGED, BASELINE = (
    "better", "worse", "no difference shown", "not judged", "baseline"
)  # fmt: skip

FEW = 2  # seeds: their two differences may be alike by chance, and tell nothing apart from the best


@dataclass(frozen=True)
class Contender:
    """The runs of one policy in one setting: `values[metric][seed]` is what a final value counts as, NaN where unknown.

    `alike`: its seeds change nothing, so that several runs are one.
    """

    policy: str
    members: list[History]
    values: dict[str, dict[str, float]]
    diverged: int
    alike: bool = False

    @property
    def share(self) -> float:
        """The share of its runs that diverged."""
        return self.diverged / len(self.members)

    def mean(self, metric: str) -> float:
        """The mean of what its final values count as; NaN where there is none."""
        return intervals.mean(list(self.values[metric].values())).value


@dataclass(frozen=True)
class Winner:
    """What follows from the comparison of one setting: sentences, and the policy to take; None where it is none.

    `clip`, `renorm`, `lr_scale` and `warmup` are the policy as `watch()` and the command line take it. Where nothing is
    told apart, `advice` says what to do; `policy` is then at most the best so far.
    """

    setting: str
    policy: str | None
    clip: str | None
    renorm: str | None
    sentences: tuple[str, ...]
    lr_scale: float = 1.0
    warmup: int = 0
    advice: str = ""


def judge(ours: Contender, theirs: Contender, metric: str, rises: bool | None) -> tuple[Estimate, str]:
    """The difference of the final values, ours minus theirs, and the verdict over ours in a word.

    `rises` says whether a higher value is better, None that it is not known: then there is no verdict. Of a metric that
    is meant to fall, and is positive in all runs (a loss), the difference is the relative change.
    A verdict needs two seeds that differ, and a final value in a run of ours. Where all runs of one side diverged and
    none of the other's, that decides; with anything in between, the finished runs do, unless they speak for the side
    that diverged more often.
    """
    mine, others = ours.values[metric], theirs.values[metric]
    falling = rises is False and all(not value <= 0 for value in (*mine.values(), *others.values()))
    difference = (intervals.change if falling else intervals.difference)(mine, others)
    enough = min(len(ours.members), len(theirs.members)) > 1
    at_cap = ours.diverged and theirs.diverged and difference.low == difference.high
    if at_cap or ours.share == theirs.share == 1:  # what they count as is what they were before training
        method = "runs of both count as what they were before training"
        return Estimate(NAN, method=method), NO_DIFFERENCE if enough else NOT_JUDGED
    if len(_begins((ours, theirs))) > 1:
        return difference, NOT_JUDGED
    if ours.alike or theirs.alike:
        return replace(difference, low=NAN, high=NAN, p=NAN), NOT_JUDGED
    if rises is None or (np.isnan(ours.mean(metric)) and ours.share < 1):
        return difference, NOT_JUDGED
    if {ours.share, theirs.share} == {0.0, 1.0}:
        method = f"{ours.diverged} of {len(ours.members)} runs diverged, {theirs.diverged} of {len(theirs.members)}"
        word = WORSE if ours.share else BETTER
        return Estimate(NAN, method=method), word if enough else NOT_JUDGED
    if not difference.has_interval:
        return difference, NOT_JUDGED
    side = difference.side() * (1 if rises else -1)
    if side * (ours.share - theirs.share) > 0:
        side = 0
    return difference, {1: BETTER, -1: WORSE, 0: NO_DIFFERENCE}[side]


def judge_all(
    contenders: Sequence[Contender], base: Contender | None, metric: str, rises: bool | None
) -> list[tuple[Estimate, str]]:
    """`judge` for each of several contenders, against the same baseline: what is shown is shown together (Holm).

    Twenty policies that do nothing would have one verdict among them at 95 % each.
    """
    if base is None:
        return [(Estimate(NAN, method="no run of the baseline"), "") for _ in contenders]
    found = [(Estimate(NAN), BASELINE) if one is base else judge(one, base, metric, rises) for one in contenders]
    shown = intervals.holm([difference.p for difference, _ in found])
    return [
        (difference, NO_DIFFERENCE if word in (BETTER, WORSE) and difference.has_interval and not together else word)
        for (difference, word), together in zip(found, shown, strict=True)
    ]


def signed(found: Estimate) -> str:
    """`-0.81 (-0.92 to -0.7)`, or `-41 % (-52 to -27 %)`; without the brackets where there is no interval."""
    scale, unit = (100, " %") if found.is_share else (1, "")
    text = f"{scale * found.value:+.3g}{unit}"
    ends = f" ({scale * found.low:+.3g} to {scale * found.high:+.3g}{unit})"
    return text + (ends if found.has_interval else "")


def winner(
    setting: str,
    ranked: Sequence[Contender],
    base: Contender | None,
    metric: str,
    rises: bool | None,
    of_rivals: bool,
) -> Winner:
    """The winner among the contenders of one setting, the best mean first; against the baseline if there is one.

    `of_rivals`: the metric is the loss of one part of several (`is_of_rivals`), and `rises` is None for that.
    """
    best = ranked[0]
    if base is not None and base.mean(metric) == best.mean(metric):  # a policy that never acted is not better
        best = base
    if all(np.isnan(one.mean(metric)) for one in ranked):
        said = f"No run here has a final value of {metric}: there is no verdict."
        return _named(setting, None, (said,), "log it in every run, or compare by another: --metric NAME")
    if rises is None and of_rivals:
        said = f"{metric} is that of one of several parts, which may train against each other: a low one is no verdict."
        return _named(setting, None, (said,), "name what decides, a metric of what all of them make: --metric NAME")
    if rises is None:
        said = f"Whether {metric} is meant to rise or to fall is not known."
        return _named(setting, None, (said,), "say it with --higher-is-better or --lower-is-better")
    begins = _begins(ranked)
    if len(begins) > 1:
        said = f"Some of these runs go on from another, from step {max(begins):,} on: what came before is theirs too."
        return _named(setting, None, (said,), "compare runs that begin at one step, or that go on from one checkpoint")
    judged = list(zip(ranked, judge_all(ranked, base, metric, rises), strict=True))
    won = [(one, difference) for one, (difference, word) in judged if word == BETTER]
    if won:
        assert base is not None
        return _won(setting, *won[0], base, ranked, metric, rises)
    if base is None or all(word in (NOT_JUDGED, BASELINE) for _, (_, word) in judged):
        why, advice = _unjudged(best, base)
        said = f"{best.policy} has the best {metric}, {best.mean(metric):.4g}, but {why}."
        return _named(setting, best if best.share < 1 and not best.alike else None, (said,), advice)
    said, difference = f"No policy is shown to be better than {base.policy}", judged[0][1][0]
    open_by = "its interval leaves it open"
    if difference.has_interval and difference.side():
        open_by = f"among {len(ranked)} policies one may lie so far ahead by chance (Holm)"
    said += "." if best is base else f"; {best.policy} has the best mean of {metric}, but {open_by}."
    return _named(setting, None, (said,), _undecided(best, base, difference))


def _begins(contenders: Sequence[Contender]) -> set[int]:
    """The first steps of their runs: another than 0 where one goes on from a run before it, by whatever policy."""
    return {int(history.step[0]) for one in contenders for history in one.members if not history.run.source}


def is_of_rivals(histories: Sequence[History], metric: str) -> bool:
    """Whether it is the loss of one part of runs whose parts step on their own, each with a loss of its own."""
    parts = {lane for history in histories for lane in history.lane_rows()}
    losses = {f"loss/{part}" for part in parts if any(f"loss/{part}" in history.logged for history in histories)}
    return len(losses) > 1 and metric in losses


def _unjudged(best: Contender, base: Contender | None) -> tuple[str, str]:
    """Why there is no verdict, and what to do."""
    if base is None:
        return "the baseline was not run", "train the baseline too, with the same seeds"
    if best.alike or base.alike:
        whose = "its seeds change nothing, so it is one run" if best.alike else "the baseline's seeds change nothing"
        return whose, "have the seed reach the script: {seed} in its arguments, or --set-seed"
    return "with so few finished runs nothing is shown", "train three seeds or more of each"


def _undecided(best: Contender, base: Contender, difference: Estimate) -> str:
    """What to do where the intervals leave it open."""
    if best is base:
        return f"keep {base.policy}, or try other policies"
    wanted = intervals.seeds_wanted(difference) if difference.has_interval else None
    if wanted is None:
        return f"keep {base.policy}; the seeds differ so much more that 50 of each would not show the difference"
    said = f"about {wanted} seeds of each would show the difference, should it stay as large"
    return f"{said}; until then it is open"


def _won(
    setting: str,
    best: Contender,
    difference: Estimate,
    base: Contender,
    ranked: Sequence[Contender],
    metric: str,
    rises: bool,
) -> Winner:
    mine, theirs = best.mean(metric), base.mean(metric)
    if difference.has_interval:
        said = (
            f"{best.policy} is better than {base.policy}: {metric} {mine:.4g} against {theirs:.4g}, a difference of "
            f"{signed(difference)} (95 % interval; {difference.method})."
        )
    else:
        said = f"{best.policy} is better than {base.policy}: {metric} {mine:.4g}; {difference.method} of {base.policy}."
    same = [
        other.policy
        for other in ranked
        if other is not best
        and other is not base
        and (len(other.values[metric]) <= FEW or judge(other, best, metric, rises)[1] in (NO_DIFFERENCE, BETTER))
    ]
    sentences = (said, f"Not told apart from it: {', '.join(same)}.") if same else (said,)
    return _named(setting, best, sentences)


def _named(setting: str, best: Contender | None, sentences: tuple[str, ...], advice: str = "") -> Winner:
    if best is None:
        return Winner(setting, None, None, None, sentences, advice=advice)
    run = best.members[0].run
    return Winner(setting, best.policy, run.clip, run.renorm, sentences, run.lr_scale, run.warmup, advice)
