"""FSDP: parameters as between two steps, cut; of FSDP1 (FullyShardedDataParallel) also which layers its pieces are of.

FSDP1 gathers the parameters of a module in one flat buffer and gives each rank a slice of that. Under
`use_orig_params=True` a parameter as the model shows it between two steps is the part of it, flattened, that lies in
this rank's slice.
"""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch import nn

from gradwatch.errors import WatchError
from gradwatch.measure.distributed import Spread


def reshard(model: nn.Module) -> None:
    """Between two steps: let the model show the parameters that the optimizer steps, and gather them anew when it needs
    them. After a forward pass without a backward one (a validation) those of the root are still gathered.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    for module in () if fsdp is None else model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()
        elif isinstance(module, fsdp.FullyShardedDataParallel):
            handle = module._handle
            begun = handle is not None and hasattr(handle.flat_param, "_local_shard")  # with the first forward pass
            if begun and handle.uses_sharded_strategy:
                sys.modules["torch.distributed.fsdp._runtime_utils"]._reshard(module, handle, True)


def flat_spreads(model: nn.Module) -> dict[int, Spread]:
    """How the parameters that FSDP1 has cut are spread over ranks, by id; NO_SHARD leaves them whole.

    Raises:
        WatchError: only the flat buffers are there, not the layers.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return {}
    handles = [m._handle for m in model.modules() if isinstance(m, fsdp.FullyShardedDataParallel)]
    found: dict[int, Spread] = {}
    for handle in handles:
        if handle is not None and handle.uses_sharded_strategy:
            found.update(_pieces(handle))
    return found


def _pieces(handle: Any) -> dict[int, Spread]:
    if not handle._use_orig_params:
        raise WatchError(
            "FullyShardedDataParallel(use_orig_params=False) shows the optimizer flat buffers in place of layers: "
            "whose gradient an element is cannot be told. Pass use_orig_params=True, or use fully_shard (FSDP2)"
        )
    group, flat = handle.process_group, handle.flat_param
    ranks = frozenset(dist.get_process_group_ranks(group))
    shapes = zip(flat._params, flat._shapes, strict=True)
    return {id(p): Spread(tuple(shape), ranks, group, is_flat=True) for p, shape in shapes}
