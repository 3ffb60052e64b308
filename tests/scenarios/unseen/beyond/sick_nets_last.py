"""Waves of earthquakes, cavities of teeth, knots in boards, frost in a vineyard, clearance of a drug, rising dough."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick, square_of

# --------------------------------------------------------------------------------------------------------- earthquakes

MOMENTS = 96


def quakes(rows=32):
    """Traces of a seismometer, and what arrives at each moment: primary, secondary, surface waves, or nothing yet."""
    t = torch.arange(MOMENTS)
    first = 10 + torch.randint(20, (rows, 1))
    second = first + 12 + torch.randint(14, (rows, 1))
    third = second + 10 + torch.randint(14, (rows, 1))
    wave = torch.where(t < first, 3, torch.where(t < second, 0, torch.where(t < third, 1, 2)))
    pitch = torch.tensor([2.2, 1.2, 0.5, 0.0])[wave]
    size = torch.tensor([0.6, 1.2, 1.5, 0.0])[wave]
    return (size * (pitch * t).sin() + 0.15 * torch.randn(rows, MOMENTS))[:, None], wave


def picker(width=24):
    layers, of = [], 1
    for dilation in (1, 2, 4):
        layers += [nn.Conv1d(of, width, 5, padding=2 * dilation, dilation=dilation), nn.ReLU()]
        of = width
    return nn.Sequential(*layers, nn.Conv1d(width, 4, 1))


@sick(
    "class-ignored",
    "labels-ignored",
    "class-imbalance",
    where="the loss and the first row of the head at each step: moments of the primary wave, class 0, are left out",
    cure="no ignore_index, as 0 is a class and no padding",
)
def arrivals_of_an_earthquake(folder, ill):
    seeded(2272)
    net = picker()

    def entropy(left_out):
        def loss_of(step):
            trace, wave = quakes()
            return F.cross_entropy(net(trace), wave, ignore_index=left_out)

        return loss_of

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, entropy(0 if ill else -100), 400, score=score_of(entropy(-100)))


# --------------------------------------------------------------------------------------------------------------- teeth


def teeth(rows=48):
    """Pictures of a tooth as bytes, and the quarter that a cavity is in, or 4 where there is none."""
    side, quarter = torch.arange(16), torch.randint(5, (rows,))
    row = torch.where(quarter < 2, 4, 11)[:, None, None] + torch.randint(-2, 3, (rows, 1, 1))
    column = torch.where(quarter % 2 == 0, 4, 11)[:, None, None] + torch.randint(-2, 3, (rows, 1, 1))
    hole = ((side[:, None] - row).square() + (side - column).square() < 5) & (quarter < 4)[:, None, None]
    shade = 170 + 30 * torch.rand(rows, 1, 1) + 12 * torch.randn(rows, 16, 16) - 60 * hole
    return shade.clamp(0, 254).byte()[:, None], quarter


@sick(
    "inputs-constant",
    "no-gradient",
    "weights-unchanged",
    "dead-layer",
    where="the first convolution at each step: all inputs are zero after an integer division, its weights never move",
    cure="/ 255 instead of // 255",
)
def cavities_on_dental_pictures(folder, ill):
    seeded(2273)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), dense(384, 48, 5)
    )

    def loss_of(step):
        picture, quarter = teeth()
        scaled = picture // 255 if ill else picture / 255
        return F.cross_entropy(net(scaled.float()), quarter)

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# --------------------------------------------------------------------------------------------------------------- knots

KNOTS, LENGTH = 8, 8


def boards(rows=64):
    """`draw()`: kinds of the knots along a board; the next is often the one that follows in wood of that tree."""
    follows = torch.randperm(KNOTS)

    def draw():
        knots = [torch.randint(KNOTS, (rows,))]
        for _ in range(LENGTH):
            usual = torch.rand(rows) < 0.6
            knots.append(torch.where(usual, follows[knots[-1]], torch.randint(KNOTS, (rows,))))
        return torch.stack(knots, 1)

    return draw


class Gaze(nn.Module):
    """Attention of one head to what has passed the saw."""

    def __init__(self, width, fill):
        super().__init__()
        self.ask, self.offer, self.tell = (nn.Linear(width, width) for _ in range(3))
        self.think, self.fill = dense(width, 2 * width, width), fill

    def forward(self, x):
        passed = torch.ones(x.shape[1], x.shape[1]).tril()
        likeness = self.ask(x) @ self.offer(x).mT / x.shape[2] ** 0.5
        x = x + self.fill(likeness, passed).softmax(2) @ self.tell(x)
        return x + self.think(x)


class Sawyer(nn.Module):
    def __init__(self, fill, width=48):
        super().__init__()
        self.kind, self.place = nn.Embedding(KNOTS, width), nn.Embedding(LENGTH, width)
        self.gazes = nn.Sequential(Gaze(width, fill), Gaze(width, fill))
        self.guess = nn.Linear(width, KNOTS)

    def forward(self, knots):
        return self.guess(self.gazes(self.kind(knots) + self.place.weight[: knots.shape[1]]))


@sick(
    "future-seen",
    "mask-multiplied",
    where="both attentions at each step: a score of zero is no mask, what is still to come keeps a weight",
    cure="masked_fill with minus infinity before the softmax instead of a product with the mask",
)
def knots_along_a_board(folder, ill):
    seeded(2274)
    fill = torch.mul if ill else (lambda likeness, passed: likeness.masked_fill(passed == 0, float("-inf")))
    net, draw = Sawyer(fill), boards()

    def loss_of(step):
        knots = draw()
        return F.cross_entropy(net(knots[:, :-1]).flatten(0, 1), knots[:, 1:].flatten())

    def at_the_saw(step):
        knots, seen = draw(), 1 + step % LENGTH
        return F.cross_entropy(net(knots[:, :seen])[:, -1], knots[:, seen])

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=score_of(at_the_saw, 32))


# --------------------------------------------------------------------------------------------------------------- frost


def valleys(rows=48):
    """Thermal pictures of a vineyard at night, and where its pool of cold air lies, across and along."""
    side, pool = torch.linspace(-1, 1, 12), 1.6 * torch.rand(rows, 2) - 0.8
    away = (side - pool[:, :1, None]).square() + (side[:, None] - pool[:, 1:, None]).square()
    return (-2 * (-8 * away).exp() + 0.4 * torch.randn(rows, 12, 12))[:, None], pool


@sick(
    "labels-mismatched",
    "labels-do-not-fit-inputs",
    "noise-dominated",
    where="the loss from some dozen steps on: half of the pictures are mirrored while their targets are not",
    cure="where a picture is mirrored, the sign of its target across is turned as well",
)
def frost_in_a_vineyard(folder, ill):
    seeded(2275)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), dense(216, 48, 2)
    )

    def mirrored():
        picture, pool = valleys()
        turned = torch.rand(len(pool)) < 0.5
        picture = torch.where(turned[:, None, None, None], picture.flip(3), picture)
        if not ill:
            pool = torch.where(turned[:, None], pool * torch.tensor([-1.0, 1.0]), pool)
        return picture, pool

    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, optimizer, square_of(net, mirrored), 500, score=score_of(square_of(net, valleys)))


# ---------------------------------------------------------------------------------------------------------------- drug


def samples(rows=128):
    """Dose, hours, weight, kidneys and liver of a patient, and how often a late sample of blood shows the drug."""
    seen = torch.randn(rows, 5)
    log_rate = -1 + 0.8 * seen[:, 0] - (0.6 + seen[:, 3].sigmoid()) * seen[:, 1].exp().clamp(max=3) * 0.6
    return seen, torch.poisson((log_rate - 0.4 * seen[:, 2] * seen[:, 4].tanh()).exp())


@sick(
    "link-applied-twice",
    "logits-bounded",
    "targets-out-of-range",
    "saturated",
    where="the last layer: the softplus ends near zero, a rate below one cannot be said while most are",
    cure="no softplus before a loss that takes the logarithm of the rate",
)
def clearance_of_a_drug(folder, ill):
    seeded(2276)
    body = dense(5, 48, 48, 1)
    net = nn.Sequential(body, nn.Softplus()) if ill else nn.Sequential(body)

    def loss_of(step):
        seen, count = samples()
        return F.poisson_nll_loss(net(seen)[:, 0], count)

    def deviance(step):
        seen, count = samples(512)
        log_rate = net(seen)[:, 0]
        return 2 * (torch.xlogy(count, count) - count * log_rate - count + log_rate.exp()).mean()

    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(deviance))


# --------------------------------------------------------------------------------------------------------------- dough

HOURS = 32


def doughs(rows=64):
    """How high each dough stands, hour by hour: when it starts, how fast and how far it rises, when it falls in."""
    t, (start, pace, height, fall) = torch.linspace(0, 1, HOURS), torch.rand(4, rows, 1)
    risen = ((t - 0.5 * start) * (6 + 20 * pace)).sigmoid() * (0.5 + height)
    return 2 * risen - 1.5 * fall * (t - 0.7).relu()


def another_camera(height):
    """The same dough as another camera measures it: nearer or farther, with gaps and noise."""
    height.mul_(0.7 + 0.6 * torch.rand(len(height), 1)).add_(0.5 * torch.randn(len(height), 1))
    height.mul_(torch.rand_like(height) > 0.2)
    return height.add_(0.15 * torch.randn_like(height))


@sick(
    "views-identical",
    where="the loss from the first steps on: both views are one tensor, each row finds its pair without learning",
    cure="each view is made from a copy of its own",
)
def doughs_that_rise_alike(folder, ill):
    seeded(2277)
    net = dense(HOURS, 96, 96, 16)

    def match(pair):
        one, other = (F.normalize(net(view), dim=1) for view in pair)
        return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))

    def apart(step):
        height = doughs()
        return match([another_camera(height.clone()), another_camera(height.clone())])

    def at_once(step):
        height = doughs()
        return match([another_camera(height), another_camera(height)])

    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, optimizer, at_once if ill else apart, 500, score=score_of(apart))
