"""Where a test runs: on the CPU, and on a CUDA device where there is one (`scripts/test -m gpu`)."""

import contextlib

import pytest
import torch

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_GPU)]


def skip_unless_fused(cls, device):
    """Skip where torch has no kernel of this optimizer for the device (Adagrad on CUDA)."""
    parameter = torch.nn.Parameter(torch.zeros(1, device=device))
    parameter.grad = torch.zeros_like(parameter)
    try:
        cls([parameter], fused=True).step()
    except RuntimeError as error:
        pytest.skip(f"torch refuses: {error}")


@contextlib.contextmanager
def no_waiting(device):
    """Within, whatever waits for the device raises; on a CPU nothing does."""
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode(0)
