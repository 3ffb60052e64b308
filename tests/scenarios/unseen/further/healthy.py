"""Healthy trainings of every day, first part: gestures, sentences, pictures, a cart and a table."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, mean, seeded
from unseen.tasks import clipped, rounds

import gradwatch


def right(said, y):
    return (said.argmax(-1) == y).float().mean()


def rise_and_fall(optimizer, rise, steps):
    """A linear rise, then a straight line down to nothing."""
    return optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (step + 1) / rise if step < rise else max(0.0, (steps - step) / (steps - rise))
    )


# ----------------------------------------------------------------------------------------------------------- series


class Follower(nn.Module):
    """A GRU over packed rows; its last state is named."""

    def __init__(self, kinds):
        super().__init__()
        self.gru, self.head = nn.GRU(3, 40, batch_first=True), nn.Linear(40, kinds)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.gru(packed)[1][-1])


@healthy(0.5)
def gestures_of_ten_to_thirty_moments(folder):
    """A GRU over packed sequences, RMSprop at a thousandth and a half, a clip at one."""
    seeded(2040)
    net, kinds = Follower(5), 5
    turns = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5])

    def loss_of(step):
        y, lengths = torch.randint(kinds, (48,)), torch.randint(10, 31, (48,))
        time = torch.linspace(0, 6.2832, 30)[None] * turns[y, None] + 6.2832 * torch.rand(48, 1)
        x = torch.stack([time.cos(), time.sin(), (0.5 * time).cos()], 2) + 0.25 * torch.randn(48, 30, 3)
        said = net(x, lengths)
        return F.cross_entropy(said, y), {"accuracy": right(said, y)}

    make = optim.RMSprop(net.parameters(), 1.5e-3)
    return fit(folder, net, make, loss_of, 280, before_step=clipped(net, 1.0))


# -------------------------------------------------------------------------------------------------------- sentences

WORDS, MASK = 60, 0


def letters_home(rows, length=14):
    """Sentences in one of three moods: of each mood's fifteen words, and fourteen that all moods share."""
    y = torch.randint(3, (rows,))
    own = 15 + 15 * y[:, None] + torch.randint(15, (rows, length))
    shared = 1 + torch.randint(14, (rows, length))
    return torch.where(torch.rand(rows, length) < 0.3, own, shared), y


class Encoder(nn.Module):
    """Two layers, norm first; words are guessed at all places, moods at the first."""

    def __init__(self, wide=48, dropped=0.1):
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, wide), nn.Parameter(0.02 * torch.randn(14, wide))
        nn.init.normal_(self.embed.weight, std=0.1)
        layer = nn.TransformerEncoderLayer(wide, 4, 2 * wide, dropped, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(wide), enable_nested_tensor=False)

    def forward(self, x):
        return self.body(self.embed(x) + self.place)


@healthy(0.4)
def moods_of_letters_by_a_reader_of_many(folder):
    """An encoder that has guessed hidden words is tuned whole: AdamW, a rise, a straight fall, a clip at one."""
    seeded(2041)
    body, guess = Encoder(), nn.Linear(48, WORDS)
    before = optim.AdamW([*body.parameters(), *guess.parameters()], 2e-3)
    for _ in range(140):
        x, _ = letters_home(48)
        hidden = torch.rand(x.shape) < 0.15
        loss = F.cross_entropy(guess(body(x.masked_fill(hidden, MASK)))[hidden], x[hidden])
        before.zero_grad()
        loss.backward()
        before.step()
    head = nn.Sequential(nn.Linear(48, 48), nn.Tanh(), nn.Dropout(0.1), nn.Linear(48, 3))
    net = nn.ModuleDict({"body": body, "head": head})

    def loss_of(step):
        x, y = letters_home(32)
        said = net["head"](net["body"](x).mean(1))
        return F.cross_entropy(said, y), {"accuracy": right(said, y)}

    make, steps = optim.AdamW(net.parameters(), 5e-4, weight_decay=0.01), 150
    return fit(
        folder, net, make, loss_of, steps, schedule=rise_and_fall(make, 15, steps), before_step=clipped(net, 1.0)
    )


# ---------------------------------------------------------------------------------------------------------- pictures


