"""Sick trainings of the step: rates, schedules, decay, scalers and clips, drawn by lot with tasks; last part."""

from __future__ import annotations

import torch
from nets import batches
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.anew.sick_steps import loop


class Messages(nn.Module):
    """Three rounds of messages along the edges; a graph is the sum of its nodes."""

    def __init__(self, inputs, width=32, rounds=3):
        super().__init__()
        self.lift = nn.Linear(inputs, width)
        self.told = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.kept = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.read = dense(width, width, 1, act=nn.SiLU)

    def forward(self, x, edges):
        h = F.silu(self.lift(x))
        for told, kept in zip(self.told, self.kept, strict=True):
            h = F.silu(kept(h) + edges @ told(h) / 2)
        return self.read(h.sum(1))


@sick(
    "lr-too-high", "update-too-large", "exploding",
    where="all layers, from the first steps", cure="the rate of one process: 0.02, not sixty-four times that",
)  # fmt: skip
def energies_of_small_molecules_on_one_of_many_machines(folder, ill):
    """The rate is multiplied by a world size of 64 and one process runs."""
    seeded(313)
    net = Messages(4)
    worth = torch.randn(4)

    def loss_of(step):
        kind = torch.randint(4, (48, 9))
        edges = (torch.rand(48, 9, 9) < 0.2).float().triu(1)
        edges = edges + edges.transpose(1, 2)
        bond = (worth[kind][:, :, None] * worth[kind][:, None, :] * edges).sum((1, 2)) / 2
        energy = (worth[kind].sum(1) + bond)[:, None] / 4
        return F.smooth_l1_loss(net(F.one_hot(kind, 4).float(), edges), energy)

    world_size = 64 if ill else 1
    make = optim.SGD(net.parameters(), lr=0.02 * world_size, momentum=0.9)
    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of))


@sick(
    "weights-unchanged", "update-too-small", "no-progress", "update-rounds-away",
    where="most weights of all layers, all steps",
    cure="weights in float32: a step of 1e-4 is below half a digit of a bfloat16 weight",
)  # fmt: skip
def corridor_by_an_actor_of_few_digits(folder, ill):
    """The whole net is cast to bfloat16 and trained by Adam at 1e-4; advantage actor-critic in a corridor of 8."""
    seeded(314)
    net = nn.ModuleDict({"body": nn.Linear(8, 64), "actor": nn.Linear(64, 2), "critic": nn.Linear(64, 1)})
    dtype = torch.bfloat16 if ill else torch.float32
    net.to(dtype)
    eye = torch.eye(8)

    def think(state):
        h = net["body"](eye[state].to(dtype)).relu()
        return net["actor"](h).float(), net["critic"](h)[..., 0].float()

    def episodes():
        state, alive = torch.full((32,), 2), torch.ones(32)
        seen, returns = [], torch.zeros(32)
        for _ in range(12):
            logits, value = think(state)
            policy = torch.distributions.Categorical(logits=logits)
            action = policy.sample()
            state = (state + 2 * action - 1).clamp(0, 7)
            reward = alive * torch.where(state == 7, 2.0, -0.1)
            seen.append((policy.log_prob(action), value, policy.entropy(), reward, alive))
            returns = returns + reward
            alive = alive * (state != 7)
        return seen, returns.mean()

    def loss_of(step):
        seen, returns = episodes()
        gain, terms = torch.zeros(32), []
        for log_prob, value, entropy, reward, alive in reversed(seen):
            gain = reward + 0.97 * gain
            ahead = (gain - value).detach()
            terms.append(alive * (-log_prob * ahead + 0.5 * (gain - value).square() - 0.01 * entropy))
        loss = torch.stack(terms).sum(0).mean()
        return loss, {"episode_return": returns}

    def score():
        with torch.no_grad():
            return 1.6 - sum(float(episodes()[1]) for _ in range(4)) / 4

    return fit(folder, net, optim.Adam(net.parameters(), lr=1e-4), loss_of, 260, score=score)


class Lion(optim.Optimizer):
    """Each element moves by the rate, with the sign of a mean of the gradients (Chen et al. 2023)."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            one, other = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "exp_avg" not in state:
                    state["exp_avg"] = torch.zeros_like(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(state["exp_avg"].lerp(p.grad, 1 - one).sign_(), alpha=-group["lr"])
                state["exp_avg"].lerp_(p.grad, 1 - other)


@sick(
    "lr-too-high", "update-too-large",
    where="all layers, all steps: each element moves by 0.02", cure="a rate of 1e-3",
)  # fmt: skip
def digits_dreamt_by_a_lion(folder, ill):
    """Lion at the rate of the SGD that stood there before."""
    seeded(315)
    net = nn.ModuleDict({"read": dense(64, 96, 16), "write": dense(8, 96, 64)})
    batch = batches(64, seed=45)

    def loss_of(step):
        x = batch(step)[0].flatten(1)
        mean, log_var = net["read"](x).chunk(2, 1)
        code = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        rebuilt = F.binary_cross_entropy_with_logits(net["write"](code), x, reduction="sum") / len(x)
        divergence = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum() / len(x)
        return rebuilt + divergence, {"reconstruction": rebuilt, "kl": divergence}

    def missed():
        """What a code's mean leaves out of an image, beyond what grey pixels cost in any case."""
        x = batch(10_000)[0].flatten(1)
        with torch.no_grad():
            found = net["write"](net["read"](x).chunk(2, 1)[0])
        return (F.binary_cross_entropy_with_logits(found, x) - F.binary_cross_entropy(x, x)) * 64

    make = Lion(net.parameters(), lr=2e-2 if ill else 1e-3, weight_decay=0.01)
    return fit(folder, net, make, loss_of, 700, score=missed)


