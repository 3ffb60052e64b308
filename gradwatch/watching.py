"""`watch()`: checks what it is given, and attaches a Watch to a training loop."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradwatch import delivery as _delivery
from gradwatch import layers as _layers
from gradwatch.errors import GradwatchWarning, PolicyError, WatchError
from gradwatch.grads import rank
from gradwatch.history import Run
from gradwatch.layout import Layout
from gradwatch.policies import Policy, parse
from gradwatch.session import Watch
from gradwatch.stepping import Stepper
from gradwatch.stores.files import create_folder, now_iso
from gradwatch.stores.writer import NullWriter, RunWriter


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

    In a distributed run call it on every rank, with the same arguments: all measure and clip, only rank 0 writes.

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
    _warn_of_line_search(optimizers, policies[0])
    source = _layers.Source(model, optimizers, layers, ignore)
    named = _layers.named_layers(model, optimizers)
    if not any(source.kept(named)):
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
    writes = rank() == 0
    writer = _writer(Path(dir), run, model) if writes else NullWriter(Path(dir), run)
    courier = writes and target is not None and delivery == "courier"
    made = Watch(stepper, writer, source, courier, verbose and writes)
    made.say(f"watching {len(named)} layers of {type(model).__name__}, recording to {made.dir}")
    return made


def _writer(parent: Path, run: Run, model: nn.Module) -> RunWriter:
    folder = create_folder(parent, run.name)
    (folder / "model.txt").write_text(f"{model}\n")
    return RunWriter(folder, run)


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


def _warn_of_line_search(optimizers: list[Optimizer], clip: Policy | None) -> None:
    for o in optimizers:
        search = next((g["line_search_fn"] for g in o.param_groups if g.get("line_search_fn")), None)
        if clip is not None and search is not None:
            warnings.warn(
                f"{type(o).__name__}(line_search_fn={search!r}) with clip={clip!r}: the search trusts the gradient to "
                "be the slope of the loss, which a clipped gradient is not, so it may take steps of the wrong length "
                "or stop early; leave out clip=, or set line_search_fn=None",
                GradwatchWarning,
                stacklevel=3,
            )


def _replace_old(optimizer: Optimizer) -> None:
    """Close the Watch whose hook the optimizer already carries (a notebook cell run twice)."""
    hooks: dict[int, Callable[..., Any]] = optimizer._optimizer_step_pre_hooks
    for hook in list(hooks.values()):
        old = getattr(getattr(hook, "__self__", None), "owner", None)
        if isinstance(old, Watch):
            old.say(f"this {type(optimizer).__name__} was watched already; the old Watch ({old.dir}) is closed")
            old.close()
