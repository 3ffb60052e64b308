"""Trainings that get nowhere, and why; and those that succeed, whatever their norms do."""

import shutil

import diseases as d
import numpy as np
import pytest
import step_diseases as live
from make_run import changed, make_history
from recordings import Recorded
from torch.nn import functional as F
from trainings import blobs, fit, one, serious

import gradwatch
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.no_progress import no_progress
from gradwatch.analysis.rules.noise import noise_dominated
from gradwatch.analysis.rules.progress import progress, succeeds

s = Recorded(live)


@pytest.mark.parametrize(
    ("train", "rule", "words"),
    [
        (s.averaged, "weights-unchanged", "Most likely something puts the weights back"),
        (s.labels_apart, "no-progress", "Either nothing in the batches leads to their targets, or"),
        (s.inputs_of_bytes, "inputs-not-normalised", "Steps that suit it do not suit the other layers"),
        (s.wrong_sign, "negative-loss", "it has the wrong sign"),
        (
            s.left_in_eval_mode,
            "left-in-eval",
            "From step 50 on the model was in eval mode as it was trained: its dropout",
        ),
        (s.average_of_one_batch, "norm-statistics", "those of the last batch or two"),
        (s.resumed, "optimizer-state-lost", "The run went on from a checkpoint there"),
        (s.outlasted_schedule, "schedule-too-short", "The schedule was over, and the run, of 200 steps, was not"),
        (s.endless_warmup, "warmup-too-long", "The warm-up takes 100 % of the run"),
        (s.large_eps, "below-epsilon", "below the optimizer's eps (1.0e+01)"),
        (s.fading, "weights-shrink", "The weight decay of 0.5 is stronger"),
        (live.decayed_through_moments, "weight-decay-too-strong", "Adam adds the decay of 0.1 times the weights"),
        (live.starving_generator, "generator-starves", "Its rival has won"),
        (s.softmaxed, "softmax-twice", "The model ends in a Softmax. Either "),
        (s.body_left_frozen, "no-gradient", "most of what is frozen was never trained"),
    ],
)
def test_it_is_the_root_and_the_twin_is_healthy(train, rule, words, tmp_path):
    found = diagnose(train(tmp_path / "sick"))
    assert serious(found) == [rule]
    assert words in found[0].cause
    assert serious(diagnose(train(tmp_path / "well", sick=False))) == []


def test_it_says_which_causes_remain_and_is_sure_of_its_cause_where_one_does(tmp_path):
    (sure,) = diagnose(s.fading(tmp_path / "sure"))
    (unsure,) = diagnose(s.labels_apart(tmp_path / "unsure"))
    assert sure.alternatives == ()
    assert unsure.confidence == "possible"
    assert len(unsure.alternatives) == 2
    assert all(cause in unsure.cause for cause in unsure.alternatives)
    assert {"confidence": "possible", "alternatives": [*unsure.alternatives]}.items() <= unsure.to_json().items()
    assert type(unsure).from_json(unsure.to_json()) == unsure


def losses(*values, settings=None, first=0, **columns):
    """A run of these losses, in which nothing else is remarkable; `columns` of its steps."""
    run = {key: columns.pop(key) for key in ("status",) if key in columns}
    optimizers = ({"name": "SGD", "class": "SGD", "settings": {"lr": 0.1, **(settings or {})}},)
    plain = make_history(len(values), clip=None, logged=(), optimizers=optimizers, **{"status": "FINISHED", **run})
    per_step = {**plain.per_step, "loss": np.array(values, float), **columns}
    return changed(plain, per_step=per_step, step=plain.step + first)


NOISE = 0.1 * np.sin(np.arange(400) * 1.7) * np.cos(np.arange(400) * 0.9)


def test_a_loss_that_stays_where_it_was_is_no_progress_and_one_that_falls_by_a_little_more_than_its_noise_is():
    (found,) = no_progress(losses(*(2.3 + NOISE)))
    assert (found.severity, found.first_step, found.last_step) == ("warning", 0, 399)
    assert found.evidence["began"] == pytest.approx(2.3, abs=0.1)
    assert no_progress(losses(*(2.3 + NOISE - np.linspace(0, 0.5, 400)))) == []
    (rests,) = no_progress(losses(*(2.3 + NOISE - 0.5 * (np.arange(400) > 3))))  # within the first steps, no further
    assert "stands there since" in rests.cause


