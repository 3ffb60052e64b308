"""One rank of the test of attention: a training whose batch, or whose heads, are spread over the ranks; or one process.

torchrun --nproc-per-node N tests/support/ranks_attention.py KIND... FOLDER
"""

import torch
import torch.distributed as dist
from gloo import each_kind
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwatch

HEADS, WIDTH = 4, 8


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        odds = self.gate(x).softmax(-1)
        sent = F.one_hot(odds.argmax(-1), 3)
        return sum(expert(x) * (odds * sent)[..., e, None] for e, expert in enumerate(self.experts))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.mlp = SelfAttention(), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), Experts())

    def forward(self, x):
        return x + self.mlp(x + self.attn(x))


def train(kind, folder):
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    mesh = init_device_mesh("cpu", (size,))
    if "fsdp" in kind:
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if kind == "tp":
        for block in model:
            spread = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel()}
            parallelize_module(block.attn, mesh, spread)
    wrapped = DistributedDataParallel(model) if "ddp" in kind else model
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-3, eps=1e-4)  # the gradients of k.bias are noise
    watch = gradwatch.watch(wrapped, optimizer, dir=folder, run_name=kind, log=None, delivery="none", verbose=False,
                            activations=("*.attn", "*.mlp", "*.gate"), activations_every=2, slots=True, every=1,
                            renorm="QKClip(0.01)" if "clipped" in kind else None)  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    for step in range(5):
        batch = torch.randn(6, 5, WIDTH, generator=generator)
        if step == 2 and "clipped" not in kind:
            batch[1, 2] = torch.nan
        wrapped(batch if kind == "tp" else batch[rank::size]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()


each_kind(train)
