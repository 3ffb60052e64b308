"""One rank of the distributed tests: runs the scenarios for this number of ranks, and leaves what it saw in a folder.

    torchrun --nproc-per-node N tests/support/ranks.py main FOLDER

The oracle gathers whole gradients with `full_tensor()`, a collective per layer, and takes their norms in float64.
"""

import copy
import gc
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from gloo import leave
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import gradwatch
from gradwatch.analysis.rules import Finding
from gradwatch.recording.layer_names import clean_name
from gradwatch.tracking.live_findings import write_findings

STEPS = 6
CLIPS = [
    None,
    "ClipByGlobalNorm(0.1)",
    "ClipByGlobalNorm(0.02, norm_type='inf')",
    "ClipByGlobalNorm(0.3, norm_type=1.0)",
    "ClipByNorm(0.05)",
    "ClipByNorm(0.02, axes=(0,))",
    "ClipByNorm(0.02, axes=(1,))",
    "ClipByValue(0.01)",
    "ClipByAverageNorm(0.001)",
    "AGC(0.05)",
    "AdaGC(warmup=3)",
    "ClipByHistory()",
    "chain(SkipNonfinite(), ClipByGlobalNorm(0.1), ClipByValue(0.01))",
    "only('body.*', chain(AGC(0.05), ClipByNorm(0.02)))",
]
RENORMS = ["MaxNorm(0.5)", "MaxNorm(0.5, dim=1)", "Renorm(1.0, 0, 0.8)", "Renorm('inf', 1, 0.2)", "MaxSpectral(0.5)"]
MIXED = [(None, None), ("ClipByGlobalNorm(0.1)", None)]
FEW = [*MIXED, ("AGC(0.05)", None), ("ClipByNorm(0.02, axes=(0,))", None), (None, RENORMS[1]), (None, RENORMS[3])]
UNITS = ("axes", "AGC")  # what looks at rows and columns
WHOLE = [(clip, None) for clip in CLIPS if not any(unit in (clip or "") for unit in UNITS)]
ALL = [(clip, None) for clip in CLIPS] + [(None, renorm) for renorm in RENORMS]


class Net(nn.Module):
    """Sizes that 2 and 4 ranks do not divide, and a layer that some batches leave out."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.LayerNorm(5))
        self.extra = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x, extra=True):
        x = self.body(x)
        return self.head(self.extra(x) if extra else x)


def net(dtype=torch.float64):
    torch.manual_seed(0)
    return Net().to(dtype)


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(16, 6, generator=generator, dtype=torch.float64)
        yield x.to(dtype), torch.randint(3, (16,), generator=generator)


def mesh(*shape):
    return init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[: len(shape)])


def world():
    return dist.get_world_size()


def shard_all(model, where, **settings):
    for module in (model.body[0], model.body[2], model.head):
        fully_shard(module, mesh=where, **settings)
    return fully_shard(model, mesh=where, **settings)


def tensor_parallel(model, where):
    return parallelize_module(model, where, {"body.0": ColwiseParallel(), "body.2": RowwiseParallel()})


def sequence_parallel(model, where):
    """The gradients of the norm layer stay `Partial`: each rank holds an addend."""
    plan = {
        "body.0": ColwiseParallel(),
        "body.2": RowwiseParallel(output_layouts=Shard(0)),
        "body.3": SequenceParallel(sequence_dim=0),
        "body": PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate()),
    }
    return parallelize_module(model, where, plan)


def sharded_both_ways(model):
    grid = mesh(2, 2)
    return shard_all(tensor_parallel(model, grid["inner"]), grid["outer"])


def mixed_precision(model):
    return shard_all(model, mesh(world()), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))


class Spread(DistributedDataParallel):
    """Each rank moves a part of the weights, and keeps the optimizer's state of that part alone."""


def fsdp1(model, strategy=ShardingStrategy.FULL_SHARD, **settings):
    """A flat buffer for the first layers, one for the rest: pieces that lie on one rank, on both, and on the other."""
    settings = {"use_orig_params": True, "device_id": torch.device("cpu"), "sharding_strategy": strategy, **settings}
    model.body = FullyShardedDataParallel(model.body, **settings)
    return FullyShardedDataParallel(model, **settings)


def hybrid(model):
    return fsdp1(model, ShardingStrategy.HYBRID_SHARD, device_mesh=mesh(2, 2))


