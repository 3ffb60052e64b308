"""One of two ranks under DeepSpeed's ZeRO; leaves what it saw in a folder.

torchrun --nproc-per-node 2 tests/support/ranks_deepspeed.py FOLDER
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import gradwatch

STEPS, ACCUMULATED, CLIP, POISONED = 8, 2, 0.25, 5
CASES = {  # by name: stage, dtype, whether it clips, whether a gradient is poisoned
    **{f"stage-{stage}": (stage, torch.float32, False, False) for stage in (1, 2, 3)},
    **{f"stage-{stage}-clips": (stage, torch.float32, True, False) for stage in (1, 2, 3)},
    **{f"stage-{stage}-bfloat16": (stage, torch.bfloat16, False, False) for stage in (1, 2, 3)},
    **{f"stage-{stage}-nan": (stage, torch.float32, False, True) for stage in (1, 2, 3)},
}
STAGE_0_CLIP = f"ClipByGlobalNorm({CLIP})"
QUIET = {"log": None, "verbose": False, "every": 2}


class Net(nn.Module):
    """Layers that two ranks do not divide, and one that is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5))
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.frozen(self.body(x)))


def groups(model):
    return [{"params": model.body.parameters(), "lr": 0.02}, {"params": model.head.parameters(), "lr": 0.005}]


def data(poisoned):
    """Micro-batches of both ranks together, as many in a step as are accumulated."""
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        for _ in range(ACCUMULATED):
            x = torch.randn(16, 6, generator=generator)
            if poisoned and step == POISONED:
                x[0, 0] = torch.nan
            yield x, torch.randint(3, (16,), generator=generator)


def alone(folder, dtype, clips, poisoned, clip=None):
    """The same in one process: what ZeRO does is written in plain torch."""
    model = Net().to(dtype)
    optimizer = torch.optim.AdamW(groups(model))
    watch = gradwatch.watch(model, optimizer, clip="SkipNonfinite()" if poisoned else clip, dir=folder, **QUIET)
    for i, (x, y) in enumerate(data(poisoned)):
        (nn.functional.cross_entropy(model(x.to(dtype)).float(), y) / ACCUMULATED).backward()
        if i % ACCUMULATED == ACCUMULATED - 1:
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    return watch.dir, dict(model.named_parameters())


def configured(stage, dtype, clips):
    return {
        "train_batch_size": 16 * ACCUMULATED,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": ACCUMULATED,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": CLIP if clips else 0.0,
        "bf16": {"enabled": dtype is torch.bfloat16},
        "steps_per_print": 10**6,
    }


def watched(folder, deepspeed, stage, dtype, clips, poisoned):
    model = Net()
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(groups(model)), config=configured(stage, dtype, clips)
    )
    said = {f"{asked}=": refused(gradwatch.watch, engine, optimizer, **{asked: how}) for asked, how in ASKED.items()}
    gradwatch.watch(engine, optimizer, dir=folder.parent / "first", **QUIET)  # the next takes its place
    said["Rewind"] = refused(gradwatch.Rewind, engine, optimizer)
    watch = gradwatch.watch(engine, optimizer, dir=folder, **QUIET)
    own, half = [], slice(8 * dist.get_rank(), 8 * dist.get_rank() + 8)
    for i, (x, y) in enumerate(data(poisoned)):
        engine.backward(nn.functional.cross_entropy(engine(x[half].to(dtype)).float(), y[half]))
        engine.step()
        if i % ACCUMULATED == ACCUMULATED - 1:
            own.append(float(engine.get_global_grad_norm()))
    watch.close()
    left = "step" in vars(optimizer)
    names = {n: deepspeed.utils.safe_get_full_fp32_param(p) for n, p in model.named_parameters() if p.requires_grad}
    return {"own": own, "said": said, "left": left, "weights": names}


def without_zero(folder, deepspeed):
    """Stage 0 in float32: the optimizer is torch's own, of the layers, and policies act on it."""
    model = Net()
    settings = configured(0, torch.float32, False)
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(groups(model)), config=settings
    )
    watch, rank = gradwatch.watch(engine, optimizer, clip=STAGE_0_CLIP, dir=folder, **QUIET), dist.get_rank()
    for x, y in data(False):
        mine = slice(8 * rank, 8 * rank + 8)
        engine.backward(nn.functional.cross_entropy(engine(x[mine]), y[mine]))
        engine.step()
    watch.close()
    return {"weights": {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}}


ASKED = {"clip": "ClipByGlobalNorm(1.0)", "renorm": "MaxNorm(3.0)", "lr_scale": 0.5, "warmup": 3, "slots": True}


def refused(make, engine, optimizer, **asked):
    try:
        make(engine, optimizer, **(asked and {**QUIET, **asked}))
    except gradwatch.WatchError as error:
        return str(error)
    return None


def main(folder):
    import deepspeed

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # an extension in C++, for speed alone
    deepspeed.init_distributed("gloo")
    for name, case in CASES.items():
        seen = watched(folder / name / "runs", deepspeed, *case)
        torch.save(seen, folder / name / f"{dist.get_rank()}.pt")
        dist.barrier()
    torch.save(without_zero(folder / "stage-0" / "runs", deepspeed), folder / "stage-0" / f"{dist.get_rank()}.pt")
    dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in (*CASES, "stage-0"):
        (Path(sys.argv[1]) / name).mkdir(exist_ok=True)
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # DeepSpeed's own threads may hang at exit
