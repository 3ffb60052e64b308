"""DeepSpeed's ZeRO, stages 1 to 3: the pieces of layers that this rank holds, and an optimizer that shows them.

ZeRO lays parameters one after the other in flat buffers, gives each rank a share of them, and steps that share alone.
When `engine.step()` begins, each rank has the averaged gradient of its share: whole layers, pieces of some, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.errors import WatchError, warn
from gradwatch.formulas import clip_coef
from gradwatch.measure.distributed import Spread
from gradwatch.measure.patch import Patch
from gradwatch.recording.loop_clips import Clip
from gradwatch.recording.torch_patches import tell


class Piece(nn.Parameter):
    """What this rank holds of a layer, flattened: the weights that ZeRO steps, in ZeRO's own memory.

    `gradient()` is its averaged gradient, flattened, when the step begins.
    """

    spread: Spread
    gradient: Callable[[], Tensor]
    grad: Tensor | None = None  # no leaf's: that of bfloat16 weights in float32 may be of bfloat16

    @classmethod
    def of(cls, weights: Tensor, spread: Spread, gradient: Callable[[], Tensor]) -> Piece:
        """The piece in this memory."""
        piece = cls(weights.detach())
        piece.spread, piece.gradient = spread, gradient
        return piece


class ZeroOptimizer(Optimizer):
    """DeepSpeed's optimizer as one of torch's, whose parameters are the pieces and whose step is the whole of ZeRO's.

    Between `attach` and `detach` each step of ZeRO's is one of this.

    Raises:
        WatchError: ZeRO runs in a way in which its pieces are not what they are measured as.
    """

    def __init__(self, zero: Any) -> None:
        _refuse(zero)
        self.zero, self.pieces = zero, dict[int, Piece]()
        groups: list[list[Piece]] = [[] for _ in zero.optimizer.param_groups]
        try:
            for group, param, piece in _STAGES[_kind(zero)](zero):
                groups[group].append(piece)
                self.pieces[id(param)] = piece
        except (AttributeError, LookupError, TypeError) as error:
            raise WatchError(
                f"the weights and gradients of {type(zero).__name__} are not where DeepSpeed 0.19, which is measured, "
                f"has them: {error!r}. Use that version, or fully_shard (FSDP2)"
            ) from error
        super().__init__([{"params": pieces} for pieces in groups], {})
        self._copy_settings()
        self._patch = Patch([(zero, "step")], self._in_place_of)
        self._step: Callable[..., Any] = zero.step

    @classmethod
    def of(cls, zero: Any) -> ZeroOptimizer:
        """The one through which this ZeRO steps already, or a new one."""
        known = getattr(zero.step, "__self__", None)
        return known if isinstance(known, cls) else cls(zero)

    @property
    def drops_nonfinite(self) -> bool:
        """Whether ZeRO leaves out a step whose total norm is not finite."""
        return self.zero.dtype is not torch.bfloat16 or bool(getattr(self.zero, "check_grad_overflow", True))

    def attach(self) -> None:
        """From now on a step of ZeRO's is one of this."""
        self._patch.on()

    def detach(self) -> None:
        """Until now."""
        self._patch.off()

    def step(self, closure: Any = None) -> Any:
        """ZeRO's own step, which may clip before it steps."""
        out = self._step()
        norm, most = getattr(self.zero, "_global_grad_norm", None), self.zero.clip_grad
        if most > 0 and isinstance(norm, Tensor) and not self.zero.overflow:
            tell(Clip([*self.pieces.values()], {"user_max_norm": most, "user_grad_norm": norm}, clip_coef(norm, most)))
        return out

    def _in_place_of(self, step: Callable[..., Any]) -> Callable[..., Any]:
        self._step = step
        return self._begin

    def _begin(self, closure: Any = None) -> Any:
        """What the engine calls: the pieces have gradients while it runs."""
        self._copy_settings()
        pieces = [*self.pieces.values()]
        try:
            for piece, gradient in zip(pieces, self._gradients(pieces), strict=True):
                piece.grad = gradient
            return self.step()
        finally:
            for piece in pieces:
                piece.grad = None

    def _gradients(self, pieces: Sequence[Piece]) -> Sequence[Tensor | None]:
        try:
            return [piece.gradient() for piece in pieces]
        except Exception as error:  # inside another version of DeepSpeed: what is only looked at ends no training
            warn(f"the gradients of {type(self.zero).__name__} were not found where DeepSpeed 0.19 has them: {error!r}")
            return [None] * len(pieces)

    def _copy_settings(self) -> None:
        for own, theirs in zip(self.param_groups, self.zero.optimizer.param_groups, strict=False):  # one may be added
            own.update({key: value for key, value in theirs.items() if key != "params"})


