"""Which runs belong together: those of one policy and setting are a group, and differ only in their seed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from gradwatch.analysis import optimizers
from gradwatch.analysis.final_values import (
    ARGS,
    NO_POLICY,
    diverged,
    final,
    is_seed,
    policy_text,
    seed_text,
    untrained,
)
from gradwatch.errors import RunError
from gradwatch.formatting import loop_clips
from gradwatch.history import History, Run
from gradwatch.storage.logged_names import HELD_OUT, is_factor, is_loss

__all__ = [
    "NO_POLICY",
    "Setting",
    "by_setting",
    "higher_is_better",
    "metric_names",
    "natural",
    "policies",
    "settings",
    "titled",
    "values_by_seed",
]

_HIGH = re.compile(
    r"acc|(^|[^a-z])(top[-_@]?\d+|f1|bleu|rouge|meteor|auc|auroc|auprc|ap|map|iou|miou|dice|psnr|ssim|r2|mcc|ndcg|mrr|elbo|"
    r"precision|recall|specificity|sensitivity|hits?@?\d*|pass@?\d*|exact_match|em|likelihood|explained_variance|reward|return|score|success|"
    r"win_?rate|kappa|gini|elo|corr(elation)?|spearmanr?|pearsonr?|kendall(_?tau)?|c_?index|sharpe|revenue|profit)s?($|[^a-z])",
    re.IGNORECASE,
)
_OF_A_PAIR = re.compile(r"(^|[^a-z])(chosen|rejected)($|[^a-z])", re.IGNORECASE)  # only their difference says anything
_NEGATED = re.compile(r"(^|[^a-z])(neg|negative|minus|1-)", re.IGNORECASE)
_LOW = re.compile(
    r"(^|[^a-z])(neg(ative)?[^a-z]?log[^a-z]?likelihood|nll|bpb|bpc|bpd|perplexity|ppl|err|error|[wcpt]er|mse|rmse|mae|mape|smape|kl|kld|fid|kid|lpips|regret|"
    r"cross_?entropy|ce|bce|brier|ece|cost|energy|distance|divergence|residual)s?($|[^a-z])",
    re.IGNORECASE,
)

_RECONSTRUCTION = re.compile(r"(^|[^a-z])recon(s|struction)?s?($|[^a-z])", re.IGNORECASE)

_WRITTEN = (
    "out|outputs?|save|logs?|logging|runs?|exp|experiment|work|tensorboard|tb|wandb|ckpt|checkpoints?|results?|dump"
)
_NAMES = re.compile(
    rf"(\w+_)?({_WRITTEN})_?(dir|directory|folder)|({_WRITTEN})_?(path|file|root|prefix|name|id|to)"
    r"|outf|outputs?|out|o|save|logs?|name|experiment|tags?|notes?|comment|timestamp|date|job_?id"
    r"|host(name)?|port|(master|main_process)_(addr|ip|port)|dist_url|init_method|(local_|node_)?rank|machine_rank"
)

_MOVES = re.compile(r"=[^=,()]+ to [^=,()]+")  # a threshold in the text of a clip
_SLICE = re.compile(r"\[\d+\]$")
_BLOCK = re.compile(r"(?<![^.])\d+(?=\.)")  # of a name such as `h.11.attn.weight`
SEARCHED = "search."  # before the params that a search drew: they are in the policy's text as well
Setting = tuple[tuple[str, str], ...]
_Of = TypeVar("_Of")


def metric_names(histories: Iterable[History], metric: str | None = None) -> list[str]:
    """The logged scalars that a comparison is about: what should rise, then what should fall, held-out ones first.

    Those of which it is known (`higher_is_better`); or just `metric`.

    Raises:
        RunError: none of the runs logged `metric`.

    """
    histories = list(histories)
    names = list(dict.fromkeys(name for history in histories for name in history.logged))
    if metric is not None:
        if metric not in names:
            raise RunError(f"no run logged {metric!r}; logged: {', '.join(names) or 'nothing'}")
        return [metric]
    return by_importance({name: higher_is_better(name, histories) for name in names})


def by_importance(rises: Mapping[str, bool | None]) -> list[str]:
    """The names of which it is known whether the scalar is meant to rise; the one that settles a comparison first."""
    known = (name for name, up in rises.items() if up is not None)
    return sorted(known, key=lambda name: (not rises[name], not HELD_OUT.search(name)))


def higher_is_better(metric: str, histories: Iterable[History] = ()) -> bool | None:
    """Whether this scalar is meant to rise (an accuracy, a reward) or to fall (a loss, an error).

    What the runs were told by `watch(higher_is_better=)` counts, else the name. None where neither says: `temperature`,
    `entropy`, the scale of a loss, the reward of what was chosen and of what was rejected; or where two runs say
    different things. A loss of something falls, whatever it is a loss of.
    """
    said = {h.run.higher_is_better[metric] for h in histories if metric in h.run.higher_is_better}
    if said:
        return said.pop() if len(said) == 1 else None
    if is_factor(metric) or _OF_A_PAIR.search(metric):
        return None
    if is_loss(metric) or _LOW.search(metric):
        return False
    if _HIGH.search(metric) and not _NEGATED.search(metric):
        return True
    return False if _RECONSTRUCTION.search(metric) else None


def settings(histories: Sequence[History]) -> list[dict[str, str]]:
    """For each run, the settings besides the policy in which the runs differ (never the seed, nor what only names it).

    An argument of the script that only repeats a setting (`args.lr` beside `lr`) is left out.
    """
    every = [_all_settings(history.run) for history in histories]
    keys = dict.fromkeys(key for values in every for key in values)
    columns = {key: [values.get(key) for values in every] for key in keys}
    differing = [
        key
        for key, values in columns.items()
        if len(set(values)) > 1 and not (key.startswith(ARGS) and columns.get(key[len(ARGS) :]) == values)
    ]
    return [{key: values.get(key, "") for key in differing} for values in every]


def telling(kinds: Sequence[Mapping[str, str]]) -> list[str]:
    """So few of the settings that they tell all these kinds of runs apart, in their order.

    `workload` may tell what `model`, `data` and `epochs` only repeat. Each next one is that which tells most apart.
    """
    left, chosen = list(kinds[0]) if kinds else [], list[str]()

    def apart(keys: Sequence[str]) -> int:
        return len({tuple(kind[key] for key in keys) for kind in kinds})

    while left and apart(chosen) < apart(list(kinds[0])):
        best = max(left, key=lambda key: apart([*chosen, key]))
        left.remove(best)
        chosen.append(best)
    return [key for key in kinds[0] if key in chosen] if kinds else []


def by_setting(histories: Sequence[History]) -> dict[Setting, dict[str, list[History]]]:
    """The runs by their differing settings, then by policy, in the order of first appearance."""
    found: dict[Setting, dict[str, list[History]]] = {}
    for history, policy, values in zip(histories, policies(histories), settings(histories), strict=True):
        found.setdefault(tuple(values.items()), {}).setdefault(policy, []).append(history)
    return found


def titled(found: Mapping[Setting, _Of]) -> list[tuple[str, Setting, _Of]]:
    """What there is of each setting, in their order, under a title of those that tell them apart: `lr = 0.1`."""
    told = telling([dict(setting) for setting in found])
    ordered = sorted(found.items(), key=lambda item: [natural(text) for _, text in item[0]])
    return [(", ".join(f"{k} = {v}" for k, v in setting if k in told), setting, of) for setting, of in ordered]


def policies(histories: Sequence[History]) -> list[str]:
    """What was done to each training, as code: the policy, and the loop's own clips where runs of it differ in them.

    Of a threshold that moves only that it does.
    """
    texts = [policy_text(history.run) for history in histories]
    clips = [_MOVES.sub("=…", loop_clips(history.per_step)) for history in histories]
    clips_of: dict[str, set[str]] = {}
    for text, own in zip(texts, clips, strict=True):
        clips_of.setdefault(text, set()).add(own)
    return [
        text if not own or len(clips_of[text]) == 1 else own if text == NO_POLICY else f"{text} + {own}"
        for text, own in zip(texts, clips, strict=True)
    ]


def counted(history: History, metric: str) -> float:
    """What the final value of a run counts as; NaN where there is none.

    Of a loss no more than it was before training: how far beyond that a run came apart says nothing of the policy. This
    is the min(l, l0) of Wortsman et al., arXiv:2309.14322, section 2. Where l0 is not known, and of other metrics, NaN
    for a run that diverged.
    """
    begin = untrained(history, metric)
    value = begin if diverged(history, metric) else float(np.fmin(final(history, metric), begin))
    return value if np.isfinite(value) else float("nan")


def values_by_seed(members: Sequence[History], metric: str) -> dict[str, float]:
    """What each seed counts as (`counted`).

    Runs of one seed count as one, with their mean: they are no independent sample. A run without a seed is its own.
    """
    found: dict[str, list[float]] = {}
    for i, history in enumerate(members):
        seed = seed_text(history.run) or f"run {i} of {policy_text(history.run)}"
        found.setdefault(seed, []).append(counted(history, metric))
    finite = {seed: [value for value in values if np.isfinite(value)] for seed, values in found.items()}
    return {seed: float(np.mean(values)) if values else float("nan") for seed, values in finite.items()}


def natural(text: str) -> tuple[float, str]:
    """A sort key that puts numbers in numeric order, before words."""
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text


def _says_the_same(text: str, other: str) -> bool:
    """Whether two settings are one: the same text, or the same number (`2` and `2.0`)."""
    return text == other or natural(text)[0] == natural(other)[0] < float("inf")


def names_the_run(key: str, value: str) -> bool:
    """Whether an argument of the script tells its run from others by nature: where it writes, what it is called, when
    and where it runs. By its name, and only if it is no number: that is a setting.
    """
    if key == "argv":
        return True
    if not key.startswith(ARGS):
        return False
    return _NAMES.fullmatch(re.sub(r"\W", "_", key[len(ARGS) :].lower())) is not None and natural(value)[1] != ""


def _all_settings(run: Run) -> dict[str, str]:
    """Params, optimizer class and settings, and which model it was, as text; without the seed.

    Slices of a tensor are one layer of the model; that it was cut is a setting, as a policy may act on each of them.
    """
    several = len(run.optimizers) > 1
    names = [layer.name for layer in run.layers]
    found = {"model": f"{len(_whole(names))} layers, {sum(layer.numel for layer in run.layers):,} parameters"}
    found["split"] = _like(_whole(names) - {*names})
    for optimizer in run.optimizers:
        prefix = f"{optimizer.get('name', '')}." if several else ""
        found[f"{prefix}optimizer"] = str(optimizer.get("class", ""))
        found.update({f"{prefix}{key}": text for key, text in optimizers.settings(optimizer).items()})
        sizes = [len(_whole(group.get("layers", ()))) for group in optimizer.get("groups", ())]
        found[f"{prefix}layers of the param groups"] = ", ".join(map(str, sizes)) if len(sizes) > 1 else ""
    for key, value in run.params.items():
        if key.startswith(SEARCHED) or names_the_run(key, str(value)):
            continue
        if not _says_the_same(found.setdefault(key, str(value)), str(value)):
            found[f"param {key}"] = str(value)
    return {f"{key} (setting)" if key in COLUMNS else key: v for key, v in found.items() if not is_seed(key)}


def _whole(names: Iterable[str]) -> set[str]:
    """The tensors of these layers: `w` of `w[0]` and `w[1]`."""
    return {_SLICE.sub("", name) for name in names}


def _like(names: Collection[str]) -> str:
    """Layers of the blocks of a model in few words: `h.*.attn.weight (4)`."""
    counts = Counter(_BLOCK.sub("*", name) for name in names)
    return ", ".join(sorted(f"{name} ({n})" if n > 1 else name for name, n in counts.items())) or "none"


COLUMNS = {"run", "policy", "runs", "seed", "steps", "clip_rate", "loop_clip_rate", "median_grad_norm", "p99_grad_norm",
           "nonfinite_steps", "alike", "diverged", "seconds_per_step", "steps_to_target", "reached_target"}  # fmt: skip
