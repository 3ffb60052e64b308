"""Pairs of examples that a loss brings together, in steps that were sampled."""

from __future__ import annotations

from gradwatch.analysis.rules.finding import Finding, either
from gradwatch.analysis.rules.loss_graph import from_graph
from gradwatch.analysis.rules.sampled_losses import sampled
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
        from_graph(
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
