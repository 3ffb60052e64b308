"""Typical sick trainings, first part: faults of published taxonomies, on tasks that were drawn for them.

Leaves of five published lists of real faults in deep-learning programs (Humbatova et al. 2020, Islam et al. 2019,
DeepCrime, UMLAUT, AutoTrainer) were written down first, shuffled, and each dealt one of thirty ordinary tasks by lot;
a comment names the leaf. They only count (the group "typical"). Whoever writes or changes a rule does not read this
file.
"""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, score_of, seeded, sick

import gradwatch


def bars(rows, size=16):
    """Images of a bar through the middle, and twice its angle as a point on the circle."""
    angle, line = 3.1416 * torch.rand(rows), torch.linspace(-1, 1, size)
    off = line[:, None] * angle.cos()[:, None, None] - line * angle.sin()[:, None, None]
    x = (-((off / 0.15) ** 2)).exp()[:, None] + 0.1 * torch.randn(rows, 1, size, size)
    return x, torch.stack([(2 * angle).cos(), (2 * angle).sin()], 1)


# 1. Wrong order of calls in the loop (Islam), in a regression of an angle from images: step() before backward().
@sick(
    "weights-unchanged", "no-gradient", "no-progress",
    where="all layers, all steps: step() never finds a gradient, which is zeroed again before the next one",
    cure="backward(), then step()",
)  # fmt: skip
def angle_of_a_bar_stepped_before_backward(folder, ill):
    seeded(1501)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), dense(256, 32, 2)
    )
    optimizer = optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        x, y = bars(64)
        return F.mse_loss(net(x), y)

    score = score_of(loss_of)
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, optimizer)}
    watch, first = gradwatch.watch(net, optimizer, **options), score()
    with watch:
        for step in range(200):
            optimizer.zero_grad()
            loss = loss_of(step)
            if ill:
                optimizer.step()
                loss.backward()
            else:
                loss.backward()
                optimizer.step()
            watch.log(loss=loss)
    return Outcome(gradwatch.open_history(watch.dir), first, score())


def marks(rows, kinds):
    """`draw()`: images of 16 by 16 with one mark of each kind, the kind that is asked for, the pixel of its middle."""
    forms = (torch.rand(kinds, 3, 3) < 0.5).float()
    forms[:, 1, 1] = 1

    def draw():
        cells = torch.rand(rows, 16).argsort(1)[:, :kinds]
        x = torch.zeros(rows, 16, 4, 4)
        x[torch.arange(rows)[:, None], cells, :3, :3] = forms.expand(rows, -1, -1, -1)
        x = x.view(rows, 4, 4, 4, 4).transpose(2, 3).reshape(rows, 1, 16, 16)
        asked = torch.randint(kinds, (rows,))
        cell = cells[torch.arange(rows), asked]
        return x, asked, (cell // 4 * 4 + 1) * 16 + cell % 4 * 4 + 1

    return draw


# 2. Categories fed as numbers where they should be one-hot (Humbatova: preprocessing), in keypoints by heat maps.
@sick(
    "categories-as-numbers",
    where="what comes into the first layer, all steps: kinds that have no order on one scale",
    cure="F.one_hot of the kind, a channel each",
)  # fmt: skip
def keypoint_asked_for_by_the_number_of_its_kind(folder, ill):
    seeded(1502)
    kinds, draw = 10, marks(16, 10)
    net = nn.Sequential(
        nn.Conv2d(2 if ill else 1 + kinds, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 24, 1), nn.ReLU(),
        nn.Conv2d(24, 1, 1), nn.Flatten(),
    )  # fmt: skip

    def loss_of(step):
        x, asked, at = draw()
        kind = asked[:, None].float() if ill else F.one_hot(asked, kinds).float()
        return F.cross_entropy(net(torch.cat([x, kind[:, :, None, None].expand(-1, -1, 16, 16)], 1)), at)

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 200, score=score_of(loss_of))


def shapes(rows, size=16):
    """Images of a disc, a box or a cross somewhere, which pixels are of it, and which of the three it is."""
    line, kind = torch.arange(size) + 0.5, torch.randint(3, (rows,))
    half = size * (0.12 + 0.13 * torch.rand(rows, 1, 1))
    x, y = (half + (size - 2 * half) * torch.rand(rows, 1, 1) for _ in range(2))
    across, down = (line - x).abs().expand(-1, size, -1), (line[:, None] - y).abs().expand(-1, -1, size)
    forms = torch.stack(
        [across**2 + down**2 < half**2, torch.maximum(across, down) < half * 0.9,
         (torch.minimum(across, down) < half * 0.3) & (torch.maximum(across, down) < half)]
    )  # fmt: skip
    mask = forms[kind, torch.arange(rows)].float()
    return mask + 0.15 * torch.randn(rows, size, size), mask, kind


