"""Six everyday trainings: menus, newspapers, a net for a phone, used cars, flowers, banners."""

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Translator(nn.Module):
    def __init__(self, words, width=32, most=16):
        super().__init__()
        self.source, self.goal = nn.Embedding(words, width, padding_idx=0), nn.Embedding(words, width, padding_idx=0)
        self.place = nn.Embedding(most, width)
        self.body = nn.Transformer(width, 4, 1, 1, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, words)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)

    def forward(self, source, goal):
        mask = torch.ones(goal.shape[1], goal.shape[1], dtype=torch.bool).triu(1)
        a = self.source(source) + self.place.weight[: source.shape[1]]
        b = self.goal(goal) + self.place.weight[: goal.shape[1]]
        away = source == 0
        return self.head(self.body(a, b, tgt_mask=mask, src_key_padding_mask=away, memory_key_padding_mask=away))


@healthy()
def menus_into_the_language_of_the_guests(folder):
    seeded(3429)
    dish, kind = 3 + torch.randperm(20), 23 + torch.randperm(20)

    def menu(rows):
        """Pairs of kind and dish; the other language has a word for each and says the dish before its kind."""
        many = torch.randint(2, 6, (rows,))
        a, b = torch.randint(20, (2, rows, 5))
        source = torch.stack([23 + b, 3 + a], 2).flatten(1)
        goal = torch.stack([dish[a], kind[b]], 2).flatten(1)
        at = torch.arange(11)
        source = torch.where(at[:10] < 2 * many[:, None], source, 0)
        goal = torch.where(at < 2 * many[:, None], F.pad(goal, (0, 1)), 0)
        goal[torch.arange(rows), 2 * many] = 2
        return source, torch.cat([torch.ones(rows, 1, dtype=torch.long), goal], 1)

    net = Translator(43)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.2, betas=(0.9, 0.98), eps=1e-9)
    rise = 120
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 32**-0.5 * min((step + 1) ** -0.5, (step + 1) * rise**-1.5)
    )
    criterion = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
    train, test = menu(4000), menu(200)
    draw = rounds(48, *train)

    def loss_of(step):
        source, goal = draw()
        return criterion(net(source, goal[:, :-1]).flatten(0, 1), goal[:, 1:].flatten())

    def worth():
        return F.cross_entropy(net(test[0], test[1][:, :-1]).flatten(0, 1), test[1][:, 1:].flatten(), ignore_index=0)

    return fit(folder, net, optimizer, loss_of, 320, score=held_out(net, worth), schedule=schedule)


class Tagger(nn.Module):
    def __init__(self, words, tags, width=48):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width, padding_idx=0), nn.Embedding(24, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.1, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, tags)

    def forward(self, word):
        x = self.drop(self.norm(self.embed(word) + self.place.weight[: word.shape[1]]))
        return self.head(self.body(x, src_key_padding_mask=word == 0))


def articles(rows, most=24):
    """Words 1 to 9 announce a person, 10 to 19 a place; the one to three words after have that tag (B, I), or none."""
    word, tag = torch.randint(20, 240, (rows, most)), torch.zeros(rows, most, dtype=torch.long)
    length = torch.randint(10, most + 1, (rows,))
    for row in range(rows):
        at = int(torch.randint(0, 6, ()))
        while at < int(length[row]) - 4:
            kind, long = int(torch.randint(2, ())), int(torch.randint(1, 4, ()))
            word[row, at] = int(torch.randint(1, 10, ())) + 10 * kind
            word[row, at + 1 : at + 1 + long] = torch.randint(160, 240, (long,))
            word[row, at + 1 + long] = torch.randint(20, 160, ())
            tag[row, at + 1 : at + 1 + long] = 2 + 2 * kind
            tag[row, at + 1] = 1 + 2 * kind
            at += long + 2 + int(torch.randint(0, 6, ()))
        word[row, length[row] :], tag[row, length[row] :] = 0, -100
    return word, tag


@healthy()
def names_and_places_in_a_newspaper(folder):
    seeded(3430)
    (word, tag), (word_test, tag_test) = articles(1500), articles(200)
    net, draw = Tagger(240, 5), rounds(32, word, tag)
    flat = ("bias", "norm.weight", "norm1.weight", "norm2.weight")
    optimizer = torch.optim.AdamW([
        {"params": [w for name, w in net.named_parameters() if not name.endswith(flat)], "weight_decay": 0.01},
        {"params": [w for name, w in net.named_parameters() if name.endswith(flat)], "weight_decay": 0.0},
    ], lr=1e-3)  # fmt: skip
    steps, rise = 300, 30
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (steps - step) / (steps - rise))
    )

    def loss_of(step):
        w, t = draw()
        out = net(w)
        right = (out.argmax(2) == t)[t != -100].float().mean()
        return F.cross_entropy(out.flatten(0, 1), t.flatten(), ignore_index=-100), {"accuracy": right}

    def worth():
        return F.cross_entropy(net(word_test).flatten(0, 1), tag_test.flatten(), ignore_index=-100)

    return fit(
        folder, net, optimizer, loss_of, steps, score=held_out(net, worth), schedule=schedule,
        before_step=clipped(net, 1.0),
    )  # fmt: skip


@healthy()
def a_smaller_net_for_the_phone(folder):
    seeded(3431)
    image, kind = digits()
    order = torch.randperm(1797)
    x, y = (image.flatten(1)[order] - 0.3) / 0.37, kind[order]
    draw = rounds(64, x[:1400], y[:1400])
    teacher = dense(64, 256, 256, 10)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-3)
    for _ in range(200):
        a, b = draw()
        optimizer.zero_grad()
        F.cross_entropy(teacher(a), b).backward()
        optimizer.step()
    teacher.eval()

    net, heat, share = dense(64, 20, 10), 4.0, 0.7
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [250, 400], gamma=0.2)

    def loss_of(step):
        a, b = draw()
        out = net(a)
        with torch.no_grad():
            soft = (teacher(a) / heat).softmax(1)
        told = F.kl_div((out / heat).log_softmax(1), soft, reduction="batchmean") * heat**2
        seen = F.cross_entropy(out, b)
        return share * told + (1 - share) * seen, {"distill": told, "ce": seen}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)


