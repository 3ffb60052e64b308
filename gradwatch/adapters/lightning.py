"""A Lightning callback: `Trainer(callbacks=[GradWatch(clip=...)])` watches every fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradwatch import watching
from gradwatch.recorder import refusal
from gradwatch.session import Watch

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
    second fit of the same trainer goes on with the history of the first, as `trainer.global_step` does.

    Args:
        options: the keyword arguments of `gradwatch.watch`; `total_steps` is the trainer's own unless given.

    Attributes:
        watch: the Watch of the running fit, or of the last one.
    """

    def __init__(self, **options: Any) -> None:
        self.options, self.watch = options, None  # type: dict[str, Any], Watch | None
        self._saved: Mapping[str, Any] | None = None
        self._loss: Tensor | None = None  # of the batches since the last step
        self._steps = 0
        self._known: dict[str, Tensor] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach: the optimizers are made and, when resuming, loaded."""
        if self._saved is None and self.watch is not None and trainer.global_step:
            self._saved = self.watch.state_dict()
        self.close()
        own = {**_total_steps(trainer), **({} if "run_id" in self.options else _mlflow_run(trainer))}
        self.watch = watching.watch(pl_module, trainer.optimizers, **{**own, **self.options})
        if self._saved is not None:
            self.watch.load_state_dict(self._saved)
        self._saved, self._steps, self._loss = None, trainer.global_step, None

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
        self.close("KILLED" if isinstance(exception, KeyboardInterrupt | SystemExit) else "FAILED")

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoint."""
        return self.watch.state_dict() if self.watch is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what Lightning's checkpoint holds until there is a Watch."""
        self._saved = state_dict

    def close(self, status: str = "FINISHED") -> None:
        """Close the Watch, if there is one."""
        if self.watch is not None:
            self.watch.close(status)

    def _log(self, values: Mapping[str, Any]) -> None:
        if self.watch is not None and not self.watch.closed:
            self.watch.log(**{name: value for name, value in values.items() if refusal({name: value}) is None})


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
