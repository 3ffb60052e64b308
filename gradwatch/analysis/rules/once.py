"""Answers that are kept: rules ask a History for the same, and ask each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from gradwatch.history import History

Asked = ParamSpec("Asked")
Found = TypeVar("Found")


def once(ask: Callable[Concatenate[History, Asked], Found]) -> Callable[Concatenate[History, Asked], Found]:
    """What is asked of one History again is answered as before. The answer goes with it, and no changed copy has it."""

    @wraps(ask)
    def answer(history: History, /, *args: Asked.args, **kwargs: Asked.kwargs) -> Found:
        known = history.__dict__.setdefault("_answers", {})
        question = ask, args, *kwargs.items()
        if question not in known:
            known[question] = ask(history, *args, **kwargs)
        return known[question]  # type: ignore[no-any-return]

    return answer
