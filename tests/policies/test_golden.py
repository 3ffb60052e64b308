"""Every golden case, made by TensorFlow, Keras, torch and the policies' authors: reproduced, or listed with why not."""

import json
import math
from pathlib import Path

import pytest
import torch

import gradwatch
from gradwatch import (
    AGC,
    AdaGC,
    AutoClip,
    ClipByAverageNorm,
    ClipByGlobalNorm,
    ClipByHistory,
    ClipByNorm,
    ClipByValue,
    MaxNorm,
    Renorm,
    ZClip,
    chain,
    clip_grads_,
    global_norm,
)
from gradwatch.measure.gradients import Batch
from gradwatch.measure.layout import Layout

GOLDEN = Path(__file__).parent / "golden"


def load(name):
    return {case["id"]: case for case in json.loads((GOLDEN / name).read_text())["cases"]}


TF, TORCH, POLICIES = (load(f"golden_{name}.json") for name in ("tf_clip", "torch_clip", "policies"))
NONFINITE = json.loads((GOLDEN / "golden_nonfinite_policies.json").read_text())


def decode(value):
    if isinstance(value, list):
        return [decode(v) for v in value]
    return float(value) if isinstance(value, str) else value


def param(grad, dtype="float32"):
    """A parameter whose gradient is `grad`: nested lists, None, or {"values", "indices"} of a sparse one."""
    dtype = getattr(torch, dtype)
    if grad is None:
        return torch.nn.Parameter(torch.zeros(2, dtype=dtype))
    if isinstance(grad, dict):
        values = torch.tensor(decode(grad["values"]), dtype=dtype)
        size = grad.get("dense_shape", [10, *values.shape[1:]])
        p = torch.nn.Parameter(torch.zeros(size, dtype=dtype))
        p.grad = torch.sparse_coo_tensor(torch.tensor([grad["indices"]]), values, size, check_invariants=True)
        return p
    grad = torch.tensor(decode(grad), dtype=dtype)
    p = torch.nn.Parameter(torch.zeros_like(grad))
    p.grad = grad
    return p


def dense(grad):
    return grad._values() if grad.is_sparse else grad


def check(p, expected, rtol=1e-6):
    torch.testing.assert_close(
        dense(p.grad).double(), torch.tensor(decode(expected), dtype=torch.float64), rtol=rtol, atol=0, equal_nan=True
    )


def constrained(weights, constraint, dtype="float32"):
    p = torch.tensor(decode(weights), dtype=getattr(torch, dtype))
    constraint.apply(Batch(Layout({"w": p}), [p]), {})
    return p


# --------------------------------------------------------------------------------------------------------- TensorFlow

TF_CANNOT_APPLY = {
    **{f"value_scalar_scalar_{t}": "integer tensors are not gradients" for t in ("int16", "int32", "int64", "uint8")},
    **{
        f"value_tensor_{which}": "a policy's bounds are numbers, so that it can be written as text"
        for which in ("min", "max", "both")
    },
    "value_bad_shape": "a policy's bounds are numbers: no shapes to disagree",
    "norm_grad_at_zero": "the clip is not differentiated through: it acts on gradients, in place",
    "norm_int_raises": "integer tensors are not gradients",
    "global_use_norm_10": "the norm is measured, not handed in",
    "global_use_norm_inf": "the norm is measured, not handed in",
    "global_norm_not_sequence": "a single parameter is accepted, as torch does",
}
TF_OTHERWISE = {  # id -> (why, what gradwatch gives)
    "norm_square_overflow_f16": ("squares are summed in float32", [6.0, 8.0]),
    "norm_product_overflow_f16_unclipped": ("the product t * clip_norm is never formed", [30.0, 40.0]),
    "norm_square_underflow_f32": ("a norm that underflows to 0 is below the threshold", [3e-30, 4e-30]),
    "norm_bf16": ("scaled once, rounded once: TensorFlow rounds the product and the quotient", [6.0, 8.0]),
    "norm_indexed_slices_dup": ("duplicate rows are added up first: that is the gradient", [1.0]),
    "global_inf": ("torch has this function: inf gives coefficient 0",
                   [[[0, 0, math.nan], [0, 0, 0]], [0, 0]]),
    "global_norm_mixed_dtype": ("mixed dtypes are measured in float32", 5.0),
    "global_norm_f16_overflow": ("squares are summed in float32", 500.0),
    "keras_maxnorm_small": ("torch's renorm leaves units below the limit alone", [[3e-4, 4e-4]]),
}  # fmt: skip


