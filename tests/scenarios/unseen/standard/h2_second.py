"""Airports, balloons, gliders and towers: bird strikes, a vario, gates, balloons in photographs, delays, suitcases."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds, tend


# 18 of the list
@sick("class-imbalance", where="the targets and the loss, all steps: nearly all of one class",
      cure="the rare class weighed by the ratio of the two")  # fmt: skip
def bird_strikes_among_the_departures(folder, ill):
    seeded(13406)
    way, bend = F.normalize(torch.randn(2, 10), dim=1)

    def departures(rows):
        x = torch.randn(rows, 10)
        return x, x @ way + 0.5 * (x @ bend).square() + 0.5 * torch.randn(rows)

    (x, risk), (tx, other) = departures(6000), departures(6000)
    y, ty = (risk > risk.quantile(0.98)).float(), (other > risk.quantile(0.98)).float()
    draw = rounds(64, x, y)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    weight = None if ill else (1 - y.mean()) / y.mean()
    criterion = nn.BCEWithLogitsLoss(pos_weight=weight)
    optimizer = torch.optim.Adam(net.parameters(), 3e-4)

    def measure():
        said = net(tx)[:, 0]
        return {"val_loss": criterion(said, ty), "val_accuracy": ((said > 0) == (ty > 0)).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        rows, strike = draw()
        said = net(rows)[:, 0]
        right = ((said > 0) == (strike > 0)).float().mean()
        return criterion(said, strike), {"accuracy": float(right), **validate(step)}

    def missed():
        """The mean of the shares of either class that are told wrongly."""
        said = net(tx)[:, 0] > 0
        return ((~said)[ty > 0].float().mean() + said[ty == 0].float().mean()) / 2

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, missed))


class Vario(nn.Module):
    """The climb of a glider some seconds on, from what it met before."""

    def __init__(self, width):
        super().__init__()
        self.memory = nn.GRU(2, width, batch_first=True)
        self.out = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.out(self.memory(x)[1][0])


# 1 of the list
@sick("gradients-accumulate", where="all layers, every step: the gradients of all batches before are still there",
      cure="zero_grad in each step")  # fmt: skip
def vario_of_a_glider_a_few_seconds_on(folder, ill):
    seeded(13407)

    def flights(rows):
        turn, phase = 12 + 8 * torch.rand(rows, 1), 6.2832 * torch.rand(rows, 1)
        core, off = 1 + torch.rand(rows, 1), torch.rand(rows, 1)
        angle = phase + 6.2832 * torch.arange(26) / turn
        climb = core * (1 + 0.8 * off * angle.sin()) - 1.5 + 0.1 * torch.randn(rows, 26)
        bank = 0.5 * angle.cos() * off + 0.1 * torch.randn(rows, 26)
        return torch.stack([climb, bank], 2)[:, :22], climb[:, 25:]

    draw = rounds(48, *flights(3000))
    net = Vario(48)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    tx, ty = flights(500)
    validate = now_and_then(net, 62, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, zero_grad=not ill)


def digits():
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    return (x[order] - 0.3) / 0.38, y[order]


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Gates(nn.Module):
    """The number of a gate as it is painted on the apron."""

    def __init__(self, width):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(Block(width), nn.MaxPool2d(2), Block(width), Block(width))
        self.head = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.5), nn.Linear(16 * width, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 10)
        )  # fmt: skip

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)))


# 4 of the list
@sick("left-in-eval", "norm-left-in-eval", where="the batch norms and the dropout, from the first validation on",
      cure="train() after each validation")  # fmt: skip
def gates_painted_on_an_apron(folder, ill):
    seeded(13408)
    x, y = digits()
    x, y, tx, ty = x[:400], y[:400], x[400:1000], y[400:1000]
    x = x + 0.7 * torch.randn_like(x)
    tx = tx + 0.7 * torch.randn_like(tx)
    draw = rounds(40, x, y)
    net = Gates(16)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def evaluate():
        net.eval()
        with torch.no_grad():
            return {name: float(value) for name, value in judged(net, tx, ty)().items()}

    def one(step):
        image, gate = draw()
        optimizer.zero_grad()
        said = net(image)
        loss = F.cross_entropy(said, gate)
        loss.backward()
        optimizer.step()
        logged = {"loss": loss, "accuracy": float((said.argmax(1) == gate).float().mean())}
        if step % 20 == 0:
            logged |= evaluate()
            if not ill:
                net.train()
        return logged

    net.train()
    return tend(folder, net, optimizer, one, 240, held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Photograph(nn.Module):
    """How high a balloon is, by its size and place in a photograph."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(800, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        return self.head(self.body(x))


