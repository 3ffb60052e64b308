"""A policy for a broom, and words by their neighbours."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from unseen import dense, fit, healthy, seeded
from unseen.tasks import tend


def pushed(at, right):
    """A cart with a broom on it, a fiftieth of a second later; whether it has fallen."""
    x, v, a, w = at.unbind(1)
    force = 20 * right.float() - 10
    part = (force + 0.05 * w**2 * a.sin()) / 1.1
    turn = (9.8 * a.sin() - a.cos() * part) / (0.5 * (4 / 3 - 0.1 * a.cos() ** 2 / 1.1))
    speed = part - 0.05 * turn * a.cos() / 1.1
    at = torch.stack([x + 0.02 * v, v + 0.02 * speed, a + 0.02 * w, w + 0.02 * turn], 1)
    return at, (at[:, 0].abs() > 2.4) | (at[:, 2].abs() > 0.21)


def started(n):
    return 0.1 * torch.rand(n, 4) - 0.05


@healthy(gain=0.4)
def broom_balanced_on_a_cart(folder):
    """Proximal policy optimization on sixteen carts at once; the score is the share of 200 steps that are missed."""
    seeded(10028)
    net = nn.ModuleDict({"actor": dense(4, 64, 64, 2, act=nn.Tanh), "critic": dense(4, 64, 64, 1, act=nn.Tanh)})
    for part, last in (("actor", 0.01), ("critic", 1.0)):
        for i, layer in enumerate(net[part][::2]):
            nn.init.orthogonal_(layer.weight, last if i == 2 else 2**0.5)
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adam(net.parameters(), lr=1.5e-3, eps=1e-5)
    steps, state = 480, {"at": started(16), "batches": [], "upright": 0.0}

    @torch.no_grad()
    def collect(length=64):
        at, seen, done, taken, chance, worth = state["at"], [], [], [], [], []
        for _ in range(length):
            policy = torch.distributions.Categorical(logits=net["actor"](at))
            right = policy.sample()
            seen.append(at), taken.append(right), chance.append(policy.log_prob(right))
            worth.append(net["critic"](at)[:, 0])
            at, fallen = pushed(at, right)
            fallen |= torch.rand(16) < 0.002
            at = torch.where(fallen[:, None], started(16), at)
            done.append(fallen.float())
        state["at"], ahead, gain = at, net["critic"](at)[:, 0], torch.zeros(16)
        gains = []
        for t in reversed(range(length)):
            step = 0.1 + 0.98 * ahead * (1 - done[t]) - worth[t]
            gain = step + 0.98 * 0.95 * (1 - done[t]) * gain
            ahead = worth[t]
            gains.insert(0, gain)
        rows = [torch.cat(part) for part in (seen, taken, chance, gains, worth)]
        state["upright"] = 1 / max(1e-3, float(torch.stack(done).mean()))
        for _ in range(4):
            for some in torch.randperm(len(rows[0])).chunk(4):
                state["batches"].append([row[some] for row in rows])

    def one(step):
        optimizer.param_groups[0]["lr"] = 1.5e-3 * (1 - step / steps)
        if not state["batches"]:
            collect()
        at, right, chance, gain, worth = state["batches"].pop(0)
        policy, value = torch.distributions.Categorical(logits=net["actor"](at)), net["critic"](at)[:, 0]
        ratio = (policy.log_prob(right) - chance).exp()
        better = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy_loss = -torch.min(ratio * better, ratio.clamp(0.8, 1.2) * better).mean()
        value_loss = 0.5 * F.mse_loss(value, gain + worth)
        entropy = policy.entropy().mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "value_loss": value_loss, "entropy": entropy, "episode_length": state["upright"]}

    begin = started(64)

    @torch.no_grad()
    def score():
        at, upright, total = begin, torch.ones(64), 0.0
        for _ in range(200):
            at, fallen = pushed(at, net["actor"](at).argmax(1))
            upright = upright * ~fallen
            total += float(upright.mean()) / 200
        return 1 - total

    return tend(folder, net, optimizer, one, steps, score)


class Neighbours(nn.Module):
    """A table for a word and one for what stands near, both with sparse slopes."""

    def __init__(self, kinds, width=24):
        super().__init__()
        self.word, self.near = nn.Embedding(kinds, width, sparse=True), nn.Embedding(kinds, width, sparse=True)
        nn.init.uniform_(self.word.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.near.weight)

    def forward(self, word, near, other):
        at = self.word(word)
        true = (at * self.near(near)).sum(1)
        false = (self.near(other) @ at[:, :, None])[..., 0]
        return -(F.logsigmoid(true) + F.logsigmoid(-false).sum(1)).mean()


@healthy(gain=0.25)
def herbs_that_share_a_recipe(folder):
    """Skip-grams with four words that do not stand near, in sparse tables (SparseAdam)."""
    seeded(10029)
    kinds, topics = 300, 12
    common = 1 / torch.arange(3.0, kinds + 3)
    shares = common * torch.where(torch.rand(topics, kinds) < 0.12, 1.0, 0.01)
    seldom = shares.sum(0) ** 0.75

    def pairs(n):
        both = torch.multinomial(shares[torch.randint(topics, (n,))], 2, replacement=True)
        return both[:, 0], both[:, 1], torch.multinomial(seldom, 4 * n, replacement=True).view(n, 4)

    net, test = Neighbours(kinds), pairs(3000)
    optimizer = torch.optim.SparseAdam(list(net.parameters()), lr=1e-2)

    def score():
        with torch.no_grad():
            return float(net(*test))

    return fit(folder, net, optimizer, lambda step: net(*pairs(256)), 500, score=score,
               schedule=CosineAnnealingLR(optimizer, 500))  # fmt: skip
