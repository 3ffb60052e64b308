"""`gradwatch sweep --cures RUN`: a run's own script again, unchanged and with each cure that its findings name.

With `--usual-cures` those too that mend many trainings, whatever the findings say: judgement by experiment.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradwatch.analysis.comparison import Comparison
from gradwatch.analysis.final_values import ARGS, is_seed
from gradwatch.analysis.rules import Finding, diagnose
from gradwatch.analysis.rules.tries import A_THIRD, LOWER, OWN_PAST, clip_with, rate_times, warm_up
from gradwatch.analysis.verdict import BETTER, NOT_JUDGED, WORSE
from gradwatch.errors import RunError
from gradwatch.formatting import counted
from gradwatch.history import History, Run
from gradwatch.launcher.sweep import SEED
from gradwatch.open_run import open_one
from gradwatch.policies.grammar import as_policy
from gradwatch.policies.intervention import NONE, Intervention, skipping
from gradwatch.report.model import RunSummary

MOST = 6  # cures that are tried beside the unchanged script


@dataclass(frozen=True)
class Command:
    """How a run was started: the words behind `gradwatch run`, and where. `options` are those of gradwatch."""

    target: str
    module: bool
    args: tuple[str, ...]
    options: tuple[str, ...] = ()
    seed: int | None = None
    folder: Path | None = None
    log: str | None = None
    experiment: str | None = None

    def seeded(self, params: Mapping[str, Any]) -> Command:
        """The same with the value of an argument that is a seed given by the sweep; of a run whose script has an option
        `--seed`, as its `params` show, and was not given it, with that.
        """
        words = list(self.args)
        for at, word in enumerate(words):
            name, equals, value = word.partition("=")
            if equals and is_seed(name.lstrip("-")) and value.isdigit():
                words[at] = f"{name}={SEED}"
            elif word.startswith("-") and is_seed(word.lstrip("-")) and words[at + 1 : at + 2]:
                words[at + 1] = SEED if words[at + 1].isdigit() else words[at + 1]
        has_option = self.seed is None and str(params.get(f"{ARGS}seed", "")).isdigit()
        if has_option and not any(SEED in word for word in words):
            words += ["--seed", SEED]
        return replace(self, args=tuple(words))


@dataclass(frozen=True)
class Trial:
    """What is tried: the run as it was, then each cure, with the rules of the findings that name it.

    The `usual` cures no finding names; each has what it shows of the training where it helps.
    """

    name: str
    unchanged: Intervention
    cures: Mapping[Intervention, tuple[str, ...]]
    usual: Mapping[Intervention, str]
    severe: str  # the verdict over the run
    root: str = ""  # the rule of its main finding, which may name no cure itself

    @property
    def policies(self) -> tuple[Intervention, ...]:
        """All that is trained."""
        return (self.unchanged, *self.cures, *self.usual)

    def outcome(self, settled: Comparison, runs: Sequence[RunSummary]) -> Comparison:
        """The comparison with a line for each cure ahead of its notes: is the finding gone, and the metric better."""
        rules: dict[str, list[set[str]]] = {}
        for run in runs:
            rules.setdefault(run.policy, []).append({rule for root in run.findings for rule in _rules(root)})
        metric = settled.metrics[0] if settled.metrics else None
        said = settled.table[f"{metric}_verdict"] if metric else ()
        verdicts = dict(zip(settled.table["policy"], map(str, said), strict=False))
        again, treated = rules.get(self.unchanged.label, []), sorted(set().union(*self.cures.values()))
        if self.root and self.root not in treated:
            treated.insert(0, self.root)
        lines = [f"Unchanged: {_seen(treated, again)}."] if again and self.cures else []
        for cure, named_by in self.cures.items():
            if cure.label in rules:
                verdict = verdicts.get(cure.label, NOT_JUDGED)
                lines.append(_line(cure, named_by, rules[cure.label], again, verdict, metric, self.root))
        for cure, shows in self.usual.items():
            if cure.label in rules:
                lines.append(_usual_line(cure, shows, verdicts.get(cure.label, NOT_JUDGED), metric))
        return replace(settled, notes=(*lines, *settled.notes))


def read_trial(ref: str, usual: bool) -> tuple[Trial | None, Run]:
    """What can be tried on a run, the `usual` cures among it if asked for; None for a healthy run without them.

    Raises:
        RunError: it is no run, or several; or none of its findings names a cure that its script can be given.
    """
    history = open_one(ref, "--cures")
    findings = [finding for finding in diagnose(history) if finding.severity != "note"]
    if not (findings or usual):
        return None, history.run
    unchanged = Intervention.of(history.run)
    cures = collect(unchanged, findings)
    if not (cures or usual):
        found = ", ".join(dict.fromkeys(finding.rule for finding in findings))
        raise RunError(
            f"{ref}: none of its findings ({found}) names a cure that can be tried on an unchanged script; what they "
            f"advise is in gradwatch check {ref}; --usual-cures tries what mends many trainings"
        )
    shows = {applied(unchanged, text): said for text, said in usual_cures(history).items()} if usual else {}
    others = {cure: said for cure, said in shows.items() if cure not in cures and cure != unchanged}
    severe = findings[0].summary if findings else "no finding that asks for a cure"
    root = findings[0].rule if findings else ""
    return Trial(history.run.name, unchanged, cures, others, severe, root), history.run


def usual_cures(history: History) -> dict[str, str]:
    """What mends many trainings, whatever ails them (docs/sweep.md), as options; and what it shows where it does."""
    return {
        LOWER: _TOO_HIGH,
        A_THIRD: _TOO_HIGH,
        rate_times(3): _TOO_LOW,
        rate_times(10): _TOO_LOW,
        warm_up(history): "the first steps are too long",
        clip_with(OWN_PAST): "single gradients, far above what their layers had before, do harm",
    }


_TOO_HIGH, _TOO_LOW = "the learning rate is too high", "the learning rate is too low"


def collect(unchanged: Intervention, findings: Iterable[Finding]) -> dict[Intervention, tuple[str, ...]]:
    """The cures that findings name, at most `MOST`, each with the rules of those that name it; roots come first. What a
    note names is none.
    """
    found: dict[Intervention, tuple[str, ...]] = {}
    roots = list(findings)
    for finding in (*roots, *(below for root in roots for below in root.consequences)):
        for text in finding.tries if finding.severity != "note" else ():
            cure = applied(unchanged, text)
            if cure != unchanged and (cure in found or len(found) < MOST):
                found[cure] = tuple(dict.fromkeys((*found.get(cure, ()), finding.rule)))
    return found


def applied(unchanged: Intervention, text: str) -> Intervention:
    """What the options in a text, such as `--lr-scale 0.1 --warmup 200`, make of a run: rates are scaled further.

    Raises:
        ValueError: the text is none of options that change a training.
    """
    made, words = unchanged, shlex.split(text)
    while words:
        flag = words.pop(0)
        if flag == "--skip":
            made = replace(made, clip=skipping(made.clip))
        elif flag in ("--clip", "--renorm") and words:
            value = words.pop(0)
            policy = None if value == NONE else repr(as_policy(value, flag[2:]))
            made = replace(made, clip=policy) if flag == "--clip" else replace(made, renorm=policy)
        elif flag == "--lr-scale" and words:
            made = replace(made, lr_scale=unchanged.lr_scale * float(words.pop(0)))
        elif flag == "--warmup" and words:
            made = replace(made, warmup=int(words.pop(0)))
        else:
            raise ValueError(f"{flag} of {text!r}: wanted --clip, --renorm, --lr-scale, --warmup or --skip")
    return made


def recorded_command(ref: str, run: Run, launched: bool) -> Command:
    """How `gradwatch run` started a run on this machine; `launched` says that a launcher is given.

    Raises:
        RunError: something of it is missing, and what to do.
    """
    instead = f"give its script: gradwatch sweep --cures {shlex.quote(ref)} SCRIPT [ARGS...]"
    if not run.command:
        raise RunError(f"{ref}: how it was started is not recorded, because gradwatch run did not start it; {instead}")
    known: dict[str, Any] = run.command
    if run.host != socket.gethostname():
        raise RunError(f"{ref} was recorded on another machine ({run.host}), whose files may not be here; {instead}")
    if known["hidden"]:
        raise RunError(f"{ref}: a secret among its script's arguments is not recorded; {instead}")
    folder = Path(known["folder"])
    if not folder.is_dir() or not (known["module"] or (folder / known["target"]).exists()):
        raise RunError(f"{ref}: {folder / ('' if known['module'] else known['target'])} is no more; {instead}")
    if known["ranks"] > 1 and not launched:
        raise RunError(
            f"{ref} was trained by {known['ranks']} processes: give their launcher too, for example "
            f"--prefix 'torchrun --nproc-per-node {known['ranks']}'"
        )
    return Command(
        known["target"],
        known["module"],
        tuple(known["args"]),
        tuple(known["options"]),
        known["seed"],
        folder,
        known["log"],
        known["experiment"],
    )


def _rules(finding: Finding) -> set[str]:
    """The rules of a finding and of what follows from it, but for notes."""
    own = () if finding.severity == "note" else (finding.rule,)
    return {*own, *(rule for below in finding.consequences for rule in _rules(below))}


def _line(
    cure: Intervention,
    treated: Sequence[str],
    found: Sequence[set[str]],
    unchanged: Sequence[set[str]],
    verdict: str,
    metric: str | None,
    root: str = "",
) -> str:
    """As in: lr_scale=0.1 cured it: lr-too-high in none of 3 runs, loss better.

    Where the main finding, of the rule `root`, names other things to do and is still there, it is not cured.
    """
    gone = not any(set(treated) & each for each in found)
    others = sorted(set().union(*found) - set(treated))
    new = set.intersection(*found) - set().union(*unchanged) - set(treated)  # in all, where there was none
    instead = sorted(new) if unchanged and gone else []
    left = root not in treated and any(root in each for each in found)
    said = {BETTER: "better", WORSE: "worse", NOT_JUDGED: "not judged"}.get(
        verdict, "not shown to be better than unchanged"
    )
    if verdict == WORSE:
        head = "made it worse"
    elif unchanged and not any(set(treated) & each for each in unchanged):
        head = "had nothing to cure, as the unchanged script shows no such finding here"
    elif instead:
        head = f"{'helped, and ' if verdict == BETTER else ''}put {', '.join(instead)} in the finding's place"
    elif verdict == BETTER and gone and left:
        head = f"helped, and leaves {root}, which asks for another change (gradwatch check)"
    elif verdict == BETTER:
        head = "cured it" if gone else "helped, and did not cure it"
    else:
        head = "took the finding away, and is not shown to help" if gone else "did not cure it"
    more = f"; also seen: {', '.join(others)}" if others else ""
    return f"{cure.label} {head}: {_seen(treated, found)}, {metric or 'no metric'} {said}{more}."


def _usual_line(cure: Intervention, shows: str, verdict: str, metric: str | None) -> str:
    """As in: lr_scale=0.3 trains better (loss): the learning rate is too high."""
    if verdict == NOT_JUDGED:
        return f"{cure.label} is not judged against unchanged."
    said = {BETTER: f"trains better ({metric}): {shows}", WORSE: f"trains worse ({metric})"}
    return f"{cure.label} {said.get(verdict, f'is not shown to train better ({metric})')}."


def _seen(rules: Sequence[str], found: Sequence[set[str]]) -> str:
    """`lr-too-high in none of 3 runs, spike in 2 of 3`."""
    counts = {rule: sum(rule in each for each in found) for rule in rules}
    runs = counted(len(found), "run")
    return ", ".join(f"{rule} in {count or 'none'} of {runs}" for rule, count in counts.items())
