"""Ten tasks: sirens, hydrants, boxes on forms, visitors, gaits, programmes, rotas, subscribers, stains, and fibres."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, judged, now_and_then, rounds


@healthy(0.6)
def sirens_of_engines_told_apart_by_their_sweep(folder):
    seeded(15112)
    time = torch.linspace(0, 1, 128)

    def sirens(rows):
        kind = torch.randint(5, (rows,))
        low, turns = 6 + 3 * kind[:, None].float(), 1 + (kind[:, None] % 3).float()
        shift = 6.2832 * torch.rand(rows, 1)
        phase = 6.2832 * low * time + 2.5 * (6.2832 * turns * time + shift).sin() + 6.2832 * torch.rand(rows, 1)
        return (1.4 * phase.sin() + 0.5 * torch.randn(rows, 128))[:, None], kind

    (x, y), (tx, ty) = sirens(2400), sirens(600)
    draw = rounds(48, x, y)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2, padding=4, bias=False), nn.BatchNorm1d(16), nn.ReLU(),
        nn.Conv1d(16, 32, 9, stride=2, padding=4, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Conv1d(32, 32, 5, stride=2, padding=2, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=300)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        sound, kind = draw()
        said = net(sound)
        right = (said.argmax(1) == kind).float().mean()
        return F.cross_entropy(said, kind), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)


@healthy(0.5)
def pressure_at_the_hydrants_of_the_old_town(folder):
    seeded(15113)
    way = torch.randn(9, 4) / 3

    def hydrants(rows):
        x = torch.randn(rows, 9)
        seen = x @ way
        bar = 4.5 + seen[:, 0] - 0.7 * seen[:, 1].square() + (1.5 * seen[:, 2]).tanh() * seen[:, 3]
        return x, (bar + 0.1 * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = hydrants(4000), hydrants(1000)
    middle, spread = y.mean(), y.std()
    y, ty = (y - middle) / spread, (ty - middle) / spread
    draw = rounds(64, x, y)
    net = dense(9, 64, 64, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def loss_of(step):
        hydrant, bar = draw()
        return F.huber_loss(net(hydrant), bar)

    score = held_out(net, lambda: F.huber_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy(0.6)
def digits_in_the_boxes_of_a_tax_form(folder):
    seeded(15114)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.305) / 0.376, y[order]
    draw = rounds(32, x[:1400], y[:1400])
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.GELU(), nn.Conv2d(24, 24, 3, padding=1), nn.GELU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(24 * 16, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [220, 300])
    validate = now_and_then(net, 43, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        box, digit = draw()
        said = net(box)
        return F.cross_entropy(said, digit, label_smoothing=0.05), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 344, score=score, schedule=schedule)


class Visitors(nn.Module):
    """Reads four weeks and says what tomorrow brings."""

    def __init__(self):
        super().__init__()
        self.read = nn.GRU(1, 32, batch_first=True)
        self.say = nn.Linear(32, 1)

    def forward(self, days):
        return self.say(self.read(days[..., None])[0][:, -1])[:, 0]


@healthy(0.5)
def visitors_at_the_gate_of_the_zoo_tomorrow(folder):
    seeded(15115)
    day = torch.arange(1200).float()
    mood = torch.zeros(1200)
    for i in range(1, 1200):
        mood[i] = 0.8 * mood[i - 1] + 0.3 * torch.randn(())
    came = (6.2832 * day / 7).sin() + 0.5 * (6.2832 * day / 3.5).cos() + 0.6 * (6.2832 * day / 365).sin() + mood
    past = came[:900]
    came = (came - past.mean()) / past.std()
    weeks = came.unfold(0, 29, 1)
    train, test = weeks[:870], weeks[905:]
    draw = rounds(32, train[:, :28], train[:, 28])
    net = Visitors()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    validate = now_and_then(net, 27, lambda: {"val_loss": F.mse_loss(net(test[:, :28]), test[:, 28])})

    def loss_of(step):
        days, tomorrow = draw()
        return F.mse_loss(net(days), tomorrow), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(test[:, :28]), test[:, 28]))
    return fit(folder, net, optimizer, loss_of, 270, score=score, before_step=clipped(net, 1.0))


class Gaits(nn.Module):
    """A variational autoencoder with a code of four numbers."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = dense(32, 96, 8, act=nn.SiLU), dense(4, 96, 32, act=nn.SiLU)

    def forward(self, x):
        middle, log_variance = self.encode(x).chunk(2, 1)
        code = middle + (log_variance / 2).exp() * torch.randn_like(middle)
        return self.decode(code), middle, log_variance


