"""What is said of spikes: the causes that remain, and what to do."""

from __future__ import annotations

import math

import numpy as np

from gradwatch.analysis.rules.facts import GUARD, is_adaptive, optimizer_kind
from gradwatch.analysis.rules.finding import Evidence, either
from gradwatch.analysis.rules.largest_row import LargestRow
from gradwatch.analysis.rules.tries import A_THIRD, OWN_PAST, clip_with
from gradwatch.history import History
from gradwatch.policies import SkipSpike

SPARED = 0.5  # of the other layers' gradients, which a clip leaves where one row stands out: below it they lose much
STAYED = 3.0  # times the usual gradient
ACTS_FROM = SkipSpike().window // 2  # before so many steps it skips none
OF_LASTING = ("that batch is odd", "other data, or another loss, came with it")
OF_SPIKES = ("the batches of these steps are odd", "the learning rate is too high")


def cause_of(history: History, evidence: Evidence, batch: int | None, spikes: int, causes: tuple[str, ...]) -> str:
    """The words of so many `spikes` of the norm, or of the loss alone where there are none; `batch` is an odd one."""
    step, times = evidence["largest_step"], float(evidence["times_usual"])
    many = f"{evidence['spikes']} steps stand out" if evidence["spikes"] != 1 else "1 step stands out"
    if batch is not None:
        high = "leapt with it" if np.isfinite(history.total("grad_norm")[batch]) else "were not finite"
        at = int(history.step[batch])
        said = f"{many}. The loss leapt in step {at} out of a calm, and the gradients {high}"
        return f"{said}, and the loss stayed up. {either(causes)}" if causes else f"{said}: that batch is odd."
    if not spikes:
        stayed = "while the gradients stayed usual"
        how = stayed if times < STAYED else f"and the gradient was {times:.3g} times the usual"
        said = f"The loss jumped at step {step} {how}"
        return f"{said}. {either(causes)}" if causes else f"{said}: an odd batch."
    has_clip = history.run.clip or evidence["caught"]  # or one of the loop's own
    which = "them all" if evidence["caught"] == spikes else f"{evidence['caught']} of them"
    who = f", and the clip caught {which}" if has_clip else ""
    return f"{many}; the gradient of step {step} is {times:.3g} times the usual one{who}. {either(causes)}"


def of_other_data(others: bool, alone: bool) -> tuple[str, tuple[str, ...]]:
    """The words where it stays up for several steps, and a clip to be tried where it does so once, `alone`; `others`:
    what the model is given is of another size from there on.
    """
    cure = "Look at the batches from that step on: whether rows are drawn in a random order, and whether other data, "
    cure += "targets or weights of the loss came. A clip does not make such data usual, and what is left out is not "
    cure += "learnt. If they are like the others, the steps have become too long: lower the learning rate to a third"
    if others:
        return f"What the model is given is of another size from there on. {cure}.", (A_THIRD,)
    if not alone:
        return f"{cure}.", (A_THIRD,)
    limit = f"chain(SkipNonfinite(), {GUARD})"
    return f'{cure}; if that batch alone is odd, limit it: clip="{limit}".', (A_THIRD, clip_with(limit))


OF_MILD = (
    "Look at the batches of these steps. The loss came back after each, so that a clip wins little: what it takes from "
    "them it takes from steps that are as large and healthy, too. If the loss does not fall, these are not why."
)


def cure_of(
    history: History, many: bool, late: bool, passed: bool, row: LargestRow | None
) -> tuple[str, tuple[str, ...]]:
    """The words, and what can be tried; `late`: any is where SkipSpike acts."""
    if row is not None and math.isfinite(row.usual) and (not passed or row.others_kept < SPARED):
        limit = f"chain(SkipNonfinite(), {row.bound}, {GUARD})"
        return f'Bound each row by itself, which spares all others: clip="{limit}". Look at where that row is used.', (
            clip_with(limit),
        )
    if passed and not many:
        return "Nothing needs to change; look at the batch of that step if it comes back.", ()
    leave_out = '; or leave such steps out: clip="chain(SkipNonfinite(), SkipSpike())"' if late else ""
    leave_out += ". Look at that step's batch."
    skip = ("--skip",) if late else ()
    if many and is_adaptive(history):
        return (
            f'Bound each layer by its own past: clip="{OWN_PAST}", because a threshold from the norms has so many '
            f"spikes below it, and {optimizer_kind(history)} remembers each of them for long{leave_out}"
        ), (clip_with(OWN_PAST), *skip)
    limit = f"chain(SkipNonfinite(), {GUARD})"
    return f'Limit it: clip="{limit}"{leave_out}', (clip_with(limit), *skip)