def tf_policy(case):
    p = case["params"]
    return {
        "clip_by_value": lambda: ClipByValue(p["min"], p["max"]),
        "clip_by_norm": lambda: ClipByNorm(p["clip_norm"], axes=p["axes"] and tuple(p["axes"])),
        "clip_by_norm∘clip_by_norm": lambda: chain(*(ClipByNorm(p[k]["clip_norm"], axes=tuple(p[k]["axes"]))
                                                     for k in ("first", "then"))),
        "clip_by_average_norm": lambda: ClipByAverageNorm(p["clip_norm"]),
        "clip_by_norm(t, clip*numel)": lambda: ClipByNorm(p["clip_norm"] * 6),
        "clip_by_global_norm": lambda: ClipByGlobalNorm(p["clip_norm"]),
    }[case["op"]]()  # fmt: skip


@pytest.mark.parametrize("id", [i for i in TF if i not in TF_CANNOT_APPLY])
def test_tensorflow(id):
    case = TF[id]
    expected = TF_OTHERWISE[id][1] if id in TF_OTHERWISE else case["expected"]
    if isinstance(expected, dict) and "clipped" in expected:
        expected = expected["clipped"]
    if id in ("value_min_gt_max", "norm_negative_clip"):
        with pytest.raises(gradwatch.PolicyError):
            tf_policy(case)
    elif case["op"] == "keras.constraints.MaxNorm":
        p, axis = case["params"], case["params"]["axis"]
        weight = constrained(case["inputs"], MaxNorm(p["max_value"], dim=1 - axis))
        torch.testing.assert_close(weight, torch.tensor(expected), rtol=1e-6, atol=0)
    elif case["op"] == "global_norm":
        tensors = case["inputs"]["tensors"]
        dtypes = case["inputs"].get("dtypes", [case["dtype"]] * len(tensors))
        norm = global_norm([param(t, d) for t, d in zip(tensors, dtypes, strict=True)])
        assert norm.item() == pytest.approx(decode(expected))
    elif case["op"] == "clip_by_global_norm":
        params = [param(t) for t in case["inputs"]["tensors"]]
        clip_grads_(params, tf_policy(case))
        for p, e in zip(params, expected, strict=True):
            assert p.grad is None if e is None else check(p, e) is None
    else:
        p = param(case["inputs"], case["dtype"])
        clip_grads_(p, tf_policy(case))
        check(p, expected, rtol=1e-3 if case["dtype"] in ("float16", "bfloat16") else 1e-6)


# -------------------------------------------------------------------------------------------------------------- torch

TORCH_CANNOT_APPLY = {
    "gn_error_if_nonfinite": "raising is not a policy: SkipNonfinite() skips, and the record says where",
    "split_use_norm": "the norm is measured, not handed in",
    "clamp_min_gt_max": "refused when the policy is made: see value_min_gt_max",
}
TORCH_OTHERWISE = {
    "gn_f16_overflow": (
        "the norm is measured in float32, so finite gradients are clipped, not zeroed",
        [[7.0703, 7.0703]],
    ),
    "gn_sparse_uncoalesced": ("sparse gradients are clipped on their coalesced values", [[1.0]]),
    "gn_sparse_coalesced": ("sparse gradients are clipped on their values", [[1.0]]),
    "gn_sparse_foreach_false": ("sparse gradients are clipped on their values", [[1.0]]),
    "gn_tied_twice": ("a parameter listed twice counts once", [[0.6, 0.8]]),
    "renorm_1d": ("a bias has no units: left alone", [3.0, 4.0]),
}


