"""What others got wrong when they measured and clipped gradients in one process: each with the test that guards it."""

import re
from pathlib import Path

import numpy as np
import torch
from attach import attach
from torch import nn

from gradwatch import clip_grads_, global_norm
from gradwatch.storage.joining import concat

MATRIX = "test_every_number_is_the_oracles_and_no_policy_leaves_no_trace"
TRAPS = {
    # measuring
    "float16 norms overflow unless they are accumulated in float32": "test_float16_gradients_beyond_its_range",
    "a clip with max_norm=inf, for measuring, turns finite float16 gradients into NaN": "test_an_infinite_threshold",
    "a tensor's hook sees micro-batches, loss scales, and gradients before their reduction": MATRIX,
    "a fused optimizer under GradScaler gets scaled gradients; the scale changes; unscale_ leaves None behind": MATRIX,
    "a step that GradScaler drops": "test_a_step_that_the_scaler_drops_is_recorded_as_skipped",
    "a closure makes the gradients after the hook; positional, keyword, several times a step": MATRIX,
    "a norm logged after the clip saturates at the threshold: both are recorded": MATRIX,
    "tied weights counted twice": MATRIX,
    "one parameter listed twice": "test_clip_grads_returns_the_norm_before",
    "names: tied ones once, those of an optimizer built from named parameters": "test_names_are_the_models_own",
    "frozen, unused in this step, sparse": MATRIX,
    "absent is not zero": "test_a_layer_without_a_gradient_is_absent_not_zero",
    # clipping
    "a NaN or inf norm ruins all gradients silently": "test_a_nan_is_counted_and_kept_and_told_from_an_absence",
    "such a step does what it does in torch": "test_a_non_finite_norm_does_what_it_does_in_torch",
    "one NaN poisons AutoClip's and ZClip's history": "test_one_bad_norm_ruins_the_authors_statistics_and_not_ours",
    "a skip that multiplies by 0 writes NaN": "test_skip_nonfinite_leaves_no_trace",
    "a zero gradient is not a skipped step": "test_a_multiplication_by_zero_would_have_left_one",
    "AGC without a floor freezes weights of 0": "test_agc_moves_weights_of_zero",
    "AGC without the classifier and the biases": "test_agc_leaves_out_what_it_is_told_to",
    "max-norm on the wrong axis": "test_max_norm_acts_on_the_incoming_weights_of_each_unit",
    "the total of infinity norms is a maximum": "test_the_total_of_infinity_norms_is_their_maximum",
    "gradients given where parameters belong: nothing is clipped": "test_gradients_given_as_parameters",
    "the weights are tested, not the log": MATRIX,
    "a clip before backward or before unscale_ has no effect: here the step itself clips": MATRIX,
    "the generator of parameters was used up: a norm of 0": "test_a_generator_of_parameters_serves_once",
}
# Not of one process, so not here: partial norms of DTensors, copies under tensor parallelism, one collective a
# measurement, fully_shard after attaching. A run that clips every batch is a matter of the diagnosis.


def test_every_trap_names_a_test():
    tests = "".join(p.read_text(encoding="utf-8") for p in Path(__file__).parents[1].rglob("test_*.py"))
    assert set(TRAPS.values()) <= set(re.findall(r"def (test_\w+)", tests))


def big(dtype=torch.float16):
    """Three layers whose squares overflow float16, and whose joint norm does too."""
    params = [nn.Parameter(torch.zeros(40, 50, dtype=dtype)) for _ in range(3)]
    for i, p in enumerate(params):
        p.grad = torch.full_like(p, 1000.0 * (i + 1))
    return params


def stepped(params, clip):
    model = nn.ParameterList(params)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    handle, blocks = attach(model, optimizer, clip)
    optimizer.step()
    handle.close()
    return concat(blocks)


def test_float16_gradients_beyond_its_range():
    assert not torch.nn.utils.get_total_norm([p.grad for p in big()]).isfinite()  # torch's own, of the same
    history = stepped(big(), "ClipByGlobalNorm(1.0)")
    want = [2000**0.5 * 1000 * (i + 1) for i in range(3)]
    np.testing.assert_allclose(history.layer("grad_norm")[0], want, rtol=1e-5)
    np.testing.assert_allclose(history.total("grad_norm"), np.linalg.norm(want), rtol=1e-5)
    np.testing.assert_allclose(history.layer("clip_coef")[0], 1 / np.linalg.norm(want), rtol=1e-5)


def test_an_infinite_threshold():
    params, want = big(), [p.grad.clone() for p in big()]
    stepped(params, "ClipByGlobalNorm('inf')")
    assert all(torch.equal(p.grad, g) for p, g in zip(params, want, strict=True))
    nn.utils.clip_grad_norm_(params, torch.inf)
    assert params[0].grad.isnan().any()  # torch's own, of the same


def test_agc_moves_weights_of_zero():
    layer = nn.Linear(4, 3)
    nn.init.zeros_(layer.weight)
    layer.weight.grad = torch.ones_like(layer.weight)
    clip_grads_([layer.weight], "AGC(0.01, eps=1e-3)")
    torch.testing.assert_close(layer.weight.grad.norm(dim=1), torch.full((3,), 0.01 * 1e-3))


def test_agc_leaves_out_what_it_is_told_to():
    model = nn.ModuleDict({"body": nn.Linear(4, 3), "head": nn.Linear(3, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle, blocks = attach(model, optimizer, "only('body.weight', AGC(0.01))")
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    handle.close()
    assert (concat(blocks).layer("clip_rate")[0] > 0).tolist() == [True, False, False, False]
    assert model["head"].weight.grad.eq(1).all()


def test_the_total_of_infinity_norms_is_their_maximum():
    params = big(torch.float32)
    assert global_norm(params, torch.inf).item() == 3000
    history = stepped(params, "ClipByGlobalNorm(1500.0, norm_type='inf')")
    np.testing.assert_allclose(history.layer("clip_coef"), 0.5, rtol=1e-6)


def test_gradients_given_as_parameters():
    """They have no gradients of their own: the norm that comes back is 0, and says so."""
    params = big(torch.float32)
    assert clip_grads_([p.grad for p in params], "ClipByGlobalNorm(1.0)").item() == 0


def test_a_generator_of_parameters_serves_once():
    """It is read once, whatever is asked of it; used up before, there are no parameters and the norm is 0."""
    params = big(torch.float32)
    assert clip_grads_((p for p in params), "chain(ClipByNorm(10.0), ClipByGlobalNorm(1.0))") > 1000
    torch.testing.assert_close(global_norm(p for p in params), torch.tensor(1.0))
