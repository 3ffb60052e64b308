"""What a reader of a comparison must know beside its table, in sentences."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradwatch.analysis import final_values
from gradwatch.analysis.groups import NO_POLICY, higher_is_better
from gradwatch.analysis.rules.facts import LEAST_STEPS, steps_taken
from gradwatch.analysis.verdict import Contender
from gradwatch.formatting import counted, listed
from gradwatch.history import History
from gradwatch.storage.run_state import run_state

if TYPE_CHECKING:
    import pandas as pd


def of_table(
    table: pd.DataFrame, better_high: Mapping[str, bool | None], target: float | None, of_rivals: Collection[str]
) -> tuple[str, ...]:
    """What a reader must know of the numbers, in sentences. `of_rivals` are losses of parts, which judge no policy."""
    notes = []
    metrics = list(better_high)
    if metrics:
        high = better_high[metrics[0]]
        if high is not None:
            word = "higher" if high else "lower"
            spread = "; ± is the 95 % interval over the seeds" if table[f"{metrics[0]}_low"].notna().any() else ""
            notes.append(f"The verdict is by {metrics[0]}, {word} is better{spread}.")
        elif metrics[0] not in of_rivals:
            notes.append(
                f"Whether {metrics[0]} is meant to rise or to fall is not known: there is no verdict. Say it with "
                "--higher-is-better or --lower-is-better."
            )
        method = table[f"{metrics[0]}_method"]
        if table["runs"].eq(1).all():
            notes.append("One run each: there is no interval and no verdict. Repeat with more seeds (three or more).")
            notes += [
                f"If {name} is the seed, call it that: an argument --seed of the script, or params={{'seed': ...}} of "
                "watch(). Runs that differ in it alone then count together."
                for name in table.columns
                if _UNNAMED.fullmatch(str(name)) and _may_be_seeds(table[name])
            ]
        elif table[f"{metrics[0]}_low"].isna().all() and not table["diverged"].any():
            notes.append(
                "One seed each, whose repeats count once: there is no interval and no verdict. Repeat with more seeds "
                "(three or more)."
            )
        elif table["runs"].max() == 2:
            notes.append("Two seeds give intervals that are rarely narrow enough: take three or more.")
        elif method.str.contains("not paired").any():
            notes.append("Where seeds differ or are unknown, runs are not paired, and the difference is Welch's.")
        judged = table[f"{metrics[0]}_verdict"].isin(("better", "worse", "no difference shown")).sum()
        if judged > 1:
            notes.append(
                "Verdicts against one baseline are held to 95 % together (Holm); each interval is 95 % on its own, so "
                "one may leave out 0 and show no difference."
            )
    if table["alike"].any():
        named = ", ".join(table["policy"][table["alike"]])
        notes.append(f"The seeds of {named} change nothing: its runs are one run, and there is no verdict over it.")
    if table["diverged"].any():
        notes.append(
            "A run counts as diverged if it ended in inf or NaN, or with its loss a tenth above that before training. "
            "In means and differences it has the loss before training; where that is unknown, and for other metrics, "
            "it is left out. A policy whose runs all diverged is worse than one of which none did."
        )
    if target is not None and metrics:
        notes.append(f"Steps to target: the median over the runs until {metrics[0]} reached {target:g}.")
    return tuple(notes)


_UNNAMED = re.compile(re.escape(final_values.ARGS) + r"(\d+|trial|run|rep|repeat|repetition|try)s?", re.IGNORECASE)


def _may_be_seeds(values: pd.Series[Any]) -> bool:
    """Whether these values of an argument are whole numbers, and not all the same."""
    return values.nunique() > 1 and bool(values.astype(str).str.fullmatch(r"\d{1,10}").all())


def of_policies(settings: Sequence[Mapping[str, Contender]]) -> list[str]:
    """What makes policies alike by nature, of each setting's: that one never acted; or that none are comparable."""
    rests: dict[str, list[bool]] = {}
    alike: dict[str, list[bool]] = {}
    for found in settings:
        for one in found.values():
            rests.setdefault(one.policy, []).append(all(map(_clip_rests, one.members)))
            alike.setdefault(one.policy, []).append(_is_none(one, found.get(NO_POLICY)))
    still: dict[str, list[str]] = {}
    for policy, each in rests.items():
        if any(each):
            still.setdefault(_in_so_many(each), []).append(policy)
    notes = [
        f"The clip of {' and '.join(named)} never acted{where}: it trained as without it."
        for where, named in still.items()
    ]
    for policy, each in sorted(alike.items()):
        if any(same and not rest for same, rest in zip(each, rests[policy], strict=True)):
            notes.append(f"{policy} changed nothing{_in_so_many(each)}: its runs are those without it, to the bit.")
    several = [one.members for found in settings for one in found.values() if len(one.members) > 1]
    seedless = sum(len(runs) for runs in several if not any(final_values.seed_text(each.run) for each in runs))
    if seedless:
        notes.append(
            f"Of {seedless} runs no seed is known: each counts as one more, though it may repeat another. A run tells "
            "its seed by params={'seed': ...} of watch(), or by an argument of its script."
        )
    if len(settings) == sum(map(len, settings)) > 1:
        notes.append(
            "No two policies share a setting here, so none is judged against another: the runs differ in their model, "
            "optimizer or arguments as well."
        )
    return notes


