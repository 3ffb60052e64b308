"""Two ranks of `Rewind`: a batch that is bad on one of them, beside the training that never saw it.

torchrun --nproc-per-node 2 tests/support/ranks_rewind.py go FOLDER | die FOLDER WRAP PLACE | resume FOLDER
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from gloo import leave
from ranks import Net, fsdp1, mesh, shard_all, whole
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import gradwatch
from gradwatch.measure.fsdp import reshard
from gradwatch.recording.snapshot import Training
from gradwatch.recording.snapshot_files import SnapshotFiles

BAD, STEPS = 37, 60
WRAPS = {
    "ddp": DistributedDataParallel,
    "zero": DistributedDataParallel,  # with ZeroRedundancyOptimizer
    "fsdp1": fsdp1,
    "fsdp2": lambda model: shard_all(model, mesh(2)),
}


def batches(bad):
    """This rank's; `bad` on rank 1 alone, so that only its own loss shows it before the gradients do."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    for i in range(STEPS):
        x = torch.randn(8, 6, generator=generator)
        if i != BAD:
            yield x
        elif bad:
            yield x * float("inf") if dist.get_rank() == 1 else x


def train(root, name, bad, resumed=None):
    """The weights, the optimizer's state and the random numbers at the end; how often it went back."""
    torch.manual_seed(0)
    wrap = WRAPS[name]
    model = wrap(nn.Sequential(Net(), nn.Dropout(0.1)) if wrap is DistributedDataParallel else Net())
    if name == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01, foreach=False)
        own = optimizer.optim
    else:
        own = optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    watch = gradwatch.watch(
        model, optimizer, clip="AutoClip(50, 20)", dir=root, log=None, verbose=False, delivery="none"
    )
    rewind = gradwatch.Rewind(model, optimizer, every=5, keep=6, disk_every=2)
    if resumed is not None:
        assert rewind.resume(resumed)
    for x in rewind(batches(bad)) if bad else batches(bad):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        watch.log(loss=loss)
        with torch.no_grad():
            model(torch.ones(2, 6))  # a validation: FSDP leaves the weights of its root gathered
    watch.close()
    reshard(model)
    state = [whole(v) for p in model.parameters() for v in (p.detach(), *own.state.get(p, {}).values())]
    return [*state, torch.get_rng_state()], rewind.count


def compare(root, name, **options):
    """Whether the training ended, to the bit, as one that never saw the batch; how often it went back."""
    got, count = train(root / name, name, bad=True, **options)
    want, _ = train(root / f"{name}-oracle", name, bad=False)
    equal = len(got) == len(want) and all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    return {"equal": equal, "count": count}


def go(root):
    """Each way of spreading a model, with the batch and without it."""
    return {name: compare(root, name) for name in WRAPS}


def die(root, name, place):
    """Both ranks get SIGKILL in the middle of going back, once both are there.

    `within`: the weights are as they were, the optimizer is not. `unwritten`: rank 1 has not yet written the snapshot
    that rank 0 has.
    """

    def killed(*_):
        (root / f"{name}-there-{dist.get_rank()}").touch()
        while len([*root.glob(f"{name}-there-*")]) < dist.get_world_size():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    Training._put_back = killed
    if place == "unwritten" and dist.get_rank() == 1:
        SnapshotFiles.write = killed
    train(root / name, name, bad=True)


def resume(root):
    """What was killed goes on, in processes of their own."""
    names = [name for name in WRAPS if (root / name).exists()]
    return {name: compare(root, name, resumed=next((root / name).iterdir())) for name in names}


if __name__ == "__main__":
    torch.set_num_threads(1)
    how, root, *rest = sys.argv[1:]
    dist.init_process_group("gloo")
    out = {"go": go, "die": die, "resume": resume}[how](Path(root), *rest)
    torch.save(out, Path(root) / f"rank-{dist.get_rank()}.pt")
    leave()
