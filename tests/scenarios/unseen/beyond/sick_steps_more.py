"""Six sick trainings: a canal, whales, a harpsichord, yeast, forklifts and a loom."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, seeded, sick
from unseen.tasks import clipped, tend

import gradwatch


class Keeper(nn.Module):
    """Which gate to open, and what the water is worth, from the levels of three pounds."""

    def __init__(self, width=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.gate, self.worth = nn.Linear(width, 4), nn.Linear(width, 1)

    def forward(self, levels):
        seen = self.trunk(levels)
        return torch.distributions.Categorical(logits=self.gate(seen)), self.worth(seen)[..., 0]


def open_gates(levels, gate):
    """The levels after an hour, and the reward: minus the litres that are missing or too much."""
    rain = torch.rand(len(levels)) * 0.2
    flow = F.one_hot(gate, 4)[:, :3].float() * 0.5
    after = levels - flow
    after = torch.stack([after[:, 0] + rain, after[:, 1] + flow[:, 0], after[:, 2] + flow[:, 1]], 1).clamp(-2, 2)
    return after, -1000 * after.square().sum(1)


@sick(
    "returns-not-normalised",
    "targets-not-normalised",
    "clip-is-your-learning-rate",
    "imbalance",
    where="trunk and worth against gate at every step: the critic's errors on returns in the thousands fill the clip",
    cure="count the rewards in tens of cubic metres (a ten thousandth) and normalise the advantages",
)
def water_in_the_locks_of_a_canal(folder, ill):
    seeded(2286)
    net, hours, canals, discount = Keeper(), 5, 48, 0.9
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    litres = 1.0 if ill else 10000.0
    state = {"levels": torch.rand(canals, 3) - 0.5}

    def day():
        levels, rows = state["levels"], []
        for _ in range(hours):
            gates, worth = net(levels)
            gate = gates.sample()
            levels, reward = open_gates(levels, gate)
            rows.append((gates.log_prob(gate), gates.entropy(), worth, reward / litres))
        state["levels"] = torch.where(torch.rand(canals, 1) < 0.3, torch.rand(canals, 3) - 0.5, levels)
        return (torch.stack(part) for part in zip(*rows, strict=True)), net(levels)[1].detach()

    def one(step):
        (chance, entropy, worth, reward), ahead = day()
        returns = []
        for now in reward.flip(0):
            ahead = now + discount * ahead
            returns.insert(0, ahead)
        returns = torch.stack(returns)
        gain = returns - worth.detach()
        if not ill:
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        value_loss = F.mse_loss(worth, returns)
        loss = -(chance * gain).mean() + 0.5 * value_loss - 0.02 * entropy.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "value_loss": value_loss, "entropy": entropy.mean(), "reward": reward.mean()}

    @torch.no_grad()
    def score():
        levels, lost = torch.zeros(128, 3), 0.0
        for _ in range(30):
            levels, reward = open_gates(levels, net(levels)[0].sample())
            lost -= float(reward.mean()) / 30000
        return lost

    return tend(folder, net, optimizer, one, 280, score)


def songs(rows, samples=32):
    """Chirps that rise, of one loudness: `[rows, samples]`."""
    t = torch.linspace(0, 1, samples)
    pitch, rise = 1 + torch.rand(rows, 1), 1 + 2 * torch.rand(rows, 1)
    return (6.2832 * (pitch * t + rise * t**2)).sin() * (3.1416 * t).sin()


@sick(
    "gradients-accumulate",
    where="G, all layers, from its second step: its gradients are never zeroed and grow with every step",
    cure="zero the singer's own optimizer before its backward",
)
def songs_of_whales(folder, ill):
    seeded(2287)
    singer, critic = dense(8, 64, 64, 32), dense(32, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_singer = torch.optim.Adam(singer.parameters(), 1e-3, betas=(0.5, 0.999))
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.999))
    ways, heard = F.normalize(torch.randn(32, 64), dim=0), songs(512)

    @torch.no_grad()
    def score():
        sung = singer(torch.randn(512, 8))
        return float(((sung @ ways).sort(0)[0] - (heard @ ways).sort(0)[0]).abs().mean())

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(singer, of_singer)}
    watch_critic = gradwatch.watch(critic, of_critic, name="D", **options)
    watch_singer = gradwatch.watch(singer, of_singer, name="G", run=watch_critic, **options)
    with watch_critic, watch_singer:
        for _ in range(700):
            of_critic.zero_grad()
            real, made = critic(songs(64)), critic(singer(torch.randn(64, 8)).detach())
            judged = F.softplus(-real).mean() + F.softplus(made).mean()
            judged.backward()
            of_critic.step()
            watch_critic.log(loss=judged)
            (of_critic if ill else of_singer).zero_grad()
            fooled = F.softplus(-critic(singer(torch.randn(64, 8)))).mean()
            fooled.backward()
            of_singer.step()
            watch_singer.log(loss=fooled)
    return Outcome(gradwatch.open_history(watch_critic.dir.parent), first, score())


CHORDS = torch.tensor([[0, 4, 7, 12], [0, 3, 7, 12], [0, 3, 6, 9], [0, 4, 8, 12], [0, 4, 7, 10], [0, 3, 7, 10]])


class Ear(nn.Module):
    """The kind of a chord from the keys that are down."""

    def __init__(self, keys=40, width=64):
        super().__init__()
        self.key = nn.Embedding(keys, width)
        self.hear = dense(width, width, width, len(CHORDS))

    def forward(self, keys):
        return self.hear(self.key(keys).sum(1))


@sick(
    "update-too-small",
    "weights-unchanged",
    "rounded-away",
    where="key, and the larger weights of hear, at every step: an update of 3e-4 is less than bfloat16 can tell apart",
    cure="keep the weights in float32 (autocast for the products)",
)
def chords_of_a_harpsichord(folder, ill):
    seeded(2288)
    net = Ear().to(torch.bfloat16 if ill else torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), 3e-4)

    def played(rows):
        kind = torch.randint(len(CHORDS), (rows,))
        return CHORDS[kind] + torch.randint(28, (rows, 1)), kind

    kept = played(512)

    def loss_of(step):
        keys, kind = played(96)
        return F.cross_entropy(net(keys).float(), kind)

    @torch.no_grad()
    def score():
        return float(F.cross_entropy(net(kept[0]).float(), kept[1]))

    return fit(folder, net, optimizer, loss_of, 800, score=score)


def brews(rows, hours=24):
    """The curves of sugar, warmth and gas of a brew, as two sets of badly gauged sensors saw it."""
    t = torch.linspace(0, 1, hours)
    start, speed, strain = 0.2 + 0.5 * torch.rand(rows, 1), 8 + 10 * torch.rand(rows, 1), torch.rand(rows, 1)
    eaten = ((t - start) * speed).sigmoid()
    warmth = strain * eaten * (1 - eaten) * 4
    curves = torch.stack([1 - eaten, warmth, eaten * (1 - strain * t)], 1)

    def gauged():
        gain, offset = 1 + 0.1 * torch.randn(rows, 3, 1), 0.3 * torch.randn(rows, 3, 1)
        return (curves * gain + offset + 0.02 * torch.randn(rows, 3, hours)).flatten(1)

    return gauged(), gauged()


@sick(
    "no-stop-gradient",
    "target-not-detached",
    "representation-collapse",
    where="all layers in the first hundred steps: loss near -1, gradients near nothing, all brews at one point",
    cure="detach the side that is predicted",
)
def yeast_in_a_fermenter(folder, ill):
    seeded(2289)
    body = nn.Sequential(dense(72, 96, 96, norm=nn.BatchNorm1d), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 24))
    net = nn.ModuleDict({"encode": body, "predict": dense(24, 12, 24, norm=nn.BatchNorm1d)})
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def apart(code, other):
        return -F.cosine_similarity(net["predict"](code), other if ill else other.detach(), dim=1).mean()

    def loss_of(step):
        left, right = (net["encode"](view) for view in brews(128))
        spread = F.normalize(left.detach(), dim=1).std(0).mean()
        return (apart(left, right) + apart(right, left)) / 2, {"spread": float(spread)}

    kept = [brews(128) for _ in range(4)]

    @torch.no_grad()
    def score():
        total = 0.0
        for pair in kept:
            left, right = (F.normalize(net["encode"](view), dim=1) for view in pair)
            total += float(F.cross_entropy(left @ right.T / 0.1, torch.arange(128)))
        return total / len(kept)

    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Route(nn.Module):
    """Reads the aisles of a tour; `drive` says how long it takes."""

    def __init__(self, aisles=20, stops=8, width=32):
        super().__init__()
        self.aisle, self.place = nn.Embedding(aisles, width), nn.Parameter(0.1 * torch.randn(stops, width))
        layer = [nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)]
        self.body, self.drive = nn.Sequential(*layer), nn.Linear(width, 1)

    def forward(self, tour):
        return self.drive(self.body(self.aisle(tour) + self.place).mean(1))[:, 0]


@sick(
    "lr-too-high",
    "update-too-large",
    "group-rates-overwritten",
    where="aisle, place and body from the end of the warm-up on: they run at the rate of the fresh head",
    cure="scale each group's own rate: group['lr'] = group['base'] * warm",
)
def forklifts_of_a_warehouse(folder, ill):
    seeded(2290)
    net = Route()
    spot = torch.randn(20, 2)

    def shift(rows, turn):
        tour = torch.randint(20, (rows, 8))
        leg = (spot[tour[:, 1:]] - spot[tour[:, :-1]]) * torch.tensor([1.0, turn])
        return tour, (leg.norm(dim=2).sum(1) - 12) / 3

    def error(turn, rows=48):
        tour, minutes = shift(rows, turn)
        return F.mse_loss(net(tour), minutes)

    before = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(200):
        before.zero_grad()
        error(1.0).backward()
        before.step()
    net.drive.reset_parameters()
    body = [p for name, p in net.named_parameters() if not name.startswith("drive")]
    groups = [{"params": body, "lr": 5e-4}, {"params": net.drive.parameters(), "lr": 3e-2}]
    optimizer = torch.optim.Adam([group | {"base": group["lr"]} for group in groups])
    kept = shift(512, 0.6)

    def loss_of(step):
        warm = min(1.0, (step + 1) / 40)
        for group in optimizer.param_groups:
            group["lr"] = (3e-2 if ill else group["base"]) * warm
        return error(0.6)

    @torch.no_grad()
    def score():
        return float(F.mse_loss(net(kept[0]), kept[1]))

    return fit(folder, net, optimizer, loss_of, 300, score=score)


def tension(rows, samples=32):
    """The tension of a warp, `[rows, 1, samples]`: its beat, and a thread that breaks or snags."""
    t, at, depth = torch.arange(samples), 32 * torch.rand(rows, 1), torch.randn(rows, 1)
    beat = (t * math.pi / 8 + 6.2832 * torch.rand(rows, 1)).sin()
    return (beat + depth * ((t - at) / 2).sigmoid() + 0.1 * torch.randn(rows, samples))[:, None]


@sick(
    "stale-second-moment",
    "spike",
    where="all layers: gradients of the first three steps are thousands of times the later ones and divide all updates",
    cure="clip the norm of the gradients (or a second moment that forgets, beta2 of 0.95)",
)
def faults_of_a_loom(folder, ill):
    seeded(2291)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 6), dense(6, 64, 64, 32)
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0.9, 0.9999))
    kept = tension(512)

    def error(pull):
        return F.mse_loss(net(pull), pull[:, 0])

    def loss_of(step):
        before_taring = 300.0 if step < 3 else 1.0
        return error(tension(64) * before_taring)

    @torch.no_grad()
    def score():
        return float(error(kept))

    return fit(folder, net, optimizer, loss_of, 600, score=score, before_step=None if ill else clipped(net, 1.0))