# 40 of the list
@sick("clip-before-unscale", where="all layers, every step: gradients that carry the scale are clipped",
      cure="unscale_ before the clip")  # fmt: skip
def height_of_a_balloon_in_a_photograph(folder, ill):
    seeded(13409)
    grid = torch.linspace(-1, 1, 20)

    def photographs(rows):
        size, at = 0.15 + 0.5 * torch.rand(rows, 1, 1), 0.4 * torch.randn(rows, 2, 1, 1)
        far = (grid - at[:, 0]) ** 2 + (grid[:, None] - at[:, 1]) ** 2
        image = (far < size**2).float() + 0.3 * torch.randn(rows, 20, 20)
        height = (1 / size - 2.4)[:, :, 0] / 1.2 + 0.3 * at[:, 1, :, 0]
        return image[:, None] - 0.3, height + 0.05 * torch.randn(rows, 1)

    draw = rounds(48, *photographs(3000))
    net = Photograph()
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    tx, ty = photographs(400)
    validate = now_and_then(net, 62, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        x, y = draw()
        with torch.autocast("cpu", torch.bfloat16):
            said = net(x)
        return F.mse_loss(said.float(), y), validate(step)

    def before_step(step):
        if not ill:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=before_step, scaler=scaler)


def init_weights(layer):
    if isinstance(layer, nn.Linear):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)


# 30 of the list
@sick("bad-initialisation", "symmetric-units", "units-alike-from-the-start",
      where="all layers, from before the first step", cure="the initialisation that torch gives")  # fmt: skip
def minutes_by_which_a_departure_is_late(folder, ill):
    seeded(13410)
    way = torch.randn(12, 3)

    def departures(rows):
        x = torch.randn(rows, 12)
        late = (x @ way / 2).tanh().sum(1) + 0.5 * x[:, 0] * x[:, 1] + 0.2 * torch.randn(rows)
        return x, 18 + 12 * late[:, None]

    x, y = departures(3000)
    tx, ty = departures(600)
    middle, wide = y.mean(), y.std()
    y, ty = (y - middle) / wide, (ty - middle) / wide
    draw = rounds(64, x, y)
    net = dense(12, 96, 48, 1)
    if ill:
        net.apply(init_weights)
    optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        rows, late = draw()
        return F.mse_loss(net(rows), late), validate(step)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


# 12 of the list
@sick("accumulation-not-averaged", "accumulation-not-divided",
      where="all layers, every step: the sum of eight micro-batches",
      cure="the loss divided by the number of micro-batches")  # fmt: skip
def suitcases_by_their_outline_on_the_belt(folder, ill):
    seeded(13411)
    shapes = F.interpolate(torch.randn(10, 1, 5, 5), size=(14, 14), mode="bilinear")

    def suitcases(rows):
        y = torch.randint(10, (rows,))
        return shapes[y] * (0.6 + 0.8 * torch.rand(rows, 1, 1, 1)) + 1.6 * torch.randn(rows, 1, 14, 14), y

    draw = rounds(8, *suitcases(4000))
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(1176, 48), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    tx, ty = suitcases(500)
    validate = now_and_then(net, 8 * 30, judged(net, tx, ty))
    share = 1 if ill else 8

    def loss_of(part):
        x, y = draw()
        said = net(x)
        right = (said.argmax(1) == y).float().mean()
        return F.cross_entropy(said, y) / share, {"accuracy": float(right), **validate(part)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 200, score=score, accumulate=8)
