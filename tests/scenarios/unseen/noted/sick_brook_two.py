"""Six trainings after public threads: socks, mushrooms, coupons, leaves, a pen and a mural."""

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds


# https://xue-jishu.com/cnn-sun-shi-zhi-ka-zai-2302-ln10
@sick(
    "dead-units", "activation-on-logits",
    where="the non-linearity behind the last layer: scores of classes below zero give nothing back",
    cure="hand the scores of the last layer to the cross-entropy as they are, without an activation",
)  # fmt: skip
def socks_sorted_by_pattern(folder, ill):
    seeded(3277)
    grid = torch.stack(torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij"))
    angle, pitch = torch.arange(8) % 4 * 0.785, torch.where(torch.arange(8) < 4, 0.9, 1.8)
    parts = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Flatten()]
    parts += [nn.Linear(216, 64), nn.ReLU(), nn.Linear(64, 8)]
    if ill:
        parts.append(nn.ReLU())
    net = nn.Sequential(*parts)

    def loss_of(step):
        y = torch.randint(8, (64,))
        along = angle[y].cos()[:, None, None] * grid[0] + angle[y].sin()[:, None, None] * grid[1]
        x = (pitch[y][:, None, None] * along + 6.2832 * torch.rand(64, 1, 1)).sin() + 0.6 * torch.randn(64, 12, 12)
        said = net(x[:, None])
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(lambda step: loss_of(step)[0]))


# https://github.com/pytorch/vision/issues/997
@sick(
    "nonfinite",
    where="the first step whose batch holds a box with its corners the wrong way round: the logarithm of its width",
    cure="leave out the boxes whose right is not right of their left, or whose lower edge is not below the upper",
)
def mushrooms_boxed_on_a_meadow(folder, ill):
    seeded(3278)
    corner, size = torch.randint(0, 8, (1500, 2)), torch.randint(3, 8, (1500, 2))
    at = torch.arange(16)
    inside = (at >= corner[..., None]) & (at < (corner + size)[..., None])
    pictures = (inside[:, 0, :, None] & inside[:, 1, None, :]).float() + 0.3 * torch.randn(1500, 16, 16)
    boxes = torch.cat([corner, corner + size], 1).float()
    slips = torch.randperm(1200)[:4]
    boxes[slips] = boxes[slips][:, [2, 1, 0, 3]]
    usable = torch.ones(1200, dtype=torch.bool)
    if not ill:
        usable = (boxes[:1200, 2:] > boxes[:1200, :2]).all(1)
    draw = rounds(40, pictures[:1200][usable][:, None], boxes[:1200][usable])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4),
    )  # fmt: skip

    def error(x, box):
        middle, extent = (box[:, :2] + box[:, 2:]) / 2, box[:, 2:] - box[:, :2]
        wanted = torch.cat([(middle - 8) / 4, 2 * (extent / 5).log()], 1)
        return F.smooth_l1_loss(net(x), wanted)

    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    score = held_out(net, lambda: error(pictures[1200:, None], boxes[1200:]))
    return fit(folder, net, optimizer, lambda step: error(*draw()), 400, score=score)


class Factors(nn.Module):
    """A factorization machine: a bias, a weight per value of each field, and the products of all pairs of factors."""

    def __init__(self, fields, values, width):
        super().__init__()
        self.register_buffer("offsets", torch.arange(fields) * values)
        self.factors = nn.Embedding(fields * values, width)
        self.weights = nn.Embedding(fields * values, 1)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        of = self.factors(x + self.offsets)
        pairs = (of.sum(1).square() - of.square().sum(1)).sum(1) / 2
        return (self.bias + self.weights(x + self.offsets).sum((1, 2)) + pairs).sigmoid()


