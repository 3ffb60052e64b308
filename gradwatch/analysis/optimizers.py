"""What a manifest says of an optimizer: its settings, of all its param groups, and in which of them they differ.

Manifests of earlier versions have no groups; their settings were the optimizer's defaults.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradwatch.history import History
from gradwatch.table import SETTING

MAX_SHOWN = 8  # values of one setting, or groups, that are written out
Optimizer = Mapping[str, Any]


def groups(optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """All settings in force of each param group, by the group's name; what two are called gets its number."""
    common, found = optimizer.get("settings", {}), optimizer.get("groups") or [{}]
    names = [str(group.get("name", i)) for i, group in enumerate(found)]
    names = [name if names.count(name) == 1 else f"{name}.{i}" for i, name in enumerate(names)]
    return {n: {**common, **group.get("settings", {})} for n, group in zip(names, found, strict=True)}


def settings(optimizer: Optimizer) -> dict[str, str]:
    """Each setting as text; where the groups differ in it their values, in the order of the groups: `0.1, 0.0`.

    Of many groups the first and the last value, and a digest of all: two texts are equal only if the values are.
    """
    return {key: _joined(values) for key, values in _values(optimizer).items()}


def differing(optimizer: Optimizer) -> dict[str, dict[str, str]]:
    """Of each group, by its name, the settings in which the groups differ."""
    several = {key for key, values in _values(optimizer).items() if len(set(values)) > 1}
    each = groups(optimizer).items()
    return {name: {key: str(value) for key, value in own.items() if key in several} for name, own in each}


def as_code(optimizer: Optimizer) -> str:
    """`AdamW(lr=0.001, weight_decay=[0.1, 0.0])`; what is off (0, False, None) in all groups is left out."""
    own = groups(optimizer).values()
    on = {key: found for key, found in _values(optimizer).items() if any(group.get(key) for group in own)}
    words = (f"{key}={found[0] if len(set(found)) == 1 else f'[{_joined(found)}]'}" for key, found in on.items())
    return f"{optimizer.get('class', '?')}({', '.join(words)})"


def group_texts(optimizer: Optimizer) -> list[str]:
    """A line for each param group, if there are several: what it is called, what it holds, how it differs."""
    found = optimizer.get("groups") or []
    if len(found) < 2:
        return []
    lines = []
    for (name, own), group in zip(differing(optimizer).items(), found, strict=True):
        size = f"{len(group.get('layers', ())):,} layers, {group.get('parameters', 0):,} parameters"
        lines.append(f"{name} ({size}){': ' if own else ''}{', '.join(f'{k}={v}' for k, v in own.items())}")
    return lines if len(lines) <= MAX_SHOWN else [*lines[:MAX_SHOWN], f"{len(lines) - MAX_SHOWN:,} more"]


def changes(history: History) -> list[str]:
    """What else than the learning rate was set anew during the run: `momentum 0.85 to 0.95`."""
    lines = []
    for name, values in history.per_step.items():
        finite = values[np.isfinite(values)]
        if name.startswith(SETTING) and len(finite):
            lines.append(f"{name.removeprefix(SETTING)} {float(finite.min()):.4g} to {float(finite.max()):.4g}")
    return lines if len(lines) <= MAX_SHOWN else [*lines[:MAX_SHOWN], f"{len(lines) - MAX_SHOWN:,} more"]


def _values(optimizer: Optimizer) -> dict[str, list[str]]:
    """Each setting as text, of every group."""
    every = list(groups(optimizer).values())
    keys = dict.fromkeys(key for own in every for key in own)
    return {key: [_text(own[key]) if key in own else "unset" for own in every] for key in keys}


def _joined(values: list[str]) -> str:
    if len(set(values)) == 1:
        return values[0]
    if len(values) <= MAX_SHOWN:
        return ", ".join(values)
    digest = hashlib.sha256("\0".join(values).encode()).hexdigest()[:6]
    return f"{values[0]}, ..., {values[-1]} ({len(values)} groups, {digest})"


def _text(value: Any) -> str:
    """A list, as JSON gives a tuple back, as the tuple that it was."""
    return str(tuple(value) if isinstance(value, list) else value)
