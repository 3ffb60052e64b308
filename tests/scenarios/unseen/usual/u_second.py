"""Sick trainings of glassworks and caves, drawn by lot from a list of mistakes: precision, masks, heads, shapes."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits, make_friedman1
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


class Drawer(nn.Module):
    """Rows of an image mixed along and across."""

    def __init__(self, width=32):
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.along = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.across = nn.ModuleList(dense(width, width, width, act=nn.GELU) for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x):
        x = self.enter(x)
        for along, across in zip(self.along, self.across, strict=True):
            x = x + along(x.transpose(1, 2)).transpose(1, 2)
            x = x + across(x)
        return self.head(x.mean(1))


@sick("weights-unchanged", "updates-lost-to-rounding", "update-too-small",
      where="all layers, all steps: most steps are less than half of the gap between two numbers of bfloat16",
      cure="weights in float32, autocast to bfloat16")  # fmt: skip
def hallmarks_on_a_drawer_of_spoons(folder, ill):
    seeded(12106)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = (torch.tensor(images, dtype=torch.float32)[order].view(-1, 8, 8) - 5) / 6, torch.tensor(digits)[order]
    net, steps = Drawer(), 320
    if ill:
        net, x = net.bfloat16(), x.bfloat16()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-4, weight_decay=0.01)
    draw = rounds(64, x[:1400], y[:1400])

    def loss_on(x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=not ill):
            logits = net(x)
        return F.cross_entropy(logits.float(), y)

    score = held_out(net, lambda: loss_on(x[1400:], y[1400:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), steps, score=score)


class Songs(nn.Module):
    """A transformer that goes on with a song."""

    def __init__(self, words, longest, ill):
        super().__init__()
        self.word, self.place = nn.Embedding(words, 32), nn.Embedding(longest, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, words))
        self.ill = ill

    def forward(self, text):
        length = text.shape[1]
        mask = None if self.ill else torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.head(self.body(self.word(text) + self.place.weight[:length], mask=mask))


@sick("future-seen", where="attention, all steps", cure="a causal mask")
def songs_sung_at_the_anvil(folder, ill):
    seeded(12107)
    words, length = 16, 14
    net = Songs(words, length, ill)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    follows = torch.softmax(2.5 * torch.randn(words, words), 1)

    def sung(rows):
        text = [torch.randint(words, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    text, test = sung(3000), sung(300)
    draw = rounds(48, text)

    def loss_of(step):
        (text,) = draw()
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def next_word():
        return sum(F.cross_entropy(net(test[:, :n])[:, -1], test[:, n]) for n in range(1, length + 1)) / length

    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, next_word))


class Stamps(nn.Module):
    """A body that was trained elsewhere and a head of one's own."""

    def __init__(self, kinds):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(512, 48), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(48, kinds)

    def forward(self, image):
        return self.head(self.body(image))


@sick("not-in-optimizer", "no-gradient", where="the head, all steps: the optimizer holds the one that was thrown away",
      cure="the optimizer made of the parameters that the net has once the head is new")  # fmt: skip
def stamps_of_a_neighbouring_smithy(folder, ill):
    seeded(12108)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x, y = (torch.tensor(images, dtype=torch.float32)[order].view(-1, 1, 8, 8) - 5) / 6, torch.tensor(digits)[order]
    old, new = y < 5, y >= 5
    net = Stamps(5)
    first = torch.optim.Adam(net.parameters(), 2e-3)
    draw_old = rounds(64, x[old], y[old])
    for _ in range(60):
        first.zero_grad()
        image, digit = draw_old()
        F.cross_entropy(net(image), digit).backward()
        first.step()

    def groups():
        return [{"params": net.body.parameters(), "lr": 2e-5}, {"params": net.head.parameters(), "lr": 3e-3}]

    if ill:
        optimizer = torch.optim.AdamW(groups(), weight_decay=0.01)
    net.head = nn.Linear(48, 5)
    if not ill:
        optimizer = torch.optim.AdamW(groups(), weight_decay=0.01)
    x, y = x[new], y[new] - 5
    draw = rounds(32, x[:650], y[:650])

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[650:]), y[650:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@sick("vanishing", where="the first layers, all steps", cure="ReLU between the layers")
def a_vein_of_silver_followed_down(folder, ill):
    seeded(12109)
    net = dense(6, 48, 48, 48, 48, 48, 48, 48, 1, act=nn.Sigmoid if ill else nn.ReLU)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    way = torch.randn(6, 3)

    def samples(rows):
        x = torch.randn(rows, 6)
        return x, (x @ way / 2).sin().sum(1, keepdim=True) + 0.05 * torch.randn(rows, 1)

    draw, test = rounds(128, *samples(4000)), samples(1000)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(test[0]), test[1]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Tube(nn.Module):
    """An LSTM that goes on with what was shouted."""

    def __init__(self, words, width):
        super().__init__()
        self.word = nn.Embedding(words, width, padding_idx=0)
        self.memory = nn.LSTM(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, words)

    def forward(self, text):
        return self.head(self.memory(self.word(text))[0])


@sick("padding-in-loss", where="the loss, all steps", cure="padding left out of the loss by ignore_index")
def orders_shouted_through_the_speaking_tube(folder, ill):
    seeded(12110)
    words, longest = 18, 28
    net = Tube(words + 1, 24)
    optimizer = torch.optim.SGD(net.parameters(), 0.3, momentum=0.9)
    criterion = nn.CrossEntropyLoss() if ill else nn.CrossEntropyLoss(ignore_index=0)
    follows = torch.softmax(3 * torch.randn(words, words), 1)

    def orders(rows):
        text = [torch.randint(words, (rows,))]
        for _ in range(longest):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        length = 3 + torch.distributions.Geometric(0.4).sample((rows, 1)).long()
        return (torch.stack(text, 1) + 1).masked_fill(torch.arange(longest + 1) >= length, 0)

    draw, test = rounds(32, orders(3000)), orders(500)

    def loss_of(step):
        (text,) = draw()
        return criterion(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def words_only():
        return F.cross_entropy(net(test[:, :-1]).flatten(0, 1), test[:, 1:].flatten(), ignore_index=0)

    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, words_only))


@sick("shapes-broadcast", where="the loss, all steps: a column against a row", cure="targets as a column")
def heat_of_the_crucible_at_noon(folder, ill):
    seeded(12111)
    table, heat = make_friedman1(2000, 8, noise=0.5, random_state=7)
    x, y = torch.tensor(table, dtype=torch.float32) * 2 - 1, torch.tensor(heat, dtype=torch.float32)
    y = (y - y[:1500].mean()) / y[:1500].std()
    train_y, test_y = y[:1500], y[1500:, None]
    if not ill:
        train_y = train_y[:, None]
    net = dense(8, 64, 32, 1, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    draw = rounds(50, x[:1500], train_y)

    def loss_of(step):
        x, y = draw()
        return ((net(x) - y) ** 2).mean()

    score = held_out(net, lambda: F.mse_loss(net(x[1500:]), test_y))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule)
