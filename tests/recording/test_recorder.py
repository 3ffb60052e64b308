"""What is recorded equals what a float64 oracle computes from the gradients and weights themselves."""

import json
import math
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from training import ELEMENT_POLICIES, mlp, train, watch

import gradwatch
from gradwatch import GradwatchWarning, open_history
from gradwatch.analysis.final_values import diverged, was_nan
from gradwatch.analysis.rules import diagnose
from gradwatch.measure.distributed import add_up
from gradwatch.measure.gradients import Batch, gradients
from gradwatch.measure.layout import SAMPLE, Layout, stride
from gradwatch.measure.weight_updates import UpdateRatio
from gradwatch.recording import recorder
from gradwatch.recording.blocks import history as history_of_rows
from gradwatch.sanitize import MAX_LOGGED, MAX_LOGGED_NAME
from gradwatch.storage import compaction
from gradwatch.storage.folder import list_parts

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def norms(tensors):
    return [t.detach().double().norm().item() for t in tensors]


@pytest.mark.parametrize("clip", [None, "ClipByGlobalNorm(0.1)", "ClipByNorm(0.05)", *ELEMENT_POLICIES], ids=repr)
def test_norms_coefficients_and_updates_of_a_real_training(clip, tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    params, want = list(model.parameters()), []

    def before(model):
        want.append({"grad_norm": norms(p.grad for p in params), "before": [p.detach().clone() for p in params]})

    def after(model, loss):
        row = want[-1]
        row["clipped_norm"] = norms(p.grad for p in params)
        row["weight_norm"] = norms(params)
        row["update_ratio"] = [
            ((p - b).double().norm() / b.double().norm()).item() for p, b in zip(params, row.pop("before"), strict=True)
        ]
        row["loss"] = loss.item()
        handle.log(loss=loss)

    with watch(model, optimizer, tmp_path, clip=clip, every=3) as handle:
        train(model, optimizer, 20, before_step=before, after_step=after, dtype=torch.float32)
    history = gradwatch.open_history(handle.dir)

    assert history.layers == NAMES
    assert history.step.tolist() == list(range(20))
    oracle = {q: np.array([row[q] for row in want]) for q in want[0]}
    np.testing.assert_allclose(history.layer("grad_norm"), oracle["grad_norm"], rtol=1e-6)
    np.testing.assert_allclose(history.layer("clipped_norm"), oracle["clipped_norm"], rtol=1e-5)
    np.testing.assert_allclose(history.layer("clip_coef"), oracle["clipped_norm"] / oracle["grad_norm"], rtol=1e-5)
    for quantity in ("weight_norm", "update_ratio"):
        np.testing.assert_allclose(history.layer(quantity)[::3], oracle[quantity][::3], rtol=1e-5)
        assert np.isnan(np.delete(history.layer(quantity), range(0, 20, 3), axis=0)).all()
    changed = ~np.isclose(oracle["clipped_norm"], oracle["grad_norm"], rtol=1e-7, atol=0)
    np.testing.assert_array_equal(history.layer("clip_rate") > 0, changed)
    np.testing.assert_allclose(history.clip_rate, changed.mean(axis=0))
    np.testing.assert_allclose(history.total("grad_norm"), np.linalg.norm(oracle["grad_norm"], axis=1), rtol=1e-6)
    np.testing.assert_allclose(history.total("clipped_norm"), np.linalg.norm(oracle["clipped_norm"], axis=1), rtol=1e-5)
    np.testing.assert_array_equal(history.total("clip_rate") > 0, changed.any(axis=1))
    np.testing.assert_allclose(history.total("loss"), oracle["loss"], rtol=1e-6)
    assert (history.total("lr") == 0.5).all()


def test_clip_fraction_is_the_share_of_elements_changed(tmp_path):
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip="ClipByValue(1.0)") as handle:
        model.weight.grad = torch.tensor([[3.0, 0.5, -4.0, -1.0]])
        optimizer.step()
    history = gradwatch.open_history(handle.dir)
    assert history.layer("clip_fraction").item() == 0.5
    assert history.layer("clipped_norm").item() == pytest.approx(math.sqrt(3.25))


