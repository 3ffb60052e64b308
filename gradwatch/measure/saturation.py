"""Where a known non-linearity is flat: its slope there is less than a hundredth of its largest, so little comes back.

By the class's name: the same function has another class in every library, and none of these is imported for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

FLAT = 0.01  # of the largest slope
# Below these x * sigmoid(x), x * Phi(x), x * sigmoid(1.702 x) and x * tanh(log(1 + e^x)) are flat
SILU_BEGINS, GELU_BEGINS, QUICK_GELU_BEGINS, MISH_BEGINS = -6.143, -3.022, -3.609, -6.159
TANH_ENDS = math.sqrt(1 - FLAT)  # f' = 1 - y^2, at most 1
SELU_ENDS = 1.7580993
SIGMOID_ENDS = (1 + TANH_ENDS) / 2  # f' = y (1 - y), at most 1/4
Flat = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (module, input, output) -> bool, of the output's shape


def flat_of(module: nn.Module) -> Flat | None:
    """What tells where the module is flat; None for a module that is no non-linearity known here."""
    found = _FLAT.get(type(module).__name__)
    return None if found in _BY_INPUT and getattr(module, "inplace", False) else found  # its input is overwritten


def _relu(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return y == 0


def _bounded(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    low, high = getattr(module, "min_val", 0.0), getattr(module, "max_val", 1.0)  # Hardsigmoid has none
    return (y <= low) | (y >= high)


def _sigmoid(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (y < 1 - SIGMOID_ENDS) | (y > SIGMOID_ENDS)


def _tanh(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return y.abs() > TANH_ENDS


def _elu(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return y < -(1 - FLAT) * getattr(module, "alpha", SELU_ENDS)  # f' = y + alpha, of CELU 1 + y / alpha


def _below(begins: float) -> Flat:
    """Flat for inputs below `begins`. The output does not tell: it is as small near 0."""
    return lambda module, x, y: x < begins


_silu, _gelu, _quick = _below(SILU_BEGINS), _below(GELU_BEGINS), _below(QUICK_GELU_BEGINS)
_mish = _below(MISH_BEGINS)
_FLAT: dict[str, Flat] = {
    **dict.fromkeys(("ReLU", "ReLUSquaredActivation", "Hardswish", "HardSwish"), _relu),
    **dict.fromkeys(("ReLU6", "Hardtanh", "Hardsigmoid"), _bounded),
    "Sigmoid": _sigmoid,
    "Tanh": _tanh,
    **dict.fromkeys(("ELU", "CELU", "SELU"), _elu),
    **dict.fromkeys(("SiLU", "SiLUActivation"), _silu),
    **dict.fromkeys(("GELU", "GELUActivation", "NewGELUActivation", "PytorchGELUTanh", "GELUTanh"), _gelu),
    **dict.fromkeys(("FastGELUActivation", "AccurateGELUActivation", "BloomGelu"), _gelu),
    **dict.fromkeys(("Mish", "MishActivation"), _mish),
    **dict.fromkeys(("QuickGELUActivation", "QuickGELU"), _quick),
}
_BY_INPUT = (_silu, _gelu, _quick, _mish)
