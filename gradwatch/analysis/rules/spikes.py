"""Single steps far above what is usual.

Legend: T recorded steps, L layers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.analysis.clips import incoming
from gradwatch.analysis.rules.facts import middle, trailing
from gradwatch.analysis.rules.finding import Evidence, Finding, Severity
from gradwatch.analysis.rules.largest_row import largest_row
from gradwatch.analysis.rules.layer_facts import pick
from gradwatch.analysis.rules.losses import EARLIEST, has_rivals, odd_batch, scaled_losses, training_losses
from gradwatch.analysis.rules.progress import descends, reaches_its_goal, succeeds
from gradwatch.analysis.rules.recurring_jumps import exchanged
from gradwatch.analysis.rules.sampled_losses import another_task, other_data_from
from gradwatch.analysis.rules.schedule import raised_before
from gradwatch.analysis.rules.series import deviation
from gradwatch.analysis.rules.spike_words import (
    ACTS_FROM,
    OF_LASTING,
    OF_MILD,
    OF_SPIKES,
    STAYED,
    cause_of,
    cure_of,
    of_other_data,
)
from gradwatch.history import Bools, Floats, History

Rows = NDArray[np.intp]
MEMORY = 10.0  # steps of a momentum of 0.9: what one odd batch leaves behind is over by then


def spike(
    history: History,
    z: float = 7.0,
    ratio: float = 10.0,
    loss_z: float = 10.0,
    window: int = 128,
    often: float = 0.01,
    mild: float = 30.0,
    well: float = 0.9,
    began: float = 2.0,
) -> list[Finding]:
    """Single steps whose gradient norm or loss stands far above those around it.

    Norm: more than `ratio` times the median of the last `window` steps, more than `z` robust standard deviations of
    their logarithms above it, and more than three times the median of the 16 steps that follow (a norm that rises and
    stays has left a plateau). Loss: more than `loss_z` robust standard deviations, and by more than half of the range
    that the run's losses have (5th to 95th percentile), and half of that is gone in the 16 steps that follow where no
    norm spiked; a loss of inf is no jump but `nonfinite`. `layers` are those that carry the largest one. A note where
    the policy caught all and the training recovered, or where none was above `mild` times the usual norm, no batch is
    odd and the training succeeds (or a loss below 0 `descends`), or where the loss came back and fell by the share
    `well` (a metric got better by as much, where it is too early to tell of the loss; or the schedule had raised the
    rate, and the training succeeds), and it is the only one or none is above `began` times the highest norm of the
    run's first tenth (Adam's late instability, once the gradients have faded; Molybog et al., arXiv:2304.09871); an
    error where the loss has not come back by the end or most later norms are not finite, else a warning; a loss that
    leapt for good, and falls again from where it leapt to, may be of a harder task: a warning, too. Where more
    than the share `often` of the steps are spikes, the 99th percentile of the norms lies among them: the cure under
    Adam and its kin is then a clip by each layer's own past (docs/findings/cures.md: outliers-under-a-square).
    Source: OLMo 2's spike score (seven standard deviations from the average of the last 1,000 values) and OLMo-core's
    stability monitor (six, of the last 128), made robust; the healthy trainings of the tests reach a ratio of 9.8.
    """
    losses = {} if has_rivals(history) else scaled_losses(history)
    seen = _found(history, losses, z, ratio, loss_z, window)
    rows = np.flatnonzero(seen.up | seen.in_loss)
    if not len(rows):
        return []
    if found := seen.up.sum() <= 1 and seen.in_loss[rows].all() and _last(rows) and exchanged(history.step[rows]):
        return [found]
    up, batch = seen.up, seen.batch
    worst = int(rows[np.argmax(np.where(up[rows], seen.times[rows], 0))])
    caught = _caught(history, rows[up[rows]], window)
    back, recovered = _came_back(history, losses, rows)
    # A loss that jumps and comes back, with usual gradients, is one odd batch; with gradients that are not finite, not.
    quiet = bool(caught.all()) if up.any() else batch is None
    passed = quiet or (batch is None and np.nanmax(seen.times[rows], initial=1.0) < mild and _goes_well(history))
    raised = raised_before(history, int(rows[0]))
    passed |= _is_back(history, losses, back, well, bool(raised)) and _is_small(incoming(history), rows, began)
    new = batch is not None and _are_of_other_data(losses, batch)
    severity: Severity = "error" if losses and not (recovered or new) else "note" if passed and recovered else "warning"
    one_row = largest_row(history, worst) if up[worst] else None
    many = len(rows) > often * len(history)
    others = other_data_from(history, int(rows[0]))
    lasts = others or new or seen.last_long(rows)
    cure, tries = cure_of(history, many, bool(rows[-1] >= ACTS_FROM), quiet and recovered, one_row)
    if tries and lasts:
        cure, tries = of_other_data(others, alone=rows[-1] - rows[0] < 2 * MEMORY)
    elif tries and recovered and one_row is None and not many and seen.are_mild(mild):
        cure, tries = OF_MILD, ()
    evidence = _numbers(history, seen, rows, worst, caught) | {"recovered": back}
    evidence |= {} if one_row is None else one_row.evidence
    evidence |= _rose_before(incoming(history), int(rows[0]))
    stayed = float(evidence["times_usual"]) < STAYED
    causes = OF_SPIKES if up.any() or not (lasts or stayed) else OF_LASTING * lasts
    if batch is not None:
        causes = OF_LASTING * new
    said = cause_of(history, evidence, batch, int(up.sum()) if up[worst] else 0, causes)
    return [
        Finding(
            "spike",
            severity,
            _carriers(history, worst) if up[worst] else (),
            int(history.step[rows[0]]),
            int(history.step[rows[-1] if recovered else -1]),
            evidence,
            said + ("" if one_row is None else one_row.said) + raised,
            cure,
            tries=tries,
            alternatives=causes,
        )
    ]


def _numbers(history: History, seen: _Seen, rows: Rows, worst: int, caught: Bools) -> Evidence:
    return {
        "spikes": len(rows),
        "times_usual": float(seen.times[worst]) if np.isfinite(seen.times[worst]) else 1.0,
        "in_loss": int(seen.in_loss.sum()),
        "largest_step": int(history.step[worst]),
        "caught": int(caught.sum()),
        **({} if seen.batch is None else {"odd_batch": int(history.step[seen.batch])}),
    }


def _rose_before(norm: Floats, row: int, times: float = 3.0) -> Evidence:
    """How many times the usual norm that of the step before this row already was, from so many `times` on."""
    before = norm[max(0, row - 17) : row]
    rose = float(before[-1] / np.median(before[:-1])) if len(before) > 4 and (before[:-1] > 0).all() else 0.0
    return {"rose_before": rose} if rose > times else {}


def _is_small(norm: Floats, rows: Rows, began: float) -> bool:
    """Whether these rows are a few in a row, or no norm `[T]` there is above `began` times the highest early one."""
    early = norm[: max(1, len(norm) // 10)]
    return rows[-1] - rows[0] < EARLIEST or bool(norm[rows].max() <= began * early.max())  # NaN is not


def _came_back(history: History, losses: dict[str, Floats], rows: Rows) -> tuple[str, bool]:
    """Whether the losses (without one the norm) came back after these rows: in a word, and unless it is no.

    Nor did they where most of the later norms are not finite.
    """
    norm = incoming(history)
    below = [history.total(name) for name in training_losses(history)] if descends(history) else []
    judged = list(losses.values()) or below or [np.log10(np.maximum(norm, 1e-30))]
    back = [_recovered(values, rows) for values in judged]
    after = np.isfinite(norm[rows[-1] + 1 :])
    recovered = all(state != "no" for state in back) and (len(after) < 16 or after.mean() > 0.5)
    return "no" if not recovered else "unknown" if "unknown" in back else "yes", bool(recovered)


def _is_back(history: History, losses: dict[str, Floats], back: str, well: float, raised: bool) -> bool:
    """Whether it got better by the share `well` and the loss came `back`, or it is too early to tell of that.

    By less where the rate was `raised`: a restart is meant.
    """
    if back == "yes":
        return succeeds(history, well) or (raised and succeeds(history)) or (not losses and descends(history))
    return back == "unknown" and reaches_its_goal(history, well)


def _are_of_other_data(losses: dict[str, Floats], row: int, share: float = 0.5) -> bool:
    """Whether a loss stays at the `share` of what it leapt to in this row, or more, and ends below that of its first.

    One odd batch is over in a step, unless it throws the weights out; the next task of a curriculum is learnt.
    """
    for values in losses.values():
        after = values[row + 1 :]
        stays = middle(after[:4]) > share * values[row] and len(after) > 16
        if stays and middle(after[-len(after) // 4 :]) < share * min(middle(values[:EARLIEST]), values[row]):
            return True
    return False


def _goes_well(history: History) -> bool:
    """Whether the training succeeds, or its loss, which is below 0 early, `descends`."""
    return succeeds(history) or (not scaled_losses(history) and descends(history))


class _Seen(NamedTuple):
    """In which rows the norm spikes and a loss does, `[T]`, how many times the usual norm it is, an odd batch."""

    up: Bools
    in_loss: Bools
    times: Floats
    batch: int | None

    def are_mild(self, mild: float) -> bool:
        return self.batch is None and not (self.times[self.up] > mild).any()

    def last_long(self, rows: Rows) -> bool:
        return _runs(rows) > 1 and _last(rows, MEMORY) if self.up.any() else _last(rows)


def _found(history: History, losses: dict[str, Floats], z: float, ratio: float, loss_z: float, window: int) -> _Seen:
    """What stands out."""
    norm = incoming(history)
    up, times = _norm_spikes(norm, z, ratio, window)
    in_loss = np.zeros(len(history), bool)
    for values in losses.values():
        found = np.flatnonzero(_loss_spikes(values, loss_z, window))
        in_loss[found if up.any() else found[_passes(values, found, window)]] = True
    batch, expected = odd_batch(history), another_task(history)
    up, in_loss = up & ~expected, in_loss & ~expected
    batch = None if batch is not None and expected[batch] else batch
    if batch is not None:
        in_loss[batch] = True
        up[batch] = np.isfinite(norm[batch])
        times[batch] = norm[batch] / np.max(norm[max(0, batch - 16) : batch])
    return _Seen(up, in_loss, times, batch)


def _last(rows: Rows, steps: float = 2.0) -> bool:
    """Whether jumps last for several of these rows each, `steps` on average: one odd batch is over in one."""
    return len(rows) >= steps * _runs(rows)


def _runs(rows: Rows) -> int:
    """How many stretches of neighbours these rows are."""
    return 1 + int((np.diff(rows) > 1).sum())


def _norm_spikes(norm: Floats, z: float, ratio: float, window: int, least: int = 4) -> tuple[Bools, Floats]:
    """Which rows spike, `[T]`, and how many times the usual norm each is (NaN where nothing is usual yet)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log10(np.where(np.isfinite(norm) & (norm > 0), norm, np.nan))
    usual, spread = _usual(logs, window)
    with np.errstate(invalid="ignore"):
        above = logs - usual
        hit = (above > z * np.maximum(spread, 0.02)) & (above > np.log10(ratio))
    for row in np.flatnonzero(hit):
        after = logs[row + 1 : row + 17]
        after = after[np.isfinite(after)]
        before = logs[max(0, row - 16) : row]
        leaps = logs[row] - middle(before) > np.log10(ratio / 2)  # not out of a rise
        hit[row] = leaps and len(after) >= least and logs[row] - np.median(after) > np.log10(3)
    return hit, 10.0**above


