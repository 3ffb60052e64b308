"""What a page advises is one thing: its findings, its suggestion and its what-if name the same threshold.

All three take it from `analysis.rules.guard`; here the pages of all recorded trainings are read for it.
"""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from gradwatch.open_run import open_history
from gradwatch.report import build_report

RECORDED = sorted((Path(__file__).parent / "recorded").iterdir())
THRESHOLD = re.compile(r"ClipByGlobalNorm\(([\d.e+-]+)")
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
def pages():
    return {folder.name: build_report([open_history(folder)]).runs[0] for folder in RECORDED}


@pytest.mark.slow
def test_no_page_names_two_thresholds(pages):
    advised = {(name, of): dict(limits) for name, run in pages.items() for of, limits in thresholds(run).items()}
    assert len(advised) > 50
    assert {place: limits for place, limits in advised.items() if len(limits) > 1} == {}


@pytest.mark.slow
def test_what_if_counts_the_threshold_that_is_advised(pages):
    missing = []
    for name, run in pages.items():
        counted = {limit for one in run.what_if for limit in THRESHOLD.findall(one.policy)}
        for limits in thresholds(run).values():
            missing += [(name, limit) for limit in limits if counted and limit not in counted]
    assert missing == []


@pytest.mark.slow
def test_no_clip_is_suggested_where_a_finding_says_that_clipping_does_not_help(pages):
    refused = {name for name, run in pages.items() if any(NO_CLIP.search(f.cure) for f in all_of(run.findings))}
    assert refused
    assert [name for name in refused if any(one.policy for one in pages[name].suggestions)] == []
