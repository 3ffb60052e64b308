"""A denoiser that is not told how much noise there is, in steps that were sampled."""

from __future__ import annotations

from gradwatch.analysis.rules.facts import middle
from gradwatch.analysis.rules.finding import Finding, either, whole_run
from gradwatch.analysis.rules.progress import loss_progress, succeeds
from gradwatch.analysis.rules.sampled_losses import LEAST_SAMPLES, sampled
from gradwatch.history import History


def conditioning_missing(
    history: History, together: float = 0.2, share: float = 0.8, learnt: float = 0.95, min_steps: int = 100
) -> list[Finding]:
    """A model is asked for the noise in what it is given, and is given nothing else. A note: so may any numbers be that
    are standard normal, and of a single level nothing has to be told.

    Alarm: in the `share` of the samples, eight or more, the targets of a loss of differences are standard normal
    numbers, that go `together` with the one batch of their size that all weights below it are given, and no table and
    no other batch tells the model how much noise it is (`measure.noise_targets`). Not where the share `learnt` of the
    loss is gone.
    Source: Ho et al. 2020, arXiv:2006.11239, section 3.2 and appendix B (the network is given the time step); Song &
    Ermon 2019, arXiv:1907.05600, section 4.2 (a score network is conditioned on the level of the noise).
    """
    asked, _ = sampled(history, "targets")
    _, found = sampled(history, "noise_in_data")
    if len(found) < max(LEAST_SAMPLES, share * len(asked)) or len(history) < min_steps or succeeds(history, learnt):
        return []
    if not middle(found) > together:
        return []
    losses = loss_progress(history)
    rests = f" {losses[0].metric} stands at {losses[0].ended:.3g}." if losses else ""
    return [
        whole_run(
            history,
            "conditioning-missing",
            "",
            {"noise_in_data": middle(found), "samples": len(found)},
            "The loss asks for standard normal numbers that go together with what the model is given, as the noise in "
            f"it does, and the model is given nothing else.{rests} {either(_CAUSES)}",
            "Give the model the time step, or the level of the noise: a table of steps or sines and cosines, added in "
            "each block or put beside the input. With one level for all nothing is missing.",
            _CAUSES,
            severity="note",
        )
    ]


_CAUSES = (
    "the noise has many levels and the model is not told which, so that it has to guess from each example",
    "there is one level for all, or the numbers are no noise",
)
