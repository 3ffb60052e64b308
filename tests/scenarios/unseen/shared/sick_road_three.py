"""Sick trainings after public threads: a machine taken away, small parts of a batch, boxes, halves, adapters."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, seeded, sick
from unseen.tasks import tend


# https://github.com/EvolvingLMMs-Lab/OneVision-Encoder/pull/65
@sick(
    "optimizer-state-lost",
    where="every 20th step, where the run goes on from its checkpoint: AdamW begins without its moments",
    cure="save the optimizer's state_dict in the checkpoint, and load it again",
)
def herring_sorted_by_length_and_weight(folder, ill):
    seeded(3597)
    ways = torch.randn(5, 4) / 2

    def draw(rows=16):
        x = torch.randn(rows, 5)
        return x, 0.3 * (x @ ways).sin().sum(1, keepdim=True)

    net = dense(5, 48, 48, 48, 48, 1, act=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-2, betas=(0.9, 0.999))
    disk = {}

    def save():
        disk["backbone"] = copy.deepcopy(net.state_dict())
        if not ill:
            disk["optimizer"] = copy.deepcopy(optimizer.state_dict())

    def on_another_machine():
        net.load_state_dict(disk["backbone"])
        optimizer.state.clear()
        if "optimizer" in disk:
            optimizer.load_state_dict(copy.deepcopy(disk["optimizer"]))

    def one(step):
        if step and step % 20 == 0:
            save()
            on_another_machine()
        x, y = draw()
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def score():
        with torch.no_grad():
            x, y = draw(2048)
            return float(F.mse_loss(net(x), y))

    return tend(folder, net, optimizer, one, 403, score)


# https://github.com/tientrandinh/Revisiting-Reverse-Distillation/issues/12
@sick(
    "accumulation-wiped",
    where="each step: the gradients of all but the last of sixteen passes are zeroed before they are used",
    cure="zero the gradients once per step, after it, and not before each backward pass",
)
def glazes_told_by_their_cracks(folder, ill):
    seeded(3598)
    lift = torch.randn(3, 16)
    accumulation_steps = 16

    def draw(rows):
        y = torch.randint(4, (rows,))
        crack = F.normalize(torch.randn(rows, 3), dim=1) * (0.4 + 0.6 * y[:, None])
        return (crack + 0.05 * torch.randn(rows, 3)) @ lift, y

    net = dense(16, 64, 64, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=2e-3, momentum=0.9)

    def one(step):
        total = 0.0
        for _ in range(accumulation_steps):
            x, y = draw(4)
            loss = F.cross_entropy(net(x), y)
            if ill:
                optimizer.zero_grad()
            loss.backward()
            total += float(loss.detach()) / accumulation_steps
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total}

    def score():
        with torch.no_grad():
            x, y = draw(2048)
            return float(F.cross_entropy(net(x), y))

    return tend(folder, net, optimizer, one, 160, score)


# https://github.com/open-mmlab/mmrotate/issues/205
@sick(
    "nonfinite",
    where="the square roots of the distance between two ellipses, in the first step where a predicted side is 0",
    cure="clamp what goes into the square roots to 1e-7 and not to 0",
)
def tiles_outlined_on_a_floor(folder, ill):
    seeded(3599)
    lift = torch.randn(4, 20)
    least = 0.0 if ill else 1e-7

    def draw(rows):
        middle = torch.randn(rows, 2)
        sides = torch.rand(rows, 2).square() * 1.5
        return (torch.cat([middle, 2 * sides - 1], 1) @ lift).tanh(), middle, sides

    net = nn.ModuleDict({"body": dense(20, 64, 64), "middle": nn.Linear(64, 2), "sides": nn.Linear(64, 2)})
    nn.init.constant_(net["sides"].bias, 1.0)

    def distance(x, middle, sides):
        h = net["body"](x).relu()
        near = (net["middle"](h) - middle).square().sum(1)
        ours, theirs = net["sides"](h).relu().square() / 4, sides.square() / 4
        trace = (ours * theirs).sum(1)
        root = (ours.prod(1) * theirs.prod(1)).clamp(least).sqrt()
        shape = ours.sum(1) + theirs.sum(1) - 2 * (trace + 2 * root).clamp(least).sqrt()
        return near + shape

    def loss_of(step):
        return distance(*draw(64)).mean()

    def score():
        with torch.no_grad():
            return float(distance(*draw(1024)).clamp(min=0).mean())

    return fit(folder, net, torch.optim.Adam(net.parameters(), lr=3e-3), loss_of, 400, score=score)


# https://github.com/openai/CLIP/issues/57
@sick(
    "nonfinite",
    where="all weights, after the first steps: Adam's eps of 1e-8 is 0 in half precision, and it divides by zero",
    cure="an eps of 1e-4, or weights in full precision",
)
def moods_of_woodcut_faces(folder, ill):
    seeded(3600)
    faces = torch.randn(5, 48)

    def draw(rows):
        y = torch.randint(5, (rows,))
        mirrored = torch.randint(2, (rows, 1)) * 2 - 1
        return (faces[y] * mirrored + 0.9 * torch.randn(rows, 48)).half(), y

    net = dense(48, 64, 48, 5).half()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, **({} if ill else {"eps": 1e-4}))

    def loss_of(step):
        x, y = draw(64)
        return F.cross_entropy(net(x).float(), y)

    def score():
        with torch.no_grad():
            x, y = draw(1024)
            return float(F.cross_entropy(net(x).float(), y))

    return fit(folder, net, optimizer, loss_of, 300, score=score)


class LowRank(nn.Module):
    """A frozen linear layer and what is learned beside it."""

    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        self.a, self.b = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.scale * self.b(self.a(x))


# https://github.com/haotian-liu/LLaVA/issues/1375
@sick(
    "lr-too-high",
    "update-too-large",
    where="the adapters, from early on: the loss falls, climbs again and swings",
    cure="a tenth of the learning rate, or less",
)
def the_same_melodies_on_another_fiddle(folder, ill):
    seeded(3601)
    ways, tilt = torch.randn(10, 12) / 3, torch.randn(10, 12) / 5

    def draw(rows, ways):
        x = torch.randn(rows, 10)
        return x, torch.stack([(x @ w).sin().sum(1) for w in ways.split(4, 1)], 1).argmax(1)

    net = dense(10, 96, 96, 96, 3, act=nn.GELU)
    before = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(500):
        x, y = draw(128, ways)
        before.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before.step()
    for at in (0, 2, 4, 6):
        net[at] = LowRank(net[at])

    def loss_of(step):
        x, y = draw(64, ways + tilt)
        return F.cross_entropy(net(x), y)

    def score():
        with torch.no_grad():
            x, y = draw(2048, ways + tilt)
            return float(F.cross_entropy(net(x), y))

    wanted = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=0.1 if ill else 5e-3, weight_decay=0.0)
    return fit(folder, net, optimizer, loss_of, 400, score=score)


# https://github.com/epfml/disco/issues/288
@sick(
    "data-not-shuffled",
    where="all steps: the rows come sorted by their class, a class at a time",
    cure="shuffle the rows before they are cut into batches",
)
def who_left_the_boot_print(folder, ill):
    seeded(3602)
    boots, turn = torch.randn(6, 30), torch.randn(6, 30)
    y = torch.arange(6).repeat_interleave(240)
    angle = torch.rand(len(y), 1) * 6.2832
    x = boots[y] * angle.cos() + turn[y] * angle.sin() + 0.5 * torch.randn(len(y), 30)
    test = torch.rand(len(y)) < 0.2
    loader = DataLoader(TensorDataset(x[~test], y[~test]), batch_size=32, shuffle=not ill)

    def endless():
        while True:
            yield from loader

    rows = endless()
    net = dense(30, 64, 6)

    def loss_of(step):
        prints, who = next(rows)
        return F.cross_entropy(net(prints), who)

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(x[test]), y[test]))

    return fit(folder, net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), loss_of, 380, score=score)