def test_renorm_rate_is_the_share_of_units_scaled_back(tmp_path):
    model = nn.Linear(2, 4)
    model.weight.data = torch.tensor([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0], [0.0, 0.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, tmp_path, renorm="MaxNorm(1.0)") as handle:
        model.weight.grad = torch.zeros(4, 2)
        optimizer.step()
    history = gradwatch.open_history(handle.dir)
    assert history.layer("renorm_rate")[0, 0] == 0.5
    assert np.isnan(history.layer("renorm_rate")[0, 1])  # a bias has no units
    torch.testing.assert_close(model.weight.norm(dim=1), torch.tensor([1.0, 0.5, 1.0, 0.0]))


def test_max_norm_acts_on_the_incoming_weights_of_each_unit(tmp_path):
    model = nn.ModuleDict({"linear": nn.Linear(8, 3), "conv": nn.Conv2d(4, 5, 3), "embed": nn.Embedding(6, 7)})
    for p in model.parameters():
        p.data.mul_(50)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, renorm="MaxNorm(2.0)"):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    for p in (model["linear"].weight, model["conv"].weight, model["embed"].weight):
        torch.testing.assert_close(p.flatten(1).norm(dim=1), torch.full((len(p),), 2.0))


def test_slots_are_the_norms_of_what_the_optimizer_keeps(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.Adam(model.parameters())
    with watch(model, optimizer, tmp_path, slots=True, every=4) as handle:
        train(model, optimizer, 5, dtype=torch.float32)
    history = gradwatch.open_history(handle.dir)
    for name in ("exp_avg", "exp_avg_sq"):
        want = norms(optimizer.state[p][name] for p in model.parameters())
        np.testing.assert_allclose(history.layer(f"slot_norm/{name}")[4], want, rtol=1e-6)
    assert not [q for q in history.per_layer if q.endswith("/step")]


@pytest.mark.parametrize("shape", [(3,), (64, 64), (300, 784), (4096, 64), (512, 256, 3, 3), (70_001,)])
def test_the_update_ratio_of_a_sample_is_within_a_few_percent(shape):
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(shape))
    layout = Layout({"w": p})
    ratio = UpdateRatio(layout)
    assert ratio._samples.sizes[0] <= SAMPLE
    for _ in range(2):  # the buffers serve again
        with torch.no_grad():
            ratio.before()
            delta = 1e-3 * torch.randn(shape)
            p += delta
        want = (delta.norm() / (p - delta).norm()).item()
        assert add_up(ratio.after(), None)["update_ratio"].item() == pytest.approx(
            want, rel=1e-4 if p.numel() <= SAMPLE else 0.05
        )


def test_layers_that_are_normed_side_by_side_keep_their_own_ratios():
    """Layers whose samples have one size are normed by one kernel, whatever lies between them in the model."""
    torch.manual_seed(0)
    params = {f"{i}.{shape}": nn.Parameter(torch.randn(shape)) for i in range(9) for shape in ((4, 3), (5,), (2, 6))}
    ratio = UpdateRatio(Layout(params))
    assert len(ratio._samples._blocks) == 2
    was = []
    for _ in range(4):
        ratio.before()
        before = [p.detach().clone() for p in params.values()]
        with torch.no_grad():
            for p in params.values():
                p.add_(torch.randn_like(p), alpha=1e-3)
        found = add_up(ratio.after(), None)
        moved = [((p - b).norm() / b.norm()).item() for p, b in zip(params.values(), before, strict=True)]
        np.testing.assert_allclose(found["update_ratio"], moved, rtol=1e-4)
        if was:
            away = [((b - w).norm() / b.norm()).item() for w, b in zip(was, before, strict=True)]
            np.testing.assert_allclose(found["displacement"], away, rtol=1e-4)
        was = before


