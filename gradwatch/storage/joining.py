"""One History out of parts, or of tables that were read one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gradwatch.history import History, Run
from gradwatch.table import SAMPLED, Table, concat_tables


def concat(parts: Iterable[History]) -> History:
    """One History out of several of one Watch, by step; a step taken again in a later attempt replaces the earlier one.

    Raises:
        ValueError: there are no parts.
    """
    parts = list(parts)
    if not parts:
        raise ValueError("there is no History to join: at least one is needed")
    problems = tuple(dict.fromkeys(text for p in parts for text in p.problems))
    tables = concat_tables([p.by_layer for p in parts]), concat_tables([p.by_step for p in parts])
    sampled = {name: concat_tables([getattr(p, name) for p in parts]) for name in SAMPLED}
    return join(parts[-1].run, *tables, problems, **sampled)


def join(run: Run, by_layer: Table, by_step: Table, problems: Sequence[str] = (), **sampled: Table) -> History:
    """The History of these tables. Steps that only `by_layer` has get a row without values in `by_step`; where a
    later attempt took them again, they go. So does what the `sampled` have of other steps or of an earlier attempt.
    """
    if (by_step.find(by_layer) < 0).any():
        by_step = concat_tables([replace(by_layer, values={}, layers=()), by_step])
        by_layer = by_layer.take(by_step.find(by_layer) >= 0)
    for name, one in sampled.items():
        if len(one):
            at = by_step.find(one)
            sampled[name] = one.take((at >= 0) & (by_step.attempt[at] == one.attempt))
    return History(run, by_layer, by_step, tuple(problems), **sampled)