@pytest.mark.parametrize("id", [i for i in TORCH if i not in TORCH_CANNOT_APPLY])
def test_torch(id):
    case, p = TORCH[id], TORCH[id]["params"]
    expected = TORCH_OTHERWISE[id][1] if id in TORCH_OTHERWISE else case["expected"]
    if case["op"] in ("torch.renorm", "nn.Embedding(max_norm)"):
        constraint = Renorm(p["p"], p["dim"], p["maxnorm"]) if "p" in p else MaxNorm(p["max_norm"])
        weight = constrained(case["inputs"], constraint, case["dtype"])
        torch.testing.assert_close(
            weight.double(), torch.tensor(decode(expected), dtype=torch.float64), rtol=1e-6, atol=0, equal_nan=True
        )
        if id not in TORCH_OTHERWISE and "p" in p:  # and what the running torch gives, to the last bit or the next
            live = torch.tensor(decode(case["inputs"]), dtype=weight.dtype).renorm(
                float(p["p"]), p["dim"], p["maxnorm"]
            )
            torch.testing.assert_close(
                weight, live, rtol=2.4e-7 if weight.dtype == torch.float32 else 1e-15, atol=0, equal_nan=True
            )
    elif case["op"] == "linalg.vector_norm":
        inputs, dtype = case["inputs"], case["dtype"].removeprefix("torch.")
        values = [inputs["fill"]] * inputs["n"] if isinstance(inputs, dict) else inputs
        wide = dtype in ("float16", "bfloat16")
        want = decode(expected.get("fp32" if wide else "default", 1.024414))  # the 1M case: 1024 * float16(0.001)
        # torch's CPU kernel adds up a million squares in few float32 lanes: 5e-4 is its own error
        assert global_norm(param(values, dtype)).item() == pytest.approx(want, rel=1e-3 if len(values) > 10 else 1e-5)
    elif case["op"] == "clip_grad_value_":
        q = param(case["inputs"]["grads"][0])
        clip_grads_(q, ClipByValue(p["clip_value"]))
        check(q, expected[0])
    else:
        inputs = case["inputs"]
        grads = inputs.get("grads", [{**inputs, "dense_shape": [5]}])
        dtypes = inputs.get("dtypes", [case["dtype"]] * len(grads))
        params = [param(g, d) for g, d in zip(grads, dtypes, strict=True)]
        total = clip_grads_(
            params * (2 if id == "gn_tied_twice" else 1),
            ClipByGlobalNorm(p["max_norm"], norm_type=p.get("norm_type", 2.0)),
        )
        if isinstance(expected, dict):
            if "norm_type" not in p:
                assert total.item() == pytest.approx(decode(expected["total_norm"]), rel=1e-3, nan_ok=True)
            expected = expected["clipped"]
        for q, e in zip(params, expected, strict=True):
            assert q.grad is None if e is None else check(q, e, 2e-3 if q.dtype != torch.float32 else 1e-6) is None


# ------------------------------------------------------------------------------------------------- adaptive policies

POLICIES_CANNOT_APPLY = {
    "olmo_ratio": "OLMo's ratio clip is not one of the policies; AdaGC is the published form of the same idea",
    "spike_score": "a diagnostic of the read side, not a policy",
}


def replay(policy, norms, dtype=torch.float64):
    """Feed a series of norms to a policy; yields (norm after the clip, state)."""
    p = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    layout = Layout({"w": p})
    state = policy.init(Batch(layout, [None]))
    for norm in norms:
        grad = torch.tensor([norm], dtype=dtype)
        batch = Batch(layout, [grad])
        state = policy.apply(batch, state)
        batch.apply_pending()
        yield grad.item(), state


@pytest.mark.parametrize("id", [i for i in POLICIES if i.startswith("zclip")])
def test_zclip(id):
    case, p = POLICIES[id], POLICIES[id]["params"]
    policy = ZClip(
        p["z_thresh"],
        alpha=p["alpha"],
        warmup=p["warmup_steps"],
        option="percentile" if p["mode"] == "percentile" else p["clip_option"],
        max_norm=p["max_grad_norm"],
        skip_update_on_spike=p.get("skip_update_on_spike", False),
    )
    got = list(replay(policy, case["inputs"]))[24:]
    for (post, state), want in zip(got, case["expected"], strict=True):
        assert post == pytest.approx(want["post"], rel=1e-9)
        assert state["mean"].item() == pytest.approx(want["mean"], rel=1e-9)
        assert state["var"].item() == pytest.approx(want["var"], rel=1e-9)


@pytest.mark.parametrize("id", [i for i in POLICIES if i.startswith("autoclip")])
def test_autoclip(id):
    case = POLICIES[id]
    got = replay(AutoClip(case["params"]["percentile"]), case["inputs"])
    for (post, _), want in zip(got, case["expected"], strict=True):
        assert post == pytest.approx(want["post"], rel=1e-9)


def test_autoclip_forgets_beyond_its_window():
    norms = [100.0] * 5 + [1.0, 2.0, 3.0, 50.0]
    assert [post for post, _ in replay(AutoClip(50, window=3), norms)][-1] == pytest.approx(3.0, rel=1e-6)