@healthy(0.5)
def digits_under_snow_cleaned(folder):
    """A convolving autoencoder that takes noise away: AdamW at two thousandths down a cosine, in shuffled epochs."""
    seeded(2042)
    draw = rounds(32, digits()[0])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(32, 16, 2, 2), nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
    )  # fmt: skip

    def loss_of(step):
        x = draw()[0][:, None]
        return F.mse_loss(net(x + 0.3 * torch.randn_like(x)), x)

    make, steps = optim.AdamW(net.parameters(), 2e-3), 360
    plan = optim.lr_scheduler.CosineAnnealingLR(make, steps)
    return fit(folder, net, make, loss_of, steps, schedule=plan)


# ------------------------------------------------------------------------------------------------------- a cart's pole


class Carts:
    """Many carts with poles (Barto, Sutton and Anderson 1983); an episode ends after two hundred steps at last."""

    def __init__(self, rows):
        self.state, self.age = 0.1 * torch.rand(rows, 4) - 0.05, torch.zeros(rows)
        self.ages = []

    def step(self, act):
        x, v, angle, turn = self.state.unbind(1)
        force = 20.0 * act - 10.0
        push = (force + 0.05 * turn.square() * angle.sin()) / 1.1
        bend = (9.8 * angle.sin() - angle.cos() * push) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
        pull = push - 0.05 * bend * angle.cos() / 1.1
        rates = torch.stack([v, pull, turn, bend], 1)
        self.state, self.age = self.state + 0.02 * rates, self.age + 1
        fell = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.2095)
        late = (self.age >= 200) & ~fell
        beyond = self.state
        over = fell | late
        self.ages += self.age[over].tolist()
        self.state = torch.where(over[:, None], 0.1 * torch.rand_like(beyond) - 0.05, beyond)
        self.age = torch.where(over, 0.0, self.age)
        return beyond, fell, over


def upright(actor):
    """How many of two hundred steps are missing, with acts drawn."""
    carts = Carts(32)
    with torch.no_grad():
        for _ in range(400):
            carts.step(torch.multinomial(actor(carts.state).softmax(1), 1)[:, 0])
    return 200.0 - mean(carts.ages)


@healthy(0.3)
def poles_held_up_by_sixteen_actors_at_once(folder):
    """A2C: sixteen carts, eight steps a time, RMSprop that falls in a line, entropy, a clip at a half."""
    seeded(2043)
    net = nn.ModuleDict({"actor": dense(4, 64, 64, 2, act=nn.Tanh), "critic": dense(4, 64, 64, 1, act=nn.Tanh)})
    for part, gain in (("actor", 0.01), ("critic", 1.0)):
        layers = [m for m in net[part] if isinstance(m, nn.Linear)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
            nn.init.zeros_(layer.bias)
    updates, gamma = 500, 0.98
    make = optim.RMSprop(net.parameters(), 2e-3, alpha=0.99, eps=1e-5)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.1, total_iters=updates)
    first, carts = upright(net["actor"]), Carts(16)
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, make)}
    with gradwatch.watch(net, make, **options) as watch:
        for _ in range(updates):
            seen, acts, beyonds, falls, overs = [], [], [], [], []
            for _ in range(8):
                with torch.no_grad():
                    act = torch.multinomial(net["actor"](carts.state).softmax(1), 1)[:, 0]
                seen.append(carts.state)
                acts.append(act)
                for kept, one in zip((beyonds, falls, overs), carts.step(act), strict=True):
                    kept.append(one)
            with torch.no_grad():
                after = net["critic"](torch.stack(beyonds))[..., 0]
                returns, running = [], after[-1]
                for t in reversed(range(8)):
                    ahead = torch.where(overs[t], after[t], running)
                    running = 0.1 + gamma * torch.where(falls[t], 0.0, ahead)
                    returns.insert(0, running)
            wanted, states = torch.stack(returns).flatten(), torch.cat(seen)
            value = net["critic"](states)[:, 0]
            chance = net["actor"](states).log_softmax(1)
            edge = wanted - value.detach()
            said = chance.gather(1, torch.cat(acts)[:, None])[:, 0]
            entropy = -(chance.exp() * chance).sum(1).mean()
            policy, gap = -(said * edge).mean(), F.mse_loss(value, wanted)
            loss = policy + 0.5 * gap - 0.01 * entropy
            make.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            make.step()
            plan.step()
            watch.log(loss=loss, policy_loss=policy, value_loss=gap, entropy=entropy)
            if carts.ages:
                watch.log(**{"return": mean(carts.ages[-50:])})
    return Outcome(gradwatch.open_history(watch.dir), first, upright(net["actor"]))


