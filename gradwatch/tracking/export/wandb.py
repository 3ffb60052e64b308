"""A run's curves for Weights & Biases, written offline: `wandb sync` uploads them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from gradwatch.tracking.export.run_export import RunExport


def write_wandb(run: RunExport, out: Path) -> list[str]:
    """An offline run in `out`/wandb. Its id is made of the run's name and start: uploaded twice it is one run."""
    import wandb

    settings = wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True)
    with wandb.init(
        mode="offline",
        dir=str(out),
        project=os.environ.get("WANDB_PROJECT", "gradwatch"),
        name=run.name,
        id=hashlib.sha256(f"{run.name} {run.whole.run.created}".encode()).hexdigest()[:16],
        resume="allow",
        config=run.params,
        settings=settings,
    ) as target:
        for step, time, values in run.by_step():
            target.log({**values, "_timestamp": time}, step=step)
        folder = Path(target.dir).parent
    return [f"{folder}: {run.counted}", f"wandb sync {folder}"]