def test_adagc():
    case, p = POLICIES["adagc"], POLICIES["adagc"]["params"]
    policy = AdaGC(p["lambda_rel"], beta=p["beta"], warmup=p["warmup_steps"], warmup_norm=p["lambda_abs"])
    for (post, state), want in zip(replay(policy, case["inputs"]), case["expected"], strict=True):
        assert post == pytest.approx(want["post"], rel=1e-9)
        assert state["average"].item() == pytest.approx(want["gamma"], rel=1e-9)


def test_agc():
    case, p = POLICIES["agc"], POLICIES["agc"]["params"]
    params = [param(g) for g in case["inputs"]["grads"]]
    for q, w in zip(params, case["inputs"]["weights"], strict=True):
        q.data = torch.tensor(w)
    clip_grads_(params, AGC(p["clip_factor"], eps=p["eps"]))
    for q, want in zip(params, case["expected"], strict=True):
        check(q, want)


def test_history_clip_keeps_the_maximum_that_adamax_would():
    case, p = POLICIES["history_clip_adamax"], POLICIES["history_clip_adamax"]["params"]
    got = replay(ClipByHistory(p["clip_multiplier"], p["clip_epsilon"]), case["inputs"])
    for (post, state), want in zip(got, case["expected"], strict=True):
        assert post == pytest.approx(want["clipped"], rel=1e-9)
        assert state["w"].item() == pytest.approx(want["v"], rel=1e-9)


# --------------------------------------------------------------------------------- where the authors' code is poisoned


@pytest.mark.parametrize("id", [i for i in NONFINITE if i.startswith(("zclip", "autoclip"))])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_bad_norm_ruins_the_authors_statistics_and_not_ours(id, bad, tmp_path):
    policy = AutoClip(10 if "p10" in id else 99) if id.startswith("auto") else ZClip(warmup=10)

    def final_state(norms):
        p = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([p], lr=0.0)
        model = torch.nn.ParameterList([p])
        with gradwatch.watch(model, optimizer, clip=policy, log=None, dir=tmp_path, verbose=False) as watch:
            for norm in norms:
                p.grad = torch.tensor([norm])
                optimizer.step()
            return {k: v.tolist() for k, v in watch.state_dict()["policy_state"].items()}

    good = [1.0, 1.1, 0.9, 1.05, 0.95] * 6
    at = 3 if "warmup" in id else 20
    assert final_state([*good[:at], bad, *good[at:]]) == final_state(good)


def test_agc_keeps_a_nan_inside_its_unit():
    for key, bad in (("agc_nan", math.nan), ("agc_inf", math.inf)):
        q = param([[bad, 1.0], [1.0, 1.0]])
        q.data = torch.ones(2, 2)
        clip_grads_(q, AGC(0.01))
        assert q.grad[1].tolist() == pytest.approx(NONFINITE[key][1])
        assert q.grad[0].isnan().tolist() == [math.isnan(v) for v in NONFINITE[key][0]]


NONFINITE_CANNOT_APPLY = {
    "spam_nan": "SPAM is an optimizer, not one of the policies",
    "spam_inf": "SPAM is an optimizer, not one of the policies",
    "adam_after_nan": "what Adam does with a NaN: see test_skip_nonfinite_leaves_no_trace",
    "adam_after_inf": "what Adam does with an inf: see test_skip_nonfinite_leaves_no_trace",
}


def test_no_case_is_forgotten():
    for cases, *lists in (
        (TF, TF_CANNOT_APPLY, TF_OTHERWISE),
        (TORCH, TORCH_CANNOT_APPLY, TORCH_OTHERWISE),
        (POLICIES, POLICIES_CANNOT_APPLY),
        (NONFINITE, NONFINITE_CANNOT_APPLY),
    ):
        assert {i for listed in lists for i in listed} <= set(cases)
    tested = {i for i in POLICIES if i.startswith(("zclip", "autoclip"))} | {"adagc", "agc", "history_clip_adamax"}
    assert tested | set(POLICIES_CANNOT_APPLY) == set(POLICIES)
    bad = {i for i in NONFINITE if i.startswith(("zclip", "autoclip", "agc"))}
    assert bad | set(NONFINITE_CANNOT_APPLY) == set(NONFINITE)
