"""Now and then the loss that backward is called on is looked at: its numbers come with the row of their step."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import gradwatch
from gradwatch.analysis.rules.gradient_scale import gradients_accumulate
from gradwatch.analysis.rules.no_gradient import no_gradient
from gradwatch.recording.loss_targets import MOST_LOSSES, MOST_MISSES

X, Y = torch.randn(16, 6), torch.arange(16) % 4


def trained(folder, loss_of, steps=60, net=None, between=None, **options):
    """The History of a net under `loss_of(net, step)`, and how often backward was torch's own as a step began."""
    net, torchs, own = net or nn.Linear(6, 4), torch.autograd.backward, 0
    optimizer = optim.SGD(net.parameters(), 0.1)
    watch = gradwatch.watch(net, optimizer, log=None, dir=folder, verbose=False, **options)
    with watch:
        for step in range(steps):
            own += torch.autograd.backward is torchs
            optimizer.zero_grad()
            loss_of(net, step).backward()
            if between:
                between(net)
            optimizer.step()
    assert torch.autograd.backward is torchs
    return gradwatch.open_history(watch.dir), own


def entropy(net, step):
    return F.cross_entropy(net(X), Y.roll(step))


def looked_at(history, name="target_mean"):
    return history.step[np.isfinite(history.total(f"in_loss/{name}"))].tolist()


def test_it_is_the_first_step_and_one_after_each_measured_one(tmp_path):
    history, own = trained(tmp_path, entropy)
    assert looked_at(history) == [0, 11, 21, 31, 41, 51]
    assert own == 60 - 6
    assert history.total("in_loss/target_top_share")[0] == 0.25
    assert history.logged == ()  # what gradwatch records itself


def test_a_watch_that_begins_within_the_first_step_looks_again_in_the_second(tmp_path):
    """As under `gradwatch run`, which finds the optimizer when its first backward is done."""
    net = nn.Linear(6, 4)
    optimizer = optim.SGD(net.parameters(), 0.1)
    entropy(net, 0).backward()
    with gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False) as watch:
        optimizer.step()
        for step in range(1, 40):
            optimizer.zero_grad()
            entropy(net, step).backward()
            optimizer.step()
    assert looked_at(gradwatch.open_history(watch.dir)) == [1, 11, 21, 31]


def test_a_factor_of_the_loss_is_told_where_nobody_takes_it_out_of_the_gradients(tmp_path):
    def scaled(net, step):
        return 1024 * entropy(net, step)

    def unscaled(net):
        for p in net.parameters():
            p.grad /= 1024

    history, _ = trained(tmp_path / "left", scaled, clip="ClipByGlobalNorm(0.1)")
    assert history.total("in_loss/factor")[looked_at(history)].tolist() == [1024] * 6
    for name, loss_of, between in [("out", scaled, unscaled), ("none", entropy, None)]:
        history, _ = trained(tmp_path / name, loss_of, between=between)
        assert looked_at(history, "factor") == []

    def clipped(net):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    history, _ = trained(tmp_path / "clipped", scaled, between=clipped)
    assert looked_at(history, "factor") == looked_at(history)
    for name, between in [("before", (unscaled, clipped)), ("after", (clipped, unscaled))]:
        history, _ = trained(tmp_path / name, scaled, between=lambda net, those=between: [each(net) for each in those])
        assert looked_at(history, "factor") == []
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    history, _ = trained(tmp_path / "scaler", lambda net, step: scaler.scale(entropy(net, step)))
    assert history.total("in_loss/factor")[0] == 2**12


