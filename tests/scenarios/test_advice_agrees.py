"""What a page advises is one thing: its findings, its suggestion and its what-if name the same threshold, and one
learning rate.

They take it from `analysis.rules.guard`; here the pages of all recorded trainings are read for it.
"""

import fnmatch
import re
import shlex
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from gradwatch.analysis.rules.facts import GUARD
from gradwatch.analysis.rules.guard import USUAL
from gradwatch.launcher.cures import applied
from gradwatch.open_run import open_history
from gradwatch.policies.intervention import Intervention
from gradwatch.report import build_report

# Of the same disease with three seeds one.
RECORDED = sorted(f for f in (Path(__file__).parent / "recorded").iterdir() if not f.name.startswith("seed"))
# Not one in `only('optimizer:AdamW', ...)`: of another norm.
THRESHOLD = re.compile(r"(?<!', )ClipByGlobalNorm\(([\d.e+-]+)")
NO_CLIP = re.compile(r"[Cc]lipping does not help")


def all_of(findings):
    for finding in findings:
        yield finding
        yield from all_of(finding.consequences)


def thresholds(run):
    """The thresholds that a page advises, of each optimizer, with who names them."""
    found = defaultdict(lambda: defaultdict(list))
    for finding in all_of(run.findings):
        for limit in THRESHOLD.findall(f"{finding.cure} {finding.tries}"):
            found[finding.optimizer][limit].append(finding.rule)
    for suggestion in run.suggestions:
        for limit in THRESHOLD.findall(suggestion.policy):
            found[suggestion.optimizer][limit].append("the suggestion")
    return found


@pytest.fixture(scope="module")
def histories():
    return {folder.name: open_history(folder) for folder in RECORDED}


@pytest.fixture(scope="module")
def pages(histories):
    return {name: build_report([history]).runs[0] for name, history in histories.items()}


@pytest.mark.slow
def test_no_page_names_two_thresholds(pages):
    advised = {(name, of): dict(limits) for name, run in pages.items() for of, limits in thresholds(run).items()}
    assert len(advised) > 50
    assert {place: limits for place, limits in advised.items() if len(limits) > 1} == {}
    assert not any(GUARD in finding.cure for run in pages.values() for finding in all_of(run.findings))


@pytest.mark.slow
def test_no_threshold_lies_far_below_all_norms(pages, histories):
    low = []
    for name, run in pages.items():
        norm = histories[name].total("grad_norm")
        for limit in map(float, {limit for limits in thresholds(run).values() for limit in limits}):
            is_known = np.isfinite(norm[:2]).all() and limit != USUAL
            low += [(name, limit)] if is_known and not limit > 1e-3 * norm[norm > 0].min() else []
    assert low == []


@pytest.mark.slow
def test_what_if_counts_the_threshold_that_is_advised(pages):
    missing = []
    for name, run in pages.items():
        counted = {limit for one in run.what_if for limit in THRESHOLD.findall(one.policy)}
        counted |= {str(f.evidence.get("max_norm")) for f in all_of(run.findings)}  # of the loop's own clip
        for limits in thresholds(run).values():
            missing += [(name, limit) for limit in limits if run.what_if and limit not in counted]
    assert missing == []


@pytest.mark.slow
def test_no_clip_is_suggested_where_a_finding_says_that_clipping_does_not_help(pages):
    refused = {name for name, run in pages.items() if any(NO_CLIP.search(f.cure) for f in all_of(run.findings))}
    assert refused
    assert [name for name in refused if any(one.policy for one in pages[name].suggestions)] == []


@pytest.mark.slow
def test_every_cure_can_be_given_to_the_script(pages):
    named = set()
    for finding in all_of(root for run in pages.values() for root in run.findings):
        for text in finding.tries:
            assert GUARD not in text
            applied(Intervention(), text)
            named.add(finding.rule)
    assert {"exploding", "lr-too-high", "update-too-large", "spike", "nonfinite", "clip-is-your-learning-rate"} <= named


LOWER, RAISE = re.compile(r"\b[Ll]ower (?:the )?learning rate"), re.compile(r"\b(?:[Rr]aise the|higher) learning rate")
RATES = re.compile(r"(?:\blr=|learning rate to about )(\d[\d.e+-]*\d|\d)")


@pytest.mark.slow
def test_no_page_asks_for_two_learning_rates(pages):
    """Of what follows from one root; another root is another disease, and may need its own."""
    named, both = {}, {}
    for name, run in pages.items():
        for root in run.findings:
            cures = {f.rule: f.cure for f in all_of([root])}
            rates = {rate for cure in cures.values() for rate in RATES.findall(cure)}
            ways = {one.pattern for cure in cures.values() for one in (LOWER, RAISE) if one.search(cure)}
            named[name, root.rule] = rates
            if len(rates) > 1 or (
                len(ways) > 1 and not any(LOWER.search(c) and RAISE.search(c) for c in cures.values())
            ):
                both[name, root.rule] = cures
    assert sum(map(bool, named.values())) > 20
    assert both == {}


@pytest.mark.slow
def test_a_clip_of_a_root_is_suggested_too(pages):
    """Or the suggestion says why none is: the norms are wrong, or a clip is no cure."""
    silent = []
    for name, run in pages.items():
        named = any(THRESHOLD.search(root.cure) for root in run.findings if root.severity != "note")
        said = " ".join(f"{one.policy} {' '.join(one.reasons)}" for one in run.suggestions)
        silent += [name] if named and not re.search(r"ClipByGlobalNorm|ZClip|SkipSpike|would be wrong", said) else []
    assert silent == []


@pytest.mark.slow
def test_layers_and_optimizers_that_a_cure_names_are_the_runs(pages):
    patterns = {(name, pattern) for name, run in pages.items() for f in all_of(run.findings)
                for text in (f.cure, *(word for options in f.tries for word in shlex.split(options)))
                for pattern in re.findall(r"only\('([^']+)'", text)}  # fmt: skip
    assert patterns
    for name, pattern in patterns:
        kind = pattern.partition("optimizer:")[2]
        if kind:
            assert kind in pages[name].optimizer
        else:
            assert fnmatch.filter([layer.name for layer in pages[name].layers], pattern), (name, pattern)
