"""What cannot be logged: `watch.log` leaves it out, with a warning; a value is no reason to end a training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import numpy as np
from torch import Tensor

from gradwatch.sanitize import MAX_LOGGED, MAX_LOGGED_NAME
from gradwatch.storage.manifest import is_text, text_of
from gradwatch.table import LISTED, RECORDED, STEP_COLUMNS


def _refusal(values: Mapping[str, object], known: Collection[str]) -> str | None:
    """Why these cannot be logged: a name that the reader of the record refuses, one too many beside the names `known`,
    or a value that is not one number; else None.
    """
    values = itemized(values)
    for name, value in values.items():
        if not is_text(name, MAX_LOGGED_NAME):
            found = f"{name[:40]!a} is a name of {len(name):,} characters"
            return f"{found}; wanted at most {MAX_LOGGED_NAME}, and such as UTF-8 can hold"
        fits, found = _one_number(value)
        if not fits:
            more = ", or a list of numbers as .tolist() gives it" if name in LISTED else ""
            return f"{name}={found}; wanted a number or a tensor of one element{more}"
    if len(values) + len(known) > MAX_LOGGED and len({*values, *known}) > MAX_LOGGED:
        return (
            f"it makes {len({*values, *known}):,} names in this run, of which {MAX_LOGGED:,} can be read back: log "
            "under fewer names, and what changes (an epoch, a batch) as a value"
        )
    return None


def loggable(
    values: Mapping[str, Any], known: Collection[str], miss: Callable[[str, str], None] | None = None
) -> dict[str, Any]:
    """Those of the values that can be logged beside the names `known`. `miss` is told of each other one, and why."""
    if _refusal(values, known) is None and not any(map(_is_own, values)):
        return dict(values)
    found: dict[str, Any] = {}
    taken = {*known}
    for name, value in values.items():
        why = _OWN.format(name) if _is_own(name) else _refusal({name: value}, taken)
        if why is None:
            found[name] = value
            taken.add(name)
        elif miss is not None:
            miss(f"watch.log({name[:40]}=...)", why)
    return found


def _one_number(value: object) -> tuple[bool, str]:
    """Whether it is one, and what it is."""
    try:
        if isinstance(value, Tensor):
            return value.numel() == 1 and not value.is_complex(), f"tensor of shape {tuple(value.shape)}"
        fits = hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0 and not np.iscomplexobj(cast(Any, value))
        return fits, f"{repr(value) if isinstance(value, str) else text_of(value):.80}"
    except Exception as error:  # a nested tensor, an object of somebody's own
        return False, f"what raises {type(error).__name__}"


_OWN = "gradwatch records {} itself; log yours under another name"


def _is_own(name: str) -> bool:
    return name in STEP_COLUMNS or name.startswith(RECORDED)


def itemized(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same, where a list was logged of the data that a step saw with a name for each item: `sample[0]`, ..."""
    if not any(isinstance(values.get(name), list | tuple) for name in LISTED):
        return values
    out: dict[str, Any] = {}
    for name, value in values.items():
        is_list = name in LISTED and isinstance(value, list | tuple)
        out.update({f"{name}[{i}]": item for i, item in enumerate(value)} if is_list else {name: value})
    return out