@pytest.mark.parametrize(("parts", "divided", "said"), [(8, 0, [8.0]), (8, 8, []), (8, 1, [8.0]), (1, 0, [])])
def test_passes_that_are_added_up_are_counted_where_their_losses_are_not_divided(parts, divided, said, tmp_path):
    def loss_of(net, step):
        losses = [entropy(net, step + part) for part in range(parts)]
        losses = [loss / divided for loss in losses] if divided else losses
        for loss in losses[:-1]:
            loss.backward()
        return losses[-1]

    def divide(net):
        for p in net.parameters():
            p.grad.div_(parts)

    apart, _ = trained(tmp_path / "divided", loss_of, between=divide)
    assert looked_at(apart, "summed") == []
    history, _ = trained(tmp_path / "plain", loss_of)
    assert [*{*history.total("in_loss/summed")[np.isfinite(history.total("in_loss/summed"))].tolist()}] == said
    assert looked_at(history, "summed") == (looked_at(history) if said else [])
    assert {*history.total("in_loss/passes")[looked_at(history)].tolist()} == {float(parts)}


def test_they_become_ever_rarer(tmp_path):
    history, _ = trained(tmp_path, entropy, steps=1000, every=1)
    steps = looked_at(history)
    assert steps[:12] == [*range(12)]
    assert 30 < len(steps) < 70
    assert 1.05 < steps[-1] / steps[-2] < 1.15


def test_of_a_loss_that_torch_does_not_know_it_is_soon_given_up(tmp_path):
    history, own = trained(tmp_path, lambda net, _: net.weight.exp().mean(), net=nn.Linear(6, 4, bias=False))
    assert looked_at(history) == []
    assert own == 60 - MOST_MISSES


def test_the_layer_of_what_is_flat_inside_is_one_of_the_recorded_ones(tmp_path):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 4))
    net[2].bias = nn.Parameter(torch.full((5,), 50.0))
    net[0].weight.requires_grad_(False)
    history, _ = trained(tmp_path, lambda net, _: net(X).exp().mean(), net=net)
    assert looked_at(history, "saturated") == [0, 11, 21, 31, 41, 51], "of a loss of its own, too"
    assert history.total("in_loss/saturated")[0] == 1
    at = history.total("in_loss/layer_of/saturated")
    assert {history.layers[int(place)] for place in at[np.isfinite(at)]} == {"2.weight"}


def test_other_losses_may_come_first_and_so_many_of_them(tmp_path):
    other = torch.ones(2, requires_grad=True)

    def after_others(net, step):
        for _ in range(MOST_LOSSES - 1 + (step == 11)):
            other.square().sum().backward()
        return entropy(net, step)

    assert looked_at(trained(tmp_path, after_others)[0]) == [0, 21, 31, 41, 51]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_gradients_that_are_gone_when_backward_is_called_again_are_counted(inside, set_to_none, tmp_path):
    net = nn.Linear(6, 4)
    optimizer = optim.SGD(net.parameters(), 0.1)
    watch = gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False)
    with watch:
        for step in range(20):
            optimizer.zero_grad(set_to_none=set_to_none)
            for part in range(4):
                if inside:
                    optimizer.zero_grad(set_to_none=set_to_none)
                (entropy(net, 4 * step + part) / 4).backward()
            optimizer.step()
    history = gradwatch.open_history(watch.dir)
    assert looked_at(history, "dropped") == ([0, 11] if inside and set_to_none else [])  # of zeros nothing is known
    assert np.nanmax(history.total("in_loss/dropped"), initial=0) == (3 if inside and set_to_none else 0)


@pytest.mark.parametrize(("written", "wiped"), [("by a clip", 3), ("by hand", 0), ("by a scaler", 3)])
def test_gradients_that_are_put_together_by_hand_are_not_wiped_but_by_a_clip_they_are(written, wiped, tmp_path):
    net = nn.Linear(6, 4)
    optimizer = optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=written == "by a scaler")
    with gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False) as watch:
        for step in range(3):
            for part in range(4):
                optimizer.zero_grad()
                scaler.scale(entropy(net, 4 * step + part)).backward()
            if written == "by a clip":
                nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            if written == "by hand":
                for p in net.parameters():
                    p.grad.copy_(p.grad.sign())
            if scaler.is_enabled():
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert np.nanmax(gradwatch.open_history(watch.dir).total("in_loss/dropped"), initial=0) == wiped


