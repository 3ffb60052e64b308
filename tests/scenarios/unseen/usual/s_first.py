"""Sick trainings of gardens, bees and orchards in spring, drawn by lot: rates, classes, shapes, views, two networks."""

from __future__ import annotations

import torch
from sklearn.datasets import load_iris, make_classification
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, in_turn, rounds


class Forecast(nn.Module):
    """The next value of a series that a GRU has read."""

    def __init__(self, width):
        super().__init__()
        self.memory = nn.GRU(1, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, series):
        return self.head(self.memory(series[..., None])[0][:, -1])[:, 0]


@sick("update-too-small", "lr-too-low", where="all layers, all steps", cure="a rate of 3e-3")
def nectar_that_flows_until_noon(folder, ill):
    seeded(11900)
    net = Forecast(32)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6 if ill else 3e-3, weight_decay=0.01)

    def series(rows, length=25):
        hour = torch.arange(float(length)) + 12 * torch.rand(rows, 1)
        flow = (0.3 + torch.rand(rows, 1)) * (6.2832 * hour / 12).sin() + 0.1 * torch.randn(rows, length)
        return flow[:, :-1], flow[:, -1]

    draw = rounds(64, *series(1600))

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), {"lr": optimizer.param_groups[0]["lr"]}

    tx, ty = series(512)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))


@sick("class-imbalance", "class-weights-inverted",
      where="the loss, all steps: the rare class weighs less than it is rare",
      cure="a pos_weight of negatives over positives")  # fmt: skip
def colonies_that_swarm_in_may(folder, ill):
    seeded(11901)
    table, swarms = make_classification(
        3000, 16, n_informative=8, n_redundant=2, weights=[0.92], class_sep=1.3, flip_y=0.005,
        random_state=int(torch.randint(10**6, ())),
    )  # fmt: skip
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(swarms, dtype=torch.float32)
    x = (x - x[:2000].mean(0)) / x[:2000].std(0)
    positive, negative = (y[:2000] == 1).sum(), (y[:2000] == 0).sum()
    weight = positive / negative if ill else negative / positive
    net = dense(16, 64, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    draw = rounds(64, x[:2000], y[:2000])

    def loss_of(step):
        x, y = draw()
        logits = net(x)[:, 0]
        loss = F.binary_cross_entropy_with_logits(logits, y, pos_weight=weight)
        return loss, {"accuracy": float(((logits > 0) == (y > 0.5)).float().mean())}

    def balanced():
        each = F.binary_cross_entropy_with_logits(net(x[2000:])[:, 0], y[2000:], reduction="none")
        return (each[y[2000:] == 1].mean() + each[y[2000:] == 0].mean()) / 2

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, balanced))


class Plot(nn.Module):
    """A number for each of many small graphs, by two rounds of messages."""

    def __init__(self, width):
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.near = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.head = nn.Linear(width, 1)

    def forward(self, nodes, links):
        h = self.enter(nodes).relu()
        share = links / links.sum(2, keepdim=True).clamp(min=1)
        for own, near in zip(self.own, self.near, strict=False):
            h = h + (own(h) + near(share @ h)).relu()
        return self.head(h.mean(1))


@sick("shapes-broadcast", where="the loss, all steps: predictions [N, 1] against targets [N]",
      cure="targets with a last axis of one, as the predictions have")  # fmt: skip
def bushes_that_share_their_pollen(folder, ill):
    seeded(11902)
    net = Plot(32)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def gardens(rows, bushes=8):
        nodes = torch.randn(rows, bushes, 4)
        links = (torch.rand(rows, bushes, bushes) < 0.3).float().triu(1)
        links = links + links.transpose(1, 2)
        set_ = nodes[..., 0] + nodes[..., 1].relu() + 0.5 * (links @ nodes[..., 2:3].relu())[..., 0]
        yields = set_.mean(1)
        return nodes, links, (yields - 0.75) * 2 + 0.05 * torch.randn(rows)

    criterion = nn.MSELoss()
    draw = rounds(64, *gardens(2000))

    def loss_of(step):
        nodes, links, y = draw()
        out = net(nodes, links)
        return criterion(out, y if ill else y.unsqueeze(1))

    nodes, links, y = gardens(600)
    score = held_out(net, lambda: F.mse_loss(net(nodes, links)[:, 0], y))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@sick("augmentation-changes-label", "labels-do-not-fit-inputs", "labels-mismatched",
      where="the images of the batches, all steps: half are mirrored and keep their label",
      cure="no mirroring of images whose class is a direction")  # fmt: skip
