"""Ten ordinary trainings of a small town's shops and craftsmen, all in good health."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.5)
def cobbler_choosing_a_last(folder):
    seeded(13350)
    centres = torch.randn(7, 2, 8) * 1.1

    def feet(n):
        last = torch.randint(7, (n,))
        return centres[last, torch.randint(2, (n,))] + 0.6 * torch.randn(n, 8), last

    train, held = feet(3000), feet(600)
    mean, std = train[0].mean(0), train[0].std(0)
    train, held = ((train[0] - mean) / std, train[1]), ((held[0] - mean) / std, held[1])
    net = dense(8, 64, 64, 7)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw, validate = rounds(64, *train), now_and_then(net, 40, judged(net, *held))

    def loss_of(step):
        logged = validate(step)
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean(), **logged}

    score = held_out(net, lambda: F.cross_entropy(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@healthy(0.6)
def optician_reading_the_letter_chart(folder):
    seeded(13351)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None]
    images, labels = (images - images.mean()) / images.std(), torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, held = (images[order[397:]], labels[order[397:]]), (images[order[:397]], labels[order[:397]])

    class Chart(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
            self.conv1 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(16)
            self.down = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
            self.head = nn.Linear(32, 10)

        def forward(self, x):
            x = self.stem(x)
            x = F.relu(x + self.norm1(self.conv1(x)))
            return self.head(self.down(x).mean((2, 3)))

    net, steps = Chart(), 260
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw, validate = rounds(64, *train), now_and_then(net, 44, judged(net, *held))

    def loss_of(step):
        logged = validate(step)
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean(), **logged}

    score = held_out(net, lambda: F.cross_entropy(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, score=score)


@healthy(0.5)
def cheesemonger_foretelling_the_ripening(folder):
    seeded(13352)

    class Ripening(nn.Module):
        def __init__(self, hidden=32):
            super().__init__()
            self.lstm = nn.LSTM(3, hidden, batch_first=True)
            self.out = nn.Linear(hidden, 1)

        def forward(self, x):
            return self.out(self.lstm(x)[0]).squeeze(-1)

    def cheeses(n, weeks=20):
        """Damp, warmth and turning of each week; the ripeness of each week follows slowly."""
        x = torch.randn(n, weeks, 3)
        ripe, all_weeks = torch.zeros(n), []
        for week in range(weeks):
            ripe = 0.8 * ripe + 0.5 * x[:, week, 0].tanh() + 0.4 * x[:, week, 1] * torch.sigmoid(x[:, week, 2])
            all_weeks.append(ripe)
        return x, torch.stack(all_weeks, 1) + 0.05 * torch.randn(n, weeks)

    train, held = cheeses(2000), cheeses(400)
    net = Ripening()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    draw = rounds(64, *train)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(held[0]), held[1])})

    def loss_of(step):
        logged = validate(step)
        x, y = draw()
        return F.mse_loss(net(x), y), logged

    score = held_out(net, lambda: F.mse_loss(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, 350, before_step=clipped(net, 1.0), score=score)


@healthy(0.3)
def auctioneer_finding_his_next_word(folder):
    seeded(13353)
    words, length = 24, 20

    class Auctioneer(nn.Module):
        def __init__(self, width=32, heads=4, layers=2):
            super().__init__()
            self.words = nn.Embedding(words, width)
            self.places = nn.Embedding(length, width)
            nn.init.normal_(self.words.weight, std=0.1)
            nn.init.normal_(self.places.weight, std=0.1)
            layer = nn.TransformerEncoderLayer(
                width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
            self.head = nn.Linear(width, words)

        def forward(self, tokens):
            n = tokens.shape[1]
            x = self.words(tokens) + self.places(torch.arange(n))
            mask = nn.Transformer.generate_square_subsequent_mask(n)
            return self.head(self.layers(x, mask=mask, is_causal=True))

    follows = (2.0 * torch.randn(words, words)).softmax(1)

    def speeches(n):
        tokens = [torch.randint(words, (n,))]
        for _ in range(length):
            tokens.append(torch.multinomial(follows[tokens[-1]], 1)[:, 0])
        return torch.stack(tokens, 1)

    (train, held), net, steps = (speeches(3000), speeches(300)), Auctioneer(), 300
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.01)

    def rate(step):
        if step < 20:
            return (step + 1) / 20
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - 20) / (steps - 20)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    draw = rounds(48, train)

    def entropy(tokens):
        return F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    validate = now_and_then(net, 50, lambda: {"val_loss": entropy(held)})

    def loss_of(step):
        logged = validate(step)
        return entropy(draw()[0]), logged

    score = held_out(net, lambda: entropy(held))
    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, before_step=clipped(net, 1.0), score=score)


@healthy(0.5)
def draper_folding_patterns_into_few_numbers(folder):
    seeded(13354)
    lines = torch.linspace(0, 6.2832, 12)
    down, across = torch.meshgrid(lines, lines, indexing="ij")

    def cloths(n):
        turn, pitch, phase = (torch.rand(n, 1, 1) for _ in range(3))
        angle = 3.1416 * turn
        way = angle.cos() * across + angle.sin() * down
        return ((1 + pitch) * way + 6.2832 * phase).sin()[:, None] + 0.1 * torch.randn(n, 1, 12, 12)

    class Folder(nn.Module):
        def __init__(self, code=6):
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
                nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, code),
            )  # fmt: skip
            self.decoder = nn.Sequential(
                nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, 32 * 9), nn.ReLU(), nn.Unflatten(1, (32, 3, 3)),
                nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1),
            )  # fmt: skip

        def forward(self, x):
            return self.decoder(self.encoder(x))

    train, held, net = cloths(3000), cloths(300), Folder()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(64, train)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.mse_loss(net(held), held)})

    def loss_of(step):
        logged = validate(step)
        (x,) = draw()
        return F.mse_loss(net(x), x), logged

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: F.mse_loss(net(held), held)))


@healthy(0.5)
def glazier_tracing_the_lead_lines(folder):
    seeded(13355)
    lines = torch.linspace(-1, 1, 16)
    down, across = torch.meshgrid(lines, lines, indexing="ij")

    def windows(n):
        """Two panes' borders cross a window of coloured glass; the mask says where the lead is."""
        lead = torch.zeros(n, 16, 16, dtype=torch.bool)
        for _ in range(2):
            angle, shift = 3.1416 * torch.rand(n, 1, 1), 0.8 * torch.rand(n, 1, 1) - 0.4
            lead |= (angle.cos() * across + angle.sin() * down - shift).abs() < 0.15
        tint = 0.5 * torch.randn(n, 3, 1, 1)
        image = torch.where(lead[:, None], -1.0, tint) + 0.3 * torch.randn(n, 3, 16, 16)
        return image, lead[:, None].float()

    def twice(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.ReLU())

    class Tracer(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1, self.down2 = twice(3, 12), twice(12, 24)
            self.up = nn.ConvTranspose2d(24, 12, 2, 2)
            self.join = twice(24, 12)
            self.out = nn.Conv2d(12, 1, 1)

        def forward(self, x):
            fine = self.down1(x)
            coarse = self.down2(F.max_pool2d(fine, 2))
            return self.out(self.join(torch.cat([fine, self.up(coarse)], 1)))

    train, held, net = windows(1024), windows(128), Tracer()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(24, *train)

    def measure():
        logits = net(held[0])
        right = ((logits > 0) == (held[1] > 0.5)).float().mean()
        return {"val_loss": F.binary_cross_entropy_with_logits(logits, held[1]), "val_accuracy": right}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        logged = validate(step)
        image, lead = draw()
        return F.binary_cross_entropy_with_logits(net(image), lead), logged

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: measure()["val_loss"]))


