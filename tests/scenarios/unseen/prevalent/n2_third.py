"""Wagons, evening trains, programmes, lines of a play, penguins, pastries, stations, posters, loaves, snow slopes."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.6)
def numbers_of_wagons_from_the_trackside_camera(folder):
    seeded(14012)
    bunch = load_digits()
    order = torch.randperm(len(bunch.target))
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8)[order], torch.tensor(bunch.target)[order]
    x = (x - x[:1300].mean()) / x[:1300].std()
    vx, vy = x[1300:], y[1300:]
    draw = rounds(50, x[:1300], y[:1300])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=260)
    validate = now_and_then(net, 26, judged(net, vx, vy))

    def loss_of(step):
        image, number = draw()
        left, top = torch.randint(3, (2,)).tolist()
        image = F.pad(image, (1, 1, 1, 1), value=float(image.min()))[..., top : top + 8, left : left + 8]
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number, label_smoothing=0.05), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 260, score=score, schedule=schedule)


@healthy(0.6)
def passengers_of_the_evening_train(folder):
    seeded(14013)
    hour = torch.arange(3600.0)
    daily, weekly = 6.2832 * hour / 24, 6.2832 * hour / 168
    crowd = [torch.zeros(())]
    for shock in torch.randn(3599):
        crowd.append(0.8 * crowd[-1] + 4 * shock)
    counts = 80 + 30 * daily.sin() + 12 * (2 * daily).cos() + 15 * weekly.sin() + torch.stack(crowd)
    counts = (counts - counts[:2800].mean()) / counts[:2800].std()
    seen = torch.stack([counts, daily.sin(), daily.cos(), weekly.sin(), weekly.cos()], 1)
    windows, following = seen.unfold(0, 24, 1)[:-1].transpose(1, 2), counts[24:, None]
    draw = rounds(64, windows[:2776], following[:2776])
    vx, vy = windows[2800:], following[2800:]

    class Forecast(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory, self.head = nn.GRU(5, 32, batch_first=True), nn.Linear(32, 1)

        def forward(self, window):
            return self.head(self.memory(window)[0][:, -1])

    net = Forecast()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 260)
    validate = now_and_then(net, 43, lambda: {"val_loss": F.mse_loss(net(vx), vy)})

    def loss_of(step):
        window, count = draw()
        return F.mse_loss(net(window), count), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 260, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(0.5)
def faded_pages_of_old_theatre_programmes(folder):
    seeded(14014)
    x = torch.tensor(load_digits().data).float().view(-1, 1, 8, 8) / 16
    x = x[torch.randperm(len(x))]
    vx = x[1500:]
    v_faded = vx + 0.4 * torch.randn_like(vx)
    draw = rounds(50, x[:1500])
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.GELU(), nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.GELU(),
        nn.Conv2d(48, 48, 3, padding=1), nn.GELU(), nn.Upsample(scale_factor=2), nn.Conv2d(48, 24, 3, padding=1),
        nn.GELU(), nn.Conv2d(24, 1, 3, padding=1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def loss_of(step):
        page = draw()[0]
        return F.mse_loss(net(page + 0.4 * torch.randn_like(page)), page)

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: F.mse_loss(net(v_faded), vx)))


@healthy(0.4)
def lines_of_a_play_word_by_word(folder):
    seeded(14015)
    table = torch.rand(16, 16).argsort(1)

    def lines(rows):
        words = [torch.randint(16, (rows,))]
        speaker = torch.randint(4, (rows,))
        for _ in range(14):
            choice = torch.where(torch.rand(rows) < 0.8, 0, torch.randint(3, (rows,)))
            words.append(table[words[-1], 4 * speaker + choice])
        return torch.cat([16 + speaker[:, None], torch.stack(words, 1)], 1)

    line, v_line = lines(3000), lines(300)
    draw = rounds(32, line)

    class Player(nn.Module):
        def __init__(self):
            super().__init__()
            self.word, self.place = nn.Embedding(20, 32), nn.Embedding(15, 32)
            layer = nn.TransformerEncoderLayer(
                32, 4, 96, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
            )
            self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)
            self.head = nn.Linear(32, 20)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(15))

        def forward(self, words):
            seen = self.word(words) + self.place.weight
            return self.head(self.body(seen, mask=self.mask, is_causal=True))

    net = Player()

    def error(line):
        return F.cross_entropy(net(line[:, :-1]).flatten(0, 1), line[:, 1:].flatten())

    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.98), weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=25)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 185, eta_min=3e-4)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [25])
    validate = now_and_then(net, 50, lambda: {"val_loss": error(v_line)})
    return fit(
        folder, net, optimizer, lambda step: (error(draw()[0]), validate(step)), 210,
        score=held_out(net, lambda: error(v_line)), schedule=schedule, before_step=clipped(net, 1.0),
    )  # fmt: skip


@healthy(0.5)
def penguins_met_again_on_another_photograph(folder):
    seeded(14016)
    lens = torch.randn(6, 32) / 6**0.5

    def photograph(penguin):
        return (2 * penguin @ lens).tanh() + 0.3 * torch.randn(len(penguin), 32)

    penguins, others = torch.randn(3000, 6), torch.randn(256, 6)
    v_first, v_second = photograph(others), photograph(others)
    draw = rounds(96, penguins)

    class Matcher(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = dense(32, 96, 96, 16, act=nn.GELU)
            self.log_scale = nn.Parameter(torch.tensor(2.3))

        def forward(self, first, second):
            first, second = (F.normalize(self.body(view), dim=1) for view in (first, second))
            return self.log_scale.exp().clamp(max=100) * first @ second.T

    net = Matcher()

    def error(first, second):
        likeness, own = net(first, second), torch.arange(len(first))
        return (F.cross_entropy(likeness, own) + F.cross_entropy(likeness.T, own)) / 2

    optimizer = torch.optim.AdamW(
        [{"params": net.body.parameters(), "weight_decay": 0.01}, {"params": [net.log_scale], "weight_decay": 0.0}],
        1e-3,
    )

    def loss_of(step):
        penguin = draw()[0]
        return error(photograph(penguin), photograph(penguin)), {"scale": float(net.log_scale.detach().exp())}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: error(v_first, v_second)))


@healthy(0.3)
def pastries_for_regular_customers(folder):
    seeded(14017)
    taste, flavour = torch.randn(150, 4), torch.randn(60, 4)
    wanted = (1.2 * taste @ flavour.T).softmax(1)
    bought = torch.multinomial(wanted, 120, replacement=True)
    customer = torch.arange(150)[:, None].expand(-1, 120)
    draw = rounds(256, customer[:, :100].flatten(), bought[:, :100].flatten())
    v_customer, v_bought = customer[:, 100:].flatten(), bought[:, 100:].flatten()
    v_left = torch.randint(60, (len(v_bought),))

    class Taste(nn.Module):
        def __init__(self):
            super().__init__()
            self.customer, self.pastry, self.popular = nn.Embedding(150, 8), nn.Embedding(60, 8), nn.Embedding(60, 1)
            for table in (self.customer, self.pastry):
                nn.init.normal_(table.weight, std=0.1)
            nn.init.zeros_(self.popular.weight)

        def forward(self, customer, pastry):
            return (self.customer(customer) * self.pastry(pastry)).sum(1) + self.popular(pastry)[:, 0]

    net = Taste()

    def ranked(customer, bought, left):
        """How often what was bought stands behind what was left (Bayesian personalised ranking)."""
        return -F.logsigmoid(net(customer, bought) - net(customer, left)).mean()

    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=1e-5)

    def loss_of(step):
        customer, pastry = draw()
        return ranked(customer, pastry, torch.randint(60, pastry.shape))

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: ranked(v_customer, v_bought, v_left)))


@healthy(0.5)
def kinds_of_stations_on_the_network(folder):
    seeded(14018)
    kind = torch.randint(4, (320,))
    alike = kind[:, None] == kind
    linked = torch.rand(320, 320) < torch.where(alike, 0.08, 0.01)
    linked = (linked.triu(1) | linked.triu(1).T).float() + torch.eye(320)
    degree = linked.sum(1)
    spread = linked / (degree[:, None] * degree).sqrt()
    x = 0.7 * torch.randn(4, 16)[kind] + torch.randn(320, 16)
    known, rest = torch.arange(100), torch.arange(100, 320)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.near, self.far, self.drop = nn.Linear(16, 32), nn.Linear(32, 4), nn.Dropout(0.4)

        def forward(self, x):
            hidden = (spread @ self.near(self.drop(x))).relu()
            return spread @ self.far(self.drop(hidden))

    net = Network()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)

    def measure():
        said = net(x)[rest]
        return {
            "val_loss": F.cross_entropy(said, kind[rest]), "val_accuracy": (said.argmax(1) == kind[rest]).float().mean()
        }  # fmt: skip

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        said = net(x)[known]
        right = (said.argmax(1) == kind[known]).float().mean()
        return F.cross_entropy(said, kind[known]), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x)[rest], kind[rest]))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


@healthy(0.5)
def posters_for_visitors_of_the_theatre(folder):
    seeded(14019)
    liking = torch.randn(8, 5) / 8**0.5
    visitors = torch.randn(512, 8)
    net = nn.ModuleDict({"policy": dense(8, 48, 5, act=nn.Tanh), "value": dense(8, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def one(step):
        visitor = torch.randn(128, 8)
        shown = torch.distributions.Categorical(logits=net["policy"](visitor))
        poster = shown.sample()
        reward = (visitor @ liking).gather(1, poster[:, None])[:, 0] + 0.3 * torch.randn(128)
        value = net["value"](visitor)[:, 0]
        entropy = shown.entropy().mean()
        policy_loss = -(shown.log_prob(poster) * (reward - value.detach())).mean()
        value_loss = F.mse_loss(value, reward)
        loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "reward": reward.mean(), "value_loss": value_loss, "entropy": entropy}

    def regret():
        likes = visitors @ liking
        return (likes.max(1).values - (net["policy"](visitors).softmax(1) * likes).sum(1)).mean()

    return tend(folder, net, optimizer, one, 350, held_out(net, regret))


@healthy(0.4)
def loaves_to_bake_for_saturday(folder):
    seeded(14020)
    way = torch.randn(9, 2) / 3

    def saturdays(rows):
        x = torch.randn(rows, 9)
        seen = x @ way
        loaves = 420 + 60 * seen[:, 0] + 40 * seen[:, 1].square() + 15 * (1 + x[:, 0].abs()) * torch.randn(rows)
        return x, loaves[:, None]

    (x, y), (vx, vy) = saturdays(4000), saturdays(1000)
    middle, spread = y.mean(), y.std()
    y, vy = (y - middle) / spread, (vy - middle) / spread
    draw = rounds(80, x, y)
    levels = torch.tensor([0.1, 0.5, 0.9])
    net = dense(9, 64, 64, 3)
    optimizer = torch.optim.RMSprop(net.parameters(), 5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 120, 0.4)

    def pinball(x, y):
        short = y - net(x)
        return torch.maximum(levels * short, (levels - 1) * short).mean()

    validate = now_and_then(net, 50, lambda: {"val_loss": pinball(vx, vy)})
    return fit(
        folder, net, optimizer, lambda step: (pinball(*draw()), validate(step)), 360,
        score=held_out(net, lambda: pinball(vx, vy)), schedule=schedule,
    )  # fmt: skip


@healthy(0.5)
def parts_of_a_slope_that_may_slide(folder):
    seeded(14021)
    grid = torch.linspace(-1, 1, 20)
    down, across = torch.meshgrid(grid, grid, indexing="ij")

    def slopes(rows):
        middle, radius = 0.8 * torch.rand(rows, 2, 1, 1) - 0.4, 0.35 + 0.4 * torch.rand(rows, 2, 1, 1)
        inside = ((down - middle[:, 0]) / radius[:, 0]).square() + ((across - middle[:, 1]) / radius[:, 1]).square() < 1
        light = 0.5 * torch.randn(rows, 1, 1, 1)
        return inside[:, None].float() + light + 0.5 * torch.randn(rows, 1, 20, 20), inside[:, None].float()

    (x, y), (vx, vy) = slopes(600), slopes(200)
    draw = rounds(12, x, y)

    class Outline(nn.Module):
        def __init__(self):
            super().__init__()
            self.near = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
            self.far = nn.Sequential(nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())
            self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
            self.last = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

        def forward(self, image):
            near = self.near(image)
            return self.last(torch.cat([near, self.up(self.far(F.max_pool2d(near, 2)))], 1))

    net = Outline()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def dice(logits, mask):
        said = logits.sigmoid()
        both = (said * mask).sum((1, 2, 3))
        return 1 - ((2 * both + 1) / (said.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()

    validate = now_and_then(net, 30, lambda: {"val_dice_loss": dice(net(vx), vy)})

    def loss_of(step):
        image, mask = draw()
        logits = net(image)
        entropy, overlap = F.binary_cross_entropy_with_logits(logits, mask), dice(logits, mask)
        return entropy + overlap, {"bce": float(entropy), "dice": float(overlap), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: dice(net(vx), vy)))
