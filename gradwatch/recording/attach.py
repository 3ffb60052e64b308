"""`watch()`: checks what it is given, and attaches a Watch to a training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from gradwatch.analysis.rules import Finding
from gradwatch.errors import WatchError
from gradwatch.history import Run
from gradwatch.measure.distributed import rank
from gradwatch.measure.layout import Layout
from gradwatch.policies import Policy
from gradwatch.policies.grammar import as_policy
from gradwatch.recording import mlflow_target as _delivery
from gradwatch.recording import open_watches
from gradwatch.recording.arguments import Settings, check_kinds, checked_optimizers
from gradwatch.recording.callbacks import Live
from gradwatch.recording.hydra_params import hydra_params
from gradwatch.recording.inside import measured
from gradwatch.recording.layers import Source, describe
from gradwatch.recording.learning_rate import RateScale
from gradwatch.recording.notebook_cells import made_here, of_the_last_run
from gradwatch.recording.optimizer_settings import GroupSettings
from gradwatch.recording.parallel import Parallel
from gradwatch.recording.shared_run import Shared, check_name, share
from gradwatch.recording.watch import Watch
from gradwatch.sanitize import check_uri, public_uri
from gradwatch.storage.folder import create_folder
from gradwatch.storage.manifest import scalar_of, text_of
from gradwatch.storage.null_writer import NullWriter
from gradwatch.storage.owner import described
from gradwatch.storage.places import absolute_folder
from gradwatch.storage.shared_folder import create_part, discard
from gradwatch.storage.writer import RunWriter

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

SHARE = 0.4  # of flush_every: how long rows wait on the device, and as long for the writer; the rest is for the writing


def watch(
    model: nn.Module,
    optimizer: Optimizer | Iterable[Optimizer],
    *,
    clip: Policy | str | None = None,
    renorm: Policy | str | None = None,
    lr_scale: float = 1.0,
    warmup: int = 0,
    name: str | None = None,
    run: Watch | None = None,
    every: int = 10,
    total_steps: int | None = None,
    log: str | Sequence[str] | None = "mlflow",
    dir: str | Path = "gradwatch-runs",
    run_name: str | None = None,
    run_id: str | None = None,
    tracking_uri: str | None = None,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, object] | None = None,
    layers: Sequence[str] = ("*",),
    ignore: Sequence[str] = (),
    split: Mapping[str, int | tuple[int, int]] | None = None,
    rows: Sequence[str] = (),
    higher_is_better: Mapping[str, bool] | None = None,
    slots: bool = False,
    ranks: bool = False,
    activations: bool | Sequence[str] = False,
    activations_every: int = 50,
    noise_scale: bool = False,
    histogram_every: int | None = None,
    singular_values: bool | Sequence[str] = False,
    pipeline: ProcessGroup | DeviceMesh | None = None,
    experts: Mapping[str, ProcessGroup | DeviceMesh] | None = None,
    mlflow_layers: int = 16,
    delivery: str = "courier",
    on_finding: Callable[[Finding], object] | None = None,
    halt_on: Literal["error", "warning"] | None = None,
    flush_every: float = 5.0,
    verbose: bool = True,
) -> Watch:
    """Watch a training loop: from now on every `optimizer.step()` is measured, clipped, constrained and recorded.

    In a distributed run call it on every rank, with the same arguments: all measure and clip, only rank 0 writes. Ranks
    that train different things (stages of a pipeline) each give a `name`: the lowest rank of each name writes.

    Args:
        model: the model; its parameters' names are the layers' names.
        optimizer: the optimizer, or several that share one model (one global norm over all of them when they step
            together). Of a wrapper that fires no hooks (Accelerate's) the optimizer inside is watched.
        clip: what happens to gradients before the step: a policy, its text such as `"ClipByGlobalNorm(1.0)"`, or None.
        renorm: what happens to weights after the step: a constraint such as `MaxNorm(3.0)`, its text, or None.
        lr_scale: by what the learning rates are multiplied in each step, beside the loop's own schedule. Between steps
            they are the loop's own, in its scheduler, its prints and its checkpoints.
        warmup: over so many steps that multiple grows linearly from 0, or without `lr_scale` from 0 to the rate itself.
        name: tells this Watch apart from others that share its run; its layers are called `name.0.weight`.
        run: a named Watch of this process that has begun the run this one belongs to.
        every: steps between measurements of weight norms and update ratios.
        total_steps: the length of the run, if known: MLflow then gets about 300 points of each curve.
        log: `"mlflow"`, `"tensorboard"` (an event file that grows in the run's folder), both in a tuple, or None for
            files only. The active MLflow run is joined; otherwise one is started.
        dir: the folder that holds the run folders.
        run_name: the run's name; by default the model's class.
        run_id: an MLflow run to join.
        tracking_uri: the MLflow store that holds `run_id`; by default MLflow's own setting.
        tags: MLflow tags of the run.
        params: settings worth comparing (seed, batch size, ...): they become MLflow params and columns of reports.
        layers: shell-style patterns of layers to record; policies act on all layers whatever this says.
        ignore: patterns of layers not to record.
        split: parameters whose slices are layers of their own, `w[0]`, `w[1]`, ...: by pattern the dimension, such as
            `{"*.experts.*": 0}`, or the dimension and how many equal pieces it has, `{"*.q_proj.weight": (0, 12)}`.
        rows: patterns of layers, such as `("*embed*",)`, of which each step's largest row is recorded too.
        higher_is_better: which way the scalars that you log are better, where their names do not say it, such as
            `{"elo": True}`; comparisons judge by it.
        slots: also record the norms of the optimizer's own tensors (`slot_norm/exp_avg`, ...).
        ranks: also record each rank's own gradient norm, before DistributedDataParallel averages it
            (`rank_grad_norm/0`, ... per step): one more collective a step.
        activations: also record what modules give out: True for the model's blocks, their parts and non-linearities; or
            shell-style patterns of modules' names, such as `("*.attn", "*.mlp")`.
        activations_every: steps between two in which activations are measured; the first two steps are, too.
        noise_scale: also record the norm of the first micro-batch's gradient every `every` steps, in a loop that
            accumulates gradients: reports make the gradient noise scale of it.
        histogram_every: steps between two in which a histogram of each layer's |g| is recorded, and what float16,
            bfloat16 and float8 would lose of it; None for none.
        singular_values: also record, every `every` steps, the largest singular value of weights and their stable rank:
            True for all matrices, or shell-style patterns of layers' names.
        pipeline: the ranks that hold the stages of a pipeline: one global norm over all of them, with `name=` on each.
        experts: patterns of layers of which each rank of a group holds other slices, such as
            `{"*.experts.*": mesh["ep"]}`, where they are no DTensors that say so: a layer is all its slices.
        mlflow_layers: how many curves per quantity go to MLflow; more layers are summed up by module block.
        delivery: `"courier"` starts a process that delivers the run to MLflow and diagnoses it (with `log=None`, one
            that only diagnoses it); `"none"` starts none and leaves both to `gradwatch sync` and `gradwatch check`.
        on_finding: called with each new finding, between two steps. What it raises is logged.
        halt_on: stop the training when an `"error"` (or `"warning"`) is found: `optimizer.step()` raises
            `TrainingHalted`, at the same step on all ranks. All ranks must take the same steps then.
        flush_every: how many seconds of training a killed process (`kill -9`) may lose at most, of the time in which it
            takes steps.
        verbose: whether to say on stderr where the run is recorded.

    Raises:
        WatchError: none of the model's parameters is in the optimizer, the model is one whose layers cannot be seen, an
            optimizer has no learning rate to scale, or an argument makes no sense; a name that is missing, taken or no
            folder's name.
        PolicyError: an unknown policy or a setting out of range.
        RunError: the run's folder cannot be made.
    """
    policies = as_policy(clip, "clip"), as_policy(renorm, "renorm")
    settings = Settings(every, total_steps, log, delivery, mlflow_layers, halt_on, flush_every, higher_is_better or {},
                        lr_scale, warmup, activations, activations_every, slots, ranks, noise_scale, histogram_every,
                        singular_values, {} if split is None else split, rows)  # fmt: skip
    optimizers = checked_optimizers(optimizer, policies, RateScale(lr_scale, warmup), slots)
    check_kinds(run_name, dir, run_id, tracking_uri, tags, params, layers, ignore)
    _check_run(optimizers, name, run, run_id, tracking_uri)
    source = Source(model, optimizers, layers, ignore, name, Parallel.of(experts, pipeline, name), settings)
    layout = source.layout(source.layers())
    manifest = _manifest(run_name, source, layout, _recorded(settings, policies, tags, params, run_id, tracking_uri))
    _replace_old(optimizers)
    parts = measured(model, settings, layout, source.by_name, policies, name)
    undo = ExitStack()
    try:
        writer, shared = _place(manifest, name, run, dir, model, SHARE * flush_every, undo)
        live = _live(on_finding, settings, writer, shared, layout.device)
        return _begin(Watch(*parts, writer, source, live, settings, verbose, shared), undo)
    except BaseException:  # also a Ctrl-C: half a Watch is none
        undo.close()
        raise


def _begin(made: Watch, undo: ExitStack) -> Watch:
    undo.callback(made._undo)
    made_here(made)
    made._writer.start()
    made._begin()
    settle_unheld()
    layers, model = len(made._stepper.layout.names), type(made._source.model).__name__
    made._say(f"watching {layers} layers of {model}, recording to {made.dir}")
    return made


def _manifest(run_name: str | None, source: Source, layout: Layout, asked: Mapping[str, Any]) -> Run:
    """What is recorded of the run itself."""
    return described(
        name=text_of(run_name or type(source.model).__name__),
        layers=describe(layout),
        optimizers=GroupSettings(source.by_name).describe(layout),
        **source.recorded(),
        **asked,
    )


def _recorded(
    settings: Settings,
    policies: Iterable[Policy | None],
    tags: Mapping[str, object] | None,
    params: Mapping[str, object] | None,
    run_id: str | None,
    tracking_uri: str | None,
) -> dict[str, Any]:
    """What the manifest says of these."""
    clip, renorm = (repr(policy) if policy else None for policy in policies)
    given = {text_of(k): text_of(v) for k, v in (params or {}).items()}
    return {
        "mlflow": _delivery.target(run_id, tracking_uri) if "mlflow" in settings.trackers else None,
        **settings.recorded(),
        "clip": clip,
        "renorm": renorm,
        "tags": {text_of(k): scalar_of(v) for k, v in (tags or {}).items()},
        "params": {**hydra_params(), **given, "torch": torch.__version__},
    }


def settle_unheld(others: Iterable[Optimizer] = ()) -> None:
    """A parameter that one open Watch trains, or that the `others` hold, is in no Watch one without an optimizer."""
    watches = [w for w in open_watches.watches if isinstance(w, Watch)]
    held = [*others, *(o for w in watches for o in w._source.optimizers)]
    for each in watches:
        said = each._writer.run.unheld
        if said:
            left = each._source.unheld(held)
            each._writer.update(unheld=tuple(name for name in said if name in left))


def _place(
    run: Run,
    name: str | None,
    first: Watch | None,
    runs: str | Path,
    model: nn.Module,
    seconds: float,
    undo: ExitStack,
) -> tuple[RunWriter | NullWriter, Shared | None]:
    """Where this process records the Watch `name`, if it does, and what that shares with others. `undo` is told what
    takes that back; an empty folder may stay.
    """
    shared = first._shared if first else None
    parent = absolute_folder(runs)  # the training may change its working directory
    if name is None:
        if rank():
            return NullWriter(parent, run, seconds), None
        folder = create_folder(parent, run.name)
    else:
        shared, writes = share(name, shared, parent, run.name, run.mlflow, undo)
        target = run.mlflow and (shared.target or run.mlflow)  # one MLflow run for all parts
        run = replace(run, name=f"{shared.facts['name']}/{name}", part=name, mlflow=target)
        if not writes:
            return NullWriter(shared.folder / name, run, seconds), shared
        folder = create_part(shared.folder, shared.facts, name)
    undo.callback(discard, folder)
    writer = RunWriter(folder, run, seconds)
    undo.callback(writer.end)
    with contextlib.suppress(OSError):  # of the run itself the writer has said it
        (folder / "model.txt").write_text(f"{text_of(model)}\n", encoding="utf-8")
    return writer, shared


def _live(
    on_finding: Callable[[Finding], object] | None,
    settings: Settings,
    writer: RunWriter | NullWriter,
    shared: Shared | None,
    device: torch.device,
) -> Live:
    """Looks into the run's folder, where this process writes; one process diagnoses all parts of a run."""
    home = (shared.folder if shared else writer.folder) if isinstance(writer, RunWriter) else None
    first = rank() == 0 and (shared is None or len(shared.names) == 1)
    diagnosed = settings.is_only_diagnosed and first
    return Live(on_finding, settings.halt_on, home, writer.run.part or "", device, diagnosed)


def _check_run(
    optimizers: list[Optimizer], name: str | None, run: Watch | None, run_id: str | None, tracking_uri: str | None
) -> None:
    if tracking_uri is not None and run_id is None:
        raise WatchError(
            f"tracking_uri={public_uri(str(tracking_uri))!r} without run_id=: it says which store holds that run; for "
            "a new run set MLFLOW_TRACKING_URI, or call mlflow.set_tracking_uri() before watch()"
        )
    try:
        check_uri("" if tracking_uri is None else tracking_uri)
    except ValueError as error:
        raise WatchError(f"tracking_uri= {error}") from None
    if run is not None and not isinstance(run, Watch):
        raise WatchError(f"run={run!r:.80}: wanted the Watch whose run this one shares; an MLflow run is run_id=")
    check_name(name, run._shared if run else None, run is not None)
    if run is not None and run.closed:
        raise WatchError(f"the Watch given as run= ({run.dir}) is closed: its run is over")
    if run is not None and run_id is not None:
        raise WatchError("run_id= beside run=: the MLflow run is that of the Watch given as run=")
    if run is not None and any(watch_of(o) is run for o in optimizers):
        raise WatchError("the Watch given as run= watches this optimizer itself: leave run= away to watch it anew")


def watch_of(optimizer: Optimizer) -> Watch | None:
    """The Watch whose hook the optimizer already carries."""
    hooks: dict[int, Callable[..., Any]] = optimizer._optimizer_step_pre_hooks
    owners = [getattr(getattr(hook, "__self__", None), "owner", None) for hook in hooks.values()]
    return next((owner for owner in owners if isinstance(owner, Watch)), None)


def _replace_old(optimizers: list[Optimizer]) -> None:
    """Close the Watches of these optimizers, and those that the running cell of a notebook made when it ran before."""
    for o in optimizers:
        old = watch_of(o)
        if old is not None:
            old._say(f"this {type(o).__name__} was watched already; the old Watch ({old.dir}) is closed")
            old.close()
    for left in of_the_last_run():
        left._say(f"this cell runs again; the Watch of its last run ({left.dir}) is closed")
        left.close()
