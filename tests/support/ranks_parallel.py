"""One of four ranks: experts on meshes of their own, and a pipeline of two stages; leaves what it saw in a folder.

torchrun --nproc-per-node 4 tests/support/ranks_parallel.py FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from gloo import leave
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import gradwatch

STEPS, POISONED = 6, 3
QUIET = {"log": None, "verbose": False, "every": 2}
CLIP = "ClipByGlobalNorm(1.0)"
LAST = "*1.?.weight"  # weights of the last stage alone
CLIPS = [
    None,
    "ClipByGlobalNorm(0.3)",
    "ClipByGlobalNorm(0.1, norm_type='inf')",
    "ClipByGlobalNorm(1.0, norm_type=1.0)",
    "ClipByValue(0.02)",
    "AGC(0.05)",
    "AutoClip(50, window=3)",
    "AdaGC(warmup=3, warmup_norm=0.3)",
    "chain(ClipByNorm(0.2), ClipByGlobalNorm(0.3))",
    "chain(SkipNonfinite(), ClipByGlobalNorm(0.3))",
    "SkipNorm(0.43)",
    f"only({LAST!r}, ClipByGlobalNorm(0.1))",
    f"only({LAST!r}, chain(AGC(0.05), AdaGC(warmup=3, warmup_norm=0.3)))",
    f"only({LAST!r}, SkipNorm(0.22))",
]
ONE_AHEAD = [None, "ClipByGlobalNorm(0.3)", "chain(SkipNonfinite(), ClipByGlobalNorm(0.3))"]


# ---------------------------------------------------------------------------------------------------------- experts


def gradients():
    """Of a dense layer and of four experts: the experts' are ten times larger."""
    generator = torch.Generator().manual_seed(3)
    dense = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    return {"dense": dense, "experts": 10 * torch.randn(4, 3, 2, generator=generator, dtype=torch.float64)}


class Layers(nn.Module):
    """Parameters of 1, spread as the gradients that they are going to have."""

    def __init__(self, spread):
        super().__init__()
        self.spread = spread
        for name, grad in gradients().items():
            self.register_parameter(name, nn.Parameter(spread[name](torch.ones_like(grad))))

    def set_gradients(self):
        for name, grad in gradients().items():
            getattr(self, name).grad = self.spread[name](grad)


def plain(tensor):
    return tensor.clone()


def sliced(mesh):
    return lambda t: t.chunk(mesh.size())[mesh.get_local_rank()].clone()


def spread_over(mesh, *placements):
    return lambda t: distribute_tensor(t, mesh, list(placements))


def layouts():
    """How dense layers and experts are spread, and what `watch` is told of it."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "ep"))
    outer, ep = grid["outer"], grid["ep"]
    everywhere = init_device_mesh("cpu", (4,))
    told = {"experts": {"experts": ep}}
    return {
        "alone": ({"dense": plain, "experts": plain}, {}),
        "plain slices": ({"dense": plain, "experts": sliced(ep)}, told),
        "plain slices, dense sharded": ({"dense": spread_over(everywhere, Shard(0)), "experts": sliced(ep)}, told),
        "slices that are sharded": (
            {
                "dense": spread_over(everywhere, Shard(0)),
                "experts": lambda t: spread_over(outer, Shard(0))(sliced(ep)(t)),
            },
            {"experts": {"experts": ep.get_group()}},
        ),
        "a mesh inside another": (
            {"dense": spread_over(grid, Shard(0), Replicate()), "experts": spread_over(ep, Shard(0))},
            {},
        ),
        "meshes side by side": (
            {"dense": spread_over(outer, Shard(0)), "experts": spread_over(ep, Shard(0))},
            {},
        ),
    }


def experts(folder):
    for name, (spread, told) in layouts().items():
        model = Layers(spread)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)
        watch = gradwatch.watch(model, optimizer, clip=CLIP, dir=folder / name, **told, **QUIET)
        model.set_gradients()
        optimizer.step()
        watch.close()
        moved = {n: (1 - p.detach()).norm() for n, p in model.named_parameters()}
        parts = {n: p.detach() if n in spread and spread[n] is plain else None for n, p in model.named_parameters()}
        seen = {n: m.full_tensor().item() if hasattr(m, "full_tensor") else m.item() for n, m in moved.items()}
        torch.save({"moved": seen, "dense": parts["dense"]}, folder / f"{name}-{dist.get_rank()}.pt")
    told = {"pattern": {"nothing.*": init_device_mesh("cpu", (4,))}, "kind": {"experts": 4}}
    said = {what: refusal(Layers({"dense": plain, "experts": plain}), experts=given) for what, given in told.items()}
    cut = Layers({"dense": plain, "experts": plain})
    said["no name"] = refusal(cut, pipeline=dist.group.WORLD)
    said["unit"] = refusal(cut, experts={"experts": dist.group.WORLD}, clip="ClipByNorm(0.1, axes=(0,))")
    torch.save(said, folder / f"refused-{dist.get_rank()}.pt")


def refusal(model, **settings):
    try:
        gradwatch.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), **{**QUIET, **settings})
    except gradwatch.GradwatchError as error:
        return str(error)
    return None


# --------------------------------------------------------------------------------------------------------- pipelines


def build():
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))]
    return [stage.double() for stage in stages]


def build_four():
    torch.manual_seed(0)
    sizes = [(6, 8), (8, 7), (7, 5)]
    stages = [*(nn.Sequential(nn.Linear(*size), nn.Tanh()) for size in sizes), nn.Sequential(nn.Linear(5, 3))]
    return [stage.double() for stage in stages]


def data():
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(16, 6, generator=generator, dtype=torch.float64)
        yield x, torch.randint(3, (16,), generator=generator)


def poison(stage, step, clip):
    """A NaN in the last stage's gradient alone."""
    if clip and "Nonfinite" in clip and step == POISONED:
        stage[-1].weight.grad[0, 0] = torch.nan


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def alone(folder, clip, stages):
    """The same in one process."""
    model = nn.Sequential(*stages)
    optimizer = sgd(model)
    watch = gradwatch.watch(model, optimizer, clip=clip, dir=folder, **QUIET)
    for step, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        poison(model[-1], step, clip)
        optimizer.step()
    watch.close()
    return watch.dir, [p.detach() for p in model.parameters()]


