"""Embeddings that a loss compares, in steps that were sampled."""

from __future__ import annotations

from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.loss_graph import paths
from gradwatch.analysis.rules.losses import has_rivals
from gradwatch.analysis.rules.sampled_losses import sampled
from gradwatch.analysis.rules.series import late_median
from gradwatch.formatting import percent
from gradwatch.history import History


def views_identical(history: History, share: float = 0.99, least: int = 2) -> list[Finding]:
    """Each example is to be found among others by an embedding that is its own, number by number. A warning.

    Alarm: in each of `least` samples or more, a cross-entropy asks of a table of products for the one at the example's
    own place, and there both embeddings are the same in the `share` of the examples or more. Whatever the weights are,
    nothing is nearer.
    Source: Chen et al. (2020), arXiv:2002.05709, section 2.1: two views of an example, each augmented at random anew.
    """
    step, alike = sampled(history, "pairs_alike")
    if len(step) < least or alike.min() < share:
        return []
    fewest = float(alike.min())
    causes = ("one view was handed in twice", "what makes the views changes its input in place, so that both are one")
    return [
        whole_run(
            history,
            "views-identical",
            "",
            {"pairs_alike": fewest, "samples": len(step)},
            f"The loss looks for each example among the others by its embedding, and in {percent(fewest)} of them "
            f"what is looked for is the very same embedding: it is found whatever the weights are. {either(causes)}",
            "Make each view of a copy of the example, and embed both: loss(net(augment(x.clone())), "
            "net(augment(x.clone()))). Compare the two before the net: torch.equal() is to be False.",
            causes,
        )
    ]


def representation_collapse(
    history: History, one_way: float = 0.95, one_margin: float = 0.999, least: int = 8, pulled: float = 0.8
) -> list[Finding]:
    """All examples have come to one embedding. A warning.

    Alarm: of `least` samples or more, in the last quarter by the median, embeddings whose length is divided out point
    one way (the square of the length of their mean is `one_way` or more; `pulled` where the loss asks for nothing else,
    `_is_only_pulled`), or what margins leave is the same for all examples (their squared mean is `one_margin` of their
    mean square or more), which is a hinge that no distance changes. Margins not of parts that train against each other:
    a judge's are alike where it cannot tell.
    Source: Chen & He (2021), arXiv:2011.10566, section 4.1 (the deviation of normalised outputs falls to 0); Schroff et
    al. (2015), arXiv:1503.03832, section 3.2 (the hardest negatives lead to f(x) = 0).
    """
    _, ways = sampled(history, "embeddings_alike")
    _, margins = sampled(history, "margins_alike")
    pulls = _is_only_pulled(history)
    point = len(ways) >= least and late_median(ways) >= (pulled if pulls else one_way)
    lack = len(margins) >= least and late_median(margins) >= one_margin and not has_rivals(history)
    if not point and not lack:
        return []
    causes, cure = _ONLY_PULLED if pulls else _HARDEST if len(margins) else _NOT_APART
    what, seen, said = "embeddings_alike", ways, "point one way"
    if not point:
        what, seen, said = "margins_alike", margins, "are equally far from one another"
    return [
        whole_run(
            history,
            "representation-collapse",
            "",
            {what: late_median(seen), "samples": len(seen)},
            f"All examples have come to one embedding: they {said} ({percent(late_median(seen))}), and nothing tells "
            f"them apart. {causes[0] if pulls else either(causes)}",
            cure,
            () if pulls else causes,
        )
    ]


def _is_only_pulled(history: History) -> bool:
    """Whether a loss only brings pairs of embeddings nearer, and its gradient goes through both of each.

    Its graph shows a mean of products of two, or of squares of their difference, each divided by its length and with a
    gradient, and nothing else: no other examples that they are compared with, no margin, no deviation.
    """
    for path, _ in paths(history):
        names = [each.kind for each in path]
        lengths = [at for at, name in enumerate(names) if name == "Div" and names[at - 1] in ("Mul", "MseLoss") and at]
        if lengths and path[lengths[0] - 1].operands == 2 and {*names[: lengths[0]]} <= _OF_A_MEAN:
            return True
    return False


_OF_A_MEAN = {"Add", "Div", "MseLoss", "Mean", "Mul", "Neg", "Rsub", "Sub", "Sum"}
_ONLY_PULLED = (
    ("The loss only brings two embeddings nearer, and its gradient goes through both: one embedding for all is best.",),
    "Stop the gradient of one side (z.detach()) and put a predictor behind the other, as SimSiam and BYOL do; or "
    "compare with the embeddings of other examples too, or ask for a deviation of each dimension over the batch.",
)
_HARDEST = (
    ("the negatives are the hardest of each batch from the start", "the steps are too long"),
    "Take negatives at random, or those that are farther off than the positive and still within the margin, and harder "
    "ones later; lower the learning rate. To see which it is: the loss of random negatives.",
)
_NOT_APART = (
    ("nothing pushes different examples apart", "the steps are too long"),
    "With negatives look whether those of an example are others, and lower the learning rate. Without them stop the "
    "gradient of one side (z.detach()) and put a predictor behind the other, or ask for a deviation of each dimension "
    "over the batch.",
)
