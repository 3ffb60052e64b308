"""Parameters that could learn and never do: no gradient comes to them, or they were frozen before they were trained.

Legend: R recorded rows of the layers, L layers.
"""

from __future__ import annotations

import math
import re

import numpy as np

from gradwatch.analysis.rules.finding import Evidence, Finding, either, whole_run
from gradwatch.analysis.rules.layer_facts import beside_bias, matrices, numel, pick, present, shapes_of
from gradwatch.analysis.rules.loss_graph import paths
from gradwatch.analysis.rules.progress import can_be_judged, judged_losses, progress, succeeds
from gradwatch.analysis.rules.sampled_losses import LEAST_SAMPLES, in_most_looks, of_what, sampled, share_explained
from gradwatch.analysis.rules.series import late_median
from gradwatch.formatting import percent
from gradwatch.formulas import is_as_drawn
from gradwatch.history import Bools, History

ZEROED, CUT_OFF = "zero_grad() stands between backward() and step()", "the loss does not depend on the weights"
_STRAY = re.compile(r"(^|\.)param_groups\.\d+\.\d+$|(^|\.)optimizer\.")


def no_gradient(history: History, min_steps: int = 10, little: float = 0.1) -> list[Finding]:
    """Parameters that can learn and never do: no gradient came in `min_steps` steps. A warning; a note where they are
    less than the share `little` of all, and the training succeeds: the last block of a stack may give out what nobody
    reads.

    Those that were frozen (`requires_grad=False`) when the run began are left out, but where the optimizer holds them
    and they have not been trained before (`_never_trained`): a part that was left frozen by mistake. So is a bias
    beside a weight that got one: a loss of differences or derivatives knows no constants. Where no layer had a
    gradient in any step, or something took them all away before it (`wiped`), it is one finding of all of them, and an
    error (`_nowhere`). Parameters that are made on the way to the loss, and gone afterwards, are one of their own
    (`_made_on_the_way`); so is a thing that the loss takes off itself (`_of_itself`).
    Source: SageMaker Debugger's UnchangedTensor asks the same of the weights.
    """
    seen = present(history)  # [R, L]
    if wiped(history):
        return _gone(history)
    if len(history) >= min_steps and seen.shape[1] and not seen.any():
        return _nowhere(history)
    frozen = {layer.name for layer in history.run.layers if layer.frozen}
    can = np.array([name not in frozen for name in history.layers], bool)
    silent = ~seen.any(axis=0) if len(history) >= min_steps and seen.any() else np.zeros(len(can), bool)
    beside = {beside_bias(name) for name, rows in zip(history.layers, seen.T, strict=True) if rows.any()}
    never = can & silent & np.array([name not in beside for name in history.layers], bool)
    raw = _never_trained(history, ~can & silent)
    findings = [*_made_on_the_way(history), *_of_itself(history), *_at_rest(history)]
    if never.any():
        small = is_hardly_missed(history, never, can, little)
        findings.append(
            whole_run(
                history,
                "no-gradient",
                pick(history, never),
                {"layers": int(never.sum()), "missing": "no gradient"},
                "The loss does not depend on these parameters, or not through anything that passes a gradient: the "
                "module is not called, its output is not used, is detached, or only chooses an index.",
                "Look at the output of their module: output.grad_fn, and that of each tensor from there to the loss; "
                "the first that is None stands behind the cut. An index (argmax, topk, the nearest code) passes none "
                "back: weigh what is chosen by its share, or give these parameters a term of the loss of their own. "
                "checkpoint(use_reentrant=True) passes none back to a block whose input asks for none: "
                "use_reentrant=False. If nothing is cut, use the module, or set requires_grad_(False) if it is meant "
                "to rest.",
                severity="note" if small else "warning",
            )
        )
    if raw:
        findings.append(
            whole_run(
                history,
                "no-gradient",
                raw,
                {"layers": len(raw), "missing": "training"},
                "These parameters are frozen, the optimizer holds them, and their size is that of weights as they are "
                "drawn at first: most of what is frozen was never trained.",
                "Unfreeze them (requires_grad_(True)), or load what they were trained to; if they are meant to stay "
                "random, leave them out of the optimizer.",
            )
        )
    return findings


def is_hardly_missed(history: History, layers: Bools, of: Bools, share: float = 0.1) -> bool:
    """Whether these layers `[L]` have less than the `share` of the elements of others, and the training succeeds."""
    sizes = numel(history)
    return bool(sizes[layers].sum() < share * sizes[of].sum()) and succeeds(history)


