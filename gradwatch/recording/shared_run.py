"""What the Watches of one run share: its folder, the names of its parts, its MLflow run, its couriers.

Several processes agree on these once, when a named Watch is made; after that nobody waits for anybody.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from gradwatch.errors import RunError, WatchError
from gradwatch.measure.distributed import rank, world_size
from gradwatch.recording import courier_process
from gradwatch.storage.shared_folder import create_shared, discard_empty, read_facts

_NAME = re.compile(r"\w[\w-]{0,63}")  # no dot: `G` with the layer `0.weight` and `G.0` with `weight` would be one


@dataclass
class Shared:
    """A run of several parts, as this process knows it. `facts` is what its `parts.json` says."""

    folder: Path
    facts: Mapping[str, Any]
    target: dict[str, Any] | None
    names: set[str] = field(default_factory=set)
    couriers: dict[Path, subprocess.Popen[bytes] | None] = field(default_factory=dict)

    def start_courier(self, part: Path, place: str | None = None) -> subprocess.Popen[bytes] | None:
        """The process that delivers the part in the folder `part`: one for all parts that this process writes alone,
        and a new one if that was killed.

        Where several ranks write, each sends its own: a courier sees only the processes of its own machine.
        """
        folder = part if world_size() > 1 else part.parent
        if folder not in self.couriers or courier_process.was_killed(self.couriers[folder]):
            self.couriers[folder] = courier_process.start_courier(folder, place)
        return self.couriers[folder]


@dataclass(frozen=True)
class _Claim:
    """What one rank brings to the agreement: its part, and the run that it begins (`begins`) or adds to."""

    name: str
    begins: bool
    folder: Path | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    target: dict[str, Any] | None = None
    problem: str = ""


def check_name(name: str | None, shared: Shared | None, given: bool) -> None:
    """Refuse a name that a Watch cannot have; `given` is whether `run=` was.

    Raises:
        WatchError: the name is missing, taken, or no folder can be called so.
    """
    if name is None and given:
        raise WatchError('run= without name=: a Watch that shares a run needs a name of its own, such as name="D"')
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise WatchError(f"name={name!r}: wanted at most 64 letters, digits, _ and -; it names a folder and the layers")
    if given and shared is None:
        raise WatchError('the Watch given as run= has no name: give it one as well, such as name="G"')
    if shared is not None and name in shared.names:
        raise WatchError(f"name={name!r} is taken in {shared.folder}: every Watch of a run needs a name of its own")


def share(
    name: str, shared: Shared | None, parent: Path, run_name: str, target: dict[str, Any] | None, undo: ExitStack
) -> tuple[Shared, bool]:
    """The run that the Watch `name` belongs to (a new one under `parent` for `shared` None), and whether this rank is
    the one that writes: the lowest of those that gave the same name. `undo` is told what takes that back.

    Every rank must call this; they meet in one `all_gather_object`. The run is that of rank 0.

    Raises:
        RunError: the folder cannot be made.
        WatchError: some ranks begin a run while others add to one.
    """
    mine = _Claim(name, shared is None)
    if shared is None and rank() == 0:
        try:
            folder = create_shared(parent, run_name)
            undo.callback(discard_empty, folder)
            mine = _Claim(name, True, folder, read_facts(folder), target)
        except RunError as error:  # the others wait to be told
            mine = _Claim(name, True, problem=str(error))
    claims = _everybodys(mine)
    first = claims[0]
    if len({claim.begins for claim in claims}) > 1:
        raise WatchError("some ranks gave run= and others did not: on every rank, the first Watch begins the run")
    if shared is None:
        if first.folder is None:
            raise RunError(first.problem)
        shared = Shared(first.folder, first.facts, first.target)
    undo.callback(shared.names.discard, name)
    shared.names.add(name)
    return shared, rank() == [claim.name for claim in claims].index(name)


def _everybodys(mine: _Claim) -> list[_Claim]:
    """What every rank says, in the order of the ranks."""
    if world_size() == 1:
        return [mine]
    claims: list[_Claim | None] = [None] * world_size()
    torch.distributed.all_gather_object(claims, mine)
    return cast("list[_Claim]", claims)
