"""The public face: what `gradwatch` exports, how policies print and parse, and that bad texts are refused calmly."""

import ast
import inspect
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training import ALL_POLICIES, CALLABLE

import gradwatch
from gradwatch import (  # fmt: skip
    AGC,
    ClipByGlobalNorm,
    ClipByNorm,
    MaxNorm,
    MaxSpectral,
    PolicyError,
    QKClip,
    Renorm,
    SkipNonfinite,
    ZClip,
    chain,
    only,
    parse,
)
from gradwatch.policies.grammar import EXAMPLES, POLICIES, as_policy, is_call, members

CONSTRAINTS = [
    MaxNorm(3.0),
    MaxNorm(3.0, dim=1),
    Renorm(1.0, 0, 2.0),
    Renorm(float("inf"), 1, 2.0),
    MaxSpectral(2.0),
    QKClip(),
    chain(only("*.attn.*", QKClip(50.0)), MaxSpectral(3.0)),
]


def test_public_names():
    assert set(gradwatch.__all__) == {
        "__version__", "watch", "Watch", "log", "Rewind", "skip", "after", "ramp", "objective",
        "clip_grads_", "global_norm", "open_history", "History", "parse", "chain",
        "only", "Policy", "NormPolicy", "Decision", "ClipByValue", "ClipByNorm", "ClipByAverageNorm",
        "ClipByGlobalNorm", "ClipByHistory", "ClipWith", "AGC", "AutoClip", "ZClip", "AdaGC", "SkipNonfinite",
        "SkipNorm", "SkipSpike", "MaxNorm", "MaxSpectral", "QKClip", "Renorm", "GradwatchError", "GradwatchWarning",
        "PolicyError", "RunError", "TrainingHalted", "WatchError",
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
    "ClipByNorm(0x" + "f" * 9_000 + ")", "ClipByNorm" + "(1)" * 3_000,
])  # fmt: skip
def test_hostile_texts_are_refused(text):
    if text == "ClipByNorm(1e999999)":  # that is inf, a threshold that never fires
        assert parse(text).max_norm == float("inf")
    else:
        with pytest.raises(PolicyError):
            parse(text)
        members(text)  # raises nothing


def test_the_parser_never_evaluates():
    source = inspect.getsource(gradwatch.policies.grammar)
    called = {
        n.func.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    assert not {"eval", "exec", "compile", "__import__"} & called


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("ClipByGlobalNrom(1)", "did you mean ClipByGlobalNorm?"),
        ("chain(SkipNonfinite(), adagc())", "did you mean AdaGC?"),
        ("clip_grad_norm_(1.0)", "did you mean ClipByGlobalNorm?"),
        ("qqq(1)", "the known ones are ClipByValue, "),
        ("ClipByGlobalNorm(max_nrom=1)", "has no argument max_nrom; did you mean max_norm?"),
        ("ClipByGlobalNorm(1, qqq=1)", "has no argument qqq; it has max_norm, norm_type"),
        ("ClipByGlobalNorm()", "missing a required argument: 'max_norm'; write for example ClipByGlobalNorm(1.0)"),
        ("only('a')", "missing a required argument: 'policy'; write for example only('rnn.*', ClipByNorm(1.0))"),
        ("ClipByGlobalNorm(max_norm=1,max_norm=2)", "ClipByGlobalNorm is given max_norm twice"),
        ("AGC(eps=1, eps=2, clipping=1, clipping=1)", "AGC is given clipping and eps twice"),
        ("ClipByGlobalNorm(1, max_norm=2)", "multiple values for argument 'max_norm'"),
        ("\uff23lipByNorm(1)", "\uff23lipByNorm is not written in plain letters"),
        ("ClipByNorm(\uff4dax_norm=1)", "\uff4dax_norm is not written in plain letters"),
        ("ClipByGlobalNorm(1.0, norm_type=inf)", "write it as text, 'inf'"),
        ("ZClip(option=[])", "unhashable"),
        ("AutoClip(10, 1000000000000)", "window=1000000000000: wanted a whole number from 1 to 1,000,000"),
        ("SkipNonfinite(at_most=0)", "at_most=0: wanted a whole number from 1 to"),
        ("SkipNorm(1.0, 8)", "too many positional arguments"),
        ("SkipNorm(0)", "max_norm=0: wanted a number above 0"),
        ("SkipSpike(window=1000001)", "window=1000001: wanted a whole number from 4 to 1,000,000"),
        (f"ZClip(warmup=1{'0' * 60})", "wanted a whole number from 2 to 1,000,000,000"),
        ("AdaGC(warmup=1000000001)", "wanted a whole number from 0 to 1,000,000,000"),
        ("MaxNorm(1.0, dim=8)", "dim=8: wanted a whole number from -8 to 7"),
        ("MaxSpectral(0)", "max_value=0: wanted a number above 0"),
        ("QKClip(tau=-1)", "tau=-1: wanted a number above 0"),
    ],
)
def test_a_refusal_says_what_to_write(text, advice):
    with pytest.raises(PolicyError, match=re.escape(advice)) as refused:
        parse(text)
    assert str(refused.value).startswith(repr(text))


