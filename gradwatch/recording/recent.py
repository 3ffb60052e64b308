"""The last steps, while they are still on the device: for whoever must know of them before they are recorded."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from gradwatch.measure.ring_buffer import Ring
from gradwatch.recording.blocks import Row
from gradwatch.storage.logged_names import is_training_loss
from gradwatch.table import is_logged

GRAD_NORM, SKIPPED = "grad_norm", "skipped"


class Seen(NamedTuple):
    """What is known of a step on the host."""

    step: int
    optimizer: str
    norm: float | None  # the global gradient norm, before the policy; None where it could not be measured
    skipped: bool
    losses: dict[str, float]  # the training's own, as they were logged for this step


class Recent:
    """The rows of a ring that were written last, and the losses that were logged for them."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.rows: deque[tuple[int, Row]] = deque(maxlen=ring.rows)  # with their numbers in the ring
        self.losses: deque[tuple[int, str, float | Tensor]] = deque(maxlen=4 * ring.rows)

    def log(self, at: int, name: str, value: float | Tensor) -> None:
        """Something was put down for the row `at`: of what the loop logged the losses are kept.

        What gradwatch looks at by itself (`in_loss/...`) never steers a training.
        """
        if is_logged(name) and is_training_loss(name):
            self.losses.append((at, name, value))

    def read(self, since: int) -> list[Seen]:
        """The steps whose rows are numbered from `since` on, as far as the ring still has them: one read of the device.

        A policy or a loss scaler that left a step out has `skipped` it.
        """
        rows = [(at, row) for at, row in self.rows if at >= since]
        if not rows:
            return []
        losses = [(at, name, value) for at, name, value in self.losses if at >= rows[0][0]]
        norm, skipped = (self.ring.fields.index(name) for name in (GRAD_NORM, SKIPPED))
        views = [self.ring.row(at) for at, _ in rows]
        norms = torch.linalg.vector_norm(torch.stack([view[norm] for view in views]), dim=1)
        flags = torch.stack([view[skipped][0] for view in views])
        told = [value.reshape(1) for _, _, value in losses if isinstance(value, Tensor)]
        numbers = iter(torch.cat([norms, flags, *told]).tolist())
        found, left_out = [next(numbers) for _ in rows], [next(numbers) > 0 for _ in rows]
        by_row: dict[int, dict[str, float]] = {}
        for at, name, value in losses:
            by_row.setdefault(at, {})[name] = next(numbers) if isinstance(value, Tensor) else value
        return [
            Seen(row.step, row.optimizer, found[i] if row.is_measured else None, row.can_skip and left_out[i],
                 by_row.get(at, {}))
            for i, (at, row) in enumerate(rows)
        ]  # fmt: skip
