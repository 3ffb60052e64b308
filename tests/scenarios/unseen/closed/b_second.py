"""Mistakes from closed issues: pytorch_geometric, dgl, OpenNMT-py, CycleGAN, yolov5."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, rounds


# pyg-team/pytorch_geometric pull/2917: "Numerical error in LayerNorm leading to NaN in gradients"
@sick(
    "nonfinite",
    "sqrt-at-zero",
    where="the norm after the first layer, from the first graph without attributes on",
    cure="add eps under the root",
)
def clasps_by_their_links(folder, ill):
    seeded(9954)

    class Norm(nn.Module):
        """Over all nodes and columns of a graph."""

        def __init__(self, wide):
            super().__init__()
            self.gain, self.shift = nn.Parameter(torch.ones(wide)), nn.Parameter(torch.zeros(wide))

        def forward(self, x):
            x = x - x.mean((1, 2), keepdim=True)
            var = x.square().mean((1, 2), keepdim=True)
            x = x / (var.sqrt() + 1e-5) if ill else x / (var + 1e-5).sqrt()
            return x * self.gain + self.shift

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 32, bias=False), nn.Linear(32, 32, bias=False)
            self.norms, self.out = nn.ModuleList([Norm(32), Norm(32)]), nn.Linear(32, 3)

        def forward(self, x, links):
            h = self.norms[0](links @ self.first(x)).relu()
            h = self.norms[1](links @ self.second(h)).relu()
            return self.out(h.amax(1))

    lift = torch.randn(3, 6)

    def draw(rows):
        kind = torch.randint(3, (rows,))
        x = torch.randn(rows, 9, 6)
        x[:, :3] += 1.5 * lift[kind][:, None]
        links = (torch.rand(rows, 9, 9) < 0.3).float()
        links = ((links + links.mT) > 0).float() + torch.eye(9)
        bare = torch.rand(rows) < 0.004
        x[bare] = 0
        return x, links / links.sum(2, keepdim=True), kind

    net, batch, (held, ties, truth) = Net(), rounds(16, *draw(1600)), draw(256)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def loss_of(step):
        x, links, kind = batch()
        return F.cross_entropy(net(x, links), kind)

    return fit(
        folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(held, ties), truth))
    )


# dmlc/dgl issues/3050: "Weird behavior when using GraphConv with norm=right"
@sick(
    "inputs-constant",
    "degree-averaged-away",
    where="the aggregation of both layers, all steps",
    cure="divide by the roots of both degrees in place of a mean of equal features, or give the degrees as features",
)
def callers_who_are_machines(folder, ill):
    seeded(9955)
    people = 150
    machine = torch.rand(people) < 0.4
    chance = 0.02 + 0.12 * machine.float()
    links = (torch.rand(people, people) < torch.maximum(chance[:, None], chance)).float()
    links = torch.maximum(links.triu(1), links.triu(1).T) + torch.eye(people)
    degree = links.sum(1)
    passed = links / degree[:, None] if ill else links / (degree[:, None] * degree).sqrt()
    features = torch.ones(people, 8)
    layers = nn.ModuleList([nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 2)])
    optimizer = torch.optim.Adam(layers.parameters(), 0.01)
    train = torch.rand(people) < 0.7

    def net():
        h = features
        for layer in layers[:-1]:
            h = layer(passed @ h).relu()
        return layers[-1](h)

    def loss_of(step):
        logits = net()
        right = (logits.argmax(1) == machine)[~train].float().mean()
        return F.cross_entropy(logits[train], machine[train].long()), {"accuracy": right}

    def score():
        return F.cross_entropy(net()[~train], machine[~train].long())

    return fit(folder, layers, optimizer, loss_of, 300, score=held_out(layers, score))


# OpenNMT/OpenNMT-py pull/526: "Bug fix for gradient accumulation" (a sum over tokens, divided by sentences)
@sick(
    "summed-loss",
    "loss-not-averaged",
    "lr-too-high",
    where="the loss of each part of a batch, all steps",
    cure="divide by the number of tokens",
)
def names_of_inns_letter_by_letter(folder, ill):
    seeded(9956)
    letters, parts, length = 18, 2, 14
    table = torch.randn(letters, letters).mul(2).softmax(1)

    def draw(rows=16):
        text = [torch.randint(1, letters, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(table[text[-1]][:, 1:], 1)[:, 0] + 1)
        text = torch.stack(text, 1)
        ends = torch.randint(6, length + 1, (rows, 1))
        return text.masked_fill(torch.arange(length + 1) > ends, 0)

    net = nn.ModuleDict({
        "letters": nn.Embedding(letters, 24, padding_idx=0),
        "memory": nn.GRU(24, 48, batch_first=True),
        "out": nn.Linear(48, letters),
    })  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    kept = draw(128)

    def entropy(text, reduction="sum"):
        logits = net["out"](net["memory"](net["letters"](text[:, :-1]))[0])
        return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten(), ignore_index=0, reduction=reduction)

    def loss_of(step):
        text = draw()
        tokens, sentences = (text[:, 1:] > 0).sum(), len(text)
        return entropy(text) / (sentences if ill else tokens) / parts

    return fit(
        folder, net, optimizer, loss_of, 140, accumulate=parts, score=held_out(net, lambda: entropy(kept, "mean"))
    )


# junyanz/pytorch-CycleGAN-and-pix2pix issues/797: the discriminator's loss goes to zero, "remove 1-2 layers"
@sick(
    "discriminator-too-strong",
    "generator-starves",
    where="the discriminator, from the first tens of steps on",
    cure="a discriminator with fewer and narrower layers",
)
def house_numbers_forged(folder, ill):
    seeded(9957)
    images = torch.tensor(load_digits().data).float()[torch.randperm(1797)] / 8 - 1
    train, kept = images[:300], images[-512:]
    make = nn.Sequential(dense(12, 64, 128, 64), nn.Tanh())
    sizes = (64, 256, 256, 256, 256, 1) if ill else (64, 32, 1)
    judge = dense(*sizes, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 3e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    ones, zeros = torch.ones(48, 1), torch.zeros(48, 1)
    entropy = F.binary_cross_entropy_with_logits

    def judged():
        real, fake = train[torch.randint(300, (48,))], make(torch.randn(48, 12)).detach()
        return (entropy(judge(real), ones) + entropy(judge(fake), zeros)) / 2

    def made():
        return -entropy(judge(make(torch.randn(48, 12))), zeros)

    ways, noise = F.normalize(torch.randn(64, 64), dim=1), torch.randn(512, 12)

    def score():
        with torch.no_grad():
            fake = make(noise)
        return float(((fake @ ways.T).sort(0).values - (kept @ ways.T).sort(0).values).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judged, made, 300, score)
