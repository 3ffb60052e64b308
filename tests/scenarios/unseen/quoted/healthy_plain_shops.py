"""What is forecast, heard, proposed and found: stocks, motors, films, shelves, clicks."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


class Stack(nn.Module):
    """Blocks that each explain a part of the past and add to the forecast (N-BEATS)."""

    def __init__(self, seen, ahead, blocks=3, width=64):
        super().__init__()
        self.seen = seen
        self.blocks = nn.ModuleList(dense(seen, width, width, seen + ahead) for _ in range(blocks))

    def forward(self, past):
        level = past.mean(1, keepdim=True)
        rest, total = past - level, level
        for block in self.blocks:
            out = block(rest)
            rest, total = rest - out[:, : self.seen], total + out[:, self.seen :]
        return total


@healthy()
def loaves_ordered_for_the_week(folder):
    seeded(3526)
    shops, days = 20, 240
    t = torch.arange(days).float()
    week = 0.5 * torch.randn(shops, 7)
    level = 2 + torch.rand(shops, 1) + 0.3 * (2 * torch.pi * (t / 90 + torch.rand(shops, 1))).sin()
    sales = level + week[:, torch.arange(days) % 7] + 0.12 * torch.randn(shops, days)
    train, test = sales[:, :190].unfold(1, 28, 1).flatten(0, 1), sales[:, 190:].unfold(1, 28, 1).flatten(0, 1)
    net = Stack(21, 7)

    def of(rows):
        return F.smooth_l1_loss(net(rows[:, :21]), rows[:, 21:], beta=0.2)

    draw = rounds(128, train)
    steps = 25 * 16
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 300], gamma=0.3)
    score = held_out(net, lambda: of(test))
    return fit(folder, net, optimizer, lambda step: of(*draw()), steps, score=score, schedule=schedule)


@healthy()
def pumps_heard_before_they_fail(folder):
    seeded(3527)
    shares = torch.tensor([0.7, 0.15, 0.1, 0.05])
    t = torch.arange(256) / 256

    def record(rows):
        y = torch.multinomial(shares, rows, replacement=True)
        speed = 12 + 4 * torch.rand(rows, 1)
        phase = 6.2832 * torch.rand(rows, 1)
        sound = (6.2832 * speed * t + phase).sin()
        whine = 0.6 * (6.2832 * 3.5 * speed * t).sin()
        knock = 1.2 * ((speed * t + torch.rand(rows, 1)) % 1 < 0.08).float()
        swell = sound * (6.2832 * 3 * t).sin()
        extra = torch.stack([torch.zeros_like(sound), whine, knock, swell])[y, torch.arange(rows)]
        return (sound + extra + 0.5 * torch.randn(rows, 256))[:, None], y

    x, y = record(1600)
    fresh = record(400)
    net = nn.Sequential(
        nn.Conv1d(1, 12, 9, stride=2, padding=4, bias=False), nn.BatchNorm1d(12), nn.ReLU(),
        nn.Conv1d(12, 24, 7, stride=2, padding=3, bias=False), nn.BatchNorm1d(24), nn.ReLU(),
        nn.Conv1d(24, 32, 5, stride=2, padding=2, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 4),
    )  # fmt: skip
    weights = (1 / shares).sqrt()
    weights = weights / (weights * shares).sum()
    draw = rounds(32, x, y)

    def loss_of(step):
        sound, kind = draw()
        out = net(sound)
        return F.cross_entropy(out, kind, weight=weights), {"accuracy": (out.argmax(1) == kind).float().mean()}

    steps = 50 * 8
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.06, total_steps=steps + 1)
    score = held_out(net, lambda: F.cross_entropy(net(fresh[0]), fresh[1]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def stars_given_to_board_games(folder):
    seeded(3528)
    users, games, rank = 300, 150, 4
    liking = torch.randn(users, rank) @ torch.randn(rank, games) / rank**0.5
    liking = 3.4 + 0.8 * liking + 0.4 * torch.randn(users, 1) + 0.5 * torch.randn(1, games)
    pairs = (torch.rand(users, games) < 0.35).nonzero()
    pairs = pairs[torch.randperm(len(pairs))]
    stars = (liking[pairs[:, 0], pairs[:, 1]] + 0.2 * torch.randn(len(pairs))).clamp(1, 5)
    cut = int(0.9 * len(pairs))
    average = float(stars[:cut].mean())

    class Factors(nn.Module):
        def __init__(self, width=8):
            super().__init__()
            self.user, self.game = nn.Embedding(users, width), nn.Embedding(games, width)
            self.user_bias, self.game_bias = nn.Embedding(users, 1), nn.Embedding(games, 1)
            for table in (self.user, self.game):
                nn.init.normal_(table.weight, std=0.1)
            for table in (self.user_bias, self.game_bias):
                nn.init.zeros_(table.weight)

        def forward(self, pair):
            u, g = pair.unbind(1)
            bias = self.user_bias(u)[:, 0] + self.game_bias(g)[:, 0]
            return average + bias + (self.user(u) * self.game(g)).sum(1)

    net = Factors()
    draw = rounds(256, pairs[:cut], stars[:cut])

    def loss_of(step):
        pair, star = draw()
        loss = F.mse_loss(net(pair), star)
        return loss, {"rmse": loss.detach().sqrt()}

    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=1e-4)
    score = held_out(net, lambda: F.mse_loss(net(pairs[cut:]), stars[cut:]).sqrt())
    return fit(folder, net, optimizer, loss_of, cut // 256 * 12, score=score)


@healthy(gain=0.2)
def tools_found_for_a_handymans_query(folder):
    seeded(3529)
    tools, words = 200, 300
    of_tool = torch.randn(tools, 8)
    to_words = torch.randn(8, words)
    features = torch.cat([of_tool @ torch.randn(8, 10), 0.3 * torch.randn(tools, 4)], 1)
    features = (features - features.mean(0)) / features.std(0)
    asked = (1.2 * of_tool @ to_words).softmax(1)
    net = nn.ModuleDict({
        "words": nn.EmbeddingBag(words, 32, mode="mean"),
        "query": dense(32, 48, 16),
        "tool": dense(14, 48, 16),
    })  # fmt: skip

    def draw(rows):
        which = torch.randperm(tools)[:rows]
        return torch.multinomial(asked[which], 5, replacement=True), features[which]

    def of(query, tool):
        a = F.normalize(net["query"](net["words"](query)), dim=1)
        b = F.normalize(net["tool"](tool), dim=1)
        likeness = a @ b.T / 0.1
        target = torch.arange(len(a))
        return F.cross_entropy(likeness, target), (likeness.argmax(1) == target).float().mean()

    def loss_of(step):
        loss, first = of(*draw(64))
        return loss, {"recall_at_1": first}

    fresh = draw(128)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.02)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: of(*fresh)[0]))


@healthy(gain=0.15)
def banners_that_readers_click(folder):
    seeded(3530)
    sizes, rows, width = (400, 60, 24, 7, 3), 20000, 8
    places = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    popular = [torch.arange(1, n + 1).float().pow(-0.8) for n in sizes]
    x = torch.stack([torch.multinomial(p, rows, replacement=True) for p in popular], 1) + places
    hidden, alone = torch.randn(sum(sizes), 3), torch.randn(sum(sizes))
    pair = (hidden[x[:, 0]] * hidden[x[:, 1]]).sum(1) + (hidden[x[:, 1]] * hidden[x[:, 2]]).sum(1)
    y = (torch.rand(rows) < (0.9 * pair + 0.8 * alone[x].sum(1) - 1.5).sigmoid()).float()

    class Machine(nn.Module):
        """A factorization machine beside a small dense net (DeepFM)."""

        def __init__(self):
            super().__init__()
            self.single, self.embed = nn.Embedding(sum(sizes), 1), nn.Embedding(sum(sizes), width)
            nn.init.normal_(self.embed.weight, std=0.05)
            nn.init.zeros_(self.single.weight)
            self.deep = dense(width * len(sizes), 48, 24, 1)
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            v = self.embed(x)
            crossed = (v.sum(1).square() - v.square().sum(1)).sum(1) / 2
            return self.bias + self.single(x)[:, :, 0].sum(1) + crossed + self.deep(v.flatten(1))[:, 0]

    net = Machine()
    draw = rounds(256, x[:18000], y[:18000])
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[18000:]), y[18000:]))

    def one(step):
        rows, clicked = draw()
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(rows), clicked)
        loss.backward()
        optimizer.step()
        logged = {"train/logloss": loss}
        if step % 70 == 69:
            logged["valid/logloss"] = score()
        return logged

    return tend(folder, net, optimizer, one, 70 * 5, score)
