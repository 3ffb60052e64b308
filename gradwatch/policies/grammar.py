"""Policies as text: `parse` is the inverse of `repr`, and nothing is ever evaluated."""

from __future__ import annotations

import ast
from typing import Any

from gradwatch.errors import PolicyError
from gradwatch.policies.adaptive import AGC, AdaGC, AutoClip, ClipByHistory, ZClip
from gradwatch.policies.base import Policy, chain, only
from gradwatch.policies.clip import ClipByAverageNorm, ClipByGlobalNorm, ClipByNorm, ClipByValue
from gradwatch.policies.constraint import MaxNorm, Renorm
from gradwatch.policies.skip import SkipNonfinite, SkipSpike

POLICIES: dict[str, Any] = {
    p.__name__: p
    for p in (
        ClipByValue,
        ClipByNorm,
        ClipByAverageNorm,
        ClipByGlobalNorm,
        ClipByHistory,
        AGC,
        AutoClip,
        ZClip,
        AdaGC,
        SkipNonfinite,
        SkipSpike,
        MaxNorm,
        Renorm,
        chain,
        only,
    )
}
MAX_TEXT = 10_000


def parse(text: str) -> Policy:
    """The policy that `text` says, for example `"chain(SkipNonfinite(), ClipByGlobalNorm(1.0))"`.

    Only the names in `POLICIES` with literal arguments are accepted; the text is never evaluated.
    `parse(repr(policy)) == policy` for every policy but `ClipWith(fn)` and classes of your own.

    Raises:
        PolicyError: the text is not a policy, names an unknown one, or its settings are out of range.
    """
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise PolicyError(f"a policy text must be a string of at most {MAX_TEXT:,} characters, found {_short(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        policy = _build(tree, text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"{_short(text)} is not a policy text; write for example ClipByGlobalNorm(1.0)") from None
    if not isinstance(policy, Policy):
        raise PolicyError(f"{_short(text)} is not a policy; write for example ClipByGlobalNorm(1.0)")
    return policy


def _build(node: ast.expr, text: str) -> Any:
    if not isinstance(node, ast.Call):
        return _value(node, text)
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in POLICIES:
        raise PolicyError(_unknown(name, text))
    if any(k.arg is None for k in node.keywords):
        raise PolicyError(f"{_short(text)}: ** is not allowed in a policy text")
    arguments = [_build(a, text) for a in node.args]
    keywords = {str(k.arg): _build(k.value, text) for k in node.keywords}
    try:
        return POLICIES[name](*arguments, **keywords)
    except TypeError as error:
        wanted = str(error).replace(".__init__()", "()")
        raise PolicyError(f"{_short(text)}: {wanted}") from None


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        raise PolicyError(
            f"{_short(text)}: {node.id} needs parentheses, as in {node.id}()"
            if node.id in POLICIES
            else _unknown(node.id, text)
        )
    return ast.literal_eval(node)


def _unknown(name: str, text: str) -> str:
    if name == "ClipWith":
        return "ClipWith(fn) holds a function, which a text cannot: pass the object in Python"
    return (
        f"{_short(text)}: {name or 'that'} is not a policy gradwatch knows; "
        f"the known ones are {', '.join(POLICIES)} (a policy class of your own must be passed as an object)"
    )


def _short(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 120 else f"{shown[:117]}..."