def is_zero(optimizer: object) -> bool:
    """Whether it is an optimizer of DeepSpeed's ZeRO whose pieces are known here."""
    return _kind(optimizer) in _STAGES


def shown(model: nn.Module, optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, nn.Parameter]]:
    """The model's parameters by name; in the place of those that ZeRO has cut, the pieces."""
    pieces: dict[int, Piece] = {}
    for optimizer in optimizers:
        if isinstance(optimizer, ZeroOptimizer):
            pieces.update(optimizer.pieces)
    return ((name, pieces.get(id(p), p)) for name, p in model.named_parameters())


def refuse_acting(optimizers: Iterable[Optimizer], asked: Mapping[str, bool]) -> None:
    """Refuse what would act on the gradients, weights or rates that ZeRO steps, or looks at its states.

    Raises:
        WatchError: something of that is `asked` for.
    """
    wanted = [name for name, is_asked in asked.items() if is_asked]
    if wanted and any(isinstance(o, ZeroOptimizer) for o in optimizers):
        raise WatchError(
            f"{wanted[0]} with DeepSpeed's ZeRO, which is measured and not acted on: leave it out. Its own clip is "
            '"gradient_clipping" of its configuration, and is recorded; under DDP and fully_shard (FSDP2) policies act'
        )


def _kind(optimizer: object) -> tuple[str, str]:
    return type(optimizer).__module__, type(optimizer).__name__


def _refuse(zero: Any) -> None:
    parallel = getattr(zero, "model_parallel_group", None)
    params = (p for group in getattr(zero, "bit16_groups", None) or zero.fp16_groups for p in group)
    found = {
        "optimizer states or parameters that are offloaded": any(
            getattr(zero, name, False) for name in ("cpu_offload", "offload_optimizer", "offload_param", "zenflow")
        ),
        "float16": zero.dtype is torch.float16 or getattr(zero, "torch_autocast_gradscaler", None) is not None,
        "Muon (its updates stand in the place of gradients)": "muon" in type(zero.optimizer).__name__.lower(),
        "experts of its own": any(getattr(p, "allreduce", True) is False for p in params),
        "tensor parallelism": parallel is not None and dist.get_world_size(parallel) > 1,
    }
    why = next((name for name, is_so in found.items() if is_so), None)
    if why is not None:
        raise WatchError(
            f"{type(zero).__name__} with {why}: gradwatch measures DeepSpeed's ZeRO where each rank has the averaged "
            "gradients of its share beside the weights that it steps. Leave that out, or use fully_shard (FSDP2)"
        )


def _stage_1_and_2(zero: Any) -> Iterator[tuple[int, nn.Parameter, Piece]]:
    """Each param group is one flat buffer, of which a rank's share begins and ends anywhere."""
    for i, params in enumerate(zero.bit16_groups):
        group = zero.real_dp_process_group[i]
        ranks = frozenset(dist.get_process_group_ranks(group))
        nothing = zero.single_partition_of_fp32_groups[i].detach()[:0]
        for p in params:
            spread = Spread(tuple(p.shape), ranks, group, is_flat=True)
            here = getattr(p, "_hp_mapping", None)
            weights = nothing if here is None else here.get_hp_fragment()
            yield i, p, Piece.of(weights, spread, _gradient_of(p, nothing))


def _gradient_of(p: Any, nothing: Tensor) -> Callable[[], Tensor]:
    def gradient() -> Tensor:
        here = getattr(p, "_hp_mapping", None)
        found: Tensor = nothing if here is None else here.get_lp_grad_fragment(p._index_in_param_group).flatten()
        return found

    return gradient


def _stage_3(zero: Any) -> Iterator[tuple[int, nn.Parameter, Piece]]:
    """Each parameter is cut in as many equal pieces as there are ranks, the last of them padded."""
    for i, params in enumerate(zero.fp16_groups):
        group = zero.sub_group_process_groups[i]
        ranks = frozenset(dist.get_process_group_ranks(group))
        for k, p in enumerate(params):
            _, start, size = zero.grad_position[zero.get_param_id(p)]
            held = max(0, min(size, p.ds_numel - dist.get_rank(group) * size))
            weights = zero.fp32_partitioned_groups_flat[i].detach()[start : start + held]
            spread = Spread(tuple(p.ds_shape), ranks, group, is_flat=True)

            def gradient(i: int = i, k: int = k, held: int = held) -> Tensor:
                found: Tensor = zero.averaged_gradients[i][k].flatten()[:held]
                return found

            yield zero.sub_group_to_group_id[i], p, Piece.of(weights, spread, gradient)


_STAGES = {
    ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer"): _stage_1_and_2,
    ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3"): _stage_3,
}