def test_the_displacement_is_between_two_measurements_whatever_happened_there():
    p, other = nn.Parameter(torch.tensor([3.0, 4.0])), nn.Parameter(torch.ones(2, dtype=torch.float64))
    ratio = UpdateRatio(Layout({"w": p, "other": other}))
    found = []
    for step, back in ((0.5, False), (1.0, True), (2.0, True), (4.0, False)):
        ratio.before()
        was = p.detach().clone()
        with torch.no_grad():
            p[0] += step
        found.append(add_up(ratio.after(), None))
        if back:
            p.data = was
    assert "displacement" not in found[0]  # there is none before
    # 3.5 against 3; put back twice: still there
    assert [values["displacement"][0].item() for values in found[1:]] == [
        pytest.approx(0.5 / math.hypot(3.5, 4)), 0, 0]  # fmt: skip
    assert found[3]["update_ratio"][0].item() == pytest.approx(4 / math.hypot(3.5, 4))
    assert not torch.stack([values["displacement"][1] for values in found[1:]]).any()


def test_a_run_records_the_displacement_from_its_second_measurement_on(tmp_path):
    p = nn.Parameter(torch.tensor([3.0, 4.0]))
    model = nn.ParameterList([p])
    optimizer = torch.optim.SGD([p], lr=1.0)
    with watch(model, optimizer, tmp_path, every=2) as handle:
        for _ in range(5):
            p.grad = torch.tensor([-1.0, 0.0])
            optimizer.step()
    want = [np.nan, np.nan, 2 / math.hypot(5, 4), np.nan, 2 / math.hypot(7, 4)]
    found = gradwatch.open_history(handle.dir).layer("displacement")[:, 0]
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_the_sample_visits_every_column():
    """A stride of 256 on [4096, 4096] would see 16 columns, and report 0 when the others move."""
    columns = torch.arange(0, 4096 * 4096, stride(4096 * 4096)) % 4096
    assert len(columns.unique()) > 4000


def test_a_layer_without_a_gradient_is_absent_not_zero(tmp_path):
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.001)") as handle:
        for _ in range(3):
            optimizer.zero_grad()
            model["used"](torch.ones(1, 2)).sum().backward()
            optimizer.step()
    frame = gradwatch.open_history(handle.dir).to_frame()
    unused = frame[frame.layer.astype(str).str.startswith("unused")]
    assert unused[["grad_norm", "clip_coef", "clip_rate", "nonfinite"]].isna().all().all()
    assert frame[frame.layer == "used.weight"].clip_rate.eq(1).all()


def test_a_nan_is_counted_and_kept_and_told_from_an_absence(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def poison(model):
        if handle._stepper.steps == 2:
            model[0].weight.grad[0, 0] = math.nan
            model[2].bias.grad[0] = math.inf

    with watch(model, optimizer, tmp_path, clip="SkipNonfinite()") as handle:
        train(model, optimizer, 5, before_step=poison, dtype=torch.float32)
    history = gradwatch.open_history(handle.dir)
    assert history.nonfinite.tolist() == [1, 0, 0, 1]
    assert np.isnan(history.layer("grad_norm")[2, 0])
    assert np.isinf(history.layer("grad_norm")[2, 3])
    assert history.total("skipped").tolist() == [0, 0, 1, 0, 0]
    assert history.total("nonfinite").tolist() == [0, 0, 2, 0, 0]
    assert history.layer("clip_coef")[2].tolist() == [0, 0, 0, 0]  # nothing of this step reached the weights
    assert history.total("clipped_norm")[2] == 0


def test_the_frame_is_tidy_and_in_model_order(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 3)
    frame = gradwatch.open_history(handle.dir).to_frame()
    assert frame.layer.tolist() == list(NAMES) * 3
    assert frame.step.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert {"grad_norm", "clip_coef", "clipped_norm", "clip_rate", "nonfinite", "weight_norm", "update_ratio"} <= {
        *frame
    }
    parts = pd.read_parquet(handle.dir / "layers")
    np.testing.assert_array_equal(parts.grad_norm, frame.grad_norm)


def test_layers_and_ignore_choose_what_is_recorded_not_what_is_clipped(tmp_path):
    def run(**options):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with watch(model, optimizer, tmp_path, clip="ClipByGlobalNorm(0.1)", **options) as handle:
            train(model, optimizer, 5)
        return gradwatch.open_history(handle.dir), model

    history, model = run(layers=("*.weight",), ignore=("2.*",))
    everything, same = run()
    assert history.layers == ("0.weight",)
    np.testing.assert_array_equal(history.total("grad_norm"), everything.total("grad_norm"))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))


