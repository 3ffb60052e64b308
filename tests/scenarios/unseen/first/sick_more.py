"""Sick trainings that no rule was written for, third part: slips of the loop, of precision and of norms."""

from __future__ import annotations

import torch
from nets import Recurrent, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, rings, score_of, seeded, sick, square_of, waves

# ------------------------------------------------------------------------------------------------------------- the loop


@sick(
    "not-in-optimizer",
    "no-gradient", "weights-unchanged",
    where="2.weight and 2.bias, all steps", cure="make the optimizer after the head was replaced: it holds the old one",
)  # fmt: skip
def optimizer_made_before_the_head_was_replaced(folder, ill):
    seeded(80)
    net, draw = dense(12, 64, 4), rings()

    def make():
        return optim.Adam([{"params": net[0].parameters(), "lr": 1e-5}, {"params": net[2].parameters()}], 1e-2)

    old = make()
    net[2] = nn.Linear(64, 4)
    return fit(folder, net, old if ill else make(), entropy_of(net, draw), 200)


@sick(
    "weights-unchanged", "no-gradient", "dead-layer", "no-progress",
    where="all layers, all steps", cure="zero the gradients before backward, not between backward and step",
)  # fmt: skip
def zeroed_between_backward_and_step(folder, ill):
    seeded(81)
    net, draw = dense(12, 64, 64, 4), rings()
    make = optim.Adam(net.parameters(), 3e-3)

    def forget(step):
        make.zero_grad(set_to_none=False)

    return fit(folder, net, make, entropy_of(net, draw), 120, before_step=forget if ill else None)


@sick(
    "no-gradient",
    where="body.0 and body.2, all steps", cure="do not detach what the body gives to the head",
)  # fmt: skip
def body_detached_from_its_head(folder, ill):
    seeded(82)
    net, draw = nn.ModuleDict({"body": dense(12, 32, 8), "head": nn.Linear(8, 4)}), rings()

    def loss_of(step):
        x, y = draw()
        found = net["body"](x)
        return F.cross_entropy(net["head"](found.detach() if ill else found), y)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 150)


@sick(
    "no-gradient", "weights-unchanged",
    where="embed and rnn, all steps", cure="unfreeze the body: it was never trained on anything",
)  # fmt: skip
def body_left_frozen(folder, ill):
    seeded(83)
    net = Recurrent(nn.GRU, 32, seed=83)
    for part in (net.embed, net.rnn):
        part.requires_grad_(not ill)
    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), predict(net, pieces(8, 16, seed=83)), 150)


@sick(
    "rates-apart", "update-too-large", "lr-too-high", "exploding", "nonfinite", "weight-growth", "imbalance",
    where="table.weight, all steps", cure="a rate of 0.05 for the table, as for the head",
)  # fmt: skip
def table_at_a_thousandfold_rate(folder, ill):
    seeded(84)
    table, head = nn.Embedding(100, 16, sparse=True), dense(16, 32, 1)
    net, worth = nn.ModuleDict({"table": table, "head": head}), torch.randn(100, 1)

    def loss_of(step):
        at = (100 * torch.rand(64, 8) ** 2).long()
        return F.mse_loss(head(table(at).mean(1)), worth[at].sum(1))

    groups = [{"params": table.parameters(), "lr": 50.0 if ill else 0.05}, {"params": head.parameters()}]
    return fit(folder, net, optim.SGD(groups, 0.05), loss_of, 250)


@sick(
    "spike",
    where="all layers, at step 120", cure="look at that batch; skip its like (SkipSpike)",
)  # fmt: skip
def one_batch_a_thousandfold(folder, ill):
    seeded(85)
    net, draw = dense(12, 64, 64, 4), rings()

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x * 1000 if ill and step == 120 else x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss_of, 220)


# ------------------------------------------------------------------------------------------------------- half precision


def in_half(net, draw, share=1.0):
    """`loss_of(step)`: a share of the squared error, the net in float16."""

    def loss_of(step):
        x, y = draw()
        with torch.autocast("cpu", dtype=torch.float16):
            return share * F.mse_loss(net(x).float(), y)

    return loss_of


