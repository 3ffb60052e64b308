"""One rank of the test of what is sampled besides activations: a loop that accumulates, over ranks or in one process.

torchrun --nproc-per-node N tests/support/ranks_sampled.py KIND... FOLDER
"""

import contextlib

import torch
import torch.distributed as dist
from gloo import each_kind
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gradwatch

PARTS = 3


def wrap(model, kind, size):
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    if kind == "tp":
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, init_device_mesh("cpu", (size,)), plan)
    return DistributedDataParallel(model) if kind.startswith("ddp") else model


def train(kind, folder):
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3)), kind, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    watch = gradwatch.watch(model, optimizer, dir=folder, run_name=kind, log=None, delivery="none", verbose=False,
                            every=2, noise_scale=True, histogram_every=2, singular_values=True)  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        for part in range(PARTS):
            batch = torch.randn(64, 6, generator=generator)
            alone = kind == "ddp-no-sync" and part < PARTS - 1
            with model.no_sync() if alone else contextlib.nullcontext():
                own = batch if kind == "tp" else batch[rank::size]
                (model(own).square().mean() / PARTS).backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()


each_kind(train)
