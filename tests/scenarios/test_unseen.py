"""The unseen trainings are what they are said to be: by their scores alone, no rule is asked.

Every 512th here; all of them by `scripts/bench/judgement.py --check`.
"""

import re
from pathlib import Path

import pytest
import unseen.every  # noqa: F401
from recordings import recorded
from unseen import HEALTHY, HELD_OUT, SICK, UNNAMED, fault, label, of_group

from gradwatch.analysis.rules import diagnose

FOLDER = Path(__file__).parents[2] / "docs" / "findings"
PAGES = {page.stem for page in FOLDER.glob("*.md")} - {"index", "false_alarms", "judgement", "cures"}
WANTED = {  # what no finding is called yet, and an expert would say
    "accumulation-not-averaged",
    "accumulation-not-divided",
    "accumulator-never-forgets",
    "actions-not-scaled",
    "activation-unsuited",
    "activations-grow-with-depth",
    "actor-loss-trains-critic",
    "adapter-scale-too-small",
    "adapter-zero-on-both-sides",
    "advantage-not-detached",
    "advantages-all-zero",
    "aggregation-not-normalised",
    "anchors-too-large",
    "attention-across-examples",
    "attention-not-scaled",
    "attention-scale",
    "attention-unscaled",
    "augmentation-changes-label",
    "augmentation-changes-labels",
    "augmentation-destroys-labels",
    "augmentation-too-strong",
    "augmentation-without-targets",
    "auxiliary-dominates",
    "average-too-slow",
    "backbone-frozen",
    "backgrounds-differ",
    "balance-loss-constant",
    "baseline-in-other-units",
    "batch-read-as-time",
    "batch-too-large",
    "batch-too-small",
    "batches-of-one-label",
    "betas-swapped",
    "bias-correction-wrong",
    "body-frozen",
    "bootstrap-past-the-end",
    "bootstraps-past-the-end",
    "catastrophic-forgetting",
    "categories-as-numbers",
    "checkpoint-loaded-over",
    "checkpoint-of-the-worst",
    "clamp-after-exp",
    "class-ignored",
    "class-imbalance",
    "class-never-in-loss",
    "class-weights-inverted",
    "clip-after-the-step",
    "clip-not-applied",
    "clip-per-micro-batch",
    "clipping-too-tight",
    "columns-on-unlike-scales",
    "commitment-missing",
    "constant-initialisation",
    "critic-not-detached",
    "critic-unbounded",
    "decay-on-norm-gains",
    "decoder-input-constant",
    "decoder-sees-nothing",
    "degree-averaged-away",
    "detached",
    "detached-path",
    "dice-smoothing",
    "discriminator-too-strong",
    "discriminator-too-weak",
    "discriminator-trained-by-the-generators-loss",
    "division-by-zero",
    "double-softmax",
    "dropout-at-evaluation",
    "edges-missing",
    "embedding-hardly-varies",
    "encoder-detached",
    "entropy-bonus-negated",
    "entropy-bonus-too-strong",
    "entropy-collapse",
    "entropy-collapsed",
    "entropy-collapses",
    "entropy-minimised",
    "entropy-target-out-of-reach",
    "entropy-wrong-sign",
    "epoch-schedule-stepped-per-batch",
    "epsilon-underflows",
    "error-clamped",
    "eval-mode-missing",
    "eval-not-called",
    "evaluated-in-training-mode",
    "exploding-gradients",
    "features-not-normalised",
    "forget-gate-closed",
    "frozen-backbone",
    "frozen-layers",
    "generator-helps-the-discriminator",
    "generator-labels-flipped",
    "generator-outruns-discriminator",
    "gradient-not-copied",
    "gradient-of-another-function",
    "gradients-conflict",
    "graph-not-used",
    "group-rates-overwritten",
    "hard-negatives",
    "head-frozen",
    "heavy-tailed-targets",
    "hidden-state-not-passed",
    "hinge-flat-at-zero",
    "ids-collide",
    "ignore-index-is-a-class",
    "illegal-actions-in-the-maximum",
    "initialised-too-large",
    "initialised-too-small",
    "inputs-and-targets-unpaired",
    "inputs-are-zero",
    "inputs-constant",
    "judge-fed-the-makers-gradient",
    "kl-div-without-log",
    "kl-weight-too-high",
    "kl-weight-too-large",
    "kl-weight-too-strong",
    "label-noise",
    "labels-all-one-class",
    "labels-longer-than-outputs",
    "labels-masked",
    "labels-misaligned",
    "labels-mismatched",
    "labels-not-one-hot",
    "labels-shifted-twice",
    "labels-shuffled",
    "layer-made-in-forward",
    "layer-unused",
    "layers-made-in-forward",
    "layers-not-registered",
    "linear-network",
    "link-applied-twice",
    "log-probabilities-averaged",
    "log-probability-of-another-action",
    "log-variance-as-deviation",
    "log-without-floor",
    "logit-scale-too-small",
    "loss-averaged-twice",
    "loss-divided-twice",
    "loss-masked-away",
    "loss-not-averaged",
    "loss-overflows-in-half",
    "loss-rewards-wrong-answers",
    "loss-scale-collapsed",
    "loss-sign-wrong",
    "loss-summed-not-averaged",
    "loss-term-constant",
    "loss-term-outweighed",
    "loss-term-without-gradient",
    "loss-terms-apart",
    "loss-terms-imbalanced",
    "loss-terms-out-of-balance",
    "loss-times-zero",
    "loss-too-easy",
    "loss-unbounded",
    "loss-weight-escapes",
    "lr-too-low",
    "margins-swapped",
    "mask-is-wrong",
    "mask-multiplied",
    "maximized",
    "memory-not-normalised",
    "missing-bias",
    "missing-normalisation",
    "missing-values-as-numbers",
    "mode-collapse",
    "model-too-small",
    "modules-not-registered",
    "moments-begin-anew",
    "momentum-never-decays",
    "momentum-too-high",
    "negative-learning-rate",
    "negative-loss",
    "next-state-rescaled",
    "no-baseline",
    "no-credit-through-time",
    "no-decay",
    "no-gradient-clipping",
    "no-gradient-to-the-generator",
    "no-negatives",
    "no-nonlinearity",
    "no-second-derivative",
    "no-stop-gradient",
    "no-target-network",
    "no-warmup",
    "noise-level-not-given",
    "noise-not-divided",
    "noise-not-divided-by-the-batch",
    "norm-after-the-last-layer",
    "norm-frozen",
    "norm-left-in-eval",
    "norm-left-out",
    "norm-over-the-wrong-axis",
    "norm-statistics-noisy",
    "norm-statistics-stale",
    "not-in-the-optimizer",
    "only-padding-in-loss",
    "optimizer-never-stepped",
    "optimizer-steps-twice",
    "optimizer-unsuited",
    "outlier-weights",
    "outliers-in-the-data",
    "output-bias-far-from-the-mean",
    "output-clamped",
    "outputs-never-negative",
    "outputs-not-scaled",
    "outputs-too-large",
    "oversmoothing",
    "parameters-not-in-the-optimizer",
    "penalty-over-the-wrong-axis",
    "penalty-per-element",
    "penalty-without-gradient",
    "perturbation-kept",
    "plateau-in-the-wrong-mode",
    "plateau-mode",
    "plateau-mode-inverted",
    "policy-collapsed",
    "policy-descends-return",
    "pooled-away",
    "pooled-over-positions",
    "posterior-collapsed",
    "precision-too-low",
    "preprocessing-mismatch",
    "pretrained-weights-lost",
    "probabilities-not-logs",
    "rare-term",
    "rate-below-zero",
    "rate-came-with-the-state",
    "rate-climbs-back",
    "rate-peaks-too-high",
    "rate-restored",
    "rates-apart",
    "ratio-always-one",
    "read-after-padding",
    "relu-on-the-output",
    "relu-under-a-derivative",
    "returns-in-the-wrong-direction",
    "returns-of-the-past",
    "returns-of-the-whole-episode",
    "rewards-not-normalised",
    "rewards-unscaled",
    "rounded-away",
    "router-collapsed",
    "same-batch",
    "sample-not-detached",
    "saturating-generator-loss",
    "scale-too-high",
    "scaler-bypassed",
    "schedule-ran-out",
    "schedule-restarted",
    "schedule-restarts",
    "schedule-rises",
    "schedule-stepped-per-batch",
    "scheduler-stepped-per-batch",
    "shares-not-summing-to-one",
    "sigmoid-twice",
    "skip-connection-lost",
    "softmax-of-an-empty-row",
    "softmax-of-one-class",
    "softmax-of-one-output",
    "softmax-over-one",
    "softmax-over-one-channel",
    "softmax-over-one-unit",
    "spread-never-below-one",
    "sqrt-at-zero",
    "state-detached",
    "state-not-resumed",
    "state-read-after-padding",
    "std-of-one-element",
    "stepped-past-the-scaler",
    "summed-loss",
    "symmetric-initialisation",
    "symmetric-units",
    "symmetry-not-broken",
    "target-broadcast",
    "target-is-the-input",
    "target-network-never-updated",
    "target-never-updated",
    "target-of-another-parameterisation",
    "target-shares-layers",
    "targets-all-zero",
    "targets-constant",
    "targets-do-not-fit-the-model",
    "targets-ignored",
    "targets-in-the-input",
    "targets-run-away",
    "task-interference",
    "temperature-below-zero",
    "temperature-inverted",
    "temperature-not-squared",
    "temperature-too-high",
    "temperature-too-low",
    "temperature-too-small",
    "term-without-gradient",
    "terminal-not-masked",
    "terminal-states-bootstrapped",
    "terminals-ignored",
    "test_accuracy",
    "timestep-not-given",
    "timesteps-skewed",
    "too-few-steps",
    "too-many-propagation-layers",
    "train-eval-mode",
    "train-validation-mismatch",
    "underflow",
    "units-alike-from-the-start",
    "units-mixed",
    "unmasked-tokens-in-loss",
    "unobserved-as-zeros",
    "update-below-precision",
    "update-rounds-away",
    "updates-lost-to-rounding",
    "updates-rounded-away",
    "value-not-detached",
    "value-outweighs-policy",
    "warmup-compounded",
    "warmup-restarts",
    "weights-overwritten",
    "weights-put-back",
    "wrong-labels",
    "zero-initialisation",
    "zeroed-before-the-step",
    "zeroed-once-an-epoch",
}


