"""Healthy trainings of workshops and houses: what a course or a team's repository has."""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


@healthy()
def numbers_stamped_on_spanner_handles(folder):
    seeded(11250)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = (torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) - 4.9) / 6.0
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10),
    )  # fmt: skip
    steps = 260
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps + 1)
    draw = rounds(48, x[:1400], y[:1400])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def health_of_carpenters_after_a_year(folder):
    seeded(11251)
    table, targets = load_diabetes(return_X_y=True)
    order = torch.randperm(len(targets))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(targets, dtype=torch.float32)[order, None]
    x, y = (x - x[:340].mean(0)) / x[:340].std(0), (y - y[:340].mean()) / y[:340].std()
    net = dense(10, 32, 16, 1)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    draw = rounds(34, x[:340], y[:340])

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(x[340:]), y[340:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


class Steps(nn.Module):
    """A recurrent model of the next of many steps."""

    def __init__(self, words, width):
        super().__init__()
        self.word, self.memory = nn.Embedding(words, width), nn.LSTM(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, words)

    def forward(self, text):
        return self.head(self.memory(self.word(text))[0])


@healthy()
def instructions_for_a_folding_shelf(folder):
    seeded(11252)
    words, length = 20, 15
    net = Steps(words, 32)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    follows = torch.softmax(3 * torch.randn(words, words), 1)

    def texts(rows):
        text = [torch.randint(words, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    text = texts(1500)
    draw = rounds(32, text[:1200])

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    score = held_out(net, lambda: loss_on(text[1200:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 220, score=score, before_step=clipped(net, 1.0))


class Bench(nn.Module):
    """A transformer whose first place says whether two tools lie in order."""

    def __init__(self, kinds, length):
        super().__init__()
        self.tool = nn.Embedding(kinds + 1, 32)
        self.place = nn.Parameter(0.02 * torch.randn(length + 1, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, kinds))

    def forward(self, tools):
        begin = torch.full_like(tools[:, :1], self.tool.num_embeddings - 1)
        return self.head(self.body(self.tool(torch.cat([begin, tools], 1)) + self.place)[:, 0])


@healthy()
def tool_most_often_on_the_bench(folder):
    seeded(11253)
    kinds, steps = 5, 300
    net = Bench(kinds, 11)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, betas=(0.9, 0.98), weight_decay=0.05)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, 30)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 30)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [30])

    def benches(rows):
        tools = torch.multinomial(torch.softmax(1.5 * torch.randn(rows, kinds), 1), 11, replacement=True)
        return tools, F.one_hot(tools, kinds).sum(1).argmax(1)

    def loss_of(step):
        tools, most = benches(48)
        return F.cross_entropy(net(tools), most)

    tx, ty = benches(512)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    clip = clipped(net, 1.0)
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clip)


def plans(rows, size=16):
    """Drawings of rooms: a wall around, and one wall across and one along."""
    image = torch.zeros(rows, 1, size, size)
    across, along = torch.randint(3, size - 3, (2, rows))
    every = torch.arange(rows)
    image[every, 0, across] = 1.0
    image[every, 0, :, along] = 1.0
    image[:, :, [0, -1]] = 1.0
    image[:, :, :, [0, -1]] = 1.0
    return image


@healthy()
def floor_plans_cleaned_of_coffee_stains(folder):
    seeded(11254)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(12, 1, 4, 2, 1), nn.Sigmoid(),
    )  # fmt: skip
    optimizer = torch.optim.RMSprop(net.parameters(), 2e-3)

    def stained(plan):
        spot = torch.randn(len(plan), 1, 4, 4)
        return plan + 0.5 * F.interpolate(spot, size=16, mode="bilinear") + 0.2 * torch.randn_like(plan)

    def loss_of(step):
        plan = plans(32)
        return F.mse_loss(net(stained(plan)), plan)

    test = plans(256)
    spoilt = stained(test)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.mse_loss(net(spoilt), test)))