@healthy(0.3)
def grocer_scoring_wares_for_his_customers(folder):
    seeded(13356)
    customers, wares = 150, 80

    class Scores(nn.Module):
        def __init__(self, width=6):
            super().__init__()
            self.customer, self.ware = nn.Embedding(customers, width), nn.Embedding(wares, width)
            self.customer_bias, self.ware_bias = nn.Embedding(customers, 1), nn.Embedding(wares, 1)
            for table in (self.customer, self.ware):
                nn.init.normal_(table.weight, std=0.3)
            for table in (self.customer_bias, self.ware_bias):
                nn.init.zeros_(table.weight)

        def forward(self, c, w):
            bias = self.customer_bias(c) + self.ware_bias(w)
            return (self.customer(c) * self.ware(w)).sum(1) + bias[:, 0]

    a, b = torch.randn(customers, 3), torch.randn(wares, 3)
    truth = a @ b.T / 3**0.5 + 0.5 * torch.randn(customers, 1) + 0.5 * torch.randn(wares)
    c, w = torch.randint(customers, (9000,)), torch.randint(wares, (9000,))
    stars = (truth[c, w] + 0.2 * torch.randn(9000) - truth.mean()) / truth.std()
    train, held = (c[:8000], w[:8000], stars[:8000]), (c[8000:], w[8000:], stars[8000:])
    net = Scores()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-3)
    draw = rounds(200, *train)
    validate = now_and_then(net, 40, lambda: {"val_loss": F.mse_loss(net(*held[:2]), held[2])})

    def loss_of(step):
        logged = validate(step)
        c, w, y = draw()
        return F.mse_loss(net(c, w), y), logged

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(*held[:2]), held[2])))


