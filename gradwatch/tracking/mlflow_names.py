"""What things are called in MLflow: a layer's, block's, part's or logged scalar's name as a key that nothing else has.

A name that MLflow accepts is its own key. Any other has what MLflow refuses replaced, and ends in a mark of its own,
such as `loss_train_--3f2a9c0d1b7e`: two names are never one curve.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from gradwatch.table import SETTING

MAX_NAME = 250
FEW_BLOCKS = 8  # a grouping this coarse hides the model: the next finer level is merged into ranges instead
LOOP = "loop_clip"  # the keys of the loop's own clips, as `clip` those of the policy
BRIEF = "Gradwatch"  # the section on which a run's page opens: MLflow sorts them as bytes, capitals first
# table, quantity that is sampled -> (what it is called, how all its modules, heads or layers are summed up)
SAMPLED_QUANTITIES = {
    ("activations", "tokens"): ("expert_tokens", ("largest", "median")),
    ("histograms", "below_fp16"): ("grad_below_fp16", ("largest", "median")),
    ("histograms", "below_e4m3"): ("grad_below_e4m3", ("median",)),
    ("by_layer", "sigma_max"): ("sigma_max", ("largest", "median")),
    ("by_layer", "stable_rank"): ("stable_rank", ("median",)),
    ("by_layer", "row_share"): ("row_share", ("largest",)),
    ("by_layer", "adam_rms"): ("adam_rms", ("largest",)),
    ("by_layer", "trust_ratio"): ("trust_ratio", ("smallest", "median")),
    ("heads", "qk_clips"): ("qk_clips", ("largest",)),
    ("heads", "logit_max"): ("qk_logit", ("largest", "median")),
    ("activations", "rms"): ("activation_rms", ("largest", "median")),
    ("activations", "max"): ("activation_max", ("largest", "median")),
    ("activations", "dead"): ("activation_dead", ("largest",)),
    ("activations", "logit_max"): ("attention_logit", ("largest", "median")),
    ("activations", "entropy"): ("attention_entropy", ("median",)),
}
SAMPLED = tuple(dict.fromkeys(name for name, _ in SAMPLED_QUANTITIES.values()))
# How the keys of gradients and weights begin; and those of the optimizer.
_DIRECT = (
    "grad_norm",
    "clipped_norm",
    "weight_norm",
    "update_ratio",
    "update_norm",
    "clip_rate",
    "clip",
    "noise_scale",
)
OWN = tuple(f"{name}/" for name in (*_DIRECT, LOOP, BRIEF, *SAMPLED))
_OWN_TOO = (*OWN, "lr/", SETTING)
TOTAL, BEFORE_LOOP = "grad_norm/total", "grad_norm/before_loop_clip"  # no layer's, though they look like one's
LOGGED = "logged/"  # before what is logged under a key of gradwatch's own
_MARK = re.compile(r"--[0-9a-f]{12}$")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def safe_name(name: str) -> str:
    """`name` if MLflow accepts it: letters, digits, `_ - . : /` and spaces, a tidy path, at most 250 characters; else
    a name of its own that is much like it.
    """
    tidy = posixpath.normpath(re.sub(r"[^\w\-. :/]", "_", name)).lstrip("/.")
    tidy = tidy[:MAX_NAME].rstrip("/ ") or "_"
    return tidy if tidy == name and not _MARK.search(name) else _marked(tidy, name)


def part_key(key: str, part: str | None) -> str:
    """The metric, param or tag `key` of the part of that name; `key` itself for a run without parts."""
    return safe_name(f"{key}/{part}") if part else key


def layer_key(quantity: str, name: str) -> str:
    """The key of a quantity of the layer or block `name`."""
    key = f"{quantity}/{name}"
    is_own = f"{key}/".startswith((f"{TOTAL}/", f"{BEFORE_LOOP}/"))
    return _marked(safe_name(key), key) if is_own else safe_name(key)


def logged_key(name: str, part: str | None) -> str:
    """The key of what the user logged as `name`: under `logged/` where gradwatch has a key of that kind itself."""
    key = f"{name}/{part}" if part else name
    bare = re.sub(f"^({LOGGED})+", "", key)
    return safe_name(f"{LOGGED}{key}" if bare.startswith(_OWN_TOO) else key)


def _marked(shown: str, name: str) -> str:
    mark = f"--{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    return shown[: MAX_NAME - len(mark)] + mark


# ------------------------------------------------------------------------------------------------------------ blocks


def blocks(layers: Sequence[str], limit: int) -> dict[str, list[int]]:
    """At most `limit` names for L layers, in model order, each with the numbers of its layers.

    Up to `limit` layers stand for themselves. More are summed up by the deepest module prefix that gives at most
    `limit` blocks. Where that leaves fewer than 8 (a stack of 24 blocks would become one), the next finer level is
    taken instead, and consecutive blocks of it are merged into `limit` ranges: `h.00..01`.
    """
    if len(layers) <= limit:
        return {name: [i] for i, name in enumerate(layers)}
    modules = [name.split(".")[:-1] or [name] for name in layers]
    groups: dict[str, list[int]] = {}
    finer: dict[str, list[int]] = {}
    for depth in range(max(map(len, modules)), 0, -1):
        finer, groups = groups, {}
        for i, module in enumerate(modules):
            groups.setdefault(".".join(module[:depth]), []).append(i)
        if len(groups) <= limit:
            break
    found = list(groups.items())
    if len(groups) > limit:
        found = _ranges(groups, limit)
    elif finer and len(groups) < min(FEW_BLOCKS, limit):
        found = _ranges(finer, limit)
    shown = _padded([name for name, _ in found])
    often = Counter(shown)  # `h.1` and `h.01` are padded alike
    return {
        name if often[name] == 1 else _marked(name, "\n".join(layers[i] for i in at)): at
        for name, (_, at) in zip(shown, found, strict=True)
    }


def _ranges(groups: dict[str, list[int]], limit: int) -> list[tuple[str, list[int]]]:
    """Consecutive groups merged into `limit` ranges of nearly equal length, named by their first and last."""
    names = list(groups)
    out: list[tuple[str, list[int]]] = []
    for part in np.array_split(np.arange(len(names)), limit):
        first, last = names[part[0]], names[part[-1]]
        pairs = zip(first.split("."), last.split("."), strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        tail = ".".join(last.split(".")[shared:])
        out.append((first if first == last else f"{first}..{tail}", [i for k in part for i in groups[names[k]]]))
    return out


def _padded(names: list[str]) -> list[str]:
    """Every number that stands alone between dots with as many digits as the longest one."""
    width = max((len(number) for name in names for number in _NUMBER.findall(name)), default=1)
    return [_NUMBER.sub(lambda match: match[0].zfill(width), name) for name in names]
