"""Lightning scripts watched without an edit: where GRADWATCH_LIGHTNING is set, every Trainer gets the callback.

Lightning calls this for every Trainer, wherever gradwatch is installed: nothing is imported unless the variable is set.
"""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "GRADWATCH_LIGHTNING"
OFF, ON = ("", "0", "false", "no"), ("1", "true", "yes", "none")


def callbacks() -> list[Any]:
    """The callback, with the policy that the variable names (`1`: none); no callback where it is not set."""
    text = os.environ.get(VARIABLE, "").strip()
    if text.lower() in OFF:
        return []
    from gradwatch.adapters.lightning import GradWatch

    class FromEnvironment(GradWatch):
        """Leaves a Trainer alone that has a GradWatch of the script's own."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if not any(isinstance(one, GradWatch) and one is not self for one in trainer.callbacks):
                super().on_train_start(trainer, pl_module)

    return [FromEnvironment(clip=None if text.lower() in ON else text)]