class Cars(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(columns, 96), nn.LayerNorm(96), nn.SiLU(), nn.Dropout(0.1), nn.Linear(96, 96), nn.LayerNorm(96),
            nn.SiLU(),
        )  # fmt: skip
        self.price, self.make = nn.Linear(96, 1), nn.Linear(96, 6)

    def forward(self, x):
        x = self.trunk(x)
        return self.price(x)[:, 0], self.make(x)


@healthy()
def used_cars_their_price_and_make(folder):
    seeded(3432)
    rows = 5000
    make = torch.randint(6, (rows,))
    power, weight, length = (torch.randn(6)[make] + 0.5 * torch.randn(rows) for _ in range(3))
    age, miles, thirst = 15 * torch.rand(rows), 200 * torch.rand(rows), 6 + power + 0.7 * torch.randn(rows)
    price = 10 + 0.3 * torch.randn(6)[make] + 0.3 * power - 0.13 * age - 0.004 * miles + 0.1 * torch.randn(rows)
    x = torch.stack([power, weight, length, age, miles, thirst], 1)
    x, price = (x - x[:4000].mean(0)) / x[:4000].std(0), (price - price[:4000].mean()) / price[:4000].std()
    net, draw = Cars(6), rounds(100, x[:4000], price[:4000], make[:4000])
    optimizer = torch.optim.RMSprop(net.parameters(), lr=5e-4)

    def parts(x, price, make):
        worth, kind = net(x)
        return F.huber_loss(worth, price), F.cross_entropy(kind, make)

    def loss_of(step):
        worth, kind = parts(*draw())
        return worth + 0.5 * kind, {"price_loss": worth, "make_loss": kind}

    score = held_out(net, lambda: sum(parts(x[4000:], price[4000:], make[4000:])))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.one, self.two = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(b), nn.BatchNorm2d(b)
        same = a == b and stride == 1
        self.past = nn.Identity() if same else nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        out = self.norm2(self.two(self.norm1(self.one(x)).relu()))
        return (out + self.past(x)).relu()


def flowers(rows, side=20):
    """Flowers of three to seven petals, turned and tinted at random."""
    kind, axis = torch.randint(5, (rows,)), torch.linspace(-1, 1, side)
    middle, reach = 0.4 * torch.rand(2, rows, 1, 1) - 0.2, 0.5 + 0.2 * torch.rand(rows, 1, 1)
    down, over = axis[:, None] - middle[0], axis[None, :] - middle[1]
    turn = (3 + kind[:, None, None]) * torch.atan2(down, over) + 6.283 * torch.rand(rows, 1, 1)
    inside = ((down**2 + over**2).sqrt() < reach * (1 + 0.45 * turn.sin()))[:, None]
    leaf, ground = torch.rand(rows, 3, 1, 1) + 0.2, torch.tensor([0.2, 0.4, 0.1])[:, None, None]
    return (torch.where(inside, leaf, ground) + 0.05 * torch.randn(rows, 3, side, side) - 0.4) / 0.3, kind


@healthy()
def flowers_by_a_small_residual_net(folder):
    seeded(3433)
    (x, y), (x_test, y_test) = flowers(1600), flowers(300)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Residual(16, 16, 1),
        Residual(16, 32, 2), Residual(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.97), use_buffers=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=30),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=220),
    ], milestones=[30])  # fmt: skip
    draw, spread = rounds(50, x, y), torch.distributions.Beta(0.2, 0.2)

    def one(step):
        a, b = draw()
        share, other = float(spread.sample()), torch.randperm(50)
        out = net(share * a + (1 - share) * a[other])
        loss = share * F.cross_entropy(out, b) + (1 - share) * F.cross_entropy(out, b[other])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(net)
        schedule.step()
        return {"loss": loss.item()}

    return tend(folder, net, optimizer, one, 250, held_out(average, lambda: F.cross_entropy(average(x_test), y_test)))


class WideAndDeep(nn.Module):
    def __init__(self, fields, kinds, size=8):
        super().__init__()
        self.register_buffer("shift", torch.arange(fields) * kinds)
        self.wide, self.table = nn.Embedding(fields * kinds, 1), nn.Embedding(fields * kinds, size)
        nn.init.zeros_(self.wide.weight)
        nn.init.normal_(self.table.weight, std=0.05)
        self.deep, self.bias = dense(fields * size, 64, 32, 1), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        x = x + self.shift
        return self.wide(x).sum((1, 2)) + self.deep(self.table(x).flatten(1))[:, 0] + self.bias


@healthy(gain=0.2)
def clicks_on_banners_of_a_weather_page(folder):
    seeded(3434)
    x = (40 * torch.rand(30000, 6) ** 2).long()
    plain, hidden = 0.7 * torch.randn(6, 40), 0.8 * torch.randn(6, 40, 3)
    at = torch.arange(6)
    logit = plain[at, x].sum(1) + (hidden[0, x[:, 0]] * hidden[1, x[:, 1]]).sum(1) - 1.5
    click = (torch.rand(30000) < logit.sigmoid()).float()
    net, draw = WideAndDeep(6, 40), rounds(256, x[:26000], click[:26000])
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)

    def loss_of(step):
        a, b = draw()
        return F.binary_cross_entropy_with_logits(net(a), b)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[26000:]), click[26000:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score)
