"""What is looked at beside norms and weights, where it was asked for: most of it in sampled steps only."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwatch.measure.activations import Activations, Sample, unit_dims
from gradwatch.measure.ddp_rank_norms import RankNorms, rank_norms
from gradwatch.measure.gradient_histogram import GradientHistogram, Shares
from gradwatch.measure.layout import Layout
from gradwatch.measure.looking import Looking
from gradwatch.recording.arguments import Settings
from gradwatch.recording.micro_batches import MicroBatches
from gradwatch.recording.modules import chosen


@dataclass(frozen=True)
class Inside:
    """Each part is there where it was asked for; without any of them nothing happens."""

    activations: Activations = field(default_factory=Activations)
    histogram: GradientHistogram | None = None
    rank_norms: RankNorms | None = None
    micro_batches: MicroBatches | None = None

    @cached_property
    def samples(self) -> bool:
        """Whether anything happens in sampled steps."""
        return bool(self.activations.names) or self.histogram is not None or self.micro_batches is not None

    def begin(self, step: int, layout: Layout) -> None:
        """The forward pass of this step is about to begin."""
        self.activations.begin(step)
        if self.histogram is not None:
            self.histogram.begin(step)
        if self.micro_batches is not None:
            self.micro_batches.begin(step, layout)

    def end(self, device: torch.device, looking: Looking) -> dict[str, Sample | Shares | None]:
        """The step is over: what it showed, by the table that it belongs to; None where it was not sampled."""
        if self.micro_batches is not None:
            self.micro_batches.stop()
        found: dict[str, Sample | Shares | None] = {}
        if self.histogram is not None:
            found["histograms"] = self.histogram.end()
        with looking.at("activations"):
            found["activations"] = self.activations.end(device)
        return found

    def stop(self) -> None:
        """Look no more."""
        self.activations.stop()
        if self.micro_batches is not None:
            self.micro_batches.stop()

    def plan(self) -> list[str]:
        """A line for each part that samples steps."""
        found, shares, passes = self.activations, self.histogram, self.micro_batches
        return [
            *([f"activations of {len(found.names)} modules every {found.every} steps"] if found.names else []),
            *([f"a histogram of each layer's gradient every {shares.every} steps"] if shares else []),
            *([f"the first micro-batch's gradient norm every {passes.every} steps"] if passes else []),
        ]


def inside(
    model: nn.Module,
    settings: Settings,
    layout: Layout,
    part: str | None,
    looking: Looking,
) -> Inside:
    """What the settings ask for; over ranks, where the batch is known to be spread over them.

    Raises:
        WatchError: no module fits the patterns, or ranks' own norms cannot be seen.
    """
    modules = chosen(model, settings.activations, part)
    group = getattr(model, "process_group", None) if isinstance(model, DistributedDataParallel) else None
    if layout.sharding is not None:
        group = layout.sharding.group or torch.distributed.group.WORLD
    dims = unit_dims(model) if modules else {}
    return Inside(
        Activations(modules, dims, settings.activations_every, group, looking),
        GradientHistogram(settings.histogram_every, looking) if settings.histogram_every else None,
        rank_norms(model) if settings.ranks else None,
        MicroBatches(model, settings.every, looking) if settings.noise_scale else None,
    )
