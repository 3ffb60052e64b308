"""Whatever a run recorded, a rule answers: no error, no warning of numpy, evidence that json can write."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest

from gradwatch.analysis.rules import RULES
from gradwatch.history import History, Layer, Run
from gradwatch.table import EMPTY

EXTREMES = np.array([0.0, 1e-40, 1e-7, 0.3, 1.0, 1.0, 1.0, 50.0, 1e20, 1e38, np.inf, np.nan])
PER_LAYER = ("grad_norm", "clip_coef", "clip_rate", "nonfinite", "weight_norm", "update_ratio", "renorm_rate")
PER_STEP = (
    "grad_norm", "clipped_norm", "clip_coef", "clip_rate", "skipped", "nonfinite", "lr", "lr/1", "loss", "loss_scale",
    "user_max_norm", "user_grad_norm", "user_clip_value",
)  # fmt: skip
OF_LOSSES = (
    "targets", "target_mean", "target_std", "target_top", "target_top_share", "predicted_top_share", "ignored",
    "target_soft", "target_is_input", "target_top_at_ends", "target_low", "target_high", "target_spread",
    "target_farthest", "predicted_mean", "predicted_std", "predicted_right",
    "choices", "logit_range", "logit_range_most", "cross_entropy", "explained", "parameters_gone", "never_cleared",
    "target_is_next", "causal", "codes_used", "advantage_mean", "advantage_std",
    "embeddings_alike", "margins_alike", "scored_one_way",
)  # fmt: skip
SQUASHED = {"what": "path", "operations": "MseLoss Sigmoid Addmm", "shapes": "1 4x5 4x5", "operands": "1 1 2"}
OF_MODULES = ("rms", "max", "zeros", "saturated", "dead", "nonfinite", "order")
OF_HEADS = ("logit_bound", "logit_max", "entropy")
OF_EXPERTS = ("tokens", "token_count")
CLIPS = (None, "ClipByGlobalNorm(1.0)", "chain(SkipNonfinite(), AGC(0.01))", "ClipByValue(-1.0, 1.0)", "Mine <object>")


def any_history(seed):
    rng = np.random.default_rng(seed)
    t, n = int(rng.choice([0, 1, 3, 12, 40, 150])), int(rng.integers(0, 4))
    few = rng.choice(EXTREMES, size=4)  # the same few values again and again: constant columns are extreme as well
    steps = {name: rng.choice(few if rng.random() < 0.5 else EXTREMES, t) for name in PER_STEP if rng.random() < 0.8}
    if rng.random() < 0.5:
        steps |= {f"in_loss/{name}": rng.choice(few if rng.random() < 0.5 else EXTREMES, t) for name in OF_LOSSES}
    layers = {
        name: rng.choice(few if rng.random() < 0.5 else EXTREMES, (t, n)).astype(np.float32)
        for name in PER_LAYER
        if rng.random() < 0.8
    }
    shapes = [(), (3,), (4, 5)]
    kinds = ("float32", "bfloat16", "int3")
    named = tuple(Layer(f"{i}.weight", shapes[i % 3], kinds[i % 3]) for i in range(n))
    kind = "Muon" if seed % 3 == 0 else "Adam"
    made = ({"name": kind, "class": kind, "settings": {"weight_decay": 0.1}},) if rng.random() < 0.5 else ()
    renorm = [None, "MaxNorm(1.0)", "Renorm(2, 0, 1.0)", "only('a*', MaxNorm(2.0))"][int(rng.integers(4))]
    run = Run(
        "any", "2026-01-01", layers=named, optimizers=made, clip=CLIPS[int(rng.integers(len(CLIPS)))], renorm=renorm,
        loss_graph=({**SQUASHED, "layer": named[0].name},) if named and rng.random() < 0.5 else (),
    )  # fmt: skip
    names = np.array([kind] * t, dtype=object)
    history = History.of(
        run,
        tuple(layer.name for layer in named),
        np.arange(t, dtype=np.int64),
        np.zeros(t, np.int64),
        names,
        layers,
        steps,
    )
    return replace(history, activations=any_activations(rng, history.by_step.take(slice(None, None, 4))))


def any_activations(rng, steps):
    """Of some models heads or experts beside the modules, of others neither; nothing where none was asked for."""
    kinds = [("0", "2.act", "3"), ("2.attn[0]", "2.attn[1]"), ("2.gate[0]", "2.gate[1]", "2.gate[2]")]
    asked = [kinds[0], *(kind for kind in kinds[1:] if rng.random() < 0.5)] if rng.random() < 0.7 else []
    names = tuple(name for kind in asked for name in kind)
    values = {}
    for kind, quantities in zip(kinds, (OF_MODULES, OF_HEADS, OF_EXPERTS), strict=True):
        for quantity in quantities if kind in asked else ():
            few = rng.choice(EXTREMES, size=3) if rng.random() < 0.5 else EXTREMES
            values[quantity] = np.full((len(steps), len(names)), np.nan, np.float32)
            values[quantity][:, [name in kind for name in names]] = rng.choice(few, (len(steps), len(kind)))
    return replace(steps, values=values, layers=names) if names else EMPTY


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_answers_on_any_history(rule):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(150):
            history = any_history(seed)
            with np.errstate(all="ignore"):
                findings = rule(history)
            for finding in findings:
                assert finding.rule == rule.__name__.replace("_", "-")
                assert finding.severity in ("error", "warning", "note")
                assert finding.first_step <= finding.last_step
                assert set(finding.layers) <= {*history.layers, *history.activations.layers}
                assert finding.cause.endswith(".")
                assert finding.cure.endswith(".")
                json.dumps(finding.to_json())


def test_the_histories_are_of_many_kinds():
    found = {f.rule for rule in RULES for seed in range(40) for f in _quietly(rule, any_history(seed))}
    assert len(found) >= 8


def _quietly(rule, history):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rule(history)