# ------------------------------------------------------------------------------------------------------------- joints


@healthy(0.4)
def elbows_found_as_soft_spots(folder):
    """Heat maps of the three joints of an arm by a small hourglass; Adam at two thousandths, the rate halved twice."""
    seeded(2044)

    def block(size, out, stride=1):
        return nn.Sequential(nn.Conv2d(size, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

    net = nn.Sequential(
        block(1, 12), block(12, 24, 2), block(24, 24), block(24, 24), nn.Upsample(scale_factor=2), block(24, 12),
        nn.Conv2d(12, 3, 1),
    )  # fmt: skip
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"), 2)

    def loss_of(step):
        joints = torch.stack([4 + 8 * torch.rand(24, 2)] * 3, 1)
        for joint, far in ((1, 4.0), (2, 3.0)):
            angle = 6.2832 * torch.rand(24)
            way = torch.stack([angle.cos(), angle.sin()], 1)
            joints[:, joint] = (joints[:, joint - 1] + far * way).clamp(0, 15)
        along = torch.linspace(0, 1, 6)[None, :, None]
        dots = [joints[:, i, None] * (1 - along) + joints[:, i + 1, None] * along for i in (0, 1)]
        dots = torch.cat([dots[0], dots[1], joints[:, :1].expand(-1, 3, -1)], 1)
        near = (grid[None, None] - dots[:, :, None, None]).square().sum(4)
        x = (-near).exp().sum(1, keepdim=True).clamp(max=2.5) - 0.4 + 0.1 * torch.randn(24, 1, 16, 16)
        wanted = (-(grid[None, None] - joints[:, :, None, None]).square().sum(4) / 4.5).exp()
        return F.mse_loss(net(x), wanted)

    make = optim.Adam(net.parameters(), 2e-3)
    plan = optim.lr_scheduler.MultiStepLR(make, [130, 190], 0.5)
    return fit(folder, net, make, loss_of, 220, schedule=plan)


# ------------------------------------------------------------------------------------------------------------- tables


class Tokens(nn.Module):
    """Each column a token, and one that asks (Gorishniy et al. 2021)."""

    def __init__(self, numbers, kinds, wide=32):
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(numbers, wide))
        self.bias = nn.Parameter(0.2 * torch.randn(numbers, wide))
        self.tables = nn.ModuleList(nn.Embedding(k, wide) for k in kinds)
        self.ask = nn.Parameter(0.2 * torch.randn(1, 1, wide))
        layer = nn.TransformerEncoderLayer(wide, 4, 2 * wide, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(wide), nn.ReLU(), nn.Linear(wide, 1))
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.2)

    def forward(self, x, kinds):
        parts = [self.ask.expand(len(x), -1, -1), x[..., None] * self.weight + self.bias]
        parts += [table(kinds[:, i, None]) for i, table in enumerate(self.tables)]
        return self.head(self.body(torch.cat(parts, 1))[:, 0])[:, 0]


@healthy(0.4)
def harvests_by_tokens_of_field_and_weather(folder):
    """A transformer over the columns of a table: AdamW at a thousandth, next to no decay; scored on rows held out."""
    seeded(2045)
    x, kinds = torch.randn(2400, 6), torch.stack([torch.randint(8, (2400,)), torch.randint(4, (2400,))], 1)
    soil, crop = torch.randn(8), torch.randn(4)
    y = soil[kinds[:, 0]] + x[:, 0] * crop[kinds[:, 1]] + x[:, 1] - 0.5 * x[:, 2].square() + (2 * x[:, 3]).sin()
    y = (y - y.mean()) / y.std() + 0.1 * torch.randn(2400)
    net, draw = Tokens(6, (8, 4)), rounds(64, x[:2000], kinds[:2000], y[:2000])

    def loss_of(step):
        one, of, wanted = draw()
        return F.mse_loss(net(one, of), wanted)

    def score():
        net.eval()
        with torch.no_grad():
            error = float(F.mse_loss(net(x[2000:], kinds[2000:]), y[2000:]))
        net.train()
        return error

    make = optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-5)
    return fit(folder, net, make, loss_of, 300, score=score)
