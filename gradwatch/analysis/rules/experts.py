"""Experts of a mixture that get next to no tokens: by what its routers show, or by gradients that are not there.

Legend: T sampled steps, E experts of all routers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradwatch.analysis.rules.activation_facts import medians
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity
from gradwatch.analysis.rules.layer_facts import shapes_of
from gradwatch.analysis.rules.progress import succeeds
from gradwatch.analysis.rules.series import holds_from
from gradwatch.formatting import percent
from gradwatch.history import History
from gradwatch.table import nanmean


def expert_starved(
    history: History, share: float = 0.1, least_tokens: float = 32.0, min_rows: int = 3
) -> list[Finding]:
    """Experts that get less than `share` of an equal share of their router's tokens, by mean and median alike.

    Of the last third of the sampled steps. An expert that had an equal share would have got `least_tokens` tokens in
    them at least: with fewer, chance alone leaves some out. From the first sampled step after which none of them had
    half of an equal share again. Where no router was looked at, by the gradients (`_without_gradient`).
    Source: Shazeer et al. 2017, "Outrageously Large Neural Networks", arXiv:1701.06538, 4 (a gate favours the same few
    experts, and these learn faster); Fedus et al. 2021, "Switch Transformers", arXiv:2101.03961, 2.2.
    """
    table = history.activations.with_values("token_count")
    if len(table) < min_rows or not table.layers:
        return _without_gradient(history)
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
    starved = holds_from(~(of_equal[:, hit] >= 0.5).any(axis=1))
    since = int(table.step[min(starved, len(table) - 1)])
    theirs = np.flatnonzero(np.isin(routers, routers[hit]))
    most = theirs[np.argmax(mean[theirs])]
    evidence: Evidence = {
        "experts": len(hit), "of": int(judged.sum()), "most_of_equal_share": float(mean[hit].max()),
        "fed_most": table.layers[most], "its_share": float(mean[most] / np.count_nonzero(routers == routers[most])),
    }  # fmt: skip
    severity: Severity = "note" if succeeds(history) else "warning"
    names = tuple(table.layers[i] for i in hit)
    cause, cure = _words(evidence, share, since if starved else None)
    return [Finding("expert-starved", severity, names, since, int(history.step[-1]), evidence, cause, cure)]


def _without_gradient(history: History, least: int = 20) -> list[Finding]:
    """Experts that get no gradient at all in the second half of `least` steps or more, while others of them do.

    Experts are children of one module that have layers of the same names and shapes, and as many as there are rows in
    a matrix beside them, the router's. Of what stands in a row, the first ones may be without gradient for another
    reason: they are none, but by their name.
    """
    norm = history.layer("grad_norm")
    late = norm[len(norm) // 2 :]
    silent = ((late == 0) | np.isnan(late)).all(axis=0) & ~np.isnan(norm).all(axis=0)
    for parent, experts in _alike(history):
        starved = [name for name, own in experts.items() if silent[own].all()]
        in_a_row = starved == list(experts)[: len(starved)] and "expert" not in parent.lower()
        if len(norm) < least or not 0 < len(starved) < len(experts) or in_a_row:
            continue
        own = [i for name in starved for i in experts[name]]
        fed = np.flatnonzero((norm[:, own] > 0).any(axis=1))
        since = int(history.layer_step[fed[-1]]) + 1 if len(fed) else int(history.layer_step[0])
        one = len(starved) == 1
        return [
            Finding(
                "expert-starved",
                "note" if succeeds(history) else "warning",
                tuple(history.layers[i] for i in own),
                min(since, int(history.step[-1])),
                int(history.step[-1]),
                {"experts": len(starved), "of": len(experts)},
                f"No gradient reaches {', '.join(f'`{parent}.{name}`' for name in starved[:4])}"
                f"{' and others' if starved[4:] else ''} {f'from step {since} on' if len(fed) else 'in any step'}, and "
                f"others of the {len(experts)} get theirs: no token is sent to {'it' if one else 'them'}. What gets "
                "none learns nothing, and is not chosen later.",
                f"{_BALANCE} Where there is such a loss, look at whether its gradient reaches the router: shares of "
                "tokens have none by themselves, and their sum over the experts is always 1.",
            )
        ]
    return []


def _alike(history: History) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """Each module that may be a list of experts, and by the name of each the places of its layers."""
    shapes = shapes_of(history)
    found: dict[str, dict[str, list[int]]] = {}
    for i, name in enumerate(history.layers):
        parts = name.split(".")
        for at, part in enumerate(parts[:-1]):
            if at and part.isdigit():
                found.setdefault(".".join(parts[:at]), {}).setdefault(part, []).append(i)
    for parent, children in found.items():
        own = {
            tuple((history.layers[i].removeprefix(f"{parent}.{child}"), shapes.get(history.layers[i])) for i in places)
            for child, places in children.items()
        }
        beside = (shape for name, shape in shapes.items() if not name.startswith(f"{parent}."))
        if len(children) > 1 and len(own) == 1 and any(s[:1] == (len(children),) and len(s) > 1 for s in beside):
            yield parent, children


def _words(evidence: Evidence, share: float, since: int | None) -> tuple[str, str]:
    count, of = evidence["experts"], evidence["of"]
    cause = (
        f"{count} of {of} experts {'gets' if count == 1 else 'get'} less than {percent(share)} of an equal share of "
        f"the tokens, {'from the first sampled step on' if since is None else f'from step {since} on'}, while "
        f"`{evidence['fed_most']}` gets {percent(float(evidence['its_share']))} of its router's. What gets "
        "no tokens gets no gradient, learns nothing, and is not chosen later either."
    )
    cure = f"{_BALANCE} Where there is such a loss, raise its weight; a router z-loss keeps the scores small. Where "
    cure += "there is such a bias, and the router gives out scores alone, these shares are without it."
    return cause, cure


_BALANCE = (
    "Add a load-balancing loss (Switch Transformers: 0.01 times the number of experts times the sum over them of share "
    "of tokens times mean probability); or add a bias to the scores, for the choice alone, and raise it for experts "
    "with few tokens (arXiv:2408.15664)."
)
