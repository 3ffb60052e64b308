"""The numbers beside a finding's words: the first one shows what the words say."""

from functools import partial

import diseases
import pytest
import step_diseases
import torch
from recordings import Recorded

from gradwatch.analysis.rules import diagnose

d, s = Recorded(diseases), Recorded(step_diseases)
SHOWN = {
    "lr-too-high": [s.rate_too_high, "jump"],
    "clip-inert": [s.inert, "fired"],
    "gradients-accumulate": [partial(d.never_zeroed, kind=torch.optim.Adam, lr=1e-3), "grows_per_step_by"],
    "update-too-small": [s.tiny_rate, "update_ratio"],
    "weights-shrink": [s.fading, "left"],
}


@pytest.mark.parametrize("rule", SHOWN)
def test_the_first_number_is_the_one_that_shows_it(rule, tmp_path):
    train, shown = SHOWN[rule]
    found = [below for finding in diagnose(train(tmp_path)) for below in (finding, *finding.consequences)]
    finding = next(finding for finding in found if finding.rule == rule)
    assert next(key for key, value in finding.evidence.items() if not isinstance(value, str)) == shown


def test_how_far_a_spike_stands_out_comes_before_where_it_is(tmp_path):
    finding = next(finding for finding in diagnose(s.odd_batch(tmp_path)) if finding.rule == "spike")
    assert [*finding.evidence][:2] == ["spikes", "times_usual"]