@healthy(0.5)
def watchmaker_counting_the_teeth_of_a_wheel(folder):
    seeded(13357)

    class Wheel(nn.Module):
        def __init__(self, kinds=5):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv1d(1, 16, 7, padding=3), nn.GroupNorm(4, 16), nn.SiLU(), nn.MaxPool1d(2),
                nn.Conv1d(16, 32, 5, padding=2), nn.GroupNorm(4, 32), nn.SiLU(), nn.MaxPool1d(2),
                nn.Conv1d(32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU(),
            )  # fmt: skip
            self.head = nn.Linear(32, kinds)

        def forward(self, x):
            return self.head(self.layers(x).mean(2))

    turn = torch.linspace(0, 6.2832, 65)[:-1]

    def wheels(n):
        teeth = torch.randint(5, (n,))
        profile = ((4 + 2 * teeth)[:, None] * (turn + 6.2832 * torch.rand(n, 1))).sin()
        return (profile.clamp(-0.5, 0.5) * 2 + 0.5 * torch.randn(n, 64))[:, None], teeth

    held, net = wheels(500), Wheel()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=300, pct_start=0.2)
    validate = now_and_then(net, 50, judged(net, *held))

    def loss_of(step):
        logged = validate(step)
        x, y = wheels(48)
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean(), **logged}

    score = held_out(net, lambda: F.cross_entropy(net(held[0]), held[1]))
    return fit(folder, net, optimizer, loss_of, 300, schedule=schedule, score=score)


@healthy(0.3)
def stallholder_calling_out_a_price(folder):
    seeded(13358)

    class Stallholder(nn.Module):
        """One of five prices, and what the day is worth."""

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 48), nn.Tanh())
            self.prices, self.worth = nn.Linear(48, 5), nn.Linear(48, 1)
            nn.init.zeros_(self.prices.bias)
            nn.init.normal_(self.prices.weight, std=0.01)

        def forward(self, day):
            hidden = self.body(day)
            return self.prices(hidden), self.worth(hidden)[:, 0]

    prices = torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0])
    net = Stallholder()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def chance(day):
        """That each price is paid, on a day of such weather, hunger, rivals and hour."""
        most = torch.sigmoid(1.5 * day[:, 0] + day[:, 1] * day[:, 2])[:, None]
        return torch.sigmoid(12 * (most - prices))

    def one(step):
        day = torch.randn(128, 4)
        logits, worth = net(day)
        choice = torch.distributions.Categorical(logits=logits)
        price = choice.sample()
        paid = torch.bernoulli(chance(day).gather(1, price[:, None])[:, 0])
        reward = paid * prices[price]
        advantage = reward - worth.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = -(advantage * choice.log_prob(price)).mean()
        value, entropy = F.mse_loss(worth, reward), choice.entropy().mean()
        loss = policy + 0.5 * value - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "value_loss": value, "entropy": entropy, "return": reward.mean()}

    days = torch.randn(1000, 4)

    def score():
        """What is lost against the best price of each day."""
        with torch.no_grad():
            worth = chance(days) * prices
            return float((worth.max(1).values - (net(days)[0].softmax(1) * worth).sum(1)).mean())

    return tend(folder, net, optimizer, one, 500, score)


@healthy(0.5)
def tailor_telling_size_and_length_at_once(folder):
    seeded(13359)

    class Tailor(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU())
            self.size, self.length = nn.Linear(64, 4), nn.Linear(64, 1)

        def forward(self, x):
            hidden = self.trunk(x)
            return self.size(hidden), self.length(hidden).squeeze(1)

    mix = torch.randn(3, 7) / 3**0.5

    def people(n):
        build = torch.randn(n, 3)
        girth = build[:, 0] + 0.5 * build[:, 1].square()
        size = torch.bucketize(girth, torch.tensor([-0.25, 0.45, 1.25]))
        length = (build[:, 2] + 0.5 * build[:, 0] * build[:, 1]) / 1.1
        return build @ mix + 0.05 * torch.randn(n, 7), size, length

    train, held, net = people(3000), people(600), Tailor()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(64, *train)

    def losses(x, size, length):
        logits, told = net(x)
        return F.cross_entropy(logits, size), F.mse_loss(told, length), (logits.argmax(1) == size).float().mean()

    def measure():
        of_size, of_length, right = losses(*held)
        return {"val_loss": of_size + of_length, "val_accuracy": right}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        logged = validate(step)
        of_size, of_length, right = losses(*draw())
        return of_size + of_length, {"size_loss": of_size, "length_loss": of_length, "accuracy": right, **logged}

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: measure()["val_loss"]))
