"""Two ranks of `Rewind`: a batch that is bad on one of them, beside the training that never saw it.

torchrun --nproc-per-node 2 tests/support/ranks_rewind.py FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import Net, leave, mesh, shard_all, whole
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch

BAD, STEPS = 37, 60
WRAPS = {"ddp": DistributedDataParallel, "fsdp2": lambda model: shard_all(model, mesh(2))}


def batches(bad):
    """This rank's; `bad` on rank 1 alone, so that only its own loss shows it before the gradients do."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    for i in range(STEPS):
        x = torch.randn(8, 6, generator=generator)
        if i != BAD:
            yield x
        elif bad:
            yield x * float("inf") if dist.get_rank() == 1 else x


def train(root, wrap, bad, killed=False, resumed=None):
    """The weights, the optimizer's state and the random numbers at the end; how often it went back."""
    torch.manual_seed(0)
    model = wrap(nn.Sequential(Net(), nn.Dropout(0.1)) if wrap is DistributedDataParallel else Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    watch = gradwatch.watch(
        model, optimizer, clip="AutoClip(50, 20)", dir=root, log=None, verbose=False, delivery="none"
    )
    rewind = gradwatch.Rewind(model, optimizer, every=5, keep=6, disk_every=2)
    if resumed is not None:
        assert rewind.resume(resumed)
    if killed:
        rewind._training._put_back = None  # calling it raises, when the weights are back and the optimizer is not
    try:
        for x in rewind(batches(bad)) if bad else batches(bad):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss)
    except TypeError:
        assert killed
    watch.close()
    state = [whole(v) for p in model.parameters() for v in (p.detach(), *optimizer.state[p].values())]
    told = [str(watch.dir)]
    dist.broadcast_object_list(told, src=0)
    return [*state, torch.get_rng_state()], rewind.count, Path(told[0])


def main(root):
    """Each way of spreading a model, with the batch, without it, and killed in the middle of going back."""
    dist.init_process_group("gloo")
    out = {}
    for name, wrap in WRAPS.items():
        got, count, _ = train(root / name, wrap, bad=True)
        want, _, _ = train(root / f"{name}-oracle", wrap, bad=False)
        _, _, folder = train(root / f"{name}-killed", wrap, bad=True, killed=True)
        again, _, _ = train(root / f"{name}-killed", wrap, bad=True, resumed=folder)
        equal = [
            len(state) == len(want) and all(torch.equal(a, b) for a, b in zip(state, want, strict=True))
            for state in (got, again)
        ]
        out[name] = {"equal": equal, "count": count}
    torch.save(out, root / f"rank-{dist.get_rank()}.pt")
    leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
