"""Diseases that only activations show: real trainings and their healthy twins."""

from dataclasses import replace

import inner_diseases
import numpy as np
import pytest
from recordings import Recorded
from torch import nn
from trainings import one, policies_in, serious

from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.activation_outliers import activation_outlier
from gradwatch.analysis.rules.activations import dead_units, saturated
from gradwatch.analysis.rules.attention import attention_collapsed, attention_logits_grow, grown_logits
from gradwatch.analysis.rules.experts import expert_starved
from gradwatch.analysis.rules.noise import noise_dominated
from gradwatch.analysis.rules.second_moment import stale_second_moment
from gradwatch.analysis.rules.vanishing import vanishing
from gradwatch.history import History, Run
from gradwatch.table import EMPTY, Table

d = Recorded(inner_diseases)


SICK = [d.dead_units, d.saturated, d.growing_logits, d.collapsed_heads, d.drifting_sensor, d.starved_experts]


@pytest.mark.parametrize("train", SICK, ids=lambda train: train.__name__)
def test_the_healthy_twin_has_no_error_and_no_warning(train, tmp_path):
    history = train(tmp_path, sick=False)
    assert len(history.activations) == len(history) // 10 + 1
    assert serious(diagnose(history)) == []


def test_units_that_never_wake_are_found(tmp_path):
    (root,) = diagnose(d.dead_units(tmp_path))
    assert (root.rule, root.severity, root.layers, root.first_step) == ("dead-units", "warning", ("2", "4", "6"), 0)
    assert root.evidence["share"] > 0.8
    assert root.cure.startswith("Begin with biases at 0")


def test_units_that_one_batch_killed_are_a_note_where_the_others_learn(tmp_path):
    (finding,) = dead_units(d.units_that_one_batch_killed(tmp_path))
    assert (finding.severity, finding.layers, finding.first_step) == ("note", ("3",), 10)
    assert finding.evidence["share"] > 0.5
    assert finding.cure.startswith("Lower the learning rate")


def test_a_tanh_at_its_ends_is_found(tmp_path):
    history = d.saturated(tmp_path)
    (finding,) = saturated(history)
    assert (finding.severity, finding.first_step) == ("warning", 0)
    assert finding.evidence["share"] > 0.5
    (root,) = diagnose(history)
    assert (root.rule, one([root], "saturated").layers) == ("inputs-not-normalised", finding.layers)


def test_a_gradient_that_vanishes_through_units_that_are_not_saturated_is_not_laid_on_them(tmp_path):
    history = d.shrinking(tmp_path, act=nn.Sigmoid)
    (root,) = diagnose(history)
    assert (root.rule, root.alternatives, root.evidence["saturated"]) == ("vanishing", (), 0)
    assert "A sigmoid passes on a quarter of the gradient at most" in root.cause
    first, last = (history.activations.values["rms"][0, history.activations.layers.index(name)] for name in ("0", "19"))
    assert (root.evidence["first_rms"], root.evidence["last_rms"]) == (first, last)
    (blind,) = vanishing(replace(history, activations=EMPTY))
    assert blind.alternatives == ("the units saturate", "the initial weights do not suit this depth")


def test_a_gradient_that_vanishes_through_saturated_units_stands_under_them(tmp_path):
    (root,) = diagnose(d.shrinking(tmp_path, bias=4.0))
    assert (root.rule, root.first_step) == ("saturated", 0)
    below = one([root], "vanishing")
    assert (below.alternatives, below.evidence["saturated"] > 0.5) == ((), True)
    assert "The units saturate." in below.cause


def test_what_vanishes_on_its_way_forward_is_found_where_activations_were_recorded(tmp_path):
    """All layers get as little of a gradient, and no gradient shows it: the rate was blamed."""
    history = d.shrinking(tmp_path, gain=0.3)
    (root,) = diagnose(history)
    assert (root.rule, one([root], "update-too-small").severity) == ("vanishing", "warning")
    assert "root mean square of the activations falls from" in root.cause
    rms = dict(zip(history.activations.layers, history.activations.values["rms"][0], strict=True))
    assert root.layers == tuple(name for name, size in rms.items() if size < rms["0"] / 100 and name != "20")
    assert serious(diagnose(replace(history, activations=EMPTY))) == ["update-too-small"]
    assert serious(diagnose(d.shrinking(tmp_path))) == []


