"""What a report says of one run, as plain data: its head, findings and layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradwatch.analysis.clips import clips_itself, incoming, loop_coef, loop_rate, summed_up
from gradwatch.analysis.final_values import final, finite_norms, lost_since, nonfinite_steps, policy_text, told
from gradwatch.analysis.optimizers import as_code, changes, group_texts
from gradwatch.analysis.rewinds import Rewound, rewinds
from gradwatch.analysis.rules import Finding, diagnose, verdict
from gradwatch.analysis.rules.facts import column_medians, middle
from gradwatch.analysis.suggest import Suggestion
from gradwatch.analysis.whatif import Outcome
from gradwatch.formatting import counted, loop_clips, percent
from gradwatch.history import Floats, History
from gradwatch.report.activations import ModuleSummary, module_summaries
from gradwatch.storage.logged_names import is_loss
from gradwatch.storage.run_state import run_state
from gradwatch.table import nanmean

CRASHED = "ended without close"


@dataclass(frozen=True)
class LayerSummary:
    """One layer over the whole run; NaN where the run did not record the quantity."""

    name: str
    shape: tuple[int, ...]
    median_grad_norm: float
    max_grad_norm: float
    clip_rate: float
    nonfinite: int
    weight_norm: float
    update_ratio: float


@dataclass(frozen=True)
class LaneSummary:
    """What an optimizer (or part of the run) that steps on its own did, in its own steps.

    The gradient norms are those before any clip that was seen. `clip_rate` is that of gradwatch's policy;
    `loop_clip_rate` and `loop_clip_coef` (the mean over the steps) are those of the loop's own clips, and
    `median_left` is the median norm that these left: NaN where the loop does not clip, or it is not known.
    """

    name: str
    steps: int
    clip_rate: float
    nonfinite_steps: int
    median_grad_norm: float
    p99_grad_norm: float
    loop_clip_rate: float
    loop_clip_coef: float
    median_left: float


@dataclass(frozen=True)
class RunSummary:
    """One run: what it was, how it ended, and what its layers did. `lanes` is empty where all step as one.

    Norms, rates and coefficients are those of `LaneSummary`, of the whole run; `loop_clips_note` is what a reader must
    know of how the loop clips. Norms of the layers are those that the loop's own clips left.
    """

    name: str
    created: str
    state: str
    policy: str
    loop_clips: str  # the clips of the loop's own, as code; empty without
    optimizer: str
    steps: int
    parameters: int
    verdict: str
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    clip_rate: float
    nonfinite_steps: int
    median_grad_norm: float
    p99_grad_norm: float
    first: dict[str, float]  # of each metric that is shown, its first value and its `final` one
    final: dict[str, float]
    lost_since: int | None  # the first of the inf or NaN gradients that the run ended in
    layers: tuple[LayerSummary, ...]
    lanes: tuple[LaneSummary, ...]
    params: dict[str, str]
    groups: tuple[str, ...] = ()  # the optimizers' param groups, where there are several
    changes: tuple[str, ...] = ()  # what else than the learning rate was set anew during the run
    reduced: str = ""  # how the layers were reduced to fit in memory; empty where they were not
    suggestions: tuple[Suggestion, ...] = ()  # these two of one run alone, not of many that are compared
    what_if: tuple[Outcome, ...] = ()
    what_if_note: str = ""
    source: str = ""  # what an imported run was made of; its clip and optimizer are not known
    loop_clips_note: str = ""
    loop_clip_rate: float = float("nan")
    loop_clip_coef: float = float("nan")
    median_left: float = float("nan")
    modules: tuple[ModuleSummary, ...] = ()  # whose activations were recorded
    rewinds: tuple[Rewound, ...] = ()
    resumed: tuple[int, ...] = ()  # the steps with which it went on from a checkpoint
    goes_on_from: str = ""  # the folder with the steps before these, of another policy's run


def summarize(history: History, metrics: Sequence[str]) -> RunSummary:
    """The facts of one run."""
    run, lanes, findings = history.run, history.lanes(), diagnose(history)
    whole = _lane("", history)
    bad = history.nonfinite
    shapes = {layer.name: layer.shape for layer in run.layers}
    columns = {
        "median_grad_norm": column_medians(history.layer("grad_norm")),
        "max_grad_norm": _highest(history.layer("grad_norm")),
        "clip_rate": history.clip_rate,
        "weight_norm": _last(history.layer("weight_norm")),
        "update_ratio": column_medians(history.layer("update_ratio")),
    }
    return RunSummary(
        name=run.name,
        modules=module_summaries(history),
        rewinds=tuple(rewinds(history)),
        resumed=_resumed(history),
        goes_on_from=run.goes_on_from or "",
        created=run.created,
        state=state(history),
        policy=policy_text(run),
        loop_clips=loop_clips(history.per_step),
        optimizer=", ".join(
            (f"{o.get('name')}: " if len(lanes) > 1 else "") + as_code(o) for o in run.optimizers
        ),
        groups=tuple(line for o in run.optimizers for line in group_texts(o)),
        changes=tuple(changes(history)),
        steps=len(history),
        reduced=reduced_text(history),
        parameters=sum(layer.numel for layer in run.layers),
        verdict=verdict(history, findings),
        findings=tuple(findings),
        problems=history.problems,
        clip_rate=whole.clip_rate,
        nonfinite_steps=whole.nonfinite_steps,
        median_grad_norm=whole.median_grad_norm,
        p99_grad_norm=whole.p99_grad_norm,
        loop_clips_note=summed_up(history),
        loop_clip_rate=whole.loop_clip_rate,
        loop_clip_coef=whole.loop_clip_coef,
        median_left=whole.median_left,
        first={name: _first(history, name) for name in metrics},
        final={name: final(history, name) for name in metrics},
        lost_since=lost_since(history),
        layers=tuple(
            LayerSummary(name, shapes.get(name, ()), nonfinite=int(bad[i]),
                         **{key: float(values[i]) for key, values in columns.items()})
            for i, name in enumerate(history.layers)
        ),
        lanes=tuple(_lane(name, lane) for name, lane in lanes.items()) if len(lanes) > 1 else (),
        params=dict(run.params),
        source=run.source or "",
    )  # fmt: skip


def _resumed(history: History) -> tuple[int, ...]:
    """The first step of each attempt but the first, and that of a run whose steps before are in another one."""
    later = history.step[1:][np.diff(history.attempt) > 0].tolist()
    return tuple(dict.fromkeys([*([history.run.first_step] if history.run.first_step else []), *later]))


def _lane(name: str, history: History) -> LaneSummary:
    norms, itself = finite_norms(history), clips_itself(history)
    with np.errstate(invalid="ignore"):  # of a step that was not finite, and dropped
        left = incoming(history) * loop_coef(history)
    return LaneSummary(
        name,
        len(history),
        clip_rate(history),
        nonfinite_steps(history),
        middle(norms),
        float(np.quantile(norms, 0.99)) if len(norms) else float("nan"),
        loop_rate(history),
        float(nanmean(loop_coef(history))) if itself else float("nan"),
        middle(left) if itself else float("nan"),
    )


def clip_rate(history: History) -> float:
    """Share of the steps in which the policy changed any gradient; NaN when this was not recorded."""
    values = history.total("clip_rate")
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else float("nan")


def changed(history: History) -> str:
    """What clipped, as a sentence: `ClipByGlobalNorm(1.0) changed 24.5 % of 1,000 steps`; the loop's own clips too."""
    steps = counted(len(history), "step")
    clips = [(history.run.clip, clip_rate(history))] if history.run.clip else []
    if clips_itself(history):
        clips.append((f"the loop's own {loop_clips(history.per_step)}", loop_rate(history)))
    if not clips and history.run.source:
        return f"Imported, {steps}: what clipped its gradients is not known"
    if not clips:
        return f"No clipping policy: the gradients of all {steps} were left alone"
    known = [f"{who} changed {percent(rate)} of {steps}" for who, rate in clips if not np.isnan(rate)]
    said = "; ".join(known + [f"{who}: what it changed was not recorded" for who, rate in clips if np.isnan(rate)])
    return said if history.run.clip else f"{said[0].upper()}{said[1:]}"


