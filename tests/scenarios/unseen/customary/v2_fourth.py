"""A call centre, a planetarium, a railway, a bakery, an orchard: agents, waits, calls, stars, trees, axles, ovens."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.5)
def calls_put_through_to_the_agent_who_solves_them(folder):
    seeded(14822)
    skill = torch.randn(6, 8)

    def solved(call):
        return (1.5 * call @ skill.T / 8**0.5).sigmoid()

    asked = torch.randn(2000, 8)
    net = nn.ModuleDict({"policy": dense(8, 48, 6, act=nn.Tanh), "value": dense(8, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        call = torch.randn(128, 8)
        logs = net["policy"](call).log_softmax(1)
        chosen = torch.multinomial(logs.detach().exp(), 1)
        reward = torch.bernoulli(solved(call).gather(1, chosen))
        hoped = net["value"](call)
        gain = reward - hoped.detach()
        entropy = -(logs.exp() * logs).sum(1).mean()
        policy = -(gain * logs.gather(1, chosen)).mean()
        value = F.mse_loss(hoped, reward)
        logged = {"policy_loss": float(policy), "value_loss": float(value), "entropy": float(entropy)}
        return policy + 0.5 * value - 0.005 * entropy, {"reward": float(reward.mean()), **logged}

    def regret():
        chance = solved(asked)
        return (chance.max(1).values - (net["policy"](asked).softmax(1) * chance).sum(1)).mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, regret), before_step=clipped(net, 1.0))


@healthy(0.6)
def loaf_numbers_learnt_by_a_little_net_from_a_larger_one(folder):
    seeded(14823)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.305) / 0.376, y[order]
    draw = rounds(70, x[:1400], y[:1400])
    teacher, net = dense(64, 256, 10), dense(64, 32, 10)
    lessons = torch.optim.Adam(teacher.parameters(), 2e-3)
    for _ in range(160):
        image, number = draw()
        lessons.zero_grad()
        F.cross_entropy(teacher(image), number).backward()
        lessons.step()
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    validate = now_and_then(net, 20, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        said, taught = net(image), teacher(image)
        hard = F.cross_entropy(said, number)
        soft = 4 * F.kl_div((said / 2).log_softmax(1), (taught / 2).softmax(1), reduction="batchmean")
        return 0.5 * hard + 0.5 * soft, {"hard": float(hard), "soft": float(soft), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy(0.35)
def minutes_in_the_queue_by_three_quantiles(folder):
    seeded(14824)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def waits(rows):
        x = torch.randn(rows, 6)
        middle = 1.2 * x[:, 0] + (1.5 * x[:, 1]).sin() + 0.6 * x[:, 2] * x[:, 3].tanh()
        return x, (middle + (0.1 + 0.3 * (x[:, 4]).sigmoid()) * torch.randn(rows))[:, None] / 1.5

    (x, y), (vx, vy) = waits(4000), waits(2000)
    draw = rounds(100, x, y)
    net = nn.Sequential(nn.Linear(6, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 3))
    optimizer = torch.optim.NAdam(net.parameters(), 2e-3)

    def pinball(said, wait):
        short = wait - said
        return torch.maximum(levels * short, (levels - 1) * short).mean()

    def measure():
        said = net(vx)
        inside = ((vy > said[:, :1]) & (vy < said[:, 2:])).float().mean()
        return {"val_loss": pinball(said, vy), "covered": inside}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        state, wait = draw()
        return pinball(net(state), wait), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: pinball(net(vx), vy)))


@healthy(0.3)
def how_many_calls_come_in_each_quarter_of_an_hour(folder):
    seeded(14825)

    def quarters(rows):
        """Time of day and of the week as angles, whether bills went out, and the calls that came."""
        day, week = 6.2832 * torch.rand(2, rows)
        bills = (torch.rand(rows) < 0.3).float()
        x = torch.stack([day.sin(), day.cos(), week.sin(), week.cos(), 2 * bills - 1], 1)
        rate = (0.8 + 0.9 * day.sin() + 0.4 * (2 * day).cos() + 0.4 * week.cos() + 0.7 * bills).exp()
        return x, torch.poisson(rate)

    (x, y), (vx, vy) = quarters(4000), quarters(2000)
    draw = rounds(80, x, y)
    net = dense(5, 32, 32, 1, act=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 300], 0.3)
    criterion = nn.PoissonNLLLoss(full=True)
    validate = now_and_then(net, 50, lambda: {"val_loss": criterion(net(vx)[:, 0], vy)})

    def loss_of(step):
        quarter, calls = draw()
        return criterion(net(quarter)[:, 0], calls), validate(step)

    score = held_out(net, lambda: criterion(net(vx)[:, 0], vy))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy(0.6)
def where_the_comet_stands_and_which_way_its_tail_points(folder):
    seeded(14826)
    across = torch.arange(14).float()
    ways = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]])

    def skies(rows):
        at, way = 4 + 6 * torch.rand(rows, 2), torch.randint(4, (rows,))
        grid = torch.stack(torch.meshgrid(across, across, indexing="ij"), -1)
        off = grid[None] - at[:, None, None]
        along = (off * ways[way][:, None, None]).sum(-1)
        aside = off.square().sum(-1) - along.square()
        light = 1.5 * (-off.square().sum(-1) / 2).exp() + (along > 0) * (-along / 3 - aside).exp()
        return ((light + 0.2 * torch.randn(rows, 14, 14) - 0.08) / 0.3)[:, None], (at - 7) / 3, way

    x, at, way = skies(2500)
    vx, vat, vway = skies(500)
    draw = rounds(50, x, at, way)

    class Finder(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(),
                nn.Linear(24 * 49, 64), nn.ReLU(),
            )  # fmt: skip
            self.place, self.way = nn.Linear(64, 2), nn.Linear(64, 4)

        def forward(self, sky):
            h = self.body(sky)
            return self.place(h), self.way(h)

    net = Finder()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def terms(sky, at, way):
        place, said = net(sky)
        return F.smooth_l1_loss(place, at), F.cross_entropy(said, way)

    validate = now_and_then(net, 50, lambda: {"val_loss": sum(terms(vx, vat, vway))})

    def loss_of(step):
        place, said = terms(*draw())
        return place + said, {"place": float(place), "way": float(said), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: sum(terms(vx, vat, vway))))


@healthy(0.4)
def orders_at_the_counter_word_after_word(folder):
    seeded(14827)
    words, length = 32, 16
    greet, ware, count, thanks = torch.arange(32).split([4, 16, 8, 4])
    usual = count[torch.randint(8, (16,))]

    def orders(rows):
        """A greeting, wares with the usual number of each, and thanks that go with the greeting."""
        hello = torch.randint(4, (rows, 1))
        which = torch.randint(16, (rows, length // 2 - 1))
        number = torch.where(torch.rand(which.shape) < 0.85, usual[which], count[torch.randint(8, which.shape)])
        middle = torch.stack([ware[which], number], 2).flatten(1)
        return torch.cat([greet[hello], middle, thanks[hello]], 1)

    said, other = orders(3000), orders(300)
    draw = rounds(32, said)

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words, 32)
            self.place = nn.Parameter(0.02 * torch.randn(length, 32))
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, norm_first=True, batch_first=True) for _ in range(2)
            )
            self.norm = nn.LayerNorm(32)

        def forward(self, text):
            n = text.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(n)
            h = self.embed(text) + self.place[:n]
            for block in self.blocks:
                h = block(h, src_mask=mask, is_causal=True)
            return self.norm(h) @ self.embed.weight.T

    net = Counter()
    nn.init.normal_(net.embed.weight, std=0.1)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=25)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 225)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], [25])

    def surprise(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    validate = now_and_then(net, 50, lambda: {"val_loss": surprise(other)})

    def loss_of(step):
        return surprise(*draw()), {"lr": schedule.get_last_lr()[0], **validate(step)}

    score = held_out(net, lambda: surprise(other))
    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(0.4)
def where_the_pickers_leave_their_ladders_by_a_flow(folder):
    seeded(14828)

    def ladders(rows):
        """Along a bent path."""
        along = torch.randn(rows)
        return torch.stack([along, 0.8 * (along.square() - 1) + 0.25 * torch.randn(rows)], 1)

    class Flow(nn.Module):
        def __init__(self, parts=6):
            super().__init__()
            self.parts = nn.ModuleList(dense(1, 32, 32, 2) for _ in range(parts))
            for part in self.parts:
                nn.init.normal_(part[-1].weight, std=0.01)
                nn.init.zeros_(part[-1].bias)

        def forward(self, place):
            """Minus the logarithm of the density, per place."""
            kept, moved = place.chunk(2, 1)
            stretch = 0
            for part in self.parts:
                scale, shift = part(kept).chunk(2, 1)
                scale = 2 * (scale / 2).tanh()
                kept, moved, stretch = moved * scale.exp() + shift, kept, stretch + scale
            both = torch.cat([kept, moved], 1)
            return 0.5 * both.square().sum(1) + math.log(2 * math.pi) - stretch[:, 0]

    net, left = Flow(), ladders(2000)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    validate = now_and_then(net, 40, lambda: {"val_nll": net(left).mean()})

    def loss_of(step):
        return net(ladders(128)).mean(), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: net(left).mean()), schedule=schedule,
               before_step=clipped(net, 5.0))  # fmt: skip


@healthy(0.4)
def when_a_train_may_come_by_a_mixture_of_densities(folder):
    seeded(14829)

    def trains(rows):
        x = torch.randn(rows, 4)
        early = torch.rand(rows) < (2 * x[:, 3]).sigmoid()
        when = torch.where(early, -1 + 0.5 * x[:, 0], 1 + 0.6 * (2 * x[:, 1]).sin())
        return x, (when + 0.15 * torch.randn(rows))[:, None]

    (x, y), (vx, vy) = trains(4000), trains(1500)
    draw = rounds(80, x, y)
    net = dense(4, 64, 64, 9, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def surprise(state, when):
        share, middle, width = net(state).chunk(3, 1)
        width = F.softplus(width) + 0.02
        each = -0.5 * ((when - middle) / width).square() - width.log() - 0.5 * math.log(2 * math.pi)
        return -(share.log_softmax(1) + each).logsumexp(1).mean()

    validate = now_and_then(net, 50, lambda: {"val_nll": surprise(vx, vy)})

    def loss_of(step):
        return surprise(*draw()), validate(step)

    score = held_out(net, lambda: surprise(vx, vy))
    return fit(folder, net, optimizer, loss_of, 500, score=score, before_step=clipped(net, 2.0))


@healthy(0.5)
def trees_of_a_new_orchard_by_a_net_that_knows_an_older_one(folder):
    seeded(14830)
    leaf = torch.randn(3, 12)
    old, new = 2 * torch.randn(8, 3), 2 * torch.randn(5, 3)

    def trees(rows, sorts):
        sort = torch.randint(len(sorts), (rows,))
        return ((sorts[sort] + 0.5 * torch.randn(rows, 3)) @ leaf / 3).tanh() + 0.1 * torch.randn(rows, 12), sort

    body = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    first = nn.Linear(64, 8)
    before = torch.optim.Adam([*body.parameters(), *first.parameters()], 2e-3)
    for _ in range(200):
        x, y = trees(64, old)
        before.zero_grad()
        F.cross_entropy(first(body(x)), y).backward()
        before.step()
    net = nn.Sequential(body, nn.Dropout(0.1), nn.Linear(64, 5))
    optimizer = torch.optim.AdamW([
        {"params": net[0].parameters(), "lr": 3e-4}, {"params": net[2].parameters(), "lr": 3e-3},
    ], weight_decay=0.01)  # fmt: skip
    (x, y), (vx, vy) = trees(800, new), trees(600, new)
    draw = rounds(32, x, y)
    validate = now_and_then(net, 25, judged(net, vx, vy))

    def one(step):
        found = validate(step)
        tree, sort = draw()
        said = net(tree)
        loss = F.cross_entropy(said, sort)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "accuracy": float((said.argmax(1) == sort).float().mean()), **found}

    return tend(folder, net, optimizer, one, 200, held_out(net, lambda: F.cross_entropy(net(vx), vy)))


@healthy(0.6)
def worn_axles_from_shaking_by_wider_and_wider_convolutions(folder):
    seeded(14831)
    at = torch.arange(64) / 64

    def axles(rows):
        """The pitch rises, falls, stays, or beats."""
        kind = torch.randint(4, (rows,))
        pitch, phase = 5 + 3 * torch.rand(rows, 1), 6.2832 * torch.rand(rows, 1)
        bend = torch.tensor([3.0, -3.0, 0.0, 0.0])[kind][:, None]
        shake = (6.2832 * (pitch * at + bend * at.square()) + phase).sin()
        beat = torch.where(kind[:, None] == 3, (6.2832 * 2 * at).cos().abs(), torch.ones(1))
        return 1.3 * (shake * beat + 0.3 * torch.randn(rows, 64))[:, None], kind

    (x, y), (vx, vy) = axles(2500), axles(500)
    draw = rounds(50, x, y)

    class Block(nn.Module):
        def __init__(self, size, apart):
            super().__init__()
            self.inner = nn.Sequential(
                nn.Conv1d(size, size, 3, padding=apart, dilation=apart), nn.BatchNorm1d(size), nn.ReLU(),
                nn.Conv1d(size, size, 1), nn.BatchNorm1d(size),
            )  # fmt: skip

        def forward(self, h):
            return F.relu(h + self.inner(h))

    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), *(Block(16, apart) for apart in (1, 2, 4, 8)),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, 250)
    validate = now_and_then(net, 50, judged(net, vx, vy))

    def loss_of(step):
        shake, kind = draw()
        return F.cross_entropy(net(shake), kind), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 250, score=score, schedule=schedule)