def _in_so_many(settings: Sequence[bool]) -> str:
    return "" if all(settings) else f" in {sum(settings)} of {len(settings)} settings"


def _clip_rests(history: History) -> bool:
    rates, skipped = history.total("clip_rate"), history.total("skipped")
    return history.run.clip is not None and len(rates) > 0 and bool((rates == 0).all()) and not (skipped > 0).any()


def _is_none(contender: Contender, none: Contender | None) -> bool:
    """Whether each run trained as one without a policy did, to the bit: so does a constraint that never acts."""
    if none is None or none is contender:
        return False
    norms = [np.isfinite(history.total("grad_norm")).any() for history in contender.members]
    return all(norms) and all(
        any(final_values.are_alike((history, other)) for other in none.members) for history in contender.members
    )


def without_direction(histories: Sequence[History]) -> list[str]:
    """What was logged and is not compared."""
    names = dict.fromkeys(name for history in histories for name in history.logged)
    left = [name for name in names if higher_is_better(name, histories) is None]
    if not left:
        return []
    return [
        f"Not compared, as it is not known which way is better: {listed(left)}. "
        "watch(higher_is_better=) says it, or --metric with --higher-is-better or --lower-is-better."
    ]


def odd_ones(histories: Sequence[History], metrics: Sequence[str]) -> list[str]:
    """What else sets runs apart that are compared: how they ended, and how long they are."""
    above = [m for m in metrics if any(final_values.final(h, m) > final_values.untrained(h, m) for h in histories)]
    notes = []
    if above:
        notes.append(
            f"Of {', '.join(above)} a run counts at most with what it was before training, where that is known."
        )
    scripts = sorted({str(h.run.command.get("target")) for h in histories if h.run.command})
    if len(scripts) > 1:
        notes.append(f"Several scripts made these runs, and may differ by more than the policy: {listed(scripts)}.")
    unheard = [h.run.name for h in histories if metrics and metrics[0] not in h.logged]
    if unheard:
        notes.append(f"These runs never logged {metrics[0]}: {listed(unheard)}.")
    ended = [("killed" if run_state(h.run).crashed else h.run.status.lower(), h) for h in histories]
    cut = [(how, h) for how, h in ended if how in ("failed", "killed") and not final_values.diverged(h)]
    if cut:
        named = [f"{h.run.name} ({how} after {counted(len(h), 'step')})" for how, h in cut]
        notes.append(f"These runs did not end well and count as they are: {listed(named)}.")
    short = [h.run.name for h in histories if steps_taken(h) < LEAST_STEPS]
    if short:
        notes.append(f"Fewer than {LEAST_STEPS} steps are too short to judge: {listed(short)}.")
    lengths = {len(h) for h in histories}
    if len(lengths) > 1:
        notes.append(
            f"The runs have from {min(lengths):,} to {max(lengths):,} steps; what is compared is how each ended."
        )
    return notes