def test_logits_that_grow_without_end_are_found_under_the_rate_that_makes_them(tmp_path):
    history = d.growing_logits(tmp_path)
    (finding,) = attention_logits_grow(history)
    assert (finding.severity, finding.first_step) == ("warning", 10)
    assert all(".self_attn[" in head for head in finding.layers)
    assert finding.evidence["largest_logit"] > 300 > 30 > finding.evidence["at_first"]
    (collapsed,) = attention_collapsed(history)
    assert (collapsed.severity, collapsed.first_step) == ("warning", 10)
    assert collapsed.cure.startswith("Lower the learning rate")
    found = diagnose(history)
    assert serious(found) == ["lr-too-high"]
    assert one(found, "attention-logits-grow") in found[0].consequences
    logits, steps = history.activations.with_values("logit_max"), history.activations.step
    since = steps[(logits.values["logit_max"][:, logits.layers.index(found[0].evidence["head"])] > 100).argmax()]
    assert found[0].evidence["largest_logit"] == np.nanmax(logits.values["logit_max"])
    assert f"beyond 100 at step {since}." in found[0].cause
    assert grown_logits(d.growing_logits(tmp_path, sick=False), 120) is None


def test_heads_that_look_at_one_key_from_the_first_step_on_are_found(tmp_path):
    """A note: what stands beside attention learns this text by itself."""
    (root,) = diagnose(d.collapsed_heads(tmp_path))
    assert (root.rule, root.severity, root.first_step, len(root.layers)) == ("attention-collapsed", "note", 0, 8)
    assert root.evidence["entropy"] < 0.05
    assert root.cure.startswith("Begin with smaller weights")


def test_a_run_without_attention_says_nothing_of_it(tmp_path):
    history = d.dead_units(tmp_path)
    assert attention_logits_grow(history) == attention_collapsed(history) == []


def test_values_that_outgrow_all_others_are_found_where_they_come_in(tmp_path):
    history = d.drifting_sensor(tmp_path)
    (finding,) = activation_outlier(history)
    assert finding.evidence["first_module"] == finding.layers[0] == "1"
    assert finding.evidence["largest_over_rms"] > 20 > 10 > finding.evidence["at_first"]
    assert finding.severity == "note"  # the other examples are learned all the same
    (root,) = diagnose(history)
    assert (root.rule, root.severity, root.consequences[0].rule) == ("activation-outlier", "warning", "spike")


def test_a_rare_gradient_that_adam_was_not_prepared_for_is_found_below_the_clip(tmp_path):
    history = d.rare_gradient(tmp_path)
    (finding,) = stale_second_moment(history)
    assert (finding.layers, finding.first_step) == (("gate.weight", "gate.bias"), 143)
    assert finding.evidence["adam_rms"] > 8
    assert finding.evidence["update_over_usual"] > 3
    assert finding.evidence["share_of_norm"] < 0.05
    twin = d.rare_gradient(tmp_path, sick=False)
    assert stale_second_moment(twin) == []
    assert serious(diagnose(twin)) == serious(diagnose(history)) == []
    assert one(diagnose(history), "stale-second-moment").severity == "note"  # the digits are learned all the same


def test_an_expert_that_gets_no_tokens_is_found_above_its_dead_layers(tmp_path):
    history = d.starved_experts(tmp_path)
    (finding,) = expert_starved(history)
    assert finding.severity == "note"  # the digits are learned by the other three
    (root,) = diagnose(history)
    assert (root.rule, root.severity, root.layers, root.first_step) == ("expert-starved", "warning", ("3.gate[3]",), 0)
    assert [below.rule for below in root.consequences] == ["dead-layer"]
    assert all(name.startswith("3.experts.3.") for name in root.consequences[0].layers)
    late = history.activations.with_values("tokens").values["tokens"][-4:].mean(axis=0)
    assert root.evidence["fed_most"] == f"3.gate[{late.argmax()}]"
    assert root.evidence["its_share"] == pytest.approx(late.max(), rel=1e-6)
    assert "load-balancing loss" in root.cure


def of_experts(counts, names="gate"):
    """A history of T steps in which so many tokens `[T, E]` were counted."""
    counts = np.asarray(counts, np.float32)
    shares, steps = counts / counts.sum(axis=1, keepdims=True), np.arange(len(counts), dtype=np.int64)
    none, optimizer = np.zeros(len(steps), np.int64), np.array(["Adam"] * len(steps), object)
    layers = tuple(f"{names}[{e}]" for e in range(shares.shape[1]))
    table = Table(steps, none, optimizer, {"tokens": shares, "token_count": counts}, layers)
    history = History.of(Run("any", "2026-01-01"), (), steps, none, optimizer, {}, {})
    return replace(history, activations=table)


def drawn(odds, tokens, rows=60, seed=0):
    """How many of so many tokens a step are sent to each expert by these odds."""
    return np.random.default_rng(seed).multinomial(tokens, odds, size=rows)


