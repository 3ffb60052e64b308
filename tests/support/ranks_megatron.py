"""One of two ranks with layers of Megatron-Core under DistributedDataParallel; leaves what it saw in a folder.

torchrun --nproc-per-node 2 tests/support/ranks_megatron.py FOLDER
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwatch

STEPS = 4
QUIET = {"log": None, "verbose": False}


class Net(nn.Module):
    """Megatron's two kinds of tensor-parallel layers, of which each rank here has the whole."""

    def __init__(self):
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer.transformer_config import TransformerConfig

        super().__init__()
        torch.manual_seed(0)
        config = TransformerConfig(
            num_layers=1, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True,
            gradient_accumulation_fusion=False,
        )  # fmt: skip
        how = {"config": config, "init_method": config.init_method, "bias": True, "skip_bias_add": False}
        self.up = ColumnParallelLinear(16, 32, gather_output=False, **how)
        self.down = RowParallelLinear(32, 16, input_is_parallel=True, **how)

    def forward(self, x):
        return self.down(self.up(x)[0].relu())[0]


def main(folder, size):
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    model, seen = Net(), {"marked": [], "said": None, "norms": []}
    seen["marked"] = [n for n, p in model.named_parameters() if getattr(p, "tensor_model_parallel", False)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    net = DistributedDataParallel(model)
    try:
        watch = gradwatch.watch(net, optimizer, dir=folder / "runs", **QUIET)
    except gradwatch.WatchError as error:
        seen["said"], watch = str(error), None
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS if watch else 0):
        x = torch.randn(8, 16, generator=generator).chunk(2)[dist.get_rank()]
        optimizer.zero_grad()
        net(x).square().mean().backward()
        seen["norms"].append([p.grad.double().norm().item() for p in model.parameters()])
        optimizer.step()
    if watch:
        watch.close()
    torch.save(seen, folder / f"{dist.get_rank()}.pt")
    parallel_state.destroy_model_parallel()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.cuda.current_device = lambda: torch.device("cpu")  # Megatron asks for it where there is none, too
    dist.init_process_group("gloo")
    for size in (1, 2):
        (Path(sys.argv[1]) / str(size)).mkdir(exist_ok=True)
        main(Path(sys.argv[1]) / str(size), size)
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)
