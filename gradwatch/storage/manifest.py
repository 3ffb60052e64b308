"""The manifest of a run: every field is of its kind and size, or it is refused.

One set of limits, for who reads what somebody else may have written, and for who is about to write.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from gradwatch.history import Run
from gradwatch.sanitize import MAX_COUNT, MAX_JSON, MAX_LAYERS, MAX_NAME, MAX_STEP
from gradwatch.storage.places import TRACKERS

MAX_DIMENSIONS = 64
MAX_SETTINGS = 10_000  # of an optimizer, params, tags
MAX_ITEMS = 100  # of a setting that is a list or a table
Check = Callable[[Any], bool]


def run_of(data: Any) -> Run:
    """The manifest that `data`, as JSON gave it, is.

    Raises:
        ValueError: a field is missing, of another kind, or beyond its limit.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"it holds {_short(data)}, wanted an object")
    for name, (check, wanted) in _FIELDS.items():
        if name in data or name in ("name", "created"):
            _require(check(data.get(name)), name, data.get(name), wanted)
    for i, layer in enumerate(data.get("layers", ())):
        _require(_is_layer(layer), f"layers[{i}]", layer, "a name, a shape of at most 2^63 elements, a dtype")
    for i, optimizer in enumerate(data.get("optimizers", ())):
        _require(
            _is_optimizer(optimizer), f"optimizers[{i}]", optimizer, "an object of name, class, settings and groups"
        )
    return Run.from_json(data)


def check_run(run: Run) -> None:
    """Refuse a manifest that could not be read again.

    Raises:
        ValueError: why.
    """
    text = json.dumps(run.to_json(), indent=1)
    if len(text) > MAX_JSON:
        raise ValueError(f"it has {len(text):,} characters, and at most {MAX_JSON:,} are read")
    run_of(json.loads(text))


