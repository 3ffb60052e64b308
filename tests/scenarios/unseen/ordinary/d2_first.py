"""Gardens, orchards, beekeepers and hedges: mistakes drawn by lot from forty of memory, the first half."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, now_and_then, rounds


@sick("shapes-broadcast", where="the loss, all steps: (N, 1) against (N,) is N x N, what is learnt is the mean",
      cure="squeeze the output")  # fmt: skip
def honey_from_a_hive_by_its_hum(folder, ill):
    seeded(13000)
    way = torch.randn(8, 3) / 2
    hum = torch.randn(1500, 8)
    honey = (hum @ way).sin().sum(1) + 0.5 * hum[:, 0] + 0.1 * torch.randn(1500)
    honey = (honey - honey.mean()) / honey.std()
    test_x, test_y = hum[1200:], honey[1200:]
    net = dense(8, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    batch = rounds(64, hum[:1200], honey[:1200])

    def predict(x):
        return net(x) if ill else net(x).squeeze(1)

    validate = now_and_then(net, 25, lambda: {"val_loss": F.mse_loss(predict(test_x), test_y)})

    def loss_of(step):
        x, y = batch()
        return F.mse_loss(predict(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(test_x).squeeze(1), test_y))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


class Speller(nn.Module):
    """An LSTM that says the next letter."""

    def __init__(self, letters, width):
        super().__init__()
        self.letter = nn.Embedding(letters, 24)
        self.rnn = nn.LSTM(24, width, batch_first=True)
        self.head = nn.Linear(width, letters)

    def forward(self, text):
        return self.head(self.rnn(self.letter(text))[0])


@sick("padding-in-loss", where="the loss, all steps: most of the targets are padding", cure="ignore_index")
def plant_names_spelt_for_the_labels(folder, ill):
    seeded(13001)
    pad, letters, longest = 0, 20, 32
    follows = torch.randint(1, letters, (letters, letters))
    net = Speller(letters, 64)
    optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)

    def names(rows):
        text = torch.randint(1, letters, (rows, longest))
        for i in range(2, longest):
            usual = follows[text[:, i - 2], text[:, i - 1]]
            text[:, i] = torch.where(torch.rand(rows) < 0.97, usual, text[:, i])
        length = torch.randint(4, 10, (rows, 1))
        return text.masked_fill(torch.arange(longest) >= length, pad)

    text, test = names(3000), names(300)
    batch = rounds(32, text)

    def loss_on(text, ignored):
        said, y = net(text[:, :-1]), text[:, 1:]
        return F.cross_entropy(said.flatten(0, 1), y.flatten(), ignore_index=ignored)

    def loss_of(step):
        (text,) = batch()
        return loss_on(text, -100 if ill else pad)

    score = held_out(net, lambda: loss_on(test, pad))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 1.0))


class Press(nn.Module):
    """An encoder to the mean and the variance of a code, and a decoder."""

    def __init__(self, pixels, code):
        super().__init__()
        self.encode = dense(pixels, 128, 2 * code)
        self.decode = dense(code, 128, pixels)

    def forward(self, x):
        middle, log_var = self.encode(x).chunk(2, 1)
        z = middle + torch.randn_like(middle) * (log_var / 2).exp() if self.training else middle
        return self.decode(z).sigmoid(), middle, log_var


@sick("posterior-collapse", "loss-terms-unbalanced",
      where="the loss, all steps: KL summed over batch and code, reconstruction a mean over pixels",
      cure="both terms summed within an example, a mean over the batch")  # fmt: skip
def leaves_pressed_between_two_pages(folder, ill):
    seeded(13002)
    grid = torch.linspace(-1, 1, 12)
    net = Press(144, 6)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def leaves(rows):
        turn, long, wide = torch.rand(3, rows, 1, 1) * torch.tensor([3.1416, 0.4, 0.2])[:, None, None, None]
        long, wide = long + 0.5, wide + 0.2
        shift = 0.3 * torch.randn(rows, 2, 1, 1)
        u, v = grid[None, :, None] - shift[:, 0], grid[None, None] - shift[:, 1]
        along, across = turn.cos() * u + turn.sin() * v, turn.cos() * v - turn.sin() * u
        inside = 1 - (along / long).square() - (across / wide).square()
        return (4 * inside).sigmoid().flatten(1)

    pressed, test = leaves(2000), leaves(400)
    batch = rounds(64, pressed)

    def loss_of(step):
        (x,) = batch()
        back, middle, log_var = net(x)
        per_code = -0.5 * (1 + log_var - middle.square() - log_var.exp())
        if ill:
            error, kl = F.mse_loss(back, x), per_code.sum()
        else:
            error, kl = F.mse_loss(back, x, reduction="sum") / len(x), per_code.sum(1).mean()
        return error + kl, {"reconstruction": error, "kl": kl}

    score = held_out(net, lambda: F.mse_loss(net(test)[0], test))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


@sick("class-imbalance", where="the loss, all steps: three in a hundred are positive", cure="pos_weight")
def a_canker_found_from_above_the_orchard(folder, ill):
    seeded(13003)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    share, grid = 0.03, torch.linspace(-1, 1, 16)
    tint = torch.tensor([0.5, -0.3, 0.1])[:, None, None]

    def crowns(rows, share):
        y = (torch.rand(rows, 1) < share).float()
        at = torch.rand(rows, 2, 1, 1) - 0.5
        spot = (-((grid[:, None] - at[:, 0]).square() + (grid - at[:, 1]).square()) / 0.08).exp()
        return torch.randn(rows, 3, 16, 16) + 1.6 * y[:, :, None, None] * tint * spot[:, None], y

    weight = None if ill else torch.tensor([(1 - share) / share])
    x, y = crowns(600, share)
    fair_x, fair_y = crowns(800, 0.5)
    validate = now_and_then(net, 50, lambda: {"val_accuracy": ((net(x) > 0) == (y > 0)).float().mean()})

    def loss_of(step):
        x, y = crowns(64, share)
        said = net(x)
        accuracy = ((said > 0) == (y > 0)).float().mean()
        return F.binary_cross_entropy_with_logits(said, y, pos_weight=weight), {"accuracy": accuracy, **validate(step)}

    def missed():
        right = ((net(fair_x) > 0) == (fair_y > 0)).float()
        return 1 - (right[fair_y > 0].mean() + right[fair_y == 0].mean()) / 2

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, missed))


class Block(nn.Module):
    """Two convolutions along a row, with norms and a skip."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Conv1d(width, width, 3, padding=1), nn.Conv1d(width, width, 3, padding=1)
        self.before, self.between = nn.GroupNorm(4, width), nn.GroupNorm(4, width)

    def forward(self, x):
        y = self.first(self.before(x).relu())
        return x + self.second(self.between(y).relu())


