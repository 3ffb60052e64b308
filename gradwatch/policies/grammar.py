"""Policies as text: the one grammar of the launcher, the trainer and the reports. Nothing is ever evaluated.

`parse` takes what a user writes, and refuses it with advice; `members` takes what is recorded, whoever wrote it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any

from gradwatch.errors import PolicyError
from gradwatch.policies.adaptive import AGC, AdaGC, AutoClip, ClipByHistory, ZClip
from gradwatch.policies.base import Policy, chain, only
from gradwatch.policies.clip import ClipByAverageNorm, ClipByGlobalNorm, ClipByNorm, ClipByValue
from gradwatch.policies.constraint import MaxNorm, MaxSpectral, QKClip, Renorm
from gradwatch.policies.schedule import after, ramp
from gradwatch.policies.skip import SkipNonfinite, SkipNorm, SkipSpike

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
        SkipNorm,
        SkipSpike,
        MaxNorm,
        MaxSpectral,
        QKClip,
        Renorm,
        chain,
        only,
        after,
        ramp,
    )
}
MAX_TEXT = 10_000  # characters
EXAMPLES = {  # of what is no policy by itself
    "chain": "chain(SkipNonfinite(), ClipByGlobalNorm(1.0))",
    "only": "only('rnn.*', ClipByNorm(1.0))",
    "after": "after(1000, ClipByGlobalNorm(1.0))",
    "ramp": "ClipByGlobalNorm(ramp(10.0, 1.0, 1000))",
}


def parse(text: str) -> Policy:
    """The policy that `text` says, for example `"chain(SkipNonfinite(), ClipByGlobalNorm(1.0))"`.

    Only the names in `POLICIES` with literal arguments are accepted; the text is never evaluated.
    `parse(repr(policy)) == policy` for every policy but `ClipWith(fn)` and classes of your own.

    Raises:
        PolicyError: the text is not a policy, names an unknown one, or its settings are out of range.
    """
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise PolicyError(f"a policy text must be a string of at most {MAX_TEXT:,} characters, found {_short(text)}")
    tree = _tree(text)
    if tree is None:
        raise PolicyError(f"{_short(text)} is not a policy text; write for example ClipByGlobalNorm(1.0)")
    try:
        policy = _build(tree)
        _check_letters(text)
    except (ValueError, RecursionError) as error:  # a PolicyError is a ValueError
        raise PolicyError(f"{_short(text)}: {error}") from None
    if not isinstance(policy, Policy):
        raise PolicyError(f"{_short(text)} is not a policy; write for example ClipByGlobalNorm(1.0)")
    return policy


def as_policy(value: Policy | str | None, role: str) -> Policy | None:
    """The policy that is given as `role`, "clip" or "renorm", as an object or as its text.

    Raises:
        PolicyError: it is not a policy, or one for the other role.
    """
    policy = parse(value) if isinstance(value, str) else value
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        raise PolicyError(f"{role}={value!r}: wanted a policy such as ClipByGlobalNorm(1.0), its text, or None")
    if policy.acts_on_weights != (role == "renorm"):
        other = "renorm" if policy.acts_on_weights else "clip"
        kind = "constrains weights after the step" if policy.acts_on_weights else "acts on gradients"
        raise PolicyError(f"{role}={policy!r}: it {kind}; pass it as {other}=")
    return policy


def members(text: str | None, *, of_all_layers: bool = False) -> list[Policy | str]:
    """The policies that a recorded text is made of, in order, `chain` and `only` opened; none of no policy text.

    As `parse` makes them; by name alone what it does not know: classes of users, `ClipWith`, those of later versions.
    With `of_all_layers` without what stands in `only` or in something unknown. Raises nothing, whatever the text.
    """
    found: list[Policy | str] = []
    left: list[ast.AST] = list(filter(None, [_tree(text)]))
    while left:
        node = left.pop()
        name = _name(node)
        if isinstance(node, ast.Call) and name and name not in EXAMPLES:
            found.append(_made(node, name))
        if not of_all_layers or name == "chain":
            left.extend(reversed(list(ast.iter_child_nodes(node))))
    return found


def is_call(text: str) -> bool:
    """Whether a text is one call, as policies are, known or not."""
    return isinstance(_tree(text), ast.Call)


def _tree(text: str | None) -> ast.expr | None:
    """The one expression that `text` is; None for no, another or a too long text."""
    if not text or len(text) > MAX_TEXT:
        return None
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _made(call: ast.Call, name: str) -> Policy | str:
    try:
        made = _build(call) if name in POLICIES else name
    except (ValueError, RecursionError):
        return name
    return made if isinstance(made, Policy) else name


def _build(node: ast.expr) -> Any:
    """What a node of the tree stands for: a policy, or a literal.

    Raises:
        PolicyError: neither; it says why.
    """
    name = _name(node)
    if not isinstance(node, ast.Call):
        if name is None:
            return _literal(node)
        raise PolicyError(f"{name} needs parentheses, as in {_example(name)}" if name in POLICIES else _unknown(name))
    if name not in POLICIES:
        raise PolicyError(_unknown(name or "that"))
    given = [str(word.arg) for word in node.keywords]
    if "None" in given:
        raise PolicyError("** is not allowed in a policy text")
    twice = sorted({word for word in given if given.count(word) > 1})
    if twice:
        raise PolicyError(f"{name} is given {' and '.join(twice)} twice; write each argument once")
    arguments = [_build(argument) for argument in node.args]
    words = dict(zip(given, [_build(word.value) for word in node.keywords], strict=True))
    signature = inspect.signature(POLICIES[name])
    unknown = next((word for word in words if word not in signature.parameters), None)
    if unknown is not None:
        near = likely_name(unknown, signature.parameters)
        known = f"did you mean {near}?" if near else f"it has {', '.join(signature.parameters)}"
        raise PolicyError(f"{name} has no argument {unknown}; {known}")
    try:
        signature.bind(*arguments, **words)
        return POLICIES[name](*arguments, **words)
    except TypeError as error:
        raise PolicyError(f"{name}: {error}; write for example {_example(name)}") from None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise PolicyError(
            "an argument is neither a literal nor a policy; write for example ClipByGlobalNorm(1.0)"
        ) from None


def _name(node: ast.AST) -> str | None:
    """The name that a node is, or calls."""
    named = node.func if isinstance(node, ast.Call) else node
    return named.id if isinstance(named, ast.Name) else None


def _check_letters(text: str) -> None:
    """Python takes full-width letters in a name for the plain ones that they look like; a policy text does not."""
    if text.isascii():
        return
    import io
    import tokenize

    for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline):
        if token.type == tokenize.NAME and not token.string.isascii():
            raise PolicyError(f"{token.string} is not written in plain letters (A to Z)")


def _unknown(name: str) -> str:
    if name == "ClipWith":
        return "ClipWith(fn) holds a function, which a text cannot: pass the object in Python"
    if name == "inf":
        return "inf is a name in Python; write it as text, 'inf'"
    if name == "nan":
        return "nan is no number that anything can be held to"
    near = likely_name(name, POLICIES)
    known = f"did you mean {near}?" if near else f"the known ones are {', '.join(POLICIES)}"
    return f"{name} is not a policy gradwatch knows; {known} (a policy class of your own must be passed as an object)"


def likely_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` may be a slip of, whatever its case."""
    import difflib

    lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), lower, n=1)
    return lower[found[0]] if found else None


def _example(name: str) -> str:
    """A policy of that name that can be pasted: its required arguments are there."""
    if name in EXAMPLES:
        return EXAMPLES[name]
    fields = dataclasses.fields(POLICIES[name])
    required = [f for f in fields if f.default is dataclasses.MISSING]
    return f"{name}({', '.join('0' if f.type == 'int' else '1.0' for f in required)})"


def _short(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 120 else f"{shown[:117]}..."