@healthy()
def table_legs_turned_from_a_code(folder):
    seeded(11255)
    net = nn.ModuleDict({"read": dense(32, 64, 8), "turn": dense(4, 64, 32)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    height = torch.linspace(0, 3.1416, 32)

    def legs(rows):
        bulge, swing = torch.randn(rows, 1), torch.randn(rows, 1)
        return bulge * height.sin() + swing * (3 * height).cos() + 0.05 * torch.randn(rows, 32)

    def parts(leg):
        middle, spread = net["read"](leg).chunk(2, 1)
        code = middle + (spread / 2).exp() * torch.randn_like(middle)
        error = (net["turn"](code) - leg).square().sum(1).mean()
        return error, -0.5 * (1 + spread - middle.square() - spread.exp()).sum(1).mean()

    def loss_of(step):
        error, apart = parts(legs(64))
        return error + min(1.0, step / 100) * 0.5 * apart, {"reconstruction": float(error), "kl": float(apart)}

    test = legs(512)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: parts(test)[0]))


class Outline(nn.Module):
    """A small U-Net."""

    def __init__(self, width):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))

    def forward(self, image):
        wide = self.down(image)
        return self.out(torch.cat([wide, self.up(self.deep(wide))], 1))


@healthy()
def shutters_outlined_on_old_facades(folder):
    seeded(11256)
    net = Outline(10)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def facades(rows):
        grid, middle = torch.arange(16.0), 3 + 10 * torch.rand(rows, 2, 1)
        inside = (grid - middle).abs() < 1.5 + 2 * torch.rand(rows, 2, 1)
        mask = (inside[:, 0, :, None] & inside[:, 1, None]).float()[:, None]
        paint = torch.rand(rows, 3, 1, 1)
        return paint + mask * 0.6 * torch.randn(rows, 3, 1, 1) + 0.1 * torch.randn(rows, 3, 16, 16) - 0.5, mask

    def loss_on(image, mask):
        out = net(image)
        share = out.sigmoid()
        dice = 1 - (2 * (share * mask).sum((1, 2, 3)) + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(out, mask) + dice.mean()

    test = facades(256)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*facades(16)), 160, score=score)


@healthy()
def roof_pitches_made_by_a_pupil(folder):
    seeded(11257)
    make, judge = dense(6, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.99))

    def roofs(rows):
        run = torch.randn(rows, 1)
        return torch.cat([2 + 0.7 * run, -1 + 0.5 * run + 0.2 * torch.randn(rows, 1)], 1)

    def made(rows=96):
        return make(torch.randn(rows, 6))

    def judge_loss():
        return F.softplus(-judge(roofs(96))).mean() + F.softplus(judge(made().detach())).mean()

    def make_loss():
        return F.softplus(-judge(made())).mean()

    test = roofs(1000)

    def score():
        with torch.no_grad():
            found = made(1000)
            return float((found.mean(0) - test.mean(0)).norm() + (found.T.cov() - test.T.cov()).norm())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 500, score)


@healthy()
def a_drill_press_lowered_to_its_mark(folder):
    seeded(11258)
    net = dense(2, 32, 3, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def episode(rows):
        depth, mark = torch.zeros(rows), 2 * torch.rand(rows) - 1
        logs, rewards = [], []
        for _ in range(8):
            choice = torch.distributions.Categorical(logits=net(torch.stack([depth, mark], 1)))
            move = choice.sample()
            depth = depth + 0.2 * (move - 1)
            logs.append(choice.log_prob(move))
            rewards.append(-(depth - mark).abs())
        return torch.stack(logs), torch.stack(rewards)

    def one(step):
        logs, rewards = episode(32)
        to_come = rewards.flip(0).cumsum(0).flip(0)
        gain = to_come - to_come.mean(1, keepdim=True)
        loss = -(logs * gain / (gain.std() + 1e-6)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean()}

    return tend(folder, net, optimizer, one, 150, held_out(net, lambda: -episode(512)[1].sum(0).mean()))


@healthy()
def dovetails_seen_from_two_sides(folder):
    seeded(11259)
    net = nn.Sequential(dense(24, 64, 32), nn.ReLU(), dense(32, 32, 16))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-4)
    shape = torch.randn(5, 24)

    def views(rows):
        joint = torch.randn(rows, 5) @ shape
        return [(joint + 0.3 * torch.randn(rows, 24)) * (torch.rand(rows, 24) > 0.2) for _ in range(2)]

    def loss_on(pair):
        codes = F.normalize(net(torch.cat(pair)), dim=1)
        alike = codes @ codes.T / 0.2 - 1e9 * torch.eye(len(codes))
        return F.cross_entropy(alike, torch.arange(len(codes)).roll(len(codes) // 2))

    test = views(128)
    return fit(folder, net, optimizer, lambda step: loss_on(views(64)), 400, score=held_out(net, lambda: loss_on(test)))
