"""Answers that are kept: rules ask a History for the same, and ask each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from gradwatch.history import History

Asked = ParamSpec("Asked")
Found = TypeVar("Found")


def once(ask: Callable[Concatenate[History, Asked], Found]) -> Callable[Concatenate[History, Asked], Found]:
    """What is asked of one History again is answered as before. The answer goes with it, and no changed copy has it.

    An array of which many have the answer is nobody's to change: it is read-only.
    """

    @wraps(ask)
    def answer(history: History, /, *args: Asked.args, **kwargs: Asked.kwargs) -> Found:
        known = history.__dict__.setdefault("_answers", {})
        question = ask, args, *kwargs.items()
        if question not in known:
            known[question] = _kept(ask(history, *args, **kwargs))
        return known[question]  # type: ignore[no-any-return]

    return answer


def _kept(answer: Any) -> Any:
    if type(answer) is tuple:
        return tuple(_kept(each) for each in answer)
    if isinstance(answer, np.ndarray):
        answer = answer.view()  # it may be one of the History's own
        answer.flags.writeable = False
    return answer
