"""Parts that train against each other: one of them wins, and the other is left with no gradient.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradwatch.analysis.rules.facts import USUAL_RATIO, is_adaptive, middle, optimizer_kind
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.layer_facts import matrices, measured, root_mean_square
from gradwatch.analysis.rules.loss_graph import NUMBERS, paths
from gradwatch.analysis.rules.losses import has_rivals, training_losses
from gradwatch.analysis.rules.progress import progress
from gradwatch.history import History


def generator_starves(
    history: History,
    fall: float = 30.0,
    small: float = 100.0,
    min_steps: int = 100,
    first: int = 5,
    times: float = 4.0,
    high: float = 2.5,
) -> list[Finding]:
    """A part whose gradient died away against its rival, and whose weights stand all but still since. A warning.

    In the second half of the run the median gradient norm is below 1/`fall` of the median of its `first` steps, no
    matrix changes in a typical step by more than 1/`small` of what is usual, and nothing that the part logs got better.
    Asked of runs whose parts log losses of their own. Or its rival's loss is next to nothing (`_sure`). Or its gradient
    is there, and its loss has risen to `times` what it was, and above `high`: the answers of its rival are as sure as
    they can be (`_lost`). Or there was none from the start (`_unheard`).
    Source: Goodfellow et al. 2014, section 3 (log(1 - D(G(z))) saturates); Arjovsky & Bottou, arXiv:1701.04862 (a
    perfect discriminator leaves no gradient).
    """
    total = history.total("grad_norm")
    norm = total[np.isfinite(total) & (total > 0)]
    if len(norm) < min_steps or not has_rivals(history):
        return []
    if any(p.is_large(0.2) for p in progress(history)):
        return _sure(history, first)
    begun, late = middle(norm[:first]), middle(norm[len(norm) // 2 :])
    at, ratio = measured(history, "update_ratio")
    ratio = ratio[history.layer_rows[at] >= len(history) // 2][:, matrices(history)]
    if not late < begun / fall or not np.isfinite(ratio).any():
        return _unheard(history) or _lost(history, times, high, first)
    usual = USUAL_RATIO[is_adaptive(history)]
    moves = float(np.nanmax(np.nanmedian(ratio, axis=0)))
    if not moves < usual / small:
        return []
    row = int(np.flatnonzero(total < begun / fall)[0])
    return [
        Finding(
            "generator-starves",
            "warning",
            (),
            int(history.step[row]),
            int(history.step[-1]),
            {"fell_to": late / begun, "grad_norm": late, "update_ratio": moves, "usual": usual},
            f"The gradient of this part fell to {late / begun:.1e} of what it was at first, and a step changes no "
            f"layer by more than {moves:.1e} of its size; under {optimizer_kind(history)} {usual:g} is usual. Its "
            "rival has won, and answers alike whatever this part does.",
            "Give this part the loss that does not saturate (-log D(G(z)), hinge, Wasserstein's with a gradient "
            "penalty), and its rival fewer or shorter steps.",
        )
    ]


def _unheard(history: History, tiny: float = 1e-8) -> list[Finding]:
    """A part that was handed next to no gradient from the start: by the element `tiny`, which is Adam's eps."""
    handed = middle(root_mean_square(history, history.layer("grad_norm"))[:, matrices(history)])
    _, weight = measured(history, "weight_norm")
    if not 0 < handed < tiny or not len(weight) or middle(weight[-1] / weight[0]) < 0.5:
        return []  # one that fades away is to blame itself
    return [
        whole_run(
            history,
            "generator-starves",
            (),
            {"gradient_rms": handed},
            f"What the rival of this part hands back to it is next to no gradient, from the start: {handed:.1e} by the "
            "element.",
            "Look at the rival: weights that are clamped or decayed to next to nothing, or units at their ends, pass "
            "no gradient on.",
        )
    ]