@healthy(0.3)
def gaits_of_the_elephants_in_four_numbers(folder):
    seeded(15116)
    lift = torch.randn(5, 32) / 1.6

    def gaits(rows):
        step, speed = 6.2832 * torch.rand(rows), torch.randn(rows)
        told = torch.stack([step.cos(), step.sin(), speed * 0.7, (2 * step).cos() * 0.5, speed * step.sin() * 0.5], 1)
        return told @ lift + 0.1 * torch.randn(rows, 32)

    x, tx = gaits(3000), gaits(800)
    draw = rounds(64, x)
    net = Gaits()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def terms(x):
        """Both terms of the bound for a noise of 0.3 on each of 32 numbers, by number."""
        again, middle, log_variance = net(x)
        recon = (again - x).square().sum(1).mean() / (2 * 0.3**2) / 32
        kl = -0.5 * (1 + log_variance - middle.square() - log_variance.exp()).sum(1).mean() / 32
        return recon, kl

    def loss_of(step):
        recon, kl = terms(draw()[0])
        return recon + kl, {"recon": float(recon), "kl": float(kl)}

    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: sum(terms(tx))))


@healthy(0.3)
def tags_for_the_programmes_of_the_coming_season(folder):
    seeded(15117)
    tags, words, length = 8, 250, 24
    habits = (1.8 * torch.randn(tags, words)).softmax(1)

    def programmes(rows):
        has = (torch.rand(rows, tags) < 0.3).float()
        has[torch.arange(rows), torch.randint(tags, (rows,))] = 1
        mixed = has @ habits / has.sum(1, keepdim=True)
        return torch.multinomial(mixed, length, replacement=True), has

    (x, y), (tx, ty) = programmes(4000), programmes(1000)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.EmbeddingBag(words, 64, mode="mean"), nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(64, tags),
    )  # fmt: skip
    optimizer = torch.optim.Adagrad(net.parameters(), 0.03)

    def measure():
        said = net(tx)
        found = F.binary_cross_entropy_with_logits(said, ty)
        return {"val_loss": found, "val_accuracy": ((said > 0) == (ty > 0.5)).float().mean()}

    validate = now_and_then(net, 62, measure)

    def loss_of(step):
        programme, has = draw()
        return F.binary_cross_entropy_with_logits(net(programme), has), validate(step)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


class Rota(nn.Module):
    """A small decoder: two blocks of causal attention."""

    def __init__(self, kinds, length, width=48):
        super().__init__()
        self.token, self.place = nn.Embedding(kinds, width), nn.Embedding(length, width)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens):
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, src_mask=self.mask)
        return self.head(self.norm(x))


@healthy(0.4)
def who_is_fed_next_on_the_rota_of_the_keepers(folder):
    seeded(15118)
    kinds, length = 12, 20
    after = torch.randint(kinds, (kinds, kinds))

    def rotas(rows):
        days = [torch.randint(kinds, (rows,)), torch.randint(kinds, (rows,))]
        for _ in range(length - 1):
            odd = torch.rand(rows) < 0.08
            days.append(torch.where(odd, torch.randint(kinds, (rows,)), after[days[-1], days[-2]]))
        return torch.stack(days, 1)

    rows, test = rotas(3000), rotas(300)
    draw = rounds(32, rows)
    net = Rota(kinds, length)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 30, 1.0) * (1 - 0.9 * step / 210)
    )

    def entropy(rota):
        return F.cross_entropy(net(rota[:, :-1]).flatten(0, 1), rota[:, 1:].flatten())

    validate = now_and_then(net, 35, lambda: {"val_loss": entropy(test)})

    def loss_of(step):
        return entropy(draw()[0]), validate(step)

    score = held_out(net, lambda: entropy(test))
    return fit(folder, net, optimizer, loss_of, 210, score=score, schedule=schedule, before_step=clipped(net, 1.0))


