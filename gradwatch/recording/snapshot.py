"""A training's whole state at one moment, in the host's memory: taken behind its back, put back in place."""

from __future__ import annotations

import copy
import random
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.errors import RunError, WatchError
from gradwatch.measure.autograd import without_autograd
from gradwatch.measure.distributed import is_sharded, local
from gradwatch.measure.fsdp import reshard
from gradwatch.recording.host_copies import Copier, mapped
from gradwatch.storage.folder import put

SCALER = ("_scale", "_growth_tracker")  # of a GradScaler; its state_dict() would wait for the device
FORMAT = 1


@dataclass
class Snapshot:
    """The state before a step. `state` is of dicts, lists, plain values and tensors on the host, once `ready`."""

    step: int  # the number of the first step after it
    place: int  # of the next batch, counted from the first of the pass through the loader
    state: dict[str, Any]
    ready: Any = None  # a CUDA event behind the copies

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        found: list[int] = []
        mapped(self.state, lambda t: found.append(t.numel() * t.element_size()) or t)  # type: ignore[func-returns-value]
        return sum(found)

    def wait(self) -> None:
        """Until the copies are there."""
        if self.ready is not None:
            self.ready.synchronize()
            self.ready = None

    def save(self, path: Path, more: Mapping[str, Any]) -> None:
        """Write it to `path`, with what else is to be known when it is loaded; a reader sees all of it or nothing.

        Raises:
            OSError: the disk refuses.
            RunError: a scheduler's state holds what could not be read again.
        """
        self.wait()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        torch.save({"format": FORMAT, "step": self.step, "place": self.place, "state": self.state, **more}, temporary)
        try:
            _read(temporary, mmap=True)
        except Exception as error:  # a pickle's, which names the kind, or the disk's
            kind = re.search(r"GLOBAL (\S+)", str(error))
            if kind is None:
                raise
            raise RunError(
                f"it would hold a {kind[1]}, which is not read without running code; wanted are "
                "tensors, numbers, texts, lists and dicts, in state_dict() and in param groups"
            ) from error
        put(temporary, path)