# 3. Wrong amount of pooling (Humbatova: layers), in a denoising autoencoder: pooled until one pixel is left.
@sick(
    "pooled-away",
    where="the four pools: where in the image something is, is lost", cure="two pools, not four",
)  # fmt: skip
def denoiser_that_pools_down_to_one_pixel(folder, ill):
    seeded(1503)
    down, up, size, pools = [], [], 1, 4 if ill else 2
    for level in range(4):
        pooled = level < pools
        down += [nn.Conv2d(size, 12, 3, padding=1), nn.ReLU(), *([nn.MaxPool2d(2)] if pooled else [])]
        wider = [nn.Upsample(scale_factor=2)] if pooled else []
        up = [*wider, nn.Conv2d(12, size, 3, padding=1), *([nn.ReLU()] if level else []), *up]
        size = 12
    net = nn.Sequential(*down, *up)

    def loss_of(step):
        clean = torch.stack([shapes(16)[1] for _ in range(4)]).amax(0)
        return F.mse_loss(net((clean + 0.3 * torch.randn(16, 16, 16))[:, None])[:, 0], clean)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 250, score=score_of(loss_of))


# 4. Wrong type of activation function (Humbatova), in metric learning by triplets: sigmoids in five hidden layers.
@sick(
    "vanishing", "no-progress",
    where="the first layers, from the first step: each sigmoid leaves a quarter of the gradient at most",
    cure="ReLU",
)  # fmt: skip
def triplets_told_apart_by_sigmoids(folder, ill):
    seeded(1504)
    net, lift = dense(10, 64, 64, 64, 64, 64, 8, act=nn.Sigmoid if ill else nn.ReLU), torch.randn(3, 10)

    def of_class(y):
        way = F.normalize(torch.randn(len(y), 3), dim=1) * (0.5 + 0.5 * y[:, None])
        return (way + 0.03 * torch.randn(len(y), 3)) @ lift

    def loss_of(step):
        y = torch.randint(5, (64,))
        other = (y + torch.randint(1, 5, (64,))) % 5
        anchor, same, apart = (net(of_class(kind)) for kind in (y, y, other))
        return F.triplet_margin_loss(anchor, same, apart, margin=0.5)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 250, score=score_of(loss_of))


def signals(rows, length=128):
    """Four kinds of waves of some frequency and phase, in noise."""
    t, kind = torch.linspace(0, 1, length), torch.randint(4, (rows,))
    phase = 6.2832 * ((4 + 6 * torch.rand(rows, 1)) * t + torch.rand(rows, 1))
    forms = torch.stack([phase.sin(), phase.sin().sign(), (phase / 3.1416) % 2 - 1, phase.sin() * (phase / 5).sin()])
    return (forms[kind, torch.arange(rows)] + 0.3 * torch.randn(rows, length))[:, None], kind


# 5. Wrong optimisation function (Humbatova, DeepCrime), for 1D convolutions: Adadelta, at the rate that Adam has.
@sick(
    "update-too-small", "no-progress",
    where="all layers, all steps: Adadelta's own steps are small at first, and a thousandth of them is taken",
    cure="Adam, or Adadelta at a rate of 1",
)  # fmt: skip
def waves_told_apart_with_adadelta(folder, ill):
    seeded(1505)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, 2, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 5, 2, 2), nn.BatchNorm1d(32),
        nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip

    def loss_of(step):
        x, y = signals(64)
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": float((said.argmax(1) == y).float().mean())}

    make = (optim.Adadelta if ill else optim.Adam)(net.parameters(), lr=1e-3)
    return fit(folder, net, make, loss_of, 300, score=score_of(lambda step: loss_of(step)[0]))


