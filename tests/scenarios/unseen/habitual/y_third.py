"""Healthy trainings of toys, board games and playgrounds: what a course or a team's repository has."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


@healthy()
def numbers_on_hopscotch_squares(folder):
    seeded(12530)
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order].view(-1, 1, 8, 8), torch.tensor(shown)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Dropout(0.25),
        nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    draw = rounds(32, x[:1400], y[:1400])
    per_epoch = 1400 // 32
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3)

    def validate():
        net.eval()
        with torch.no_grad():
            logits = net(x[1400:])
        net.train()
        return {"val_loss": F.cross_entropy(logits, y[1400:]).item(),
                "val_accuracy": (logits.argmax(1) == y[1400:]).float().mean().item()}  # fmt: skip

    def loss_of(step):
        logged = validate() if step % per_epoch == per_epoch - 1 else {}
        bx, by = draw()
        return F.cross_entropy(net(bx), by), logged

    def after_step(step):
        if step % per_epoch == per_epoch - 1:
            scheduler.step()

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 5 * per_epoch, score=score, after_step=after_step)


@healthy()
def spinning_tops_of_three_makers(folder):
    seeded(12531)
    table, kinds = load_iris(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:110].mean(0)) / x[:110].std(0)
    net = dense(4, 16, 16, 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    draw = rounds(16, x[:110], y[:110])

    def loss_of(step):
        bx, by = draw()
        logits = net(bx)
        return F.cross_entropy(logits, by), {"accuracy": (logits.argmax(1) == by).float().mean().item()}

    return fit(
        folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: F.cross_entropy(net(x[110:]), y[110:]))
    )


class Raters(nn.Module):
    """Matrix factorisation with biases."""

    def __init__(self, players, games, width):
        super().__init__()
        self.player, self.game = nn.Embedding(players, width), nn.Embedding(games, width)
        self.player_bias, self.game_bias = nn.Embedding(players, 1), nn.Embedding(games, 1)
        for table in (self.player, self.game):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.player_bias, self.game_bias):
            nn.init.zeros_(table.weight)
        self.mean = nn.Parameter(torch.zeros(()))

    def forward(self, p, g):
        match = (self.player(p) * self.game(g)).sum(1)
        return self.mean + match + self.player_bias(p)[:, 0] + self.game_bias(g)[:, 0]


@healthy()
def marks_that_a_club_gives_its_games(folder):
    seeded(12532)
    players, games = 80, 60
    u, v = torch.randn(players, 3), torch.randn(games, 3)
    p, g = torch.randint(players, (5000,)), torch.randint(games, (5000,))
    mark = (3.3 + 0.5 * (u[p] * v[g]).sum(1) + 0.5 * v[g, 0] + 0.3 * torch.randn(5000)).clamp(1, 5)
    net = Raters(players, games, 8)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=1e-5)
    draw = rounds(128, p[:4200], g[:4200], mark[:4200])

    def loss_of(step):
        bp, bg, bm = draw()
        return F.mse_loss(net(bp, bg), bm)

    score = held_out(net, lambda: F.mse_loss(net(p[4200:], g[4200:]), mark[4200:]))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


class Tagger(nn.Module):
    """A tag for each token by an LSTM that reads both ways."""

    def __init__(self, words, tags, width):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, tags)

    def forward(self, ids):
        return self.out(self.lstm(self.embed(ids))[0])


@healthy()
def rules_of_a_card_game_tagged(folder):
    seeded(12533)
    words, tags = 60, 5
    net = Tagger(words, tags, 24)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    kind = torch.randint(tags, (words,))

    def rules(rows, longest=14):
        ids = torch.randint(1, words, (rows, longest))
        length = torch.randint(6, longest + 1, (rows, 1))
        before = torch.cat([torch.zeros(rows, 1, dtype=torch.long), ids[:, :-1]], 1)
        tag = (kind[ids] + (kind[before] == 0).long()) % tags
        blank = torch.arange(longest) >= length
        return ids.masked_fill(blank, 0), tag.masked_fill(blank, -100)

    draw = rounds(32, *rules(1500))

    def cost(ids, tag):
        return F.cross_entropy(net(ids).flatten(0, 1), tag.flatten(), ignore_index=-100)

    test = rules(300)
    return fit(
        folder, net, optimizer, lambda step: cost(*draw()), 200, score=held_out(net, lambda: cost(*test)),
        before_step=clipped(net, 1.0),
    )  # fmt: skip


class Coder(nn.Module):
    """A variational autoencoder."""

    def __init__(self, size, width, code):
        super().__init__()
        self.enc, self.mu, self.logvar = nn.Linear(size, width), nn.Linear(width, code), nn.Linear(width, code)
        self.dec = dense(code, width, size)

    def forward(self, x):
        h = self.enc(x).relu()
        mu, logvar = self.mu(h), self.logvar(h)
        return self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp()), mu, logvar


@healthy(0.2)
def stencils_for_chalk_drawings(folder):
    seeded(12534)
    images, _ = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32)[torch.randperm(len(images))]
    net = Coder(64, 96, 8)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    draw = rounds(64, x[:1500])

    def elbo(x):
        out, mu, logvar = net(x)
        again = F.binary_cross_entropy_with_logits(out, x, reduction="sum") / len(x)
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum() / len(x)
        return again + kl, {"reconstruction": again, "kl": kl}

    return fit(folder, net, optimizer, lambda step: elbo(*draw()), 300, score=held_out(net, lambda: elbo(x[1500:])[0]))


@healthy(0.2)
def a_puppet_walked_along_its_stage(folder):
    seeded(12535)
    policy, critic = dense(3, 32, 32, 3, act=nn.Tanh), dense(3, 32, 32, 1, act=nn.Tanh)
    net = nn.ModuleDict({"policy": policy, "critic": critic})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    pull = torch.tensor([-0.15, 0.0, 0.15])

    def walk(rows, length=10):
        at, mark = 2 * torch.rand(rows) - 1, 2 * torch.rand(rows) - 1
        seen, moves, logs, rewards = [], [], [], []
        for t in range(length):
            state = torch.stack([at, mark, torch.full((rows,), t / length)], 1)
            dist = Categorical(logits=policy(state))
            move = dist.sample()
            at = at + pull[move] + 0.02 * torch.randn(rows)
            seen.append(state)
            moves.append(move)
            logs.append(dist.log_prob(move))
            rewards.append(-(at - mark).abs() / length)
        return [torch.stack(part) for part in (seen, moves, logs, rewards)]

    def one(step):
        with torch.no_grad():
            seen, moves, old, rewards = walk(48)
            returns = rewards.flip(0).cumsum(0).flip(0)
            advantage = returns - critic(seen)[..., 0]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(2):
            dist = Categorical(logits=policy(seen))
            ratio = (dist.log_prob(moves) - old).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            value_loss = F.mse_loss(critic(seen)[..., 0], returns)
            loss = -gain + 0.5 * value_loss - 0.005 * dist.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
        return {"loss": loss, "value_loss": value_loss, "return": rewards.sum(0).mean()}

    return tend(folder, net, optimizer, one, 120, held_out(net, lambda: -walk(400)[3].sum(0).mean()))


@healthy()
def a_pocket_board_taught_by_a_large_one(folder):
    seeded(12536)
    table, kinds = load_wine(return_X_y=True)
    order = torch.randperm(len(kinds))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(kinds)[order]
    x = (x - x[:130].mean(0)) / x[:130].std(0)
    teacher, net = dense(13, 64, 3), dense(13, 8, 3)
    of_teacher = torch.optim.Adam(teacher.parameters(), 5e-3)
    for _ in range(60):
        of_teacher.zero_grad()
        F.cross_entropy(teacher(x[:130]), y[:130]).backward()
        of_teacher.step()
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    draw = rounds(26, x[:130], y[:130])
    warmth, share = 3.0, 0.7

    def loss_of(step):
        bx, by = draw()
        out, told = net(bx), teacher(bx)
        soft = F.kl_div((out / warmth).log_softmax(1), (told / warmth).softmax(1), reduction="batchmean")
        return share * warmth**2 * soft + (1 - share) * F.cross_entropy(out, by)

    score = held_out(net, lambda: F.cross_entropy(net(x[130:]), y[130:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy()
def old_eyes_for_a_new_set_of_cards(folder):
    seeded(12537)
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order].view(-1, 1, 8, 8), torch.tensor(shown)[order]
    old, new = y < 6, y >= 6
    first = nn.Sequential(body, nn.Linear(128, 6))
    of_first = torch.optim.Adam(first.parameters(), 3e-3)
    ox, oy = x[old], y[old]
    for _ in range(100):
        rows = torch.randint(len(ox), (64,))
        of_first.zero_grad()
        F.cross_entropy(first(ox[rows]), oy[rows]).backward()
        of_first.step()
    nx, ny = x[new], y[new] - 6
    net = nn.Sequential(copy.deepcopy(body), nn.Linear(128, 4))
    optimizer = torch.optim.AdamW(
        [{"params": net[0].parameters(), "lr": 2e-4}, {"params": net[1].parameters(), "lr": 5e-3}], weight_decay=0.01
    )
    draw = rounds(32, nx[:400], ny[:400])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by)

    score = held_out(net, lambda: F.cross_entropy(net(nx[400:]), ny[400:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)


@healthy()
def loose_screws_on_a_roundabout(folder):
    seeded(12538)
    table, sound = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(sound))
    x, y = torch.tensor(table, dtype=torch.float32)[order], torch.tensor(sound, dtype=torch.float32)[order]
    x = (x - x[:420].mean(0)) / x[:420].std(0)
    net = nn.Sequential(nn.Linear(30, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    draw = rounds(20, x[:420], y[:420])
    weight = (y[:420] == 0).sum() / (y[:420] == 1).sum()

    def cost(x, y):
        return F.binary_cross_entropy_with_logits(net(x)[:, 0], y, pos_weight=weight)

    def one(step):
        optimizer.zero_grad()
        loss = 0.0
        for _ in range(2):
            part = cost(*draw()) / 2
            part.backward()
            loss += float(part.detach())
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss, "grad_norm": float(norm)}

    return tend(folder, net, optimizer, one, 150, held_out(net, lambda: cost(x[420:], y[420:])))


@healthy()
def a_kite_string_hour_by_hour(folder):
    seeded(12539)
    net = nn.Sequential(
        nn.Conv1d(2, 24, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv1d(24, 24, 3, padding=4, dilation=4), nn.ReLU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(96, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)

    def days(rows, length=24):
        wind = 0.3 * torch.randn(rows, length).cumsum(1)
        turn = torch.randn(rows, length)
        strain = wind[:, -6:].relu().mean(1) + 0.5 * (wind[:, :6] * turn[:, :6]).mean(1)
        return torch.stack([wind, turn], 1), (strain[:, None] - 0.35) / 0.5 + 0.05 * torch.randn(rows, 1)

    draw = rounds(64, *days(2400))
    vx, vy = days(500)
    score = held_out(net, lambda: F.mse_loss(net(vx), vy))

    def loss_of(step):
        bx, by = draw()
        loss = F.mse_loss(net(bx), by)
        if step % 25 == 24:
            now = score()
            plateau.step(now)
            return loss, {"val_loss": now}
        return loss

    return fit(folder, net, optimizer, loss_of, 300, score=score)
