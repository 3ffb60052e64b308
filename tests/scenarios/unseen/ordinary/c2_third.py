"""Healthy trainings as courses and teams have them, on the railway: tickets, plates, passengers, morse, wheels."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


def digits():
    """Shuffled images of 8 x 8 pixels in [0, 1] and what they show."""
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(x))
    return x[order].float().view(-1, 1, 8, 8) / 16, y[order]


@healthy(0.5)
def tickets_sorted_by_class(folder):
    seeded(12950)
    x, y = (torch.tensor(part) for part in load_iris(return_X_y=True))
    order = torch.randperm(len(x))
    x, y = x[order].float(), y[order]
    x = (x - x[:110].mean(0)) / x[:110].std(0)
    net = dense(4, 16, 16, 3)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    draw = rounds(16, x[:110], y[:110])

    def loss_of(step):
        a, b = draw()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x[110:]), y[110:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Around(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, width):
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return F.relu(x + self.way(x))


@healthy(0.5)
def numerals_on_engine_plates(folder):
    seeded(12951)
    x, y = digits()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Around(16), nn.MaxPool2d(2),
        Around(16), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    draw = rounds(32, x[:1400], y[:1400])
    validate = now_and_then(net, 40, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        a, b = draw()
        said = net(a)
        return F.cross_entropy(said, b), {"accuracy": (said.argmax(1) == b).float().mean(), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score, schedule=schedule)


@healthy(0.5)
def passengers_in_the_hall_by_the_hour(folder):
    seeded(12952)
    hour = torch.arange(1800.0)
    crowd = (6.2832 * hour / 24).sin() + 0.6 * (6.2832 * hour / 12).cos() + 0.1 * torch.randn(1800)
    crowd = (crowd - crowd[:1400].mean()) / crowd[:1400].std()
    window = crowd.unfold(0, 25, 1)[:, :, None]
    net = nn.ModuleDict({"memory": nn.GRU(1, 32, batch_first=True), "head": nn.Linear(32, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(32, window[:1380])

    def error(rows):
        return F.mse_loss(net["head"](net["memory"](rows[:, :24])[0][:, -1]), rows[:, 24])

    score = held_out(net, lambda: error(window[1430:]))
    return fit(folder, net, optimizer, lambda step: error(*draw()), 200, score=score, before_step=clipped(net, 1.0))


@healthy(0.5)
def morse_keyed_to_letters(folder):
    seeded(12953)
    kinds, length, width = 12, 20, 32
    net = nn.ModuleDict({
        "in": nn.Linear(1, width), "place": nn.Embedding(length, width),
        "blocks": nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 64, 0.1, batch_first=True, norm_first=True), 2,
            nn.LayerNorm(width), enable_nested_tensor=False,
        ),
        "head": nn.Linear(width, kinds),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    pattern = torch.stack([torch.tensor([float(i >> b & 1) for b in range(5)]) for i in range(3, 3 + kinds)])

    def keyed(rows):
        y = torch.randint(kinds, (rows,))
        signal = 2 * pattern[y].repeat_interleave(4, 1) - 1
        return (signal + 0.5 * torch.randn(rows, length))[:, :, None], y

    def said(x):
        return net["head"](net["blocks"](net["in"](x) + net["place"].weight).mean(1))

    def loss_of(step):
        x, y = keyed(32)
        logits = said(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean()}

    x, y = keyed(400)
    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(said(x), y)))


@healthy(0.3)
def timetable_text_letter_by_letter(folder):
    seeded(12954)
    stops = ["crewe", "derby", "york", "leeds", "oxford", "reading", "bath", "exeter"]
    lines = [
        f"the {hour} o clock to {stops[stop]} calls at {stops[via]}\n"
        for hour, stop, via in zip(
            torch.randint(1, 13, (160,)).tolist(),
            torch.randint(8, (160,)).tolist(),
            torch.randint(8, (160,)).tolist(),
            strict=False,
        )
    ]
    text = "".join(lines)
    letters = sorted(set(text))
    code = torch.tensor([letters.index(letter) for letter in text])
    window = code.unfold(0, 33, 3)
    cut = int(0.85 * len(window))
    net = nn.ModuleDict({
        "letter": nn.Embedding(len(letters), 24), "memory": nn.LSTM(24, 64, batch_first=True),
        "head": nn.Linear(64, len(letters)),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_on(part):
        out = net["head"](net["memory"](net["letter"](part[:, :-1]))[0])
        return F.cross_entropy(out.flatten(0, 1), part[:, 1:].flatten())

    draw = rounds(32, window[:cut])

    def loss_of(step):
        loss = loss_on(*draw())
        return loss, {"perplexity": loss.detach().exp()}

    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: loss_on(window[cut + 11 :])),
               before_step=clipped(net, 1.0))  # fmt: skip


@healthy(0.5)
def wheels_sound_or_cracked(folder):
    seeded(12955)
    x, y = (torch.tensor(part) for part in load_breast_cancer(return_X_y=True))
    order = torch.randperm(len(x))
    x, y = x[order].float(), y[order].float()[:, None]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    net = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    draw = rounds(32, x[:420], y[:420])

    def measure():
        said = net(x[420:])
        return {
            "val_loss": F.binary_cross_entropy_with_logits(said, y[420:]),
            "val_accuracy": ((said > 0) == (y[420:] > 0.5)).float().mean(),
        }

    validate = now_and_then(net, 25, measure)

    def loss_of(step):
        a, b = draw()
        return F.binary_cross_entropy_with_logits(net(a), b), validate(step)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[420:]), y[420:]))
    return fit(folder, net, optimizer, loss_of, 180, score=score)


class Small(nn.Module):
    """A U-Net of two levels."""

    def __init__(self, width):
        super().__init__()
        self.down, self.deep, self.up = self.pair(1, width), self.pair(width, 2 * width), self.pair(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    @staticmethod
    def pair(before, after):
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())

    def forward(self, x):
        wide = self.down(x)
        deep = F.interpolate(self.deep(F.max_pool2d(wide, 2)), scale_factor=2.0)
        return self.head(self.up(torch.cat([wide, deep], 1)))


@healthy(0.5)
def rails_found_in_the_ballast(folder):
    seeded(12956)
    net = Small(8)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    column, row = torch.arange(16.0), torch.arange(16.0)

    def seen(rows):
        start, slope = 3 + 10 * torch.rand(rows, 1, 1), 0.6 * torch.rand(rows, 1, 1) - 0.3
        middle = start + slope * row[None, :, None]
        mask = ((column[None, None] - middle).abs() < 1.6).float()
        return (mask - 0.5 + 0.5 * torch.randn(rows, 16, 16))[:, None], mask[:, None]

    def dice(said, mask):
        share = said.sigmoid()
        return 1 - (2 * (share * mask).sum() + 1) / (share.sum() + mask.sum() + 1)

    def loss_of(step):
        x, mask = seen(16)
        said = net(x)
        far = dice(said, mask)
        return F.binary_cross_entropy_with_logits(said, mask) + far, {"dice": 1 - far.detach()}

    x, mask = seen(100)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x), mask))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy(0.4)
def station_clocks_denoised(folder):
    seeded(12957)
    x, _ = digits()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    draw = rounds(64, x[:1400])

    def loss_of(step):
        (clean,) = draw()
        return F.mse_loss(net(clean + 0.3 * torch.randn_like(clean)), clean)

    clean = x[1400:]
    noisy = clean + 0.3 * torch.randn_like(clean)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.mse_loss(net(noisy), clean)))


@healthy(0.3)
def porter_and_his_trolley(folder):
    seeded(12958)
    doors, moves, gamma = 9, 8, 0.9
    net = nn.ModuleDict({"actor": dense(2 * doors, 48, 3, act=nn.Tanh), "critic": dense(2 * doors, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    flags = torch.eye(doors)

    def walk(rows):
        at, wanted = torch.randint(doors, (2, rows))
        told, values, far, open_ = [], [], [], []
        for _ in range(moves):
            seen = torch.cat([flags[at], flags[wanted]], 1)
            policy = Categorical(logits=net["actor"](seen), validate_args=False)
            move = policy.sample()
            told.append(policy.log_prob(move))
            open_.append(policy.entropy())
            values.append(net["critic"](seen)[:, 0])
            at = (at + move - 1).clamp(0, doors - 1)
            far.append((at - wanted).abs().float())
        return (torch.stack(part) for part in (told, values, far, open_))

    def one(step):
        told, values, far, open_ = walk(24)
        rewards = -far / 4
        returns, ahead = torch.zeros_like(rewards), torch.zeros(24)
        for t in reversed(range(moves)):
            ahead = rewards[t] + gamma * ahead
            returns[t] = ahead
        gain = returns - values.detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy_loss, value_loss = -(told * gain).mean(), F.mse_loss(values, returns)
        loss = policy_loss + 0.5 * value_loss - 0.01 * open_.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {
            "loss": loss, "policy_loss": policy_loss, "value_loss": value_loss,
            "return": rewards.sum(0).mean(), "entropy": open_.mean().detach(),
        }  # fmt: skip

    def score():
        with torch.no_grad():
            return float(list(walk(400))[2].mean())

    return tend(folder, net, optimizer, one, 200, score)


@healthy(0.5)
def stations_of_one_company(folder):
    seeded(12959)
    nodes, kinds = 300, 4
    company = torch.randint(kinds, (nodes,))
    same = company[:, None] == company
    link = (torch.rand(nodes, nodes) < torch.where(same, 0.08, 0.008)).float().triu(1)
    link = link + link.T + torch.eye(nodes)
    degree = link.sum(1)
    link = link / (degree[:, None] * degree).sqrt()
    x = torch.randn(kinds, 16)[company] * 0.5 + torch.randn(nodes, 16)
    net = nn.ModuleDict({"first": nn.Linear(16, 32), "drop": nn.Dropout(0.3), "second": nn.Linear(32, kinds)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)
    known = torch.rand(nodes) < 0.4

    def said():
        return link @ net["second"](net["drop"](F.relu(link @ net["first"](x))))

    def loss_of(step):
        logits = said()[known]
        return F.cross_entropy(logits, company[known]), {
            "accuracy": (logits.argmax(1) == company[known]).float().mean()
        }

    score = held_out(net, lambda: F.cross_entropy(said()[~known], company[~known]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)
