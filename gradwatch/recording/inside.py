"""What is looked at beside norms and weights, where it was asked for: most of it in sampled steps only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradwatch.errors import WatchError
from gradwatch.measure.activations import Activations
from gradwatch.measure.collectives import Sums, together
from gradwatch.measure.constant_weights import constant_weights
from gradwatch.measure.ddp_rank_norms import RankNorms, ddp_of, rank_norms
from gradwatch.measure.distributed import add_up, world_size
from gradwatch.measure.frozen_weights import frozen_weights
from gradwatch.measure.gradient_histogram import GradientHistogram
from gradwatch.measure.largest_logits import LargestLogits
from gradwatch.measure.layout import Layout
from gradwatch.measure.looking import Looking
from gradwatch.measure.units import units_of
from gradwatch.measure.weight_updates import Weights
from gradwatch.policies import Policy
from gradwatch.recording import backward_calls
from gradwatch.recording.arguments import Settings
from gradwatch.recording.clipper import Clipper
from gradwatch.recording.layers import held
from gradwatch.recording.loss_graphs import LossGraphs
from gradwatch.recording.loss_targets import LossTargets
from gradwatch.recording.micro_batches import MicroBatches
from gradwatch.recording.modes import Mode
from gradwatch.recording.modules import chosen, chosen_routers
from gradwatch.recording.target_networks import TargetNetworks
from gradwatch.recording.unheld import Unheld


@dataclass(frozen=True)
class Inside:
    """Each part is there where it was asked for; without any of them nothing happens."""

    activations: Activations = field(default_factory=Activations)
    histogram: GradientHistogram | None = None
    rank_norms: RankNorms | None = None
    micro_batches: MicroBatches | None = None
    logits: LargestLogits | None = None  # in all steps
    mode: Mode | None = None  # of the model, in all steps
    at_rest: list[Tensor] = field(default_factory=list)  # until the first step: parameters that no optimizer holds
    loss_graphs: LossGraphs = field(default_factory=LossGraphs)  # before the first steps
    loss_targets: LossTargets = field(default_factory=LossTargets)  # in ever rarer steps

    @cached_property
    def samples(self) -> bool:
        """Whether anything happens between steps."""
        parts = self.histogram, self.micro_batches, self.logits
        return bool(self.activations.names) or any(part is not None for part in parts)

    def at_first(self, step: int, layout: Layout, looking: Looking) -> dict[str, Any]:
        """What is known of the model before the first step, scalars. It is looked at from now on."""
        if not backward_calls.another_thread_is_in_one():  # it trains, and is looked at from its next step on
            self.begin(step, layout)
        found: dict[str, Any] = {}
        with looking.at("norm_mean"):
            found |= {} if self.mode is None else self.mode.at_first()
        with looking.at("constant_weights"):
            found |= constant_weights(layout)
        with looking.at("frozen_elements"):
            found |= frozen_weights(self.at_rest, layout.device)
        self.at_rest.clear()  # a teacher may go away meanwhile
        return found

    def begin(self, step: int, layout: Layout, lanes: Sequence[str] = (), samples: bool = True) -> None:
        """The forward pass of this step is about to begin, of one of these `lanes`, where optimizers step in turn.

        Unless something `samples` it, nothing but its losses is heard of.
        """
        backward_calls.heard.from_here(self.loss_targets, self.loss_graphs, self.micro_batches)
        self.loss_targets.begin(step, layout, lanes)
        if not samples:
            return
        self.activations.begin(step)
        self.loss_graphs.begin(layout)
        if self.logits is not None:
            self.logits.begin()
        if self.histogram is not None:
            self.histogram.begin(step)
        if self.micro_batches is not None:
            self.micro_batches.begin(step, layout)

    def end(self, layout: Layout, looking: Looking, weights: Sums[dict[str, Tensor]] | None) -> dict[str, Any]:
        """The step is over: what it showed, by the table that it belongs to, each None where it was not sampled;
        `micro_batches`, scalars; and the `weights`, if they are measured. What ranks add up of all this is one sum.
        """
        asked: dict[str, Sums[Any]] = {"activations": self.activations.end(layout.device)}
        if self.histogram is not None:
            asked["histograms"] = self.histogram.end()
        if self.micro_batches is not None:
            self.micro_batches.stop()
            asked["micro_batches"] = self.micro_batches.norms()
        heads = {} if self.logits is None else {"heads": self.logits.end(sampled=weights is not None)}
        if weights is not None:
            asked["weights"] = weights
        with looking.at("what ranks add up"):
            return {**add_up(together(asked, looking), layout.sharding), **heads}
        return heads

    def stop(self) -> None:
        """Look no more."""
        self.activations.stop()
        self.loss_graphs.stop()
        self.loss_targets.stop()
        if self.logits is not None:
            self.logits.stop()
        if self.micro_batches is not None:
            self.micro_batches.stop()

    def plan(self) -> list[str]:
        """A line for each part that samples steps."""
        found, shares, passes = self.activations, self.histogram, self.micro_batches
        return [
            *([f"activations of {len(found.names)} modules every {found.every} steps"] if found.names else []),
            *([f"a histogram of each layer's gradient every {shares.every} steps"] if shares else []),
            *(["the largest logit of each attention head in every step"] if self.logits else []),
            *([f"the first micro-batch's gradient norm every {passes.every} steps"] if passes else []),
        ]


def measured(
    model: nn.Module,
    settings: Settings,
    layout: Layout,
    optimizers: Mapping[str, Optimizer],
    policies: Sequence[Policy | None],
    part: str | None,
) -> tuple[Clipper, Weights, Inside]:
    """What acts on the gradients and the weights of these layers, and what looks at more than that.

    Raises:
        WatchError: no module, or no matrix, fits the patterns, or ranks' own norms or the attention cannot be seen.
        PolicyError: a pattern of a policy fits no layer.
    """
    clip, renorm = policies
    looking, logits = Looking(), None
    if renorm is not None and renorm.hears_attention:
        logits = _logits(model, layout, part)
    weights = Weights(layout, renorm, settings.every, settings.slots, looking, settings.matrices, logits)
    trained = {key for optimizer in optimizers.values() for key in held(optimizer)}
    copies = unheld = None
    if layout.sharding is None:  # else the gradients may lie elsewhere
        with looking.at("what copies are"):
            copies, unheld = TargetNetworks(model, optimizers.values()), Unheld(model, trained)
    looked_at = replace(
        _inside(model, settings, layout, part, looking),
        logits=logits,
        mode=Mode.of(model),
        at_rest=[p for p in model.parameters() if id(p) not in trained],
        loss_graphs=LossGraphs(looking),
        loss_targets=LossTargets(settings.every, looking, copies, unheld),
    )
    return Clipper(layout, optimizers, clip, looked_at.histogram), weights, looked_at


def _inside(
    model: nn.Module,
    settings: Settings,
    layout: Layout,
    part: str | None,
    looking: Looking,
) -> Inside:
    """What the settings ask for; over ranks, where the batch is known to be spread over them.

    Raises:
        WatchError: what is asked for cannot be seen under this kind of sharding.
    """
    if settings.noise_scale and layout.spreads:
        raise WatchError(
            "noise_scale=True: FullyShardedDataParallel, DeepSpeed's ZeRO and experts= hide which gradients are of one "
            "micro-batch; leave it out, or use fully_shard (FSDP2)"
        )
    modules = chosen(model, settings.activations, part)
    group, place = _group(model), None
    if layout.sharding is not None:
        group, place = layout.sharding.group, layout.sharding.first_place
    units, experts = units_of(model) if modules else {}, chosen_routers(model, settings.activations, part)
    return Inside(
        Activations(modules, units, settings.activations_every, group, looking, experts, place),
        GradientHistogram(settings.histogram_every, looking) if settings.histogram_every else None,
        rank_norms(model) if settings.ranks else None,
        MicroBatches(model, settings.every, looking) if settings.noise_scale else None,
    )


def _group(model: nn.Module) -> Any:
    """The ranks among which DistributedDataParallel spreads the batch; None for other models."""
    ddp = ddp_of(model)
    return None if ddp is None else ddp.process_group


def _logits(model: nn.Module, layout: Layout, part: str | None) -> LargestLogits:
    """What a constraint on attention goes by, over the ranks that share the batch."""
    group = _group(model)
    if layout.sharding is not None or (group is None and world_size() > 1):
        raise WatchError(
            "QKClip: all ranks that share weights must scale them alike, which is known of one process and of "
            "DistributedDataParallel only"
        )
    return LargestLogits(model, group, part)
