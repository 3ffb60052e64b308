"""Each rank's own gradient norm, before DistributedDataParallel averages it away: so that one bad rank can be named.

Legend: R ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwatch.errors import WatchError


def ddp_of(model: nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel that a model is, maybe behind `torch.compile` or Fabric's wrapper, or None."""
    while not isinstance(model, DistributedDataParallel):
        inner = getattr(model, "_orig_mod", None) or getattr(model, "_forward_module", None)
        if inner is None:
            return None
        model = inner
    return model


def rank_norms(model: nn.Module) -> RankNorms:
    """The RankNorms of a DDP model: the one it has from an earlier Watch, or a new one.

    Raises:
        WatchError: the model is not a DistributedDataParallel, or has another communication hook.
    """
    hooks = getattr(ddp_of(model), "_comm_hooks", ())
    return next((state for _, state in hooks if isinstance(state, RankNorms)), None) or RankNorms(model)


class RankNorms:
    """Sits in DDP's communication hook, where a rank's gradient is still its own."""

    def __init__(self, model: nn.Module) -> None:
        ddp = ddp_of(model)
        if ddp is None:
            raise WatchError(
                f"ranks=True: a rank's own gradient can only be seen in the communication hook of "
                f"DistributedDataParallel, and the model is a {type(model).__name__}; under fully_shard and tensor "
                "parallelism gradients are reduced inside torch. Pass the DDP model, or leave ranks out"
            )
        self._group = ddp.process_group
        self._size = dist.get_world_size(self._group)
        self._squares: Tensor | None = None
        try:
            ddp.register_comm_hook(self, _note_and_average)
        except RuntimeError as error:
            raise WatchError(
                "ranks=True needs the communication hook of DistributedDataParallel, and this model has one already "
                f"({str(error).splitlines()[0]}): leave out one of the two"
            ) from error

    def note(self, bucket: Any) -> None:
        """Take the norm of one bucket of this rank's gradients; the first bucket of a backward begins anew."""
        dtype = torch.promote_types(bucket.buffer().dtype, torch.float32)
        square = torch.linalg.vector_norm(bucket.buffer(), dtype=dtype).to(torch.float64).square()
        self._squares = square if bucket.index() == 0 or self._squares is None else self._squares + square

    def values(self, loss_scale: Tensor | None) -> dict[str, Tensor]:
        """Every rank's norm by the name that it is recorded by, without the loss scale; empty before the first."""
        norms = self.gather()
        if norms is None:
            return {}
        norms = norms if loss_scale is None else norms / loss_scale
        return {f"rank_grad_norm/{rank}": norm for rank, norm in enumerate(norms.unbind())}

    def gather(self) -> Tensor | None:
        """Every rank's norm `[R]` as of the last backward, still loss-scaled; None before the first. One all-gather."""
        if self._squares is None:
            return None
        norms = self._squares.new_empty(self._size)
        dist.all_gather_into_tensor(norms, self._squares.sqrt().view(1), group=self._group)
        return norms


def _note_and_average(state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations, and not with texts
    """What DDP does without a hook, to the bit: multiply by 1 / R, add up."""
    state.note(bucket)
    scaled = bucket.buffer().mul_(1 / state._size)
    work = dist.all_reduce(scaled, group=state._group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])