# https://github.com/d2l-ai/d2l-en/issues/1360
@sick(
    "softmax-twice", "activation-on-logits", "sigmoid-twice",
    where="the end of the model in all steps: its sigmoid goes into a loss that applies another",
    cure="use the loss for chances, or leave the sigmoid to the loss",
)  # fmt: skip
def coupons_that_shoppers_redeem(folder, ill):
    seeded(3279)
    tastes = 0.9 * torch.randn(5, 15, 3)
    net = Factors(5, 15, 6)
    nn.init.normal_(net.factors.weight, std=0.1)
    nn.init.normal_(net.weights.weight, std=0.1)

    def offers(rows=256):
        x = torch.randint(15, (rows, 5))
        of = tastes[torch.arange(5), x]
        pairs = (of.sum(1).square() - of.square().sum(1)).sum(1) / 2
        return x, torch.bernoulli((pairs - 1).sigmoid())

    def loss_of(step):
        x, y = offers()
        loss = F.binary_cross_entropy_with_logits if ill else F.binary_cross_entropy
        return loss(net(x), y)

    def surprise(step):
        x, y = offers(1024)
        return F.binary_cross_entropy(net(x), y)

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-2)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(surprise))


# https://github.com/apache/singa/pull/333
@sick(
    "lr-too-high", "update-too-large", "summed-loss",
    where="all layers from the first steps on: the loss is summed over the hundred rows of a batch",
    cure="average the loss over the batch, or divide the learning rate by the size of a batch",
)  # fmt: skip
def leaves_of_garden_herbs(folder, ill):
    seeded(3280)
    kinds = torch.randn(10, 3, 12)
    net = dense(36, 64, 64, 10)

    def leaves(rows=100):
        y = torch.randint(10, (rows,))
        x = kinds[y] * (0.5 + torch.rand(rows, 3, 1)) + 0.7 * torch.randn(rows, 3, 12)
        return x.flatten(1), y

    def loss_of(step):
        x, y = leaves()
        return F.cross_entropy(net(x), y, reduction="sum" if ill else "mean")

    def surprise(step):
        x, y = leaves(400)
        return F.cross_entropy(net(x), y)

    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(surprise))


class Gain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * self.weight


# https://github.com/workofart/ml-by-hand/pull/85
@sick(
    "weights-unchanged",
    where="all gains, the only weights that are tuned: steps of a thousandth are rounded away near one in bfloat16",
    cure="keep the weights in float32 and let autocast do the arithmetic in bfloat16",
)
def a_recogniser_handed_a_new_pen(folder, ill):
    seeded(3281)
    x, y = digits()
    x = x.flatten(1)
    pen = (0.9 * torch.randn(64)).exp()
    net = nn.Sequential(
        Gain(64), nn.Linear(64, 64), nn.ReLU(), Gain(64), nn.Linear(64, 64), nn.ReLU(), Gain(64), nn.Linear(64, 10)
    )
    early = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(300):
        at = torch.randint(1500, (64,))
        early.zero_grad()
        F.cross_entropy(net(x[at]), y[at]).backward()
        early.step()
    for part in net:
        if isinstance(part, Gain):
            nn.init.ones_(part.weight)
        else:
            part.requires_grad_(False)
    if ill:
        net.to(torch.bfloat16)
    kind = net[1].weight.dtype

    def error(rows, wanted):
        with torch.autocast("cpu", torch.bfloat16):
            said = net((rows * pen).to(kind))
        return F.cross_entropy(said.float(), wanted)

    def loss_of(step):
        at = torch.randint(1500, (64,))
        return error(x[at], y[at])

    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)
    return fit(folder, net, optimizer, loss_of, 800, score=held_out(net, lambda: error(x[1500:], y[1500:])))


# https://github.com/nerfstudio-project/nerfstudio/pull/134
@sick(
    "nonfinite",
    where="the first steps of Adam: its eps of 1e-8 is zero in float16, and so are squares of small gradients",
    cure="an eps that float16 can hold, as 1e-4, or weights in float32",
)
def a_mural_from_its_coordinates(folder, ill):
    seeded(3282)
    waves = 4 * torch.randn(2, 16)
    hues = torch.randn(3, 6)
    net = dense(32, 64, 64, 3).half()

    def points(rows=256):
        at = torch.rand(rows, 2)
        away = (at[:, None] - torch.tensor([[0.2, 0.3], [0.7, 0.6], [0.4, 0.9]])).norm(dim=2)
        colour = torch.cat([(7 * away).sin(), (-9 * away.square()).exp()], 1) @ hues.T
        return torch.cat([(at @ waves).sin(), (at @ waves).cos()], 1), colour.sigmoid()

    def loss_of(step):
        x, colour = points()
        return F.mse_loss(net(x.half()).float(), colour)

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-8 if ill else 1e-4)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))
