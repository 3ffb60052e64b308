"""What is done to a training beside what its script does: as a label, and as options of `gradwatch run`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from gradwatch.policies.base import chain
from gradwatch.policies.grammar import as_policy
from gradwatch.policies.skip import SkipNonfinite, SkipSpike

NONE = "none"


def given(text: str | None) -> str | None:
    """The text of a policy; None for `none`."""
    return None if text is None or text.strip().lower() in ("", NONE) else text


@dataclass(frozen=True)
class Intervention:
    """The arguments of `watch()` that change a training; `clip` and `renorm` are policies as text."""

    clip: str | None = None
    renorm: str | None = None
    lr_scale: float = 1.0
    warmup: int = 0

    @classmethod
    def of(cls, holder: Any) -> Intervention:
        """That of a Run, or of a mapping of arguments."""
        get = holder.get if hasattr(holder, "get") else lambda key: getattr(holder, key)
        clip, renorm = (None if get(role) is None else str(get(role)) for role in ("clip", "renorm"))
        return cls(clip, renorm, float(get("lr_scale") or 1.0), int(get("warmup") or 0))

    @property
    def label(self) -> str:
        """`ClipByGlobalNorm(1.0) + lr_scale=0.1`, as code; `none` where nothing is done."""
        scaled = [f"{name}={getattr(self, name)!r}" for name in ("lr_scale", "warmup") if self._is_set(name)]
        return " + ".join([*(text for text in (self.clip, self.renorm) if text), *scaled]) or NONE

    @property
    def arguments(self) -> dict[str, str | float]:
        """Those that are set, as `watch()` takes them."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if self._is_set(name)}

    @property
    def options(self) -> dict[str, str]:
        """The same as the command line takes them: `{"--lr-scale": "0.1"}`."""
        return {"--" + name.replace("_", "-"): str(value) for name, value in self.arguments.items()}

    def __str__(self) -> str:
        """As it is typed: `--clip 'ClipByGlobalNorm(1.0)' --lr-scale 0.1`."""
        return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in self.options.items())

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, name) != self.__dataclass_fields__[name].default)


def skipping(clip: str | None) -> str:
    """The clip with the steps left out before it that are non-finite or a spike: what `--skip` stands for."""
    policy = as_policy(clip, "clip")
    return repr(chain(SkipNonfinite(), SkipSpike(), *([policy] if policy else [])))