def test_losses_that_differ_by_more_than_their_level_are_noise():
    draw = np.random.default_rng(0).pareto(1.0, 400) + 1  # a few are hundreds of times the usual one
    (found,) = noise_dominated(losses(*draw, grad_norm=draw))
    assert noise_dominated(losses(*draw)) == []  # the gradients are bounded
    assert (found.rule, found.severity) == ("noise-dominated", "warning")
    assert found.evidence["noise_of_a_batch"] > 0.5
    assert noise_dominated(losses(*draw[:199], grad_norm=draw[:199])) == []  # few steps
    assert noise_dominated(losses(*draw, grad_norm=draw, accuracy=np.linspace(0.1, 0.8, 400))) == []
    assert (
        noise_dominated(losses(*(draw / np.linspace(1, 50, 400)), grad_norm=draw)) == []
    )  # it falls for all its noise
    assert noise_dominated(losses(*(2.3 + NOISE))) == []


def test_a_metric_that_gets_better_is_progress_even_where_the_loss_does_not_fall():
    assert no_progress(losses(*(2.3 + NOISE), accuracy=np.linspace(0.1, 0.8, 400))) == []
    assert len(no_progress(losses(*(2.3 + NOISE), accuracy=np.linspace(0.8, 0.1, 400)))) == 1
    assert len(no_progress(losses(*(2.3 + NOISE), temperature=np.linspace(0.1, 0.8, 400)))) == 1  # no direction


def test_too_few_steps_and_what_was_learnt_before_are_not_judged():
    assert no_progress(losses(*(2.3 + NOISE[:99]))) == []
    assert no_progress(losses(*(2.3 + NOISE), first=1000)) == []  # resumed
    assert no_progress(losses(*(2.3 + NOISE), status="RUNNING")) == []  # the warm-up may not be over
    assert no_progress(losses(*(NOISE - 1.0))) == []  # below 0: it has no scale


@pytest.mark.parametrize(
    ("lr", "settings", "words"),
    [
        (np.where(np.arange(400) < 20, 0.1, 0.0), {}, "The schedule ran out: from step 20 on"),
        (np.arange(400) * 1e-6, {"lr": 0.1}, "rose to 0.000399 of the 0.1 that was set"),
    ],
)
def test_a_schedule_that_left_no_rate_is_named_and_no_higher_rate_is_advised(lr, settings, words):
    (found,) = no_progress(losses(*(2.3 + NOISE), lr=lr, settings=settings))
    assert words in found.cause
    assert "Raise" not in found.cure


def test_a_training_succeeds_by_what_it_won_and_kept():
    assert succeeds(losses(*(2.3 + NOISE - np.linspace(0, 2, 400))))
    assert not succeeds(losses(*(2.3 + NOISE)))
    assert not succeeds(losses(*(2.3 + NOISE - 2 * np.sin(np.linspace(0, 2, 400)))[:200], *[2.0] * 200))  # lost again
    blown = np.concatenate([[2.3], 40 + NOISE[:40], 2.3 + NOISE[:359]])
    assert progress(losses(*blown))[0].is_large(0.2)
    assert not succeeds(losses(*blown))  # it only came back from where it had been thrown to


def test_a_training_that_succeeds_gets_no_error_but_for_what_is_not_finite():
    fine = 2.3 + NOISE - np.linspace(0, 2, 400)
    norm = np.where(np.arange(400) < 40, np.arange(400) + 1.0, 40.0)
    assert one(diagnose(losses(*fine, grad_norm=norm)), "gradients-accumulate").severity == "warning"
    assert one(diagnose(losses(*(2.3 + NOISE), grad_norm=norm)), "gradients-accumulate").severity == "error"
    broken = losses(*fine, grad_norm=np.where(np.arange(400) == 200, np.inf, 1.0))
    assert one(diagnose(broken), "nonfinite").severity == "error"


def test_the_only_part_of_a_run_is_judged_as_the_run_is(tmp_path):
    """A Watch that was given a name, and has no other beside it."""
    model, batch = d.dense([16, 32, 4]), blobs()

    def loss_of(step):
        x, y = batch(step)
        return -F.cross_entropy(model(x), y)

    part = fit(tmp_path, model, d.sgd(model, 0.05), loss_of, 100, name="only")
    (folder,) = tmp_path.iterdir()
    (sign,) = [f for f in diagnose(part) if f.severity != "note"]
    assert sign.rule == "negative-loss"
    assert serious(diagnose(gradwatch.open_history(folder))) == ["negative-loss"]
    assert part.run.part is None
    alone = shutil.copytree(folder / "only", tmp_path / "alone")  # of what run, and beside what, is not known there
    assert gradwatch.open_history(alone).run.part == "only"
