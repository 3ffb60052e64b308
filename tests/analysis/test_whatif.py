"""What-if against the real policies: a run that never moves is watched under each of them."""

import numpy as np
import pytest
import torch
from make_run import changed, make_history, write_shared

import gradwatch
from gradwatch import open_history
from gradwatch.analysis.rules.facts import GUARD, threshold
from gradwatch.analysis.rules.finding import Finding
from gradwatch.analysis.rules.guard import WRONG_NORMS, healthy_norms, with_guard
from gradwatch.analysis.suggest import suggest
from gradwatch.analysis.whatif import QUANTILES, SIMULATED, autoclip, caveat, what_if, zclip
from gradwatch.formatting import setting_text

SHAPES = {"a": (3, 4), "b": (5,), "c": (2, 2)}
STEPS = 300


def gradients(seed=0):
    """Gradients `[T]` of three layers with lognormal norms, a few spikes, and one layer that often has none."""
    rng = np.random.default_rng(seed)
    steps = []
    for t in range(STEPS):
        grads = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
        scale = rng.lognormal(0, 0.7) * (50 if t % 97 == 96 else 1)
        grads = {name: g / np.linalg.norm(g) * scale * rng.lognormal(0, 0.3) for name, g in grads.items()}
        steps.append({name: None if name == "c" and t % 3 else g for name, g in grads.items()})
    return steps


def watched(folder, policy, seed=0):
    """The history of these gradients under `policy`, with learning rate 0."""
    model = torch.nn.Module()
    for name, shape in SHAPES.items():
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gradwatch.watch(model, optimizer, clip=policy, log=None, dir=folder, verbose=False) as handle:
        for grads in gradients(seed):
            for name, parameter in model.named_parameters():
                grad = grads[name]
                parameter.grad = None if grad is None else torch.tensor(grad, dtype=torch.float32)
            optimizer.step()
    return open_history(handle.dir)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return watched(tmp_path_factory.mktemp("plain"), None)


@pytest.mark.parametrize("kind", ["ClipByGlobalNorm", "ClipByNorm", "AutoClip", "ZClip"])
def test_the_policies_do_what_what_if_says(plain, kind, tmp_path):
    outcomes = [outcome for outcome in what_if(plain, []) if outcome.kind == kind]
    assert len(outcomes) >= 5
    for i, outcome in enumerate(outcomes[::2]):
        real = watched(tmp_path / str(i), outcome.policy)
        clipped = real.total("clip_rate")
        assert outcome.clip_rate == pytest.approx(clipped.mean(), abs=1e-9), outcome.policy
        assert outcome.mean_coef == pytest.approx(real.total("clip_coef").mean(), rel=1e-5), outcome.policy
        assert 0 < clipped.mean() < 1, "a threshold that shows nothing"


def test_the_thresholds_are_the_quantiles_of_the_runs_healthy_norms(plain):
    outcomes = [outcome for outcome in what_if(plain, []) if outcome.kind == "ClipByGlobalNorm"]
    assert [outcome.at for outcome in outcomes] == ["p50", "p75", "p90", "p95", "p99", "p99.9"]
    for outcome, q in zip(outcomes, QUANTILES, strict=True):
        limit = gradwatch.parse(outcome.policy).max_norm
        assert limit == float(f"{np.quantile(healthy_norms(plain, []), q):.2g}")
        assert outcome.clip_rate == pytest.approx((plain.total("grad_norm") > limit).mean(), abs=1e-9)


def thresholds(outcomes):
    return [gradwatch.parse(outcome.policy).max_norm for outcome in outcomes if outcome.kind.startswith("ClipBy")]


def test_a_norm_that_falls_as_the_network_learns_is_healthy_from_its_first_step_on():
    history = make_history(steps=300, clip=None)
    falling = 1 + 20 * np.exp(-np.arange(300) / 30)
    norms = falling * np.exp(0.05 * np.random.default_rng(0).standard_normal(300))
    history.total("grad_norm")[:] = norms
    assert len(healthy_norms(history, [])) >= 290
    guard = next(outcome for outcome in what_if(history, []) if outcome.at == "p99")
    assert guard.clip_rate <= 0.02