def test_a_nan_that_is_logged_is_told_from_a_step_without_a_value(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    values = [1.0, math.nan, None, torch.tensor(math.nan), math.inf, (math.nan, 2.0), math.nan]
    with watch(model, optimizer, tmp_path) as handle:
        for value in values:
            train(model, optimizer, 1, dtype=torch.float32)
            for each in value if isinstance(value, tuple) else () if value is None else (value,):
                handle.log(loss=each)
            handle._drain()  # what is logged for the last step of a block leaves after it
    history = open_history(handle.dir)
    assert history.logged == ("loss",)
    assert was_nan(history, "loss").tolist() == [False, True, False, True, False, False, True]
    assert diverged(history)
    (found,) = [f for f in diagnose(history) if f.rule == "nonfinite"]
    assert (found.evidence["metric"], found.evidence["steps"], found.first_step) == ("loss", 4, 1)


def test_what_is_logged_belongs_to_the_last_step_taken(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = torch.zeros(())

    def after(model, loss):
        step = handle._stepper.steps - 1
        total.add_(1)  # changed in place after it was logged: the record keeps the value of that moment
        handle.log(running=total, half=np.float32(step / 2))
        if step % 10 == 9:
            handle.log(val_accuracy=step / 100, half=-1)

    with watch(model, optimizer, tmp_path) as handle:
        handle.log(before_training=7.0)
        train(model, optimizer, 300, after_step=after)
    history = gradwatch.open_history(handle.dir)
    np.testing.assert_array_equal(history.total("running"), np.arange(1, 301))
    assert history.total("val_accuracy")[9] == 0.09
    assert np.isnan(history.total("val_accuracy")[10])
    assert history.total("half")[8:10].tolist() == [4, -1]
    assert history.total("before_training")[0] == 7.0


def test_the_last_value_of_a_name_counts_whatever_it_is(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 1)
        handle.log(a=torch.tensor(1.0), b=1.0)
        handle.log(a=2.0, b=torch.tensor(2.0))
    history = gradwatch.open_history(handle.dir)
    assert (history.total("a").item(), history.total("b").item()) == (2.0, 2.0)


def test_a_checkpoint_has_its_past_on_disk_and_loses_no_late_value(tmp_path):
    """state_dict() hands over all steps; one that is logged for later is handed over again, with that."""

    def after(model, loss):
        handle.log(loss=loss, number=float(handle._stepper.steps))
        if handle._stepper.steps in (10, 11):
            handle.state_dict()
        handle.log(late=loss * 2)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = watch(model, optimizer, tmp_path, every=5, flush_every=1000.0)  # no drain by the clock
    drained = []
    handle._recorder.sink = lambda block: (drained.append(len(block)), handle._writer.append(block))
    train(model, optimizer, 20, after_step=after)
    assert drained == [1, 1, 9, 1, 1]  # the first at once, then with `late`; nine; the tenth with `late`; one
    handle.close()
    history = gradwatch.open_history(handle.dir)
    assert history.step.tolist() == list(range(20))
    assert history.total("number").tolist() == list(range(1, 21))
    np.testing.assert_allclose(history.total("late"), 2 * history.total("loss"), rtol=1e-6)
    assert np.isfinite(history.layer("weight_norm")[::5]).all()
    assert np.isfinite(history.layer("grad_norm")).all()


def test_learning_rates_are_those_the_step_used(tmp_path):
    model = mlp()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 1.0}]
    optimizer = torch.optim.SGD(groups)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 3, after_step=lambda *_: schedule.step())
    history = gradwatch.open_history(handle.dir)
    assert history.total("lr").tolist() == [0.1, 0.05, 0.025]
    assert history.total("lr/1").tolist() == [1.0, 0.5, 0.25]