def _made_on_the_way(history: History, least: int = 2) -> list[Finding]:
    """Parameters of a loss that were gone when the next one was looked at, in `least` samples: nothing trained them."""
    _, gone = sampled(history, "parameters_gone")
    if len(gone) < least:
        return []
    number = float(np.median(gone))
    return [
        whole_run(
            history,
            "no-gradient",
            "",
            {"parameters": number, "missing": "the parameters"},
            f"{number:.0f} parameters on the way from the weights to the loss are others in each step: a layer is made "
            "anew in each call, drawn at random, and no optimizer ever holds it.",
            "Make the layer in __init__, keep it as self.name, and build the optimizer after that.",
        )
    ]


def _at_rest(history: History, large: float = 0.2, min_steps: int = 100, running: int = 500) -> list[Finding]:
    """Most of a model is frozen as it was drawn, in no optimizer, and what is trained wins less than the share `large`.

    More than the trained layers have, and more than half of what is frozen.
    """
    if head := _frozen_head(history, large, min_steps, running):
        return head
    frozen, drawn = (float(history.total(name)[:1].sum()) for name in ("frozen_elements", "frozen_as_drawn"))
    trained = float(numel(history).sum())
    known = progress(history) if can_be_judged(history, min_steps, running) else []
    known = [p for p in known if p.is_loss] or known  # an accuracy doubles soon that begins at chance
    if not drawn > max(frozen / 2, trained) or not known or any(p.is_large(large) for p in known):
        return _frozen_body(history)
    return [
        whole_run(
            history,
            "no-gradient",
            "",
            {"frozen": frozen, "as_drawn": drawn, "trained": trained, "missing": "training"},
            f"{frozen:,.0f} of the model's weights are frozen, beside {trained:,.0f} that are trained, and most are as "
            "large as weights are drawn at first: nothing has trained them.",
            "Load what they were trained to before they are frozen, or leave them out of the freezing "
            "(requires_grad_(True), and into the optimizer). Random features that are meant need no change.",
        )
    ]


def _frozen_body(
    history: History, little: float = 0.3, times: float = 4.0, few: int = 2, min_steps: int = 100, running: int = 500
) -> list[Finding]:
    """All but the last `few` matrices or less is frozen, `times` what is trained or more, and what is said explains
    less than the share `little` of what is asked for in the last quarter of the samples.

    The healthy trainings of the tests of which only the last layers are trained explain 0.55 or more.
    Source: Yosinski et al. 2014, arXiv:1411.1792 (features that are kept frozen suit another task the less, the further
    it is); Kumar et al. 2022, arXiv:2202.10054 (a head first, then the body at a low rate).
    """
    held = np.array([layer.frozen for layer in history.run.layers], bool)
    sizes = np.array([math.prod(layer.shape) for layer in history.run.layers], float)
    wide = np.array([sum(size > 1 for size in layer.shape) > 1 for layer in history.run.layers], bool)
    frozen = float(sizes[held & wide].sum() + np.nan_to_num(history.total("frozen_elements")[:1]).sum())
    trained, share = float(sizes[~held].sum()), share_explained(history)
    is_of_the_last = not held.any() or not (~held)[: int(np.flatnonzero(held)[-1])].any()
    if not 0 < (wide & ~held).sum() <= few or frozen < times * trained or not is_of_the_last:
        return []
    if len(share) < LEAST_SAMPLES or not judged_losses(history, min_steps, running):
        return []
    told = late_median(share)
    if told > little:
        return []
    of, constant = of_what(history)
    return [
        whole_run(
            history,
            "no-gradient",
            "",
            {
                "missing": "training of the body",
                "frozen": frozen,
                "trained": trained,
                "explained": told,
            },
            f"{frozen:,.0f} of the model's weights are frozen, and the {trained:,.0f} behind them that are "
            f"trained explain {percent(max(told, 0.0))} of the {of} that are asked for (to know "
            f"{constant} explains none of it). {either(_FROZEN)}",
            "Thaw the last blocks of the frozen part, at a tenth of the head's rate, and if the training loss falls "
            "further, all of it, at a third of that rate or more. If it does not, train longer, and look at the "
            "targets.",
            _FROZEN,
        )
    ]


_FROZEN = (
    "what the frozen part was taught tells too little of what is asked for here",
    "the run is short for it, or little can be told (noise in the targets)",
)


