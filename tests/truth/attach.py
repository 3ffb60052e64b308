"""Where gradwatch comes in: a Watch that records into memory, and the policies of the matrix beside their oracles."""

from __future__ import annotations

import dataclasses
from unittest import mock

import numpy as np
import oracle
import torch

import gradwatch
from gradwatch.storage.null_writer import NullWriter


class Kept(NullWriter):
    """Keeps the blocks that a Watch hands over."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.blocks = []

    def append(self, block):
        self.blocks.append(block.history())


def attach(model, optimizer, clip, **options):
    """`gradwatch.watch` as on a rank that writes no files; the Watch, and the list its blocks go to."""
    writers = []

    def keep(*arguments):
        writers.append(Kept(*arguments))
        return writers[-1]

    with (
        mock.patch("gradwatch.recording.attach.rank", return_value=1),
        mock.patch("gradwatch.recording.attach.NullWriter", keep),
    ):
        handle = gradwatch.watch(model, optimizer, clip=clip, every=2, log=None, verbose=False, **options)
    return handle, writers[0].blocks


@dataclasses.dataclass(frozen=True, repr=False)
class Halve(gradwatch.NormPolicy):
    """A coefficient of 1/2, always; keeps the norms that policies see, in full precision."""

    seen: list = dataclasses.field(default_factory=list)

    def decide(self, norms, state):
        self.seen.append((norms.l2, norms.present, norms.total()))
        return gradwatch.Decision(coef=torch.full_like(norms.total(), 0.5))


POLICIES = {
    "ClipByGlobalNorm": (gradwatch.ClipByGlobalNorm, oracle.by_global_norm),
    "ClipByNorm": (gradwatch.ClipByNorm, oracle.by_norm),
    "ClipByValue": (gradwatch.ClipByValue, oracle.by_value),
    "a factor of 1/2": (lambda threshold: Halve(), oracle.halved),
}


def thresholds(trial):
    """For each policy a threshold that some steps, layers or elements exceed: a power of 2, exact in every dtype."""
    seen = [s for probe in trial.probes for s in probe.truth if s.finite]
    grads = [g for s in seen for g in s.grads if g is not None]
    sizes = {
        "ClipByGlobalNorm": [oracle.total(s.grads) for s in seen],
        "ClipByNorm": oracle.norms(grads),
        "ClipByValue": np.abs(np.concatenate([g.ravel() for g in grads])),
        "a factor of 1/2": [1.0],
    }
    return {name: 2.0 ** np.floor(np.log2(max(np.median(values), 2.0**-20))) for name, values in sizes.items()}