def _usual(values: Floats, window: int, least: int = 8) -> tuple[Floats, Floats]:
    """As `trailing`; where too few came before for that, the higher of what came before and what followed."""
    middle, spread = trailing(values, window)
    followed = [part[::-1] for part in trailing(values[::-1], window)]
    for row in np.flatnonzero(np.isnan(middle)):
        before = values[:row][np.isfinite(values[:row])]
        if len(before) >= least:
            m = float(np.median(before))
            middle[row] = np.maximum(m, followed[0][row])  # NaN where too few follow as well
            spread[row] = np.maximum(deviation(before - m), followed[1][row])
    return middle, spread


def _loss_spikes(values: Floats, z: float, window: int) -> Bools:
    finite = values[np.isfinite(values)]
    if len(finite) < 64:
        return np.zeros(len(values), bool)
    low, high = np.quantile(finite, [0.05, 0.95])
    middle, spread = _usual(values, window)
    with np.errstate(invalid="ignore"):
        above = np.where(np.isfinite(values), values - middle, np.nan)
        return np.asarray((above > z * np.maximum(spread, 1e-3 * np.abs(middle))) & (above > (high - low) / 2))


def _passes(values: Floats, rows: Rows, window: int) -> Bools:
    """Of these rows, in which half of what the value is above the usual is gone in the 16 steps that follow."""
    above = values - _usual(values, window)[0]
    after = [values[row + 1 : row + 17] for row in rows]
    falls = [values[row] - middle(part) for row, part in zip(rows, after, strict=True)]
    return ~(np.array(falls) <= above[rows] / 2)


