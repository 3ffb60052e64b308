"""What a loss is asked for wrongly is the root, by its name and its words; the healthy twin is left alone."""

import inspect

import graph_diseases as g
import pytest
import step_diseases as s
import target_diseases as t
from recordings import Recorded
from trainings import serious

from gradwatch.analysis.rules import diagnose


@pytest.mark.parametrize(
    ("train", "rule", "words"),
    [
        (t.rare_and_never_said, "class-imbalance", "of the targets are of class 0, and the model says that class"),
        (t.rewarded_for_chance, "entropy-too-strong", "The choices are nearly as open as they can be"),
        (t.in_watts_beside_a_class, "loss-terms-unbalanced", "loss is loss_load but for"),
        (t.shuffled_apart, "labels-do-not-fit-inputs", "what is learnt is learnt by heart, example by example"),
        (t.learnt_by_heart, "overfitting", "What is learnt from there on holds of the training data alone."),
        (t.sorted_by_label, "data-not-shuffled", "of the variance of the targets lies between the batches"),
        (t.not_shifted, "labels-not-shifted", "100 % of the targets are the token that the model is given"),
        (t.padded, "padding-in-loss", f"are the token {t.CODES.max()}, which stands at one end of the rows"),
        (t.behind_a_sigmoid, "targets-out-of-range", "a sigmoid, gives numbers between 0 and 1"),
        (t.squashed_twice, "activation-on-logits", "is given what comes out of a sigmoid"),
        (t.added_up, "accumulation-not-averaged", "the sum of 16 backward passes, whose losses are not divided"),
        (t.wiped, "accumulation-wiped", "and the step is that of what is left, of 1/16 of the data"),
        (t.bare_cosines, "logits-bounded", "among 10 classes no loss is below 1."),
        (t.read_behind_padding, "padding-read-as-data", "by then it has gone through padding"),
        (t.looks_at_padding, "mask-inverted", "it is the wrong way round"),
        (t.told_no_places, "positions-missing", "nothing tells it where each of them stands"),
        (g.heard_too_often, "over-smoothing", "Rows are given sums of their neighbours' in 16 layers"),
        (t.read_ahead, "future-seen", "of its weight to later tokens"),
        (t.far_codes, "codebook-collapse", "Of the rows of this table"),
        (t.summed_divergence, "posterior-collapse", "The code is drawn from the prior, whatever the example"),
        (t.paid_in_hundreds, "returns-not-normalised", "are multiplied by 10"),
        (
            t.pulled_at_by_the_policy,
            "policy-loss-trains-critic",
            "moves the value by how likely the choice was",
        ),
        (t.class_left_out, "labels-ignored", "ignore_index=0 leaves"),
        (t.changed_in_place, "views-identical", "is the very same embedding"),
        (t.past_the_end, "values-overestimated", "comes after the end of an episode"),
        (t.never_updated, "target-network-stale", "although the model has learnt it wholly"),
        (t.moved_from_both_sides, "target-not-detached", "the gradient goes through both"),
        (t.hardest_first, "representation-collapse", "the negatives are the hardest of each batch"),
        (
            t.first_of_another_size,
            "stale-second-moment",
            "by their mean square over the last 10,000 steps",
        ),
        (t.cycle_that_hardly_turns, "update-too-small", "The schedule never got there"),
        (t.means_alone, "no-progress", "their mean would do as well"),
        (t.head_that_climbs, "wrong-sign", "Param group 1 has maximize=True"),
        (t.prices, "targets-not-normalised", "The targets are 39"),
        (s.maker_that_moves_its_judge, "optimizer-holds-both-networks", "The optimizer of G also holds 4 layers of D"),
        (s.loaded_back, "weights-reset", "most of what was learnt since the last time is gone"),
        (s.clipped_before, "clip-without-gradient", "The loop's clip to 0.1 comes before backward()"),
        (s.clipped_late, "clip-after-step", "The loop's clip to 0.1 comes behind optimizer.step()"),
    ],
)
def test_it_is_the_root_and_the_twin_is_healthy(train, rule, words, tmp_path):
    train = getattr(Recorded(inspect.getmodule(train)), train.__name__)
    found = diagnose(train(tmp_path / "sick"))
    assert serious(found)[:1] == [rule]
    assert words in found[0].cause
    assert serious(diagnose(train(tmp_path / "well", sick=False))) == []


@pytest.mark.parametrize(
    ("train", "rule", "words"),
    [
        (g.not_told_how_much_noise, "conditioning-missing", "and the model is given nothing else"),
        (s.validated_in_training_mode, "validation-in-train-mode", "were given 9 batches besides those of the steps"),
    ],
)
def test_it_is_told_in_a_note_and_the_twin_is_healthy(train, rule, words, tmp_path):
    train = getattr(Recorded(inspect.getmodule(train)), train.__name__)
    (found,) = [f for f in diagnose(train(tmp_path / "sick")) if f.rule == rule]
    assert (found.severity, words in found.cause) == ("note", True)
    assert diagnose(train(tmp_path / "well", sick=False)) == []