def test_a_learning_rate_that_is_a_tensor_is_recorded_without_reading_it(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25))
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 3, dtype=torch.float32)
    assert gradwatch.open_history(handle.dir).total("lr").tolist() == [0.25] * 3


def test_the_manifest_says_what_ran(tmp_path):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with watch(
        model,
        optimizer,
        tmp_path,
        clip="ClipByNorm(1)",
        renorm="MaxNorm(3)",
        run_name="my run",
        total_steps=900,
        tags={"team": "x"},
        params={"seed": 3},
    ) as handle:
        train(model, optimizer, 2)
    run = json.loads((handle.dir / "run.json").read_text())
    assert handle.dir.name.endswith("-my-run")
    assert (run["clip"], run["renorm"], run["window"]) == ("ClipByNorm(1.0)", "MaxNorm(3.0)", 3)
    assert run["optimizers"][0]["class"] == "AdamW"
    assert run["optimizers"][0]["settings"]["lr"] == 0.1
    assert (run["tags"], run["params"]["seed"], run["status"]) == ({"team": "x"}, "3", "FINISHED")
    assert [layer["name"] for layer in run["layers"]] == list(NAMES)
    assert "Linear" in (handle.dir / "model.txt").read_text()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("p", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("shape", [(4096, 4096), (1_000_000, 16), (16_000_000,), (16, 1_000_000), (3, 5_000_000)])
def test_the_norm_of_a_large_layer_loses_no_digits(threads, p, shape):
    """Torch's own norm of so many equal elements is 1 % low on a CPU: it adds up in float32, from end to end."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weight = nn.Parameter(torch.full(shape, 0.1))
        weight.grad = weight.detach().clone()
        want = torch.linalg.vector_norm(weight.grad.double(), p)
        torch.testing.assert_close(
            gradwatch.global_norm([weight], p).double(), want, rtol=1e-4 if p == 1 else 2e-5, atol=0
        )
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [100, 300, 1_000])
def test_gradients_of_very_different_sizes_lose_no_digits_on_one_thread(rows):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.zeros(rows, 900))
        weight.grad = torch.randn(rows, 900) * torch.rand(rows, 900) ** 8
        want = torch.linalg.vector_norm(weight.grad.double())
        torch.testing.assert_close(gradwatch.global_norm([weight]).double(), want, rtol=4e-6, atol=0)
    finally:
        torch.set_num_threads(before)


def test_wide_and_narrow_layers_keep_their_places(monkeypatch):
    monkeypatch.setattr("gradwatch.measure.row_length.SUM_IN_ROWS", 600)
    monkeypatch.setattr("gradwatch.measure.row_length.WIDE", 600)
    monkeypatch.setattr("gradwatch.measure.row_length.SHORTEST_ROW", 20)
    torch.manual_seed(0)
    shapes = [(3, 2), (10, 80), (700,), (4, 10, 5, 5), (12, 70), ()]
    params = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    params[4].grad = torch.randn(70, 12).t()  # without rows that lie in one piece
    layout = Layout({str(i): p for i, p in enumerate(params)})
    assert layout.wide == {1: 50, 2: 50, 3: 50, 4: 56}
    norms = Batch(layout, gradients(layout)).measure()
    torch.testing.assert_close(norms, torch.stack([p.grad.norm() for p in params]))


# -------------------------------------------------------------------------------------------- what can be read back


@pytest.mark.parametrize(
    ("name", "says"),
    [("x" * 251, "a name of 251 characters; wanted at most 250"), ("x" * 30_000, "30,000 characters"),
     ("\ud800x", r"'\\ud800x' is a name.*UTF-8")],
)  # fmt: skip
def test_a_name_that_the_reader_refuses_is_left_out_where_it_is_logged(tmp_path, name, says):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, tmp_path)
    train(model, optimizer, 2)
    with pytest.warns(GradwatchWarning, match=says):
        watching.log(**{name: 1.0})
    train(model, optimizer, 2)
    watching.close()
    assert open_history(watching.dir).step.tolist() == [0, 1, 2, 3]


class Own(torch.Tensor):
    """Numbers like any others, under a name of their own, as a library of images has it."""


def test_a_tensor_of_a_class_of_its_own_is_recorded_and_one_without_numbers_left_out(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with FakeTensorMode():
        fake = torch.ones(())
    with watch(model, optimizer, tmp_path) as watching:
        train(model, optimizer, 1)
        with pytest.warns(
            GradwatchWarning, match="fake cannot be recorded.* it is a FakeTensor; wanted a plain tensor"
        ):
            watching.log(own=torch.ones(()).as_subclass(Own), fake=fake, weight=nn.Parameter(torch.ones(1)))
    assert open_history(watching.dir).logged == ("own", "weight")


def test_as_many_names_as_can_be_logged_can_be_read_and_one_more_is_refused(tmp_path):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching = watch(model, optimizer, tmp_path)
    names = [f"{i:04d}" + "\N{SNOWMAN}" * (MAX_LOGGED_NAME - 4) for i in range(MAX_LOGGED)]
    train(model, optimizer, 1)
    watching.log(**dict.fromkeys(names[:2000], 1.0))
    watching.state_dict()
    train(model, optimizer, 1)
    watching.log(**dict.fromkeys(names[2000:], 2.0))
    watching.log(**dict.fromkeys(names[:10], 2.0))
    with pytest.warns(GradwatchWarning, match="4,001 names in this run, of which 4,000 can be read back: log under"):
        watching.log(one_more=1.0)
    watching.close()
    for parts in ("apart", "merged"):
        history = open_history(watching.dir)
        assert (history.step.tolist(), history.problems, len(history.logged)) == ([0, 1], (), MAX_LOGGED), parts
        assert compaction.merge(list_parts(watching.dir / "steps"))


# ------------------------------------------------------------------------------------------------ who does numpy's part


def test_what_numpy_does_with_the_rows_is_done_by_the_thread_that_writes(tmp_path, monkeypatch):
    made = []

    def noted(*arguments):
        made.append((threading.current_thread().name, len(arguments[3])))
        return history_of_rows(*arguments)

    monkeypatch.setattr(recorder, "history", noted)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = watch(model, optimizer, tmp_path, flush_every=0.01, clip="ClipByGlobalNorm(0.1)")
    train(model, optimizer, 200, after_step=lambda _, loss: handle.log(loss=loss))
    handle.close()
    assert {name for name, _ in made} == {"gradwatch-writer"}
    assert sum(rows for _, rows in made) == 200  # each once
    assert gradwatch.open_history(handle.dir).step.tolist() == list(range(200))


def test_a_block_that_cannot_be_made_costs_its_own_steps_alone(tmp_path, monkeypatch, caplog):
    def failing(*arguments):
        if arguments[3][0].step == 10:
            raise ValueError("of these rows")
        return history_of_rows(*arguments)

    monkeypatch.setattr(recorder, "history", failing)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = watch(model, optimizer, tmp_path, flush_every=1000.0)
    for start in (0, 10, 20):
        train(model, optimizer, 10, seed=start)
        handle._drain()
    handle.close()
    assert gradwatch.open_history(handle.dir).step.tolist() == [*range(10), *range(20, 30)]
    assert "10 steps from 10 on cannot be written: ValueError('of these rows')" in caplog.text


def test_the_last_rows_are_kept_at_hand_for_who_asks_for_them_alone(tmp_path):
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        train(model, optimizer, 2, dtype=torch.float32)
        assert handle._recorder.recent is None
        handle._recorder.remember()
        train(model, optimizer, 3, dtype=torch.float32)
        assert [seen.step for seen in handle._recorder.remember().read(0)] == [2, 3, 4]
