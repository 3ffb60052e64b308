"""Snapshots in a run's folder: each rank's own files, written by a thread, the last ones kept."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gradwatch.errors import RunError
from gradwatch.measure.distributed import rank, world_size
from gradwatch.recording.snapshot import Snapshot, load

log = logging.getLogger("gradwatch")

FOLDER = "snapshots"
KEPT = 2  # so that there is one that all ranks have, whenever one of them is killed
_NAME = re.compile(r"(\d{6,})-rank-(\d+)(?:-of-(\d+))?\.pt", re.ASCII)  # earlier ones do not say of how many


class SnapshotFiles:
    """Writes each `every`-th snapshot that it is offered; 0: none. Of several ranks all are offered the same ones."""

    def __init__(self, every: int) -> None:
        self.every, self.folder = every, Path()
        self._offered, self._serial = 0, 0
        self._thread: threading.Thread | None = None
        self._complained = False

    def offer(self, snapshot: Snapshot, kept: Mapping[str, Any]) -> None:
        """Write it, if it is time for one, behind the training's back; not while the last one is being written."""
        self._offered += 1
        if self.every and self._offered % self.every == 0:
            self._serial += 1
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._write, args=(snapshot, kept, self._serial), name="gradwatch-snapshot"
                )
                self._thread.start()

    def write(self, snapshot: Snapshot, kept: Mapping[str, Any]) -> None:
        """Write it now."""
        if self.every:
            self._serial += 1
            if self._thread is not None:
                self._thread.join()
            self._write(snapshot, kept, self._serial)

    def newest(self, folder: Path) -> tuple[Snapshot, dict[str, Any]] | None:
        """The one that was written last to the run's `folder`, and that all ranks have.

        Raises:
            RunError: it cannot be read, or is of another number of ranks.
        """
        own, ranks = _own(folder), _ranks(folder)
        common = {*own}
        if world_size() > 1:
            every: list[Any] = [None] * world_size()
            dist.all_gather_object(every, (common, ranks))
            common = set.intersection(*(serials for serials, _ in every))
            ranks = set.union(*(each for _, each in every))
        if others := ranks - {world_size()}:
            raise RunError(
                f"{folder / FOLDER} is of {max(others)} ranks, and these are {world_size()}: each goes on from its own "
                "part. Start as many, or load a checkpoint of the whole model"
            )
        if not common:
            return None
        self._serial = max(common)
        return load(own[self._serial])

    def _write(self, snapshot: Snapshot, kept: Mapping[str, Any], serial: int) -> None:
        try:
            snapshot.save(_path(self.folder, serial), kept)
            for old, path in _own(self.folder).items():
                if old <= serial - KEPT:
                    path.unlink()
            self._complained = False
        except Exception as error:  # a full disk must not end the training
            with contextlib.suppress(OSError):
                _path(self.folder, serial).with_name(f".{_path(self.folder, serial).name}.tmp").unlink()
            if not self._complained:
                log.warning("gradwatch: cannot write a snapshot to %s (%s); training goes on", self.folder, error)
            self._complained = True


def _path(folder: Path, serial: int) -> Path:
    return folder / FOLDER / f"{serial:06d}-rank-{rank()}-of-{world_size()}.pt"


def _found(folder: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    inside = folder / FOLDER
    for path in inside.iterdir() if inside.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            yield path, match


def _own(folder: Path) -> dict[int, Path]:
    """This rank's files, by their numbers."""
    return {int(match[1]): path for path, match in _found(folder) if int(match[2]) == rank()}


def _ranks(folder: Path) -> set[int]:
    """How many ranks wrote what is there."""
    return {int(match[3]) for _, match in _found(folder) if match[3]}
