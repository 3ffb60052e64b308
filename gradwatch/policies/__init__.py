"""Clipping and renorm policies: what may happen to gradients before the step, and to weights after it."""

from gradwatch.policies.adaptive import AGC, AdaGC, AutoClip, ClipByHistory, ZClip
from gradwatch.policies.base import Decision, NormPolicy, Policy, chain, only
from gradwatch.policies.clip import ClipByAverageNorm, ClipByGlobalNorm, ClipByNorm, ClipByValue, ClipWith
from gradwatch.policies.constraint import MaxNorm, MaxSpectral, QKClip, Renorm
from gradwatch.policies.grammar import parse
from gradwatch.policies.schedule import after, ramp
from gradwatch.policies.skip import SkipNonfinite, SkipNorm, SkipSpike

__all__ = [
    "AGC",
    "AdaGC",
    "AutoClip",
    "ClipByAverageNorm",
    "ClipByGlobalNorm",
    "ClipByHistory",
    "ClipByNorm",
    "ClipByValue",
    "ClipWith",
    "Decision",
    "MaxNorm",
    "MaxSpectral",
    "NormPolicy",
    "Policy",
    "QKClip",
    "Renorm",
    "SkipNonfinite",
    "SkipNorm",
    "SkipSpike",
    "ZClip",
    "after",
    "chain",
    "only",
    "parse",
    "ramp",
]
