"""Which policy to take: the verdict over one policy against the baseline, and the winner of a setting in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwatch.analysis import intervals
from gradwatch.analysis.groups import higher_is_better
from gradwatch.analysis.intervals import NAN, Estimate
from gradwatch.history import History

BETTER, WORSE, NO_DIFFERENCE, NOT_JUDGED, BASELINE = (
    "better", "worse", "no difference shown", "not judged", "baseline"
)  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """The runs of one policy in one setting: `values[metric][seed]` is a final value, NaN of a run that diverged."""

    policy: str
    members: list[History]
    values: dict[str, dict[str, float]]
    diverged: int

    @property
    def share(self) -> float:
        """The share of its runs that diverged."""
        return self.diverged / len(self.members)


@dataclass(frozen=True)
class Winner:
    """What follows from the comparison of one setting: sentences, and the policy to take; None where it is none.

    `clip` and `renorm` are the policy as `watch()` and the command line take it.
    """

    setting: str
    policy: str | None
    clip: str | None
    renorm: str | None
    sentences: tuple[str, ...]


def judge(ours: Contender, theirs: Contender, metric: str) -> tuple[Estimate, str]:
    """The difference of the final values, ours minus theirs, and the verdict over ours in a word.

    Of a metric that is meant to fall, and is positive in all runs (a loss), it is the relative change.
    A verdict needs two seeds. Where all runs of one side diverged and none of the other's, that decides; with anything
    in between, the finished runs do, unless they speak for the side that diverged more often.
    """
    mine, others = ours.values[metric], theirs.values[metric]
    falling = not higher_is_better(metric) and all(not value <= 0 for value in (*mine.values(), *others.values()))
    difference = (intervals.change if falling else intervals.difference)(mine, others)
    enough = min(len(ours.members), len(theirs.members)) > 1
    if {ours.share, theirs.share} == {0.0, 1.0}:
        method = f"{ours.diverged} of {len(ours.members)} runs diverged, {theirs.diverged} of {len(theirs.members)}"
        word = WORSE if ours.share else BETTER
        return Estimate(NAN, method=method), word if enough else NOT_JUDGED
    if not difference.has_interval:
        return difference, NOT_JUDGED
    side = difference.side() * (1 if higher_is_better(metric) else -1)
    if side * (ours.share - theirs.share) > 0:
        side = 0
    return difference, {1: BETTER, -1: WORSE, 0: NO_DIFFERENCE}[side]


def signed(found: Estimate) -> str:
    """`-0.81 (-0.92 to -0.7)`, or `-41 % (-52 to -27 %)`; without the brackets where there is no interval."""
    scale, unit = (100, " %") if found.is_share else (1, "")
    text = f"{scale * found.value:+.3g}{unit}"
    ends = f" ({scale * found.low:+.3g} to {scale * found.high:+.3g}{unit})"
    return text + (ends if found.has_interval else "")


def winner(setting: str, ranked: Sequence[Contender], base: Contender | None, metric: str) -> Winner:
    """The winner among the contenders of one setting, the best mean first; against the baseline if there is one."""
    judged = [(one, *judge(one, base, metric)) for one in ranked if base is not None and one is not base]
    best = ranked[0]
    won = [(one, difference) for one, difference, word in judged if word == BETTER]
    if won:
        assert base is not None
        return _won(setting, *won[0], base, ranked, metric)
    if base is None or all(word == NOT_JUDGED for _, _, word in judged):
        why = "the baseline was not run" if base is None else "with so few finished runs nothing is shown"
        mean = intervals.mean(list(best.values[metric].values())).value
        said = f"{best.policy} has the best {metric}, {mean:.4g}, but {why}."
        return _named(setting, best if best.share < 1 else None, (said,))
    said = f"No policy is shown to be better than {base.policy}"
    said += "." if best is base else f"; {best.policy} has the best mean of {metric}, but its interval leaves it open."
    return Winner(setting, None, None, None, (said,))


def _won(
    setting: str, best: Contender, difference: Estimate, base: Contender, ranked: Sequence[Contender], metric: str
) -> Winner:
    mine = intervals.mean(list(best.values[metric].values())).value
    if difference.has_interval:
        theirs = intervals.mean(list(base.values[metric].values())).value
        said = (
            f"{best.policy} is better than {base.policy}: {metric} {mine:.4g} against {theirs:.4g}, a difference of "
            f"{signed(difference)} (95 % interval; {difference.method})."
        )
    else:
        said = f"{best.policy} is better than {base.policy}: {metric} {mine:.4g}; {difference.method} of {base.policy}."
    same = [
        other.policy
        for other in ranked
        if other is not best and other is not base and judge(other, best, metric)[1] in (NO_DIFFERENCE, BETTER)
    ]
    sentences = (said, f"Not told apart from it: {', '.join(same)}.") if same else (said,)
    return _named(setting, best, sentences)


def _named(setting: str, best: Contender | None, sentences: tuple[str, ...]) -> Winner:
    if best is None:
        return Winner(setting, None, None, None, sentences)
    run = best.members[0].run
    return Winner(setting, best.policy, run.clip, run.renorm, sentences)
