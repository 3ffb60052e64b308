"""What the stages of a pipeline know of each other: one norm over the layers of all, and one decision."""

from __future__ import annotations

import gc
import math
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwatch.errors import WatchError
from gradwatch.measure.distributed import world_size


class Stages:
    """The stages of a pipeline, one or more on each rank of `group`; all ask for the same in the same order."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self._known: dict[tuple[str, ...], bool] = {}  # see `have`

    def norm(self, own: Tensor, p: float = 2.0) -> Tensor:
        """The p-norm over all stages, 0-d, from that of this rank's layers. One all-reduce of one number.

        As torchtitan's `clip_grad_norm_` joins the total norms over its pipeline mesh.
        """
        part = own.to(torch.float64)  # the square of a float32 norm may be out of float32's range
        if math.isinf(p):  # a maximum over ranks may lose a NaN: it travels as a flag
            both = torch.stack([part.nan_to_num(nan=torch.inf, posinf=torch.inf), part.isnan()])
            dist.all_reduce(both, dist.ReduceOp.MAX, group=self.group)
            return torch.where(both[1] > 0, torch.nan, both[0]).to(own.dtype)
        whole = part**p
        dist.all_reduce(whole, group=self.group)
        return (whole ** (1 / p)).to(own.dtype)

    def any(self, flag: Tensor) -> Tensor:
        """Whether `flag` (0-d bool) is true on any rank: a step must be left out on all or on none."""
        found = flag.to(torch.float32)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return found > 0

    def have(self, path: tuple[str, ...], here: bool, device: torch.device) -> bool:
        """Whether a layer of any stage fits these patterns, one inside the other, or `here` one does.

        The first time that is asked, when all stages are watched, is one all-reduce; the answer stays.
        """
        if path not in self._known:
            self._known[path] = bool(self.any(torch.tensor(here, dtype=torch.bool, device=device)))
        return self._known[path]


def refuse_lone_stage(model: nn.Module) -> None:
    """Refuse a stage of torch's pipelines of which it was not said who holds the others.

    Raises:
        WatchError: `model` is one: norms and policies would be of a part of the model without saying so.
    """
    library = sys.modules.get("torch.distributed.pipelining.stage")
    if library is None or world_size() == 1:
        return
    own = {id(module) for module in model.modules()}
    stages = (o for o in gc.get_objects() if issubclass(type(o), library._PipelineStageBase))
    stage = next((s for s in stages if s.num_stages > 1 and own & {id(module) for module in s.submod.modules()}), None)
    if stage is not None:
        raise WatchError(
            f"this {type(model).__name__} is stage {stage.stage_index} of {stage.num_stages} of a pipeline: a policy "
            "would see the norm of this stage alone. Say which ranks hold the stages, with pipeline= (the process "
            f'group or one-dimensional device mesh of the pipeline), and name="stage{stage.stage_index}"'
        )