class Tastes(nn.Module):
    """A factorisation with a bias for each subscriber and each concert."""

    def __init__(self, people, concerts, width=8):
        super().__init__()
        self.people, self.concerts = nn.Embedding(people, width), nn.Embedding(concerts, width)
        self.of_people, self.of_concerts = nn.Embedding(people, 1), nn.Embedding(concerts, 1)
        for table in (self.people, self.concerts):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.of_people, self.of_concerts):
            nn.init.zeros_(table.weight)

    def forward(self, person, concert):
        both = (self.people(person) * self.concerts(concert)).sum(1)
        return both + self.of_people(person)[:, 0] + self.of_concerts(concert)[:, 0]


@healthy(0.4)
def stars_that_subscribers_give_to_chamber_concerts(folder):
    seeded(15119)
    people, concerts = 150, 60
    taste, style = torch.randn(people, 3), torch.randn(concerts, 3)
    person, concert = torch.randint(people, (9000,)), torch.randint(concerts, (9000,))
    stars = (taste[person] * style[concert]).sum(1) + torch.randn(people)[person] * 0.7
    stars = stars + torch.randn(concerts)[concert] * 0.7 + 0.2 * torch.randn(9000)
    middle, spread = stars[:7500].mean(), stars[:7500].std()
    stars = (stars - middle) / spread
    draw = rounds(250, person[:7500], concert[:7500], stars[:7500])
    net = Tastes(people, concerts)
    optimizer = torch.optim.Adam(net.parameters(), 0.02, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)

    def missed():
        return F.mse_loss(net(person[7500:], concert[7500:]), stars[7500:])

    validate = now_and_then(net, 30, lambda: {"val_loss": missed(), "val_rmse": missed().sqrt()})

    def loss_of(step):
        who, what, given = draw()
        return F.mse_loss(net(who, what), given), validate(step)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, missed), schedule=schedule)


class Stains(nn.Module):
    """Down once, up once, and across."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.GroupNorm(4, 24), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

    def forward(self, x):
        fine = self.inner(x)
        return self.out(torch.cat([fine, self.up(self.down(fine))], 1))


@healthy(0.5)
def stains_on_the_sheet_as_it_leaves_the_press(folder):
    seeded(15120)
    away = torch.arange(16).float()

    def sheets(rows):
        at, wide = 3 + 10 * torch.rand(rows, 2, 2), 2 + 1.5 * torch.rand(rows, 2, 1, 1)
        dy = (away[:, None] - at[..., 0, None, None]).square()
        dx = (away - at[..., 1, None, None]).square()
        stain = ((dy + dx).sqrt() < wide).any(1, keepdim=True).float()
        cloudy = F.interpolate(torch.randn(rows, 1, 4, 4), size=16, mode="bilinear")
        return 1.6 * stain - 0.4 + 0.5 * cloudy + 0.5 * torch.randn(rows, 1, 16, 16), stain

    (x, y), (tx, ty) = sheets(800), sheets(200)
    draw = rounds(16, x, y)
    net = Stains()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def terms(sheet, stain):
        said = net(sheet)
        share = said.sigmoid()
        dice = 1 - (2 * (share * stain).sum((1, 2, 3)) + 1) / (share.sum((1, 2, 3)) + stain.sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, stain), dice.mean()

    validate = now_and_then(net, 25, lambda: dict(zip(("val_bce", "val_dice"), terms(tx, ty), strict=True)))

    def loss_of(step):
        bce, dice = terms(*draw())
        return bce + dice, {"bce": float(bce), "dice": float(dice), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: sum(terms(tx, ty))))


@healthy(0.6)
def lengths_and_widths_of_fibres_made_up_by_a_pair_of_nets(folder):
    seeded(15121)
    bend = torch.tensor([[1.0, 0.5], [-0.3, 0.8]])

    def fibres(rows):
        kind = torch.where(torch.rand(rows, 1) < 0.5, -1.0, 1.0)
        return (torch.cat([kind, kind * 0.5], 1) + 0.3 * torch.randn(rows, 2)) @ bend

    fresh = fibres(500)
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 5e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))

    def judge_loss():
        made = make(torch.randn(64, 4)).detach()
        return F.softplus(-judge(fibres(64))).mean() + F.softplus(judge(made)).mean()

    def make_loss():
        return F.softplus(-judge(make(torch.randn(64, 4)))).mean()

    def score():
        """The energy distance of what is made from fresh fibres."""
        with torch.no_grad():
            made = make(torch.randn(500, 4))
            within = (torch.cdist(made, made).mean() + torch.cdist(fresh, fresh).mean()) / 2
            return float(torch.cdist(made, fresh).mean() - within)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score)
