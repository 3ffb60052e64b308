"""Bakeries, mills and breads: millstones, proving rooms, tallies, recipes, a baker's peel, painted prices."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, in_turn, judged, now_and_then, rounds, tend


def digits():
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return x[order], y[order]


class Hum(nn.Module):
    """Dilated convolutions over a sound, and a head on their mean."""

    def __init__(self, kept):
        super().__init__()
        self.stem = nn.Conv1d(1, 16, 1)
        self.layers = kept([nn.Conv1d(16, 16, 3, padding=2**i, dilation=2**i) for i in range(5)])
        self.head = nn.Linear(16, 6)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x.mean(2))


@sick("layers-not-registered", "modules-not-registered", "not-in-optimizer",
      where="the convolutions, which parameters() does not give", cure="keep them in a ModuleList")  # fmt: skip
def hum_of_a_millstone(folder, ill):
    seeded(12806)
    beats = torch.randn(6, 12)

    def hums(rows):
        y = torch.randint(6, (rows,))
        sound = beats[y].repeat(1, 5)
        sound = sound.gather(1, (torch.arange(60) - torch.randint(12, (rows, 1))) % 60)
        return (sound + 0.5 * torch.randn(rows, 60))[:, None], y

    draw = rounds(48, *hums(3000))
    net = Hum(list if ill else nn.ModuleList)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    tx, ty = hums(400)
    validate = now_and_then(net, 40, judged(net, tx, ty))

    def loss_of(step):
        x, y = draw()
        said = net(x)
        right = (said.argmax(1) == y).float().mean()
        return F.cross_entropy(said, y), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@sick("generator-starves", "discriminator-too-strong", where="the generator, soon after the beginning",
      cure="the same rate for both")  # fmt: skip
def climates_of_a_proving_room(folder, ill):
    seeded(12807)
    lift, usual = torch.randn(3, 12) / 1.7, 2 * torch.randn(12)

    def climate(rows=64):
        return (torch.randn(rows, 3) @ lift).sin() + usual + 0.1 * torch.randn(rows, 12)

    make = dense(8, 64, 64, 12)
    judge = nn.Sequential(*dense(12, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2)), nn.Sigmoid())
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 5e-2 if ill else 1e-3, betas=(0.5, 0.999))
    real, one = climate(512), torch.ones(64, 1)

    def judge_loss():
        fake = make(torch.randn(64, 8)).detach()
        return F.binary_cross_entropy(judge(climate()), one) + F.binary_cross_entropy(judge(fake), 0 * one)

    def make_loss():
        return -F.binary_cross_entropy(judge(make(torch.randn(64, 8))), 0 * one)

    def score():
        with torch.no_grad():
            fake = make(torch.randn(512, 8))
            return float(2 * torch.cdist(real, fake).mean() - torch.cdist(real, real).mean()
                         - torch.cdist(fake, fake).mean())  # fmt: skip

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)


@sick("vanishing", where="the first layers, from the first step on", cure="ReLU between the layers")
def digits_on_a_millers_tally(folder, ill):
    seeded(12808)
    x, y = digits()
    x = (x.flatten(1) - 0.3) / 0.38
    draw = rounds(64, x[:1400], y[:1400])
    net = dense(64, 64, 64, 64, 64, 64, 64, 10, act=nn.Sigmoid if ill else nn.ReLU)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    validate = now_and_then(net, 22, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Reader(nn.Module):
    """A small language model."""

    def __init__(self, words, width, length, mask):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True,
                                           activation="gelu")  # fmt: skip
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)
        self.mask = mask

    def forward(self, x):
        length = x.shape[1]
        h = self.word(x) + self.place(torch.arange(length))
        h = self.body(h, mask=nn.Transformer.generate_square_subsequent_mask(length) if self.mask else None)
        return self.head(self.norm(h))


@sick("future-seen", where="the attention of all layers, all steps: each word sees those that follow",
      cure="a causal mask")  # fmt: skip
def recipes_read_aloud_by_a_baker(folder, ill):
    seeded(12809)
    habit = (2.5 * torch.randn(24, 24)).softmax(1)

    def recipes(rows):
        words = [torch.randint(24, (rows,))]
        for _ in range(20):
            words.append(torch.multinomial(habit[words[-1]], 1)[:, 0])
        return torch.stack(words, 1)

    draw = rounds(32, recipes(3000))
    net = Reader(24, 32, 20, mask=not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)

    def loss_of(step):
        (text,) = draw()
        loss = F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        return loss, {"perplexity": float(loss.detach().exp())}

    test = recipes(256)

    def told():
        ends = (8, 11, 14, 17, 20)
        return sum(F.cross_entropy(net(test[:, :end])[:, -1], test[:, end]) for end in ends) / len(ends)

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, told), before_step=clipped(net, 1.0))


@sick("terminals-ignored", "bootstraps-past-the-end", "values-overestimated",
      where="the targets of the steps that end an episode", cure="no value after the end: times 1 - done")  # fmt: skip
def peel_balanced_on_a_palm(folder, ill):
    seeded(12810)
    envs, most = 32, 60

    def reset(rows):
        return 0.3 * torch.randn(rows, 2)

    def move(state, action):
        lean, speed = state.unbind(1)
        speed = speed + 0.15 * lean + 0.12 * (action.float() - 1) + 0.02 * torch.randn(len(state))
        lean = lean + 0.5 * speed
        return torch.stack([lean, speed], 1), lean.abs() > 1

    net, goal = dense(2, 64, 64, 3), dense(2, 64, 64, 3)
    goal.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    size = 6000
    memory = {"s": torch.zeros(size, 2), "a": torch.zeros(size, dtype=torch.long), "n": torch.zeros(size, 2),
              "d": torch.zeros(size)}  # fmt: skip
    state, age, filled, lengths = reset(envs), torch.zeros(envs), 0, [10.0]
    dice = torch.Generator().manual_seed(5)

    def act(step):
        nonlocal state, age, filled
        with torch.no_grad():
            best = net(state).argmax(1)
        lucky = torch.rand(envs, generator=dice) < max(0.1, 1 - step / 200)
        action = torch.where(lucky, torch.randint(3, (envs,), generator=dice), best)
        after, fell = move(state, action)
        at = (filled + torch.arange(envs)) % size
        memory["s"][at], memory["a"][at], memory["n"][at], memory["d"][at] = state, action, after, fell.float()
        filled, age = filled + envs, age + 1
        over = fell | (age >= most)
        if over.any():
            lengths.append(float(age[over].mean()))
        state, age = torch.where(over[:, None], reset(envs), after), torch.where(over, 0.0, age)

    for _ in range(10):
        act(0)

    def one(step):
        act(step)
        rows = torch.randint(min(filled, size), (64,))
        s, a, n, d = (memory[key][rows] for key in "sand")
        with torch.no_grad():
            ahead = goal(n).max(1).values
            wanted = 1 + 0.97 * ahead * (1 if ill else 1 - d)
        said = net(s)
        loss = F.smooth_l1_loss(said.gather(1, a[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if step % 20 == 19:
            goal.load_state_dict(net.state_dict())
        return {"loss": loss, "q": float(said.detach().mean()), "return": sum(lengths[-10:]) / len(lengths[-10:])}

    starts = reset(128)

    def score():
        with torch.no_grad():
            now, alive, held = starts, torch.ones(128), 0.0
            for _ in range(most):
                now, fell = move(now, net(now).argmax(1))
                alive = alive * (~fell).float()
                held = held + alive.mean()
        return -float(held)

    return tend(folder, net, optimizer, one, 500, score)


@sick("data-not-shuffled", where="the loader, all steps: one class comes after another", cure="shuffle=True")
def prices_painted_on_a_bakery_window(folder, ill):
    seeded(12811)
    x, y = digits()
    tx, ty = x[1400:], y[1400:]
    x, y = x[:1400], y[:1400]
    order = y.argsort()
    loader = DataLoader(TensorDataset(x[order], y[order]), 50, shuffle=not ill)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9)
    validate = now_and_then(net, 28, judged(net, tx, ty))

    def epochs():
        while True:
            yield from loader

    batches = epochs()

    def loss_of(step):
        image, number = next(batches)
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 280, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))