@pytest.mark.parametrize("name", POLICIES)
def test_a_bare_name_is_answered_with_a_text_that_is_a_policy(name):
    with pytest.raises(PolicyError, match="needs parentheses, as in ") as refused:
        parse(name)
    assert parse(str(refused.value).partition("as in ")[2])


def test_other_letters_are_fine_in_a_pattern():
    assert parse("only('größe.*', ClipByNorm(1.0))  # ÄÖÜ") == only("größe.*", ClipByNorm(1.0))


def test_a_policy_for_the_other_role_is_refused():
    assert as_policy("AGC()", "clip") == as_policy(AGC(), "clip") == AGC()
    assert as_policy(None, "clip") is None
    with pytest.raises(PolicyError, match="constrains weights after the step; pass it as renorm="):
        as_policy("MaxNorm(1)", "clip")
    with pytest.raises(PolicyError, match="acts on gradients; pass it as clip="):
        as_policy("AGC()", "renorm")
    with pytest.raises(PolicyError, match="wanted a policy such as"):
        as_policy(3, "clip")


def test_reading_a_policy_needs_neither_torch_nor_numpy():
    """The read side and the launcher do it, the latter before the script may set what torch and numpy look at."""
    code = "from gradwatch import ClipByGlobalNorm, chain, parse; import gradwatch.policies, sys;"
    code += "print(repr(parse('chain(SkipNonfinite(), ClipByGlobalNorm(1))')));"
    code += "print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["chain(SkipNonfinite(), ClipByGlobalNorm(1.0))", "set()"]


# ---------------------------------------------------------------------------------------------------- texts of records


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("chain(SkipNonfinite(), only('rnn.*', ClipByNorm(0.5)), AGC(0.01, eps=0.002))",
         [SkipNonfinite(), ClipByNorm(0.5), AGC(0.01, eps=0.002)]),
        ("MyClip(3, ClipByNorm(1.0))", ["MyClip", ClipByNorm(1.0)]),
        ("chain(ClipWith(tanh), MaxNorm(3.0))", ["ClipWith", MaxNorm(3.0)]),
        ("AGC(0.01, later=True)", ["AGC"]),
        ("AGC(0.01) in G, ClipByNorm(1.0) in E", [AGC(0.01), ClipByNorm(1.0)]),  # of several parts
        ("ClipByNorm(__import__('os').getpid())", ["ClipByNorm", "__import__"]),
        ("ClipByNorm", []), ("<lambda>", []), ("not python(", []), ("AGC()" * 4_000, []), ("", []), (None, []),
    ],
)  # fmt: skip
def test_a_recorded_text_is_read_as_far_as_it_is_known(text, found):
    assert members(text) == found


def test_what_only_some_layers_have_is_no_limit_of_all():
    text = "chain(only('a', AGC()), MyClip(AGC()), ClipByGlobalNorm(1.0))"
    assert members(text, of_all_layers=True) == ["MyClip", ClipByGlobalNorm(1.0)]
    assert members("AGC(0.01) in G, ClipByNorm(1.0) in E", of_all_layers=True) == []


def test_a_call_is_seen_whoever_wrote_the_class():
    assert all(map(is_call, ["MyClip(3)", "AGC()"]))
    assert not any(map(is_call, ["AGC", "AGC(0.01) in G, AGC() in E", "(" * 9_000, "", "a.b c"]))


def test_the_examples_are_of_what_holds_other_policies():
    assert [name for name, text in EXAMPLES.items() if f"{name}(" not in repr(parse(text))] == []


def test_a_function_has_no_text():
    with pytest.raises(PolicyError, match="holds a function"):
        parse(repr(CALLABLE))


def test_errors_are_of_one_family():
    for error in (gradwatch.PolicyError, gradwatch.RunError, gradwatch.WatchError):
        assert issubclass(error, gradwatch.GradwatchError)
