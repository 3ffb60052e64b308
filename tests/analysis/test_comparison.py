"""The comparison table against numbers worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from make_run import changed, make_history

from gradwatch.analysis.comparison import compare, settle
from gradwatch.analysis.final_values import final, lost_since, policy_text
from gradwatch.analysis.groups import by_setting, metric_names, settings, telling
from gradwatch.errors import RunError
from gradwatch.history import Layer
from gradwatch.report import build_report
from gradwatch.report.wording import facts


def run(accuracy, seed=0, lr=0.1, norms=(1.0, 2.0, 3.0, 4.0), rate=0.5, clip="ClipByGlobalNorm(1.0)", **options):
    """A run of four steps whose numbers are given."""
    optimizers = ({"name": "SGD", "class": "SGD", "settings": {"lr": lr}},)
    history = make_history(steps=4, clip=clip, optimizers=optimizers, params={"seed": str(seed)}, **options)
    clipped = np.array([1.0, 0.0, 1.0, 0.0]) * 2 * rate
    given = {
        "grad_norm": np.array(norms),
        "val_accuracy": np.array([math.nan, 0.1, accuracy, math.nan]),
        "loss": np.array([4.0, 3.0, 2.0, 1.0]),
        "clip_rate": clipped,
    }
    return changed(history, per_step={**history.per_step, **given})


def test_a_row_holds_mean_and_sample_standard_deviation_over_seeds():
    table = compare([run(0.8, 0), run(0.9, 1, norms=(5.0, 6.0, 7.0, 8.0)), run(1.0, 2, rate=0.25)])
    (row,) = table.to_dict("records")
    assert row["policy"] == "ClipByGlobalNorm(1.0)"
    assert row["runs"] == 3
    assert row["val_accuracy"] == pytest.approx(0.9)
    assert row["val_accuracy_std"] == pytest.approx(0.1)  # sqrt((0.01 + 0 + 0.01) / 2)
    assert (row["loss"], row["loss_std"]) == (1.0, 0.0)
    assert row["clip_rate"] == pytest.approx((0.5 + 0.5 + 0.25) / 3)
    assert row["median_grad_norm"] == 3.5  # of 1 1 2 2 3 3 4 4 5 6 7 8
    assert row["p99_grad_norm"] == pytest.approx(7.89)  # 7 + 0.89 * (8 - 7), at place 0.99 * 11 = 10.89
    assert (row["nonfinite_steps"], row["diverged"]) == (0, 0)


def test_one_run_has_no_spread():
    assert math.isnan(compare([run(0.8)])["val_accuracy_std"][0])


def test_runs_that_differ_in_a_setting_are_apart_and_numbers_sort_as_numbers():
    table = compare([run(0.8, lr=10.0), run(0.7, lr=2.0), run(0.9, lr=2.0, seed=1), run(0.5, lr=2.0, clip=None)])
    assert list(zip(table["lr"], table["policy"], table["runs"], strict=True)) == [
        ("2.0", "ClipByGlobalNorm(1.0)", 2),
        ("2.0", "none", 1),
        ("10.0", "ClipByGlobalNorm(1.0)", 1),
    ]


def test_the_best_accuracy_comes_first_and_the_lowest_loss():
    runs = [run(0.5, clip="AGC(0.01)"), run(0.9), run(0.7, clip=None)]
    assert list(compare(runs)["policy"]) == ["ClipByGlobalNorm(1.0)", "none", "AGC(0.01)"]
    runs[0].per_step["loss"][-1] = 0.1
    assert next(iter(compare(runs, "loss")["policy"])) == "AGC(0.01)"


def test_where_the_first_metric_is_unknown_or_equal_the_next_one_ranks():
    runs = [run(0.5, clip="AGC(0.01)"), run(0.5, clip=None), run(0.1), run(0.1, clip="ClipByNorm(1.0)")]
    for unknown in runs[:2]:
        unknown.per_step["val_accuracy"][:] = math.nan
    runs[1].per_step["loss"][-1] = runs[3].per_step["loss"][-1] = 0.5
    assert list(compare(runs)["policy"]) == ["ClipByNorm(1.0)", "ClipByGlobalNorm(1.0)", "none", "AGC(0.01)"]


@pytest.mark.parametrize(("said", "found"), [("2", {"lr": "2.0"}), ("3", {"lr": "2.0", "param lr": "3"})])
def test_a_number_written_in_two_ways_is_one_setting(said, found):
    told = run(0.8, lr=2.0)
    told = replace(told, run=replace(told.run, params={"lr": said}))
    assert settings([told, run(0.7, lr=0.1)])[0] == found


def test_so_few_settings_are_told_as_tell_runs_apart():
    kinds = [
        {"model": "a", "lr": lr, "data": "x", "steps": steps} for lr, steps in (("1", "9"), ("2", "9"), ("2", "3"))
    ]
    assert telling(kinds) == ["lr", "steps"]
    assert telling([{"model": "a", "lr": "1"}, {"model": "b", "lr": "2"}]) == ["model"]
    assert telling([{"lr": "1"}]) == telling([{}]) == telling([]) == []


def test_another_model_is_another_setting():
    table = compare([run(0.8), run(0.8, layers=("a", "b"))])
    assert list(table["model"]) == ["2 layers, 32 parameters", "7 layers, 112 parameters"]


def test_slices_of_a_tensor_are_no_other_model():
    def sized(history, **shapes):
        layers = tuple(Layer(name, shape) for name, shape in shapes.items())
        held = {"groups": [{"layers": ["a"]}, {"layers": [name for name in shapes if name != "a"]}]}
        optimizers = ({**history.run.optimizers[0], **held},)
        return replace(history, run=replace(history.run, layers=layers, optimizers=optimizers))

    whole, cut = sized(run(0.8), a=(4,), w=(4, 4)), sized(run(0.8), **{"a": (4,), "w[0]": (2, 4), "w[1]": (2, 4)})
    assert settings([whole, cut]) == [{"split": "none"}, {"split": "w"}]
    blocks = sized(run(0.8), a=(4,), **{f"h.{i}.w[{k}]": (2, 4) for i in range(12) for k in (0, 1)})
    assert settings([whole, blocks])[1]["split"] == "h.*.w (12)"


def test_a_diverged_run_is_counted_and_ranks_last():
    sick = run(0.99, clip=None)
    sick.per_step["nonfinite"][-1] = 7
    table = compare([sick, run(0.5)])
    assert list(table["diverged"]) == [0, 1]
    assert list(table["nonfinite_steps"]) == [0, 1]


def test_a_run_that_recovered_has_not_diverged():
    table = compare([make_history(steps=100, nan_at=50)])
    assert (table["nonfinite_steps"][0], table["diverged"][0]) == (1, 0)


def test_a_loss_that_ends_infinite_has_diverged():
    sick = run(0.9)
    sick.per_step["loss"][-1] = math.inf
    assert compare([sick])["diverged"][0] == 1
    assert final(sick, "loss") == math.inf


def test_a_run_that_ended_in_nan_has_no_final_value():
    sick = make_history(steps=220, clip=None)
    sick.per_step["nonfinite"][52:], sick.per_step["loss"][52:] = 7, math.nan
    sick.per_step["val_accuracy"][:] = np.where(sick.step == 219, 0.1, math.nan)
    assert np.isfinite(sick.total("loss")[51])
    assert math.isnan(final(sick, "loss"))
    assert final(sick, "val_accuracy") == 0.1  # measured afterwards, so it is what the run came to
    (summary,) = build_report([sick]).runs
    assert summary.lost_since == 52
    assert dict(facts(summary))["final loss"] == "inf or NaN (gradients since step 52)"


@pytest.mark.parametrize(("last", "lost"), [(3, None), (10, None), (11, 189)])
def test_a_few_steps_dropped_at_the_end_are_no_end(last, lost):
    history = make_history(steps=200)
    history.per_step["nonfinite"][-last:] = history.per_step["skipped"][-last:] = 1
    assert lost_since(history) == lost
    history.per_step["skipped"][-1] = 0
    assert lost_since(history) == 200 - last


def test_runs_too_short_to_judge_are_named_below_the_table():
    notes = settle([run(0.8), replace(make_history(steps=8), run=replace(run(0.8).run, name="brief"))]).notes
    assert "Fewer than 32 steps are too short to judge: mlp, brief." in notes


def test_metric_selects_and_an_unknown_one_is_named():
    assert [c for c in compare([run(0.8)], "loss").columns if c.endswith("_std")] == ["loss_std"]
    with pytest.raises(RunError, match="'speed'; logged: loss, val_accuracy"):
        compare([run(0.8)], "speed")


def test_accuracies_come_before_losses_and_held_out_before_training():
    history = make_history(steps=3, logged=("loss", "lr_scale", "train_acc", "eval/loss", "test_acc"))
    assert metric_names([history]) == ["test_acc", "train_acc", "eval/loss", "loss"]


def test_the_seed_is_no_setting_under_any_of_its_names():
    one, two = run(0.8), run(0.8)
    two = replace(two, run=replace(two.run, params={"seed": "1", "data_seed": "2", "train.random_state": "3"}))
    assert settings([one, two]) == [{}, {}]
    speedy = replace(two, run=replace(two.run, params={"seedling": "1"}))
    assert settings([one, speedy]) == [{"seedling": ""}, {"seedling": "1"}]


def test_a_setting_named_like_a_column_keeps_its_own():
    one, two = run(0.8), run(0.8)
    two = replace(two, run=replace(two.run, params={"policy": "fast"}))
    assert list(compare([one, two]).columns)[:2] == ["policy", "policy (setting)"]


def test_runs_that_the_loop_clips_otherwise_are_not_runs_of_one_policy():
    def clipped(by, clip=None, seed=0):
        history = run(0.5, clip=clip, seed=seed)
        limit = np.full(len(history), np.nan) if by is None else np.broadcast_to(by, len(history))
        return changed(history, per_step={**history.per_step, "user_max_norm": limit})

    def labels(*runs):
        return sorted(set(compare(list(runs))["policy"]))

    own = "clip_grad_norm_(max_norm={})"
    assert labels(clipped(0.01), clipped(5.0), clipped(5.0, seed=1)) == [own.format(0.01), own.format(5.0)]
    assert labels(clipped(None), clipped(5.0)) == [own.format(5.0), "none"]
    assert labels(clipped(1.0, "AGC(0.01)"), clipped(None, "AGC(0.01)")) == [
        "AGC(0.01)", f"AGC(0.01) + {own.format(1.0)}"
    ]  # fmt: skip
    assert labels(clipped(1.0), clipped(None, "AGC(0.01)")) == ["AGC(0.01)", "none"]  # told apart as it is
    moving = [clipped(np.linspace(1.0, top, 200)[: len(run(0.5))], seed=seed) for seed, top in enumerate((2.0, 3.0))]
    assert labels(*moving) == ["none"]


def test_the_constraint_is_part_of_the_policy():
    history = make_history(steps=3, renorm="MaxNorm(3.0)")
    assert policy_text(history.run) == "ClipByGlobalNorm(1.0) + MaxNorm(3.0)"
    assert policy_text(make_history(steps=3, clip=None).run) == "none"
    ((_, found),) = by_setting([history, make_history(steps=3)]).items()
    assert len(found) == 2


def test_a_clip_that_never_acted_is_named():
    still, other = run(0.8, rate=0), run(0.8, clip="ClipByNorm(1.0)")
    said = "The clip of ClipByGlobalNorm(1.0) never acted: it trained as without it."
    assert said in settle([still, other]).notes
    assert not any("never acted" in note for note in settle([run(0.8), other]).notes)
    skipped = changed(still, per_step={**still.per_step, "skipped": np.array([0.0, 1.0, 0.0, 0.0])})
    assert not any("never acted" in note for note in settle([skipped, other]).notes)


def test_runs_of_several_scripts_are_said_to_be():
    told = [
        settle(
            [
                replace(h, run=replace(h.run, command={"target": name}))
                for h, name in zip((run(0.8), run(0.9, seed=1)), names, strict=True)
            ]
        )
        for names in (("a.py", "b.py"), ("a.py", "a.py"))
    ]
    said = "Several scripts made these runs, and may differ by more than the policy: a.py, b.py."
    assert [said in comparison.notes for comparison in told] == [True, False]


def test_what_acted_in_one_setting_is_said_to_rest_in_the_others_only():
    still, acted = run(0.8, rate=0, lr=0.1), run(0.8, lr=2.0)
    others = [run(0.8, clip="ClipByNorm(1.0)", lr=lr) for lr in (0.1, 2.0)]
    notes = settle([still, acted, *others]).notes
    said = "The clip of ClipByGlobalNorm(1.0) never acted in 1 of 2 settings: it trained as without it."
    assert said in notes


def test_a_constraint_that_never_acted_is_named_by_its_runs_which_are_those_without_it():
    """What a constraint scaled back is recorded of some steps only, so that the norms and losses have to tell."""
    runs = [make_history(60, clip=None, params={"seed": str(seed)}, seed=seed) for seed in (0, 1)]
    held = [replace(history, run=replace(history.run, renorm="MaxNorm(9.0)")) for history in runs]
    said = "MaxNorm(9.0) changed nothing: its runs are those without it, to the bit."
    assert said in settle([*runs, *held]).notes
    norms = held[1].per_step["grad_norm"].copy()
    norms[40] = np.nextafter(norms[40], np.inf)
    acted = changed(held[1], per_step={**held[1].per_step, "grad_norm": norms})
    assert said not in settle([*runs, held[0], acted]).notes


def test_runs_of_which_no_two_policies_share_a_setting_are_said_not_to_be_judged():
    alone = settle([run(0.8, lr=0.1), run(0.9, lr=0.2, clip="ClipByNorm(1.0)")])
    assert any(note.startswith("No two policies share a setting here") for note in alone.notes)
    both = settle([run(0.8, lr=0.1), run(0.9, lr=0.1, clip="ClipByNorm(1.0)"), run(0.9, lr=0.2)])
    assert not any(note.startswith("No two policies") for note in both.notes)


def of_two_parts(ends, seed, clip):
    """A run of D and G, a loss each, which end where they are said to."""
    history = make_history(steps=40, clip=clip, params={"seed": str(seed)}, logged=("loss/D", "loss/G"))
    optimizers = tuple({"name": part, "class": "SGD", "settings": {"lr": 0.1}} for part in "DG")
    lane = np.where(np.arange(40) % 2 == 0, "D", "G").astype(object)
    given = {f"loss/{part}": np.where(lane == part, end, np.nan) for part, end in zip("DG", ends, strict=True)}
    history = changed(history, per_step={**history.per_step, **given}, optimizer=lane)
    return replace(history, run=replace(history.run, optimizers=optimizers))


def test_the_loss_of_a_part_says_nothing_of_a_policy_for_the_parts_may_be_rivals():
    runs = [of_two_parts((0.65 + seed / 100, 0.75), seed, None) for seed in range(3)]
    runs += [of_two_parts((0.18 + seed / 100, 2.15), seed, "ClipByGlobalNorm(0.01)") for seed in range(3)]
    found = settle(runs)
    assert [winner.policy for winner in found.winners] == [None]
    assert {*found.table["loss/D_verdict"]} == {"baseline", "not judged"}
    assert "loss/D is that of one of several parts" in found.winners[0].sentences[0]
    assert settle(runs, "loss/D").winners[0].policy == "ClipByGlobalNorm(0.01)"  # who names it means it


def test_runs_that_go_on_from_another_are_not_set_beside_those_that_began():
    runs = [run(accuracy, seed, clip=None) for seed, accuracy in enumerate((0.5, 0.51, 0.52))]
    on = [run(accuracy, seed) for seed, accuracy in enumerate((0.9, 0.91, 0.92))]
    assert settle(runs + on).winners[0].policy == "ClipByGlobalNorm(1.0)"
    on = [changed(history, step=history.step + 114) for history in on]
    found = settle(runs + on)
    assert {*found.table["val_accuracy_verdict"]} == {"baseline", "not judged"}
    winner = found.winners[0]
    assert (winner.policy, "from step 114 on" in winner.sentences[0]) == (None, True)


def test_an_interval_without_0_that_chance_may_explain_is_not_said_to_leave_it_open():
    near = {None: (0.50, 0.52, 0.54), "ClipByGlobalNorm(1.0)": (0.60, 0.64, 0.74), "AGC(0.01)": (0.4, 0.5, 0.7)}
    runs = [run(value, seed, clip=clip) for clip, values in near.items() for seed, value in enumerate(values)]
    (winner,) = settle(runs).winners
    assert "but among 3 policies one may lie so far ahead by chance (Holm)" in winner.sentences[0]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [("0", "12", True), ("trial", "12", True), ("hidden", "12", False), ("0", "ab", False), ("0", "11", False)],
)
def test_who_gives_a_seed_no_name_is_told_so(name, values, said):
    """Else each run is a setting of its own, and nothing is ever shown."""
    runs = [run(0.8 + i / 100, clip=clip) for i in range(2) for clip in ("ClipByGlobalNorm(1.0)", None)]
    runs = [
        replace(history, run=replace(history.run, params={f"args.{name}": values[i // 2], f"args.x{i}": "1"}))
        for i, history in enumerate(runs)
    ]
    notes = settle(runs).notes
    assert any(f"If args.{name} is the seed, call it that" in note for note in notes) == said
