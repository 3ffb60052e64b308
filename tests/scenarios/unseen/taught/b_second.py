"""Greenhouses, beetles, pots, stamps, snow and mushrooms."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


# PyTorch, "Transfer learning" and "Autograd mechanics": what was frozen stays so until requires_grad is set again.
@sick("no-gradient", where="the convolutions, all steps", cure="unfreeze the body before it is tuned")
def blight_on_tomato_leaves_under_glass(folder, ill):
    seeded(9607)
    body = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
    )  # fmt: skip
    row, column = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")

    def leaves(rows):
        x, kind = 0.7 * torch.randn(rows, 1, 12, 12), torch.randint(4, (rows,))
        ways = torch.stack([row, column, row + column, row - column])
        return x + ((ways[kind] + 4 * torch.rand(rows, 1, 1)) * 1.6).sin()[:, None], kind

    def shades(rows):
        light = torch.rand(rows, 1, 1, 1) * 4 - 2
        return light + 0.3 * torch.randn(rows, 1, 12, 12), light.flatten(1)

    before = nn.Sequential(body, nn.Linear(64, 1))
    first = torch.optim.Adam(before.parameters(), lr=3e-3)
    for _ in range(60):
        x, y = shades(32)
        first.zero_grad()
        F.mse_loss(before(x), y).backward()
        first.step()

    net = nn.Sequential(body, nn.Linear(64, 4))
    for p in body.parameters():
        p.requires_grad = not ill
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    x_test, y_test = leaves(400)

    def loss_of(step):
        x, y = leaves(32)
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x_test), y_test))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


# Pascanu et al., "On the difficulty of training recurrent neural networks": gradients fade over long lags.
@sick("vanishing", where="the recurrence, over the 40 steps of a walk", cure="a GRU that begins by keeping its state")
def beetles_told_by_their_first_turn(folder, ill):
    seeded(9608)
    memory = nn.RNN(5, 32, batch_first=True) if ill else nn.GRU(5, 32, batch_first=True)
    if not ill:
        nn.init.constant_(memory.bias_ih_l0.data[32:64], 2.0)
    net = nn.ModuleDict({"memory": memory, "head": nn.Linear(32, 3)})
    optimizer = torch.optim.RMSprop(net.parameters(), lr=4e-3)

    def walks(rows, length=40):
        kind = torch.randint(3, (rows,))
        x = torch.cat([torch.zeros(rows, length, 3), 0.3 * torch.randn(rows, length, 2)], 2)
        x[:, 1, :3] = 2.0 * F.one_hot(kind, 3)
        return x, kind

    def loss_of(step):
        x, y = walks(32)
        return F.cross_entropy(net["head"](memory(x)[0][:, -1]), y)

    x_test, y_test = walks(300)
    score = held_out(net, lambda: F.cross_entropy(net["head"](memory(x_test)[0][:, -1]), y_test))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


# PyTorch, "Saving and loading a general checkpoint": keep the state of the optimizer, too.
@sick("optimizer-state-lost", "moments-begin-anew", where="all tables, at the start of each round",
      cure="make the optimizer once, and keep its state from round to round")  # fmt: skip
def glazes_that_suit_a_clay(folder, ill):
    seeded(9609)
    clays, glazes = 60, 50
    net = nn.ModuleDict({"clay": nn.Embedding(clays, 8), "glaze": nn.Embedding(glazes, 8), "mix": dense(16, 48, 48, 1)})
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
    fresh = copy.deepcopy(optimizer.state_dict())
    of_clay, of_glaze = torch.randn(clays, 3), torch.randn(glazes, 3)
    pairs = torch.cartesian_prod(torch.arange(clays), torch.arange(glazes))[torch.randperm(clays * glazes)]
    marks = (of_clay[pairs[:, 0]] * of_glaze[pairs[:, 1]]).sum(1, keepdim=True)
    draw = rounds(64, pairs[:2400], marks[:2400])

    def found(who):
        return net["mix"](torch.cat([net["clay"](who[:, 0]), net["glaze"](who[:, 1])], 1))

    def loss_of(step):
        who, y = draw()
        return F.mse_loss(found(who), y)

    def after_step(step):
        if ill and step % 5 == 4:
            optimizer.load_state_dict(fresh)

    score = held_out(net, lambda: F.mse_loss(found(pairs[2400:]), marks[2400:]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, after_step=after_step)


# Guides to SimSiam and BYOL: without a stop-gradient on one branch all examples come to one embedding.
@sick("representation-collapse", "no-stop-gradient", where="the last layers of the encoder, first steps",
      cure="detach the embedding that is predicted")  # fmt: skip
def stamps_known_again_by_their_print(folder, ill):
    seeded(9610)
    encode = dense(24, 64, 64, 16, norm=nn.BatchNorm1d)
    guess = dense(16, 32, 16)
    net = nn.ModuleDict({"encode": encode, "guess": guess})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    lift = torch.randn(6, 24)

    def views(rows):
        print_ = (torch.randn(rows, 6) @ lift).tanh()
        return (print_ + 0.4 * torch.randn(rows, 24) for _ in range(2))

    def loss_of(step):
        a, b = (encode(x) for x in views(64))
        aims = (a, b) if ill else (a.detach(), b.detach())
        near = F.cosine_similarity(guess(a), aims[1]).mean() + F.cosine_similarity(guess(b), aims[0]).mean()
        return -near / 2

    def confused():
        a, b = (encode(x) for x in views(300))
        a, b = (F.normalize(z, dim=1) for z in (a, b))
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(300))

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, confused))


# PyTorch FAQ: "Don't run RNNs on sequences that are too large", back-propagate through a part of them.
@sick("exploding", where="the recurrence, over the steps of a winter", cure="train on stretches of 20 days")
def snow_on_a_roof_from_day_to_day(folder, ill):
    seeded(9611)
    memory = nn.RNN(3, 32, nonlinearity="relu", batch_first=True)
    nn.init.eye_(memory.weight_hh_l0)
    net = nn.ModuleDict({"memory": memory, "head": nn.Linear(32, 1)})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def winters(rows, days):
        x, lies, depth = torch.randn(rows, days, 3), torch.zeros(rows), []
        for day in range(days):
            lies = (0.8 * lies + 0.4 * x[:, day, 0] - 0.2 * x[:, day, 1]).relu()
            depth.append(lies)
        return x, torch.stack(depth, 1)[..., None]

    def loss_of(step):
        x, y = winters(16, 200 if ill else 20)
        return F.mse_loss(net["head"](memory(x)[0]), y)

    x_test, y_test = winters(128, 20)
    score = held_out(net, lambda: F.mse_loss(net["head"](memory(x_test)[0]), y_test))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


# Guides to diffusion models: the usual decay of 0.9999 of the averaged weights fits runs of 100,000s of steps.
@sick("average-too-slow", where="the averaged weights that are kept, all steps", cure="a decay of 0.99")
def caps_and_stems_of_mushrooms(folder, ill):
    seeded(9612)
    net = dense(3, 64, 64, 64, 2, act=nn.SiLU)
    kept = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    keep = torch.cumprod(1 - torch.linspace(1e-3, 0.12, 50), 0)
    decay = 0.9999 if ill else 0.99

    def error(model, rows=128):
        kind, t = torch.randint(3, (rows, 1)), torch.randint(50, (rows,))
        x = torch.cat([kind - 1.0, (kind - 1.0) ** 2 * 1.5 - 0.8], 1) + 0.1 * torch.randn(rows, 2)
        noise = torch.randn(rows, 2)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        return F.mse_loss(model(torch.cat([noisy, t[:, None] / 50], 1)), noise)

    def one(step):
        optimizer.zero_grad()
        loss = error(net)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(kept.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 1 - decay)
            return {"loss": loss.detach(), "loss_averaged": error(kept)}

    def score():
        with torch.no_grad():
            return error(kept, 4096)

    return tend(folder, net, optimizer, one, 400, score)
