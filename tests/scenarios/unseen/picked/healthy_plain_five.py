"""What else a field asks for: tastes, signatures, tags, two answers from one net, a small copy, boxes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds


@healthy()
def podcasts_for_a_listener(folder):
    seeded(3225)
    people, shows = 300, 200
    taste, kind = torch.randn(people, 4), torch.randn(shows, 4)
    liking = taste @ kind.T + 0.5 * torch.randn(shows)
    heard = liking + 0.8 * torch.randn(people, shows) > liking.quantile(0.85)
    pairs = heard.nonzero()
    pairs = pairs[torch.randperm(len(pairs))]
    train, fresh = pairs[1500:], pairs[:1500]
    net = nn.ModuleDict(
        {"people": nn.Embedding(people, 16), "shows": nn.Embedding(shows, 16), "known": nn.Embedding(shows, 1)}
    )
    nn.init.zeros_(net["known"].weight)
    for part in ("people", "shows"):
        nn.init.normal_(net[part].weight, std=0.1)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    draw = rounds(128, train)

    def ranked(pairs):
        who, what = pairs.T
        other = torch.randint(shows, what.shape)
        value = [(net["people"](who) * net["shows"](s)).sum(1) + net["known"](s)[:, 0] for s in (what, other)]
        rows = torch.cat([net["people"](who), net["shows"](what), net["shows"](other)])
        return -F.logsigmoid(value[0] - value[1]).mean(), rows.square().sum(1).mean()

    def loss_of(step):
        (pairs,) = draw()
        loss, size = ranked(pairs)
        return loss + 0.02 * size, {"bpr": loss.item()}

    return fit(folder, net, optimizer, loss_of, 1200, score=held_out(net, lambda: ranked(fresh)[0]))


@healthy()
def signatures_of_the_same_hand(folder):
    seeded(3226)
    hands = torch.randn(60, 5)
    bend, blur = torch.randn(5, 48), torch.randn(6, 48)

    def signed(who):
        return (hands[who] @ bend + 0.7 * torch.randn(len(who), 6) @ blur).tanh() + 0.2 * torch.randn(len(who), 48)

    def triplets(low, high, rows=64):
        who = torch.randint(low, high, (rows,))
        other = low + (who - low + torch.randint(1, high - low, (rows,))) % (high - low)
        return [F.normalize(net(signed(w)), dim=1) for w in (who, who, other)]

    net = dense(48, 96, 64, 16, norm=nn.LayerNorm)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loss = nn.TripletMarginLoss(margin=0.3)

    def loss_of(step):
        one, same, other = triplets(0, 45)
        right = ((one - same).norm(dim=1) < (one - other).norm(dim=1)).float().mean()
        return loss(one, same, other), {"right": right.item()}

    score = held_out(net, lambda: loss(*triplets(45, 60, 600)))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


@healthy()
def subjects_of_press_articles(folder):
    seeded(3227)
    rows, train, tags = 5600, 5000, 40
    themes = torch.randn(rows, 10)
    marks = themes @ torch.randn(10, tags) + 0.8 * torch.randn(rows, tags)
    share = torch.logspace(-0.6, -2, tags)
    y = torch.stack([(marks[:, i] > marks[:, i].quantile(1 - float(share[i]))).float() for i in range(tags)], 1)
    x = (themes @ torch.randn(10, 120) + 2 * torch.randn(rows, 120)) / 3.5
    net = nn.Sequential(nn.Linear(120, 128), nn.GELU(), nn.Dropout(0.3), nn.Linear(128, tags))
    nn.init.zeros_(net[-1].weight)
    with torch.no_grad():
        net[-1].bias.copy_(y[:train].mean(0).logit())
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 468)
    draw = rounds(128, x[:train], y[:train])

    def loss_of(step):
        a, b = draw()
        out = net(a)
        found = ((out > 0) & (b > 0)).sum() / b.sum()
        return F.binary_cross_entropy_with_logits(out, b), {"recall": found.item()}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[train:]), y[train:]))
    return fit(folder, net, optimizer, loss_of, 468, schedule=schedule, score=score)


@healthy()
def flats_with_their_price_and_heating(folder):
    seeded(3228)
    rows, train = 6000, 5200
    x = torch.randn(rows, 12)
    hidden = (x @ torch.randn(12, 6) / 3).tanh()
    price = hidden @ torch.randn(6) + 0.4 * hidden[:, 0] * hidden[:, 1] + 0.2 * torch.randn(rows)
    price = (price - price[:train].mean()) / price[:train].std()
    heating = (2 * hidden @ torch.randn(6, 4) + 0.3 * torch.randn(rows, 4)).argmax(1)
    net = nn.ModuleDict(
        {"trunk": nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()),
         "price": nn.Linear(64, 1), "heating": nn.Linear(64, 4)}
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu")
    draw = rounds(128, x[:train], price[:train], heating[:train])

    def terms(x, price, heating):
        with torch.autocast("cpu", dtype=torch.float16):
            h = net["trunk"](x)
            cost, kind = net["price"](h)[:, 0], net["heating"](h)
        return F.mse_loss(cost.float(), price), F.cross_entropy(kind.float(), heating)

    def loss_of(step):
        cost, kind = terms(*draw())
        return cost + 0.5 * kind, {"price_loss": cost.item(), "heating_loss": kind.item()}

    def before_step(step):
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)

    score = held_out(net, lambda: sum(terms(x[train:], price[train:], heating[train:])))
    return fit(folder, net, optimizer, loss_of, 40 * 9, before_step=before_step, scaler=scaler, score=score)


@healthy()
def tiles_graded_by_a_small_copy(folder):
    seeded(3229)
    lift = torch.randn(4, 24)

    def draw(rows=64):
        point = torch.randn(rows, 4)
        y = (point[:, 0] * point[:, 1] > 0).long() + 2 * (point[:, 2].abs() > 0.7).long()
        return (point @ lift).tanh() + 0.15 * torch.randn(rows, 24), y

    teacher = dense(24, 128, 128, 4)
    before = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(500):
        x, y = draw()
        before.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        before.step()
    teacher.eval().requires_grad_(False)

    net = dense(24, 32, 32, 4)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    warmth = 3.0

    def loss_of(step):
        x, y = draw()
        with torch.no_grad():
            told = (teacher(x) / warmth).log_softmax(1)
        out = net(x)
        soft = F.kl_div((out / warmth).log_softmax(1), told, reduction="batchmean", log_target=True) * warmth**2
        hard = F.cross_entropy(out, y)
        return 0.7 * soft + 0.3 * hard, {"soft": soft.item(), "hard": hard.item()}

    def score():
        x, y = draw(1000)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, 800, score=held_out(net, score))


def harbour(rows, size=32, cells=8):
    """Views with up to three boats; for each cell whether a boat's middle is in it, and where and how large it is."""
    x = 0.25 * torch.randn(rows, 1, size, size)
    there, boxes = torch.zeros(rows, cells, cells), torch.zeros(rows, 4, cells, cells)
    wide = size // cells
    for row in range(rows):
        for _ in range(int(torch.randint(1, 4, ()))):
            w, h = (3 + 7 * torch.rand(2)).tolist()
            cx, cy = (5 + (size - 10) * torch.rand(2)).tolist()
            x[row, 0, round(cy - h / 2) : round(cy + h / 2), round(cx - w / 2) : round(cx + w / 2)] += 1
            i, j = int(cy // wide), int(cx // wide)
            there[row, i, j] = 1
            boxes[row, :, i, j] = torch.tensor([cx / wide - j, cy / wide - i, w / 10, h / 10])
    return x, there, boxes


@healthy()
def boats_at_anchor_in_their_boxes(folder):
    seeded(3230)
    x, there, boxes = harbour(900)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.GroupNorm(4, 24),
        nn.SiLU(), nn.Conv2d(24, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1),
        nn.SiLU(), nn.Conv2d(32, 5, 1),
    )  # fmt: skip
    with torch.no_grad():
        net[-1].bias[0] = -3.0
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 240, power=0.9)
    draw = rounds(24, x[:780], there[:780], boxes[:780])

    def terms(x, there, boxes):
        out = net(x)
        p, cross = out[:, 0].sigmoid(), F.binary_cross_entropy_with_logits(out[:, 0], there, reduction="none")
        missed = torch.where(there > 0, 1 - p, p)
        focal = (torch.where(there > 0, 0.75, 0.25) * missed.square() * cross).sum() / there.sum()
        box = (F.smooth_l1_loss(out[:, 1:], boxes, reduction="none").sum(1) * there).sum() / there.sum()
        return focal, box

    def loss_of(step):
        focal, box = terms(*draw())
        return focal + box, {"focal": focal.item(), "box": box.item()}

    score = held_out(net, lambda: sum(terms(x[780:], there[780:], boxes[780:])))
    return fit(folder, net, optimizer, loss_of, 240, schedule=schedule, before_step=clipped(net, 10.0), score=score)
