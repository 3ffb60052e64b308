"""The public face: what `gradwatch` exports, how policies print and parse, and that bad texts are refused calmly."""

import ast
import inspect
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training import ALL_POLICIES, CALLABLE

import gradwatch
from gradwatch import MaxNorm, PolicyError, Renorm, ZClip, chain, only, parse

CONSTRAINTS = [MaxNorm(3.0), MaxNorm(3.0, dim=1), Renorm(1.0, 0, 2.0), Renorm(float("inf"), 1, 2.0)]


def test_public_names():
    assert set(gradwatch.__all__) == {
        "__version__", "watch", "Watch", "log",
        "clip_grads_", "global_norm", "open_history", "History", "parse", "chain",
        "only", "Policy", "NormPolicy", "Decision", "ClipByValue", "ClipByNorm", "ClipByAverageNorm",
        "ClipByGlobalNorm", "ClipByHistory", "ClipWith", "AGC", "AutoClip", "ZClip", "AdaGC", "SkipNonfinite",
        "SkipSpike", "MaxNorm", "Renorm", "GradwatchError", "GradwatchWarning", "PolicyError", "RunError",
        "TrainingHalted", "WatchError",
    }  # fmt: skip
    for name in gradwatch.__all__:
        assert getattr(gradwatch, name) is not None
        if name != "__version__":
            assert inspect.getdoc(getattr(gradwatch, name)), f"{name} has no docstring"
    assert set(gradwatch.__all__) <= set(dir(gradwatch))
    with pytest.raises(AttributeError, match="no attribute 'wach'"):
        gradwatch.wach  # noqa: B018


@pytest.mark.slow
def test_importing_a_submodule_does_not_hide_the_function():
    code = "import gradwatch.recording.attach, gradwatch; assert callable(gradwatch.watch)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("policy", [*ALL_POLICIES, *CONSTRAINTS], ids=repr)
def test_a_policy_prints_as_the_code_that_makes_it(policy):
    assert parse(repr(policy)) == policy
    assert repr(parse(repr(policy))) == repr(policy)
    assert eval(repr(policy), vars(gradwatch)) == policy  # it is Python, though gradwatch itself never evaluates it


finite = st.floats(min_value=1e-12, max_value=1e12, allow_nan=False)
axes = st.lists(st.integers(-4, 4), min_size=1, max_size=3).map(tuple)
spikes = st.sampled_from(["mean", "percentile"])
simple = st.one_of(
    st.builds(gradwatch.ClipByGlobalNorm, finite, st.one_of(finite, st.just(float("inf")))),
    st.builds(gradwatch.ClipByNorm, finite, st.none() | axes),
    st.builds(gradwatch.ClipByValue, finite),
    st.builds(gradwatch.AGC, finite, finite),
    st.builds(gradwatch.AutoClip, st.floats(0, 100), st.integers(1, 10**6)),
    st.builds(ZClip, finite, st.floats(0, 1), st.integers(2, 500), spikes, st.none() | finite),
    st.just(gradwatch.SkipNonfinite()),
)  # fmt: skip
nested = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda ps: chain(*ps)),
        st.builds(only, st.text(min_size=1, max_size=20), inner),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(nested)
@settings(max_examples=300, deadline=None)
def test_any_composition_survives_the_round_trip(policy):
    assert parse(repr(policy)) == policy


@given(st.one_of(st.text(max_size=200), st.text(alphabet="ClipByNorm(1.0,axes=)'\"[]{}chain*lambda:_", max_size=80)))
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_policy_or_a_policy_error(text):
    try:
        policy, message = parse(text), ""
    except PolicyError as error:
        policy, message = None, str(error)
    assert isinstance(policy, gradwatch.Policy) or (message and "\n" not in message)


@pytest.mark.parametrize("text", [
    "__import__('os').system('true')", "ClipByNorm.__class__", "(lambda: 1)()", "[ClipByNorm(1)][0]",
    "ClipByNorm(1) or 2",
    "ClipByNorm(**{'max_norm': 1})", "ClipByNorm(*[1])", "ClipByNorm(open)", "ClipByNorm(1 if 1 else 2)", "(" * 5_000,
    "chain(" * 400 + ")" * 400, "-" * 9_000 + "1", "x" * 20_000, "ClipByNorm(1e999999)", "ClipByNorm('nan')", "\0",
    "ClipByNorm(1, axes='ab')", "only(1, AGC())", "chain(ClipByNorm)", "AGC(True)", "ClipByNorm(10**400)",
])  # fmt: skip
def test_hostile_texts_are_refused(text):
    if text == "ClipByNorm(1e999999)":  # that is inf, a threshold that never fires
        assert parse(text).max_norm == float("inf")
    else:
        with pytest.raises(PolicyError):
            parse(text)


def test_the_parser_never_evaluates():
    source = inspect.getsource(gradwatch.policies.grammar)
    called = {
        n.func.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    assert not {"eval", "exec", "compile", "__import__"} & called


def test_a_function_has_no_text():
    with pytest.raises(PolicyError, match="holds a function"):
        parse(repr(CALLABLE))


def test_errors_are_of_one_family():
    for error in (gradwatch.PolicyError, gradwatch.RunError, gradwatch.WatchError):
        assert issubclass(error, gradwatch.GradwatchError)
