"""Work of a ski resort, a newspaper, a pharmacy, a mill and a lighthouse: avalanches, desks, sales, yarn, lamps."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds, tend


# 1 of the list
@sick("gradients-accumulate", where="the loop, all steps", cure="optimizer.zero_grad() in each step")
def avalanche_bulletin_levels_from_snow_profiles(folder, ill):
    seeded(14900)
    kernel = torch.randn(5, 4, 7) / 28**0.5

    def profiles(rows):
        """Four readings at 24 depths; the level is the weak layer whose trace is the strongest somewhere."""
        x = torch.randn(rows, 4, 24)
        return x, F.conv1d(x, kernel).amax(2).argmax(1)

    (x, y), (tx, ty) = profiles(6000), profiles(1500)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv1d(4, 32, 7), nn.ReLU(), nn.Conv1d(32, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 50, judged(net, tx, ty))

    def loss_of(step):
        snow, level = draw()
        said = net(snow)
        right = (said.argmax(1) == level).float().mean()
        return F.cross_entropy(said, level), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 350, zero_grad=not ill, score=score)


class Dispatcher(nn.Module):
    """A bag of words and what desk it goes to."""

    def __init__(self, words, desks, last):
        super().__init__()
        self.words = nn.EmbeddingBag(words, 48, mode="mean")
        self.hidden = nn.Linear(48, 64)
        self.head = nn.Linear(64, desks)
        self.last = last

    def forward(self, tokens):
        return self.last(self.head(F.relu(self.hidden(self.words(tokens)))))


# 2 of the list
@sick("softmax-twice", where="the last layer and the loss, all steps", cure="hand the logits to cross_entropy")
def wire_reports_to_one_of_twenty_desks(folder, ill):
    seeded(14901)
    habits = (1.6 * torch.randn(20, 300)).softmax(1)

    def reports(rows):
        desk = torch.randint(20, (rows,))
        return torch.multinomial(habits[desk], 14, replacement=True), desk

    (x, y), (tx, ty) = reports(6000), reports(1500)
    draw = rounds(96, x, y)
    net = Dispatcher(300, 20, nn.Softmax(dim=1) if ill else nn.Identity())
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9)

    def wrong():
        return (net(tx).argmax(1) != ty).float().mean()

    validate = now_and_then(net, 60, judged(net, tx, ty))

    def loss_of(step):
        tokens, desk = draw()
        return F.cross_entropy(net(tokens), desk), validate(step)

    return fit(folder, net, optimizer, loss_of, 360, score=held_out(net, wrong))


# 6 of the list
@sick("targets-not-normalised", where="the targets, all steps", cure="standardise the sales by their mean and spread")
def monthly_sales_of_each_branch_pharmacy(folder, ill):
    seeded(14902)
    way = torch.randn(10, 3) / 10**0.5

    def months(rows):
        x = torch.randn(rows, 10)
        seen = x @ way
        level = seen[:, 0] + (1.5 * seen[:, 1]).sin() + 0.5 * seen[:, 2].square() + 0.1 * torch.randn(rows)
        return x, (42_000 + 9_000 * level)[:, None]

    (x, y), (tx, ty) = months(4000), months(1000)
    middle, spread = (0.0, 1.0) if ill else (y.mean(), y.std())
    draw = rounds(64, x, (y - middle) / spread)
    net = dense(10, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    unit = y.std()

    def missed():
        """The error of the sales themselves, in spreads of what is sold."""
        return ((net(tx) * spread + middle - ty) / unit).square().mean().sqrt()

    def loss_of(step):
        month, sales = draw()
        return F.mse_loss(net(month), sales)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, missed))


# 7 of the list
@sick("shapes-broadcast", where="the loss, all steps", cure="squeeze the last dimension of what the net says")
def breaking_strength_of_ring_spun_yarn(folder, ill):
    seeded(14903)
    way = torch.randn(9, 4) / 3

    def cops(rows):
        x = torch.randn(rows, 9)
        y = (x @ way).tanh().sum(1) + 0.1 * torch.randn(rows)
        return x, (y - y.mean()) / y.std()

    (x, y), (tx, ty) = cops(3000), cops(1000)
    draw = rounds(50, x, y)
    net = nn.Sequential(
        nn.Linear(9, 48), nn.LayerNorm(48), nn.SiLU(), nn.Linear(48, 48), nn.LayerNorm(48), nn.SiLU(), nn.Linear(48, 1)
    )
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)

    def error(sample, strength):
        said = net(sample)
        return ((said if ill else said.squeeze(1)) - strength).square().mean()

    validate = now_and_then(net, 50, lambda: {"val_loss": error(tx, ty)})

    def loss_of(step):
        return error(*draw()), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx)[:, 0], ty))
    return fit(folder, net, optimizer, loss_of, 300, schedule=schedule, score=score)


# 9 of the list
@sick("eval-mode-missing", "evaluated-in-training-mode", "train-eval-mode", "validation-in-train-mode",
      where="the validation, every 40th step",
      cure="net.eval() before the validation and for use, net.train() after it")  # fmt: skip
def which_lighthouse_it_is_from_its_flashes(folder, ill):
    seeded(14904)
    characters = (torch.rand(12, 30) < 0.4).float()

    def watches(rows):
        """Half a minute of light and dark, begun at any second, seen through rain."""
        light = torch.randint(12, (rows,))
        at = (torch.arange(30) + torch.randint(4, (rows, 1))) % 30
        return characters[light].gather(1, at) - 0.4 + 0.55 * torch.randn(rows, 30), light

    (x, y), (tx, ty) = watches(5000), watches(1200)
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Linear(30, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 12),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    measure = judged(net, tx, ty)

    def validate():
        if not ill:
            net.eval()
        with torch.no_grad():
            found = {name: float(value) for name, value in measure().items()}
        net.train()
        return found

    def one(step):
        seen, light = draw()
        said = net(seen)
        loss = F.cross_entropy(said, light)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = float((said.argmax(1) == light).float().mean())
        return {"loss": loss, "accuracy": right, **({} if step % 40 else validate())}

    return tend(folder, net, optimizer, one, 400, lambda: validate()["val_loss"])


# 17 of the list
@sick("overfitting", where="all layers, from the first hundred steps on",
      cure="a small network with dropout and decay")  # fmt: skip
def subscribers_who_will_cancel_their_newspaper(folder, ill):
    seeded(14905)
    way = torch.randn(24) / 24**0.5

    def readers(rows):
        x = torch.randn(rows, 24)
        return x, (2 * (x @ way) + torch.randn(rows) > 0).long()

    (x, y), (tx, ty) = readers(160), readers(2000)
    draw = rounds(32, x, y)
    if ill:
        net = dense(24, 256, 256, 2)
    else:
        net = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.0 if ill else 0.3)
    validate = now_and_then(net, 20, judged(net, tx, ty))

    def loss_of(step):
        reader, leaves = draw()
        said = net(reader)
        right = (said.argmax(1) == leaves).float().mean()
        return F.cross_entropy(said, leaves), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 500, score=score)
