"""One rank of the test of activations: a training whose batch is spread over the ranks, or one process with all of it.

torchrun --nproc-per-node N tests/support/ranks_inside.py KIND... FOLDER
"""

import torch
import torch.distributed as dist
from gloo import each_kind
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gradwatch


def train(kind, folder):
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 1500), nn.ReLU(), nn.Linear(1500, 6), nn.Tanh(), nn.Linear(6, 1))
    with torch.no_grad():
        model[0].bias[::3] = -50.0
        model[2].weight.mul_(8)
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    if kind == "tp":
        parallelize_module(model, init_device_mesh("cpu", (size,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    wrapped = DistributedDataParallel(model) if kind in ("ddp", "compiled") else model
    if kind == "compiled":
        wrapped = torch.compile(wrapped, backend="eager")
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    watch = gradwatch.watch(wrapped, optimizer, dir=folder, run_name=kind, log=None, delivery="none", verbose=False,
                            activations=True, activations_every=2)  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        batch = torch.randn(64, 6, generator=generator)
        wrapped(batch if kind == "tp" else batch[rank::size]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()


each_kind(train)
