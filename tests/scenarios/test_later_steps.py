"""What is found in a run whose first recorded step is a later one is said of the same steps: a row is no step."""

import re
from dataclasses import replace

import numpy as np
import pytest
import target_diseases as t
from make_run import changed, make_history
from recordings import recorded
from twins import TWINS

from gradwatch.analysis.rules import diagnose

BY = 5000
STEP = re.compile(r"(?<=from step )\d+|(?<=Since step )\d+|(?<=since step )\d+|(?<=at step )\d+|(?<=^step )\d+")


def later(history):
    """The same steps, numbered from `BY` on."""
    tables = ("by_step", "by_layer", *history.sampled)
    moved = {name: replace(table, step=table.step + BY) for name in tables for table in [getattr(history, name)]}
    return replace(history, run=replace(history.run, first_step=None), **moved)


def nothing_left(steps=200):
    """A loss that is exactly 0 from its third step on, and so is every gradient."""
    history = make_history(steps, clip=None)
    on = np.arange(steps) < 2
    layers = {"grad_norm": history.layer("grad_norm") * on[:, None]}
    totals = {name: history.total(name) * on for name in ("grad_norm", "clipped_norm", "loss")}
    return changed(history, per_layer={**history.per_layer, **layers}, per_step={**history.per_step, **totals})


def steps_in_words(finding):
    said = [finding.cause, finding.cure, *(value for value in finding.evidence.values() if isinstance(value, str))]
    return [int(number) for text in said for number in STEP.findall(text)]


@pytest.mark.parametrize("rule", [*TWINS, "of the first steps", "nothing left"])
def test_steps_are_numbered_as_the_run_numbers_them(rule, tmp_path):
    if rule in TWINS:
        history = recorded(f"seed1-{rule}", None, tmp_path)
    else:
        history = nothing_left() if rule == "nothing left" else t.first_of_another_size(tmp_path)
    roots = diagnose(history)  # the later run may have learnt before: less is said, and what follows may stand alone
    here = {(f.rule, f.layers): f for f in (*(below for root in roots for below in root.consequences), *roots)}
    there = {(finding.rule, finding.layers): finding for finding in diagnose(later(history))}
    assert there.keys() <= here.keys()
    for key, found in there.items():
        assert (found.first_step - BY, found.last_step - BY) == (here[key].first_step, here[key].last_step)
        assert [step - BY for step in steps_in_words(found)] == steps_in_words(here[key])
