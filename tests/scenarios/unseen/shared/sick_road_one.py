"""Sick trainings after public threads: two views, a table, adapters and a policy with an entropy bonus."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from unseen import dense, fit, seeded, sick
from unseen.tasks import tend


# https://github.com/lucidrains/byol-pytorch/issues/39
@sick(
    "lr-too-high",
    "update-too-large",
    where="all layers, from the first steps on: a learning rate of 0.2 that was meant for another optimizer",
    cure="a learning rate for Adam, 1e-3 or less, instead of the one that the paper gives for LARS",
)
def pebbles_photographed_twice(folder, ill):
    seeded(3589)
    lift, clutter = torch.randn(3, 24), torch.randn(8, 24)

    def views(rows):
        shape = torch.randn(rows, 3)
        one, two = (torch.tanh(shape @ lift) + 0.5 * torch.randn(rows, 8) @ clutter for _ in range(2))
        return shape, one, two

    encoder = nn.Sequential(dense(24, 64, 64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16))
    online = nn.ModuleDict({"encoder": encoder, "predictor": dense(16, 32, 16)})
    target = copy.deepcopy(encoder).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=0.2 if ill else 2e-3, weight_decay=1e-6)

    def apart(a, b):
        return 2 - 2 * F.cosine_similarity(online["predictor"](encoder(a)), target(b).detach(), dim=1).mean()

    def one(step):
        _, a, b = views(64)
        loss = apart(a, b) + apart(b, a)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), encoder.parameters(), strict=True):
                old.lerp_(new, 0.02)
        return {"loss": loss}

    def score():
        with torch.no_grad():
            (learn, a, _), (test, b, _) = views(60), views(1024)
            a, b = (F.pad(F.normalize(encoder[0](x), dim=1), (0, 1), value=1.0) for x in (a, b))
            way = torch.linalg.solve(a.T @ a + 0.1 * torch.eye(17), a.T @ learn)
            return float((b @ way - test).square().mean())

    return tend(folder, online, optimizer, one, 400, score)


# https://github.com/ludwig-ai/ludwig/issues/1677
@sick(
    "weight-decay-too-strong",
    "weights-shrink",
    where="all weights from the first steps on: the L2 term with a factor of 1 is far larger than the cross-entropy",
    cure="leave the L2 term out of the loss, or give it a factor of 1e-4 or less",
)
def mushrooms_by_cap_and_gills(folder, ill):
    seeded(3590)
    ways = torch.randn(10, 12)

    def draw(rows):
        x = torch.randn(rows, 10)
        return x, ((x @ ways).sin().sum(1) > 0).long() + (x[:, 0] * x[:, 1] > 0).long()

    net = dense(10, 64, 64, 3, norm=nn.BatchNorm1d)
    regularization_lambda = 1.0 if ill else 0.0

    def loss_of(step):
        x, y = draw(128)
        fitted = F.cross_entropy(net(x), y)
        penalty = sum(p.square().sum() for p in net.parameters())
        return fitted + regularization_lambda * penalty, {"cross_entropy": fitted}

    def score():
        net.eval()
        with torch.no_grad():
            x, y = draw(2048)
            value = float(F.cross_entropy(net(x), y))
        net.train()
        return value

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=5e-3), loss_of, 400, score=score)


class Adapted(nn.Module):
    """A frozen linear layer with a correction of low rank."""

    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + 2 * self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.then = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x)
        x = x + F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h))
        return x + self.narrow(F.gelu(self.wide(self.then(x))))


class Reader(nn.Module):
    def __init__(self, kinds, width=32, classes=4):
        super().__init__()
        self.embed, self.place = nn.Embedding(kinds, width), nn.Parameter(0.5 * torch.randn(8, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, classes)
        self.thrifty = self.inputs_need_gradients = False

    def forward(self, tokens):
        x = self.embed(tokens) + self.place
        if self.inputs_need_gradients:
            x.requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.thrifty else block(x)
        return self.head(x.mean(1))


# https://github.com/lm-sys/FastChat/pull/1489
@sick(
    "no-gradient",
    where="the low-rank adapters of both blocks, in every step: checkpointed blocks whose input asks for no gradient",
    cure="let the embedding's output ask for gradients (enable_input_require_grads), or checkpoint without re-entry",
)
def tram_tickets_of_another_city(folder, ill):
    seeded(3591)
    first, then = torch.randint(4, (12,)), torch.randint(4, (12,))

    def draw(groups, rows=64):
        tokens = torch.randint(12, (rows, 8))
        return tokens, (groups[tokens[:, 0]] + groups[tokens[:, -1]]) % 4

    net = Reader(12)
    before = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(250):
        tokens, y = draw(first)
        before.zero_grad()
        F.cross_entropy(net(tokens), y).backward()
        before.step()

    net.requires_grad_(False)
    for block in net.blocks:
        for name in ("q", "k", "v", "wide", "narrow"):
            setattr(block, name, Adapted(getattr(block, name)))
    net.head.requires_grad_(True)
    net.thrifty = True
    net.inputs_need_gradients = not ill

    def loss_of(step):
        tokens, y = draw(then)
        return F.cross_entropy(net(tokens), y)

    def score():
        with torch.no_grad():
            tokens, y = draw(then, 2048)
            return float(F.cross_entropy(net(tokens), y))

    wanted = [p for p in net.parameters() if p.requires_grad]
    return fit(folder, net, torch.optim.AdamW(wanted, lr=5e-3, weight_decay=0.0), loss_of, 250, score=score)


# https://github.com/MrSyee/pg-is-all-you-need/issues/37
@sick(
    "wrong-sign",
    where="the entropy term of the policy's loss: the entropy is minimised, and falls to nothing in the first steps",
    cure="subtract the entropy from the loss: a bonus, not a fine",
)
def a_potter_at_the_wheel(folder, ill):
    seeded(3592)
    best = dense(4, 16, 1, act=nn.Tanh)
    actor, critic = dense(4, 48, 2, act=nn.Tanh), dense(4, 48, 1, act=nn.Tanh)
    net = nn.ModuleDict({"actor": actor, "critic": critic})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    entropy_weight = 0.03

    def wanted(state):
        with torch.no_grad():
            return 3 + 2 * best(state)[:, 0]

    def chosen(state):
        mean, spread = actor(state).unbind(1)
        return torch.distributions.Normal(mean, (2 * spread.tanh() - 1).exp())

    def paid(state, speed):
        return (-2 * (speed - wanted(state)).square()).exp()

    def one(step):
        state = torch.randn(64, 4)
        choice = chosen(state)
        speed = choice.sample()
        value = critic(state)[:, 0]
        reward = paid(state, speed)
        entropy = choice.entropy().mean()
        policy_loss = -((reward - value).detach() * choice.log_prob(speed)).mean()
        policy_loss = policy_loss + (entropy_weight if ill else -entropy_weight) * entropy
        value_loss = F.smooth_l1_loss(value, reward)
        loss = policy_loss + value_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "reward": reward.mean(),
                "entropy": entropy}  # fmt: skip

    states = torch.randn(1024, 4)

    def score():
        with torch.no_grad():
            return 1 - float(paid(states, actor(states)[:, 0]).mean())

    return tend(folder, net, optimizer, one, 600, score)
