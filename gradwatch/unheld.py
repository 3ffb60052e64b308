"""Finds the Watches whose optimizers nobody holds any more but the Watch itself: their models would never be freed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

from gradwatch.session import Watch
from gradwatch.torch_calls import listen


class Gone:
    """Stands in for the Stepper of optimizers that exist no more."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def detach(self) -> None:
        """Nothing."""


def lost(watches: Sequence[Watch]) -> list[Watch]:
    """Those that alone kept their optimizers, which are freed now; `close` is all that is left to do with them.

    Runs the garbage collector. Only between two steps.
    """
    fastenings = [_loosen(watch) for watch in watches]
    gc.collect()
    kept = [fasten() for fasten in fastenings]
    return [watch for watch, is_kept in zip(watches, kept, strict=True) if not is_kept]


def _loosen(watch: Watch) -> Callable[[], bool]:
    """Let the Watch's Stepper be held by nothing but the hooks on its optimizers.

    What is returned holds it again, and returns whether it was there.
    """
    stepper: Any = watch._stepper
    stepper._leave()
    stepper.source = watch._source  # which holds the model; here it lasts as long as the optimizers do
    found, steps = weakref.ref(stepper), stepper.steps
    del watch._stepper, watch._source

    def fasten() -> bool:
        stepper = found()
        if stepper is None:
            watch._stepper = cast(Any, Gone(steps))
            return False
        watch._stepper, watch._source = stepper, stepper.source
        del stepper.source
        stepper._leave = listen(stepper._under_scaler, stepper.loop_clips.add)
        return True

    return fasten
