"""On a GPU nothing is waited for between drains, with any optimizer; where torch's own step waits, that is left out."""

import pytest
import torch
from attach import POLICIES, attach
from loops import LOOPS
from matrix import short
from optimizers import SPECS
from trial import Trial

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

STEADY = 2  # from this step on: constants are made on the first ones
QUIET = [
    "plain", "accumulation", "closure", "scaler", "scaler_unscale", "autocast_float16", "exponential", "two_optimizers",
    "tied", "lora", "sparse", "zero_d", "complex_numbers", "mixed_dtypes", "channels_last",
]  # fmt: skip


class Guarded(Trial):
    """A Trial without a probe, in which whatever waits for the device raises, from before gradwatch's hook to after."""

    def attach(self, model, optimizer):
        optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
        for o in optimizers:
            o.register_step_pre_hook(lambda *_: torch.cuda.set_sync_debug_mode("error" if self.step >= STEADY else 0))
        if self.watch is not None:
            self.handles.append(self.watch(model, optimizer)[0])
        for o in optimizers:
            o.register_step_post_hook(lambda *_: torch.cuda.set_sync_debug_mode(0))
        return lambda scale=1.0: None

    def run(self, loop):
        self.handles = []
        try:
            LOOPS[loop].run(self)
        finally:
            torch.cuda.set_sync_debug_mode(0)
            for handle in self.handles:
                handle.close()


def guarded(loop, spec, dtype, watch=None):
    """The error of a guarded run, or None."""
    try:
        Guarded(SPECS[spec], dtype, torch.device("cuda"), watch).run(loop)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=short)
@pytest.mark.parametrize("loop", QUIET)
def test_a_step_waits_for_nothing(loop, dtype, monkeypatch):
    # a drain is the one place that may wait
    monkeypatch.setattr("gradwatch.recording.recorder.Recorder.due", property(lambda self: self.full))
    if dtype not in LOOPS[loop].dtypes:
        pytest.skip(f"{loop} has no {short(dtype)}")
    quiet, waits, refused = [], [], set()
    for spec in SPECS:
        error = guarded(loop, spec, dtype)
        refused.add(error)
        if error is None:
            quiet.append(spec)
            for name, clip in {"None": None, **{n: make(0.01) for n, (make, _) in POLICIES.items()}}.items():
                error = guarded(loop, spec, dtype, lambda model, optimizer: attach(model, optimizer, clip))  # noqa: B023
                waits += [f"{spec}, {name}: {error}"] if error else []
    assert not waits, "\n".join(waits)
    if "scaler" in loop and all("not implemented for 'BFloat16'" in str(error) for error in refused):
        pytest.skip(f"torch refuses: {refused.pop()}")
    assert quiet, "no optimizer of torch could take this loop without waiting"


def test_the_guard_sees_a_read():
    def read(model, optimizer):
        optimizer.register_step_pre_hook(lambda o, *_: model[0].weight.sum().item() and None)
        return attach(model, optimizer, None)

    assert guarded("plain", "SGD foreach", torch.float32) is None
    assert "synchronizing" in guarded("plain", "SGD foreach", torch.float32, read)
