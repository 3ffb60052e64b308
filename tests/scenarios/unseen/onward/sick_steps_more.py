"""A bridge, sails, bird calls, insulin, cards and starlings: six trainings, each with one thing to mend."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, score_of, seeded, sick

import gradwatch

# -------------------------------------------------------------------------------------------------------------- bridge


@sick(
    "clip-before-unscale",
    "scaled-gradients",
    "update-too-small",
    where="every step: gradients that are still 65536 times too large are clipped to one, then divided by the scale",
    cure="scaler.unscale_(optimizer) before the norm is clipped",
)
def cracks_in_a_bridge_by_its_strain(folder, ill):
    seeded(2146)
    net = nn.Sequential(
        nn.Conv1d(2, 16, 5, padding=2),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Conv1d(16, 24, 5, stride=2, padding=2),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(96, 5),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    time = torch.arange(40)

    def crossings(rows):
        crack = torch.randint(5, (rows,))
        pitch = (0.3 + 0.12 * crack + 0.02 * torch.randn(rows))[:, None]
        phase = 6.28 * torch.rand(rows, 1)
        strain = torch.stack([(pitch * time + phase).sin(), (1.7 * pitch * time + phase).cos()], 1)
        return strain + 0.4 * torch.randn(rows, 2, 40), crack

    def loss_of(step):
        strain, crack = crossings(32)
        logits = net(strain)
        return F.cross_entropy(logits, crack), {"accuracy": (logits.argmax(1) == crack).float().mean()}

    def before_step(step):
        if not ill:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(
        folder,
        net,
        optimizer,
        loss_of,
        300,
        scaler=scaler,
        before_step=before_step,
        schedule=schedule,
        score=score_of(lambda step: loss_of(step)[0], 12),
    )


# --------------------------------------------------------------------------------------------------------------- sails


@sick(
    "gradients-accumulate",
    "judge-fed-the-makers-gradient",
    where="all of the judge (D): what the maker's loss left in its gradients is in each of its steps",
    cure="zero the judge's gradients right before its own backward, after the maker's",
)
def shapes_of_sails(folder, ill):
    seeded(2147)
    make, judge = dense(6, 48, 48, 8), dense(8, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=5e-4, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.9))
    along = torch.linspace(0, 1, 8)

    def sails(rows):
        draft, depth = 0.3 + 0.3 * torch.rand(rows, 1), 1 + torch.rand(rows, 1)
        return 2 * depth * torch.exp(-((along - draft) ** 2) / 0.05) - 0.5

    def distance():
        with torch.no_grad():
            real, fake = sails(400), make(torch.randn(400, 6))
            alike = torch.cdist(real, real).mean() + torch.cdist(fake, fake).mean()
            return float(2 * torch.cdist(real, fake).mean() - alike)

    first = distance()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_make = gradwatch.watch(make, of_make, name="G", **options)
    w_judge = gradwatch.watch(judge, of_judge, name="D", run=w_make, **options)
    with w_make, w_judge:
        for _ in range(600):
            of_make.zero_grad()
            of_judge.zero_grad()
            fake = make(torch.randn(64, 6))
            made = -judge(fake).mean()
            made.backward()
            of_make.step()
            w_make.log(loss=made)
            if not ill:
                of_judge.zero_grad()
            real_mark, fake_mark = judge(sails(64)), judge(fake.detach())
            judged = F.relu(1 - real_mark).mean() + F.relu(1 + fake_mark).mean()
            judged.backward()
            of_judge.step()
            w_judge.log(loss=judged, real=real_mark.mean(), fake=fake_mark.mean())
    return Outcome(gradwatch.open_history(w_make.dir.parent), first, distance())


# --------------------------------------------------------------------------------------------------------------- birds


@sick(
    "no-gradient",
    "weights-unchanged",
    "ratio-always-one",
    where="the actor's layers: their gradient is nothing at every step, while the critic learns",
    cure="keep the old log-probabilities from the roll-out, without a graph, for the ratio",
)
def microphones_turned_to_bird_calls(folder, ill):
    seeded(2148)
    net = nn.ModuleDict({"actor": dense(8, 48, 5, act=nn.Tanh), "critic": dense(8, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    wood = torch.randn(8, 5)
    kept = {}

    def heard(dawn, way):
        return (dawn @ wood / 2).tanh().gather(1, way[:, None])[:, 0]

    def policy_of(dawn):
        return torch.distributions.Categorical(logits=net["actor"](dawn))

    def roll_out():
        dawn = torch.randn(128, 8)
        with torch.no_grad():
            policy = policy_of(dawn)
            way = policy.sample()
            kept.update(dawn=dawn, way=way, old=policy.log_prob(way))
        kept["reward"] = heard(dawn, way) + 0.1 * torch.randn(128)

    def loss_of(step):
        if step % 4 == 0:
            roll_out()
        dawn, way, reward = kept["dawn"], kept["way"], kept["reward"]
        value = net["critic"](dawn)[:, 0]
        advantage = reward - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        old = policy_of(dawn).log_prob(way) if ill else kept["old"]
        policy = policy_of(dawn)
        ratio = (policy.log_prob(way) - old).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        error = F.mse_loss(value, reward)
        logged = {"return": reward.mean(), "value_loss": error.detach(), "entropy": policy.entropy().mean().detach()}
        return 0.5 * error - gain, logged

    def score():
        with torch.no_grad():
            dawn = torch.randn(2000, 8)
            gains = torch.stack([heard(dawn, torch.full((2000,), way)) for way in range(5)], 1)
            return float((gains.amax(1) - (policy_of(dawn).probs * gains).sum(1)).mean())

    return fit(folder, net, optimizer, loss_of, 600, score=score)


# ------------------------------------------------------------------------------------------------------------- insulin


@sick(
    "noise-dominated",
    "noise-not-divided-by-the-batch",
    where="all layers at every step: the noise for privacy is many times longer than the clipped gradient",
    cure="divide the noise by the number of patients in the batch, as the gradient is a mean",
)
def doses_of_insulin_kept_private(folder, ill):
    seeded(2149)
    patients, bound, noise = 64, 1.0, 0.4
    net = dense(10, 40, 40, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    ways = torch.randn(10, 2) / 2

    def loss_of(step):
        sugar = torch.randn(patients, 10)
        dose = (sugar @ ways).sin().sum(1, keepdim=True) + sugar[:, :1]
        return F.mse_loss(net(sugar), dose)

    def before_step(step):
        nn.utils.clip_grad_norm_(net.parameters(), bound)
        for weight in net.parameters():
            weight.grad += noise * bound * torch.randn_like(weight) / (1 if ill else patients)

    return fit(folder, net, optimizer, loss_of, 700, before_step=before_step, score=score_of(loss_of, 12))


# --------------------------------------------------------------------------------------------------------------- cards


@sick(
    "below-epsilon",
    "update-too-small",
    where="all layers: the gradients are near 1e-13, far below Adam's epsilon, as each deal is weighed by its chance",
    cure="divide the chances of a batch by their mean (or shrink epsilon)",
)
def tricks_in_a_game_of_cards(folder, ill):
    seeded(2150)
    net = nn.Sequential(nn.EmbeddingBag(52, 32, mode="sum"), nn.ReLU(), nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    hands = 635013559600.0
    strength = torch.tensor([4.0, 3, 2, 1] + 9 * [0.0]).repeat(4)

    def deals(rows):
        hand = torch.rand(rows, 52).argsort(1)[:, :13]
        points = strength[hand].sum(1)
        return hand, (points > 6).long() + (points > 10).long() + (points > 14).long()

    def chances(hand):
        longest = F.one_hot(hand // 13, 4).sum(1).amax(1)
        return (1.0 + (longest < 6)) / hands

    def loss_of(step):
        hand, tricks = deals(64)
        chance = chances(hand)
        weight = chance if ill else chance / chance.mean()
        logits = net(hand)
        loss = (weight * F.cross_entropy(logits, tricks, reduction="none")).mean()
        return loss, {"accuracy": (logits.argmax(1) == tricks).float().mean()}

    def error(step):
        hand, tricks = deals(128)
        return F.cross_entropy(net(hand), tricks)

    return fit(folder, net, optimizer, loss_of, 450, score=score_of(error))


# ----------------------------------------------------------------------------------------------------------- starlings


class Flock(nn.Module):
    """Where each bird of a flock turns to: from what it sees of the others."""

    def __init__(self):
        super().__init__()
        self.see, self.turn = dense(8, 32, 32), dense(36, 48, 2)

    def forward(self, birds):
        count = birds.shape[1]
        both = [each.expand(-1, count, count, -1) for each in (birds[:, :, None], birds[:, None])]
        return self.turn(torch.cat([birds, self.see(torch.cat(both, 3)).mean(2)], 2))


@sick(
    "stale-second-moment",
    "update-too-small",
    where="all layers from step 30 on: Adam still divides by the squares of gradients of a summed loss",
    cure="take the mean of the errors in the first stage too, or begin with a new optimizer at step 30",
)
def turns_of_starlings(folder, ill):
    seeded(2151)
    net = Flock()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def error(step):
        birds = torch.randn(16, 9, 4)
        gap = birds[:, None, :, :2] - birds[:, :, None, :2]
        near = torch.exp(-gap.square().sum(3))[..., None]
        turns = (near * (birds[:, None, :, 2:] - birds[:, :, None, 2:])).mean(2) - (near * gap).mean(2)
        return F.mse_loss(net(birds), 4 * turns, reduction="none")

    def loss_of(step):
        errors = error(step)
        return (errors.sum() if ill and step < 30 else errors.mean()), {"error": errors.mean().detach()}

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(lambda step: error(step).mean(), 12))
