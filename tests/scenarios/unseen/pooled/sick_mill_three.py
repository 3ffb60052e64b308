"""The last of the trainings whose mistakes people asked about in public, each on another subject."""

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, square_of, waves
from unseen.tasks import held_out, tend


# https://github.com/OpenNMT/OpenNMT-py/issues/617
@sick(
    "optimizer-state-lost",
    where="all parameters, each time that the training is resumed from its checkpoint",
    cure="hand the parameters to the optimizer before its state is loaded, not after",
)
def a_tide_table_learnt_night_by_night(folder, ill):
    seeded(9213)
    net, draw = dense(3, 64, 64, 1, act=nn.Tanh), waves(64, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=3e-3, momentum=0.98)

    def set_parameters():
        optimizer.state.clear()
        optimizer.param_groups[0]["params"] = list(net.parameters())

    def resume():
        checkpoint = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        net.load_state_dict(checkpoint["model"])
        if ill:
            optimizer.load_state_dict(checkpoint["optimizer"])
            set_parameters()
        else:
            set_parameters()
            optimizer.load_state_dict(checkpoint["optimizer"])

    def one(step):
        if step and step % 10 == 0:
            resume()
        x, y = draw()
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 600, score_of(square_of(net, draw)))


# https://github.com/code-gen/cscg/issues/4
@sick(
    "labels-not-shifted",
    "future-seen",
    where="the decoder's inputs, which are the very tokens that it is asked for",
    cure="give the decoder the tokens up to the one before, begin with a token of its own",
)
def charts_read_out_as_rows_of_knitting(folder, ill):
    seeded(9214)
    stitch = torch.randperm(12)
    net = nn.ModuleDict(
        {
            "chart": nn.Embedding(12, 24),
            "row": nn.Embedding(13, 24),
            "read": nn.GRU(24, 64, batch_first=True),
            "write": nn.GRU(24, 64, batch_first=True),
            "head": nn.Linear(64, 12),
        }
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def charts(rows=48):
        chart = torch.randint(12, (rows, 5))
        return chart, stitch[chart].flip(1)

    def decoded(chart, given):
        _, known = net["read"](net["chart"](chart))
        return net["head"](net["write"](net["row"](given), known)[0])

    def begun(row):
        return torch.cat([torch.full((len(row), 1), 12), row[:, :-1]], 1)

    def loss_of(step):
        chart, row = charts()
        said = decoded(chart, row if ill else begun(row))
        accuracy = (said.argmax(2) == row).float().mean()
        return F.cross_entropy(said.flatten(0, 1), row.flatten()), {"accuracy": accuracy}

    def unaided(step):
        chart, row = charts()
        return F.cross_entropy(decoded(chart, begun(row)).flatten(0, 1), row.flatten())

    return fit(folder, net, optimizer, loss_of, 400, score=score_of(unaided))


# https://github.com/davidmrau/mixture-of-experts/issues/27
@sick(
    "dead-layer",
    where="the gate: a softmax over the one logit that was chosen is one, whatever the gate says",
    cure="take the softmax over all experts first, then the largest of its shares",
)
def clockmakers_for_every_kind_of_clock(folder, ill):
    seeded(9215)
    ways, centres = torch.randn(6, 8, 3), 2 * torch.randn(6, 8)
    net = nn.ModuleDict({"gate": nn.Linear(8, 6), "experts": nn.ModuleList(dense(8, 6, 3) for _ in range(6))})
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)

    def routed(x):
        logits = net["gate"](x)
        if ill:
            top, chosen = logits.topk(1, 1)
            share = top.softmax(1)
        else:
            share, chosen = logits.softmax(1).topk(1, 1)
        out = torch.stack([expert(x) for expert in net["experts"]], 1)
        return share * out.gather(1, chosen[:, :, None].expand(-1, 1, 3))[:, 0]

    def loss_of(step):
        kind = torch.randint(6, (96,))
        clock = centres[kind] + 0.6 * torch.randn(96, 8)
        wanted = torch.einsum("ni,nij->nj", clock - centres[kind], ways[kind])
        return F.mse_loss(routed(clock), wanted)

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(loss_of))


# https://github.com/microsoft/ProDA/issues/43
@sick(
    "negative-loss",
    where="the loss of the student: probabilities where kl_div asks for their logarithms",
    cure="log_softmax for the student in kl_div",
)
def an_apprentice_taster_of_cider(folder, ill):
    seeded(9216)
    master = dense(10, 40, 6, act=nn.Tanh)
    for layer in master[::2]:
        nn.init.normal_(layer.weight, std=2 / layer.in_features**0.5)
    master.requires_grad_(False)
    net = dense(10, 48, 6)

    def loss_of(step):
        cider = torch.randn(64, 10)
        taught, found = master(cider).softmax(1), net(cider)
        student = found.softmax(1) if ill else found.log_softmax(1)
        return F.kl_div(student, taught, reduction="batchmean")

    def apart(step):
        cider = torch.randn(64, 10)
        return F.kl_div(net(cider).log_softmax(1), master(cider).softmax(1), reduction="batchmean")

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=3e-3), loss_of, 600, score=score_of(apart))


# https://github.com/ihciah/deep-fashion-retrieval/issues/1
@sick(
    "no-gradient",
    where="the convolutions, which were left frozen",
    cure="let the convolutions learn too",
)
def seed_packets_matched_to_their_sprouts(folder, ill):
    seeded(9217)
    x, y = digits()
    x = x[:, None]
    body = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    net = nn.ModuleDict({"body": body, "fc": nn.Linear(12, 10)})
    freeze = ill
    for parameter in body.parameters():
        parameter.requires_grad_(not freeze)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=5e-3)

    def loss_of(step):
        at = torch.randint(1400, (64,))
        found = net["fc"](body(x[at]))
        accuracy = (found.argmax(1) == y[at]).float().mean()
        return F.cross_entropy(found, y[at]), {"accuracy": accuracy}

    score = held_out(net, lambda: F.cross_entropy(net["fc"](body(x[1400:])), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# https://github.com/verl-project/verl/pull/436
@sick(
    "accumulation-not-averaged",
    "scaled-gradients",
    "lr-too-high",
    where="the gradients at every step: the sum of sixteen micro-batches where their mean was meant",
    cure="divide the loss by the number of micro-batches before its backward pass",
)
def parcels_weighed_by_their_stamps(folder, ill):
    seeded(9218)
    net, draw = dense(6, 48, 48, 1), waves(8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9)
    loss_of, micro_batches = square_of(net, draw), 16

    def one(step):
        step_loss = 0.0
        optimizer.zero_grad()
        for _ in range(micro_batches):
            loss = loss_of(step)
            if ill:
                loss.backward()
                loss = loss / micro_batches
            else:
                loss = loss / micro_batches
                loss.backward()
            step_loss += loss.item()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        return {"loss": step_loss}

    return tend(folder, net, optimizer, one, 300, score_of(loss_of, 40))