def staged(module, place, of, group):
    return PipelineStage(module, place, of, torch.device("cpu"), group=group)


def gpipe(place, group):
    module = build()[place]
    stage = staged(module, place, 2, group)
    return module, ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.cross_entropy), module


def one_ahead(place, group):
    module = build()[place]
    stage = staged(module, place, 2, group)
    return module, Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.cross_entropy), module


def interleaved(place, group):
    """Each rank has two stages of four."""
    stages = build_four()
    module = nn.ModuleList(stages[place::2])
    own = [staged(each, i, 4, group) for each, i in zip(module, (place, place + 2), strict=True)]
    return module, ScheduleInterleaved1F1B(own, n_microbatches=4, loss_fn=nn.functional.cross_entropy), module[-1]


SCHEDULES = {"gpipe": (gpipe, build, CLIPS), "1f1b": (one_ahead, build, ONE_AHEAD),
             "interleaved": (interleaved, build_four, ONE_AHEAD)}  # fmt: skip


def pipeline(folder):
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "stage"))
    place, group = grid["stage"].get_local_rank(), grid["stage"].get_group()
    for kind, (made, _, clips) in SCHEDULES.items():
        for i, clip in enumerate(clips):
            train_stage(folder / kind, i, clip, place, grid["stage"] if i % 2 else group, *made(place, group))


def train_stage(folder, i, clip, place, told, module, schedule, last):
    folder.mkdir(exist_ok=True)
    optimizer = sgd(module)
    if i == 0:
        said = {"lone": refusal(module, name=f"stage{place}")}
        said["vain"] = refusal(module, name=f"stage{place}", pipeline=told, clip="only('nothing*', ClipByNorm(1.0))")
        nested = "only('*0.0.*', only('*1.0.*', ClipByNorm(1.0)))"
        said["nested"] = refusal(module, name=f"stage{place}", pipeline=told, clip=nested)
        torch.save(said, folder / f"lone-{dist.get_rank()}.pt")
    how = {"clip": clip, "pipeline": told, "name": f"stage{place}", "dir": folder / str(i), **QUIET}
    watch = gradwatch.watch(module, optimizer, **how)
    for step, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        schedule.step(*([x] if place == 0 else []), **({"target": y} if place else {}))
        if place:
            poison(last, step, clip)
        optimizer.step()
    watch.close()
    torch.save(list(module.parameters()), folder / f"weights-{i}-{dist.get_rank()}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for part in (experts, pipeline):
        (Path(sys.argv[1]) / part.__name__).mkdir(exist_ok=True)
        part(Path(sys.argv[1]) / part.__name__)
    leave()
