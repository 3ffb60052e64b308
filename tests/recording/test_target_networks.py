"""A part of the model that is a copy of one that is trained: whether it moves is recorded, and what is said of it."""

import pytest
import torch
from torch import nn

import gradwatch
from gradwatch.analysis.rules import diagnose
from gradwatch.recording.target_networks import TargetNetworks


def twins(**others):
    return nn.ModuleDict({"online": nn.Linear(4, 2), "target": nn.Linear(4, 2), **others})


def copies_in(net, *trained):
    return TargetNetworks(net, [torch.optim.SGD(net[name].parameters(), 0.1) for name in trained])


def test_a_copy_that_is_written_to_has_moved_whoever_wrote_and_however():
    for write in (
        lambda p: p.data.add_(1.0),  # no version of a tensor tells of it
        lambda p: p.detach().copy_(torch.ones_like(p)),
    ):
        net = twins()
        copies = copies_in(net, "online")
        assert copies.moved() == 0
        write(net["target"].bias)
        assert copies.moved() == 1


def test_no_copy_is_what_has_other_shapes_or_names_gets_gradients_or_is_frozen():
    for other in (nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 2)), nn.Linear(4, 2).requires_grad_(False)):
        net = nn.ModuleDict({"online": nn.Linear(4, 2), "target": other})
        assert copies_in(net, "online").moved() is None
    alone = nn.ParameterDict({"gain": nn.Parameter(torch.ones(2)), "other": nn.Parameter(torch.ones(2))})
    assert TargetNetworks(alone, [torch.optim.SGD([alone["gain"]], 0.1)]).moved() is None
    assert copies_in(twins(later=nn.LazyLinear(2)), "online").moved() == 0
    net = twins()
    elsewhere = copies_in(net, "online")
    elsewhere._first = [first.to("meta") for first in elsewhere._first]
    assert elsewhere.moved() is None
    net = twins()
    wrapped = torch.nn.DataParallel(net)
    assert TargetNetworks(wrapped, [torch.optim.SGD(net["online"].parameters(), 0.1)]).moved() == 0
    copies = copies_in(net, "online")
    net["target"](torch.ones(1, 4)).sum().backward()  # a head that was forgotten
    assert copies.moved() is None
    assert copies_in(net, "online", "target").moved() is None


@pytest.mark.parametrize(("every", "said"), [(None, ["weights-unchanged"]), (10, [])])
def test_a_target_network_that_is_never_updated_is_said_and_one_that_is_is_not(every, said, tmp_path):
    torch.manual_seed(0)
    net = twins()
    optimizer = torch.optim.Adam(net["online"].parameters(), 0.01)
    with gradwatch.watch(net, optimizer, log=None, dir=tmp_path, verbose=False) as watch:
        for step in range(160):
            x = torch.randn(64, 4)
            with torch.no_grad():
                wanted = x[:, :2] + 0.5 * net["target"](x)
            loss = nn.functional.mse_loss(net["online"](x), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss)
            if every and step % every == 0:
                net["target"].load_state_dict(net["online"].state_dict())
    found = [f for f in diagnose(gradwatch.open_history(watch.dir)) if f.severity != "note"]
    assert [f.rule for f in found] == said
    assert all("`target` has the names and shapes" in f.cause and len(f.alternatives) == 2 for f in found)