class Reader(nn.Module):
    """A residual network over a row of tokens, with a class for the whole."""

    def __init__(self, kinds, classes, plain):
        super().__init__()
        self.kind = nn.Embedding(kinds, 32)
        blocks = [Block(32) for _ in range(2)]
        self.blocks = blocks if plain else nn.ModuleList(blocks)
        self.head = nn.Linear(32, classes)

    def forward(self, row):
        x = self.kind(row).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(2))


@sick("not-in-optimizer", "layers-not-registered", "modules-not-registered", where="the blocks, all steps",
      cure="nn.ModuleList")  # fmt: skip
def gaps_in_a_mixed_hedge(folder, ill):
    seeded(13004)
    kinds, length = 6, 12
    net = Reader(kinds, 4, plain=ill)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def hedges(rows):
        row = torch.randint(kinds, (rows, length))
        alike = (row[:, 1:] == row[:, :-1]).sum(1)
        return row, alike.clamp(max=3)

    test_x, test_y = hedges(500)

    def loss_of(step):
        x, y = hedges(48)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("left-in-eval", "norm-left-in-eval",
      where="from the first validation on: no dropout, batch norms on the statistics that they had then",
      cure="net.train() after each validation")  # fmt: skip
def grafts_that_take_by_stock_and_scion(folder, ill):
    seeded(13005)
    way = torch.randn(24, 6)
    x = torch.randn(1300, 24)
    y = ((x @ way).tanh() @ torch.randn(6, 3) + 0.7 * torch.randn(1300, 3)).argmax(1)
    train_x, train_y, test_x, test_y = x[:500], y[:500], x[500:], y[500:]
    net = nn.Sequential(
        nn.Linear(24, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 128), nn.BatchNorm1d(128),
        nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 3),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    batch = rounds(50, train_x, train_y)

    def validate():
        net.eval()
        with torch.no_grad():
            said = net(test_x)
            found = {
                "val_loss": float(F.cross_entropy(said, test_y)),
                "val_accuracy": float((said.argmax(1) == test_y).float().mean()),
            }
        if not ill:
            net.train()
        return found

    def loss_of(step):
        a, b = batch()
        loss = F.cross_entropy(net(a), b)
        return loss, validate() if step % 40 == 39 else {}

    score = held_out(net, lambda: F.cross_entropy(net(test_x), test_y))
    return fit(folder, net, optimizer, loss_of, 400, score=score)
