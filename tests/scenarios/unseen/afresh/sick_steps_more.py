"""Sick trainings of the group `afresh`: the step, second part (copies, resuming, schedules, signs, zeroing)."""

from __future__ import annotations

import copy

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.afresh.sick_steps import drive

# -------------------------------------------------------------------------------------------------- six arms, a context


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(dense(8, 48, 48, act=nn.Tanh), nn.Tanh())
        self.actor, self.critic = nn.Linear(48, 6), nn.Linear(48, 1)

    def forward(self, x):
        h = self.body(x)
        return torch.distributions.Categorical(logits=self.actor(h)), self.critic(h)[:, 0]


@torch.no_grad()
def soft_update(source, target, tau):
    """`target` goes a share `tau` of the way to `source`."""
    for a, b in zip(source.parameters(), target.parameters(), strict=True):
        b.lerp_(a, tau)


@sick(
    "weights-put-back", "weights-unchanged", "update-too-small",
    where="all layers, after each step", cure="soft_update(net, slow, tau): the slow copy follows, not the other way",
)  # fmt: skip
def six_arms_and_a_slow_second_opinion(folder, ill):
    """The slow copy gives the baseline; the arguments of the update are the wrong way round."""
    seeded(7106)
    net, way = ActorCritic(), torch.randn(8, 6)
    slow = copy.deepcopy(net).requires_grad_(False)
    states = torch.randn(512, 8)

    def worth(x):
        return (x @ way / 2).sin()

    def loss_of(step):
        x = torch.randn(64, 8)
        policy, value = net(x)
        arm = policy.sample()
        reward = worth(x).gather(1, arm[:, None])[:, 0] + 0.2 * torch.randn(64)
        gain = reward - slow(x)[1]
        loss = -(policy.log_prob(arm) * gain).mean() + 0.5 * F.mse_loss(value, reward)
        return loss - 0.005 * policy.entropy().mean(), {"reward": reward.mean()}

    def score():
        with torch.no_grad():
            worths = worth(states)
            return float((worths.amax(1) - (net(states)[0].probs * worths).sum(1)).mean())

    def follow(step):
        if ill:
            soft_update(slow, net, 0.1)
        else:
            soft_update(net, slow, 0.1)

    make = optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 500, score=score, after_step=follow)


# ------------------------------------------------------------------------------------------------- two views of a motif


