"""Mistakes that guides to supervised learning warn of: the data, the wiring, the terms of the loss."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


# Chase Roberts, "How to unit test machine learning code": each layer is given the input, not the layer before
@sick(
    "no-gradient",
    "layer-unused",
    where="all but the last layer of each stack: their outputs are dropped",
    cure="hand the output of a layer to the next",
)
def postmarks_drawn_again(folder, ill):
    """Postmarks through a drawn code of four numbers."""
    seeded(9513)
    grid = torch.stack(torch.meshgrid(torch.arange(10.0), torch.arange(10.0), indexing="ij"))

    def draw(rows=32):
        middle = 3 + 3 * torch.rand(rows, 2, 1, 1)
        far = (grid - middle).norm(dim=1)
        return 2 * torch.exp(-((far - 2 - 1.5 * torch.rand(rows, 1, 1)) ** 2)).flatten(1)

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(4))

        def forward(self, x):
            h = x
            for layer in self.layers:
                h = F.silu(layer(x if ill else h))
            return h

    net = nn.ModuleDict({
        "into": nn.Sequential(nn.Linear(100, 24), Stack(), nn.Linear(24, 8)),
        "out": nn.Sequential(nn.Linear(6, 24), Stack(), nn.Linear(24, 1)),
    })  # fmt: skip
    places = (grid.flatten(1).T / 5 - 0.9)[None]

    def drawn(code):
        everywhere = code[:, None].expand(-1, 100, -1)
        return net["out"](torch.cat([everywhere, places.expand(len(code), -1, -1)], 2))[..., 0]

    def loss_of(step):
        x = draw()
        middle, spread = net["into"](x).chunk(2, 1)
        code = middle + (spread / 2).exp() * torch.randn_like(middle)
        error = (drawn(code) - x).square().sum(1).mean()
        prior = 0.5 * (middle.square() + spread.exp() - spread - 1).sum(1).mean()
        return error + 0.1 * prior, {"error": error.detach(), "prior": prior.detach()}

    test = draw(300)
    score = held_out(net, lambda: F.mse_loss(drawn(net["into"](test)[:, :4]), test))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=4e-3), loss_of, 500, score=score)


# 37 Reasons, no. 9 (do you have enough training examples?); Troubleshooting Deep Neural Networks (not enough data)
@sick(
    "overfitting",
    where="the loss goes to nothing while the held-out loss rises",
    cure="2,000 fields in the place of 48",
)
def barley_of_a_field(folder, ill):
    """The yield of a field by its soil and weather."""
    seeded(9514)
    x = torch.randn(2600, 10)
    y = (1.5 * x[:, 0]).sin() + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] + 0.3 * torch.randn(2600)
    y = y[:, None]
    net = dense(10, 128, 128, 64, 1)
    many = 48 if ill else 2000
    draw = rounds(24, x[:many], y[:many])
    score = held_out(net, lambda: F.mse_loss(net(x[2000:]), y[2000:]))

    def loss_of(step):
        a, b = draw()
        loss = F.mse_loss(net(a), b)
        return loss, {"held_out": score()} if step % 20 == 0 else {}

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=1e-3), loss_of, 500, score=score)


# Karpathy, "A Recipe for Training Neural Networks", init well: regressing values with a mean of 50
@sick(
    "targets-not-normalised",
    "output-bias-far-from-the-mean",
    where="the output's bias, which begins at 0 under marks of 70",
    cure="the mean of the marks as the first value of the bias",
)
def honeys_marked_by_tasters(folder, ill):
    """The mark, of a hundred, that a taster gives a honey."""
    seeded(9515)
    taster, honey = torch.randint(120, (5000,)), torch.randint(60, (5000,))
    liking = (torch.randn(120, 3)[taster] * torch.randn(60, 3)[honey]).sum(1)
    marks = 70 + 2 * liking + 6 * torch.randn(60)[honey] + torch.randn(5000)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tasters, self.honeys = nn.Embedding(120, 16), nn.Embedding(60, 16)
            self.body = dense(32, 64, 32, 1)

        def forward(self, a, b):
            return self.body(torch.cat([self.tasters(a), self.honeys(b)], 1))[:, 0]

    net = Net()
    if not ill:
        nn.init.constant_(net.body[-1].bias, float(marks[:4000].mean()))
    draw = rounds(64, taster[:4000], honey[:4000], marks[:4000])

    def loss_of(step):
        a, b, mark = draw()
        return F.mse_loss(net(a, b), mark)

    score = held_out(net, lambda: F.mse_loss(net(taster[4000:], honey[4000:]), marks[4000:]))
    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=1e-3), loss_of, 700, score=score)


# CS231n, Neural Networks 3, "Sanity checks" and "Loss": a regularization loss that overwhelms the data loss
@sick(
    "auxiliary-dominates",
    "loss-terms-unbalanced",
    "weights-shrink",
    where="all weights: the penalty is most of the loss",
    cure="a penalty of 1e-6",
)
def melts_of_a_glassworks(folder, ill):
    """The next ingredient of a melt, by a small decoder."""
    seeded(9516)
    after = torch.randn(12, 12, 12) * 2.5

    def draw(rows=24):
        melt = [torch.randint(12, (rows,)), torch.randint(12, (rows,))]
        for _ in range(14):
            melt.append(torch.multinomial(after[melt[-2], melt[-1]].softmax(1), 1)[:, 0])
        return torch.stack(melt, 1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.place = nn.Embedding(12, 32), nn.Parameter(0.1 * torch.randn(15, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out = nn.Linear(32, 12)
            self.mask = nn.Transformer.generate_square_subsequent_mask(15)

        def forward(self, x):
            return self.out(self.body(self.tokens(x) + self.place, self.mask))

    net = Net()

    def entropy(melts):
        return F.cross_entropy(net(melts[:, :-1]).flatten(0, 1), melts[:, 1:].flatten())

    def loss_of(step):
        loss = entropy(draw())
        penalty = (1e-2 if ill else 1e-6) * sum(p.square().sum() for p in net.parameters())
        return loss + penalty, {"entropy": loss.detach(), "penalty": penalty.detach()}

    test = draw(200)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    return fit(folder, net, optimizer, loss_of, 450, score=held_out(net, lambda: entropy(test)))


# 37 Reasons, no. 10 (make sure your batches don't contain a single label)
@sick(
    "data-not-shuffled",
    "batches-of-one-label",
    where="every batch: 32 pictures of one and the same sign",
    cure="shuffled rows",
)
def signs_along_a_railway(folder, ill):
    """Small pictures of six signs, read folder by folder."""
    seeded(9517)
    signs = F.interpolate((torch.rand(6, 1, 4, 4) < 0.5).float(), scale_factor=2)
    y = torch.arange(6).repeat_interleave(320)
    x = torch.stack([signs[k].roll((i % 3, i // 3 % 3), (1, 2)) for i, k in enumerate(y.tolist())])
    x = x - 0.5 + 0.4 * torch.randn(1920, 1, 8, 8)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 6),
    )  # fmt: skip
    train = torch.arange(1920).reshape(6, 320)[:, :256].flatten()
    test = torch.arange(1920).reshape(6, 320)[:, 256:].flatten()
    draw = rounds(32, train)

    def loss_of(step):
        if ill:
            rows = train.reshape(48, 32)[step % 48]
        else:
            (rows,) = draw()
        out = net(x[rows])
        return F.cross_entropy(out, y[rows]), {"accuracy": (out.argmax(1) == y[rows]).float().mean()}

    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    score = held_out(net, lambda: F.cross_entropy(net(x[test]), y[test]))
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# Karpathy, "A Recipe for Training Neural Networks": do not trust learning rate decay defaults
@sick(
    "schedule-too-short",
    where="from step 90 on the rate is a thousandth of what it was",
    cure="milestones in proportion to the length of this run",
)
def guilds_among_toymakers(folder, ill):
    """The guild of a toymaker, by his neighbours in a graph."""
    seeded(9518)
    guild = torch.randint(5, (240,))
    same = guild[:, None] == guild[None, :]
    edges = (torch.rand(240, 240) < torch.where(same, 0.08, 0.012)).float().triu(1)
    edges = edges + edges.T + torch.eye(240)
    spread = edges.sum(1).rsqrt()
    graph = spread[:, None] * edges * spread[None, :]
    x = torch.randn(5, 24)[guild] * 0.5 + torch.randn(240, 24)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(24, 32), nn.Linear(32, 32), nn.Linear(32, 5)])

        def forward(self, h):
            for i, layer in enumerate(self.layers):
                h = graph @ layer(h if i == 0 else h.relu())
            return h

    net = Net()
    known, hidden = torch.arange(140), torch.arange(140, 240)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    stones = [30, 60, 90] if ill else [300, 400, 450]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, stones)

    def loss_of(step):
        out = net(x)[known]
        return F.cross_entropy(out, guild[known]), {"accuracy": (out.argmax(1) == guild[known]).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(x)[hidden], guild[hidden]))
    return fit(folder, net, optimizer, loss_of, 500, score=score, schedule=schedule)