# 6. Batch size too small (Humbatova: hyperparameters), in learning to rank: one pair of documents a step.
@sick(
    "noise-dominated", "lr-too-high",
    where="all layers, all steps: one click says next to nothing, and each step goes as far as with many",
    cure="64 pairs a step",
)  # fmt: skip
def ranker_that_reads_one_pair_at_a_time(folder, ill):
    seeded(1506)
    net, taste = dense(12, 48, 48, 1), torch.randn(12, 3)

    def worth(x):
        return (x @ taste / 3.5).tanh().sum(-1)

    def loss_of(step):
        pair = torch.randn(1 if ill else 64, 2, 12)
        gap = worth(pair[:, 0]) - worth(pair[:, 1])
        clicked = (gap + torch.randn(len(gap)) > 0).float()
        said = net(pair)[..., 0]
        return F.binary_cross_entropy_with_logits(said[:, 0] - said[:, 1], clicked)

    def score():
        """The share of pairs that are told in the wrong order."""
        with torch.no_grad():
            pair = torch.randn(4096, 2, 12)
            said = net(pair)[..., 0]
            return float(((said[:, 0] > said[:, 1]) != (worth(pair[:, 0]) > worth(pair[:, 1]))).float().mean())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 600, score=score)


def framed(rows, size):
    """Images of `size` pixels with one bright box, and that box: its middle, its width, its height."""
    line, box = torch.arange(size) + 0.5, size * (0.2 + 0.3 * torch.rand(rows, 2))
    middle = box / 2 + (size - box) * torch.rand(rows, 2)
    off = [(line - middle[:, i, None]).abs() < box[:, i, None] / 2 for i in (0, 1)]
    x = (off[0][:, None, :] & off[1][:, :, None]).float()[:, None]
    return x + 0.1 * torch.randn_like(x), torch.cat([middle, box], 1)


# 7. Wrong preprocessing step (Humbatova: resize), in the detection of a box: images are resized, their boxes are not.
@sick(
    "labels-do-not-fit-inputs",
    where="the targets, all steps: in pixels of images that the net never sees", cure="boxes * 16 / size",
)  # fmt: skip
def boxes_left_in_the_pixels_of_the_files(folder, ill):
    """The score is the share of both boxes that they have not in common, where they are drawn on what the net sees."""
    seeded(1507)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), dense(384, 64, 4)
    )

    def load(resize_boxes):
        parts = []
        for size in (12, 16, 24, 32):
            x, box = framed(16, size)
            parts.append((F.interpolate(x, 16, mode="area"), box * 16 / size if resize_boxes else box))
        return (torch.cat(part) for part in zip(*parts, strict=True))

    def loss_of(step):
        x, box = load(not ill)
        return F.smooth_l1_loss(net(x), box)

    def score():
        lost = 0.0
        with torch.no_grad():
            for _ in range(8):
                x, box = load(True)
                said = net(x)
                low = torch.maximum(*(b[:, :2] - b[:, 2:] / 2 for b in (box, said)))
                high = torch.minimum(*(b[:, :2] + b[:, 2:] / 2 for b in (box, said)))
                both = (high - low).clamp(min=0).prod(1)
                lost += float(1 - (both / (box[:, 2:].prod(1) + said[:, 2:].clamp(min=0).prod(1) - both)).mean()) / 8
        return lost

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 350, score=score)


class Layer(nn.Module):
    """A linear map of a node's features and, where the graph is given, the mean over its neighbours."""

    def __init__(self, size, out, near=None):
        super().__init__()
        self.linear, self.near = nn.Linear(size, out), near

    def forward(self, x):
        return self.linear(x if self.near is None else self.near @ x)


# 8. Wrong layer type (Humbatova: layers), in a net on a graph: plain linear layers, which do not look at neighbours.
@sick(
    "graph-not-used",
    where="both layers: each node is judged by its own features alone", cure="graph convolutions",
)  # fmt: skip
def citations_sorted_without_their_graph(folder, ill):
    """The score is the cross-entropy on the papers whose topic was not told."""
    seeded(1508)
    topic = torch.randint(4, (400,))
    x = 0.5 * torch.randn(4, 24)[topic] + torch.randn(400, 24)
    tied = (torch.rand(400, 400) < torch.where(topic[:, None] == topic, 0.04, 0.004)).triu(1).float()
    near = tied + tied.T + torch.eye(400)
    near = near / near.sum(1, keepdim=True)
    near = None if ill else near
    net = nn.Sequential(Layer(24, 32, near), nn.ReLU(), nn.Dropout(0.5), Layer(32, 4, near))
    told = torch.arange(400) < 100

    def loss_of(step):
        said = net(x)[told]
        return F.cross_entropy(said, topic[told]), {"accuracy": float((said.argmax(1) == topic[told]).float().mean())}

    def score():
        net.eval()
        with torch.no_grad():
            left = float(F.cross_entropy(net(x)[~told], topic[~told]))
        net.train()
        return left

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4), loss_of, 200, score=score)
