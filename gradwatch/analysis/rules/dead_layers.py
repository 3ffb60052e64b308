"""Layers that no gradient moves: it is exactly zero, or there is none at all.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.dead_causes import CHOOSE, FORGETS, IDLE, is_of_the_beginning, of_one, why_dead
from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Evidence, Finding, Why, either, whole_run
from gradwatch.analysis.rules.layer_facts import (
    began_at_zero,
    beside_bias,
    bias_columns,
    columns,
    matrices,
    pick,
    present,
)
from gradwatch.analysis.rules.loss_graph import paths
from gradwatch.analysis.rules.losses import learnt
from gradwatch.analysis.rules.no_gradient import CUT_OFF, ZEROED, is_hardly_missed, wiped
from gradwatch.analysis.rules.once import once
from gradwatch.analysis.rules.progress import all_learnt
from gradwatch.analysis.rules.series import holds_from
from gradwatch.analysis.rules.vanishing import vanishing
from gradwatch.history import Bools, Floats, History
from gradwatch.table import squares


@once
def dead_layer(
    history: History, min_steps: int = 10, most: float = 0.5, often: float = 0.5, done: float = 1e-6
) -> list[Finding]:
    """Layers whose gradient was exactly zero whenever it was seen in the second half of the run.

    Of a network that is dying, most layers are zero for most batches: when more than the share `most` of the layers
    had an exactly zero gradient in more than the share `often` of those steps, these are all dead, and it is an
    error. Fewer layers are a warning, and must be zero throughout. A layer must have been seen in at least
    `min_steps` steps of that half. It is a note where nothing but 0 ever came into these layers: the biases beside
    them have gradients; unless these are all that data is given to; or where one layer of ten or fewer never had
    one and the training succeeds: weights of a state that is 0 in the only step that reads it. A bias is not dead
    while the weight beside it has gradients: they reach the units and cancel (the last bias of a Wasserstein
    critic). Steps whose loss is below `done` times the first do not count: nothing is left to learn there; nor does
    a network whose loss came to rest at its lowest as they became zero (`all_learnt`), or whose gradients faded
    (`faded`). A norm is 0 as well where its square is below what float32 holds: next to layers whose norm is below
    the `smallest` of which it holds one, nothing is said of zeros (`_underflows`). Where every gradient was zero in
    every step it is an error of all layers, which something may have zeroed before the step, too (`_all_zero`), or
    `no-gradient`, where the graph shows what has no slope (`_without_slope`); where it is known that something did
    (`wiped`), `no-gradient` says so, and so it is called where a whole part of the model never got one, or the
    weights of a recurrence that are given its state (`weight_hh_l0`), which is 0 in every call then. Where weights
    that were 0 at first pass none on, or biases that began far from 0 let nothing through, it is `bad-initialisation`.
    A warning, too, where the loss came to exactly 0 within the first steps (`_nothing_left_at_once`).
    Source: dead ReLU units give exact zeros (methods: S4); SageMaker Debugger's DyingReLU.
    """
    if wiped(history):
        return []
    if _is_zero(history, min_steps):
        return _all_zero(history)
    if at_once := _nothing_left_at_once(history):
        return at_once
    learnt_all = learnt(history, done)[history.layer_rows]
    norm, there = history.layer("grad_norm"), present(history)  # [R, L]
    if learnt_all.any():
        norm, there = np.where(learnt_all[:, None], np.nan, norm), there & ~learnt_all[:, None]
    late = history.layer_rows >= len(history) // 2
    steps = history.stands_for[late, None] * there[late]
    seen = steps.sum(axis=0)
    zero_share = np.where(seen >= min_steps, (steps * (norm[late] == 0)).sum(axis=0) / np.maximum(seen, 1), 0)
    zero_share = np.where(_cancels(history, norm[late]), 0, zero_share)
    dead = zero_share > often
    dying_network = dead.sum() > most * len(dead)
    if (dying_network and (all_learnt(history) or faded(history))) or _underflows(norm[late]):
        return []
    if not dying_network:
        dead = (zero_share == 1) & ((norm[late] == 0) | ~there[late]).all(axis=0)
    if not dead.any() or not (norm > 0).any():
        return _under_a_derivative(history, min_steps) or _nothing_but_rounding(history, min_steps)
    first = _since(norm[:, dead], there[:, dead], late)
    start = first <= int(np.flatnonzero(there[:, dead].any(axis=1))[0])
    idle = start and not dying_network and _idle(history, dead)
    apart = start and not idle and not dying_network and _is_a_part(history, dead)
    apart &= not of_one(history, pick(history, dead))
    lone = start and 10 * dead.sum() <= len(dead) and is_hardly_missed(history, dead, np.ones_like(dead))
    lone |= not dying_network and is_hardly_missed(history, dead, np.ones_like(dead), 0.001)
    why = why_dead(history, dead, start, idle, apart)
    return [
        why.finding(
            history,
            _called(why, apart),
            pick(history, dead),
            {
                "layers": int(dead.sum()),
                "of": len(dead),
                "since": "the start" if start else f"step {int(history.layer_step[first])}",
            },
            "error" if dying_network else "note" if why is IDLE or lone else "warning",
            int(history.layer_step[first]),
        )
    ]


def _called(why: Why, apart: bool) -> str:
    """By what the cause asks for, where that is known."""
    if apart or why is FORGETS:
        return "no-gradient"
    return "bad-initialisation" if is_of_the_beginning(why) else "dead-layer"


def _underflows(norm: Floats, smallest: float = 1.1e-19) -> bool:
    """Whether some layers have norms `[R, L]` so small, step for step, that those of others may be no zeros.

    Gradients that vanish do so along the depth: those of the next layers are all but too small for it already.
    """
    least = np.where(norm > 0, norm, np.inf).min(axis=1, initial=np.inf)
    return middle(least[(norm == 0).any(axis=1)]) < 100 * smallest


def _under_a_derivative(history: History, min_steps: int) -> list[Finding]:
    """All biases but the last are exactly zero throughout, the weights beside them are not, and there are ReLUs.

    So it is where a loss is taken of derivatives of the network by its inputs alone: a ReLU's is a step, in which a
    bias has no part. Of no healthy training of the tests so.
    Source: Raissi et al., arXiv:1711.10561 (networks under a derivative have smooth activations there).
    """
    if "ReLU" not in history.run.modules.values() or len(history) < min_steps:
        return []
    norm, wide = history.layer("grad_norm"), matrices(history)
    last = max((i for name, i in columns(history).items() if wide[i] and beside_bias(name) != name), default=-1)
    inner = [(weight, bias) for weight, bias in bias_columns(history).items() if wide[weight] and weight != last]
    if not inner or not all((norm[:, bias] == 0).all() and (norm[:, weight] > 0).any() for weight, bias in inner):
        return []
    layers = tuple(history.layers[bias] for _, bias in inner)
    evidence: Evidence = {"layers": len(layers), "of": len(history.layers), "since": "the start"}
    cause = "The biases of these layers never get a gradient, and the weights beside them do: the loss depends on "
    cause += "derivatives of the network alone, and that of a ReLU is a step, which no bias moves by a gradient. What "
    cause += "the network can say so is constant from piece to piece."
    cure = "Take an activation with a slope that changes: tanh, softplus, SiLU, sine."
    return [whole_run(history, "dead-layer", layers, evidence, cause, cure)]


def _is_a_part(history: History, dead: Bools) -> bool:
    """Whether these layers `[L]` are all of some part of the model, its last ones too, and another part is trained.

    Units that are dead leave the layers behind them alive: it is what the part gives out that nothing depends on. A
    part of one matrix counts where the graph shows it right behind the loss, and nothing flat in between.
    """
    parts = [name.partition(".")[0] for name in history.layers]
    own = {part for part, is_dead in zip(parts, dead, strict=True) if is_dead}
    others = {part for part, is_dead in zip(parts, dead, strict=True) if not is_dead}
    matrix = matrices(history)
    sizes = {each: sum(m for part, m in zip(parts, matrix, strict=True) if part == each) for each in own}
    ends = {layer.partition(".")[0] for path, layer in paths(history) if not {op.name for op in path} & _SATURATE}
    return bool(others) and not own & others and all(sizes[each] > 1 or each in ends for each in own)


def _is_zero(history: History, min_steps: int) -> bool:
    """Whether there were gradients, and each of them was exactly 0."""
    norm, there = history.layer("grad_norm"), present(history)
    return bool(len(history) >= min_steps and there.any() and ((norm == 0) | ~there).all())


def _all_zero(history: History) -> list[Finding]:
    """All layers are dead from the start: zeros are multiplied, the loss is flat, or something zeroes the gradients."""
    layers = len(history.layers)
    evidence: Evidence = {"layers": layers, "of": layers, "since": "the start"}
    zero = began_at_zero(history)
    if zero.any():
        every = zero[matrices(history)].all()
        which = "so is every weight" if every else "so were these weights at first"
        cause = f"Every gradient is exactly 0, and {which}: a product of zeros passes none on."
        cure = "Begin with other weights than 0 in all but one factor."
        found = () if every else pick(history, zero)
        return [whole_run(history, "bad-initialisation", found, evidence, cause, cure, severity="error")]
    if flat := _without_slope(history):
        cause = f"Every gradient is exactly 0: {flat}."
        cure = "Take the loss of what comes before that, and round or compare only what is counted."
        return [whole_run(history, "no-gradient", (), evidence, cause, cure, severity="error")]
    if chosen := of_one(history, history.layers):
        cause = f"Every gradient is exactly 0: {chosen}."
        return [whole_run(history, "dead-layer", (), evidence, cause, CHOOSE, severity="error")]
    causes = (_FLAT, ZEROED, CUT_OFF)
    cause = f"Every gradient is exactly 0 when the optimizer steps. {either(causes)}"
    cure = "Look at the outputs in the first step: where a ReLU or a clamp makes all of them 0, softplus in its place, "
    cure += "or another bias; and at each factor of the loss (a weight, an advantage): is one 0 throughout? An "
    cure += "overlap is, of boxes that do not meet: take a loss that knows how far apart they are (GIoU). If no output "
    cure += "or factor is, the order is optimizer.zero_grad(), loss.backward(), optimizer.step()."
    return [whole_run(history, "dead-layer", (), evidence, cause, cure, causes, severity="error")]


def _nothing_left_at_once(history: History, early: float = 0.02, min_steps: int = 100) -> list[Finding]:
    """The loss came to exactly 0 within the share `early` of a run of `min_steps` or more, and no gradient came since.

    Margins that are learnt to be kept are broken again now and then, in the healthy trainings of the tests until half
    of the run is over.
    """
    norm, nothing = history.total("grad_norm"), learnt(history, 0.0)
    row = holds_from((norm == 0) & nothing)
    if len(history) < min_steps or row > early * len(history):
        return []
    evidence: Evidence = {
        "layers": len(history.layers),
        "of": len(history.layers),
        "since": f"step {history.step[row]}",
    }
    cause = (
        f"From step {history.step[row]} on the loss is exactly 0 and so is every gradient: nearly all of the run "
        "teaches nothing. Most likely the loss asks for less than is meant: a margin that is kept as it is, a clamp at "
        "0, targets that are swapped or the same as what is compared with them."
    )
    cure = (
        "Look at the terms of the loss in the first steps: which are 0 for all examples, and should they be? Swap or "
        "raise the margins; for pairs, take negatives that are close."
    )
    return [Finding("dead-layer", "warning", (), int(history.step[row]), int(history.step[-1]), evidence, cause, cure)]


def _without_slope(history: History) -> str:
    """What on all ways from the loss to the weights has no slope anywhere, as the graph shows it, in words."""
    ways = [path for path, _ in paths(history)]
    stepped = [next((each.name for each in way if each.name in _STEPS), "") for way in ways]
    if stepped and all(stepped):
        return f"the loss is taken of numbers that are rounded ({stepped[0].lower()}), whose slope is 0 everywhere"
    return ""


_STEPS = ("Round", "Sign", "Floor", "Ceil", "Trunc")
_SATURATE = {*_STEPS, "Relu", "Clamp", "ClampMin", "ClampMax", "Hardtanh", "Sigmoid", "Tanh", "Softmax", "SafeSoftmax"}
_FLAT = "what the loss depends on is flat for all examples (a ReLU or a clamp at the output, a factor of 0)"


def _nothing_but_rounding(
    history: History, min_steps: int, share: float = 1e-6, most: float = 3e-5, first: int = 20
) -> list[Finding]:
    """Weights and the biases beside them whose gradient is what is left of terms that cancel. A warning.

    Below the `share` of the whole by the median of the `first` steps, and below `most` in nine of ten steps of the run:
    a float32 is good to 6e-8. Less than half of the matrices are so, for a gradient that shrinks along the depth is
    `vanishing`. The least in healthy trainings of the tests is 4e-6.
    """
    norm, whole = history.layer("grad_norm"), np.sqrt(squares(history.layer("grad_norm")))
    early, late = np.full(norm.shape[1], np.nan), np.full(norm.shape[1], np.nan)
    for i, own in enumerate(norm.T):
        part = np.where(np.isfinite(own) & (own > 0), own, np.nan) / whole
        if np.isfinite(part).sum() >= min_steps and np.isfinite(part[:first]).any():
            early[i], late[i] = np.nanmedian(part[:first]), np.nanquantile(part, 0.9)
    small = (early < share) & (late < most)
    beside = np.array([bias_columns(history).get(i, i) for i in range(len(small))], np.intp)
    weights = small & small[beside] & matrices(history)
    if not weights.any() or weights.sum() >= matrices(history).sum() / 2 or vanishing(history):
        return []
    left = float(np.nanmax(early[weights]))
    return [
        whole_run(
            history,
            "dead-layer",
            pick(history, weights),
            {
                "layers": int(weights.sum()),
                "of": len(weights),
                "since": "the start",
                "share_of_the_gradient": left,
            },
            f"These weights get {left:.1g} of the gradient, which is what rounding leaves of terms that cancel, "
            f"and their steps are chance. {either(_CANCELS)}",
            "Look at what their outputs go through next. If the result is the same whatever they are (1, or 0), "
            "take that division or subtraction out of the way where there is one only.",
            _CANCELS,
        )
    ]


_CANCELS = (
    "what they give out is taken away again (a share of a sum over one choice, a value less the mean over one place)",
    "their units, or a softmax behind them, are saturated",
)


def faded(history: History, share: float = 1e-4, width: int = 10) -> bool:
    """Whether the gradient of the whole network came to exactly zero, and was next to nothing before.

    By the median of the `width` steps before the zeros that last: below `share` of the first ones. The weights came to
    rest where they lower the loss no further; a step that kills units leaves no gradient at once.
    """
    norm = history.total("grad_norm")
    alive = np.flatnonzero(norm > 0)
    if len(alive) < 3 * width or alive[-1] == len(norm) - 1 or norm[alive[-1] + 1 :].any():
        return False
    before = norm[alive[-width:]]
    return middle(before) < share * middle(norm[alive[:width]])


def _idle(history: History, dead: Bools) -> bool:
    """Whether the bias beside each of these weights `[L]` has gradients: what comes into them is 0 throughout."""
    norm = history.layer("grad_norm")
    beside = [bias_columns(history).get(int(i)) for i in np.flatnonzero(dead)]
    return all(i is not None and not dead[i] and (norm[:, i] > 0).any() for i in beside)


def _cancels(history: History, norm: Floats) -> Bools:
    """Which layers are biases, `[L]`, whose module's weight has a gradient in each of these rows where theirs is 0."""
    out = np.zeros(len(history.layers), bool)
    for weight, bias in bias_columns(history).items():
        out[bias] |= (norm[norm[:, bias] == 0, weight] > 0).all()
    return out


def _since(norm: Floats, there: Bools, late: Bools) -> int:
    """The row after which none of these layers had a gradient; for layers that wake at times, the first with none."""
    alive = np.flatnonzero((norm > 0).any(axis=1))
    if not len(alive) or not late[alive[-1]]:
        return int(alive[-1]) + 1 if len(alive) else 0
    return int(((norm == 0) | ~there).all(axis=1).argmax())
