"""One rank of the test of collectives: how many each switch adds to a step that is sampled, and to another.

torchrun --nproc-per-node N tests/support/ranks_collectives.py KIND... FOLDER
"""

import json
import math
from unittest import mock

import torch
import torch.distributed as dist
from gloo import each_kind
from ranks import Collectives
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gradwatch
from gradwatch.measure import collectives
from gradwatch.measure.distributed import add_up

EVERY, STEPS = 4, 6  # steps 0, 1 and 4 are sampled, and the weights measured in 0 and 4
SWITCHES = {
    "none": {},
    "activations": {"activations": ("*",), "activations_every": EVERY},
    "slots": {"slots": True},
    "histogram_every": {"histogram_every": EVERY},
    "singular_values": {"singular_values": True},
    "noise_scale": {"noise_scale": True},
    "rows": {"rows": ("words.*",)},
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.inner, self.out = nn.Embedding(12, 6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return self.out(self.inner(self.words(x)).relu())


def wrap(model, kind, size):
    if kind == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (size,))
    if kind == "fsdp":
        return fully_shard(model, mesh=mesh)
    return parallelize_module(
        model, mesh, {"words": RowwiseParallel(), "inner": ColwiseParallel(), "out": RowwiseParallel()}
    )


def counts(kind, folder, **asked):
    """The collectives of each optimizer step."""
    torch.manual_seed(0)
    model = wrap(Model(), kind, dist.get_world_size())
    optimizer = torch.optim.Adam(model.parameters())
    found = []
    with gradwatch.watch(model, optimizer, clip="ClipByGlobalNorm(1.0)", dir=folder, log=None, delivery="none",
                         verbose=False, every=EVERY, **asked):  # fmt: skip
        for _ in range(STEPS):
            optimizer.zero_grad()
            for _ in range(2):  # it accumulates
                words = torch.randint(12, (4, 3))
                model(words).square().mean().backward()
            with Collectives() as seen:
                optimizer.step()
            found.append(len(seen.calls))
    return found


def largest(places):
    """What two ranks make of sums, largest values and marks, with room for so many numbers; and by how many calls."""
    inf, rank = math.inf, dist.get_rank()
    sums = [torch.tensor([1.0 + rank, [inf, 1.0][rank], math.nan], dtype=torch.float64)]
    most = [torch.tensor([[-3.0, -2.0], [-inf, -5.0]])[:, rank], torch.tensor([[1.0, inf][rank]])]
    marks = torch.tensor([7.0, float(rank)]).double()
    with mock.patch.object(collectives, "PLACES", places), Collectives() as seen:
        marks = add_up(collectives.add_and_compare(sums, most, marks, dist.group.WORLD, None), None)
    return len(seen.calls), sums[0].tolist(), [t.tolist() for t in most], marks.tolist()


def train(kind, folder):
    together = {name: value for asked in SWITCHES.values() for name, value in asked.items()}
    found = {name: counts(kind, folder / name, **asked) for name, asked in {**SWITCHES, "all": together}.items()}
    ways = [largest(places) for places in (collectives.PLACES, 0)]
    if dist.get_rank() == 0:
        (folder / "collectives.json").write_text(json.dumps(found))
        (folder / "largest.json").write_text(json.dumps(ways))


each_kind(train)