def _caught(history: History, rows: Rows, window: int, times: float = 10.0) -> Bools:
    """Of these rows, which were skipped, or clipped to less than `times` what usually reaches the optimizer."""
    after = history.total("clipped_norm")
    middle, _ = trailing(np.where(after > 0, after, np.nan), window)
    with np.errstate(invalid="ignore"):
        return np.asarray((history.total("skipped")[rows] > 0) | (after[rows] <= times * middle[rows]))


def _recovered(values: Floats, rows: Rows, least: int = 16) -> str:
    """Whether values came back after the last of these rows, to within their noise: yes, no, or unknown (too early).

    Soon after it or at the end of the run: what rises much later has another cause.
    """
    before = values[max(0, rows[0] - 32) : rows[0]]
    after = values[rows[-1] + 1 :]
    before, after = before[np.isfinite(before)], after[np.isfinite(after)]
    if len(after) < least or len(before) < 8:
        return "unknown"
    usual = float(np.median(before[-least:]))
    noise = 1.05 * float(np.median(np.abs(np.diff(before))))  # of differences, which a falling loss does not widen
    width = max(least, len(after) // 4)
    end = min(float(np.median(part)) for part in (after[:width], after[-width:]))
    return "yes" if end <= usual + max(4 * noise, 0.1 * abs(usual)) else "no"


def _carriers(history: History, row: int, share: float = 0.8) -> tuple[str, ...]:
    """The layers that make up `share` of the joint norm's square in that row; empty where that is most of them."""
    norm = history.layer("grad_norm")[history.layer_rows == row].astype(np.float64)
    square = (np.nan_to_num(norm, posinf=0.0) ** 2).sum(axis=0)
    if not square.sum():
        return ()
    order = np.argsort(-square)
    enough = int(np.searchsorted(np.cumsum(square[order]) / square.sum(), share)) + 1
    which = np.isin(np.arange(len(square)), order[:enough])
    return () if enough > len(square) / 2 else pick(history, which)
