"""gradwatch: every layer's gradient on every step, the clipping policy you choose, and the proof in MLflow."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradwatch._version import __version__
from gradwatch.errors import no_room_said

if TYPE_CHECKING:
    from gradwatch.errors import GradwatchError as GradwatchError
    from gradwatch.errors import GradwatchWarning as GradwatchWarning
    from gradwatch.errors import PolicyError as PolicyError
    from gradwatch.errors import RunError as RunError
    from gradwatch.errors import TrainingHalted as TrainingHalted
    from gradwatch.errors import WatchError as WatchError
    from gradwatch.history import History as History
    from gradwatch.launcher.objective import objective as objective
    from gradwatch.measure.functional import clip_grads_ as clip_grads_
    from gradwatch.measure.functional import global_norm as global_norm
    from gradwatch.open_run import open_history as open_history
    from gradwatch.policies import AGC as AGC
    from gradwatch.policies import AdaGC as AdaGC
    from gradwatch.policies import AutoClip as AutoClip
    from gradwatch.policies import ClipByAverageNorm as ClipByAverageNorm
    from gradwatch.policies import ClipByGlobalNorm as ClipByGlobalNorm
    from gradwatch.policies import ClipByHistory as ClipByHistory
    from gradwatch.policies import ClipByNorm as ClipByNorm
    from gradwatch.policies import ClipByValue as ClipByValue
    from gradwatch.policies import ClipWith as ClipWith
    from gradwatch.policies import Decision as Decision
    from gradwatch.policies import MaxNorm as MaxNorm
    from gradwatch.policies import MaxSpectral as MaxSpectral
    from gradwatch.policies import NormPolicy as NormPolicy
    from gradwatch.policies import Policy as Policy
    from gradwatch.policies import QKClip as QKClip
    from gradwatch.policies import Renorm as Renorm
    from gradwatch.policies import SkipNonfinite as SkipNonfinite
    from gradwatch.policies import SkipNorm as SkipNorm
    from gradwatch.policies import SkipSpike as SkipSpike
    from gradwatch.policies import ZClip as ZClip
    from gradwatch.policies import after as after
    from gradwatch.policies import chain as chain
    from gradwatch.policies import only as only
    from gradwatch.policies import parse as parse
    from gradwatch.policies import ramp as ramp
    from gradwatch.recording.attach import watch as watch
    from gradwatch.recording.open_watches import log as log
    from gradwatch.recording.rewind import Rewind as Rewind
    from gradwatch.recording.skip_batches import skip as skip
    from gradwatch.recording.watch import Watch as Watch

# Where the public names live. They are imported on first use, so that the command line never waits for torch.
_HOMES = {
    "gradwatch.errors": (
        "GradwatchError",
        "GradwatchWarning",
        "PolicyError",
        "RunError",
        "TrainingHalted",
        "WatchError",
    ),
    "gradwatch.history": ("History",),
    "gradwatch.launcher.objective": ("objective",),
    "gradwatch.measure.functional": ("clip_grads_", "global_norm"),
    "gradwatch.policies": (
        "AGC",
        "AdaGC",
        "AutoClip",
        "ClipByAverageNorm",
        "ClipByGlobalNorm",
        "ClipByHistory",
        "ClipByNorm",
        "ClipByValue",
        "ClipWith",
        "Decision",
        "MaxNorm",
        "MaxSpectral",
        "NormPolicy",
        "Policy",
        "QKClip",
        "Renorm",
        "SkipNonfinite",
        "SkipNorm",
        "SkipSpike",
        "ZClip",
        "after",
        "chain",
        "only",
        "parse",
        "ramp",
    ),
    "gradwatch.recording.open_watches": ("log",),
    "gradwatch.open_run": ("open_history",),
    "gradwatch.recording.rewind": ("Rewind",),
    "gradwatch.recording.skip_batches": ("skip",),
    "gradwatch.recording.watch": ("Watch",),
    "gradwatch.recording.attach": ("watch",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gradwatch' has no attribute {name!r}")
    with no_room_said():
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
