"""Sick trainings that no rule was written for, second part: what the model, its loss and its data do wrong."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, seeded, sick, square_of, waves


@sick(
    "dead-layer", "bad-initialisation", "vanishing", "no-progress",
    where="all layers but the last bias, all steps", cure="He's initialisation: weights of zero pass no gradient on",
)  # fmt: skip
def all_weights_begin_at_zero(folder, ill):
    seeded(40)
    net, draw = dense(12, 64, 64, 4), rings()
    if ill:
        for p in net.parameters():
            nn.init.zeros_(p)
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), entropy_of(net, draw), 200)


@sick(
    "symmetric-units", "bad-initialisation", "no-progress", "lr-too-high",
    where="0.weight and 2.weight, all steps", cure="random initial weights: equal units stay equal",
)  # fmt: skip
def all_units_equal(folder, ill):
    seeded(41)
    net, draw = dense(12, 64, 64, 4), rings()
    if ill:
        for layer in net[::2]:
            nn.init.constant_(layer.weight, 0.05)
            nn.init.zeros_(layer.bias)
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), entropy_of(net, draw), 200)


@sick(
    "dead-layer", "bad-initialisation", "weights-unchanged", "no-progress",
    where="lora_a and lora_b, all steps", cure="only one of A and B begins at zero",
)  # fmt: skip
def adapters_both_zero(folder, ill):
    seeded(43)
    body = nn.Linear(32, 32, bias=False).requires_grad_(False)
    a, b = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
    nn.init.zeros_(b.weight)
    if ill:
        nn.init.zeros_(a.weight)
    net = nn.ModuleDict({"body": body, "lora_a": a, "lora_b": b})
    wanted = body.weight + 0.3 * torch.randn(32, 2) @ torch.randn(2, 32)

    def loss_of(step):
        x = torch.randn(64, 32)
        return F.mse_loss(body(x) + 2 * b(a(x)), x @ wanted.T)

    return fit(folder, net, optim.AdamW([*a.parameters(), *b.parameters()], 3e-3), loss_of, 200)


@sick(
    "no-progress", "noise-dominated",
    where="all layers, all steps", cure="shuffle inputs and labels together",
)  # fmt: skip
def labels_shuffled_apart(folder, ill):
    seeded(44)
    net, draw = dense(12, 64, 64, 4), rings()

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y[torch.randperm(len(y))] if ill else y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


@sick(
    "vanishing", "dead-layer", "update-too-small", "no-progress", "saturated",
    where="all layers, all steps", cure="the last bias at 0 and a loss of logits: a sigmoid at -20 is flat",
)  # fmt: skip
def output_saturated_from_the_start(folder, ill):
    seeded(45)
    net, draw = dense(12, 64, 64, 1), rings(classes=2)
    nn.init.constant_(net[-1].bias, -20.0 if ill else 0.0)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x)[:, 0].sigmoid(), y.float())

    return fit(folder, net, optim.SGD(net.parameters(), 0.5, momentum=0.9), loss_of, 200)


@sick(
    "exploding", "lr-too-high", "update-too-large", "dead-layer", "imbalance",
    where="all layers, from the first steps", cure="targets of unit variance",
)  # fmt: skip
def targets_of_ten_thousand(folder, ill):
    seeded(46)
    net, draw = dense(6, 48, 48, 1), waves()

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y * (1e4 if ill else 1))

    def score():
        with torch.no_grad():
            x, y = draw()
            return F.mse_loss(net(x) / (1e4 if ill else 1), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05), loss_of, 250, score=score)


@sick(
    "inputs-not-normalised",
    "lr-too-high", "imbalance", "exploding", "dead-layer", "update-too-large",
    where="0.weight, all steps", cure="standardise the inputs: one column is in thousands",
)  # fmt: skip
def one_column_in_thousands(folder, ill):
    seeded(47)
    net, draw = dense(12, 64, 64, 4), rings()
    scale = torch.ones(12)
    scale[3] = 3000.0 if ill else 1.0

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x * scale), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05), loss_of, 250)


@sick(
    "nonfinite",
    where="all layers, from step 60", cure="add an epsilon to the deviation: a constant column has none",
)  # fmt: skip
def division_by_no_deviation(folder, ill):
    seeded(48)
    net, draw = dense(12, 64, 64, 4), rings()

    def loss_of(step):
        x, y = draw()
        if step >= 60:
            x = x * (torch.arange(12) != 5)
        return F.cross_entropy(net((x - x.mean(0)) / (x.std(0) + (0.0 if ill else 1e-3))), y)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 150)


@sick(
    "nonfinite",
    where="all layers, from step 50", cure="never mask a whole row: softmax of nothing is NaN",
)  # fmt: skip
def attention_over_an_empty_row(folder, ill):
    seeded(49)
    net = nn.ModuleDict({"q": nn.Linear(8, 8), "k": nn.Linear(8, 8), "v": nn.Linear(8, 1)})

    def loss_of(step):
        x = torch.randn(32, 6, 8)
        length = torch.randint(1, 7, (32,))
        if ill and step >= 50:
            length[0] = 0
        mask = torch.arange(6) < length[:, None]
        score = (net["q"](x[:, :1]) @ net["k"](x).transpose(1, 2))[:, 0].masked_fill(~mask, float("-inf"))
        found = (score.softmax(1)[..., None] * net["v"](x)).sum(1)
        wanted = (x[..., :1] * mask[..., None]).sum(1) / length.clamp(min=1)[:, None]
        return F.mse_loss(found, wanted)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 150)


@sick(
    "noise-dominated", "no-progress", "dropout-too-strong",
    where="all layers, all steps", cure="a dropout of 0.1: at 0.99 next to nothing gets through",
)  # fmt: skip
def dropout_of_all_but_a_hundredth(folder, ill):
    seeded(50)
    draw, p = rings(), 0.99 if ill else 0.1
    net = nn.Sequential(
        nn.Linear(12, 64), nn.ReLU(), nn.Dropout(p), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(p), nn.Linear(64, 4)
    )
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), entropy_of(net, draw), 250)


@sick(
    "dead-layer", "vanishing", "no-progress",
    where="norm.weight and all before it", cure="gains begin at 1 where no residual path goes round",
)  # fmt: skip
def gain_of_zero_on_the_only_path(folder, ill):
    seeded(51)
    net, draw = dense(6, 48, 48, 1, norm=nn.LayerNorm), waves()
    if ill:
        nn.init.constant_(net[1].weight, 0.0)
        nn.init.constant_(net[4].weight, 0.0)
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), square_of(net, draw), 200)


@sick(
    "vanishing", "dead-layer", "no-progress", "saturated",
    where="the first layers, all steps", cure="Xavier's initialisation: tanh units at weights of 5 are saturated",
)  # fmt: skip
def saturated_tanh(folder, ill):
    seeded(52)
    net, draw = dense(6, 48, 48, 48, 1, act=nn.Tanh), waves()
    for layer in net[::2]:
        nn.init.xavier_normal_(layer.weight, 15.0 if ill else 1.0)
    return fit(folder, net, optim.SGD(net.parameters(), 0.03, momentum=0.9), square_of(net, draw), 250)
