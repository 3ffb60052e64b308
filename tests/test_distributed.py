"""DistributedDataParallel on two local ranks: the reduced gradient is measured on all, and written by one."""

import sys

import numpy as np
import pytest
import torch
from torch import nn
from training import batches, mlp, watch

from gradwatch import open_history

pytestmark = pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo")
CLIP = "ClipByGlobalNorm(0.1)"


def train_rank(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with watch(model, optimizer, folder / "runs", clip=CLIP) as handle:
        for x, y in batches(6):
            optimizer.zero_grad()
            half = slice(rank * 8, rank * 8 + 8)
            nn.functional.cross_entropy(model(x[half]), y[half]).backward()
            optimizer.step()
            handle.log(loss=1.0)
    torch.save(model.module.state_dict(), folder / f"weights{rank}.pt")
    torch.distributed.destroy_process_group()


def test_all_ranks_clip_alike_and_one_writes(tmp_path):
    torch.multiprocessing.spawn(train_rank, (tmp_path,), nprocs=2)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with watch(model, optimizer, tmp_path / "single", clip=CLIP) as handle:
        for x, y in batches(6):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    weights = [torch.load(tmp_path / f"weights{rank}.pt") for rank in (0, 1)]
    for name, want in model.state_dict().items():
        assert torch.equal(weights[0][name], weights[1][name])
        torch.testing.assert_close(weights[0][name], want, rtol=1e-10, atol=1e-12)
    (run,) = (tmp_path / "runs").iterdir()
    got, want = open_history(run), open_history(handle.dir)
    assert got.layers == want.layers  # without DistributedDataParallel's "module."
    np.testing.assert_allclose(got.layer("grad_norm"), want.layer("grad_norm"), rtol=1e-6)
    np.testing.assert_allclose(got.layer("clip_coef"), want.layer("clip_coef"), rtol=1e-6)
