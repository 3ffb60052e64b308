"""After public threads: mixtures over depth, a scene from its rays, an average that is copied back."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out


class Mixer(nn.Module):
    def __init__(self, width, earlier, ill):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.weigh = nn.Linear(width, earlier, bias=False)
        if ill:
            nn.init.zeros_(self.weigh.weight)
        else:
            nn.init.normal_(self.weigh.weight, std=0.05)
        self.act = nn.ReLU()

    def forward(self, hiddens):
        shares = self.act(self.weigh(self.norm(hiddens[-1])))
        return (torch.stack(hiddens, 1) * shares[:, :, None]).sum(1)


# https://github.com/lucidrains/deep-cross-attention/issues/2
@sick("dead-layer", "bad-initialisation", "dead-units",
      where="the weights of the mixers, and all blocks before them: exactly zero from the first step",
      cure="begin the mixers' weights with small numbers, not with zeros under a ReLU")  # fmt: skip
def a_ships_draught_from_its_cargo(folder, ill):
    seeded(3574)
    width, depth = 32, 3
    stem = nn.Linear(6, width)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth))
    mixers = nn.ModuleList(Mixer(width, i + 2, ill) for i in range(depth))
    net = nn.ModuleDict({"stem": stem, "blocks": blocks, "mixers": mixers, "head": nn.Linear(width, 1)})
    way = torch.randn(6, 2)

    def draught(x):
        hiddens, h = [stem(x)], stem(x)
        for block, mixer in zip(blocks, mixers, strict=True):
            hiddens.append(block(h))
            h = hiddens[0] + mixer(hiddens)
        return net["head"](h)

    def loss_of(step):
        cargo = torch.randn(64, 6)
        deep = (cargo @ way).square().sum(1, keepdim=True).sqrt() + 0.3 * cargo[:, :1]
        return F.mse_loss(draught(cargo), deep - 2)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 300, score=score_of(loss_of))


# https://github.com/kwea123/nerf_pl/issues/75
@sick("dead-units", "dead-layer", where="the density, and with it every layer: zero everywhere after the first steps",
      cure="a softplus for the density in place of a ReLU")  # fmt: skip
def buoys_seen_through_fog(folder, ill):
    seeded(3575)
    near, far, samples = 0.5, 3.5, 16
    depths = torch.linspace(near, far, samples)
    gap = (far - near) / samples
    places = torch.tensor([[0.5, 0.2], [-0.4, -0.5], [0.1, 0.7]])
    paints = torch.tensor([[0.9, 0.2, 0.1], [0.1, 0.8, 0.3], [0.2, 0.3, 0.9]])
    waves = 2.0 ** torch.arange(4)

    net = dense(18, *[64] * 6, 4)

    def rays(rows=64):
        turn, aim = 6.2832 * torch.rand(rows), 0.5 * torch.randn(rows)
        eye = 2 * torch.stack([turn.cos(), turn.sin()], 1)
        look = turn + torch.pi + aim
        towards = torch.stack([look.cos(), look.sin()], 1)
        return eye[:, None] + depths[:, None] * towards[:, None]

    def composed(density, colour):
        alpha = 1 - (-density * gap).exp()
        seen = torch.cumprod(torch.cat([torch.ones(len(alpha), 1), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        return ((alpha * seen)[:, :, None] * colour).sum(1)

    def true(points):
        far_off = (points[:, :, None] - places).norm(dim=3)
        inside = (far_off < 0.4).float()
        return composed(25 * inside.sum(2), inside @ paints)

    def rendered(points):
        angles = (points[..., None] * waves).flatten(2)
        out = net(torch.cat([points, angles.sin(), angles.cos()], 2))
        density = F.relu(out[..., 0]) if ill else F.softplus(out[..., 0] - 1)
        return composed(density, out[..., 1:].sigmoid())

    def loss_of(step):
        points = rays()
        return F.mse_loss(rendered(points), true(points))

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 250, score=score_of(loss_of))


class Shadow:
    def __init__(self, net, decay=0.95):
        self.net, self.decay = net, decay
        self.shadow = copy.deepcopy(net.state_dict())
        self.backup = None

    def update(self):
        for name, value in self.net.state_dict().items():
            self.shadow[name].lerp_(value, 1 - self.decay)

    def apply(self):
        self.backup = copy.deepcopy(self.net.state_dict())
        self.net.load_state_dict(self.shadow)

    def restore(self):
        self.net.load_state_dict(self.backup)


# https://github.com/MultimediaTechLab/YOLO/issues/97
@sick("weights-reset", where="all layers, after every fiftieth step: they are what they were at the beginning",
      cure="update the average in every step, and put the trained weights back once it was saved")  # fmt: skip
def ripe_berries_on_a_belt(folder, ill):
    seeded(3576)
    net = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3), nn.ReLU(),
                        nn.Flatten(), nn.Linear(24 * 9, 4))  # fmt: skip
    tints = torch.rand(4, 3)
    shape = (torch.linspace(-1, 1, 10).square()[:, None] + torch.linspace(-1, 1, 10).square() < 0.6).float()

    def draw(rows=32):
        y = torch.randint(4, (rows,))
        light = 0.6 + 0.4 * torch.rand(rows, 1, 1, 1)
        return light * tints[y][:, :, None, None] * shape + 0.35 * torch.randn(rows, 3, 10, 10), y

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    average, saved = Shadow(net), []

    def checkpoint(step):
        if not ill:
            average.update()
        if step % 50 == 49:
            average.apply()
            saved[:] = [copy.deepcopy(net.state_dict())]
            if not ill:
                average.restore()

    def loss():
        x, y = draw(512)
        return F.cross_entropy(net(x), y)

    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, loss), after_step=checkpoint)