def test_a_burst_is_no_healthy_norm():
    history = make_history(steps=300, clip=None)
    norms = np.exp(0.05 * np.random.default_rng(0).standard_normal(300))
    norms[[0, *range(150, 200)]] *= 30
    history.total("grad_norm")[:] = norms
    assert healthy_norms(history, []).max() < 2


def test_sick_steps_give_no_threshold_and_are_counted_all_the_same(plain):
    sick = make_history(steps=200, clip=None)
    sick.total("grad_norm")[100:] *= 1e6
    sick.layer("grad_norm")[100:] *= 1e6
    found = Finding("exploding", "error", (), 100, 199)
    outcomes = what_if(sick, [found])
    assert {o.kind for o in outcomes} >= {"ClipByGlobalNorm", "ClipByNorm"}
    assert max(thresholds(outcomes)) < 100
    assert min(o.clip_rate for o in outcomes if o.kind.startswith("ClipBy")) >= 0.5
    assert "Thresholds come from the norms of 100 healthy steps of 200" in caveat(sick, [found])


def test_too_few_healthy_steps_give_the_usual_value_as_finding_and_suggestion_do():
    history = make_history(steps=200, clip=None, optimizers=({"name": "SGD", "class": "SGD"},))
    found = Finding("exploding", "error", (), 20, 199, cure=f"Try {GUARD}.")
    (outcome,) = [o for o in what_if(history, [found]) if o.kind.startswith("ClipBy")]
    (suggestion,), (said,) = suggest(history, [found]), with_guard(history, [found])
    assert (outcome.policy, outcome.at) == ("ClipByGlobalNorm(1.0)", "usual first value")
    assert suggestion.policy == outcome.policy
    for text in (said.cure, outcome.policy + caveat(history, [found])):
        assert outcome.policy in text
        assert "only 20 steps were healthy" in text


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rules", [["exploding"], ["spike"], ["lr-too-high"], ["nonfinite"], ["clip-inert"], []])
@pytest.mark.parametrize("severity", ["error", "note"])
def test_finding_suggestion_and_what_if_name_one_threshold(seed, rules, severity):
    rng = np.random.default_rng(seed)
    history = make_history(steps=300, seed=seed, clip=None, optimizers=({"name": "SGD", "class": "SGD"},))
    start = int(rng.integers(60, 200))
    history.total("grad_norm")[start:] *= 10.0 ** rng.integers(1, 9)
    history.total("grad_norm")[rng.integers(0, 300, 5)] = np.inf
    roots = [Finding(rule, severity, (), start, 299, cure=f"Try {GUARD}.") for rule in rules]
    named = {o.policy for o in what_if(history, roots) if o.kind == "ClipByGlobalNorm"}
    for root in with_guard(history, roots):
        assert root.cure.split(" ")[1].rstrip(".") in named
    named = {repr(gradwatch.parse(policy)) for policy in named}
    for suggestion in suggest(history, roots):
        for policy in gradwatch.policies.grammar.members(suggestion.policy):
            assert repr(policy) in named or not isinstance(policy, gradwatch.ClipByGlobalNorm)


@pytest.mark.parametrize(("own", "wanted"), [(2.0, "ClipByGlobalNorm(0.4)"), (50.0, "ClipByGlobalNorm(1.0)")])
def test_a_clip_that_is_advised_lies_below_that_of_the_loop_under_which_the_steps_were_too_large(own, wanted):
    history = make_history(steps=300, clip=None, optimizers=({"name": "SGD", "class": "SGD"},))
    norm = 100 * history.total("grad_norm")
    clips = {"user_max_norm": np.full(300, own), "user_grad_norm": norm, "user_clip_coef": np.minimum(own / norm, 1)}
    history = changed(history, per_step={**history.per_step, "grad_norm": np.minimum(norm, own), **clips})
    guard = Finding("clip-is-your-learning-rate", "warning", (), 0, 299, cure=f"Try {GUARD}.")
    (alone,) = with_guard(history, [guard])
    assert threshold(alone.cure.split(" ")[1].rstrip(".")) > own  # in its place
    roots = [Finding("exploding", "error", (), 250, 299, cure=f"Try {GUARD}."), guard]
    first, second = with_guard(history, roots)
    assert first.cure.split(" ")[1].rstrip(".") == wanted
    assert second.cure.startswith("Cure exploding first")
    assert suggest(history, roots)[0].policy == wanted
    assert wanted in {o.policy for o in what_if(history, roots)}