def _frozen_head(history: History, large: float, min_steps: int, running: int) -> list[Finding]:
    """The last matrix is frozen as it was drawn: the graph shows it right below a loss, and nothing trained it."""
    known = judged_losses(history, min_steps, running)
    if not (history.total("frozen_head")[:1] == 1).any() or not known or any(p.is_large(large) for p in known):
        return []
    shapes, ways = shapes_of(history), [*paths(history)]
    products = [[i for i, op in enumerate(path) if op.name in ("Addmm", "Mm")] for path, _ in ways]
    is_trained = any(
        at[:1] == [len(path) - 1] and len(shapes.get(layer, ())) > 1
        for at, (path, layer) in zip(products, ways, strict=True)
    )
    if is_trained or not any(products):
        return []
    return [
        whole_run(
            history,
            "no-gradient",
            "",
            {"missing": "training of the last layer", "frozen": float(history.total("frozen_elements")[0])},
            "The last layer is frozen as it was drawn: what is trained before it has to say its answers through random "
            "weights.",
            "Freeze the body before it gets its new head, or thaw the head's weights: head.requires_grad_(True), and "
            "give them to the optimizer. A random last layer that is meant needs no change.",
        )
    ]


def _of_itself(history: History) -> list[Finding]:
    """A difference of a thing with itself, or their quotient (`in_most_looks`).

    Source: Schulman et al., arXiv:1707.06347, equation 6: the ratio to the old policy, which is a constant.
    """
    seen = in_most_looks(history, "of_itself")
    if not len(seen):
        return []
    return [
        whole_run(
            history,
            "no-gradient",
            "",
            {"missing": "a gradient through what is taken off itself", "samples": len(seen)},
            "The loss is made of the difference of a thing with itself, or of their quotient: that is 0, or 1, "
            "whatever the thing is, and no gradient comes through it.",
            "One of the two was meant to be another: what was there before keeps its graph unless it is detached, as "
            "the old log-probabilities of a policy's ratio: old = logp.detach(), kept from when the data were made.",
        )
    ]


def wiped(history: History, least: int = 3) -> bool:
    """Whether backward had left a gradient in each step that was looked at, `least` or more, and no step saw one."""
    _, left = sampled(history, "gradient_left")
    seen = (history.layer("grad_norm") > 0).any() or (history.total("nonfinite") > 0).any()
    return len(left) >= least and bool((left == 1).all()) and not seen and bool(history.layers)


def _gone(history: History) -> list[Finding]:
    evidence: Evidence = {"layers": len(history.layers), "missing": "every gradient"}
    cause = f"Backward leaves gradients, and none is there when the optimizer steps: {ZEROED}."
    cure = "The order is optimizer.zero_grad(), loss.backward(), optimizer.step(): nothing between the last two sets "
    cure += "gradients to zero or takes them away."
    return [whole_run(history, "no-gradient", (), evidence, cause, cure, severity="error")]


def _nowhere(history: History) -> list[Finding]:
    """No gradient anywhere: those of another model's tensors, if most layers are in no module, else what cut it off."""
    stray = [name for name in history.layers if _STRAY.search(name)]
    evidence: Evidence = {"layers": len(history.layers), "missing": "every gradient"}
    if 2 * len(stray) > len(history.layers):
        evidence["not_in_model"] = len(stray)
        cause = f"The optimizer holds {len(stray)} tensors that the model does not: no gradient ever reaches them."
        cure = "Build the optimizer from model.parameters(), after the model was moved, wrapped or changed."
        return [whole_run(history, "no-gradient", (), evidence, cause, cure, severity="error")]
    causes = (ZEROED, CUT_OFF)
    cause = f"Every gradient is absent when the optimizer steps. {either(causes)}"
    cure = "The order is optimizer.zero_grad(), loss.backward(), optimizer.step(). If it is kept, look for what cuts "
    cure += "the loss off from the weights: detach(), .data, item(), no_grad(), a new tensor."
    return [whole_run(history, "no-gradient", (), evidence, cause, cure, causes, severity="error")]


def _never_trained(history: History, frozen: Bools, least: int = 256) -> tuple[str, ...]:
    """The frozen layers `[L]` if most of their elements are in matrices as large as weights are drawn
    (`formulas.is_as_drawn`); those of fewer elements than `least` do not count.
    """
    shapes = shapes_of(history)
    sizes, norm = numel(history), history.layer("weight_norm")
    found = 0.0
    for i in np.flatnonzero(frozen & matrices(history) & (sizes >= least)):
        norms = norm[:, i]
        rms = norms[np.isfinite(norms)][:1] / np.sqrt(sizes[i])
        found += sizes[i] * is_as_drawn(rms, shapes[history.layers[i]], sizes[i]).any()
    return pick(history, frozen) if found > sizes[frozen].sum() / 2 else ()