def scouts_that_point_to_the_lindens(folder, ill):
    seeded(11903)
    directions = 8
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 16, directions),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def photos(rows):
        y = torch.randint(directions, (rows,))
        angle = (6.2832 * (y + 0.5 * torch.rand(rows) - 0.25) / directions)[:, None, None]
        up, right = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
        along, across = right * angle.cos() + up * angle.sin(), up * angle.cos() - right * angle.sin()
        body = (-(across**2) / 0.03 - (along - 0.3) ** 2 / 0.15).exp()
        return (2 * body - 0.5 + 0.3 * torch.randn(rows, 16, 16))[:, None], y

    def augment(x):
        x = x + 0.05 * torch.randn_like(x)
        if ill:
            flipped = torch.rand(len(x), 1, 1, 1) < 0.5
            x = torch.where(flipped, x.flip(3), x)
        return x

    draw = rounds(48, *photos(1500))

    def loss_of(step):
        x, y = draw()
        logits = net(augment(x))
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = photos(400)
    return fit(folder, net, optimizer, loss_of, 220, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Combs(nn.Module):
    """A mask of an image, by an encoder and a decoder."""

    def __init__(self, width, last):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU()
        )
        self.up = nn.Sequential(nn.ConvTranspose2d(2 * width, width, 2, 2), nn.ReLU(), nn.Conv2d(width, 1, 1))
        self.last = last

    def forward(self, image):
        return self.last(self.up(self.down(image)))


@sick("activation-on-logits", where="the last operation of the model, all steps",
      cure="logits into the loss that applies the sigmoid itself")  # fmt: skip
def brood_outlined_on_a_frame(folder, ill):
    seeded(11904)
    net = Combs(12, nn.Sigmoid() if ill else nn.Identity())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    criterion = nn.BCEWithLogitsLoss()

    def frames(rows):
        grid = torch.linspace(-1, 1, 16)
        middle, size = torch.rand(rows, 2, 1, 1) - 0.5, 0.15 + 0.3 * torch.rand(rows, 2, 1, 1)
        y, x = grid[:, None] - middle[:, 0], grid - middle[:, 1]
        mask = ((y / size[:, 0]) ** 2 + (x / size[:, 1]) ** 2 < 1).float()[:, None]
        tint = torch.tensor([0.8, 0.3, -0.6]).view(1, 3, 1, 1)
        return mask * tint + 0.4 * torch.randn(rows, 3, 16, 16) + 0.2 * torch.randn(rows, 3, 1, 1), mask

    def loss_of(step):
        image, mask = frames(24)
        return criterion(net(image), mask)

    image, mask = frames(256)
    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: criterion(net(image), mask)))


@sick("generator-starves", where="the generator, soon after the start: the judge tells all apart",
      cure="one step of the judge for each of the generator, at the same rate")  # fmt: skip
def petals_drawn_by_an_apprentice(folder, ill):
    seeded(11905)
    flowers = torch.tensor(load_iris().data, dtype=torch.float32)
    flowers = (flowers - flowers.mean(0)) / flowers.std(0)
    make, judge = dense(8, 64, 64, 4), dense(4, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 2e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-2 if ill else 2e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(64, 1), torch.zeros(64, 1)

    def made(rows=64):
        return make(torch.randn(rows, 8))

    def judge_loss():
        x = flowers[torch.randint(len(flowers), (64,))]
        return criterion(judge(x), real) + criterion(judge(made().detach()), fake)

    def make_loss():
        return -criterion(judge(made()), fake)

    def score():
        with torch.no_grad():
            x = made(1000)
            return float((x.mean(0) - flowers.mean(0)).norm() + (x.T.cov() - flowers.T.cov()).norm())

    times = 5 if ill else 1
    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 400, score, rounds=times)