@pytest.mark.parametrize("rule", sorted(WRONG_NORMS))
def test_norms_that_are_not_the_gradients_own_give_no_table_and_no_threshold(rule):
    history = make_history(steps=200, clip=None)
    roots = [Finding(rule, "note", (), 0, 199, consequences=(Finding("exploding", "error", (), 150, 199, cure=GUARD),))]
    assert what_if(history, roots) == ()
    (root,) = with_guard(history, roots)
    assert root.consequences[0].cure.startswith("ClipByGlobalNorm(1.0) 1.0 is the usual first value: by " + rule)


def test_a_norm_that_is_not_finite_is_left_out(plain):
    sick = make_history(steps=200, clip=None)
    clean = what_if(sick, [])
    for value, row in ((np.inf, 50), (np.nan, 60)):
        sick.total("grad_norm")[row] = value
        sick.layer("grad_norm")[row] = value
    assert len(what_if(sick, [])) == len(clean)
    for before, after in zip(clean, what_if(sick, []), strict=True):
        assert after.clip_rate == pytest.approx(before.clip_rate, abs=0.03)
        assert np.isfinite(after.mean_coef)


def test_a_run_of_nothing_but_nan_has_no_outcomes():
    history = make_history(steps=20)
    history.total("grad_norm")[:] = np.nan
    history.layer("grad_norm")[:] = np.nan
    assert what_if(history, []) == ()


def test_a_constant_norm_is_one_threshold():
    history = make_history(steps=50)
    history.total("grad_norm")[:] = 2.0
    assert [o.policy for o in what_if(history, []) if o.kind == "ClipByGlobalNorm"] == ["ClipByGlobalNorm(2.0)"]


def test_each_part_of_a_run_has_its_own_thresholds(tmp_path):
    g, d = make_history(steps=200), make_history(steps=100, seed=1)
    d.total("grad_norm")[:] *= 100
    outcomes = what_if(open_history(write_shared(tmp_path, "gan", G=g, D=d)), [])
    assert {outcome.optimizer for outcome in outcomes} == {"G", "D"}
    limits = {o.optimizer: gradwatch.parse(o.policy).max_norm for o in outcomes if o.at == "p50"}
    assert limits["D"] > 30 * limits["G"]


def test_a_long_run_is_followed_for_its_first_steps_only(monkeypatch):
    monkeypatch.setattr("gradwatch.analysis.whatif.SIMULATED", 100)
    history = make_history(steps=1000, clip=None)
    history.total("grad_norm")[100:] = 1e6
    rates = {o.policy: o.clip_rate for o in what_if(history, [])}
    early = history.total("grad_norm")[:100]
    assert rates["AutoClip(99)"] == (autoclip(early, [99])[0] < 1).mean()
    assert rates["ZClip(2.5)"] == (zclip(early, [2.5])[0] < 1).mean()
    assert SIMULATED > 1000


def test_autoclip_forgets_what_left_its_window():
    norms = np.concatenate([np.full(20, 100.0), np.full(30, 1.0), [50.0]])
    (coef,) = autoclip(norms, [90], window=20)
    assert coef[-1] == pytest.approx(1 / 50, rel=0.1)
    (coef,) = autoclip(norms, [90], window=51)
    assert coef[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("value", [1.0, 0.0123, 4.23e9, 1.5e-9, 99900.0, 1e22])
def test_a_threshold_reads_back_as_it_was_written(value):
    assert gradwatch.parse(f"ClipByGlobalNorm({setting_text(value)})").max_norm == value
    assert len(setting_text(value)) <= 8


def test_a_lane_keeps_its_name_as_it_is_written(tmp_path):
    folder = write_shared(tmp_path, "gan", netG=make_history(steps=100), netD=make_history(steps=100, seed=1))
    said = caveat(open_history(folder), [])
    assert "netG: thresholds come from the norms of 100 healthy steps of 100." in said
    assert "netD: thresholds" in said