@pytest.mark.slow
@pytest.mark.parametrize("training", [SICK[name] for name in sorted(SICK)[2::1000]], ids=label)
def test_a_sick_training_is_clearly_worse_than_its_cured_twin(training, tmp_path):
    assert fault(training, tmp_path, slack=0.5) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the watched optimizers do not step together")  # a late actor does not
@pytest.mark.parametrize("training", [HEALTHY[name] for name in sorted(HEALTHY)[2::1000]], ids=label)
def test_a_healthy_training_learns(training, tmp_path):
    assert fault(training, tmp_path, slack=0.5) is None


ALARMED_ONCE = (  # by rules that had not seen them
    "curvature-of-rows-and-columns", "no-norms-but-standard-weights", "picture-from-hashed-grids",
    "proxies-for-each-kind", "two-critics-and-a-late-actor", "updates-of-clients-as-gradients",
    "wide-net-with-rates-by-width", "tied-letters-in-orthogonal-steps", "rollouts-that-reach-further",
    "a-lamplighter-in-a-dark-corridor", "pressure-along-a-penstock-in-pascals", "trails-of-ants-that-grow-longer",
    "errands-through-a-row-of-rooms", "gradients-of-a-pass-from-few-surveys", "handwriting-of-two-offices-made-alike",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:the watched optimizers do not step together")  # a late actor does not
@pytest.mark.parametrize("name", ALARMED_ONCE)
def test_a_healthy_training_that_was_alarmed_once_is_not_any_more(name, tmp_path):
    found = diagnose(recorded(f"unseen-{name}", HEALTHY[name].train, tmp_path))
    assert [finding.rule for finding in found if finding.severity != "note"] == []


NAMED = ("tuning", "held out")


def test_the_groups_are_disjoint_and_whole_and_two_of_one_size():
    assert set(SICK) | set(HEALTHY) >= HELD_OUT, "a name in HELD_OUT that no training has"
    for of in (SICK, HEALTHY):
        groups = {name: [t.name for t in of_group(of, name)] for name in (*NAMED, *UNNAMED)}
        assert sorted(name for names in groups.values() for name in names) == sorted(of)
        assert abs(len(groups["tuning"]) - len(groups["held out"])) <= 2
        assert len(groups["blind"]) >= 24
        assert len(groups["fresh"]) == 28
        assert [len(groups[name]) for name in UNNAMED[2:]] == [30] * 5 + (
            [30, 30, 40, 0, *[36] * 21, 35, 36, 35, *[36] * 17]
            if of is SICK
            else [50, 50, 50, 26, 50, 40, 36, 50, 50, *[60] * 18, 59, 63, *[60] * 16]
        )


@pytest.mark.parametrize("group", UNNAMED)
def test_an_unnamed_one_stands_in_a_file_of_its_own_and_is_shown_without_its_name(group):
    for of in (SICK, HEALTHY):
        shown = [label(t) for t in of_group(of, group)]
        assert len(set(shown)) == len(shown)
        assert not {t.name for t in of_group(of, group)} & set(shown)
        assert {t.train.__module__.split(".")[1] for t in of_group(of, group)} <= {group}
        assert [label(t) for name in NAMED for t in of_group(of, name)] == [
            t.name for name in NAMED for t in of_group(of, name)
        ]


def test_what_is_expected_is_a_finding_or_a_name_that_is_wanted():
    named = {name for s in SICK.values() for name in s.expected}
    assert named <= PAGES | WANTED
    assert all(re.fullmatch("[a-z-]+", name) for name in named)


def test_an_expert_said_where_and_what_to_do():
    assert [s.name for s in SICK.values() if not (s.expected and s.where and s.cure)] == []
