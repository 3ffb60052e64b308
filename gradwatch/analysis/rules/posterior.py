"""A drawn code that tells nothing of its example, in steps that were sampled."""

from __future__ import annotations

import math

from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.sampled_losses import layer_at, sampled, share_explained
from gradwatch.analysis.rules.series import late_median
from gradwatch.formatting import percent
from gradwatch.history import History


def posterior_collapse(
    history: History,
    share: float = 0.02,
    little: float = 0.5,
    most: float = 0.9,
    well: float = 0.3,
    least: int = 4,
    min_steps: int = 100,
) -> list[Finding]:
    """Of the units of a code that is drawn no more than the `share` is drawn otherwise than from the prior, or all of
    them tell less than `little` nats of an example. A warning; a note where the share `most` of the units is drawn
    otherwise or what is asked for is explained `well`: little may be all that there is to tell.

    In the last quarter of the samples, `least` at least, by the median: the variance of such a unit is that of the
    prior, 1, within 5 % (`measure.posterior`), whatever the example. Those of healthy trainings of the tests tell 1.6
    nats or more.
    Source: Bowman et al., arXiv:1511.06349, section 3.1; Lucas et al., arXiv:1911.02469 (posterior collapse).
    """
    step, informative, places = sampled(history, "code_informative", "layer_of/code_informative")
    if len(step) < least or len(history) < min_steps:
        return []
    rest, (_, nats) = late_median(informative), sampled(history, "code_nats")
    told = late_median(nats) if len(nats) else math.inf
    if rest > share and told > little:
        return []
    knows = bool(len(explained := share_explained(history))) and late_median(explained) > well
    also = f", and all together tell {told:.2g} nats of it" if rest > share else ""
    causes = (
        "the divergence outweighs the error, as where the one is a sum over the batch and the other a mean",
        "what reads the code does as well without it, from what else it is given",
    )
    return [
        whole_run(
            history,
            "posterior-collapse",
            layer_at(history, places[-1]),
            {"code_informative": rest, "code_informative_at_most": float(informative.max()), "code_nats": told},
            f"The code is drawn from the prior, whatever the example: of its units {percent(rest)} have a variance "
            f"that is not 1{also}. What is made of it knows next to nothing of the example. {either(causes)}",
            "Sum the error and the divergence over the same, the elements of an example, and take the mean over the "
            "examples of both. If they do, a weight of the divergence above 1 is too much: take 1, then 0.1 or less; "
            "or raise it from 0 on.",
            causes,
            severity="note" if rest > most or knows else "warning",
        )
    ]
