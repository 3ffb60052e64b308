"""The script's own arguments as params of its run: what argparse made of them, else the command line's own words.

Nothing slow is imported here: what a script sets before its own imports must count.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from gradwatch.sanitize import HIDDEN, MAX_PARAM, is_secret, public_text

_OPTION = re.compile(r"-{1,2}[A-Za-z][\w.-]*$")
_ASSIGNED = re.compile(r"(?:-{1,2}|[+~]{1,2})?([A-Za-z][\w.@/-]*)=(.*)$", re.DOTALL)  # of Hydra, too


class Arguments:
    """The words behind the script's name, and what an `argparse.ArgumentParser` made of them."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self._parsed: dict[str, Any] = {}
        self._rest: list[str] | None = None  # what no parser knew; None before there was one

    def note(self, args: Any, found: Any) -> None:
        """A parser returned `found`, a namespace and the words that it did not know, for `args` (None: sys.argv)."""
        try:
            if args is None or list(args) == sys.argv[1:]:
                namespace, rest = found
                self._parsed.update(vars(namespace))
                self._rest = [str(word) for word in rest]
        except Exception:  # it is only looked at
            return

    def recorded(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """A command with these words as its `args`, unless it has some; `hidden`: whether a secret is left out."""
        if "args" in command:  # in a process that the script has spawned
            return dict(command)
        words, _ = _hidden(self.words)
        public = [_public(word) for word in words]
        return {**command, "args": public, "hidden": public != self.words}

    def params(self) -> dict[str, str]:
        """`argv`, the whole command line, and each argument as `args.<name>`. Secrets are left out."""
        if not self.words and not self._parsed:
            return {}
        lists = {key: value for key, value in self._parsed.items() if _are_assigned(value)}
        words = [
            *(self.words if self._rest is None else self._rest),
            *(word for each in lists.values() for word in each),
        ]
        found: dict[str, str] = {}
        for name, word in _named(words):
            found[name] = f"{found[name]}, {word}" if name in found else word
        plain = {key: _text(value) for key, value in self._parsed.items() if key not in lists}
        found.update({key: text for key, text in plain.items() if text is not None})
        hidden, secrets = _hidden(self.words)
        found = {key: text for key, text in found.items() if not is_secret(key) and not secrets & {text}}
        public = {f"args.{key}": _public(text) for key, text in found.items()}
        return {"argv": _public(shlex.join(hidden)), **public}


def _named(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and values of a command line that nobody explains: `--lr 0.1`, `--lr=0.1`, `lr=0.1`, `--fast`, `data`."""
    at = places = 0
    while at < len(words):
        word, behind = words[at], words[at + 1 : at + 2]
        assigned = _ASSIGNED.match(word)
        at += 1
        if assigned:
            yield assigned[1].replace("-", "_"), assigned[2]
        elif _OPTION.match(word):
            has_value = bool(behind) and not _OPTION.match(behind[0]) and not _ASSIGNED.match(behind[0])
            at += has_value
            yield word.lstrip("-").replace("-", "_"), behind[0] if has_value else "True"
        else:
            yield str(places), word
            places += 1


def _are_assigned(value: Any) -> bool:
    """Whether these are words such as `lr=0.1`, each of which is an argument of its own (Hydra's overrides)."""
    return isinstance(value, list) and bool(value) and all(isinstance(w, str) and _ASSIGNED.match(w) for w in value)


def _hidden(words: Sequence[str]) -> tuple[list[str], set[str]]:
    """The words with what follows a secret's name hidden, and what that is: a parser may give it another name."""
    out, secrets = list(words), set()
    for at, word in enumerate(words):
        assigned, before = _ASSIGNED.match(word), words[at - 1] if at else ""
        if assigned and is_secret(assigned[1]):
            out[at] = word[: assigned.start(2)] + HIDDEN
            secrets |= {word, assigned[2]}
        elif _OPTION.match(before) and is_secret(before) and not _OPTION.match(word):
            out[at] = HIDDEN
            secrets.add(word)
    return out, secrets


def _text(value: Any) -> str | None:
    """A value as text; None for what has none that is the same in the next run (functions, objects)."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str):
        return _hidden([value])[0][0]  # `api_key=...` among the words of a list
    if value is None or isinstance(value, bool | int | float) or type(value).__name__ in ("device", "dtype"):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value) if isinstance(os.fspath(value), str) else None
    if isinstance(value, Mapping):
        pairs = [(str(key), _text(each)) for key, each in value.items() if not is_secret(str(key))]
        return ", ".join(f"{key}={text}" for key, text in pairs)
    if isinstance(value, list | tuple | set | frozenset):
        texts = [str(_text(each)) for each in value]
        return ", ".join(sorted(texts) if isinstance(value, set | frozenset) else texts)
    return None


def _public(text: str) -> str:
    """Text that a file can hold, without the passwords of addresses in it."""
    return public_text(text.encode("utf-8", "replace").decode())[:MAX_PARAM]
