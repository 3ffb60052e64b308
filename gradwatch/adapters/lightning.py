"""A Lightning callback: `Trainer(callbacks=[GradWatch(clip=...)])` watches every fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gradwatch.errors import status_of
from gradwatch.recording import attach
from gradwatch.recording.refusal import loggable
from gradwatch.recording.watch import Watch

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise ImportError(
            "gradwatch.adapters.lightning needs Lightning, which is not installed: pip install 'gradwatch[lightning]'"
        ) from error


class GradWatch(Callback):  # type: ignore[misc]
    """Watch the fit of a LightningModule: its gradients, the loss of each optimizer step, what validation logs.

    The run of the trainer's MLFlowLogger is joined. Checkpoints hold the policy's state and the place in the history. A
    second fit of the same trainer goes on with the history of the first, as `trainer.global_step` does. Several
    optimizers get a Watch each, in one run.

    Args:
        options: the keyword arguments of `gradwatch.watch`; `total_steps` and `run_name` have the trainer's own values
            unless given.

    Attributes:
        watches: the Watches of the running fit, or of the last one.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.watches: list[Watch] = []
        self._saved: Sequence[Mapping[str, Any]] = ()
        self._trainer: Any = None
        self._loss: Tensor | None = None  # of the batches since the last step
        self._steps = 0
        self._known: dict[str, Tensor] = {}

    @property
    def watch(self) -> Watch:
        """The first Watch, the only one where there is one optimizer."""
        return self.watches[0]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach: the optimizers are made and, when resuming, loaded."""
        saved = self._saved or (self.state_dict()["watches"] if trainer is self._trainer else ())
        self.close()
        own = {"run_name": type(pl_module).__name__, **_total_steps(trainer)}
        options = {**own, **({} if "run_id" in self.options else _mlflow_run(trainer)), **self.options}
        place: dict[str, Any] = {key: options.pop(key) for key in ("run_id", "tracking_uri") if key in options}
        self.watches = []
        for model, optimizer, name in _parts(pl_module, trainer.optimizers):
            self.watches.append(attach.watch(model, optimizer, name=name, **options, **place))
            place = {"run": self.watches[0]}
        for watch, state in zip(self.watches, saved, strict=bool(saved)):
            watch.load_state_dict(state)
        self._saved, self._trainer, self._steps, self._loss = (), trainer, trainer.global_step, None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the loss of a step: what its gradient is of, summed over the batches that Lightning accumulated."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:  # automatic optimization has divided it by the number of batches
            summed = self._loss is not None and pl_module.automatic_optimization
            self._loss = self._loss + loss if summed else loss
        if trainer.global_step > self._steps:
            self._log({"loss": self._loss})
            self._steps, self._loss = trainer.global_step, None

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Note what is known already, to tell this validation's metrics from older ones."""
        self._known = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the metrics that this validation made."""
        self._log({k: v for k, v in trainer.callback_metrics.items() if self._known.get(k) is not v})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the Watch."""
        self.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the Watch: KILLED after Ctrl-C or SIGTERM, else FAILED."""
        # Lightning raises SystemExit for SIGTERM
        self.close("KILLED" if isinstance(exception, SystemExit) else status_of(exception))

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoint."""
        return {"watches": [watch.state_dict() for watch in self.watches]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what Lightning's checkpoint holds until there is a Watch."""
        self._saved = state_dict["watches"]

    def close(self, status: str = "FINISHED") -> None:
        """Close every Watch."""
        for watch in self.watches:
            watch.close(status)

    def _log(self, values: Mapping[str, Any]) -> None:
        """To the first Watch, the names that gradwatch has not for itself."""
        for watch in self.watches[:1]:
            if not watch.closed:
                known = watch._recorder.logged
                watch.log(**loggable(values, known))


def _parts(module: Any, optimizers: Sequence[Any]) -> list[tuple[Any, Any, str | None]]:
    """What each Watch is of: model, optimizer, name. The child module that an optimizer trains gives it its name."""
    if len(optimizers) == 1:
        return [(module, optimizers[0], None)]
    children = {name: set(child.parameters()) for name, child in module.named_children()}
    held = [{p for group in o.param_groups for p in group["params"]} for o in optimizers]
    homes = [next((name for name, params in children.items() if own <= params), "") for own in held]
    if "" in homes or len(set(homes)) < len(homes):
        return [(module, o, f"optimizer{i}") for i, o in enumerate(optimizers)]
    return [(getattr(module, name), o, name) for name, o in zip(homes, optimizers, strict=True)]


def _total_steps(trainer: Any) -> dict[str, int]:
    steps = trainer.estimated_stepping_batches  # inf or -1 where nobody knows
    return {"total_steps": int(steps)} if 0 < steps < float("inf") else {}


def _mlflow_run(trainer: Any) -> dict[str, str]:
    """Run and store of an MLFlowLogger: it has a client of its own and no active run that `watch` would find."""
    for logger in trainer.loggers:
        uri = getattr(getattr(logger, "experiment", None), "tracking_uri", None)
        if isinstance(uri, str):
            return {"run_id": logger.run_id, "tracking_uri": uri}
    return {}
