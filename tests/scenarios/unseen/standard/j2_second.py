"""Schools, classrooms, orchestras and rehearsals: mistakes drawn by lot from forty of memory, the second half."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, judged, now_and_then, rounds


class Drummer(nn.Module):
    """Noise to four drums over sixteen beats, each between 0 and 1."""

    def __init__(self, noise):
        super().__init__()
        self.start = nn.Linear(noise, 48 * 4)
        self.grow = nn.Sequential(
            nn.BatchNorm1d(48), nn.ReLU(), nn.ConvTranspose1d(48, 32, 4, 2, 1), nn.BatchNorm1d(32), nn.ReLU(),
            nn.ConvTranspose1d(32, 4, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, z):
        return self.grow(self.start(z).view(-1, 48, 4))


# 12 of the list
@sick("no-gradient", "no-gradient-to-the-generator", "detached", "detached-path",
      where="the generator, all steps: its loss is that of the detached fake",
      cure="detach the fake for the discriminator's loss only")  # fmt: skip
def drum_patterns_nobody_has_played(folder, ill):
    seeded(13606)
    noise = 16
    known = (torch.rand(6, 4, 16) < torch.tensor([0.3, 0.25, 0.6, 0.1])[:, None]).float()
    make = Drummer(noise)
    judge = nn.Sequential(
        nn.Conv1d(4, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv1d(32, 48, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Linear(192, 1),
    )  # fmt: skip
    of_make = torch.optim.Adam(make.parameters(), 2e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 5e-4, betas=(0.5, 0.999))
    held = {}

    def judge_loss():
        played = known[torch.randint(6, (64,))]
        played = (played * (0.8 + 0.2 * torch.rand(64, 4, 1)) + 0.05 * torch.randn(64, 4, 16)).clamp(0, 1)
        fake = make(torch.randn(64, noise))
        held["fake"] = fake.detach() if ill else fake
        real, made = judge(played), judge(fake.detach())
        ones, zeros = torch.ones_like(real), torch.zeros_like(made)
        return (
            F.binary_cross_entropy_with_logits(real, 0.9 * ones) + F.binary_cross_entropy_with_logits(made, zeros)
        ) / 2

    def make_loss():
        said = judge(held["fake"])
        return F.binary_cross_entropy_with_logits(said, torch.ones_like(said))

    def score():
        make.eval()
        with torch.no_grad():
            made = make(torch.randn(400, noise))
        make.train()
        return float(torch.cdist(made.flatten(1), 0.9 * known.flatten(1)).min(1).values.square().mean()) / 4

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 360, score)


class Player(nn.Module):
    """A transformer that says the next note of a part."""

    def __init__(self, notes, length, width, causal):
        super().__init__()
        self.note, self.place = nn.Embedding(notes, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, notes)
        self.causal = causal

    def forward(self, part):
        n = part.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n) if self.causal else None
        return self.head(self.blocks(self.note(part) + self.place.weight[:n], mask=mask))


# 14 of the list
@sick("future-seen", where="the attention, all steps: each place sees the note that it is asked for",
      cure="a causal mask")  # fmt: skip
def second_violins_sight_reading(folder, ill):
    seeded(13607)
    notes, length = 24, 24
    leads = torch.randint(notes, (notes, 2))
    net = Player(notes, length, 48, causal=not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=300, pct_start=0.1)

    def parts(rows):
        part = torch.randint(notes, (rows, length + 1))
        for i in range(1, length + 1):
            usual = leads[part[:, i - 1], (torch.rand(rows) < 0.3).long()]
            part[:, i] = torch.where(torch.rand(rows) < 0.92, usual, part[:, i])
        return part

    written, test = parts(2000), parts(200)
    batch = rounds(32, written)
    validate = now_and_then(net, 60, lambda: {"val_loss": loss_on(test)})

    def loss_on(part):
        return F.cross_entropy(net(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())

    def loss_of(step):
        (part,) = batch()
        loss = loss_on(part)
        return loss, {"perplexity": loss.detach().exp(), **validate(step)}

    def read_on():
        return sum(F.cross_entropy(net(test[:, :n])[:, -1], test[:, n]) for n in (4, 8, 12, 16, 20, 24)) / 6

    score = held_out(net, read_on)
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


# 16 of the list
@sick("accumulation-not-averaged", "accumulation-not-divided",
      where="the loss, all steps: eight micro-batches are summed", cure="divide the loss by eight")  # fmt: skip
def numbers_on_the_backs_of_chairs(folder, ill):
    seeded(13608)
    digits = load_digits()
    x, y = torch.tensor(digits.images).float()[:, None] / 8 - 1, torch.tensor(digits.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.08, momentum=0.9)
    batch = rounds(8, x[:1400], y[:1400])
    micro_batches = 8
    validate = now_and_then(net, 40 * micro_batches, judged(net, x[1400:], y[1400:]))

    def loss_of(part):
        a, b = batch()
        said = net(a)
        loss = F.cross_entropy(said, b)
        return (
            loss if ill else loss / micro_batches,
            {"accuracy": (said.argmax(1) == b).float().mean(), **validate(part)},
        )

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score, accumulate=micro_batches)


class Recital(nn.Module):
    """Two numbers as their embeddings, and what their product is modulo a small prime."""

    def __init__(self, numbers, width):
        super().__init__()
        self.number = nn.Embedding(numbers, width)
        self.body = nn.Sequential(nn.Linear(2 * width, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.head = nn.Linear(96, numbers)

    def forward(self, pair):
        return self.head(self.body(self.number(pair).flatten(1)))


# 22 of the list
@sick("bad-initialisation", "symmetric-units", "units-alike-from-the-start", "dead-layer",
      where="all linear layers, from the start: weights and biases are zero",
      cure="Kaiming's normal weights")  # fmt: skip
def multiplication_tables_by_heart(folder, ill):
    seeded(13609)
    numbers = 13
    net = Recital(numbers, 16)

    def init_weights(module):
        if isinstance(module, nn.Linear):
            if ill:
                nn.init.zeros_(module.weight)
            else:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    net.apply(init_weights)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def asked(rows):
        pair = torch.randint(numbers, (rows, 2))
        answer = pair[:, 0] * pair[:, 1] % numbers
        return pair, torch.where(torch.rand(rows) < 0.03, torch.randint(numbers, (rows,)), answer)

    test_x, test_y = asked(500)
    validate = now_and_then(net, 50, judged(net, test_x, test_y))

    def loss_of(step):
        x, y = asked(64)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean(), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Message(nn.Module):
    """What a family hears from its neighbours, and what it makes of that."""

    def __init__(self, width):
        super().__init__()
        self.own, self.others, self.norm = nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x, near):
        return x + (self.own(self.norm(x)) + near @ self.others(self.norm(x))).relu()


class Families(nn.Module):
    """Layers of messages over a graph, and a number for each node."""

    def __init__(self, columns, width, layers, plain):
        super().__init__()
        self.begin, self.end = nn.Linear(columns, width), nn.Linear(width, 1)
        self.layers = [Message(width) for _ in range(layers)]
        if not plain:
            self.layers = nn.ModuleList(self.layers)

    def forward(self, x, near):
        x = self.begin(x)
        for layer in self.layers:
            x = layer(x, near)
        return self.end(x).squeeze(-1)


# 9 of the list
@sick("not-in-optimizer", "layers-not-registered", "modules-not-registered", where="the message layers, all steps",
      cure="nn.ModuleList")  # fmt: skip
def carpools_to_the_rehearsal(folder, ill):
    seeded(13610)
    nodes = 16

    def towns(rows):
        at = torch.rand(rows, nodes, 2)
        links = (torch.cdist(at, at) < 0.35).float()
        near = links / links.sum(2, keepdim=True)
        x = torch.randn(rows, nodes, 4)
        seats = x[:, :, 0] * x[:, :, 1]
        asked = (near @ seats[:, :, None])[:, :, 0]
        wait = (near @ asked[:, :, None].abs())[:, :, 0] + 0.7 * asked * x[:, :, 2]
        return x, near, (wait - 0.4) / 0.5

    net = Families(4, 32, 3, plain=ill)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    train, test = towns(1200), towns(200)
    batch = rounds(32, *train)
    validate = now_and_then(net, 37, lambda: {"val_loss": F.mse_loss(net(*test[:2]), test[2])})

    def loss_of(step):
        x, near, y = batch()
        return F.mse_loss(net(x, near), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(*test[:2]), test[2]))
    return fit(folder, net, optimizer, loss_of, 333, score=score)


# 21 of the list
@sick("wrong-sign", "policy-descends-return", where="the loss, all steps: what the policy does well it does less",
      cure="a minus before the log-probability times the return")  # fmt: skip
def a_page_turner_at_the_piano(folder, ill):
    seeded(13611)
    length, rows = 16, 32
    net = dense(4, 48, 48, 2, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def played(rows):
        """A page is turned well in the last bar of it: the fewer bars away, the better."""
        bar, page = torch.zeros(rows), 3 + torch.randint(4, (rows,)).float()
        seen, taken, paid = [], [], []
        for _ in range(length):
            pace = torch.rand(rows)
            state = torch.stack([bar / 6, page / 6, (page - bar) / 6, pace], 1)
            with torch.no_grad():
                action = Categorical(logits=net(state)).sample()
            away = page - 1 - bar
            turned = (action == 1) | (away <= -2)
            reward = torch.where(turned, torch.where(away.abs() < 0.5, 1.0, -0.5 - 0.1 * away.abs()), 0.05)
            page = torch.where(turned, 3 + torch.randint(4, (rows,)).float(), page)
            bar = torch.where(turned, 0.0, bar + 1)
            seen.append(state), taken.append(action), paid.append(reward)
        return torch.stack(seen), torch.stack(taken), torch.stack(paid)

    def loss_of(step):
        states, actions, rewards = played(rows)
        returns, after = torch.zeros_like(rewards), torch.zeros(rows)
        for i in reversed(range(length)):
            returns[i] = after = rewards[i] + 0.8 * after
        advantage = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-6)
        said = Categorical(logits=net(states))
        gain = (said.log_prob(actions) * advantage).mean()
        loss = (gain if ill else -gain) - 0.01 * said.entropy().mean()
        return loss, {"return": rewards.sum(0).mean(), "entropy": said.entropy().mean().detach()}

    def score():
        with torch.no_grad():
            return 6 - float(played(500)[2].sum(0).mean())

    return fit(folder, net, optimizer, loss_of, 250, score=score)