@pytest.mark.parametrize(("other", "wiped"), [(False, 9), (True, 0)])
def test_backward_passes_that_an_epoch_wipes_all_at_once_are_counted_one_by_one(other, wiped, tmp_path):
    net = nn.Linear(6, 4)
    trained = copy.deepcopy(net) if other else net  # the other nine of each ten passes are of another model
    optimizer = optim.SGD(net.parameters(), 0.1)
    with gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False) as watch:
        for step in range(200):
            if step % 10 == 0:  # an epoch begins
                optimizer.zero_grad()
            (entropy(net if step % 10 == 0 else trained, step) / 16).backward()
            if step % 10 == 0:
                optimizer.step()
                optimizer.zero_grad()
    dropped = gradwatch.open_history(watch.dir).total("in_loss/dropped")
    assert np.nanmax(dropped, initial=0) == wiped


def play(folder, clears, set_to_none, steps=40):
    """Two optimizers in turn, `maker` through `judge`; the judge's gradients are cleared where it `clears`."""
    net = nn.ModuleDict({"maker": nn.Linear(6, 4), "judge": nn.Linear(4, 1)})
    maker, judge = (optim.SGD(net[name].parameters(), 0.01) for name in net)
    with gradwatch.watch(net, [maker, judge], log=None, dir=folder, verbose=False) as watch:
        for step in range(steps):
            if clears == "before":
                judge.zero_grad(set_to_none=set_to_none)
            net["judge"](net["maker"](X.roll(step, 0)).detach()).square().mean().backward()
            judge.step()
            if clears == "after":
                judge.zero_grad(set_to_none=set_to_none)
                net["judge"].requires_grad_(False)
            maker.zero_grad(set_to_none=set_to_none)
            net["judge"](net["maker"](X)).mean().backward()
            maker.step()
            net["judge"].requires_grad_(True)
    return gradwatch.open_history(watch.dir)


@pytest.mark.filterwarnings("ignore:the watched optimizers do not step together")
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("clears", ["before", "after", "never"])
def test_gradients_that_are_never_cleared_are_told_from_those_that_another_backward_leaves(
    clears, set_to_none, tmp_path
):
    lanes = play(tmp_path, clears, set_to_none).lanes()
    kept = {name: np.nanmax(lane.total("in_loss/never_cleared"), initial=0) for name, lane in lanes.items()}
    assert kept == {"SGD.0": 0, "SGD.1": 1 if clears == "never" else 0}
    found = [f.evidence for lane in lanes.values() for f in gradients_accumulate(lane)]
    assert [evidence["share_of_layers"] for evidence in found] == ([1] if clears == "never" else [])


def test_gradients_that_are_made_by_hand_beside_the_backward_of_another_model_are_no_sum(tmp_path):
    """As of weights of examples, which are learnt from what they do to another model."""
    net, own = nn.Linear(6, 4), nn.Linear(6, 1)
    of_net, of_own = (optim.SGD(each.parameters(), 0.01) for each in (net, own))
    watch = gradwatch.watch(own, of_own, log=None, dir=tmp_path, verbose=False)
    with watch:
        for step in range(40):
            of_own.zero_grad()
            for p, slope in zip(
                own.parameters(), torch.autograd.grad(own(X).square().mean(), [*own.parameters()]), strict=True
            ):
                p.grad = slope
            of_own.step()
            of_net.zero_grad()
            net(X.roll(step, 0)).square().mean().backward()
            of_net.step()
    history = gradwatch.open_history(watch.dir)
    assert np.nanmax(history.total("in_loss/never_cleared"), initial=0) == 0
    assert gradients_accumulate(history) == []


