"""Ten of an airport, a museum, a brigade, a bank and a reserve: stands, prints, pumps, loans, frogs, radio, ponds."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.7)
def numbers_painted_on_aircraft_stands(folder):
    seeded(14212)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    draw = rounds(50, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 224)
    validate = now_and_then(net, 28, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 224, score=score, schedule=schedule)


@healthy(0.5)
def spots_cleaned_from_old_prints(folder):
    seeded(14213)
    images = torch.tensor(load_digits().images).float().unsqueeze(1) / 16
    images = images[torch.randperm(len(images))]
    draw = rounds(64, images[:1500])
    rest = images[1500:]
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.GELU(), nn.Conv2d(24, 24, 3, padding=1), nn.GELU(),
        nn.Conv2d(24, 1, 3, padding=1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def spotted(image):
        return image + 0.4 * torch.randn_like(image)

    fixed = spotted(rest)
    validate = now_and_then(net, 23, lambda: {"val_loss": F.mse_loss(net(fixed), rest)})

    def loss_of(step):
        (image,) = draw()
        return F.mse_loss(net(spotted(image)), image), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(fixed), rest))
    return fit(folder, net, optimizer, loss_of, 230, score=score)


@healthy(0.6)
def pressure_at_the_pump_in_the_next_minute(folder):
    seeded(14214)

    def runs(rows, length=30):
        opened = (torch.rand(rows, length + 1) < 0.12).float().cumsum(1) % 2
        pressure, path = torch.zeros(rows), []
        for minute in range(length + 1):
            pressure = 0.8 * pressure + 0.5 * (1 - 2 * opened[:, minute]) + 0.1 * torch.randn(rows)
            path.append(pressure)
        seen = torch.stack(path, 1)
        return torch.stack([seen[:, :-1], opened[:, 1:]], 2), seen[:, 1:]

    class Pump(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(2, 32, batch_first=True)
            self.head = nn.Linear(32, 1)

        def forward(self, x):
            return self.head(self.gru(x)[0])[:, :, 0]

    (x, y), (tx, ty) = runs(2000), runs(300)
    draw = rounds(40, x, y)
    net = Pump()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.smooth_l1_loss(net(tx), ty)})

    def loss_of(step):
        past, ahead = draw()
        return F.smooth_l1_loss(net(past), ahead), validate(step)

    score = held_out(net, lambda: F.smooth_l1_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 1.0))


@healthy(0.6)
def loans_that_come_back(folder):
    seeded(14215)
    bunch = load_breast_cancer()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target).float()
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    draw = rounds(30, x[:420], y[:420])
    net = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-2)

    def error():
        return F.binary_cross_entropy_with_logits(net(x[420:])[:, 0], y[420:])

    validate = now_and_then(net, 14, lambda: {"val_loss": error()})

    def loss_of(step):
        row, repaid = draw()
        return F.binary_cross_entropy_with_logits(net(row)[:, 0], repaid), validate(step)

    return fit(folder, net, optimizer, loss_of, 182, score=held_out(net, error))


@healthy(0.4)
def frogs_heard_at_night(folder):
    seeded(14216)
    time = torch.linspace(0, 1, 96)
    pitch, pulse = 5 + 2.5 * torch.arange(5), 2 + 5 * torch.rand(5)

    def heard(rows):
        frog = torch.randint(5, (rows,))
        phase = 6.2832 * torch.rand(rows, 1)
        tone = (6.2832 * pitch[frog, None] * time + phase).sin()
        beat = 1 + (6.2832 * pulse[frog, None] * time + 2 * phase).sin()
        return (tone * beat + 0.6 * torch.randn(rows, 96)).unsqueeze(1), frog

    (x, y), (tx, ty) = heard(3000), heard(500)
    draw = rounds(40, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 24, 7, 2, 3), nn.GroupNorm(4, 24), nn.SiLU(),
        nn.Conv1d(24, 32, 5, 2, 2), nn.GroupNorm(4, 32), nn.SiLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        call, frog = draw()
        return criterion(net(call), frog), validate(step)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.3)
def next_word_on_the_tower_frequency(folder):
    seeded(14217)
    words, length = 24, 16
    grammar = (2.5 * torch.randn(words, words)).softmax(1)

    def messages(rows):
        word = torch.randint(words, (rows,))
        said = [word]
        for _ in range(length):
            word = grammar[word].multinomial(1)[:, 0]
            said.append(word)
        return torch.stack(said, 1)

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = nn.Embedding(words, 32), nn.Embedding(length, 32)
            nn.init.normal_(self.embed.weight, std=0.02)
            nn.init.normal_(self.place.weight, std=0.02)
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, activation="gelu", batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
            self.head = nn.Linear(32, words, bias=False)
            self.register_buffer("ahead", torch.triu(torch.ones(length, length, dtype=torch.bool), 1))

        def forward(self, x):
            return self.head(self.layers(self.embed(x) + self.place.weight, mask=self.ahead))

    text, other = messages(3000), messages(200)
    draw = rounds(24, text)
    net = Tower()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.98), weight_decay=0.01)

    def pace(step):
        return (step + 1) / 20 if step < 20 else 0.55 + 0.45 * math.cos(math.pi * (step - 20) / 200)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, pace)

    def surprise(said):
        return F.cross_entropy(net(said[:, :-1]).flatten(0, 1), said[:, 1:].flatten())

    validate = now_and_then(net, 55, lambda: {"val_loss": surprise(other)})

    def loss_of(step):
        (said,) = draw()
        return surprise(said), validate(step)

    score = held_out(net, lambda: surprise(other))
    return fit(folder, net, optimizer, loss_of, 220, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(0.5)
def sherds_of_the_same_vase(folder):
    seeded(14218)
    lift = torch.randn(5, 20) / 5**0.5

    def sherds(rows):
        vase = torch.randn(rows, 5)
        first, second = ((vase + 0.15 * torch.randn(rows, 5)) @ lift for _ in range(2))
        return first.tanh() + 0.1 * torch.randn(rows, 20), second.tanh() + 0.1 * torch.randn(rows, 20)

    net = dense(20, 64, 64, 16)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def contrast(pair):
        first, second = (F.normalize(net(sherd), dim=1) for sherd in pair)
        likeness = first @ second.T / 0.1
        same = torch.arange(len(likeness))
        right = (likeness.argmax(1) == same).float().mean()
        return (F.cross_entropy(likeness, same) + F.cross_entropy(likeness.T, same)) / 2, right

    draw, rest = rounds(64, *sherds(6000)), sherds(64)

    def loss_of(step):
        loss, right = contrast(draw())
        return loss, {"top1": float(right)}

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: contrast(rest)[0]))


@healthy(0.5)
def crews_sent_to_alarms_by_advantage(folder):
    seeded(14219)
    worth = torch.randn(8, 6) / 8**0.5

    def alarms(rows):
        return torch.randn(rows, 8)

    fixed = alarms(500)
    net = nn.ModuleDict({"actor": dense(8, 48, 6, act=nn.Tanh), "critic": dense(8, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def lost():
        """What the best crew would have won above what the policy wins."""
        value = fixed @ worth
        return (value.max(1).values - (net["actor"](fixed).softmax(1) * value).sum(1)).mean()

    def one(step):
        alarm = alarms(64)
        policy = torch.distributions.Categorical(logits=net["actor"](alarm))
        crew = policy.sample()
        reward = (alarm @ worth).gather(1, crew[:, None])[:, 0] + 0.3 * torch.randn(64)
        value = net["critic"](alarm)[:, 0]
        advantage = reward - value.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss, value_loss = -(advantage * policy.log_prob(crew)).mean(), F.mse_loss(value, reward)
        entropy = policy.entropy().mean()
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        optimizer.step()
        return {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss, "entropy": float(entropy),
                "reward": float(reward.mean())}  # fmt: skip

    return tend(folder, net, optimizer, one, 400, held_out(net, lost))


@healthy(0.4)
def funds_that_customers_like(folder):
    seeded(14220)
    customers, funds = 150, 60
    taste, kind = torch.randn(customers, 3), torch.randn(funds, 3)
    who, what = torch.randint(customers, (9000,)), torch.randint(funds, (9000,))
    liking = (taste[who] * kind[what]).sum(1) / 3**0.5 + 0.5 * torch.randn(funds)[what]
    stars = liking + 0.2 * torch.randn(9000)
    stars = (stars - stars.mean()) / stars.std()
    draw = rounds(128, who[:8000], what[:8000], stars[:8000])

    class Taste(nn.Module):
        def __init__(self):
            super().__init__()
            self.customer, self.fund = nn.Embedding(customers, 8), nn.Embedding(funds, 8)
            self.of_customer, self.of_fund = nn.Embedding(customers, 1), nn.Embedding(funds, 1)
            for table in (self.customer, self.fund):
                nn.init.normal_(table.weight, std=0.3)
            for table in (self.of_customer, self.of_fund):
                nn.init.zeros_(table.weight)

        def forward(self, who, what):
            match = (self.customer(who) * self.fund(what)).sum(1)
            return match + self.of_customer(who)[:, 0] + self.of_fund(what)[:, 0]

    net = Taste()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def error():
        return F.mse_loss(net(who[8000:], what[8000:]), stars[8000:])

    validate = now_and_then(net, 62, lambda: {"val_loss": error()})

    def loss_of(step):
        customer, fund, given = draw()
        return F.mse_loss(net(customer, fund), given), validate(step)

    return fit(folder, net, optimizer, loss_of, 310, score=held_out(net, error))


@healthy(0.6)
def ponds_outlined_from_an_aircraft(folder):
    seeded(14221)
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))

    def photos(rows):
        middle, radius = 4 + 8 * torch.rand(rows, 2, 1, 1), 2.5 + 3 * torch.rand(rows, 1, 1)
        pond = ((grid - middle).square().sum(1).sqrt() < radius).float().unsqueeze(1)
        return pond * 1.5 - 0.5 + 0.8 * torch.randn(rows, 1, 16, 16), pond

    class Outline(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
            self.coarse = nn.Sequential(nn.Conv2d(12, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU())
            self.up = nn.ConvTranspose2d(24, 12, 2, 2)
            self.head = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

        def forward(self, x):
            fine = self.fine(x)
            return self.head(torch.cat([fine, self.up(self.coarse(fine))], 1))

    (x, y), (tx, ty) = photos(1200), photos(120)
    draw = rounds(16, x, y)
    net = Outline()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def dice(said, pond):
        share = said.sigmoid()
        both = (share * pond).sum((1, 2, 3))
        return 1 - ((2 * both + 1) / (share.sum((1, 2, 3)) + pond.sum((1, 2, 3)) + 1)).mean()

    validate = now_and_then(net, 40, lambda: {"val_dice": 1 - dice(net(tx), ty)})

    def loss_of(step):
        photo, pond = draw()
        said = net(photo)
        entropy, overlap = F.binary_cross_entropy_with_logits(said, pond), dice(said, pond)
        return entropy + overlap, {"bce": float(entropy), "dice_loss": float(overlap), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: dice(net(tx), ty)))