# name: how the model is wrapped, over how many ranks the batch is split, dtype, whether rank 1 leaves a layer out, what
SCENARIOS = {
    2: {
        "ddp": (DistributedDataParallel, 2, torch.float64, False, ALL),
        "ddp-unused": (partial(DistributedDataParallel, find_unused_parameters=True), 2, torch.float64, True, MIXED),
        "zero-redundancy": (Spread, 2, torch.float64, False, MIXED),
        "fsdp2": (lambda m: shard_all(m, mesh(2)), 2, torch.float64, False, ALL),
        "fsdp1": (fsdp1, 2, torch.float64, False, WHOLE),
        "fsdp1-grad-op": (partial(fsdp1, strategy=ShardingStrategy.SHARD_GRAD_OP), 2, torch.float64, False, MIXED),
        "fsdp1-no-shard": (partial(fsdp1, strategy=ShardingStrategy.NO_SHARD), 2, torch.float64, False, FEW),
        "fsdp2-bf16": (mixed_precision, 2, torch.float32, False, MIXED),
        "tensor-parallel": (lambda m: tensor_parallel(m, mesh(2)), 1, torch.float64, False, ALL),
        "sequence-parallel": (lambda m: sequence_parallel(m, mesh(2)), 1, torch.float64, False, FEW),
    },
    4: {
        "fsdp2": (lambda m: shard_all(m, mesh(4)), 4, torch.float64, False, FEW),
        "fsdp1": (fsdp1, 4, torch.float64, False, MIXED),
        "fsdp1-hybrid": (hybrid, 4, torch.float64, False, MIXED),
        "hsdp": (lambda m: shard_all(m, mesh(2, 2)), 4, torch.float64, False, FEW),
        "fsdp2-tensor-parallel": (sharded_both_ways, 2, torch.float64, False, ALL),
    },
}


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_ones(model):
    """The weights and gradients of whole layers, by name: a collective per layer."""
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            return {clean_name(n): (p.detach().clone(), copy.copy(p.grad)) for n, p in model.named_parameters()}
    pairs = ((n, p, p.grad) for n, p in model.named_parameters())
    return {clean_name(n): (whole(p.detach()), None if g is None else whole(g)) for n, p, g in pairs}


def make_optimizer(model):
    """DTensors and plain tensors in one optimizer: torch wants the for-loop, or a group each."""
    how = {"lr": 0.5, "momentum": 0.9, "foreach": False}
    if isinstance(model, Spread):
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **how)
    return torch.optim.SGD(model.parameters(), **how)


class Collectives(TorchDispatchMode):
    """Counts the collectives while it is on."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in ("c10d", "_c10d_functional"):
            self.calls.append(func.name())
        return func(*args, **(kwargs or {}))


def train(folder, wrap, split, dtype, unused, clip, renorm, device="cpu"):
    """Train as a rank; returns what the oracle saw: `[{layer: norm}]` per step, and the weights at the end."""
    model = wrap(net(dtype))
    optimizer = make_optimizer(model)
    rank = dist.get_rank() if dist.is_initialized() else 0
    part = 16 // split
    place = rank * split // world() if split > 1 else 0
    watch = gradwatch.watch(
        model, optimizer, clip=clip, renorm=renorm, every=2, slots=True, dir=folder, log=None, verbose=False
    )
    oracle = []
    for x, y in data(dtype):
        optimizer.zero_grad()
        here = slice(place * part, place * part + part)
        extra = not (unused and here.start > 0)
        scores = model(x[here].to(device), extra)
        nn.functional.cross_entropy(scores.to(dtype), y[here].to(device)).backward()
        if (clip, renorm) in MIXED:  # a collective per layer; the others are held against a single process
            grads = {n: g for n, (_, g) in whole_ones(model).items()}
            oracle.append({n: None if g is None else g.double().norm().item() for n, g in grads.items()})
        with Collectives() as collectives:
            optimizer.step()
        watch.log(collectives=len(collectives.calls))
    watch.close()
    weights = {n: w for n, (w, _) in whole_ones(model).items()}
    return {"oracle": oracle, "weights": weights}


def rank_norms(root):
    """Each rank's own norm, beside that of a copy that no other rank has touched; and the weights, untouched."""
    rank = dist.get_rank()
    ddp = SCENARIOS[2]["ddp"][0]
    model, copy = ddp(net()), net()
    optimizer = make_optimizer(model)
    for place in ("again", "ranks"):  # a cell run twice
        watch = gradwatch.watch(model, optimizer, ranks=True, dir=root / place, log=None, verbose=False)
    own = []
    for x, y in data():
        here = slice(rank * 8, rank * 8 + 8)
        copy.load_state_dict(model.module.state_dict())
        copy.zero_grad()
        nn.functional.cross_entropy(copy(x[here]), y[here]).backward()
        own.append(torch.cat([p.grad.flatten() for p in copy.parameters()]).norm().item())
        for half in (here, here):  # accumulated in the order most people forget no_sync(): the last backward counts
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[half]), y[half]).backward()
        optimizer.step()
    watch.close()
    torch.save({"own": own, "weights": model.module.state_dict()}, root / f"ranks-{rank}.pt")