@pytest.mark.filterwarnings("ignore:the watched optimizers do not step together")
@pytest.mark.parametrize("turns", [(1, 1), (5, 1), (4, 1), (1, 3)])
def test_of_optimizers_that_step_in_turn_each_is_looked_at_and_its_weights_are_measured(turns, tmp_path):
    nets = nn.ModuleList([nn.Linear(6, 4), nn.Linear(6, 4)])
    optimizers = [optim.SGD(net.parameters(), 0.1) for net in nets]
    with gradwatch.watch(nets, optimizers, log=None, dir=tmp_path, verbose=False) as watch:
        for step in range(60):
            for net, optimizer, count in zip(nets, optimizers, turns, strict=True):
                for _ in range(count):
                    optimizer.zero_grad()
                    before = net.weight.detach().clone()
                    entropy(net, step).backward()
                    optimizer.step()
    for lane, net in zip(("SGD.0", "SGD.1"), nets, strict=True):
        history = gradwatch.open_history(watch.dir).lanes()[lane]
        assert len(looked_at(history)) >= 4
        ratio = history.layer("update_ratio")[:, history.layers.index(f"{lane[-1]}.weight")]
        assert np.isfinite(ratio).sum() >= 6, "one in ten of its own steps"
        if net is nets[1] and np.isfinite(ratio[-1]):
            assert ratio[-1] == pytest.approx(float((net.weight - before).norm() / before.norm()), rel=1e-4)


@pytest.mark.parametrize(("own", "kept"), [(0, 1), (1, 0.5), (2, 0)])
def test_the_share_of_the_layers_that_are_never_cleared_is_told(own, kept, tmp_path):
    net = nn.Linear(6, 4)
    optimizer = optim.SGD(net.parameters(), 0.01)
    with gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False) as watch:
        for step in range(20):
            for p in [*net.parameters()][:own]:
                p.grad = None
            for part in range(2):
                entropy(net, step + part).backward()
            optimizer.step()
    history = gradwatch.open_history(watch.dir)
    assert looked_at(history, "never_cleared") == ([11] if kept else []), "before the first step there is nothing"
    assert np.nanmax(history.total("in_loss/never_cleared"), initial=0) == kept


def attacked(net, optimizer):
    x = X.clone().requires_grad_()
    for _ in range(5):  # Madry et al., arXiv:1706.06083
        optimizer.zero_grad()
        F.cross_entropy(net(x), Y).backward()
        x = (x.detach() + 0.01 * x.grad.sign()).requires_grad_()
    optimizer.zero_grad()
    F.cross_entropy(net(x.detach()), Y).backward()


def criticised(net, optimizer):
    for _ in range(5):  # a critic's, whose gradients come to what it judges as well
        optimizer.zero_grad()
        (net(X).mean() - net(-X).mean()).backward()
    optimizer.zero_grad()
    (-net(X).mean()).backward()


def put_together(net, optimizer):
    kept = []
    for part in range(5):
        optimizer.zero_grad()
        entropy(net, part).backward()
        kept.append([p.grad for p in net.parameters()])
    for p, *grads in zip(net.parameters(), *kept, strict=True):
        p.grad = torch.stack(grads).mean(0)


def moved(net, optimizer):
    for part in range(5):  # an inner loop
        optimizer.zero_grad()
        entropy(net, part).backward()
        with torch.no_grad():
            for p in net.parameters():
                p.sub_(0.01 * p.grad)


@pytest.mark.parametrize("passes", [attacked, criticised, put_together, moved])
def test_passes_that_are_no_micro_batches_are_not_counted(passes, tmp_path):
    net = nn.Linear(6, 4)
    optimizer = optim.SGD(net.parameters(), 0.1)
    with gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False) as watch:
        for _ in range(20):
            passes(net, optimizer)
            optimizer.step()
    assert np.isnan(gradwatch.open_history(watch.dir).total("in_loss/dropped")).all()


