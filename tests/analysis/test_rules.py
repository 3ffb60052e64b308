"""The rules: each disease is found where it was put, and its healthy twin raises no alarm."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from make_run import changed, make_history
from training import batches, mlp, watch

from gradwatch import GradwatchWarning, open_history
from gradwatch.analysis.rules import NO_FINDINGS, TOO_SHORT, Finding, diagnose, registry, verdict
from gradwatch.analysis.rules.consequences import CONSEQUENCES
from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.rules.depth import imbalance
from gradwatch.analysis.rules.gradient_scale import gradients_accumulate
from gradwatch.analysis.rules.gradients import exploding
from gradwatch.analysis.rules.nonfinite import nonfinite
from gradwatch.analysis.rules.roots import group
from gradwatch.analysis.rules.vanishing import vanishing
from gradwatch.analysis.rules.vanishing_causes import remedies
from gradwatch.analysis.rules.weight_growth import renorm_binds
from gradwatch.report.wording import where_text


def with_steps(history, **columns):
    return changed(history, per_step={**history.per_step, **columns})


def with_layer(history, quantity, values):
    return changed(history, per_layer={**history.per_layer, quantity: values.astype(np.float32)})


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_run_is_healthy(seed):
    history = make_history(steps=300, seed=seed)
    assert diagnose(history) == []
    assert verdict(history) == "no findings"


@pytest.mark.parametrize("steps", [1, 2, 5, 14, 31])
def test_a_short_run_without_findings_is_not_called_healthy(steps):
    history = make_history(steps=steps)
    assert diagnose(history) == []
    assert verdict(history) == TOO_SHORT
    assert verdict(make_history(steps=32)) == NO_FINDINGS


def test_steps_that_were_dropped_judge_nothing():
    history = make_history(steps=60)
    assert verdict(with_steps(history, skipped=(history.step < 29).astype(float))) == TOO_SHORT
    assert verdict(with_steps(history, skipped=(history.step < 28).astype(float))) == NO_FINDINGS


def test_of_parts_the_one_with_the_fewest_steps_counts():
    history = make_history(steps=60)
    lanes = changed(history, optimizer=["G" if step >= 31 else "D" for step in history.step])
    assert verdict(lanes) == TOO_SHORT


@pytest.mark.parametrize("steps", [5, 12, 20])
def test_a_short_run_that_is_plainly_sick_is_called_so(steps):
    history = make_history(steps=steps)
    norm = np.geomspace(1.0, 6e15, steps)
    sick = with_steps(history, grad_norm=norm, loss=norm)
    (finding,) = [f for f in diagnose(sick) if f.rule == "exploding"]
    assert (finding.severity, verdict(sick)) == ("error", finding.summary)
    assert finding.last_step == steps - 1


def test_a_short_run_whose_steps_outgrow_the_weights_is_plainly_sick():
    history = make_history(steps=12, layers=("a", "b", "c"))
    (finding,) = diagnose(with_layer(history, "update_ratio", history.layer("weight_norm") * 0 + 1.3))
    assert (finding.rule, finding.severity, finding.layers) == ("update-too-large", "error", ("a", "b", "c"))
    assert diagnose(with_layer(history, "update_ratio", history.layer("weight_norm") * 0 + 0.5)) == []


def test_a_run_without_steps_is_not_called_healthy():
    assert verdict(make_history(steps=3, clip=None).slice(0, 0)) == "no steps recorded"


def test_a_run_without_steps_that_ended_well_had_policies_that_never_acted():
    empty = make_history(steps=3, renorm="MaxNorm(1.0)").slice(0, 0)
    assert diagnose(replace(empty, run=replace(empty.run, status="RUNNING"))) == []
    assert diagnose(replace(empty, problems=("3 steps were not recorded",))) == []
    done = replace(empty, run=replace(empty.run, status="FINISHED"))
    clip, renorm = diagnose(done)
    assert (clip.rule, clip.severity, clip.summary) == (
        "policy-never-acts",
        "warning",
        "policy-never-acts: no step was recorded",
    )
    assert clip.cause.startswith("ClipByGlobalNorm(1.0) was asked for and never acted: no step was seen")
    assert renorm.cause.startswith("MaxNorm(1.0) was asked for and never acted")
    assert verdict(done) == clip.summary
    assert where_text(clip) == "no step was recorded"
    (scaled,) = diagnose(replace(done, run=replace(done.run, clip=None, renorm=None, lr_scale=0.1)))
    assert scaled.cause.startswith("lr_scale=0.1 was asked for and never acted")
    bare = replace(done, run=replace(done.run, layers=()))
    assert "no torch.optim.Optimizer stepped" in diagnose(bare)[0].cause


def test_nonfinite_names_the_first_step_and_layer():
    history = make_history(nan_at=50)
    assert verdict(history) == "nonfinite at step 50 in blocks.0.mlp.weight"
    (finding,) = nonfinite(history)
    assert (finding.severity, finding.evidence["steps"]) == ("error", 1)


@pytest.mark.parametrize(
    ("norms", "after"), [((1.0, 300.0, 0.8, 0.9), "nothing"), ((1.0, 1.0, 200.0, 900.0), "growth")]
)
def test_a_lone_gradient_that_was_left_behind_is_no_growth(norms, after):
    history = make_history(steps=44, nan_at=43, clip=None, logged=("loss",))
    history = with_steps(history, grad_norm=np.array([*np.ones(39), *norms, np.nan]), loss=np.linspace(2.0, 0.3, 44))
    assert nonfinite(history)[0].evidence["after"] == after


@pytest.mark.parametrize(("norms", "after"), [((1.0, 0.4, 0.16), "nothing"), ((1.0, 0.9, 9.0), "growth")])
def test_a_weight_near_zero_that_doubles_in_a_calm_beginning_is_not_growth(norms, after):
    """Its first step is large for the weight alone: the gradients after it are smaller. Where they grow, it is."""
    history = make_history(steps=4, nan_at=3, every=1, clip=None, logged=())
    ratios = np.full((4, len(history.layers)), 0.01, np.float32)
    ratios[0] = 2.0
    history = with_layer(history, "update_ratio", ratios)
    history = with_steps(history, grad_norm=np.array([*norms, np.nan]))
    assert nonfinite(history)[0].evidence["after"] == after
    assert verdict(history).startswith("nonfinite at step 3" if after == "nothing" else "exploding at step 0")


def test_the_slices_of_a_tensor_are_not_taken_for_neighbours():
    layers = tuple(f"experts.w[{i}]" for i in range(4))
    for others, following in ((("head.weight",), "head.weight"), (("gate[0]", "gate[1]"), "gate[0]"), ((), "the loss")):
        (finding,) = nonfinite(make_history(layers=(*layers, *others), nan_at=50))
        assert (finding.evidence["last_nonfinite"], finding.evidence["next_finite"]) == ("experts.w[2]", following)


def test_a_skipped_nonfinite_step_is_a_warning():
    history = make_history(nan_at=50)
    skipped = with_steps(history, skipped=(history.step == 50).astype(float))
    assert nonfinite(skipped)[0].severity == "warning"
    assert verdict(skipped).startswith("nonfinite at step 50")


def test_nonfinite_in_a_layer_that_is_not_recorded_is_seen_in_the_total():
    history = make_history()
    history = with_steps(history, nonfinite=(history.step == 7).astype(float))
    assert verdict(history) == "nonfinite at step 7"


def test_dead_layer_is_found_where_it_died():
    history = make_history(steps=100)
    norm = history.layer("grad_norm").copy()
    norm[40:, 3] = 0
    (finding,) = dead_layer(with_layer(history, "grad_norm", norm))
    assert (finding.severity, finding.layers, finding.first_step) == ("warning", ("blocks.1.attn.weight",), 40)
    norm[40:, :4] = 0
    (finding,) = dead_layer(with_layer(history, "grad_norm", norm))
    assert finding.severity == "error"
    assert finding.summary == "dead-layer at step 40 in embed.weight and 3 more"


def test_a_layer_that_never_lived_is_dead_from_the_first_step():
    history = make_history(steps=100)
    norm = history.layer("grad_norm").copy()
    norm[:, 3] = 0
    assert dead_layer(with_layer(history, "grad_norm", norm))[0].first_step == 0


def test_a_network_that_is_dead_for_most_batches_is_dying():
    history = make_history(steps=100)
    norm = history.layer("grad_norm").copy()
    norm[40:, :6] = 0
    norm[60:100:4, :6] = 1
    (finding,) = dead_layer(with_layer(history, "grad_norm", norm))
    assert (finding.severity, len(finding.layers), finding.first_step) == ("error", 6, 40)
    norm[:, 2:6] = 1  # two heads of seven that take turns
    assert dead_layer(with_layer(history, "grad_norm", norm)) == []


def test_a_resting_or_unseen_layer_is_not_dead():
    history = make_history(steps=100)
    norm = history.layer("grad_norm").copy()
    norm[:, 2] = np.nan  # frozen: no gradient at all
    norm[50:99, 3] = 0  # one live step
    norm[:95, 4], norm[95:, 4] = np.nan, 0  # seen five times only
    assert dead_layer(with_layer(history, "grad_norm", norm)) == []


@pytest.mark.parametrize("weight", ["weight", "parametrizations.weight.original", "weight_orig", "weight_v"])
def test_a_bias_is_dead_only_where_its_weight_is(weight):
    history = make_history(steps=100)
    layers = (*history.layers[:-2], f"head.{weight}", "head.bias")
    history = replace(history, by_layer=replace(history.by_layer, layers=layers))
    norm = history.layer("grad_norm").copy()
    norm[:, -1] = 0  # head.bias, beside head.weight
    assert dead_layer(with_layer(history, "grad_norm", norm)) == []
    norm[:, -2] = 0
    assert dead_layer(with_layer(history, "grad_norm", norm))[0].layers == (f"head.{weight}", "head.bias")


@pytest.mark.parametrize(("rest", "found"), [(1e-3, 1), (1e-6, 0), (0.0, 0)])
def test_a_layer_beside_dead_ones_is_not_out_of_balance(rest, found):
    """Its cure was ClipByNorm(0.0): the only gradient that lived would have been cut."""
    history = make_history(steps=300, clip=None)
    norm = history.layer("grad_norm").copy()
    norm[:, 1:] *= rest
    total = np.sqrt((norm.astype(np.float64) ** 2).sum(axis=1))
    sick = with_steps(with_layer(history, "grad_norm", norm), grad_norm=total)
    assert len(imbalance(sick)) == found


def grown(history, decades, start=100):
    ramp = np.clip((history.step - start) / 20, 0, 1) * decades
    return history.total("grad_norm") * 10**ramp


def test_a_norm_that_grows_while_the_loss_does_not_fall_explodes():
    history = make_history(steps=300)
    sick = with_steps(history, grad_norm=grown(history, 4), loss=np.full(300, 2.3))
    (finding,) = exploding(sick)
    assert 100 < finding.first_step < 120
    assert finding.evidence["grad_norm_growth"] > 1e3


def test_a_norm_that_grows_while_the_loss_falls_is_a_plateau_being_left():
    history = make_history(steps=300)
    assert exploding(with_steps(history, grad_norm=grown(history, 4))) == []


def test_a_norm_that_collapsed_in_the_first_steps_has_not_grown():
    history = make_history(steps=300)
    collapsed = np.where(np.arange(300) < 8, 2.0, 1e-6)
    assert exploding(with_steps(history, grad_norm=collapsed, loss=np.full(300, 4.1))) == []


def test_without_a_loss_three_decades_are_needed():
    history = make_history(steps=300, logged=())
    assert exploding(with_steps(history, grad_norm=grown(history, 2.2))) == []
    assert exploding(with_steps(history, grad_norm=grown(history, 4))) != []


def test_one_spike_is_not_an_explosion():
    history = make_history(steps=300, logged=())
    norm = history.total("grad_norm").copy()
    norm[150:153] *= 1e6
    assert exploding(with_steps(history, grad_norm=norm)) == []


def test_a_loss_that_leaves_its_minimum_for_good_explodes():
    history = make_history(steps=300, logged=("loss",))
    loss = history.total("loss").copy()
    loss[200:] = 6.0
    (finding,) = exploding(with_steps(history, loss=loss))
    assert finding.first_step == pytest.approx(200, abs=3)
    assert finding.evidence["end"] == 6.0
    loss[220:] = 0.2  # it came back
    assert exploding(with_steps(history, loss=loss)) == []


def test_a_rising_validation_loss_is_overfitting_not_an_explosion():
    history = make_history(steps=300, logged=("loss", "val_loss"))
    rising = np.where(history.step > 100, 9.0, 1.0)
    assert exploding(with_steps(history, val_loss=rising)) == []
    assert exploding(with_steps(make_history(steps=300, logged=("loss",)), loss=rising)) != []


@pytest.mark.parametrize("seed", range(10))
def test_a_flat_noisy_loss_is_no_explosion(seed):
    history = make_history(steps=300, seed=seed)
    noise = np.random.default_rng(seed).standard_cauchy(300)
    assert exploding(with_steps(history, loss=2.3 + 0.3 * noise)) == []


def test_the_worst_comes_first_then_the_earliest():
    history = make_history(steps=300, nan_at=200)
    norm = history.layer("grad_norm").copy()
    norm[20:, 3] = 0
    history = with_steps(with_layer(history, "grad_norm", norm), loss=np.where(history.step > 100, 9.0, 1.0))
    assert [f.rule for f in diagnose(history)] == ["lr-too-high", "dead-layer"]
    assert verdict(history).startswith("lr-too-high at step 10")


def test_a_training_that_is_thrown_out_of_its_start_explodes():
    history = make_history(steps=200)
    loss = np.where(history.step < 1, 4.6, 60 * np.exp(-history.step / 10) + 8)
    norm = history.total("grad_norm").copy()
    norm[0], norm[5] = 0.7, 40
    sick = with_steps(history, loss=loss, grad_norm=norm)
    (finding,) = exploding(sick)
    assert (finding.first_step, finding.evidence["start"], finding.evidence["highest"]) == (1, 4.6, loss.max())
    assert (
        exploding(with_steps(history, loss=np.where(history.step > 100, 3.0, loss), grad_norm=norm)) == []
    )  # came back
    assert exploding(with_steps(history, loss=loss, grad_norm=np.ones(200))) == []  # a generator's loss does so


# ------------------------------------------------------------------------------------ profiles and straight lines


def ladder(decades):
    """Eight weight matrices whose gradients rise by so many decades from the first to the last."""
    history = make_history(steps=60, layers=tuple(f"{i}.weight" for i in range(8)))
    noise = np.random.default_rng(0).lognormal(0, 0.2, (60, 8))
    return with_layer(history, "grad_norm", 10.0 ** np.linspace(-decades, 0, 8) * noise)


def test_vanishing_is_an_even_ladder_of_four_decades():
    (finding,) = vanishing(ladder(4.3))
    assert finding.evidence["decades"] == pytest.approx(4.3, abs=0.2)
    assert finding.layers == ("0.weight", "1.weight", "2.weight", "3.weight", "4.weight")
    assert vanishing(ladder(3.7)) == []
    level = ladder(0)
    first = np.where(np.arange(8) == 0, 1e-9, 1)
    assert vanishing(with_layer(level, "grad_norm", first * level.layer("grad_norm"))) == []  # one layer is no ladder
    assert vanishing(ladder(4.3).slice(0, 19)) == []  # too short to tell
    absolute = ladder(0.5)
    assert vanishing(with_layer(absolute, "grad_norm", 1e-9 * absolute.layer("grad_norm"))) == []  # small is not sick


def test_a_ladder_of_two_nets_that_no_gradient_joins_is_none():
    plain = ladder(0)
    norm = np.where(np.arange(8) < 4, 1e-4, 1.0) * plain.layer("grad_norm")
    steep = with_layer(plain, "grad_norm", norm * 10.0 ** np.linspace(0, 2, 8))
    assert [f.rule for f in vanishing(steep)] == ["vanishing"]

    def given(*layers):
        graph = tuple({"what": "input", "operation": "Addmm", "shape": "8x4", "layer": layer} for layer in layers)
        return replace(steep, run=replace(steep.run, loss_graph=graph))

    assert [f.rule for f in vanishing(given("0.weight"))] == ["vanishing"]
    assert vanishing(given("0.weight", "4.weight")) == []  # what the first four make is detached before the others


@pytest.mark.parametrize(
    ("shape", "found"),
    {
        "a sum": (lambda t: 1 + t, 1),
        "a level norm": (lambda t: 1 + 0 * t, 0),
        "a random walk": (lambda t: np.sqrt(1 + t), 0),
        "an explosion": (lambda t: 1.3**t, 0),
        "a slow rise": (lambda t: 1 + t / 10, 0),
        "a jump": (lambda t: np.where(t > 8, 20.0, 1.0), 0),
    }.values(),
)
def test_only_a_straight_rise_is_a_sum_of_gradients(shape, found):
    history = make_history(steps=60)
    norm = shape(history.step.astype(float)) * np.random.default_rng(0).normal(1, 0.03, 60)
    assert len(gradients_accumulate(with_steps(history, grad_norm=norm))) == found


# ------------------------------------------------------------------------------------------------- roots and effects


def found(rule, first, last=100, severity="warning"):
    return Finding(rule, severity, (), first, last)


def tree(*findings):
    return {root.rule: [f.rule for f in root.consequences] for root in group(findings)}


def test_a_rule_that_fails_costs_no_other_its_word(monkeypatch):
    def broken(history):
        raise IndexError("index 0 is out of bounds")

    monkeypatch.setattr(registry, "RULES", (broken, *registry.RULES))
    history = make_history(nan_at=50)
    with pytest.warns(GradwatchWarning, match=r"the rule broken could not judge .* \(IndexError: index"):
        found = diagnose(history)
    assert [finding.rule for finding in found] == ["nonfinite"]


def test_an_explosion_is_one_finding_with_its_consequences_under_it():
    history = make_history(steps=300, nan_at=200)
    (root,) = diagnose(with_steps(history, loss=np.where(history.step > 100, 9.0, 1.0)))
    assert root.rule == "lr-too-high"  # the loss leapt, and did not come back
    data = root.to_json()
    assert data["docs"] == "docs/findings/lr-too-high.md"
    below = {finding["rule"]: finding for finding in data["consequences"]}
    assert below["nonfinite"]["layers"] == ["blocks.0.mlp.weight"]
    assert list(data)[:8] == [
        "rule", "severity", "layers", "first_step", "last_step", "evidence", "cause", "cure",
    ]  # fmt: skip


def test_a_consequence_begins_no_earlier_than_its_root_and_before_its_end():
    assert tree(found("exploding", 10), found("nonfinite", 10)) == {"exploding": ["nonfinite"]}
    assert tree(found("nonfinite", 10), found("dead-layer", 9)) == {"dead-layer": [], "nonfinite": []}
    assert tree(found("exploding", 10, 20), found("dead-layer", 20)) == {"exploding": ["dead-layer"]}
    assert tree(found("exploding", 10, 20), found("dead-layer", 70)) == {"exploding": ["dead-layer"]}  # seen late
    assert tree(found("exploding", 10, 20), found("dead-layer", 71)) == {"exploding": [], "dead-layer": []}
    assert tree(found("exploding", 10, 20), found("imbalance", 21)) == {"exploding": [], "imbalance": []}


def test_what_sums_up_a_run_follows_from_what_explains_it():
    for rule in CONSEQUENCES:
        assert tree(found(rule, 50), found("no-progress", 0)) == {rule: ["no-progress"]}
    assert set(tree(found("clip-inert", 50, severity="note"), found("no-progress", 0))) == {"clip-inert", "no-progress"}


def test_a_consequence_of_a_consequence_stands_under_the_root():
    findings = found("update-too-small", 30), found("dead-layer", 20), found("lr-too-high", 0, 25)
    assert tree(*findings) == {"lr-too-high": ["dead-layer", "update-too-small"]}


def test_of_two_that_may_follow_from_each_other_the_first_is_the_root():
    assert tree(found("exploding", 10), found("lr-too-high", 11)) == {"exploding": ["lr-too-high"]}
    assert tree(found("exploding", 61), found("lr-too-high", 10)) == {"lr-too-high": ["exploding"]}
    assert tree(found("spike", 10), found("nonfinite", 10)) == {"spike": ["nonfinite"]}


@pytest.mark.parametrize(("own", "roots"), [(True, ["D"]), (False, ["D", "G"])])
def test_what_one_rival_hands_to_the_other_is_said_once(own, roots):
    """Rivals log a loss each; two optimizers of one model share it, and each is judged for itself."""
    made = tuple({"name": name, "class": "Adam", "settings": {}} for name in "DG")
    history = make_history(steps=160, logged=(), optimizers=made)
    of_d, bad = history.step % 2 == 0, history.step >= 80
    losses = {"loss/D": np.where(of_d, 0.7, np.nan), "loss/G": np.where(of_d, np.nan, 0.7)} if own else {}
    norms = {"grad_norm": np.where(bad, np.nan, history.total("grad_norm")), "nonfinite": 1.0 * bad}
    history = with_layer(
        with_steps(history, **losses, **norms), "nonfinite", np.where(bad[:, None], 1, 0 * history.layer("nonfinite"))
    )
    found = diagnose(changed(history, optimizer=["D" if here else "G" for here in of_d]))
    assert [f.optimizer for f in found if f.rule == "nonfinite"] == roots
    assert [f.optimizer for f in found[0].consequences if f.rule == "nonfinite"] == ["G"] * own


def test_signs_just_before_an_explosion_stand_under_it():
    assert tree(found("exploding", 60), found("spike", 10), found("lr-too-high", 12)) == {
        "exploding": ["spike", "lr-too-high"]
    }
    assert tree(found("exploding", 61), found("spike", 10)) == {"spike": ["exploding"]}
    assert tree(found("exploding", 29), found("dead-layer", 0)) == {"dead-layer": [], "exploding": []}
    assert tree(found("exploding", 29), found("spike", 20), found("gradients-accumulate", 0)) == {
        "gradients-accumulate": ["spike", "exploding"]
    }


def test_steps_that_are_too_long_stand_above_the_explosion_along_them_that_they_make():
    apart = replace(found("exploding", 60), evidence={"along": "steps"})
    assert tree(apart, found("lr-too-high", 12)) == {"lr-too-high": ["exploding"]}
    assert tree(apart, found("lr-too-high", 70)) == {"lr-too-high": ["exploding"]}
    assert tree(apart, found("lr-too-high", 71)) == {"exploding": ["lr-too-high"]}
    alike = replace(found("vanishing", 0), evidence={"left_of_the_gradient": 1e-5})
    assert tree(alike, found("representation-collapse", 0)) == {"representation-collapse": ["vanishing"]}


def test_a_root_is_as_severe_as_its_worst_consequence_which_comes_first():
    findings = found("scaled-gradients", 0), found("spike", 5), found("nonfinite", 50, severity="error")
    (root,) = group(findings)
    assert (root.severity, [f.rule for f in root.consequences]) == ("error", ["nonfinite", "spike"])


def test_what_another_explains_stands_under_it_though_both_began_at_once():
    one_way = [(a, b) for a, effects in CONSEQUENCES.items() for b in effects if a not in CONSEQUENCES.get(b, ())]
    assert [pair for pair in one_way if tree(*(found(rule, 0) for rule in pair)) != {pair[0]: [pair[1]]}] == []


def test_nothing_follows_from_itself():
    assert not [rule for rule, effects in CONSEQUENCES.items() if rule in effects]


# ---------------------------------------------------------------------------------------------------- broken records


def spoiled(values, rng):
    """`values` with NaN, inf, zeros, huge or tiny or negative numbers in some stretch of rows."""
    values = values.copy()
    for bad in rng.choice([np.nan, np.inf, 0.0, 1e38, 1e-45, -1.0], rng.integers(0, 3)) if len(values) else ():
        first = rng.integers(0, len(values))
        rows = slice(first, rng.integers(first, len(values)) + 1)
        values[(rows, rng.integers(0, values.shape[1])) if values.ndim == 2 and rng.random() < 0.5 else rows] = bad
    return values


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.filterwarnings("error")
def test_no_record_is_too_broken_to_be_judged(seed):
    rng = np.random.default_rng(seed)
    layers = tuple(f"{i}.{kind}" for i in range(rng.integers(1, 6)) for kind in ("weight", "bias"))
    history = make_history(steps=200, layers=(*layers, "head"), seed=seed)
    history = changed(
        history,
        per_layer={q: spoiled(v, rng) for q, v in history.per_layer.items() if rng.random() < 0.9},
        per_step={q: spoiled(v, rng) for q, v in history.per_step.items() if rng.random() < 0.9}
        | {f"rank_grad_norm/{rank}": spoiled(1.4 * history.total("grad_norm"), rng) for rank in range(2)},
    )
    for steps in (0, 1, 2, 12, 30, 200):
        for finding in diagnose(history.slice(0, steps)):
            for one in (finding, *finding.consequences):
                assert 0 <= one.first_step <= one.last_step < steps
                assert one.cause.endswith(".")
                assert one.cure.endswith(".")
                assert not (set(one.layers) - {*history.layers})
            json.dumps(finding.to_json())


@pytest.mark.parametrize(
    ("renorm", "advice"),
    [
        ("MaxNorm(1.5)", "MaxNorm(3.0)"),
        ("Renorm('inf', 0, 2.0)", "Renorm('inf', 0, 4.0)"),
        ("MyRenorm(1.5)", "MaxNorm(4.0)"),
    ],
)
def test_a_bound_that_binds_is_raised_in_kind(renorm, advice):
    history = make_history(renorm=renorm)
    (finding,) = renorm_binds(with_layer(history, "renorm_rate", np.ones_like(history.layer("grad_norm"))))
    assert f'renorm="{advice}"' in finding.cure


# ------------------------------------------------------------------------------------- a NaN gradient is a gradient


def all_nan(steps=60, **columns):
    """Every gradient is there, and NaN, from the first step on."""
    history = make_history(steps=steps, **columns)
    history.layer("grad_norm")[:] = np.nan
    history.layer("nonfinite")[:] = 1.0
    history.total("grad_norm")[:] = np.nan
    history.total("nonfinite")[:] = len(history.layers)
    return history


def with_consequences(history):
    found = diagnose(history)
    return [*found, *(other for one in found for other in one.consequences)]


def test_gradients_that_are_nan_are_not_called_absent():
    assert diagnose(all_nan())[0].rule == "nonfinite"
    every = with_consequences(all_nan())
    assert not [one for one in every if "absent" in one.cause or one.rule in ("no-gradient", "dead-layer")]


def test_a_layer_of_zeros_among_nans_is_not_dead():
    history = make_history(steps=60)
    history.layer("grad_norm")[30:, 1] = np.nan
    history.layer("nonfinite")[30:, 1] = 1.0
    history.layer("grad_norm")[45:, 1] = 0.0
    history.layer("nonfinite")[45:, 1] = 0.0
    assert "dead-layer" not in [one.rule for one in with_consequences(history)]


# ------------------------------------------------------------------------------------------------- policy-never-acts


def trained(tmp_path, params, loss_scale=None, steps=12, **policies):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD([p for n, p in model.named_parameters() if params in n], lr=1e-5)
    scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale or 1.0, growth_interval=10**9, backoff_factor=1 - 2**-20,
                                  enabled=loss_scale is not None)  # fmt: skip
    with watch(model, optimizer, tmp_path, every=2, **policies) as watched:
        for x, y in batches(steps, torch.float32):
            optimizer.zero_grad()
            scaler.scale(1e4 * torch.nn.functional.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
    return [f for f in _all(diagnose(open_history(watched.dir))) if f.rule == "policy-never-acts"]


def _all(findings):
    return [f for finding in findings for f in (finding, *_all(finding.consequences))]


def test_a_constraint_of_rows_that_meets_biases_only_never_acts(tmp_path):
    (finding,) = trained(tmp_path / "biases", "bias", renorm="MaxNorm(0.1)")
    assert (finding.severity, finding.first_step, finding.last_step) == ("warning", 0, 11)
    assert finding.cause.startswith("MaxNorm(0.1) was asked for and never acted: ")
    assert not trained(tmp_path / "both", "", renorm="MaxNorm(0.1)")
    assert not trained(tmp_path / "none", "bias")


def test_a_clip_whose_steps_the_scaler_drops_never_acts(tmp_path):
    (finding,) = trained(tmp_path / "dropped", "", loss_scale=3e38, clip="ClipByGlobalNorm(0.1)")
    assert finding.evidence == {"steps": 12, "dropped": 12, "without_gradients": 0}
    assert not trained(tmp_path / "taken", "", loss_scale=8.0, clip="ClipByGlobalNorm(0.1)")
    assert not trained(tmp_path / "none", "", loss_scale=3e38)
    assert not trained(tmp_path / "skips", "", loss_scale=3e38, clip="SkipNonfinite()")


RESIDUAL = "residual connections with the norm inside, x = x + block(norm(x))"  # which no record shows
NORMS, HE = "normalisation behind each layer where shapes differ", "He's initialisation"
FAR_OFF = "torch's own initialisation, or He's: what draws the weights now is far from both"
LAST_STATE = "the state of where each row ends (pack_padded_sequence), not the one after its padding"


@pytest.mark.parametrize(
    ("modules", "rms", "said"),
    [
        ({}, 0.29, ["ReLU-like units", RESIDUAL, NORMS, HE]),
        ({"0": "ReLU", "1": "LayerNorm"}, (2 / 4) ** 0.5, [RESIDUAL]),
        ({"0": "ReLU"}, 0.29, [RESIDUAL, NORMS, HE]),
        ({"0": "ReLU"}, 0.01, [FAR_OFF, RESIDUAL, NORMS]),
        ({"0": "Tanh", "1": "LayerNorm"}, 0.29, ["ReLU-like units", RESIDUAL, HE]),
        ({"0": "RNN", "1": "LayerNorm"}, 0.29, [LAST_STATE, "an LSTM or a GRU", RESIDUAL, HE]),
    ],
)
def test_nothing_is_prescribed_that_the_network_has(modules, rms, said):
    history = make_history(modules=modules)
    assert remedies(with_layer(history, "weight_norm", np.full(history.layer("weight_norm").shape, 4 * rms))) == said
