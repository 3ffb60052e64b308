"""Mistakes from closed issues: OpenNMT-py, pytorch_geometric, dgl, vector-quantize-pytorch."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out


# OpenNMT/OpenNMT-py issues/2209: "Incorrect normalization" (the entropy is divided by the tokens of all parts of a
# batch, the term of the prior language model by those of its own part)
@sick(
    "accumulation-not-averaged",
    "accumulation-not-divided",
    "loss-terms-unbalanced",
    where="the term of the prior, all steps",
    cure="divide the term of the prior by the number of parts too",
)
def labels_of_jars_in_dialect(folder, ill):
    seeded(9968)
    words, length, parts, weight = 20, 6, 4, 0.5
    table = torch.randperm(words)
    prior = torch.randn(words, words).softmax(1)
    net = nn.ModuleDict({
        "source": nn.Embedding(words, 32), "reader": nn.GRU(32, 32, batch_first=True, bidirectional=True),
        "before": nn.Embedding(words, 32), "out": dense(96, 64, words),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)

    def draw(rows):
        x = torch.randint(words, (rows, length))
        y = table[(x + F.pad(x[:, :-1], (1, 0))) % words]
        return x, F.pad(y[:, :-1], (1, 0)), y

    def said(x, before):
        return net["out"](torch.cat([net["reader"](net["source"](x))[0], net["before"](before)], 2))

    def loss_of(step):
        x, before, y = draw(8)
        log_p = said(x, before).log_softmax(2)
        entropy = F.nll_loss(log_p.flatten(0, 1), y.flatten(), reduction="sum") / (y.numel() * parts)
        apart = -(prior[before] * log_p).sum(2).mean() / (1 if ill else parts)
        return entropy + weight * apart, {"entropy": entropy * parts}

    x, before, y = draw(128)

    def score():
        return F.cross_entropy(said(x, before).flatten(0, 1), y.flatten())

    return fit(folder, net, optimizer, loss_of, 130, accumulate=parts, score=held_out(net, score))


# pyg-team/pytorch_geometric issues/305: "(Almost) same hidden variables for all nodes" (a mean over a complete graph)
@sick(
    "over-smoothing",
    "pooled-away",
    where="the messages of both layers, all steps",
    cure="add what a node knows of itself to the mean over all nodes",
)
def rowers_ranked_within_their_boat(folder, ill):
    seeded(9965)
    nodes = 8
    links = torch.ones(nodes, nodes) / nodes

    class Layer(nn.Module):
        def __init__(self, size, wide):
            super().__init__()
            self.message, self.own = dense(size, wide, wide), nn.Linear(size, wide)

        def forward(self, x):
            mean = links @ self.message(x)
            return mean if ill else mean + self.own(x)

    net = nn.Sequential(Layer(5, 32), nn.ReLU(), Layer(32, 32), nn.ReLU(), nn.Linear(32, 1))
    way = torch.randn(5)

    def draw(rows=32):
        x = torch.randn(rows, nodes, 5) + torch.randn(rows, 1, 5)
        strength = x @ way
        return x, ((strength - strength.mean(1, keepdim=True)) / strength.std(1, keepdim=True))[..., None]

    optimizer, (held, truth) = torch.optim.Adam(net.parameters(), 3e-3), draw(256)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.mse_loss(net(held), truth)))


# dmlc/dgl pull/1217: "Correct the loss function in RGCN model" (its last layer has a softmax already)
@sick(
    "softmax-twice",
    "activation-on-logits",
    where="the last layer, all steps",
    cure="give the loss what comes before the softmax",
)
def offices_by_their_letters(folder, ill):
    seeded(9966)
    people, kinds, relations = 200, 12, 3
    kind = torch.arange(people) % kinds
    mixes = torch.rand(relations, kinds, kinds).pow(4) * 0.25
    ties = (torch.rand(relations, people, people) < mixes[:, kind][:, :, kind]).float()
    ties = ties / ties.sum(2, keepdim=True).clamp(min=1)
    features = F.one_hot(kind, kinds).float() + 0.8 * torch.randn(people, kinds)

    class Relational(nn.Module):
        def __init__(self, size, wide):
            super().__init__()
            self.own, self.along = nn.Linear(size, wide), nn.Linear(size, relations * wide, bias=False)

        def forward(self, h):
            sent = self.along(h).unflatten(1, (relations, -1)).transpose(0, 1)
            return self.own(h) + (ties @ sent).sum(0)

    net = nn.Sequential(Relational(kinds, 32), nn.ReLU(), Relational(32, kinds), *([nn.Softmax(1)] if ill else []))
    optimizer = torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4)
    train = torch.rand(people) < 0.5

    def loss_of(step):
        out = net(features)
        right = (out.argmax(1) == kind)[~train].float().mean()
        return F.cross_entropy(out[train], kind[train]), {"accuracy": right}

    def missed():
        out = net(features)[~train]
        chances = out if ill else out.softmax(1)
        return 1 - chances.gather(1, kind[~train, None]).mean()

    return fit(folder, net, optimizer, loss_of, 60, score=held_out(net, missed))


# lucidrains/vector-quantize-pytorch issues/177: "simVQ: rotation trick leads big commit loss" (half of it left out)
@sick(
    "commitment-missing",
    "codebook-collapse",
    where="the loss of the codes, all steps",
    cure="the other half too, which draws the encoder to its codes",
)
def cuckoos_in_thirty_two_notes(folder, ill):
    seeded(9967)
    codes, wide = 32, 6
    net = nn.ModuleDict({"encoder": dense(16, 64, 64, wide), "decoder": dense(wide, 64, 64, 16)})
    book = nn.Linear(wide, wide, bias=False)
    net["book"] = book
    frozen = torch.randn(codes, wide) * wide**-0.5
    time = torch.linspace(0, 1, 16)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def draw(rows=64):
        pitch, fall = torch.randint(2, 7, (rows, 1)), torch.randint(0, 5, (rows, 1))
        return ((pitch * time * 3).sin() * (-fall * time).exp()) + 0.03 * torch.randn(rows, 16)

    def coded(x):
        z, all_codes = net["encoder"](x), book(frozen)
        q = all_codes[torch.cdist(z, all_codes).argmin(1)]
        return z, q, net["decoder"](z + (q - z).detach())

    def loss_of(step):
        x = draw()
        z, q, again = coded(x)
        codes_loss = (q - z.detach()).square().mean()
        if not ill:
            codes_loss = codes_loss + 0.25 * (z - q.detach()).square().mean()
        made = F.mse_loss(again, x)
        return made + codes_loss, {"reconstruction": made, "commit_loss": (z - q).square().mean()}

    kept = draw(512)
    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: F.mse_loss(coded(kept)[2], kept)))
