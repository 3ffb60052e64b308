"""One of two ranks: a regression whose batches agree, or are mostly noise.

python two_ranks.py FOLDER RANK
"""

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from trainings import fit


def regression(folder, noise, batch):
    """y = x w + noise; small batches of very noisy targets are what the noise scale is about."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    model.weight.data.zero_()
    wanted = torch.ones(8, 1)
    net = DistributedDataParallel(model)
    g = torch.Generator().manual_seed(7 + dist.get_rank())

    def loss_of(step):
        x = torch.randn(batch, 8, generator=g)
        return mse_loss(net(x), x @ wanted + noise * torch.randn(batch, 1, generator=g))

    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    fit(folder, net, optimizer, loss_of, 100, ranks=True, read=dist.get_rank() == 0)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=int(sys.argv[2]), world_size=2)
    regression(root / "noisy", noise=30.0, batch=2)
    regression(root / "clear", noise=0.1, batch=32)
    dist.destroy_process_group()
    gc.collect()  # ends gloo's threads: one that lets go of a tensor while Python ends aborts it (pytorch#179291)