def test_where_all_experts_share_about_alike_nothing_is_said_however_few_the_tokens():
    for tokens in (1, 2, 7, 64):
        for seed in range(20):
            assert expert_starved(of_experts(drawn([1 / 8] * 8, tokens, seed=seed))) == []
    uneven = [0.4, 0.2, 0.15, 0.1, 0.05, 0.04, 0.03, 0.03]
    assert expert_starved(of_experts(drawn(uneven, 64))) == []


def test_an_expert_is_starved_where_enough_tokens_were_sampled_to_tell():
    odds = [0.5, 0.25, 0.245, 0.005]
    (finding,) = expert_starved(of_experts(drawn(odds, 64)))
    assert finding.layers == ("gate[3]",)
    assert expert_starved(of_experts(drawn(odds, 1, rows=90))) == []
    assert expert_starved(of_experts(drawn(odds, 64)), least_tokens=1e6) == []


def test_an_expert_that_gets_its_tokens_in_a_few_steps_is_not_starved():
    counts = drawn([0.5, 0.3, 0.2, 0.0], 64)
    counts[::8] = [0, 0, 13, 51]
    assert expert_starved(of_experts(counts)) == []


def test_a_router_that_comes_to_send_all_tokens_one_way_is_found_from_then_on():
    counts = drawn([0.25] * 4, 64)
    counts[25:] = [0, 64, 0, 0]
    (finding,) = expert_starved(of_experts(counts))
    assert (finding.layers, finding.first_step) == (("gate[0]", "gate[2]", "gate[3]"), 25)
    assert (finding.evidence["fed_most"], finding.evidence["its_share"]) == ("gate[1]", 1.0)
    counts[:] = [0, 64, 0, 0]
    assert [f.first_step for f in expert_starved(of_experts(counts))] == [0]


def test_micro_batches_that_are_mostly_noise_are_told_from_those_that_agree(tmp_path):
    history = d.noisy_micro_batches(tmp_path)
    (found,) = noise_dominated(history)
    assert (found.severity, found.first_step, found.last_step) == ("note", 60, 119)
    assert found.evidence["noise_scale_in_batches"] > 10
    assert found.evidence["steps"] == 30
    assert noise_dominated(history, min_steps=61) == []  # of 120 steps 60 were sampled
    assert diagnose(d.noisy_micro_batches(tmp_path, sick=False)) == []


@pytest.mark.parametrize("train", [d.one_row, d.one_expert], ids=lambda train: train.__name__)
def test_the_healthy_twins_of_a_row_and_of_an_expert_have_no_finding(train, tmp_path):
    assert diagnose(train(tmp_path, sick=False)) == []


@pytest.mark.parametrize("clip", ["ClipByGlobalNorm(1.0)", None])
def test_a_row_that_is_a_spike_is_named_and_bounded_by_itself(clip, tmp_path):
    history = d.one_row(tmp_path, clip=clip)
    finding = one(diagnose(history), "spike")
    worst = history.layer_rows == int(np.flatnonzero(history.step == finding.evidence["largest_step"])[0])
    coef = history.layer("clip_coef")[worst][0, 1:]
    assert finding.layers == ("0.weight",)
    assert (finding.evidence["row"], finding.evidence["row_share"] > 0.99) == (7, True)
    assert finding.evidence["others_kept"] == pytest.approx(np.median(coef))
    assert "Row 7 of 0.weight alone is" in finding.cause
    assert ("every other layer's gradient" in finding.cause) == (clip is not None)
    (policy,) = policies_in(finding)
    rows = history.layer("row_norm")[:, 0]
    assert policy.policies[1].pattern == "0.weight"
    assert policy.policies[1].policy.axes == (1,)
    assert np.median(rows) < policy.policies[1].policy.max_norm < rows.max() / 5


def test_what_the_cure_of_a_row_says_leaves_nothing_to_find(tmp_path):
    bounded = "chain(SkipNonfinite(), only('0.weight', ClipByNorm(0.2, axes=(1,))), ClipByGlobalNorm(7.7))"
    history, healthy = d.one_row(tmp_path, clip=bounded), d.one_row(tmp_path, sick=False)
    assert serious(diagnose(history)) == []
    kept = history.layer("clip_coef")[history.step % 20 == 19, 1:]
    assert (kept == 1).all()
    assert history.total("loss")[-20:].mean() == pytest.approx(healthy.total("loss")[-20:].mean(), rel=0.1)


def test_an_expert_that_is_a_spike_is_named(tmp_path):
    finding = one(diagnose(d.one_expert(tmp_path)), "spike")
    assert (finding.layers, finding.evidence["largest_step"]) == (("3.experts[2]",), 60)