@sick(
    "underflow", "dead-layer", "vanishing", "weights-unchanged",
    where="all layers, all steps", cure="a GradScaler: what is below 6e-8 is zero in float16",
)  # fmt: skip
def float16_without_a_scaler(folder, ill):
    """A loss that is averaged over a million cells of which one counts."""
    seeded(86)
    net, draw = dense(6, 32, 32, 1), waves(32)
    scaler = None if ill else torch.amp.GradScaler("cpu", init_scale=2.0**20)
    options = {"score": score_of(square_of(net, draw)), "scaler": scaler}
    return fit(folder, net, optim.Adam(net.parameters(), 1e-2, eps=1e-12), in_half(net, draw, 1e-6), 250, **options)


@sick(
    "nonfinite", "scaled-gradients", "weights-unchanged", "no-progress",
    where="all layers, all steps", cure="a scaler that begins at 65536 and halves: this one overflows in each step",
)  # fmt: skip
def scaler_that_never_comes_down(folder, ill):
    seeded(87)
    net, draw = dense(6, 32, 32, 1), waves(32)
    scaler = torch.amp.GradScaler("cpu", **({"init_scale": 2.0**40, "backoff_factor": 0.999} if ill else {}))
    options = {"score": score_of(square_of(net, draw)), "scaler": scaler}
    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), in_half(net, draw), 150, **options)


# ------------------------------------------------------------------------------------- norms, activations and the data


@sick(
    "softmax-twice", "saturated", "vanishing", "update-too-small", "no-progress",
    where="all layers, all steps", cure="cross_entropy takes logits: no softmax before it",
)  # fmt: skip
def softmax_before_cross_entropy(folder, ill):
    seeded(88)
    net, draw = dense(12, 64, 64, 8), rings(classes=8)
    score = score_of(entropy_of(net, draw))
    if ill:
        logits = net
        net = nn.Sequential(*logits, nn.Softmax(1))

        def nll(step):
            x, y = draw()
            return F.nll_loss(net(x).clamp_min(1e-12).log(), y)

        score = score_of(nll)
    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), entropy_of(net, draw), 200, score=score)


@sick(
    "noise-dominated", "norm-over-too-few", "no-progress",
    where="1 and 4, all steps", cure="LayerNorm: the statistics of two rows leave a sign",
)  # fmt: skip
def batch_norm_over_two_rows(folder, ill):
    seeded(89)
    net, draw = dense(12, 32, 32, 4, norm=nn.BatchNorm1d if ill else nn.LayerNorm), rings(2)
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), entropy_of(net, draw), 400)


@sick(
    "lr-too-high", "update-too-large", "exploding", "imbalance", "dead-layer", "norm-left-in-eval",
    "left-in-eval",
    where="0.weight, from the first steps", cure="net.train(): the running statistics are those of nothing yet",
)  # fmt: skip
def batch_norm_left_in_eval(folder, ill):
    seeded(90)
    net, draw = dense(12, 48, 48, 4, norm=nn.BatchNorm1d), rings()
    net.train(not ill)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(20 * x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss_of, 150)


@sick(
    "inputs-not-normalised",
    "vanishing", "update-too-small", "imbalance", "no-progress",
    where="0.weight, all steps", cure="standardise the inputs: they are in millionths",
)  # fmt: skip
def inputs_in_millionths(folder, ill):
    seeded(91)
    net, draw = dense(12, 64, 64, 4), rings()

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x * (1e-6 if ill else 1)), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 150)


@sick(
    "dead-layer",
    where="2 and all before it, all steps", cure="biases begin at 0: no unit of the second layer is ever above it",
)  # fmt: skip
def units_biased_to_death(folder, ill):
    seeded(92)
    net, draw = dense(12, 64, 64, 4), rings()
    nn.init.constant_(net[2].bias, -20.0 if ill else 0.0)
    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), entropy_of(net, draw), 200)
