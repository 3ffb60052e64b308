"""Ten tasks: stripes, dispatch, seats, firms, a small student, arrivals, a borrowed body, calls, duties, and sheets."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.4)
def zebras_known_again_by_the_stripes_of_either_flank(folder):
    seeded(15122)
    stripes = torch.randn(6, 40) / 6**0.5
    other = stripes + 0.4 * torch.randn(6, 40)

    def zebras(rows):
        one = torch.randn(rows, 6)
        return (one @ stripes).sin() + 0.2 * torch.randn(rows, 40), (one @ other).sin() + 0.2 * torch.randn(rows, 40)

    left, right = zebras(4000)
    test = zebras(256)
    draw = rounds(64, left, right)
    net = nn.ModuleDict({"left": dense(40, 96, 16), "right": dense(40, 96, 16)})
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def matched(left, right):
        a, b = F.normalize(net["left"](left), dim=1), F.normalize(net["right"](right), dim=1)
        alike = a @ b.T / 0.1
        own = torch.arange(len(a))
        found = (alike.argmax(1) == own).float().mean()
        return (F.cross_entropy(alike, own) + F.cross_entropy(alike.T, own)) / 2, found

    validate = now_and_then(net, 60, lambda: dict(zip(("val_loss", "val_top1"), matched(*test), strict=True)))

    def loss_of(step):
        loss, found = matched(*draw())
        return loss, {"top1": float(found), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 360, score=held_out(net, lambda: matched(*test)[0]))


@healthy(0.5)
def which_engine_house_answers_learnt_by_trying(folder):
    seeded(15123)
    houses = torch.tensor([[0.2, 0.2], [0.8, 0.2], [0.2, 0.8], [0.8, 0.8], [0.5, 0.5]])

    def minutes(place, house):
        """The way to the fire; the house in the middle is slow to leave."""
        return 10 * (place - houses[house]).norm(dim=1) + torch.where(house == 4, 1.5, 0.0)

    net = dense(2, 48, 48, 5, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    test = torch.rand(1000, 2)

    def policy(place):
        return torch.distributions.Categorical(logits=net((place - 0.5) / 0.29))

    def one(step):
        """REINFORCE: the better than usual is made more likely."""
        place = torch.rand(128, 2)
        chosen = policy(place)
        house = chosen.sample()
        reward = -minutes(place, house) - 0.5 * torch.randn(128).abs()
        gain = (reward - reward.mean()) / (reward.std() + 1e-6)
        entropy = chosen.entropy().mean()
        loss = -(gain * chosen.log_prob(house)).mean() - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        return {"loss": loss, "reward": float(reward.mean()), "entropy": float(entropy.detach())}

    def score():
        """The minutes that are expected beyond those of the best house."""
        with torch.no_grad():
            share = policy(test).probs
            each = torch.stack([minutes(test, torch.full((1000,), house)) for house in range(5)], 1)
            return float((share * each).sum(1).mean() - each.amin(1).mean())

    return tend(folder, net, optimizer, one, 500, score)


@healthy(0.3)
def seats_in_the_hall_drawn_out_of_noise(folder):
    seeded(15124)
    keep = torch.cumprod(1 - torch.linspace(1e-3, 0.12, 40), 0)

    def seats(rows):
        """Three arcs around the stage."""
        angle = 3.1416 * torch.rand(rows)
        radius = 0.6 + 0.6 * torch.randint(3, (rows,)) + 0.03 * torch.randn(rows)
        flat = torch.stack([angle.cos() * radius, angle.sin() * radius - 0.76], 1)
        return flat / 0.75

    x, tx = seats(5000), seats(4000)
    draw = rounds(128, x)
    net = dense(12, 96, 96, 2, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500)
    waves = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])

    def missed(x):
        at = torch.randint(40, (len(x),))
        noise = torch.randn_like(x)
        noisy = keep[at].sqrt()[:, None] * x + (1 - keep[at]).sqrt()[:, None] * noise
        told = at[:, None] / 40 * waves
        return F.mse_loss(net(torch.cat([noisy, told.sin(), told.cos()], 1)), noise)

    def loss_of(step):
        return missed(draw()[0])

    score = held_out(net, lambda: missed(tx))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


class Firms(nn.Module):
    """Two layers over what neighbours are, and what each one is itself (GraphSAGE)."""

    def __init__(self, mix):
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 4)])
        self.near = nn.ModuleList([nn.Linear(16, 32, bias=False), nn.Linear(32, 4, bias=False)])
        self.drop = nn.Dropout(0.3)
        self.register_buffer("mix", mix)

    def forward(self, x):
        x = self.drop((self.own[0](x) + self.near[0](self.mix @ x)).relu())
        return self.own[1](x) + self.near[1](self.mix @ x)


@healthy(0.3)
def trades_of_firms_from_whom_they_send_invoices_to(folder):
    seeded(15125)
    y = torch.randint(4, (600,))
    chance = torch.where(y[:, None] == y[None], 0.03, 0.006)
    sent = (torch.rand(600, 600) < chance).float()
    sent = ((sent + sent.T) > 0).float().fill_diagonal_(0)
    mix = sent / sent.sum(1, keepdim=True).clamp(1)
    x = 0.5 * torch.randn(4, 16)[y] + torch.randn(600, 16)
    order = torch.randperm(600)
    known, rest = order[:350], order[350:]
    net = Firms(mix)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=1e-3)

    def measure():
        said = net(x)[rest]
        right = (said.argmax(1) == y[rest]).float().mean()
        return {"val_loss": F.cross_entropy(said, y[rest]), "val_accuracy": right}

    validate = now_and_then(net, 10, measure)

    def loss_of(step):
        said = net(x)[known]
        right = (said.argmax(1) == y[known]).float().mean()
        return F.cross_entropy(said, y[known]), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 100, score=held_out(net, lambda: measure()["val_loss"]))


@healthy(0.4)
def a_small_net_that_learns_wage_groups_from_a_large_one(folder):
    seeded(15126)
    middles = 1.2 * torch.randn(6, 2, 12)

    def wages(rows):
        group, kind = torch.randint(6, (rows,)), torch.randint(2, (rows,))
        return (middles[group, kind] + torch.randn(rows, 12)) / 1.5, group

    (x, y), (tx, ty) = wages(4000), wages(1000)
    draw = rounds(64, x, y)
    teacher = dense(12, 128, 128, 6)
    of_teacher = torch.optim.Adam(teacher.parameters(), 1e-3)
    for _ in range(250):
        row, group = draw()
        of_teacher.zero_grad()
        F.cross_entropy(teacher(row), group).backward()
        of_teacher.step()
    teacher.eval().requires_grad_(False)
    net = dense(12, 24, 6)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    validate = now_and_then(net, 62, judged(net, tx, ty))
    warm = 3.0

    def loss_of(step):
        row, group = draw()
        said, told = net(row), teacher(row)
        soft = warm**2 * F.kl_div(
            F.log_softmax(said / warm, 1), F.log_softmax(told / warm, 1), reduction="batchmean", log_target=True
        )
        hard = F.cross_entropy(said, group)
        return 0.5 * soft + 0.5 * hard, {"soft": float(soft), "hard": float(hard), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.4)
def when_the_ladder_arrives_at_the_earliest_and_the_latest(folder):
    seeded(15127)
    way = torch.randn(7, 3) / 7**0.5
    levels = torch.tensor([0.1, 0.5, 0.9])

    def alarms(rows):
        x = torch.randn(rows, 7)
        seen = x @ way
        minutes = 7 + 2 * seen[:, 0] + 1.5 * seen[:, 1].abs() + (0.6 + 0.4 * seen[:, 2].tanh()) * torch.randn(rows)
        return x, minutes[:, None]

    (x, y), (tx, ty) = alarms(5000), alarms(1500)
    middle, spread = y.mean(), y.std()
    y, ty = (y - middle) / spread, (ty - middle) / spread
    draw = rounds(100, x, y)
    net = nn.Sequential(
        nn.Linear(7, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 3)
    )
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, 400)

    def pinball(said, minutes):
        gap = minutes - said
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    def measure():
        said = net(tx)
        inside = ((ty[:, 0] > said[:, 0]) & (ty[:, 0] < said[:, 2])).float().mean()
        return {"val_loss": pinball(said, ty), "val_coverage": inside}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        alarm, minutes = draw()
        return pinball(net(alarm), minutes), validate(step)

    score = held_out(net, lambda: pinball(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy(0.5)
def stamps_of_the_tax_office_read_with_a_borrowed_body(folder):
    seeded(15128)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.305) / 0.376, y[order]
    low, high = (y < 6).nonzero()[:, 0], (y >= 6).nonzero()[:, 0]
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(),
    )  # fmt: skip
    before = nn.Sequential(body, nn.Linear(64, 6))
    of_before, draw = torch.optim.Adam(before.parameters(), 1e-3), rounds(64, x[low], y[low])
    for _ in range(120):
        image, digit = draw()
        of_before.zero_grad()
        F.cross_entropy(before(image), digit).backward()
        of_before.step()

    train, test = high[:500], high[500:]
    draw = rounds(32, x[train], y[train] - 6)
    net = nn.Sequential(body, nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(
        [{"params": net[0].parameters(), "lr": 2e-4}, {"params": net[1].parameters(), "lr": 2e-3}], weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 15, (151 - step) / 136))
    validate = now_and_then(net, 15, judged(net, x[test], y[test] - 6))

    def loss_of(step):
        image, digit = draw()
        said = net(image)
        right = (said.argmax(1) == digit).float().mean()
        return F.cross_entropy(said, digit), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[test]), y[test] - 6))
    return fit(folder, net, optimizer, loss_of, 150, score=score, schedule=schedule)


@healthy(0.3)
def calls_to_the_fire_brigade_in_an_hour_of_the_night(folder):
    seeded(15129)

    def hours(rows):
        hour, cold, wind = 24 * torch.rand(rows), torch.randn(rows), torch.randn(rows)
        feast = (torch.rand(rows) < 0.2).float()
        turn = 6.2832 * hour / 24
        rate = (0.9 + 0.6 * turn.cos() + 0.4 * cold * wind.tanh() + 0.8 * feast * turn.sin()).exp()
        x = torch.stack([turn.cos(), turn.sin(), cold, wind, feast - 0.2], 1)
        return x, torch.poisson(rate)

    (x, y), (tx, ty) = hours(6000), hours(2000)
    draw = rounds(128, x, y)
    net = dense(5, 48, 48, 1, act=nn.ELU)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450)

    def deviance(x, calls):
        """Twice what the likelihood falls short of that of the counts themselves, by hour."""
        said = net(x)[:, 0]
        return 2 * (torch.xlogy(calls, calls) - calls * said - calls + said.exp()).mean()

    def loss_of(step):
        hour, calls = draw()
        return F.poisson_nll_loss(net(hour)[:, 0], calls, full=True)

    score = held_out(net, lambda: deviance(tx, ty))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


class Duties(nn.Module):
    """A tag for each word of a note; rows are filled up with zeros."""

    def __init__(self, words, tags):
        super().__init__()
        self.words = nn.Embedding(words, 32, padding_idx=0)
        self.read = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.say = nn.Linear(64, tags)

    def forward(self, notes):
        lengths = (notes > 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(self.words(notes), lengths, batch_first=True, enforce_sorted=False)
        read, _ = nn.utils.rnn.pad_packed_sequence(self.read(packed)[0], batch_first=True, total_length=notes.shape[1])
        return self.say(read)


@healthy(0.5)
def duties_named_in_the_notes_of_the_keepers(folder):
    seeded(15130)
    words, tags, length = 60, 5, 14
    base, turns = torch.randint(tags, (words,)), torch.rand(words) < 0.3

    def notes(rows):
        note = torch.randint(1, words, (rows, length))
        before = torch.cat([torch.zeros(rows, 1, dtype=torch.bool), turns[note[:, :-1]]], 1)
        tag = (base[note] + before.long()) % tags
        empty = torch.arange(length) >= torch.randint(5, length + 1, (rows, 1))
        return note.masked_fill(empty, 0), tag.masked_fill(empty, -100)

    (x, y), (tx, ty) = notes(2500), notes(400)
    draw = rounds(32, x, y)
    net = Duties(words, tags)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def entropy(note, tag):
        return F.cross_entropy(net(note).flatten(0, 1), tag.flatten(), ignore_index=-100)

    def measure():
        said, told = net(tx), ty >= 0
        right = (said.argmax(2) == ty)[told].float().mean()
        return {"val_loss": F.cross_entropy(said[told], ty[told]), "val_accuracy": right}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        return entropy(*draw()), validate(step)

    score = held_out(net, lambda: entropy(tx, ty))
    return fit(folder, net, optimizer, loss_of, 190, score=score, before_step=clipped(net, 1.0))


@healthy(0.4)
def moisture_of_the_sheet_where_two_outcomes_are_likely(folder):
    seeded(15131)
    way = torch.randn(6, 2) / 6**0.5

    def sheets(rows):
        x = torch.randn(rows, 6)
        seen = x @ way
        side = torch.where(torch.rand(rows) < seen[:, 1].sigmoid(), 1.0, -1.0)
        return x, side * (1 + 0.5 * (2 * seen[:, 0]).sin()) + 0.15 * torch.randn(rows)

    (x, y), (tx, ty) = sheets(5000), sheets(1500)
    draw = rounds(100, x, y)
    net = dense(6, 64, 64, 9, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450)

    def missed(x, y):
        """How unlikely it is, by a mixture of three bells."""
        share, middle, wide = net(x).chunk(3, 1)
        bells = torch.distributions.Normal(middle, F.softplus(wide) + 0.02)
        mixed = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=share), bells)
        return -mixed.log_prob(y).mean()

    def loss_of(step):
        return missed(*draw())

    score = held_out(net, lambda: missed(tx, ty))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule, before_step=clipped(net, 5.0))