class Views(nn.Module):
    """SimCLR: an encoder of a sequence, and a projection of what it says."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 16, 48), nn.ReLU(),
        )  # fmt: skip
        self.project = dense(48, 48, 16)

    def forward(self, x):
        return F.normalize(self.project(self.encoder(x[:, None])), dim=1)


@sick(
    "optimizer-state-lost",
    where="all layers, every second step", cure="keep one optimizer over all shards: its moments begin anew with each",
)  # fmt: skip
def motifs_seen_twice_shard_by_shard(folder, ill):
    """The data come in shards of two batches; the worker that trains on a shard begins with a clean optimizer."""
    seeded(7107)
    net, motifs = Views(), torch.randn(24, 32)
    make = optim.Adam(net.parameters(), 3e-2)
    clean = copy.deepcopy(make.state_dict())

    def view(x):
        kept = (torch.rand_like(x) > 0.1).float()
        return (x * kept + 0.1 * torch.randn_like(x)) * (0.7 + 0.6 * torch.rand(len(x), 1))

    def loss_of(step):
        share = torch.rand(48, 24).pow(4)
        x = share @ motifs
        a, b = net(view(x)), net(view(x))
        logits = a @ b.T / 0.1
        here = torch.arange(48)
        return (F.cross_entropy(logits, here) + F.cross_entropy(logits.T, here)) / 2

    def next_shard(step):
        if ill and step % 2 == 0:
            make.load_state_dict(clean)

    return fit(folder, net, make, loss_of, 300, score=score_of(loss_of), before_backward=next_shard)


# ------------------------------------------------------------------------------------------------------- a daily demand


class Causal(nn.Module):
    """Convolutions that look back only, 1, 2, 4 and 8 steps apart; it names the next value at each place."""

    def __init__(self, width=24):
        super().__init__()
        sizes = [1, width, width, width, width]
        self.layers = nn.ModuleList(nn.Conv1d(sizes[i], width, 3, dilation=2**i) for i in range(4))
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        h = x[:, None]
        for i, layer in enumerate(self.layers):
            out = F.relu(layer(F.pad(h, (2 * 2**i, 0))))
            h = out + h if out.shape == h.shape else out
        return self.head(h)[:, 0]


def demand(batch=16, length=64):
    """A week's and a month's rhythm and a wandering level."""
    at = torch.arange(length + 1.0) + 28 * torch.rand(batch, 1)
    level = 0.045 * torch.randn(batch, length + 1).cumsum(1)
    return level + (at * 6.2832 / 7).sin() + 0.5 * (at * 6.2832 / 28).cos() + 0.1 * torch.randn(batch, length + 1)


@sick(
    "warmup-too-long", "update-too-small", "schedule-restarts", "warmup-restarts",
    where="all layers: the rate goes back to its foot every 8 steps", cure="load the schedule's state with the rest",
)  # fmt: skip
def demand_on_machines_that_are_taken_away(folder, ill):
    """Every 8 steps the machine is taken away and the training goes on from its checkpoint on another."""
    seeded(7108)
    net = Causal()
    make = optim.SGD(net.parameters(), 0.003, momentum=0.9)

    def begin():
        return optim.lr_scheduler.LambdaLR(make, lambda step: min(1.0, (step + 1) / 300))

    plans = [begin()]

    def loss_of(step):
        x = demand()
        return F.mse_loss(net(x[:, :-1]), x[:, 1:])

    def step_of(step):
        if step and step % 8 == 0:
            saved = copy.deepcopy([part.state_dict() for part in (net, make, plans[-1])])
            net.load_state_dict(saved[0])
            make.load_state_dict(saved[1])
            plans.append(begin())
            if not ill:
                plans[-1].load_state_dict(saved[2])
        make.zero_grad()
        loss = loss_of(step)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        make.step()
        plans[-1].step()
        return loss

    return drive(folder, net, make, step_of, 400, score_of(loss_of))


# ----------------------------------------------------------------------------------------------------------------- bars


class Bars(nn.Module):
    """A variational autoencoder of images of eight by eight."""

    def __init__(self, code=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), dense(64, 96, 64), nn.ReLU())
        self.mean, self.spread = nn.Linear(64, code), nn.Linear(64, code)
        self.decoder = dense(code, 64, 96, 64)

    def forward(self, x):
        h = self.encoder(x)
        mean, spread = self.mean(h), self.spread(h)
        z = mean + (0.5 * spread).exp() * torch.randn_like(mean)
        rest = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1)
        return self.decoder(z).view_as(x), rest


@sick(
    "schedule-too-short", "schedule-ran-out", "update-too-small", "weights-unchanged",
    where="all layers, from step 30 on", cure="step the schedule once an epoch: it was meant to fall every ten epochs",
)  # fmt: skip
def bars_coded_in_six_numbers(folder, ill):
    seeded(7109)
    net = Bars()
    make = optim.Adam(net.parameters(), 1e-2)
    plan = optim.lr_scheduler.StepLR(make, step_size=10, gamma=0.1)
    per_epoch = 40

    def loss_of(step):
        place, upright = F.one_hot(torch.randint(8, (64,)), 8), torch.rand(64, 1, 1) < 0.5
        x = torch.where(upright, place[:, None, :], place[:, :, None]).expand(64, 8, 8).float()
        logits, rest = net(x)
        return (F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum((1, 2)) + rest).mean()

    def turn(step):
        if ill or step % per_epoch == per_epoch - 1:
            plan.step()

    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of), after_step=turn)


# ------------------------------------------------------------------------------------------------------------ syllables


class Listener(nn.Module):
    """Frames in, for each the logits of a blank and of five sounds."""

    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(8, 32, 3, padding=1)
        self.memory = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.head = nn.Linear(64, 6)

    def forward(self, x):
        h = F.relu(self.front(x.mT)).mT
        return self.head(self.memory(h)[0])


@sick(
    "wrong-sign", "maximized", "weight-growth",
    where="head, all steps: it climbs while the rest descends", cure="no maximize=True in the group of the head",
)  # fmt: skip
def syllables_by_a_listener_in_two_groups(folder, ill):
    """The head's group was copied from a script in which it played against the rest."""
    seeded(7110)
    net, sounds = Listener(), torch.randn(6, 8)

    def loss_of(step):
        said = torch.randint(1, 6, (16, 4))
        frames = said.repeat_interleave(6, 1)
        frames = torch.where((torch.arange(24) % 6 > 3), torch.zeros_like(frames), frames)
        x = sounds[frames] * (frames > 0)[..., None] + 0.2 * torch.randn(16, 24, 8)
        logs = net(x).log_softmax(2).transpose(0, 1)
        lengths = torch.full((16,), 24), torch.full((16,), 4)
        return F.ctc_loss(logs, said, *lengths, zero_infinity=True)

    body = [*net.front.parameters(), *net.memory.parameters()]
    make = optim.Adam(
        [{"params": body, "lr": 3e-3}, {"params": net.head.parameters(), "lr": 1e-3, "maximize": bool(ill)}]
    )
    return fit(folder, net, make, loss_of, 250, score=score_of(loss_of))


# --------------------------------------------------------------------------------------------------------------- tastes


class Tastes(nn.Module):
    """Factors of people and of songs."""

    def __init__(self, people=120, songs=80, width=8):
        super().__init__()
        self.people, self.songs = nn.Embedding(people, width), nn.Embedding(songs, width)
        for table in (self.people, self.songs):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, person, song):
        return (self.people(person) * self.songs(song)).sum(1)


@sick(
    "gradients-accumulate",
    where="both tables: the gradients grow through each epoch of 50 batches", cure="zero_grad() before each batch",
)  # fmt: skip
def songs_that_people_prefer(folder, ill):
    """Bayesian personalised ranking; `optimizer.zero_grad()` stands in the outer loop."""
    seeded(7111)
    net = Tastes()
    liked = torch.randn(120, 4) @ torch.randn(4, 80)
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def loss_of(step):
        person = torch.randint(120, (256,))
        two = torch.randint(80, (2, 256))
        first = liked[person, two[0]] > liked[person, two[1]]
        better, worse = torch.where(first, two[0], two[1]), torch.where(first, two[1], two[0])
        return -F.logsigmoid(net(person, better) - net(person, worse)).sum() / 8

    def epoch_begins(step):
        if ill and step % 50 == 0:
            make.zero_grad()

    score = score_of(loss_of)
    return fit(folder, net, make, loss_of, 400, score=score, zero_grad=not ill, before_backward=epoch_begins)
