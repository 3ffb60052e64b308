"""What the routers of a mixture of experts show that no gradient tells apart: experts that get next to no tokens.

Legend: T sampled steps, E experts of all routers.
"""

from __future__ import annotations

import numpy as np

from gradwatch.analysis.rules.activation_facts import medians
from gradwatch.analysis.rules.finding import Finding, Severity
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.formatting import percent
from gradwatch.history import History
from gradwatch.table import nanmean


def expert_starved(
    history: History, share: float = 0.1, least_tokens: float = 32.0, min_rows: int = 3
) -> list[Finding]:
    """Experts that get less than `share` of an equal share of their router's tokens, by mean and median alike.

    Of the last third of the sampled steps. An expert that had an equal share would have got `least_tokens` tokens in
    them at least: with fewer, chance alone leaves some out. From the first sampled step after which none of them had
    half of an equal share again.
    Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", arXiv:1701.06538, 4 (a gate favours the same few
    experts, and these learn faster); Fedus et al. 2021, "Switch Transformers", arXiv:2101.03961, 2.2.
    """
    table = history.activations.with_values("token_count")
    if len(table) < min_rows or not table.layers:
        return []
    routers = np.array([name.rpartition("[")[0] for name in table.layers])
    of_equal = np.empty((len(table), len(routers)))  # times an equal share, [T, E]
    late, judged = -max(min_rows, len(table) // 3), np.zeros(len(routers), bool)
    for router in dict.fromkeys(routers):
        own = np.flatnonzero(routers == router)
        of_equal[:, own] = table.values["tokens"][:, own].astype(np.float64) * len(own)
        known = np.isfinite(of_equal[late:, own]).all(axis=1)
        tokens = table.values["token_count"][late:, own][known].astype(np.float64).sum()
        judged[own] = known.sum() >= min_rows and tokens / len(own) >= least_tokens
    mean = nanmean(of_equal[late:])
    with np.errstate(invalid="ignore"):
        hit = np.flatnonzero(judged & (np.maximum(mean, medians(of_equal[late:])) < share))
    if not len(hit):
        return []
    fed = np.flatnonzero((of_equal[:, hit] >= 0.5).any(axis=1))
    since = int(table.step[min(int(fed[-1]) + 1 if len(fed) else 0, len(table) - 1)])
    theirs = np.flatnonzero(np.isin(routers, routers[hit]))
    most = theirs[np.argmax(mean[theirs])]
    evidence: dict[str, float | str] = {
        "experts": len(hit), "of": int(judged.sum()), "most_of_equal_share": float(mean[hit].max()),
        "fed_most": table.layers[most], "its_share": float(mean[most] / np.count_nonzero(routers == routers[most])),
    }  # fmt: skip
    severity: Severity = "note" if succeeds(history) else "warning"
    names = tuple(table.layers[i] for i in hit)
    cause, cure = _words(evidence, share, since)
    return [Finding("expert-starved", severity, names, since, int(history.step[-1]), evidence, cause, cure)]


def _words(evidence: dict[str, float | str], share: float, since: int) -> tuple[str, str]:
    count, of = evidence["experts"], evidence["of"]
    cause = (
        f"{count} of {of} experts {'gets' if count == 1 else 'get'} less than {percent(share)} of an equal share of "
        f"the tokens, {f'from step {since} on' if since else 'from the first sampled step on'}, while "
        f"`{evidence['fed_most']}` gets {percent(float(evidence['its_share']))} of its router's. What gets "
        "no tokens gets no gradient, learns nothing, and is not chosen later either."
    )
    cure = (
        "Add a load-balancing loss (Switch Transformers: 0.01 times the number of experts times the sum over them of "
        "share of tokens times mean probability); or add a bias to the scores, for the choice alone, and raise it for "
        "experts with few tokens (arXiv:2408.15664). Where there is such a loss, raise its weight; a router z-loss "
        "keeps the scores small. Where there is such a bias, and the router gives out scores alone, these shares are "
        "without it."
    )
    return cause, cure
