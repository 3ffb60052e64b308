"""The dtype in which counts and sums are kept."""

import torch


def exact_dtype(device: torch.device) -> torch.dtype:
    """float64: float32 loses count beyond 16 million, and only MPS has nothing else."""
    return torch.float32 if device.type == "mps" else torch.float64