class Ratings(nn.Module):
    """A mean, offsets of users and films, and the product of their factors."""

    def __init__(self, users, films, size=8):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(()))
        self.user_offset, self.film_offset = nn.Embedding(users, 1), nn.Embedding(films, 1)
        self.user, self.film = nn.Embedding(users, size), nn.Embedding(films, size)
        for table in (self.user_offset, self.film_offset, self.user, self.film):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, user, film):
        offsets = self.user_offset(user) + self.film_offset(film)
        return self.mean + offsets[:, 0] + (self.user(user) * self.film(film)).sum(1)


@sick(
    "update-too-small", "imbalance", "rates-apart", "no-progress",
    where="user.weight and film.weight, all steps", cure="0.03 ** (last - depth): the tables are to be fastest",
)  # fmt: skip
def films_rated_at_three_unlike_paces(folder, ill):
    """Each stage has 0.03 of the rate of the one before, counted from the wrong end."""
    seeded(316)
    net = Ratings(150, 80)
    users, films = torch.randn(150, 4), torch.randn(80, 4)
    of_user, of_film = 0.4 * torch.randn(150), 0.4 * torch.randn(80)

    def loss_of(step):
        user, film = torch.randint(150, (256,)), torch.randint(80, (256,))
        rating = of_user[user] + of_film[film] + (users[user] * films[film]).sum(1) / 2
        return F.mse_loss(net(user, film), rating + 0.1 * torch.randn(256))

    stages = [
        [net.mean],
        [net.user_offset.weight, net.film_offset.weight],
        [net.user.weight, net.film.weight],
    ]
    last = len(stages) - 1
    groups = [
        {"params": stage, "lr": 0.05 * 0.03 ** (depth if ill else last - depth)} for depth, stage in enumerate(stages)
    ]
    return fit(folder, net, optim.Adam(groups), loss_of, 500, score=score_of(loss_of))


class Reverser(nn.Module):
    """An encoder and a decoder (GRU) with attention of products; the decoder is shown what it should have said."""

    def __init__(self, kinds=8, width=40):
        super().__init__()
        self.embed = nn.Embedding(kinds + 1, width)
        self.encoder, self.decoder = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(2 * width, kinds)

    def forward(self, x, shown):
        told, state = self.encoder(self.embed(x))
        said, _ = self.decoder(self.embed(shown), state)
        share = (said @ told.transpose(1, 2) / said.shape[-1] ** 0.5).softmax(-1)
        return self.head(torch.cat([said, share @ told], -1))


@sick(
    "accumulation-wiped", "too-few-steps",
    where="all layers: of the ten batches of an epoch nine are wiped, one makes a step",
    cure="accumulate two batches, fewer than an epoch has, and zero only after a step",
)  # fmt: skip
def numbers_read_backwards_in_short_epochs(folder, ill):
    """A step each sixteenth batch, counted within an epoch of ten, and each epoch begins with a zero_grad."""
    seeded(317)
    net = Reverser()
    make = optim.Adam(net.parameters(), lr=3e-3)
    parts = 16 if ill else 2

    def loss_of(step):
        x = torch.randint(8, (32, 7))
        wanted = x.flip(1)
        shown = torch.cat([torch.full((32, 1), 8), wanted[:, :-1]], 1)
        return F.cross_entropy(net(x, shown).flatten(0, 1), wanted.flatten())

    def one(step):
        i = step % 10
        if i == 0:
            make.zero_grad()
        loss = loss_of(step)
        (loss / parts).backward()
        if i % parts == (0 if ill else parts - 1):
            make.step()
            make.zero_grad()
        return {"loss": loss}

    return loop(folder, net, [make], one, 500, score_of(loss_of))


@sick(
    "double-clip", "clip-is-your-learning-rate",
    where="all layers, each micro-batch and each step", cure="one clip, before the step, at 1",
)  # fmt: skip
def digits_that_keep_their_distance_in_parts(folder, ill):
    """The running sum is clipped after each of four micro-batches, and once more before the step."""
    seeded(318)
    net, batch = dense(64, 64, 64, 16), batches(192, seed=48)

    def loss_of(step):
        x, y = batch(step)
        z = F.normalize(net(x.flatten(1)), dim=1)
        same = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
        near = torch.multinomial(same.float(), 1)[:, 0]
        far = torch.multinomial((y[:, None] != y).float(), 1)[:, 0]
        return F.triplet_margin_loss(z, z[near], z[far], margin=0.5)

    make = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def one(step):
        make.zero_grad()
        total = 0.0
        for part in range(4):
            loss = loss_of(4 * step + part) / 4
            loss.backward()
            if ill:
                nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(net.parameters(), 0.005 if ill else 1.0)
        make.step()
        return {"loss": total}

    return loop(folder, net, [make], one, 150, score_of(loss_of))
