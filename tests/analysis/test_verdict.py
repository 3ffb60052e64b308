"""The statistics of a comparison against scipy, against numbers from a book's table, and by hand; and the words."""

import json
import math
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest
from make_run import make_history
from pages import figures, unpack
from scipy import stats

import gradwatch
from gradwatch.analysis.comparison import compare, settle
from gradwatch.analysis.final_values import final, seconds_per_step, steps_to
from gradwatch.analysis.groups import higher_is_better
from gradwatch.analysis.intervals import difference, holm, mean, seeds_wanted
from gradwatch.errors import RunError
from gradwatch.report import build_report, render_html
from gradwatch.report.comparison_table import columns, comparison_cells, conclusion, paste, winner_lines
from gradwatch.report.terminal import winners_text
from gradwatch.report.text import comparison_text, render_markdown

CLIP = "ClipByGlobalNorm(1.0)"
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # Student's t, 97.5 %, as printed in textbooks


def run(loss, seed=0, clip=None, steps=40, **options):
    """A run that ends with this validation loss; inf makes it one that diverged."""
    history = make_history(steps=steps, clip=clip, params={"seed": str(seed)}, logged=("val_loss",), **options)
    values = np.full(steps, np.nan)
    values[[steps // 2, -1]] = 9.0, loss
    history.per_step["val_loss"] = values
    if math.isinf(loss):
        history.per_step["nonfinite"][-1] = 1
    return history


def runs(losses, clip=None, seeds=None):
    return [run(loss, seed, clip) for seed, loss in zip(seeds or range(len(losses)), losses, strict=True)]


def row(table, policy=CLIP):
    return table[table["policy"] == policy].iloc[0]


# -------------------------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize("n", [2, 3, 5])
def test_an_interval_is_students(n):
    values = np.random.default_rng(n).normal(3, 2, n)
    found = mean(values)
    half = T975[n - 1] * values.std(ddof=1) / math.sqrt(n)
    assert (found.value, found.n) == (pytest.approx(values.mean()), n)
    assert found.high - found.value == pytest.approx(half, rel=1e-3)
    assert found.value - found.low == pytest.approx(half, rel=1e-3)


def test_one_value_has_no_interval_and_equal_ones_have_no_width():
    assert not mean([1.0]).has_interval
    assert not mean([1.0, math.nan]).has_interval
    assert (mean([2.0, 2.0]).low, mean([2.0, 2.0]).high) == (2.0, 2.0)
    assert mean([]).n == 0


def test_equal_seeds_are_paired():
    ours, theirs = {"0": 1.0, "1": 2.0, "2": 4.0}, {"2": 9.0, "0": 5.0, "1": 6.5}
    found = difference(ours, theirs)
    expected = stats.ttest_rel([1.0, 2.0, 4.0], [5.0, 6.5, 9.0]).confidence_interval(0.95)
    assert found.value == pytest.approx((-4 - 4.5 - 5) / 3)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert found.method == "paired over 3 seeds"


def test_pairing_sees_what_the_spread_between_seeds_hides():
    theirs = {"0": 1.0, "1": 5.0, "2": 9.0}
    ours = {seed: value - 0.1 - 0.001 * value for seed, value in theirs.items()}
    assert difference(ours, theirs).side() == -1
    assert difference({f"x{seed}": value for seed, value in ours.items()}, theirs).side() == 0


def test_other_seeds_are_compared_as_welch_does():
    ours, theirs = {"0": 1.0, "1": 2.0, "2": 4.0}, {"7": 5.0, "8": 9.0}
    found = difference(ours, theirs)
    # by hand: variances 7/3 and 8, errors 7/9 and 4; Welch and Satterthwaite's degrees of freedom
    degrees = (7 / 9 + 4) ** 2 / ((7 / 9) ** 2 / 2 + 4**2 / 1)
    half = stats.t.ppf(0.975, degrees) * math.sqrt(7 / 9 + 4)
    assert (found.low, found.high) == (pytest.approx(7 / 3 - 7 - half), pytest.approx(7 / 3 - 7 + half))
    assert found.method == "not paired: 3 and 2 runs of different seeds, by Welch's interval"


def test_seeds_that_only_one_side_has_are_left_out_of_the_pairs():
    found = difference({"0": 1.0, "1": 2.0, "5": 100.0}, {"0": 2.0, "1": 4.0})
    assert (found.value, found.method) == (-1.5, "paired over 2 seeds")


# --------------------------------------------------------------------------------------------------------- verdicts


def test_a_row_has_the_interval_the_difference_and_the_verdict():
    table = compare([*runs([2.0, 2.2, 2.4]), *runs([1.0, 1.3, 1.3], CLIP)])
    one = row(table)
    low, high = stats.t.interval(0.95, 2, loc=1.2, scale=stats.sem([1.0, 1.3, 1.3]))
    assert (one["val_loss"], one["val_loss_low"], one["val_loss_high"]) == pytest.approx((1.2, low, high))
    expected = stats.ttest_rel(np.log([1.0, 1.3, 1.3]), np.log([2.0, 2.2, 2.4])).confidence_interval(0.95)
    assert one["val_loss_diff"] == pytest.approx((1 / 2 * 1.3 / 2.2 * 1.3 / 2.4) ** (1 / 3) - 1)
    assert (one["val_loss_diff_low"], one["val_loss_diff_high"]) == pytest.approx(np.expm1(expected))
    assert (one["val_loss_verdict"], one["val_loss_method"]) == ("better", "as ratios, paired over 3 seeds")
    assert row(table, "none")["val_loss_verdict"] == "baseline"


def test_one_seed_that_exploded_most_does_not_hide_that_all_did():
    """Losses of an unclipped and a clipped character RNN: as differences they would show nothing."""
    wild, calm = [4.891, 4.259, 7.702], [2.176, 2.067, 2.046]
    one = row(compare([*runs(wild), *runs(calm, CLIP)]))
    assert difference(dict(enumerate(calm)), dict(enumerate(wild))).side() == 0
    assert one["val_loss_verdict"] == "better"


def test_what_is_not_positive_or_meant_to_rise_is_a_difference_in_its_own_unit():
    one = row(compare([*runs([0.5, 0.0]), *runs([-1.0, -1.6], CLIP)]))
    assert one["val_loss_diff"] == pytest.approx(-1.55)
    assert one["val_loss_method"] == "paired over 2 seeds"


@pytest.mark.parametrize(
    ("losses", "word"),
    [([3.0, 3.3, 3.3], "worse"), ([2.0, 2.3, 2.3], "no difference shown"), ([2.0, 2.2, 2.4], "no difference shown")],
)
def test_the_other_verdicts(losses, word):
    assert row(compare([*runs([2.0, 2.2, 2.4]), *runs(losses, CLIP)]))["val_loss_verdict"] == word


def test_a_high_accuracy_is_better():
    both = [*runs([0.2, 0.3, 0.3]), *runs([0.9, 0.9, 0.8], CLIP)]
    for history in both:
        history.per_step["val_acc"] = history.per_step.pop("val_loss")
    assert row(compare(both))["val_acc_verdict"] == "better"


def test_one_seed_has_no_verdict_and_says_so():
    settled = settle([*runs([2.0]), *runs([1.0], CLIP)])
    assert row(settled.table)["val_loss_verdict"] == "not judged"
    assert math.isnan(row(settled.table)["val_loss_low"])
    assert any("there is no interval and no verdict" in note for note in settled.notes)
    (winner,) = settled.winners
    assert winner.policy == CLIP
    assert "has the best val_loss, 1, but with so few finished runs nothing is shown" in winner.sentences[0]
    assert winner_lines(winner)[-1].startswith(
        f"No winner: train three seeds or more of each. The best so far: {CLIP}. To paste: clip="
    )
    assert not any("±" in note for note in settled.notes)


def test_a_policy_that_ends_as_the_baseline_does_is_not_the_best():
    """It may never have acted: `ClipByValue(1.0)` on small gradients."""
    (winner,) = settle([*runs([1.0], CLIP), *runs([1.0]), *runs([2.0], "AGC(0.01)")]).winners
    assert winner.sentences[0].startswith("none has the best val_loss, 1")
    assert conclusion(winner) == "No winner: train three seeds or more of each."


def test_two_runs_of_one_seed_are_no_sample_of_two():
    table = compare([*runs([2.0, 2.2], seeds=[0, 0]), *runs([1.0, 1.3], CLIP, seeds=[0, 0])])
    assert (row(table)["runs"], row(table)["val_loss"], row(table)["val_loss_verdict"]) == (2, 1.15, "not judged")


def test_runs_without_a_seed_are_not_paired_and_it_is_said():
    both = [*runs([2.0, 2.2, 2.4]), *runs([1.0, 1.3, 1.3], CLIP)]
    both = [replace(history, run=replace(history.run, params={})) for history in both]
    settled = settle(both)
    logs = np.log([1.0, 1.3, 1.3]), np.log([2.0, 2.2, 2.4])
    expected = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    assert row(settled.table)["val_loss_diff_high"] == pytest.approx(np.expm1(expected.high))
    assert any("Welch" in note for note in settled.notes)


def test_where_all_diverged_that_is_the_verdict():
    settled = settle([*runs([math.inf, math.inf]), *runs([5.0, 6.0], CLIP)])
    assert row(settled.table)["val_loss_verdict"] == "better"
    assert math.isnan(row(settled.table, "none")["val_loss"])
    assert settled.winners[0].sentences[0].endswith("0 of 2 runs diverged, 2 of 2 of none.")
    assert any("counts as diverged" in note for note in settled.notes)
    other = compare([*runs([5.0, 6.0]), *runs([math.inf, math.inf], CLIP)])
    assert row(other)["val_loss_verdict"] == "worse"


def trained(begin, end, seed=0, clip=None, held_out=1.0):
    """A run whose training loss goes straight from `begin` to `end`; the held-out one is so many times that."""
    history = make_history(steps=40, clip=clip, params={"seed": str(seed)}, logged=("loss", "val_loss"))
    history.per_step["loss"] = loss = np.linspace(begin, end, 40)
    history.per_step["val_loss"] = np.where(np.arange(40) % 20 == 19, loss * held_out, np.nan)
    return history


@pytest.mark.parametrize("metric", ["loss", "val_loss"])
def test_a_run_that_came_apart_counts_with_its_loss_before_training(metric):
    sick = [trained(4.0, end, seed) for seed, end in enumerate([3.0, 5.0, 500.0])]
    table = compare([*sick, *(trained(4.0, 2.0 + 0.01 * seed, seed, CLIP) for seed in range(3))], metric)
    none = row(table, "none")
    assert (none["diverged"], row(table)["diverged"]) == (2, 0)
    low = final(sick[0], metric)
    assert none[metric] == pytest.approx((low + 4.0 + 4.0) / 3)
    assert (row(table)[f"{metric}_verdict"], row(table)[f"{metric}_diff_high"] < 0) == ("better", True)


def test_a_run_that_ended_in_nan_counts_with_its_loss_before_training_too():
    sick = trained(4.0, 3.0)
    sick.per_step["loss"][-20:] = np.nan
    sick.per_step["nonfinite"][-20:] = 1
    (both,) = compare([sick, trained(4.0, 2.0, seed=1)], "val_loss").to_dict("records")
    assert (both["val_loss"], both["diverged"]) == (3.0, 1)


@pytest.mark.parametrize(("end", "count"), [(4.3, 0), (4.5, 1)])
def test_a_loss_that_ends_a_tenth_above_its_beginning_has_diverged(end, count):
    settled = settle([trained(4.0, end, seed) for seed in range(2)], "loss")
    (both,) = settled.table.to_dict("records")
    assert (both["loss"], both["diverged"]) == (4.0, 2 * count)
    assert "Of loss a run counts at most with what it was before training, where that is known." in settled.notes
    assert not any("at most" in note for note in settle([trained(4.0, 3.0)], "loss").notes)


@pytest.mark.parametrize(("name", "ended", "count"), [
    ("episode_return", 90.0, 0), ("episode_return", 21.0, 2), ("reward_loss", 90.0, 2), ("acc", 90.0, 2),
])  # fmt: skip
def test_the_loss_of_an_agent_whose_return_rises_has_not_diverged(name, ended, count):
    """Its values grow with the return, and so does what they are off by."""
    grown = [trained(4.0, 8.0, seed) for seed in range(2)]
    for history in grown:
        history.per_step[name] = np.linspace(20.0, ended, 40)
    (both,) = compare(grown, "loss").to_dict("records")
    assert both["diverged"] == count
    assert (both["loss"] > 7) == (not count)


@pytest.mark.parametrize(("first", "comes_again", "count"), [(0.04, True, 0), (0.04, False, 2), (0.09, False, 0)])
def test_the_first_batch_of_a_run_that_began_trained_may_be_a_lucky_one(first, comes_again, count):
    tuned = [trained(0.09, 0.08, seed) for seed in range(2)]
    for history in tuned:
        history.per_step["loss"][0] = first
        history.per_step["loss"][30] = first if comes_again else 0.08
    (both,) = compare(tuned, "loss").to_dict("records")
    assert both["diverged"] == count


def test_a_run_that_goes_on_from_another_did_not_begin_there():
    on = [trained(0.01, 0.05, seed) for seed in range(2)]
    moved = [replace(h, by_step=replace(h.by_step, step=h.step + 600)) for h in on]
    assert [compare(each, "loss").to_dict("records")[0]["diverged"] for each in (on, moved)] == [2, 0]


def test_a_held_out_loss_of_another_scale_says_nothing_of_how_it_began():
    (row_,) = compare([trained(4.0, 3.0, seed, held_out=100.0) for seed in range(2)], "val_loss").to_dict("records")
    assert (row_["val_loss"], row_["diverged"]) == (pytest.approx(300.0), 0)


def test_another_scalar_may_end_above_where_it_began():
    grown = [trained(4.0, 3.0, seed) for seed in range(2)]
    for history in grown:
        history.per_step["kl_loss"] = np.linspace(0.1, 2.0, 40)
    (row_,) = compare(grown, "kl_loss").to_dict("records")
    assert (row_["kl_loss"] > 1.9, row_["diverged"]) == (True, 0)


def test_finished_runs_do_not_speak_for_a_policy_that_diverges_more_often():
    table = compare([*runs([5.0, 5.1, 5.2, 5.3]), *runs([1.0, 1.1, 1.2, math.inf], CLIP)])
    assert row(table)["val_loss"] == pytest.approx(1.1)
    assert row(table)["val_loss_diff_high"] < -0.74
    assert row(table)["val_loss_verdict"] == "no difference shown"
    assert next(iter(table["policy"])) == "none"  # fewest diverged first


def test_the_baseline_can_be_chosen_and_an_unknown_one_is_named():
    three = [*runs([2.0, 2.2]), *runs([1.0, 1.25], CLIP), *runs([1.5, 1.7], "AGC(0.01)")]
    table = compare(three, baseline="AGC(0.01)")
    assert (row(table, "none")["val_loss_diff"], row(table)["val_loss_diff"]) == pytest.approx(
        ((2 / 1.5 * 2.2 / 1.7) ** 0.5 - 1, (1 / 1.5 * 1.25 / 1.7) ** 0.5 - 1)
    )
    with pytest.raises(RunError, match=r"no run has the policy 'AGC\(1\)' to compare with; there are: none"):
        compare(three, baseline="AGC(1)")


def test_without_none_the_first_policy_is_the_baseline():
    table = compare([*runs([1.5, 1.7], "AGC(0.01)"), *runs([1.0, 1.25], CLIP)])
    assert row(table, "AGC(0.01)")["val_loss_verdict"] == "baseline"


# ------------------------------------------------------------------------------------------------------- the winner


def test_of_two_seeds_nothing_is_told_apart_from_the_best():
    """Their two differences may be alike by chance."""
    settled = settle([*runs([2.0, 2.3]), *runs([1.0, 1.151], CLIP), *runs([1.006, 1.1579], "AGC(0.01)")])
    assert settled.winners[0].sentences[-1] == "Not told apart from it: AGC(0.01)."


def test_the_winner_is_what_is_shown_to_be_better_with_what_cannot_be_told_from_it():
    settled = settle(
        [
            *runs([2.0, 2.2, 2.4]),
            *runs([1.0, 1.3, 1.3], CLIP),
            *runs([1.1, 1.2, 1.4], "AGC(0.01)"),
            *runs([3, 3, 3.4], "AGC(0.5)"),
        ]
    )
    (winner,) = settled.winners
    assert winner.policy == winner.clip == CLIP
    assert winner.sentences == (
        f"{CLIP} is better than none: val_loss 1.2 against 2.2, a difference of -45.7 % "
        f"({100 * row(settled.table)['val_loss_diff_low']:+.3g} to "
        f"{100 * row(settled.table)['val_loss_diff_high']:+.3g} %) (95 % interval; as ratios, paired over 3 seeds).",
        "Not told apart from it: AGC(0.01).",
    )
    python, shell = paste(winner)
    assert eval(f"dict({python})") == {"clip": CLIP}
    assert shlex.split(shell) == ["--clip", CLIP]
    assert winner_lines(winner)[-1] == f"Winner: {CLIP}. To paste: {python}, or {shell}"


def test_where_nothing_is_shown_no_policy_wins():
    (winner,) = settle([*runs([2.0, 2.2, 2.4]), *runs([1.0, 3.3, 1.3], CLIP)]).winners
    assert (winner.policy, paste(winner)) == (None, None)
    assert winner.sentences[0].startswith(f"No policy is shown to be better than none; {CLIP} has the best mean")


def test_the_last_line_says_what_to_do_where_nothing_is_told_apart():
    (winner,) = settle([*runs([2.0, 2.2, 2.4]), *runs([1.0, 3.3, 1.3], CLIP)]).winners
    assert re.fullmatch(r"No winner: about \d+ seeds of each would show.*until then it is open\.", conclusion(winner))
    (same,) = settle([*runs([2.0, 2.2, 2.4]), *runs([1.995, 2.21, 2.39], CLIP)]).winners
    assert "50 of each would not show" in conclusion(same)
    (worse,) = settle([*runs([2.0, 2.2, 2.4]), *runs([3.0, 3.3, 3.3], CLIP)]).winners
    assert conclusion(worse) == "No winner: keep none, or try other policies."


def test_the_comparison_in_the_terminal_ends_with_its_winners():
    settled = settle([*runs([2.0, 2.2, 2.4]), *runs([1.0, 1.3, 1.3], CLIP)])
    assert winners_text(settled.winners)[-1].startswith(f"Winner: {CLIP}. To paste: ")
    assert sum("±" in note for note in settled.notes) == 1


@pytest.mark.parametrize("shift", [0.4, 0.9, 1.5])
def test_the_seeds_that_are_wanted_would_show_the_difference(shift):
    def interval(n):
        sample = np.linspace(-1, 1, n)
        return mean(shift + sample / sample.std(ddof=1))

    wanted = seeds_wanted(interval(3))
    assert interval(wanted).side() == 1
    assert all(interval(n).side() == 0 for n in range(3, wanted))
    assert seeds_wanted(interval(3), most=wanted - 1) is None


def test_every_setting_has_its_own_winner():
    both = [*runs([2.0, 2.2, 2.4]), *runs([1.0, 1.3, 1.3], CLIP)]
    hot = [replace(h, run=replace(h.run, params={**h.run.params, "lr": "9"})) for h in both]
    cold = [replace(h, run=replace(h.run, params={**h.run.params, "lr": "1"})) for h in (*both[3:], *both[:3])]
    assert [winner.setting for winner in settle([*hot, *cold]).winners] == ["param lr = 1", "param lr = 9"]


def test_a_policy_with_quotes_can_be_pasted():
    policy = "only('rnn.*', ClipByNorm(1.0))"
    (winner,) = settle([*runs([2.0, 2.2, 2.4]), *runs([1.0, 1.3, 1.3], policy)]).winners
    python, shell = paste(winner)
    assert gradwatch.parse(eval(f"dict({python})")["clip"]) == gradwatch.parse(shlex.split(shell)[1])


# ----------------------------------------------------------------------------------------------- what a run amounts to


def test_the_end_of_a_noisy_loss_is_a_mean_and_that_of_an_evaluation_its_last_value():
    history = make_history(steps=1000, logged=("loss", "val_loss"))
    history.per_step["loss"] = np.arange(1000.0)
    history.per_step["val_loss"] = np.where(np.arange(1000) % 10 == 0, np.arange(1000.0), np.nan)
    assert final(history, "loss") == np.arange(980, 1000).mean()
    assert final(history, "val_loss") == 990


def test_steps_to_a_target():
    history = make_history(steps=100, logged=("loss", "val_loss"))
    history.per_step["loss"] = np.where(np.arange(100) == 10, 0.0, 100.0 - np.arange(100))
    history.per_step["val_loss"] = np.where(np.arange(100) % 10 == 9, 100.0 - np.arange(100), np.nan)
    assert steps_to(history, "val_loss", 51, high=False) == 50  # after step number 49
    assert steps_to(history, "loss", 50, high=False) == 53  # the mean of 5, not the one lucky batch of step 10
    assert steps_to(history, "loss", -1, high=False) == math.inf
    assert steps_to(history, "val_loss", 90, high=True) == 10


def test_the_table_counts_who_reached_the_target():
    both = [*runs([2.0, 2.2, 9.5]), *runs([1.0, 1.3, 1.3], CLIP)]
    settled = settle(both, target=2.1)
    assert (row(settled.table)["steps_to_target"], row(settled.table)["reached_target"]) == (40, 3)
    assert math.isnan(row(settled.table, "none")["steps_to_target"])
    headers, cells = comparison_cells(settled.table)
    place = headers.index("steps to target")
    assert [line[place] for line in cells] == ["40", "– (1 of 3)"]


def test_time_per_step_is_the_median():
    history = make_history(steps=30)
    history.per_step["time"] = np.cumsum(np.r_[np.full(10, 0.5), 1000.0, np.full(19, 0.5)])
    assert seconds_per_step(history) == 0.5
    assert math.isnan(seconds_per_step(history.slice(0, 1)))


# ---------------------------------------------------------------------------------------------------------- formats


def test_machines_get_all_of_it():
    settled = settle([*runs([2.0, math.inf, 2.4]), *runs([1.0, 1.3, 1.3], CLIP)], target=1.5)
    data = json.loads(comparison_text(settled, "json"))
    assert data["metrics"] == ["val_loss"]
    assert data["comparison"][0]["val_loss_verdict"] == "better"
    assert data["winners"][0]["policy"] == CLIP
    assert len(data["notes"]) == 3
    assert comparison_text(settled, "csv").splitlines()[0].startswith("policy,runs,val_loss,val_loss_std,val_loss_low")
    assert "| policy | runs | val\\_loss |" in comparison_text(settled, "md")
    report = build_report([*runs([2.0, 2.2]), *runs([1.0, 1.25], CLIP)])
    assert "no policy" not in render_markdown(report)
    assert "better" in render_markdown(report)


def test_unknown_numbers_sort_last():
    found = {c.header: c for c in columns(compare([*runs([math.inf, math.inf]), *runs([1.0, 1.3], CLIP)]))}
    assert found["policy"].keys is found["verdict"].keys is None
    assert found["val_loss"].keys == (pytest.approx(1.15), 1e308)
    assert found["val_loss"].cells[1] == "–"


# ------------------------------------------------------------------------------------------------------- the charts


def test_a_band_spans_the_seeds_even_where_one_ended_early():
    three = [make_history(steps=40, seed=seed, logged=("val_accuracy",)) for seed in range(3)]
    for value, history in zip((0.1, 0.2, 0.6), three, strict=True):
        history.per_step["val_accuracy"] = np.full(40, value)
    three[2] = three[2].slice(0, 20)
    chart = figures(render_html(build_report(three)))[0]
    low, high = [t for t in chart["data"] if t["name"].endswith(("lowest", "highest"))]
    assert (low["legendgroup"], high["fill"]) == (CLIP, "tonexty")
    np.testing.assert_allclose(unpack(low["y"]), 0.1, rtol=1e-6)
    np.testing.assert_allclose(unpack(high["y"]), [0.6] * 20 + [0.2] * 20, rtol=1e-6)


def test_heat_maps_stand_side_by_side_on_one_scale():
    two = [make_history(steps=40, clip=clip, nan_at=at) for clip, at in ((None, 5), (CLIP, None))]
    two[0].per_layer["grad_norm"] *= 100
    report = build_report(two)
    chart = figures(render_html(report))[-1]
    maps = [trace for trace in chart["data"] if trace.get("coloraxis")]
    assert [(trace["xaxis"], trace["legendgroup"]) for trace in maps] == [("x", "none"), ("x2", CLIP)]
    everything = np.log10(np.concatenate([h.layer("grad_norm")[np.isfinite(h.layer("grad_norm"))] for h in two]))
    assert chart["layout"]["coloraxis"]["cmin"] == pytest.approx(np.quantile(everything, 0.005), abs=0.02)
    assert chart["layout"]["coloraxis"]["cmax"] == pytest.approx(np.quantile(everything, 0.995), abs=0.02)
    assert [note["text"] for note in chart["layout"]["annotations"]] == ["none", CLIP]
    assert len(chart["data"]) == 3  # one of them has non-finite cells


# ------------------------------------------------------------------------------- what no verdict is to be made of


def named(metric, values, clip=None):
    """Runs whose only logged scalar is `metric`."""
    found = runs(values, clip)
    for history in found:
        history.per_step[metric] = history.per_step.pop("val_loss")
    return found


@pytest.mark.parametrize(
    ("metric", "rises"),
    [
        ("top1", True), ("top-5", True), ("val_acc", True), ("eval/f1", True), ("mAP", True), ("bleu", True),
        ("mean_reward", True), ("episode_return", True), ("score", True), ("auroc", True), ("explained_variance", True),
        ("loss", False), ("auc_loss", False), ("accuracy_error", False), ("perplexity", False), ("val_mae", False),
        ("wer", False), ("neg_log_likelihood", False), ("fid", False), ("temperature", None), ("entropy", None),
        ("negative_reward", None), ("lr", None), ("rewards/chosen", None), ("reward_rejected", None),
        ("rewards/margins", True), ("reconstruction", False), ("recon_psnr", True), ("recall_at_10", True),
    ],
)  # fmt: skip
def test_a_name_says_which_way_is_better_or_nothing_does(metric, rises):
    assert higher_is_better(metric) is rises


def test_a_high_top1_is_better():
    table = compare([*named("top1", [0.5, 0.51, 0.49]), *named("top1", [0.9, 0.91, 0.89], CLIP)], "top1")
    assert (row(table)["top1_verdict"], table["policy"].tolist()) == ("better", [CLIP, "none"])


def test_where_no_name_says_which_way_is_better_there_is_no_verdict_until_somebody_does():
    histories = [*named("warmth", [0.5, 0.51, 0.49]), *named("warmth", [0.9, 0.91, 0.89], CLIP)]
    settled = settle(histories, "warmth")
    assert row(settled.table)["warmth_verdict"] == "not judged"
    (one,) = settled.winners
    assert one.policy is None
    assert "not known" in one.sentences[0]
    assert any("--higher-is-better" in note for note in settled.notes)
    assert row(compare(histories, "warmth", rises=True))["warmth_verdict"] == "better"
    assert row(compare(histories, "warmth", rises=False))["warmth_verdict"] == "worse"


def test_the_flag_outweighs_the_name():
    histories = [*named("score", [0.5, 0.51, 0.49]), *named("score", [0.9, 0.91, 0.89], CLIP)]
    assert row(compare(histories, "score", rises=False))["score_verdict"] == "worse"


def test_nobody_wins_where_nobody_has_a_value_and_who_never_logged_it_is_named():
    silent = [make_history(name=f"silent-{i}", params={"seed": str(i), "width": "64"}, clip=c, logged=())
              for i, c in enumerate((None, CLIP))]  # fmt: skip
    settled = settle([*runs([2.0, 2.1]), *runs([1.0, 1.1], CLIP), *silent], "val_loss")
    (other,) = [one for one in settled.winners if "64" in one.setting]
    assert (other.policy, other.clip) == (None, None)
    assert "nan" not in " ".join(text for one in settled.winners for text in one.sentences)
    assert any("never logged val_loss: silent-0, silent-1" in note for note in settled.notes)


def test_a_policy_without_a_value_is_not_better_than_one_that_diverged():
    silent = [make_history(params={"seed": str(i)}, clip=CLIP, logged=()) for i in range(2)]
    table = compare([*runs([math.inf, math.inf]), *silent], "val_loss")
    assert row(table)["val_loss_verdict"] == "not judged"


@pytest.mark.parametrize(
    ("p_values", "shown"),
    [
        ([0.01, 0.04, 0.03], [True, False, False]), ([0.01, 0.02, 0.03], [True, True, True]), ([], []),
        ([0.04], [True]), ([math.nan, 0.04, math.nan], [False, True, False]), ([0.026, 0.026], [False, False]),
    ],
)  # fmt: skip
def test_holms_step_down_by_hand(p_values, shown):
    assert holm(p_values) == shown


@pytest.mark.slow
def test_fourteen_policies_that_do_nothing_are_seldom_told_apart():
    """At 95 % each, every second of these tables has a verdict; together, one in twenty."""
    rng, wrong = np.random.default_rng(0), 0
    clips = [f"ClipByGlobalNorm({i}.0)" for i in range(1, 15)]
    for _ in range(40):
        table = compare([h for clip in (None, *clips) for h in runs(rng.normal(2, 0.1, 3), clip)])
        wrong += table["val_loss_verdict"].isin(("better", "worse")).any()
    assert wrong <= 5


def test_the_p_value_is_that_of_scipy():
    ours, theirs = {"0": 1.0, "1": 1.3, "2": 1.2}, {"0": 1.5, "1": 1.6, "2": 1.9}
    paired = stats.ttest_rel([*ours.values()], [*theirs.values()])
    assert difference(ours, theirs).p == pytest.approx(paired.pvalue)
    apart = {f"x{seed}": value for seed, value in theirs.items()}
    welch = stats.ttest_ind([*ours.values()], [*theirs.values()], equal_var=False)
    assert difference(ours, apart).p == pytest.approx(welch.pvalue)


def test_seeds_that_change_nothing_are_said_and_not_judged():
    settled = settle([*runs([2.0, 2.1, 1.9]), *runs([1.0, 1.0, 1.0], CLIP)])
    assert row(settled.table)["val_loss_verdict"] == "not judged"
    assert any(f"The seeds of {CLIP} change nothing" in note for note in settled.notes)
    headers, cells = comparison_cells(settled.table)
    assert "3 alike" in [line[headers.index("runs")] for line in cells]
    assert settled.winners[0].policy is None
    shown = dict(zip(headers, next(line for line in cells if line[0] == CLIP), strict=True))
    assert (shown["val_loss"], shown["difference"]) == ("1", "-50 %")  # no interval over one run
    one = settle(runs([1.0], CLIP)).table
    assert row(settled.table)["p99_grad_norm"] == row(one)["p99_grad_norm"]


def test_what_counts_as_it_was_before_training_on_both_sides_differs_by_nothing_that_is_known():
    sick = [trained(4.0, 20.0, seed, clip) for clip in (None, CLIP) for seed in range(2)]
    table = settle(sick, "loss").table
    assert row(table)["loss_verdict"] == "no difference shown"
    assert math.isnan(row(table)["loss_diff"])


def test_runs_whose_seeds_are_not_known_are_said_to_be():
    seedless = [replace(each, run=replace(each.run, params={})) for each in runs([2.0, 2.2, 2.1])]
    assert any("Of 3 runs no seed is known" in note for note in settle(seedless).notes)
    assert not any("no seed" in note for note in settle([*runs([2.0, 2.2]), seedless[0]]).notes)


def test_two_seeds_are_too_few_and_a_note_says_so():
    notes = settle([*runs([2.0, 2.1]), *runs([1.0, 1.1], CLIP)]).notes
    assert any("take three" in note for note in notes)


def test_a_loss_that_counts_with_what_it_was_before_is_shown_as_it_was():
    sick = [trained(4.0, end, seed) for seed, end in enumerate([18.0, 20.0])]
    settled = settle([*sick, *(trained(4.0, 2.0 + 0.1 * seed, seed, CLIP) for seed in range(2))], "loss")
    none = row(settled.table, "none")
    assert none["loss"] == pytest.approx(4.0)
    assert none["loss_ended"] == pytest.approx(np.mean([final(history, "loss") for history in sick]))
    headers, cells = comparison_cells(settled.table)
    shown = {line[0]: line[headers.index("loss")] for line in cells}
    assert "counts as 4" in shown["none"]
    assert "counts" not in shown[CLIP]


def test_a_loss_far_above_its_beginning_has_diverged_also_where_an_accuracy_decides():
    sick = [trained(4.0, 18.0, seed) for seed in range(2)]
    for history in sick:
        history.per_step["acc"] = np.full(len(history), 0.1 + int(history.run.params["seed"]) / 100)
    (both,) = settle(sick).table.to_dict("records")
    assert both["diverged"] == 2


def told(histories, **directions):
    """The same runs, which were told which way is better."""
    return [replace(h, run=replace(h.run, higher_is_better=directions)) for h in histories]


def test_what_the_runs_were_told_decides_before_the_name_does():
    for name in ("mood", "loss"):
        both = told([*named(name, [1.0, 1.1, 1.2]), *named(name, [2.0, 2.1, 2.2], CLIP)], **{name: True})
        settled = settle(both)
        assert settled.metrics == (name,)
        assert settled.table[f"{name}_verdict"][0] == "better"
        assert settled.table["policy"][0] == CLIP
        assert settle(both, metric=name, rises=False).table["policy"][0] == "none"
    one, other = named("mood", [1.0, 1.1, 1.2]), named("mood", [2.0, 2.1, 2.2], CLIP)
    assert higher_is_better("mood", [*told(one, mood=True), *told(other, mood=False)]) is None
    assert higher_is_better("mood", [*one, *told(other, mood=False)]) is False


def test_what_is_not_compared_is_named():
    notes = " ".join(settle([*named("mood", [1.0, 1.1]), *named("mood", [2.0, 2.1], CLIP)]).notes)
    assert "not known which way is better: mood." in notes
    assert "mood" not in " ".join(settle([*runs([1.0, 1.1]), *runs([2.0, 2.1], CLIP)]).notes)
