"""What becomes of a policy's state from step to step, and when the layers change."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwatch.measure.layout import at
from gradwatch.policies.base import State


def keep_if(ok: Tensor, new: State, old: State) -> State:
    """`new` where `ok` (0-d bool), else `old`: a bad step leaves no trace in a policy's state."""
    return {k: torch.where(at(v.device, ok), v, old[k]) if k in old else v for k, v in new.items()}


def carried(state: State, old: State, new: State) -> State:
    """`state` for other layers, on their device; `old` and `new` are the first states for the layers before and now.

    What grows with the layers keeps the values of those that were there, and starts the others as `new` has them.
    """
    out = {k: v for k, v in new.items() if k in state or k not in old}  # a key that the policy dropped stays dropped
    for key, value in state.items():
        start = out.get(key)
        if start is None or start.shape == value.shape:
            out[key] = value if start is None else value.to(start.device, start.dtype)
        else:
            out[key] = start.clone()
            out[key][tuple(slice(n) for n in value.shape)] = value.to(start.device, start.dtype)
    return out
