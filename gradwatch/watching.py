"""Watching a training loop: `watch()` checks and attaches, the Watch it returns is what the loop talks to."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch import delivery as _delivery
from gradwatch import layers as _layers
from gradwatch.errors import GradwatchWarning, PolicyError, WatchError
from gradwatch.history import Run
from gradwatch.layout import Layout
from gradwatch.policies import Policy, parse
from gradwatch.recorder import Recorder, refusal
from gradwatch.stepping import Stepper
from gradwatch.stores.files import create_folder, now_iso, read_manifest
from gradwatch.stores.writer import RunWriter

CLOSE_SECONDS = 10.0  # how long close() waits for the courier


class Watch:
    """One training loop that is being recorded. Made by `gradwatch.watch`.

    A context manager; `close()` also happens at interpreter exit.
    """

    def __init__(self, stepper: Stepper, writer: RunWriter, kept: Sequence[bool], courier: bool, verbose: bool) -> None:
        self._stepper, self._writer, self._kept, self._verbose = stepper, writer, kept, verbose
        self._wants_courier, self._url_said, self._closed = courier, False, False
        self._courier: subprocess.Popen[bytes] | None = None
        self._recorder = self._new_recorder()
        stepper.attach(self._recorder, self._between, owner=self)
        atexit.register(self._close_at_exit)

    @property
    def dir(self) -> Path:
        """The run's folder."""
        return self._writer.folder

    def log(self, **values: float | Tensor) -> None:
        """Add scalars to the last step taken: numbers, or one-element tensors on any device (nothing waits for them).

        Tensors are kept as float32. The last value of a name in a step counts.

        Raises:
            WatchError: a value is not a scalar, or a name is one that gradwatch records itself.
        """
        if self._closed:
            warnings.warn(
                f"watch.log({', '.join(values)}) after close(): nothing was recorded", GradwatchWarning, stacklevel=2
            )
            return
        problem = refusal(values)
        if problem is not None:
            raise WatchError(f"watch.log({problem}")
        self._recorder.log(values)
        if self._recorder.due:  # a long validation between two steps must not hold the rows back
            self._drain(last_too=False)

    def close(self, status: str = "FINISHED") -> None:
        """Write what is left, take the hooks off, and give the courier a moment to deliver. Twice is harmless.

        Args:
            status: the run's status in MLflow: FINISHED, FAILED or KILLED.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        self._stepper.detach()
        self._drain()
        self._start_courier()
        self._writer.close(status)
        self._say(f"{self._stepper.steps:,} steps recorded in {self.dir}")
        if self._courier is not None:
            cursor = _delivery.wait_delivered(self.dir, CLOSE_SECONDS, self._courier)
            self._say_url(cursor)
            if not cursor.get("done"):
                self._say(f"not all of it is in MLflow yet; gradwatch sync {self.dir} makes sure of it")

    def state_dict(self) -> dict[str, Any]:
        """The policy's state, the step count and where the run is recorded, for a checkpoint.

        Hands over what is recorded so far, all but the step just taken: a run resumed from here has its past on disk.
        """
        if not self._closed:
            self._drain(last_too=False)
        return {
            "steps": self._stepper.steps,
            "clip": repr(self._stepper.clip),
            "layers": list(self._stepper.layout.names),
            "policy_state": {k: v.clone() for k, v in self._stepper.state.items()},
            "dir": str(self.dir.resolve()),
            "attempt": self._writer.run.attempt,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was saved: same policy state, next step number, and the same run folder if it is there.

        Raises:
            WatchError: steps were already taken, or the state belongs to other layers or another policy.
        """
        stepper = self._stepper
        if stepper.steps:
            raise WatchError(f"load_state_dict() after {stepper.steps} steps: load before the first optimizer.step()")
        for name, found, wanted in (
            ("policy", state["clip"], repr(stepper.clip)),
            ("layers", list(state["layers"]), list(stepper.layout.names)),
        ):
            if found != wanted:
                raise WatchError(
                    f"this state was saved with other {name}: {found!r:.200}, and this Watch has "
                    f"{wanted!r:.200}; make the Watch as it was made then"
                )
        device = stepper.layout.device
        stepper.state = {
            k: v.to(stepper.state[k].device if k in stepper.state else device) for k, v in state["policy_state"].items()
        }
        stepper.steps = int(state["steps"])
        self._rejoin(Path(state["dir"]), int(state["attempt"]))

    def plan(self) -> str:
        """What happens on each step, in words."""
        clip, renorm, layout = self._stepper.clip, self._stepper.renorm, self._stepper.layout
        skip = clip is not None and clip.can_skip
        return "\n".join(
            [
                f"{len(layout.names)} layers, one norm pass a step on {layout.device}",
                f"clip: {clip!r}{'' if clip else '; gradients are left alone'}",
                *(["one bool is read from the device on each step: this policy can skip steps"] if skip else []),
                f"renorm: {renorm!r}{', after each step' if renorm else ''}",
                f"weight norms and update ratios every {self._stepper.every} steps",
            ]
        )

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("FINISHED" if kind is None else "KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED")

    def _new_recorder(self) -> Recorder:
        return Recorder(
            self._writer.run, self._kept, self._stepper.extra_fields(), self._stepper.layout.device, self._writer.append
        )

    def _between(self) -> None:
        self._start_courier()
        if self._recorder.due:
            self._drain()

    def _drain(self, last_too: bool = True) -> None:
        self._recorder.drain(last_too)
        target = self._writer.run.mlflow
        if target is not None and not target["run_id"]:
            active = _delivery.find_active_run()
            if active is not None:
                self._writer.update(mlflow={**target, **active})
        if not self._url_said and self._courier is not None:
            self._say_url(_delivery.read_cursor(self.dir))

    def _start_courier(self) -> None:
        if self._wants_courier:
            self._wants_courier = False
            self._courier = _delivery.start_courier(self.dir)

    def _rejoin(self, folder: Path, attempt: int) -> None:
        """Record into the folder of the run that is resumed, as a new attempt."""
        if not folder.is_dir() or folder == self.dir.resolve():
            return
        run, empty = read_manifest(folder), self._writer
        empty.close("KILLED")
        for path in sorted(empty.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        empty.folder.rmdir()
        attempt = max(attempt, run.attempt) + 1
        self._writer = RunWriter(
            folder,
            replace(
                run,
                attempt=attempt,
                status="RUNNING",
                ended=None,
                pid=os.getpid(),
                host=socket.gethostname(),
                layers=empty.run.layers,
            ),
        )
        self._stepper.recorder = self._recorder = self._new_recorder()

    def _close_at_exit(self) -> None:
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self.close("FINISHED" if error is None else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")

    def _say_url(self, cursor: Mapping[str, Any]) -> None:
        if cursor.get("url") and not self._url_said:
            self._url_said = True
            served = str(cursor.get("tracking_uri")).startswith("http")
            self._say(f"MLflow{'' if served else ', once `gradwatch ui` runs'}: {cursor['url']}")

    def _say(self, text: str) -> None:
        if self._verbose:
            print(f"gradwatch: {text}", file=sys.stderr)


def watch(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    clip: Policy | str | None = None,
    renorm: Policy | str | None = None,
    every: int = 10,
    total_steps: int | None = None,
    log: str | None = "mlflow",
    dir: str | Path = "gradwatch-runs",
    run_name: str | None = None,
    run_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
    layers: Sequence[str] = ("*",),
    ignore: Sequence[str] = (),
    slots: bool = False,
    mlflow_layers: int = 16,
    delivery: str = "courier",
    verbose: bool = True,
) -> Watch:
    """Watch a training loop: from now on every `optimizer.step()` is measured, clipped, constrained and recorded.

    Args:
        model: the model; its parameters' names are the layers' names.
        optimizer: the optimizer, or several that share one model (one global norm over all of them when they step
            together).
        clip: what happens to gradients before the step: a policy, its text such as `"ClipByGlobalNorm(1.0)"`, or None.
        renorm: what happens to weights after the step: a constraint such as `MaxNorm(3.0)`, its text, or None.
        every: steps between measurements of weight norms and update ratios.
        total_steps: the length of the run, if known: MLflow then gets about 300 points of each curve.
        log: `"mlflow"`, or None for files only. The active MLflow run is joined; otherwise one is started.
        dir: the folder that holds the run folders.
        run_name: the run's name; by default the model's class.
        run_id: an MLflow run to join.
        tags: MLflow tags of the run.
        params: settings worth comparing (seed, batch size, ...): they become MLflow params and columns of reports.
        layers: shell-style patterns of layers to record; policies act on all layers whatever this says.
        ignore: patterns of layers not to record.
        slots: also record the norms of the optimizer's own tensors (`slot_norm/exp_avg`, ...).
        mlflow_layers: how many curves per quantity go to MLflow; more layers are summed up by module block.
        delivery: `"courier"` starts a process that delivers the run to MLflow; `"none"` leaves it to `gradwatch sync`.
        verbose: whether to say on stderr where the run is recorded.

    Raises:
        WatchError: none of the model's parameters is in the optimizer, or an argument makes no sense.
        PolicyError: an unknown policy or a setting out of range.
        RunError: the run's folder cannot be made.
    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    policies = _policy(clip, "clip"), _policy(renorm, "renorm")
    _check(optimizers, every, total_steps, log, delivery, mlflow_layers)
    named = _layers.named_layers(model, optimizers)
    kept = [_layers.matches(name, layers) and not _layers.matches(name, ignore) for name in named]
    if not any(kept):
        raise WatchError(
            f"layers={layers!r} and ignore={ignore!r} leave nothing to record; the layers are "
            f"{', '.join(list(named)[:8])}{', ...' if len(named) > 8 else ''}"
        )
    target = _delivery.target(run_id) if log == "mlflow" else None
    names = _layers.optimizer_names(optimizers)
    run = Run(
        name=run_name or type(model).__name__,
        created=now_iso(),
        layers=_layers.describe(named),
        optimizers=tuple(_layers.describe_optimizer(o, n) for o, n in zip(optimizers, names, strict=True)),
        clip=repr(policies[0]) if policies[0] else None,
        renorm=repr(policies[1]) if policies[1] else None,
        every=every,
        total_steps=total_steps,
        window=max(1, -(-total_steps // 300)) if total_steps else 50,
        mlflow_layers=mlflow_layers,
        pid=os.getpid(),
        host=socket.gethostname(),
        tags=dict(tags or {}),
        mlflow=target,
        params={**{k: str(v) for k, v in (params or {}).items()}, "torch": torch.__version__},
    )
    for o in optimizers:
        _replace_old(o)
    stepper = Stepper(Layout(named), dict(zip(names, optimizers, strict=True)), policies, every, slots)
    folder = create_folder(Path(dir), run.name)
    (folder / "model.txt").write_text(f"{model}\n")
    made = Watch(
        stepper, RunWriter(folder, run), kept, courier=target is not None and delivery == "courier", verbose=verbose
    )
    made._say(f"watching {len(named)} layers of {type(model).__name__}, recording to {folder}")
    return made


def _policy(value: Policy | str | None, role: str) -> Policy | None:
    policy = parse(value) if isinstance(value, str) else value
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        raise PolicyError(f"{role}={value!r}: wanted a policy such as ClipByGlobalNorm(1.0), its text, or None")
    if policy.acts_on_weights != (role == "renorm"):
        other = "renorm" if policy.acts_on_weights else "clip"
        kind = "constrains weights after the step" if policy.acts_on_weights else "acts on gradients"
        raise PolicyError(f"{role}={policy!r}: it {kind}; pass it as {other}=")
    return policy


def _check(
    optimizers: list[Optimizer], every: int, total_steps: int | None, log: str | None, delivery: str, mlflow_layers: int
) -> None:
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        raise WatchError(f"optimizer={optimizers!r:.200}: wanted a torch.optim.Optimizer, or a list of them")
    for name, value in (("every", every), ("total_steps", total_steps), ("mlflow_layers", mlflow_layers)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise WatchError(f"{name}={value!r}: wanted a whole number of at least 1")
    for name, text, allowed in (("log", log, ("mlflow", None)), ("delivery", delivery, ("courier", "none"))):
        if text not in allowed:
            raise WatchError(f"{name}={text!r}: wanted {' or '.join(map(repr, allowed))}")


def _replace_old(optimizer: Optimizer) -> None:
    """Close the Watch whose hook the optimizer already carries (a notebook cell run twice)."""
    hooks: dict[int, Callable[..., Any]] = optimizer._optimizer_step_pre_hooks
    for hook in list(hooks.values()):
        old = getattr(getattr(hook, "__self__", None), "owner", None)
        if isinstance(old, Watch):
            old._say(f"this {type(optimizer).__name__} was watched already; the old Watch ({old.dir}) is closed")
            old.close()
