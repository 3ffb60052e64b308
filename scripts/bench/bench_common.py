"""What the benchmarks share: models with a batch and a loss, optimizers, the machine's name, results as JSON."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch
from bench_output import STARTING_LOAD, cpu_name
from torch import Tensor, nn
from torch.nn import functional as F

import gradwatch

MAX_NORM = 1.0


class Block(nn.Module):
    """One pre-norm transformer block of 12 tensors."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A decoder that ends in its own embedding: 12 tensors a block, the embedding, a norm; positions if `context`."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, context: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width) if context else None
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embed.weight)

    def batch(self, size: int, length: int) -> tuple[Tensor, Tensor]:
        """Random tokens, and random tokens to predict: `[size, length]` each."""
        tokens = torch.randint(self.embed.num_embeddings, (2, size, length), device=self.embed.weight.device)
        return tokens[0], tokens[1]


class Residual(nn.Module):
    """Linear layers of one width, one after the other, each added to what it is given."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh() / len(self.layers)
        return x


def transformer() -> nn.Module:
    """74 tensors: 6 pre-norm blocks of width 256, an embedding and a final norm."""
    return Transformer(1024, 256, 6, 4)


def thousand() -> nn.Module:
    """1,000 small tensors: 500 linear layers of width 64."""
    return Residual(64, 500)


def mlp() -> nn.Module:
    """The seeds' MLP, 6 tensors, where fixed costs dominate."""
    return nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {"transformer-74": transformer, "linear-1000": thousand, "mlp-6": mlp}
GPTS: dict[str, Callable[[], Transformer]] = {
    "gpt-tiny": lambda: Transformer(256, 32, 2, 2, context=32),  # for the tests of the scripts
    "gpt2-124m": lambda: Transformer(50257, 768, 12, 12, context=1024),
    "gpt-1b": lambda: Transformer(50257, 2048, 18, 16, context=1024),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "fused AdamW": lambda params: torch.optim.AdamW(params, lr=1e-4, fused=True),
    "foreach AdamW": lambda params: torch.optim.AdamW(params, lr=1e-4, foreach=True),
    "SGD momentum": lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=True),
}


def small_batch(model: nn.Module, times: int = 1) -> Callable[[], Tensor]:
    """The loss of one small batch under a model of `MODELS`, as a function to call on every step.

    It is of 2 x 32 tokens, 32 vectors or 32 images, or `times` as many.
    """
    if isinstance(model, Transformer):
        tokens, targets = model.batch(2 * times, 32)
        return lambda: F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    if isinstance(model, Residual):
        x, y = torch.randn(2, 32 * times, 64)
        return lambda: F.mse_loss(model(x), y)
    images, labels = torch.randn(32 * times, 784), torch.randint(10, (32 * times,))
    return lambda: F.cross_entropy(model(images), labels)


def named(what: str, wanted: str, known: Mapping[str, Any]) -> list[str]:
    """The names of `known` in a comma-separated list; all for an empty one."""
    names = [name for name in wanted.split(",") if name] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"{what}: no {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def machine(device: str = "cpu") -> dict[str, Any]:
    """Where and with what a benchmark ran."""
    return {
        "machine": cpu_name() if device == "cpu" else f"{torch.cuda.get_device_name()}; {cpu_name()}",
        "load": STARTING_LOAD,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gradwatch": gradwatch.__version__,
    }
