"""A run, its findings and suggestions in words, for every format; and which part of a cure is code."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradwatch.analysis.final_values import NO_POLICY, seeds
from gradwatch.analysis.rewinds import Rewound
from gradwatch.analysis.rules import TOO_SHORT, Finding, has_no_findings
from gradwatch.analysis.rules.facts import LEAST_STEPS
from gradwatch.analysis.rules.finding import RANK
from gradwatch.analysis.suggest import Suggestion
from gradwatch.analysis.whatif import CAVEAT, Outcome
from gradwatch.formatting import counted, listed, percent, quantity_text
from gradwatch.policies.grammar import is_call, members
from gradwatch.report.model import LaneSummary, RunSummary
from gradwatch.report.pages import address

MOST_NAMES = 4
UNKNOWN = ("policy", "optimizer", "layers", "clip rate")  # of an imported run
MAX_CODE = 2_000  # characters of a policy text that is shown as code
WHAT_IF_HEADERS = ("policy", "from", "steps clipped", "mean coefficient")
_POLICY = re.compile(r"""(?:(clip|renorm)=(["']))?(chain|only|[A-Z]\w*)\(""")


def counts_text(findings: Sequence[Finding]) -> str:
    """How many of each severity: `1 error, 2 warnings`; empty without any. What follows from one is not counted."""
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in RANK}
    return ", ".join(counted(n, severity) for severity, n in counts.items() if n)


def verdict_text(run: RunSummary) -> str:
    """The verdict of a run; `no findings but 2 notes` where nothing worse was found."""
    counts = counts_text(run.findings)
    return f"{run.verdict} but {counts}" if counts and has_no_findings(run.verdict) else run.verdict


def where_text(finding: Finding, follows: bool = False) -> str:
    """When, where and how sure: `steps 12 to 44 · rnn.weight_hh_l0 and 3 more layers · likely cause`.

    How sure a cause is goes unsaid of what `follows` from another finding.
    """
    first, last = finding.first_step, finding.last_step
    if not finding.any_step:
        return "no step was recorded"
    steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
    names, left = ", ".join(finding.layers[:MOST_NAMES]), len(finding.layers) - MOST_NAMES
    more = f" and {counted(left, 'more layer')}" if left > 0 else ""
    sure = f"{finding.confidence} cause" if finding.severity != "note" and not follows else ""
    return " · ".join(filter(None, [steps, finding.optimizer, names + more or "the whole model", sure]))


def evidence_cells(finding: Finding) -> list[tuple[str, str]]:
    """The evidence as pairs of word and value."""
    return [
        (key.replace("_", " "), f"{value:.4g}" if isinstance(value, (int, float)) else str(value))
        for key, value in finding.evidence.items()
    ]


def evidence_text(finding: Finding) -> str:
    """The evidence in one line: `steps: 31 · grad norm growth: 412`."""
    return " · ".join(f"{word}: {value}" for word, value in evidence_cells(finding))


def finding_lines(finding: Finding) -> Iterator[str]:
    """A finding as lines of text: what, where, the numbers, why, what to do; then what follows from it, indented; and
    the address of the page about it.

    What follows from it is said without a cure: it goes with its root, whose cure is the one to try.
    """
    yield f"{finding.severity}: {finding.summary}"
    yield from (f"  {line}" for line in said_of(finding) if line)
    if finding.consequences:
        yield "  What follows from it:"
    for other in finding.consequences:
        yield f"    {other.severity}: {other.summary}"
        if other.evidence:
            yield f"      {evidence_text(other)}"
    if address(finding.rule):
        yield f"  More: {address(finding.rule)}"


def said_of(finding: Finding) -> tuple[str, ...]:
    """Where, the numbers, why, what to do: each a line, or empty."""
    return where_text(finding), evidence_text(finding), finding.cause, finding.cure


def code_spans(text: str) -> list[tuple[str, bool]]:
    """The text in pieces, each with whether it is a policy text, alone or as `clip="..."`.

    `[("Clip: ", False), ("ClipByNorm(1.0)", True)]`
    """
    pieces, start, ends = [], 0, _ends_of_calls(text)
    for match in _POLICY.finditer(text):
        end = ends.get(match.end() - 1)
        if (
            match.start() < start
            or end is None
            or end - match.start() > MAX_CODE
            or not is_call(text[match.start(3) : end])
        ):
            continue
        end += bool(match[2]) and text[end : end + 1] == match[2]
        pieces += [(text[start : match.start()], False), (text[match.start() : end], True)]
        start = end
    return [piece for piece in [*pieces, (text[start:], False)] if piece[0]]


def arguments(text: str) -> list[str]:
    """The policy texts in a cure as arguments of `watch`, each once."""
    return list(dict.fromkeys(clip_argument(piece) for piece, is_code in code_spans(text) if is_code))


def clip_argument(policy: str) -> str:
    """A policy text as the argument of `watch` that takes it: `clip="ClipByNorm(1.0)"`."""
    if policy.startswith(("clip=", "renorm=")):
        return policy
    name = "renorm" if any(getattr(p, "acts_on_weights", False) for p in members(policy)) else "clip"
    quote = "'" if '"' in policy else '"'
    return f"{name}={quote}{policy}{quote}"


def suggestion_head(suggestion: Suggestion) -> str:
    """What is suggested, and for whom."""
    head = "A policy for the next run" if suggestion.policy else "No new clipping policy is suggested"
    return f"{head}, {suggestion.optimizer}" if suggestion.optimizer else head


def suggestion_lines(suggestion: Suggestion) -> list[str]:
    """A suggestion as lines of text: the policy as an argument of `watch`, then the reasons."""
    head = suggestion_head(suggestion)
    return [f"{head}: {clip_argument(suggestion.policy)}" if suggestion.policy else f"{head}:", *suggestion.reasons]


def layer_note(run: RunSummary) -> str:
    """What a reader of the layers' norms must know; empty where the loop does not clip."""
    note = "Norms of single layers are those that the loop's own clip left over; their clip rate is the policy's."
    return note if run.loop_clips else ""


def what_if_cells(outcomes: tuple[Outcome, ...]) -> list[list[str]]:
    """One row of text per policy, under `WHAT_IF_HEADERS`."""
    return [
        [f"{o.optimizer}: {o.policy}" if o.optimizer else o.policy, o.at, percent(o.clip_rate),
         f"{o.mean_coef:.4g}"]
        for o in outcomes
    ]  # fmt: skip


def caveat(run: RunSummary) -> str:
    """What a reader of the what-if tables must know."""
    count = run.nonfinite_steps
    left_out = f" The {count:,} steps whose norm was inf or NaN are left out." if count else ""
    return (run.what_if_note or CAVEAT) + left_out


def _ends_of_calls(text: str) -> dict[int, int]:
    """Where each parenthesis that is opened is closed: the place after it."""
    ends, opened = {}, []
    for i, sign in enumerate(text):
        if sign == "(":
            opened.append(i)
        elif sign == ")" and opened:
            ends[opened.pop()] = i + 1
    return ends


def facts(run: RunSummary) -> list[tuple[str, str]]:
    """The head of a run as pairs of word and value: what was trained, how far it came, and its norms."""
    if run.source:
        known = [pair for pair in facts(replace(run, source="")) if pair[0] not in UNKNOWN]
        return [("imported from", run.source), ("not known", ", ".join(UNKNOWN)), *known]
    return [
        ("policy", run.policy),
        *((("the loop itself clips", run.loop_clips),) if run.loop_clips else ()),
        ("optimizer", run.optimizer),
        *((("param groups", "; ".join(run.groups)),) if run.groups else ()),
        *((("set anew during the run", ", ".join(run.changes)),) if run.changes else ()),
        ("steps", _steps(run)),
        *((("resumed", _resumed(run)),) if run.resumed else ()),
        ("layers", f"{len(run.layers):,} ({run.parameters:,} parameters)"),
        ("clip rate", _rates(run)),
        *_norms(run),
        *((("note", run.loop_clips_note),) if run.loop_clips_note else ()),
        ("non-finite steps", f"{run.nonfinite_steps:,}"),
        *((("rewinds", rewinds_text(run.rewinds)),) if run.rewinds else ()),
        *((f"final {name}", _final(run, name)) for name in run.final),
        *seeds(run.params).items(),
        ("started", run.created[:16].replace("T", " ") + " UTC"),
    ]


def _resumed(run: RunSummary) -> str:
    """The steps with which it went on from a checkpoint, and where those before are that are in another run."""
    at = f"at step {listed([f'{step:,}' for step in run.resumed])}"
    return f"{at}; the steps before are in {run.goes_on_from}" if run.goes_on_from else at


def rewinds_text(rewinds: Sequence[Rewound]) -> str:
    """`after step 87 back to the state before step 80, because of step 87, 1 batch left out`, of each."""
    return "; ".join(
        f"after step {one.after:,} back to the state before step {one.to:,}, because of step {one.cause:,}, "
        f"{one.left_out:,} {'batch' if one.left_out == 1 else 'batches'} left out"
        for one in rewinds
    )


def started(run: RunSummary) -> str:
    """When it began, in UTC to the second, as its folder is named."""
    return run.created[:19].replace("T", " ")


def _final(run: RunSummary, name: str) -> str:
    """As in `0.413 (1.19 at first)`: no findings are no proof that a training got anywhere."""
    first, last = run.first[name], run.final[name]
    if math.isnan(last) and run.lost_since is not None:
        return f"inf or NaN (gradients since step {run.lost_since:,})"
    return quantity_text(last) + (f" ({quantity_text(first)} at first)" if math.isfinite(first) else "")


def _rates(run: RunSummary) -> str:
    """How often it was clipped, and by whom where the loop itself clips."""
    if not run.loop_clips:
        return percent(run.clip_rate)
    ours = f"; {percent(run.clip_rate)} by gradwatch" if run.clip_rate > 0 or run.policy != NO_POLICY else ""
    return f"{by_the_loop(run)}{ours}"


def by_the_loop(one: LaneSummary | RunSummary) -> str:
    """How often and how much the loop itself clipped: `14.3 % by the loop (mean coefficient 0.912)`."""
    if math.isnan(one.loop_clip_rate):
        return "by the loop: not recorded"
    return f"{percent(one.loop_clip_rate)} by the loop (mean coefficient {one.loop_clip_coef:.3g})"


def _norms(run: RunSummary) -> list[tuple[str, str]]:
    """The norms as pairs of word and value; of several lanes one pair each, and how often it was clipped."""

    def text(one: LaneSummary | RunSummary) -> str:
        norms = f"median {quantity_text(one.median_grad_norm)}, p99 {quantity_text(one.p99_grad_norm)}"
        norms += " of finite steps" if one.nonfinite_steps else ""
        left = "" if math.isnan(one.median_left) else f" before the loop's clip, {quantity_text(one.median_left)} after"
        return norms + left

    def clipped(lane: LaneSummary) -> str:
        ours = f"clipped {percent(lane.clip_rate)}"
        return f"{ours}, {by_the_loop(lane)}" if run.loop_clips and not math.isnan(lane.median_left) else ours

    lanes = [(f"total norm of {lane.name}", f"{text(lane)}, {clipped(lane)}") for lane in run.lanes]
    return lanes or [("total norm", text(run))]


def _steps(run: RunSummary) -> str:
    """The number of steps, how the run ended, how many steps each lane took, and whether they are enough."""
    each = [f"{lane.name} {lane.steps:,}" for lane in run.lanes]
    short = f", {TOO_SHORT}: {LEAST_STEPS} are wanted" if run.verdict == TOO_SHORT else ""
    return f"{run.steps:,} ({run.state})" + (f": {', '.join(each)}" if each else "") + short