def refusals(root):
    """What cannot be watched is refused, with the reason, on every rank."""

    def message(model, **settings):
        try:
            gradwatch.watch(model, make_optimizer(model), dir=root, log=None, verbose=False, **settings)
        except gradwatch.GradwatchError as error:
            return str(error)
        return None

    sharded = shard_all(net(), mesh(world()))
    cut = fsdp1(net())
    texts = {
        "buffers": message(fsdp1(net(), use_orig_params=False)),
        "rows": message(cut, renorm="MaxNorm(0.5)"),
        "units": message(cut, clip="AGC(0.05)"),
        "micro-batches": message(cut, noise_scale=True),
        "matrices": message(cut, singular_values=True),
        "spectral": message(cut, renorm="MaxSpectral(0.5)"),
        "function": message(sharded, clip=gradwatch.ClipWith(torch.sign)),
        "ranks": message(sharded, ranks=True),
        "hook": message(hooked(DistributedDataParallel(net())), ranks=True),
    }
    torch.save(texts, root / f"refusals-{dist.get_rank()}.pt")


def hooked(model):
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    return model


def raise_on_one(root):
    """Rank 1 fails in the middle of a step; it must not wait for the others while it closes."""
    dist.init_process_group("gloo")
    model = shard_all(net(), mesh(world()))
    optimizer = make_optimizer(model)
    with gradwatch.watch(model, optimizer, every=2, dir=root, log=None, verbose=False):
        for i, (x, y) in enumerate(data()):

            def closure(x=x, y=y, i=i):
                if i == 4 and dist.get_rank() == 1:
                    raise RuntimeError("rank 1 is out of data")
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)


def halt(root):
    """Rank 0 hears of an error between two drains; both must raise, at the same step, before it is taken."""
    rank = dist.get_rank()
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = gradwatch.watch(model, optimizer, dir=root / "runs", log=None, verbose=False, halt_on="error")
    taken, generator = 0, torch.Generator().manual_seed(1)
    calls = []
    try:
        for step in range(200):
            optimizer.zero_grad()
            model(torch.randn(4, 6, generator=generator, dtype=torch.float64)).square().mean().backward()
            if step == 37 and rank == 0:
                found = Finding("exploding", "error", ("head.weight",), 30, 36, {}, "It grew.", "Lower the rate.")
                write_findings(watch.dir, "net", [found], "It grew.")
                watch._recorder.drained -= 60  # time passes, for this rank alone
            with Collectives() as collectives:
                optimizer.step()
            calls.append(len(collectives.calls))
            taken += 1
        said = None
    except gradwatch.TrainingHalted as error:
        said = (str(error), error.finding)
    watch.close()
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    torch.save({"taken": taken, "said": said, "weights": weights, "calls": calls}, root / f"halt-{rank}.pt")


def cpu_offload(root):
    """Parameters, gradients and the optimizer on the CPU, the computation on a GPU."""
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(dist.get_rank())
    where = init_device_mesh("cuda", (world(),))
    for i, (clip, renorm) in enumerate([*MIXED, (None, "MaxNorm(0.5)")]):
        seen = train(
            root / str(i),
            lambda m: shard_all(m, where, offload_policy=CPUOffloadPolicy()),
            world(), torch.float64, False, clip, renorm, device="cuda",
        )  # fmt: skip
        torch.save(seen, root / f"{i}.pt")
    leave()


def main(root):
    dist.init_process_group("gloo")
    if world() == 2:
        rank_norms(root)
        refusals(root)
        halt(root)
    for name, (*how, pairs) in SCENARIOS[world()].items():
        for i, (clip, renorm) in enumerate(pairs):
            folder = root / name / str(i)
            seen = train(folder, *how, clip, renorm)
            torch.save(seen, root / f"{name}-{i}-rank{dist.get_rank()}.pt")
    leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"main": main, "raise_on_one": raise_on_one, "cpu_offload": cpu_offload}[sys.argv[1]](Path(sys.argv[2]))
    gc.collect()  # ends gloo's threads: one that lets go of a tensor while Python ends aborts it (pytorch#179291)