@pytest.mark.parametrize("weights", [None, (4.0, 0.0, 2.0, 0.0)])
def test_how_much_the_loss_weighs_the_most_frequent_class_is_recorded(weights, tmp_path):
    net, weight = nn.Linear(6, 4), weights and torch.tensor(weights)
    optimizer = optim.SGD(net.parameters(), 0.1)
    with gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False) as watch:
        F.cross_entropy(net(torch.randn(9, 6)), torch.tensor([2, 2, 2, 2, 2, 0, 1, 3, 3]), weight=weight).backward()
        optimizer.step()
    seen = gradwatch.open_history(watch.dir).total("in_loss/target_top_weight")
    assert seen == pytest.approx([2 / 3]) if weights else np.isnan(seen).all()


@pytest.mark.parametrize("wiped", [True, False])
def test_whether_backward_left_a_gradient_that_the_step_may_not_see(wiped, tmp_path):
    def between(net):
        if wiped:
            net.zero_grad(set_to_none=False)

    history, _ = trained(tmp_path, entropy, between=between)
    left = history.total("in_loss/gradient_left")
    assert set(left[np.isfinite(left)]) == {1.0}
    assert (history.total("grad_norm") == 0).all() == wiped


def test_parameters_that_are_made_in_each_call_are_counted_when_they_are_gone(tmp_path):
    kept = nn.Linear(4, 4)  # in no optimizer, but there to stay
    history, _ = trained(tmp_path, lambda net, _: F.cross_entropy(nn.Linear(4, 4)(kept(net(X))), Y))
    gone = history.total("in_loss/parameters_gone")[looked_at(history)]
    assert gone.tolist() == pytest.approx([np.nan, *[2] * 5], nan_ok=True)
    (found,) = no_gradient(history)
    assert found.cause.startswith("2 parameters on the way")
    assert no_gradient(trained(tmp_path / "kept", lambda net, _: F.cross_entropy(kept(net(X)), Y))[0]) == []


@pytest.mark.filterwarnings("ignore:the watched optimizers do not step together")
def test_of_two_optimizers_that_take_turns_it_is_in_the_row_of_the_step_that_came_of_it(tmp_path):
    net = nn.ModuleDict({"a": nn.Linear(6, 4), "b": nn.Linear(6, 1)})
    losses = {"a": lambda: F.cross_entropy(net["a"](X), Y), "b": lambda: F.mse_loss(net["b"](X), X[:, :1])}
    both = [optim.SGD(net[name].parameters(), 0.1) for name in losses]
    watch = gradwatch.watch(net, both, log=None, dir=tmp_path, verbose=False, every=1)
    with watch:
        for _ in range(6):
            for loss, optimizer in zip(losses.values(), both, strict=True):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
    lanes = [lane for lane in gradwatch.open_history(watch.dir).lanes().values() if len(lane) > 2]
    known = [{name for name in lane.per_step if np.isfinite(lane.total(name)).any()} for lane in lanes]
    assert ["in_loss/target_top" in names for names in known] == [True, False]
    assert ["in_loss/target_low" in names for names in known] == [False, True]


