"""Ten healthy ones of a publisher, a vineyard and a football club: prose, tastings, leaves, squads, saves, knees."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import bandit, clipped, held_out, judged, now_and_then, rounds


def prose(rows, length, follows):
    """Words that each depend on the two before: `[rows, length]`."""
    kinds = follows.shape[0]
    words = [torch.randint(kinds, (rows,)), torch.randint(kinds, (rows,))]
    for _ in range(length - 2):
        words.append(torch.multinomial(follows[words[-2], words[-1]], 1)[:, 0])
    return torch.stack(words, 1)


@healthy(0.15)
def serial_novel_by_a_small_transformer(folder):
    seeded(14122)
    follows = (2.5 * torch.randn(12, 12, 12)).softmax(2)
    text, later = prose(3000, 17, follows), prose(400, 17, follows)
    draw = rounds(48, text)

    class Writer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 32)
            self.place = nn.Parameter(0.02 * torch.randn(16, 32))
            self.block = nn.TransformerEncoderLayer(32, 4, 96, dropout=0.0, norm_first=True, batch_first=True)
            self.norm = nn.LayerNorm(32)
            self.head = nn.Linear(32, 12)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(16))

        def forward(self, words):
            h = self.block(self.embed(words) + self.place, src_mask=self.mask, is_causal=True)
            return self.head(self.norm(h))

    net = Writer()
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, betas=(0.9, 0.98), weight_decay=0.01)

    def rate(step):
        """Up for 30 steps, then down a cosine to a tenth."""
        return (step + 1) / 30 if step < 30 else 0.55 + 0.45 * math.cos(math.pi * (step - 30) / 330)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def surprise(words):
        return F.cross_entropy(net(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    validate = now_and_then(net, 60, lambda: {"val_loss": surprise(later)})

    def loss_of(step):
        loss = surprise(*draw())
        return loss, {"perplexity": float(loss.detach().exp()), **validate(step)}

    score = held_out(net, lambda: surprise(later))
    return fit(folder, net, optimizer, loss_of, 360, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(0.4)
def letters_from_readers_by_their_tone(folder):
    seeded(14123)
    kind = torch.randint(3, (80,))

    def letters(rows):
        """Words, praise or blame or neither, behind a 'not' (0) the other way round; their number; the tone."""
        length = torch.randint(6, 16, (rows,))
        words = torch.randint(1, 80, (rows, 15))
        words[torch.rand(rows, 15) < 0.12] = 0
        worth = (kind[words] - 1.0) * (words > 0)
        turned = torch.cat([torch.zeros(rows, 1), (words[:, :-1] == 0).float()], 1)
        inside = torch.arange(15) < length[:, None]
        tone = (worth * (1 - 2 * turned) * inside).sum(1)
        return words + 1, length, (tone > 0).long()

    (x, n, y), (tx, tn, ty) = letters(4000), letters(1000)
    draw = rounds(64, x, n, y)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(82, 24)
            self.look = nn.Conv1d(24, 48, 3, padding=1)
            self.drop = nn.Dropout(0.2)
            self.head = nn.Linear(48, 2)

        def forward(self, words, length):
            inside = (torch.arange(words.shape[1]) < length[:, None]).float()[:, None]
            seen = self.look(self.embed(words).transpose(1, 2) * inside).relu() * inside
            return self.head(self.drop(seen.sum(2) / length[:, None]))

    net = Reader()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def measure():
        said = net(tx, tn)
        return {"val_loss": F.cross_entropy(said, ty), "val_accuracy": (said.argmax(1) == ty).float().mean()}

    validate = now_and_then(net, 62, measure)

    def loss_of(step):
        words, length, tone = draw()
        said = net(words, length)
        right = (said.argmax(1) == tone).float().mean()
        return F.cross_entropy(said, tone), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 372, score=held_out(net, lambda: F.cross_entropy(net(tx, tn), ty)))


@healthy(0.4)
def marks_that_tasters_give_to_vintages(folder):
    seeded(14124)
    tastes, wines = torch.randn(120, 3), torch.randn(90, 3)
    mild, good = 0.5 * torch.randn(120), 0.7 * torch.randn(90)
    taster, wine = torch.randint(120, (9000,)), torch.randint(90, (9000,))
    mark = (tastes[taster] * wines[wine]).sum(1) * 0.6 + mild[taster] + good[wine] + 0.3 * torch.randn(9000)
    draw = rounds(256, taster[:7500], wine[:7500], mark[:7500])

    class Tasters(nn.Module):
        def __init__(self):
            super().__init__()
            self.taster, self.wine = nn.Embedding(120, 6), nn.Embedding(90, 6)
            self.mild, self.good = nn.Embedding(120, 1), nn.Embedding(90, 1)
            for table in (self.taster, self.wine):
                nn.init.normal_(table.weight, std=0.3)
            for table in (self.mild, self.good):
                nn.init.zeros_(table.weight)
            self.mean = nn.Parameter(torch.zeros(()))

        def forward(self, taster, wine):
            both = (self.taster(taster) * self.wine(wine)).sum(1)
            return self.mean + both + self.mild(taster)[:, 0] + self.good(wine)[:, 0]

    net = Tasters()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2, weight_decay=0.02)

    def error(taster, wine, mark):
        return F.mse_loss(net(taster, wine), mark)

    validate = now_and_then(net, 29, lambda: {"val_loss": error(taster[7500:], wine[7500:], mark[7500:])})

    def loss_of(step):
        return error(*draw()), validate(step)

    score = held_out(net, lambda: error(taster[7500:], wine[7500:], mark[7500:]))
    return fit(folder, net, optimizer, loss_of, 348, score=score)


@healthy(0.5)
def mildew_marked_on_the_leaves(folder):
    seeded(14125)
    across = torch.arange(16.0)

    def leaves(rows):
        mask = torch.zeros(rows, 1, 16, 16)
        for _ in range(2):
            middle, wide = 3 + 10 * torch.rand(rows, 2), 1.5 + 2 * torch.rand(rows)
            far = (across[:, None] - middle[:, 0, None, None]) ** 2 + (across - middle[:, 1, None, None]) ** 2
            mask = torch.maximum(mask, (far < wide[:, None, None] ** 2).float()[:, None])
        vein = 0.5 * torch.sin(across * 1.1)[None, None, None]
        return 0.9 * mask + vein + 0.8 * torch.randn(rows, 1, 16, 16), mask

    (x, y), (tx, ty) = leaves(800), leaves(150)
    draw = rounds(16, x, y)

    class Unet(nn.Module):
        def __init__(self):
            super().__init__()

            def part(inside, outside):
                return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.ReLU())

            self.first, self.low, self.high = part(1, 12), part(12, 24), part(36, 12)
            self.head = nn.Conv2d(12, 1, 1)

        def forward(self, x):
            first = self.first(x)
            low = self.low(F.max_pool2d(first, 2))
            up = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
            return self.head(self.high(torch.cat([first, up], 1)))

    net = Unet()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def terms(leaf, mask):
        said = net(leaf)
        share = said.sigmoid()
        overlap = 1 - (2 * (share * mask).sum() + 1) / (share.sum() + mask.sum() + 1)
        return F.binary_cross_entropy_with_logits(said, mask), overlap

    validate = now_and_then(net, 50, lambda: {"val_dice": 1 - terms(tx, ty)[1]})

    def loss_of(step):
        cross, overlap = terms(*draw())
        return cross + overlap, {"bce": float(cross), "dice": float(overlap), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: sum(terms(tx, ty))))


@healthy(0.2)
def strength_of_a_squad_whatever_its_order(folder):
    seeded(14126)

    def matches(rows):
        """Two squads of eleven players with five marks each, and whether the first one wins."""
        squads = torch.randn(rows, 2, 11, 5)
        worth = squads[..., 0].mean(2) + 0.5 * squads[..., 1].amax(2) + 0.4 * squads[..., 2].amin(2)
        return squads, (5 * (worth[:, 0] - worth[:, 1]) > torch.logit(torch.rand(rows), 1e-6)).float()

    (x, y), (tx, ty) = matches(6000), matches(1500)
    draw = rounds(64, x, y)

    class Squad(nn.Module):
        def __init__(self):
            super().__init__()
            self.player, self.whole = dense(5, 48, 32), dense(64, 48, 1)

        def forward(self, squads):
            seen = self.player(squads)
            worth = self.whole(torch.cat([seen.mean(2), seen.amax(2)], 2))[..., 0]
            return worth[:, 0] - worth[:, 1]

    net = Squad()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    criterion = nn.BCEWithLogitsLoss()

    def measure():
        said = net(tx)
        return {"val_loss": criterion(said, ty), "val_accuracy": ((said > 0) == (ty > 0.5)).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        squads, won = draw()
        return criterion(net(squads), won), validate(step)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: criterion(net(tx), ty)))


@healthy(0.05)
def corner_kicks_by_trial_with_a_critic(folder):
    seeded(14127)
    best = torch.randn(6, 4)
    actor, critic = dense(6, 32, 4, act=nn.Tanh), dense(6, 32, 1, act=nn.Tanh)
    net = nn.ModuleDict({"actor": actor, "critic": critic})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_of(step):
        state = torch.randn(128, 6)
        policy = torch.distributions.Categorical(logits=actor(state))
        kick = policy.sample()
        reward = (state @ best).gather(1, kick[:, None])[:, 0] + 0.5 * torch.randn(128)
        worth = critic(state)[:, 0]
        advantage = reward - worth.detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        of_policy = -(policy.log_prob(kick) * advantage).mean()
        of_value = F.smooth_l1_loss(worth, reward)
        entropy = policy.entropy().mean()
        logged = {"reward": reward.mean(), "value_loss": of_value.detach(), "entropy": entropy.detach()}
        return of_policy + 0.5 * of_value - 0.01 * entropy, {name: float(value) for name, value in logged.items()}

    return fit(folder, net, optimizer, loss_of, 400, score=bandit(actor, best), before_step=clipped(net, 0.5))


@healthy(0.5)
def same_player_in_two_photographs(folder):
    seeded(14128)
    faces = torch.randn(60, 8)
    lift = torch.randn(8, 40) / 8**0.5

    def photographs(who):
        return (faces[who] @ lift).tanh() + 0.6 * torch.randn(len(who), 40)

    net = nn.Sequential(nn.Linear(40, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 16))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def embed(who):
        return F.normalize(net(photographs(who)), dim=1)

    def triplets(rows, low, high):
        who = torch.randint(low, high, (rows,))
        other = low + (who - low + torch.randint(1, high - low, (rows,))) % (high - low)
        return embed(who), embed(who), embed(other)

    def hinge(anchor, own, other):
        return F.triplet_margin_with_distance_loss(
            anchor, own, other, distance_function=lambda a, b: 1 - (a * b).sum(1), margin=0.3
        )

    validate = now_and_then(net, 40, lambda: {"val_loss": hinge(*triplets(600, 45, 60))})

    def loss_of(step):
        anchor, own, other = triplets(64, 0, 45)
        near = ((anchor * own).sum(1) > (anchor * other).sum(1)).float().mean()
        return hinge(anchor, own, other), {"nearer": float(near), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 280, score=held_out(net, lambda: hinge(*triplets(1000, 45, 60))))


@healthy(0.15)
def sugar_in_the_grapes_as_a_mixture(folder):
    seeded(14129)

    def grapes(rows):
        """Shade and water, and a sugar content that has one of two sources."""
        x = 2 * torch.rand(rows, 2) - 1
        south = torch.rand(rows) < 0.5 + 0.4 * x[:, 1]
        sugar = torch.where(south, 1.2 + 0.8 * x[:, 0], -0.9 + (3 * x[:, 0]).sin() * 0.5)
        return x, sugar + 0.15 * torch.randn(rows)

    (x, y), (tx, ty) = grapes(5000), grapes(1500)
    draw = rounds(100, x, y)
    net = dense(2, 48, 48, 9, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def surprise(grape, sugar):
        share, middle, spread = net(grape).chunk(3, 1)
        parts = torch.distributions.Normal(middle, F.softplus(spread) + 0.02)
        return -(share.log_softmax(1) + parts.log_prob(sugar[:, None])).logsumexp(1).mean()

    validate = now_and_then(net, 50, lambda: {"val_nll": surprise(tx, ty)})

    def loss_of(step):
        return surprise(*draw()), validate(step)

    score = held_out(net, lambda: surprise(tx, ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 5.0))


@healthy(0.03)
def weeks_until_a_players_knee_gives_way(folder):
    seeded(14130)
    way = torch.randn(8, 2) / 8**0.5

    def players(rows):
        x = torch.randn(rows, 8)
        seen = x @ way
        risk = 1.5 * seen[:, 0] + seen[:, 1].square()
        weeks = -torch.rand(rows).clamp(1e-6).log() * (-risk).exp() * 20
        leaves = 60 * torch.rand(rows)
        return x, torch.minimum(weeks, leaves), (weeks < leaves).float()

    train, test = players(4000), players(1000)
    draw = rounds(128, *train)
    net = dense(8, 32, 32, 1, act=nn.SELU)
    for layer in net[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
        nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adagrad(net.parameters(), 0.02)

    def partial(player, weeks, hurt):
        """Minus Cox's partial log-likelihood, for each who was hurt."""
        order = weeks.argsort(descending=True)
        risk = net(player)[order, 0]
        return -((risk - risk.logcumsumexp(0)) * hurt[order]).sum() / hurt.sum()

    validate = now_and_then(net, 31, lambda: {"val_loss": partial(*test)})

    def loss_of(step):
        return partial(*draw()), validate(step)

    return fit(folder, net, optimizer, loss_of, 310, score=held_out(net, lambda: partial(*test)))


@healthy(0.6)
def vineyards_told_apart_by_four_small_batches_a_step(folder):
    seeded(14131)
    bunch = load_wine()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:120].mean(0)) / x[:120].std(0)
    draw = rounds(8, x[:120], y[:120])
    net = nn.Sequential(nn.Linear(13, 24), nn.LayerNorm(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 60, 0.3)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    validate = now_and_then(net, 60, judged(net, x[120:], y[120:]))

    def loss_of(part):
        wine, vineyard = draw()
        return criterion(net(wine), vineyard) / 4, validate(part)

    score = held_out(net, lambda: F.cross_entropy(net(x[120:]), y[120:]))
    return fit(folder, net, optimizer, loss_of, 150, score=score, schedule=schedule, accumulate=4)
