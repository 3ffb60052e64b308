"""A Hugging Face callback: `Trainer(callbacks=[GradWatchCallback(clip=...)])` watches every training."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import torch

from gradwatch.recording import attach
from gradwatch.recording.refusal import loggable
from gradwatch.recording.watch import Watch
from gradwatch.storage.logged_names import CLOCK

try:
    from transformers.trainer_callback import ExportableState, TrainerCallback
except ImportError as error:
    raise ImportError(
        "gradwatch.adapters.transformers needs Hugging Face Transformers, which is not installed: "
        "pip install 'gradwatch[transformers]'"
    ) from error

# What the Trainer logs and is no metric: its progress and its clock; gradwatch records the learning rate of each step.
_PROGRESS = {"epoch", "learning_rate", "total_flos", "num_input_tokens_seen"}


class GradWatchCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Watch the training of a `Trainer`: its gradients, and the loss and metrics it logs.

    The run of `report_to="mlflow"` is joined. Checkpoints hold the policy's state and the place in the history, in
    `trainer_state.json`. A training that raised is closed as FAILED when the next begins, or at interpreter exit.

    Args:
        options: the keyword arguments of `gradwatch.watch`; `total_steps` is the Trainer's own unless given.

    Attributes:
        watch: the Watch of the running training, or of the last one.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.watch: Watch | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        """Attach: the optimizer is made and, when resuming, loaded; the Trainer's own MLflow run is active."""
        if self.watch is not None:
            self.watch.close("FAILED")  # harmless where on_train_end closed it
        self.watch = attach.watch(model, optimizer, **{"total_steps": state.max_steps or None, **self.options})
        # The Trainer needs the entry when it saves, and a checkpoint of a training that was not watched has none.
        own = state.stateful_callbacks.setdefault(type(self).__name__, {})
        saved = own.get("attributes", {}).get("saved")
        if saved and state.global_step:
            self.watch.load_state_dict(
                torch.load(io.BytesIO(base64.b64decode(saved)), map_location="cpu", weights_only=True)
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Log the Trainer's loss and metrics; evaluations come this way too."""
        if self.watch is not None and not self.watch.closed:
            values = {k: v for k, v in (logs or {}).items() if k not in _PROGRESS and not k.endswith(CLOCK)}
            known = self.watch._recorder.logged
            self.watch.log(**loggable(values, known))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close the Watch."""
        if self.watch is not None:
            self.watch.close()

    def state(self) -> dict[str, Any]:
        """For the Trainer's checkpoint: plain text, because it is kept as JSON."""
        buffer = io.BytesIO()
        if self.watch is not None:
            torch.save(self.watch.state_dict(), buffer)
        return {
            "args": json.loads(json.dumps(self.options, default=str)),
            "attributes": {"saved": base64.b64encode(buffer.getvalue()).decode()},
        }
