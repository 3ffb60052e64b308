"""One rank of the tests of slices and rows: parameters that hold several layers, over ranks or in one process.

torchrun --nproc-per-node N tests/support/ranks_slices.py KIND... FOLDER
"""

import torch
import torch.distributed as dist
from gloo import each_kind
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import gradwatch
from gradwatch import AGC, ClipByNorm, chain

SPLIT = {"experts": 0, "heads": (0, 3), "inner": 1}
CUT_BY_TP = {"experts": 2, "heads": 1, "inner": 1}  # dimension over ranks; of the last the one that is split


class Model(nn.Module):
    """Three experts over two ranks; heads of two rows, of which a rank has three; and one cut along its middle."""

    def __init__(self):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(3, 4, 6))
        self.heads = nn.Parameter(torch.randn(6, 8))
        self.inner = nn.Parameter(torch.randn(5, 4, 2))

    def forward(self, x):
        return sum(x * p.pow(3).sum() for p in self.parameters())


def wrap(model, kind, size):
    if kind.startswith("ddp"):
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (size,))
    if kind.startswith("fsdp"):
        return fully_shard(model, mesh=mesh)
    for name, dim in CUT_BY_TP.items():
        whole, along = getattr(model, name), 0 if "vocabulary" in kind else dim
        setattr(model, name, nn.Parameter(distribute_tensor(whole.detach(), mesh, [Shard(along)])))
    return model


def train(kind, folder):
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = wrap(Model(), kind, size) if size > 1 else Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    clip = chain(AGC(0.1), ClipByNorm(0.5)) if kind.endswith("-units") else ClipByNorm(0.5)
    watch = gradwatch.watch(model, optimizer, clip=clip, dir=folder, run_name=kind, log=None, delivery="none",
                            verbose=False, every=1, slots=True,
                            **({"rows": ("experts", "heads")} if "rows" in kind else {"split": SPLIT}))  # fmt: skip
    for step in range(5):
        x = [0.1 * step + 0.2, 0.3 * step - 0.4]  # of two ranks, or one process that has both
        own = x[rank] if size > 1 and not kind.startswith("tp") else sum(x) / 2
        loss = model(own)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()


each_kind(train)