def reduced_text(history: History) -> str:
    """What a reader of a reduced History must know, in two sentences; empty for one that is not reduced."""
    if not history.is_reduced:
        return ""
    most = int(history.stands_for.max())
    return (
        f"This run is too large to be held in memory, so the layers of up to {most} steps in a row are "
        "reduced to three values, the first, the lowest and the highest: no spike is lost. Counts, rates, highest "
        "norms and totals are of every step; medians per layer are of these values, and a finding's steps are "
        f"exact to {most} steps (of a non-finite gradient, exact)."
    )


def state(history: History) -> str:
    """How the run ended: `finished`, `running`, or that its process is gone."""
    if run_state(history.run).crashed:
        return f"{CRASHED} at step {history.step[-1]}" if len(history) else CRASHED
    return history.run.status.lower()


def _first(history: History, name: str) -> float:
    """The first value of a loss; NaN of what is none."""
    values = told(history, name)[:1] if is_loss(name) else np.zeros(0)
    return float(values[0]) if len(values) and np.isfinite(values[0]) else float("nan")


def _highest(values: Floats) -> Floats:
    """The highest finite value of each layer, `[L]`; NaN for a layer without any."""
    return np.asarray(np.fmax.reduce(np.where(np.isfinite(values), values, np.nan), axis=0, initial=np.nan), np.float64)


def _last(values: Floats) -> Floats:
    """The last finite value of each layer, `[L]`."""
    finite = np.isfinite(values)
    if not len(values):
        return np.full(values.shape[1], np.nan)
    row = len(values) - 1 - finite[::-1].argmax(axis=0)
    return np.where(finite.any(axis=0), values[row, np.arange(values.shape[1])], np.nan)