def test_nothing_changes_by_it(tmp_path):
    nets = [nn.Linear(6, 4) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    trained(tmp_path, entropy, net=nets[0])
    optimizer = optim.SGD(nets[1].parameters(), 0.1)
    for step in range(60):
        optimizer.zero_grad()
        entropy(nets[1], step).backward()
        optimizer.step()
    assert torch.equal(nets[0].weight, nets[1].weight)


def test_what_cannot_be_looked_at_ends_no_training(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("another torch")

    monkeypatch.setattr("gradwatch.measure.loss_targets._lies_there", broken)
    with pytest.warns(UserWarning, match="what the loss is asked for cannot be recorded, training goes on"):
        history, _ = trained(tmp_path, entropy)
    assert looked_at(history) == []


class MseLoss(torch.autograd.Function):
    """Called as an operation of torch is, and with an attribute where torch's nodes have a method."""

    @staticmethod
    def forward(ctx, x):
        ctx.name = "mine"
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Embedding(MseLoss):
    pass


@pytest.mark.parametrize("own", [MseLoss, Embedding])
@pytest.mark.filterwarnings("error::UserWarning")
def test_functions_of_ones_own_are_not_taken_for_those_of_torch(own, tmp_path):
    history, _ = trained(tmp_path, lambda net, step: own.apply(F.cross_entropy(own.apply(net(X)), Y.roll(step))))
    assert looked_at(history) == [0, 11, 21, 31, 41, 51]


def test_what_cannot_be_looked_at_ends_no_training_where_warnings_are_errors(tmp_path, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("another torch")

    monkeypatch.setattr("gradwatch.measure.loss_targets._lies_there", broken)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(tmp_path, entropy)
    assert caplog.text.count("what the loss is asked for cannot be recorded, training goes on") == 1


def test_a_backward_that_is_captured_in_a_cuda_graph_is_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr("gradwatch.recording.loss_targets.is_captured", lambda device: device.type == "cpu")
    assert looked_at(trained(tmp_path, entropy)[0]) == []


def test_a_name_of_its_own_is_left_out(tmp_path):
    net = nn.Linear(6, 4)
    watch = gradwatch.watch(net, optim.SGD(net.parameters(), 0.1), log=None, dir=tmp_path, verbose=False)
    with watch, pytest.warns(gradwatch.errors.GradwatchWarning, match="gradwatch records in_loss/target_mean itself"):
        watch.log(**{"in_loss/target_mean": 1.0})


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("clears", ["before its loss", "after its step", "both losses first"])
def test_what_the_loss_of_another_model_leaves_is_told_from_two_losses_of_ones_own(clears, set_to_none, tmp_path):
    """A judge is cleared after its own step alone: the maker's loss comes through it before the next."""
    maker, judge = nn.Linear(6, 4), nn.Linear(4, 1)
    of_maker, of_judge = (optim.SGD(net.parameters(), 0.01) for net in (maker, judge))
    watch = gradwatch.watch(judge, of_judge, log=None, dir=tmp_path, verbose=False)
    with watch:
        for step in range(40):
            judge(maker(X)).mean().backward()
            if clears != "both losses first":
                of_maker.step()
            if clears == "before its loss":
                of_judge.zero_grad(set_to_none=set_to_none)
            judge(maker(X.roll(step, 0)).detach()).square().mean().backward()
            of_judge.step()
            of_judge.zero_grad(set_to_none=set_to_none)
            of_maker.step()
            of_maker.zero_grad(set_to_none=set_to_none)
    history = gradwatch.open_history(watch.dir)
    left = clears == "after its step"
    assert looked_at(history, "of_another") == (looked_at(history, "passes") if left else [])
    assert ["another model left here" in f.cause for f in gradients_accumulate(history)] == [True] * left


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize("of_one_kind", [True, False])
def test_the_loss_of_a_judge_that_the_maker_steps_on_too_is_told_where_it_is_another_kind_of_loss(
    detached, of_one_kind, tmp_path
):
    """Passes of one kind may be added up on purpose, while the judge goes on."""
    maker, judge = nn.Linear(6, 4), nn.Linear(4, 1)
    of_maker, of_judge = (optim.SGD(net.parameters(), 0.01) for net in (maker, judge))
    watch = gradwatch.watch(maker, of_maker, log=None, dir=tmp_path, verbose=False)
    with watch:
        for step in range(40):
            of_maker.zero_grad()
            of_judge.zero_grad()
            made = maker(X.roll(step, 0))
            said = judge(made.detach() if detached else made)
            (said.square().mean() if of_one_kind else said.exp().mean()).backward()
            of_judge.step()
            judge(maker(X)).square().mean().backward()
            of_maker.step()
    history = gradwatch.open_history(watch.dir)
    told = not detached and not of_one_kind
    assert looked_at(history, "of_another") == (looked_at(history, "passes") if told else [])
    assert ["another model left here" in f.cause for f in gradients_accumulate(history)] == [True] * told
