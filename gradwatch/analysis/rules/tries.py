"""Cures as options of `gradwatch run`: `Finding.tries`, for who tries them on a script as it is; and rates in words."""

from __future__ import annotations

import shlex

from gradwatch.analysis.rules.facts import rates, set_rate
from gradwatch.formatting import setting_text
from gradwatch.history import History

LOWER, A_THIRD = "--lr-scale 0.1", "--lr-scale 0.3"
FEW_HUNDRED = 200
OWN_PAST = "chain(SkipNonfinite(), AdaGC())"  # a bound by each layer's own past


def clip_with(text: str) -> str:
    """A gradient policy; it may hold `facts.GUARD`."""
    return f"--clip {shlex.quote(text)}"


def renorm_with(text: str) -> str:
    """A weight constraint."""
    return f"--renorm {shlex.quote(text)}"


def rate_times(factor: float) -> str:
    """The learning rate times `factor`, to one digit."""
    return f"--lr-scale {float(f'{factor:.1g}'):g}"


def new_rate(history: History, times: float) -> str:
    """In words the learning rate `times` as high as was set; where those of param groups differ, it is one for none."""
    if rates_differ(history):
        return f"{setting_text(times)} times what each param group has"
    return f"about {setting_text(set_rate(history) * times)}"


def rates_differ(history: History) -> bool:
    """Whether the learning rates that were set for the param groups are not one and the same."""
    first, *others = (set_rate(history, group) for group in range(rates(history).shape[1]))
    return any(other != first for other in others)


def warm_up(history: History) -> str:
    """Warm-up over the first few hundred steps; of a run of few steps over the first fifth."""
    return f"--warmup {max(2, min(FEW_HUNDRED, int(history.step[-1] + 1) // 5))}"
