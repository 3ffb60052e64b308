"""Which findings are roots, and what follows from each: by what may follow from what, and in the order of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradwatch.analysis.rules.consequences import CONSEQUENCES
from gradwatch.analysis.rules.finding import RANK, Finding
from gradwatch.analysis.rules.rivals import both_won

SIGNS, SIGN_STEPS = (
    {
        "exploding": {"spike", "lr-too-high", "update-too-large", "weight-growth"},
        "lr-too-high": {"update-too-large", "spike"},
        "expert-starved": {"dead-layer"},
    },
    50,
)
"""What may be seen of each of these up to so many steps before itself: it stands under it all the same."""
_OF_THE_RUN = {
    "labels-do-not-fit-inputs",
    "no-progress",
    "noise-dominated",
    "update-too-small",
    "class-imbalance",
    "representation-collapse",
    "overfitting",
}  # seen at its end, whatever they begin with
_LATE = {"weight-growth", "dead-layer", "vanishing"}  # seen some steps after what did it
_AT_ONCE = 10  # or so many after a spike that the training recovered from: what begins later has another cause
_LEAPS_WITHIN = 10  # steps of an explosion
_HANDS_ON = {  # from a part to its rival
    **{rule: {rule} for rule in ("nonfinite", "exploding", "generator-starves")},
    **{rule: {"generator-starves"} for rule in ("wrong-sign", "optimizer-holds-both-networks")},
}


def group(findings: Iterable[Finding]) -> list[Finding]:
    """The roots of these findings of one lane, each with its consequences, in the order of their first steps.

    A finding follows from another whose set in `CONSEQUENCES` names its rule, which began no later (but for `SIGNS`)
    and had not ended before it. A root is as severe as the worst of its consequences; but where other data or another
    loss may explain it, what follows from it is no more than it.
    """
    places = {rule: place for place, rule in enumerate(CONSEQUENCES)}
    findings = list(findings)

    def place(finding: Finding) -> float:
        return places["lr-too-high"] + 0.5 if _by_steps(finding) else places.get(finding.rule, len(places))

    ordered = sorted(findings, key=lambda f: (_began(f, findings), place(f)))
    root_of: list[int] = []
    for i, finding in enumerate(ordered):
        causes = (j for j, other in enumerate(ordered[:i]) if _follows(finding, other))
        root_of.append(next((root_of[j] for j in causes), i))
    roots = []
    for i, root in enumerate(ordered):
        if root_of[i] == i:
            below = [f for j, f in enumerate(ordered) if root_of[j] == i and j != i]
            if "began_anew" in root.evidence:
                below = [replace(f, severity=max(f, root, key=_rank).severity) for f in below]
            below.sort(key=lambda f: (_rank(f), f.first_step))
            worst = min((root, *below), key=_rank).severity
            roots.append(replace(root, severity=worst, consequences=tuple(below)))
    return roots


def _rank(finding: Finding) -> int:
    return RANK[finding.severity]


def _by_steps(finding: Finding) -> bool:
    """Whether it is that a training came apart along its steps, not along depth or time."""
    return finding.rule == "exploding" and finding.evidence.get("along") == "steps"


def _began(finding: Finding, findings: list[Finding]) -> int:
    """The first step of a finding, of a sign of another (`SIGNS`) that of the other, of an explosion along the steps
    that of a leap right behind it; of what sums up a run, its last.
    """
    if finding.rule in _OF_THE_RUN or "left_of_the_gradient" in finding.evidence:
        return finding.last_step
    if "began_anew" in finding.evidence:  # what is seen in that step itself says more
        return finding.first_step + 1
    sign_of = {rule for rule, signs in SIGNS.items() if finding.rule in signs and "odd_batch" not in finding.evidence}
    if finding.rule == "spike" and "rose_before" not in finding.evidence:
        sign_of.discard("lr-too-high")  # out of a calm: a batch may have thrown the training, and its loss after that
    ahead = [f.first_step for f in findings if f.rule in sign_of]
    if _by_steps(finding):  # too long ones are why, though their loss may be seen to leap a little later
        long = [f.first_step for f in findings if f.rule == "lr-too-high"]
        ahead = [step for step in long if step <= finding.first_step + _LEAPS_WITHIN]
    stayed = finding.rule == "spike" and finding.evidence.get("recovered") == "no"  # up to where it came apart
    until = max(finding.first_step + SIGN_STEPS, finding.last_step if stayed else 0)
    return max([finding.first_step, *(step for step in ahead if step <= until)])


def _follows(finding: Finding, other: Finding) -> bool:
    passed = other.evidence.get("recovered") == "yes"  # a spike; what a loss rests at may be for many of them
    last = finding.first_step - ((_AT_ONCE if passed else SIGN_STEPS) if finding.rule in _LATE else 0)
    if finding.rule in _OF_THE_RUN:  # what was over in the first half of a run does not explain it
        last = (finding.first_step + finding.last_step) // 2
    idle = other.rule == "dead-layer" and other.severity == "note"  # it harms nothing
    idle |= finding.rule in _OF_THE_RUN and passed and "left" not in finding.evidence
    idle |= other.rule == "not-in-optimizer" and "note" in (finding.severity, other.severity)  # of others, or of none
    goes_on = finding.rule in _OF_THE_RUN and other.rule == "lr-too-high" and other.severity != "note"
    lasts = goes_on or other.last_step >= last  # steps as long go on behind the throw
    return finding.rule in CONSEQUENCES.get(other.rule, ()) and lasts and not idle


def passed_on(roots: list[Finding], ends: dict[str, int]) -> list[Finding]:
    """These roots of parts that train against each other: of what a part hands on to its rival, the first is the root.

    One judge that wins starves its rival, whichever of the two shows it. What was over before the end of its own part
    (`ends`, their last steps) was not handed on.
    """

    def hands_on(other: Finding, rule: str) -> bool:
        return rule in _HANDS_ON.get(other.rule, ()) and other.last_step >= ends[other.optimizer]

    kept: list[Finding] = []
    for root in roots:
        first = next((i for i, other in enumerate(kept) if hands_on(other, root.rule)), None)
        if first is None:
            kept.append(root)
        else:
            below = (*kept[first].consequences, replace(root, consequences=()), *root.consequences)
            kept[first] = both_won(kept[first], root) or replace(kept[first], consequences=below)
    return kept
