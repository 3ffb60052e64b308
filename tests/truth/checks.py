"""What is held against the oracle: the record, what the optimizer consumed, what policies saw, the weights.

Legend: T steps that were taken, L layers.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import oracle
import torch
from attach import Halve

from gradwatch.storage.joining import concat

FLOAT32 = float(np.finfo(np.float32).eps)  # the record is kept in float32
DOUBLE = 1e-12
SINGLE = 1e-5  # of float32 and of halves, whose norms are accumulated in float32
SMALLEST = 1e-7  # where float16 has no digits left


def taken(probe):
    """The truths of each step that was taken, by step; several where a closure was evaluated several times."""
    steps = sorted({step for step, _ in probe.consumed})
    return {step: [seen for seen in probe.truth if seen.step == step] for step in steps}


def record(probe, clip, threshold):
    """Every step has its row, and the recorded numbers are the oracle's; those that the scaler dropped are skipped."""
    history = concat(probe.blocks)
    first = list({seen.step: seen for seen in reversed(probe.truth)}.values())[::-1]  # of a closure's evaluations
    assert history.layers == tuple(probe.named), f"layers {history.layers}"
    assert history.step.tolist() == list(range(len(first))), f"steps {history.step}, of {len(first)}"
    steps = np.array([seen.step in taken(probe) for seen in first])
    assert (history.total("skipped") == ~steps).all(), f"skipped {history.total('skipped')}, taken {steps}"
    evaluations = Counter(seen.step for seen in probe.truth)
    if max(evaluations.values()) > 1:
        assert history.total("evaluations").tolist() == [evaluations[seen.step] for seen in first], "evaluations"
    eps = FLOAT32 if max(first[0].eps) < DOUBLE else SINGLE
    close(history.layer("grad_norm"), [oracle.norms(s.grads) for s in first], eps, "grad_norm of layers")
    close(history.total("grad_norm"), [oracle.total(s.grads) for s in first], 2 * eps, "grad_norm")
    rates = np.array([s.rates for s in first])
    for group in range(rates.shape[1]):
        close(history.total(f"lr/{group}" if group else "lr"), rates[:, group], FLOAT32, "lr")
    clipped, coefs = zip(*(clip(s.grads, threshold) for s in first), strict=True)
    coefs = np.where(steps[:, None] | np.isnan(coefs), coefs, 0.0)
    close(history.layer("clip_coef"), coefs, 2 * eps, "clip_coef of layers")
    totals = np.where(steps, [oracle.total(grads) for grads in clipped], 0.0)
    finite = np.isfinite(totals)  # 0 * inf: what is left of such a step is said by nonfinite, tested elsewhere
    close(history.total("clipped_norm")[finite], totals[finite], 4 * eps, "clipped_norm")


def consumed(probe, clip, threshold):
    """Whatever hook or closure leads to it, the optimizer gets the oracle's gradient, clipped once."""
    left_out = {s.step for s in probe.truth if s.finite} - taken(probe).keys()
    assert not left_out, f"steps that no optimizer took: {left_out}"
    for step, truths in taken(probe).items():
        looks = [grads for at, grads in probe.consumed if at == step]
        each, rest = divmod(len(looks), len(truths))  # several where several hooks fire
        assert rest == 0, f"step {step}: {len(looks)} looks at {len(truths)} evaluations"
        for i, grads in enumerate(looks):
            truth = truths[i // each]
            want = dict(zip(probe.named, clip(truth.grads, threshold)[0], strict=True))
            eps = dict(zip(probe.named, truth.eps, strict=True))
            for name, got in grads.items():
                assert (got is None) == (want[name] is None), f"step {step}: {name} is {got}"
                if got is not None:
                    half = eps[name] > 1e-6
                    coarse = 20 * min(max(truth.eps), FLOAT32)  # the norms' own accuracy, float32 for halves
                    rtol = 0.51 * eps[name] if half else coarse  # half a unit: rounded once, at the end
                    close(got, want[name], rtol, f"step {step}: consumed {name}", SMALLEST if half else 0.0)


def asked(probe, policy):
    """What policies see has the precision of the gradients, not the record's; they are asked once an evaluation."""
    if not isinstance(policy, Halve):
        return
    truths = [truth for seen in taken(probe).values() for truth in seen]
    seen = [row for row in policy.seen if row[1].any()]  # not those of watch(), which has no gradients yet
    truths = probe.truth if len(seen) == len(probe.truth) else truths  # steps that the scaler lets the kernel drop
    assert len(seen) == len(truths), f"the policy was asked {len(seen)} times in {len(truths)} evaluations"
    for truth, (norms, present, total) in zip(truths, seen, strict=True):
        rtol = DOUBLE if max(truth.eps) < DOUBLE else SINGLE
        want = oracle.norms(truth.grads)
        here = present.cpu().numpy()
        assert here.tolist() == [g is not None for g in truth.grads], "which gradients are there"
        close(norms.cpu().numpy()[here], want[here], rtol, "norms that policies see")
        close(total.item(), oracle.total(truth.grads), rtol, "total norm that policies see")


def identical(got, want):
    """Every number that training left behind is the same, to the bit."""
    assert got.keys() == want.keys(), f"not bit-identical: {sorted(got.keys() ^ want.keys())[:5]}"
    differing = [name for name in want if got[name] != want[name]]
    assert not differing, f"not bit-identical: {differing[:5]}"


WEIGHTS = {  # after four steps, each of which rounds
    torch.float64: {"rtol": 1e-8, "atol": 1e-10},
    torch.complex128: {"rtol": 1e-8, "atol": 1e-10},
    torch.float32: {"rtol": 1e-3, "atol": 1e-5},
    torch.complex64: {"rtol": 1e-3, "atol": 1e-5},
    torch.bfloat16: {"rtol": 0.05, "atol": 0.01},
    torch.float16: {"rtol": 0.01, "atol": 0.002},
}


def weights(got, want):
    """The weights are those of a training that the oracle clipped by hand."""
    coarsest = max((p.dtype for p in got), key=lambda dtype: torch.finfo(dtype).eps)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, **WEIGHTS[coarsest])


def close(got, want, rtol, what, atol=0.0):
    """`np.testing.assert_allclose`, at a tenth of the price where all is well."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape == want.shape and (np.abs(got - want) <= atol + rtol * np.abs(want)).all():
        return
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, equal_nan=True, err_msg=what)