def _read(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Without running anything that is in it; numpy's numbers are plain data."""
    kinds: list[Any] = [np.dtype, np.float64(0).__reduce__()[0], *(type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd")]
    with torch.serialization.safe_globals(kinds):
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        return found


def load(path: Path) -> tuple[Snapshot, dict[str, Any]]:
    """What `save` has written.

    Raises:
        RunError: it cannot be read.
    """
    try:
        data = _read(path)
        if data.pop("format") != FORMAT:
            raise ValueError("it is of another version of gradwatch")
        return Snapshot(data.pop("step"), data.pop("place"), data.pop("state")), data
    except Exception as error:  # a file that is cut or of something else fails in many ways
        raise RunError(f"{path} cannot be read as a snapshot: {error}; remove it, and an older one is taken") from error


class Training:
    """What a snapshot holds of a training: weights and buffers, optimizers, schedulers, a scaler, random numbers."""

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], schedulers: Sequence[Any], scaler: Any, device: Any
    ) -> None:
        self.model, self.schedulers, self.scaler = model, schedulers, scaler
        self.optimizers = [each for outer in optimizers for each in (outer, *_inner(outer))]
        self.device = torch.device(device)
        self.copier = Copier(self.device)

    @without_autograd
    def take(self, step: int, place: int, more: Mapping[str, Any]) -> Snapshot:
        """A snapshot of now, with `more` of dicts, plain values and tensors."""
        copier, (weights, buffers) = self.copier, self._tensors()
        copier.begin()
        state = {
            "weights": {name: copier.late(p) for name, p in weights},
            "buffers": {name: copier.early(b) for name, b in buffers},
            "optimizers": [self._optimizer(o) for o in self.optimizers],
            "schedulers": [mapped(s.state_dict(), copier.early) for s in self.schedulers],
            "scaler": {key: mapped(getattr(self.scaler, key, None), copier.early) for key in SCALER},
            "random": random_state(self.device),
            **mapped(more, copier.early),
        }
        return Snapshot(step, place, state, copier.end())

    def fits(self, snapshot: Snapshot) -> bool:
        """Whether the model and the optimizers have the parameters and buffers that they had then."""
        state = snapshot.state
        held = [{name: t.shape for name, t in state[kind].items()} for kind in ("weights", "buffers")]
        live = [{name: local(t).shape for name, t in found} for found in self._tensors()]
        groups = [[len(group["params"]) for group in o.param_groups] for o in self.optimizers]
        if live != held or len(groups) != len(state["optimizers"]):
            return False
        return all(  # files of earlier releases have no sizes
            one.get("sizes", own) == own for one, own in zip(state["optimizers"], groups, strict=True)
        )

    @without_autograd
    def put_back(self, snapshot: Snapshot) -> None:
        """Everything as it was; tensors stay the same objects.

        Raises:
            WatchError: the model or an optimizer has other parameters than then.
        """
        snapshot.wait()
        state = snapshot.state
        if not self.fits(snapshot):
            raise WatchError(
                f"the snapshot before step {snapshot.step} is of other parameters than this model and its optimizers "
                "have: go on with the model that it was taken of"
            )
        for kind, found in zip(("weights", "buffers"), self._tensors(), strict=True):
            for name, tensor in found:
                local(tensor).copy_(state[kind][name])
        for optimizer, held in zip(self.optimizers, state["optimizers"], strict=True):
            self._put_back(optimizer, held)
        for scheduler, held in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(copy.deepcopy(held))
        for key, value in state["scaler"].items() if self.scaler is not None else ():
            setattr(self.scaler, key, None if value is None else value.to(self.device))
        set_random_state(state["random"], self.device)

    def _tensors(self) -> tuple[Iterator[tuple[str, Tensor]], Iterator[tuple[str, Tensor]]]:
        reshard(self.model)
        return self.model.named_parameters(), self.model.named_buffers()

    def _optimizer(self, optimizer: Optimizer) -> dict[str, Any]:
        """Of an optimizer: what it holds of each parameter, by place, what else is in its state, and the settings and
        sizes of its groups.
        """
        params = (p for group in optimizer.param_groups for p in group["params"])
        return {
            "state": [mapped(optimizer.state.get(p, {}), self.copier.late) for p in params],
            "own_state": {
                key: mapped(value, self.copier.late) for key, value in optimizer.state.items() if _is_own(key)
            },
            "sizes": [len(group["params"]) for group in optimizer.param_groups],
            "groups": [
                mapped({k: v for k, v in group.items() if k != "params"}, self.copier.early)
                for group in optimizer.param_groups
            ],
        }

    def _put_back(self, optimizer: Optimizer, held: Mapping[str, Any]) -> None:
        groups = optimizer.param_groups
        params = [p for group in groups for p in group["params"]]
        for group, settings in zip(groups, held["groups"], strict=True):
            for key, value in settings.items():
                group[key] = _renewed(group.get(key), value, self.device)
        owners = (group for group in groups for _ in group["params"])
        for p, group, values in zip(params, owners, held["state"], strict=True):
            if not values:
                optimizer.state.pop(p, None)
                continue
            live = optimizer.state[p]
            on_device = bool(group.get("fused") or group.get("capturable"))
            new = {
                k: _renewed(live.get(k), v, p.device if on_device or _is_array(v) else "cpu", p)
                for k, v in values.items()
            }
            live.clear()
            live.update(new)
        if "own_state" not in held:  # in a file of an earlier release
            return
        for key in [key for key in optimizer.state if _is_own(key) and key not in held["own_state"]]:
            del optimizer.state[key]
        for key, value in held["own_state"].items():
            optimizer.state[key] = _renewed(optimizer.state.get(key), value, self.device)


class Snapshots:
    """The last `keep` snapshots of a training: one every `every` steps, and one when it has other layers."""

    def __init__(self, training: Training, every: int, keep: int) -> None:
        self.training, self.every = training, every
        self._kept: deque[Snapshot] = deque(maxlen=keep)
        self._next = 0  # the step before which one is due
        self._layers: object = None  # of which the last one was taken

    def __iter__(self) -> Iterator[Snapshot]:
        """From the oldest on."""
        return iter(self._kept)

    def clear(self) -> None:
        """Forget them: the next one is due."""
        self._kept.clear()

    def is_due(self, step: int, layers: object) -> bool:
        """Whether one is to be taken before this step; `layers` stays the same object while they are the same."""
        return not self._kept or step >= self._next or layers is not self._layers

    def take(self, step: int, place: int, layers: object, more: Mapping[str, Any]) -> Snapshot:
        """As `Training.take`."""
        self._kept.append(self.training.take(step, place, more))
        self._next, self._layers = step + self.every, layers
        return self._kept[-1]

    def before(self, step: int) -> Snapshot | None:
        """The newest that is of before this step and that the training can be put back to."""
        return next((s for s in reversed(self._kept) if s.step <= step and self.training.fits(s)), None)

    def go_back(self, snapshot: Snapshot, step: int) -> None:
        """Put the training back; the later ones are void, and the next step is `step`."""
        while self._kept[-1] is not snapshot:
            self._kept.pop()
        self.training.put_back(snapshot)
        self._next = step + self.every


def _inner(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizers that one steps with and that hold the state: ZeroRedundancyOptimizer's own of this rank."""
    return [each for each in vars(optimizer).values() if isinstance(each, Optimizer)]


def _is_array(value: Any) -> bool:
    """Whether it is no number, in which torch's optimizers count on the host: those are with the weights."""
    return not isinstance(value, Tensor) or value.dim() > 0


def _is_own(key: Any) -> bool:
    """Whether what an optimizer's state has under it is of no parameter: a count of its own steps, say."""
    return isinstance(key, str | int)


def _renewed(live: Any, held: Any, device: Any, like: Tensor | None = None) -> Any:
    """A value as it was: a tensor in its own memory, where it has one of its shape; else anew, spread as `like` is
    where it has that shape, or on `device`.
    """
    if not isinstance(held, Tensor):
        return mapped(held, lambda t: t.to(device, copy=True))
    if isinstance(live, Tensor) and local(live).shape == held.shape and live.dtype == held.dtype:
        local(live).copy_(held)
        return live
    if like is not None and local(like).shape == held.shape:
        own = held.to(local(like).device, copy=True)
        if not is_sharded(like):
            return own
        from torch.distributed.tensor import DTensor

        whole: Any = like
        return DTensor.from_local(own, whole.device_mesh, whole.placements, shape=like.shape, stride=like.stride())
    return held.to(device, copy=True)


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of the random numbers of torch (host, and this device), numpy and Python."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), *map(float, rest)],
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Draw from there again."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    name, keys, at, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), int(at), int(has_gauss), gauss))
    version, numbers, gauss_next = state["python"]
    random.setstate((version, tuple(numbers), gauss_next))