def text_of(value: object) -> str:
    """`value` as text that can be written, whatever its own `__str__` does."""
    try:
        text = str(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text.encode("utf-8", "backslashreplace").decode()


def scalar_of(value: object) -> Any:
    """`value` if it is a number, a text or None that a manifest can hold, else text."""
    return value if _is_scalar(value) else text_of(value)


def setting_of(value: object) -> Any:
    """An optimizer's setting as a manifest can hold it: what is nested deeper, longer or stranger is text."""
    if isinstance(value, (tuple, list)) and len(value) <= MAX_ITEMS:
        return tuple(map(scalar_of, value))
    return scalar_of(value)


def is_text(value: Any, limit: int = MAX_NAME) -> bool:
    """Whether `value` is text of at most `limit` characters that can be written as UTF-8."""
    try:
        return isinstance(value, str) and len(value) <= limit and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def is_time(value: Any) -> bool:
    """Whether `value` is a time as ISO 8601 writes it."""
    try:
        return is_text(value, 100) and math.isfinite(datetime.fromisoformat(value).timestamp())
    except (ValueError, OverflowError, OSError):
        return False


def _short(value: Any) -> str:
    shown = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _require(holds: bool, name: str, found: Any, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {_short(found)}, wanted {wanted}")


def _is_count(low: int = 0, high: int = MAX_COUNT) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _is_finite(value: Any) -> bool:
    """Whether `value` is a number that a float holds; of an int with hundreds of digits math.isfinite() raises."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_positive(value: Any) -> bool:
    return _is_finite(value) and value > 0


def _is_command(value: Any) -> bool:
    words = _is_list(MAX_SETTINGS, lambda word: is_text(word, MAX_JSON))
    return (
        isinstance(value, Mapping)
        and all(is_text(value.get(key)) for key in ("target", "folder"))
        and all(isinstance(value.get(key), bool) for key in ("module", "hidden"))
        and words(value.get("args"))
        and words(value.get("options"))
        and _optional(_is_count())(value.get("seed"))
        and _is_count(1)(value.get("ranks"))
        and is_text(value.get("log"), 100)
        and {*value["log"].split(",")} <= {*TRACKERS, "none"}
        and _optional(is_text)(value.get("experiment"))
    )


def _is_scalar(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return value is None or isinstance(value, bool | float) or is_text(value, MAX_JSON)


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _is_list(limit: int, check: Check = lambda _: True) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= limit and all(map(check, value))


def _is_table(check: Check, limit: int = MAX_SETTINGS) -> Check:
    return lambda value: (
        isinstance(value, Mapping) and len(value) <= limit and all(is_text(k) and check(v) for k, v in value.items())
    )


def _is_layer(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and is_text(value.get("name"))
        and _is_list(MAX_DIMENSIONS, _is_count(0, 2**63 - 1))(value.get("shape"))
        and math.prod(value["shape"]) < 2**63
        and is_text(value.get("dtype", ""), 100)
        and isinstance(value.get("frozen", False), bool)
    )


def _is_setting(value: Any) -> bool:
    """A number, a text, or some of them (Adam's betas); at most one level deep in another such list or table."""
    return _is_scalar(value) or _is_list(MAX_ITEMS, _is_scalar)(value) or _is_table(_is_scalar, MAX_ITEMS)(value)


def _is_optimizer(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and all(is_text(value.get(key, "")) for key in ("name", "class"))
        and _is_table(_is_setting)(value.get("settings", {}))
        and _is_list(MAX_LAYERS, _is_group)(value.get("groups", []))
    )


def _is_operation(value: Any) -> bool:
    """Whether `value` is a row of a loss's graph: what it shows, and as many shapes, 64x10, as operations."""
    if not _is_table(_is_scalar, MAX_ITEMS)(value) or not is_text(value.get("what")):
        return False
    shapes = [str(value.get(key, "1")) for key in ("shape", "shapes", "of")]
    counts = {len(str(value.get(key, "")).split()) for key in ("operations", "shapes", "operands") if key in value}
    return all(map(_SHAPES.fullmatch, shapes)) and len(counts) < 2 and is_text(value.get("layer", ""))


def _is_group(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and is_text(value.get("name", ""))
        and _is_list(MAX_LAYERS, is_text)(value.get("layers", []))
        and _is_count(0, 2**63 - 1)(value.get("parameters", 0))
        and _is_table(_is_setting)(value.get("settings", {}))
    )


_SHAPES = re.compile(r"\d{1,18}(x\d{1,18}| \d{1,18})*")
_TEXT = (is_text, f"text of at most {MAX_NAME:,} characters")
_POLICY = (_optional(lambda value: is_text(value, MAX_JSON)), "a policy's text")
_TIME = "a time such as 2026-01-31T12:00:00+00:00"
_FIELDS: dict[str, tuple[Check, str]] = {
    "name": _TEXT,
    "created": (is_time, _TIME),
    "part": (_optional(is_text), _TEXT[1]),
    "layers": (_is_list(MAX_LAYERS), f"a list of at most {MAX_LAYERS:,} layers"),
    "optimizers": (_is_list(MAX_LAYERS), f"a list of at most {MAX_LAYERS:,} optimizers"),
    "clip": _POLICY,
    "renorm": _POLICY,
    "lr_scale": (_is_positive, "a positive number"),
    "warmup": (_is_count(0, MAX_STEP), "a number of steps"),
    "every": (_is_count(1), "a number from 1 on"),
    "total_steps": (_optional(_is_count(0, MAX_STEP)), "a number of steps"),
    "window": (_is_count(1, MAX_STEP), "a number of steps from 1 on"),
    "mlflow_layers": (_is_count(), "a number of layers"),
    "status": (lambda value: is_text(value, 100), "a status such as FINISHED"),
    "ended": (_optional(is_time), _TIME),
    "attempt": (_is_count(), "a number from 0 on"),
    "pid": (_optional(_is_count(1)), "a process id"),
    "host": (_optional(is_text), _TEXT[1]),
    "pid_started": (_optional(is_text), _TEXT[1]),
    "crashed": (lambda value: isinstance(value, bool), "true or false"),
    "tags": (_is_table(_is_scalar), f"a table of at most {MAX_SETTINGS:,} texts"),
    "params": (_is_table(lambda value: is_text(value, MAX_JSON)), f"a table of at most {MAX_SETTINGS:,} texts"),
    "first_step": (_optional(_is_count(0, MAX_STEP)), "a number of steps"),
    "end_step": (_optional(_is_count(0, MAX_STEP)), "a number of steps"),
    "goes_on_from": (_optional(is_text), _TEXT[1]),
    "higher_is_better": (_is_table(lambda value: isinstance(value, bool)), "a table of true or false"),
    "activations_every": (_optional(_is_count(1)), "a number from 1 on"),
    "command": (_optional(_is_command), "how gradwatch run was started"),
    "source": (_optional(is_text), _TEXT[1]),
    "mlflow": (_optional(_is_table(_is_scalar)), "a table of texts"),
    "modules": (_is_table(lambda value: is_text(value, 100), MAX_LAYERS), f"a table of at most {MAX_LAYERS:,} classes"),
    "batch_norms": (_is_table(_is_finite, MAX_LAYERS), f"a table of at most {MAX_LAYERS:,} numbers"),
    "dropouts": (_is_table(_is_finite, MAX_LAYERS), f"a table of at most {MAX_LAYERS:,} numbers"),
    "loss_graph": (_is_list(MAX_LAYERS, _is_operation), f"a list of at most {MAX_LAYERS:,} operations with shapes"),
    "unheld": (_is_list(MAX_LAYERS, is_text), f"a list of at most {MAX_LAYERS:,} names"),
}