def _sure(history: History, first: int, nothing: float = 0.02) -> list[Finding]:
    """A part whose loss began where that of even odds does, one or two times log 2, and is next to `nothing` since.

    Not of a part whose graph shows a loss of differences, as of a critic that learns values: it has no odds.
    Source: Goodfellow et al. 2014, section 4: at the best of both the discriminator's loss is 2 log 2.
    """
    of_differences = any(each.name in NUMBERS for path, _ in paths(history) for each in path)
    for name in training_losses(history) if not of_differences else ():
        values = history.total(name)
        values = values[np.isfinite(values)]
        begun, late = middle(values[:1]) / np.log(2), values[len(values) // 2 :]
        if not (0.7 < begun < 1.4 or 1.7 < begun < 2.4) or not (len(late) > first and (late >= 0).all()):
            continue
        if middle(late) > nothing * values[0]:
            continue
        return [
            Finding(
                "generator-starves",
                "warning",
                (),
                int(history.step[len(history) // 2]),
                int(history.step[-1]),
                {"metric": name, "began": float(values[0]), "ended": middle(late)},
                f"{name} fell from {values[0]:.3g}, that of even odds, to {middle(late):.2g}: this part tells all that "
                "its rival makes, and leaves it next to no gradient to learn by.",
                "Give this part fewer or shorter steps, or less to go by: labels that are smoothed, noise on what it "
                "sees, a gradient penalty; and its rival the loss that does not saturate.",
            )
        ]
    return []


def _lost(history: History, times: float, high: float, first: int, even: float = 0.5) -> list[Finding]:
    """A part whose loss began near the log 2 of even odds (within the share `even`), and has risen for good since.

    Not of one that was below 0: no entropy is.
    """
    for name in training_losses(history):
        values = history.total(name)
        values = values[np.isfinite(values)]
        begun, late = middle(values[:first]), middle(values[-max(first, len(values) // 4) :])
        if abs(begun - np.log(2)) > even * np.log(2) or not late > max(high, times * begun) or values.min() < 0:
            continue
        row = int(np.flatnonzero(history.total(name) > max(high, times * begun))[0])
        return [
            Finding(
                "generator-starves",
                "warning",
                (),
                int(history.step[row]),
                int(history.step[-1]),
                {"metric": name, "began": begun, "ended": late},
                f"{name} rose from {begun:.3g}, that of even odds, to {late:.3g}: the rival of this part has won, and "
                "is sure of its answers whatever this part does.",
                "Give the rival fewer or shorter steps, or less to go by: labels that are smoothed, noise on what it "
                "sees, a gradient penalty.",
            )
        ]
    return []


def both_won(one: Finding, other: Finding) -> Finding | None:
    """`wrong-sign`, where two rivals are both said to be sure (`_sure`): one of them does the other's work.

    Source: Goodfellow et al. 2014, equation 1: what the one minimises of the made examples the other maximises.
    """
    sure = [f for f in (one, other) if float(f.evidence.get("ended", 0)) < float(f.evidence.get("began", 0))]
    if len(sure) < 2 or {f.rule for f in sure} != {"generator-starves"}:
        return None
    maker, judge = sorted(sure, key=lambda f: float(f.evidence["began"]))
    if float(judge.evidence["began"]) < 1.5 * float(maker.evidence["began"]):  # of a judge there are two terms
        return None
    return replace(
        maker,
        rule="wrong-sign",
        evidence={key: maker.evidence[key] for key in ("metric", "ended")} | {"rival_ended": judge.evidence["ended"]},
        cause=f"{maker.evidence['metric']} fell to {maker.evidence['ended']:.2g} and {judge.evidence['metric']} to "
        f"{judge.evidence['ended']:.2g}, from those of even odds: where one of two rivals tells all, the other's loss "
        f"is high. {either(_ON_ONE_SIDE)}",
        cure="Look at the targets in the maker's loss: what its rival says of what was made is to be called real there "
        "(ones), and made (zeros) in the rival's own.",
        alternatives=_ON_ONE_SIDE,
        consequences=(),
    )


_ON_ONE_SIDE = (
    "the loss of what makes examples asks its rival to know them, as the rival's own does",
    "the two do not train against each other, and nothing is wrong",
)
