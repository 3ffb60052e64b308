"""How a model is spread over processes where its tensors do not say it: slices of experts, stages of a pipeline."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from gradwatch.errors import WatchError
from gradwatch.measure.distributed import Spread, world_size
from gradwatch.measure.fsdp import flat_spreads
from gradwatch.measure.pipeline import Stages, refuse_lone_stage
from gradwatch.recording.zero import Piece


@dataclass(frozen=True)
class Parallel:
    """`experts` are process groups by the pattern of the layers of which each rank holds other slices, `stages` that of
    a pipeline.
    """

    experts: Mapping[str, Any] = field(default_factory=dict)
    stages: Stages | None = None

    @classmethod
    def of(cls, experts: object, pipeline: object, name: str | None) -> Parallel:
        """What `watch()` was given.

        Raises:
            WatchError: it is of another kind, or a stage has no name.
        """
        if pipeline is not None and name is None:
            raise WatchError(
                "pipeline= without name=: rank 0 writes what has no name, and the layers of the other stages would not "
                'be recorded; give each stage its own, such as name=f"stage{stage.stage_index}"'
            )
        if not isinstance(experts, Mapping | None) or not all(isinstance(pattern, str) for pattern in experts or ()):
            raise WatchError(
                f"experts={experts!r:.80}: wanted patterns with process groups, {{'*.experts.*': mesh['ep']}}"
            )
        groups = {pattern: _group(given, "experts") for pattern, given in (experts or {}).items()}
        return cls(groups, None if pipeline is None else Stages(_group(pipeline, "pipeline")))

    def spreads(self, model: nn.Module, layers: Mapping[str, Tensor]) -> dict[int, Spread]:
        """How these layers of the model are spread, by their ids, where their tensors do not say it.

        Raises:
            WatchError: it is not known how, or a pattern fits no layer.
        """
        if self.stages is None:
            refuse_lone_stage(model)
        spreads = flat_spreads(model) | {id(p): p.spread for p in layers.values() if isinstance(p, Piece)}
        for pattern, group in self.experts.items():
            slices = [(name, p) for name, p in layers.items() if fnmatchcase(name, pattern)]
            if not slices:
                raise WatchError(
                    f"experts={{{pattern!r}: ...}} fits no layer; the layers are {', '.join([*layers][:8])}"
                )
            if any(id(p) in spreads for _, p in slices):
                raise WatchError(f"experts={{{pattern!r}: ...}}: these layers are cut by FSDP1 or ZeRO, too")
            size = dist.get_world_size(group)
            for _, p in slices:
                first, *rest = p.shape or (1,)
                spreads[id(p)] = Spread((first * size, *rest), beside=group)
        _refuse_unsaid({name: p for name, p in layers.items() if id(p) not in spreads})
        return spreads


def _refuse_unsaid(layers: Mapping[str, Tensor]) -> None:
    """Refuse plain tensors that say of themselves that other ranks hold other slices, as Megatron and DeepSpeed mark.

    Raises:
        WatchError: one does.
    """
    if world_size() == 1:
        return
    for name, p in layers.items():
        if getattr(p, "allreduce", True) is False:
            raise WatchError(
                f"{name} is marked as an expert's (allreduce=False): each rank of an expert-parallel group holds "
                "another, and the norm would be that of one rank's. Say which group, with experts="
            )
        if getattr(p, "tensor_model_parallel", False) and not _is_whole():
            raise WatchError(
                f"{name} is one rank's slice of a tensor-parallel layer (tensor_model_parallel=True), and no DTensor "
                "that says who holds the others: the norm would be that of one slice. Use Megatron's own clipping, or "
                "parallelize_module"
            )


def _is_whole() -> bool:
    """Whether Megatron says that each rank has all of its tensor-parallel layers: it marks them as slices even then."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is None or state.get_tensor_model_parallel_group(check_initialized=False) is None:
        return False
    return bool(state.get_tensor_model_parallel_world_size() == 1)


def _group(given: Any, name: str) -> Any:
    """The process group that somebody gave as one or as a device mesh of one dimension.

    Raises:
        WatchError: it is neither.
    """
    if dist.is_available() and dist.is_initialized():
        if isinstance(given, dist.ProcessGroup):
            return given
        if getattr(given, "ndim", None) == 1 and hasattr(given, "get_group"):
            return given.get_group()
    raise WatchError(f"{name}={given!r:.80}: wanted a process group, or a device mesh of one dimension")
