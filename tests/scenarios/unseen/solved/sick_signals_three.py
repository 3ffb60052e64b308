"""Sick trainings from public threads: a decoder, tables, detection, residual nets, films, borrowed weights, flows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, in_turn, rounds


class Decoder(nn.Module):
    """Two blocks of attention over what was sung so far, and the next note."""

    def __init__(self, causal, notes=10, length=12, width=32):
        super().__init__()
        self.notes, self.places = nn.Embedding(notes, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.causal = nn.Linear(width, notes), causal

    def forward(self, sung):
        length = sung.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        return self.head(self.blocks(self.notes(sung) + self.places.weight[:length], mask))


def songs(rows, habit):
    """Thirteen notes, each drawn by the habit that goes with the two before it."""
    sung = [torch.randint(10, (rows,)), torch.randint(10, (rows,))]
    while len(sung) < 13:
        sung.append(torch.multinomial(habit[sung[-2], sung[-1]], 1)[:, 0])
    return torch.stack(sung, 1)


# https://github.com/alex-matton/causal-transformer-decoder/issues/1
@sick("future-seen", where="the attention of both blocks: each note sees those after it, its own label among them",
      cure="a causal mask in training")  # fmt: skip
def songs_of_a_shepherd(folder, ill):
    seeded(2649)
    net, habit = Decoder(not ill), 3 * torch.randn(2, 10, 10)
    habit = (habit[0][:, None] + habit[1][None]).softmax(2)
    optimizer, fixed = torch.optim.Adam(net.parameters(), 2e-3), songs(128, habit)

    def loss_of(step):
        sung = songs(32, habit)
        return F.cross_entropy(net(sung[:, :-1]).transpose(1, 2), sung[:, 1:])

    def sung_on(step):
        ends = range(2, 13)
        return sum(F.cross_entropy(net(fixed[:, :end])[:, -1], fixed[:, end]) for end in ends) / len(ends)

    return fit(folder, net, optimizer, loss_of, 350, score=score_of(sung_on, 1))


class Table(nn.Module):
    """Columns of kinds by embeddings, columns of numbers as they are."""

    def __init__(self):
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(8, 6) for _ in range(3))
        self.body = dense(22, 64, 32, 1)

    def forward(self, kinds, numbers):
        return self.body(torch.cat([*(kind(kinds[:, i]) for i, kind in enumerate(self.kinds)), numbers], 1))


def houses(rows, worth, way):
    kinds, numbers = torch.randint(8, (rows, 3)), torch.randn(rows, 4)
    price = worth[torch.arange(3), kinds].sum(1) + (numbers @ way).tanh() * 2
    return kinds, numbers, price[:, None]


# https://github.com/fastai/fastai/issues/3023
@sick("lr-too-high", "scaled-gradients", "update-too-large", "accumulation-not-averaged", "dead-layer", "dead-units",
      where="all layers: the gradients of sixteen batches are summed where their mean was meant, and the last hidden "
      "layer dies of it", cure="divide the loss by the number of batches that are accumulated")  # fmt: skip
def prices_of_old_houses(folder, ill):
    seeded(2650)
    net = Table()
    worth, way = torch.randn(3, 8), torch.randn(4)
    optimizer = torch.optim.SGD(net.parameters(), 0.006, momentum=0.9)
    *fixed, asked = houses(512, worth, way)
    draw = rounds(4, *houses(4096, worth, way))

    def loss_of(batch):
        kinds, numbers, price = draw()
        loss = F.mse_loss(net(kinds, numbers), price)
        return loss if ill else loss / 16, {"train_loss": loss}

    score = score_of(lambda step: F.mse_loss(net(*fixed), asked), 1)
    return fit(folder, net, optimizer, loss_of, 200, score=score, accumulate=16)


class Buoys(nn.Module):
    """Where buoys are and how large, as heat and size at each of 16 by 16 places."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.heat, self.size = nn.Conv2d(16, 1, 1), nn.Conv2d(16, 1, 1)
        nn.init.constant_(self.heat.bias, -2.19)

    def forward(self, x):
        features = self.body(x)
        return self.heat(features), self.size(features)


def seas(rows):
    """One buoy in a picture of the sea, with its heat map, its place and its size."""
    at, size, grid = torch.randint(2, 14, (rows, 2, 1, 1)), 0.8 + torch.rand(rows, 1, 1), torch.arange(16)
    far = (grid[:, None] - at[:, :1]) ** 2 + (grid - at[:, 1:]) ** 2
    picture = (-far / (2 * size[:, None] ** 2)).exp() + 0.1 * torch.randn(rows, 1, 16, 16)
    return picture, (-far / 1.5).exp(), size[:, None]


def found(net, picture, heat, size):
    """The focal loss of the heat and the error of the size where a buoy is."""
    logits, sizes = net(picture)
    there, p = heat == 1, logits.sigmoid().clamp(1e-4, 1 - 1e-4)
    focal = torch.where(there, (1 - p) ** 2 * p.log(), (1 - heat) ** 4 * p**2 * (1 - p).log())
    return -focal.sum() / len(picture), ((sizes - size).abs() * there).sum() / len(picture)


# https://github.com/xingyizhou/CenterNet/issues/928
@sick("gradients-accumulate", where="all layers, from the second step on: the gradients of all batches so far are in "
      "each update, and the loss becomes huge", cure="zero the gradients after each step of the optimizer")  # fmt: skip
def buoys_on_the_sea(folder, ill):
    seeded(2651)
    net, fixed = Buoys(), seas(128)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        heat, size = found(net, *seas(12))
        return heat + 0.1 * size, {"hm_loss": heat, "wh_loss": size}

    score = score_of(lambda step: sum(found(net, *fixed)), 1)
    return fit(folder, net, optimizer, loss_of, 400, score=score, zero_grad=not ill)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        return x + self.second(self.norms[1](self.first(self.norms[0](x).relu())).relu())


def small_resnet(classes, width=16):
    net = nn.Sequential(
        nn.Conv2d(1, width, 3, 2, 1), *(Residual(width) for _ in range(4)), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes),
    )  # fmt: skip
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    return net


def weaves(rows):
    """Cloth of 12 by 12 threads in ten weaves, each a wave of its own direction and pitch."""
    kind, grid = torch.randint(10, (rows,)), torch.arange(12.0)
    angle, pitch = (kind % 5 * 0.63)[:, None, None], (0.9 + 0.7 * (kind // 5))[:, None, None]
    along = grid[:, None] * angle.cos() + grid * angle.sin()
    return ((along * pitch + 6.28 * torch.rand(rows, 1, 1)).sin() + 1.4 * torch.randn(rows, 12, 12))[:, None], kind


# https://github.com/raghakot/keras-resnet/issues/18
@sick("lr-too-high", "update-too-large", where="all layers, from the first steps on: each update is as large as the "
      "weights, and the accuracy stays near chance", cure="a tenth of the learning rate or less")  # fmt: skip
def weaves_of_a_loom(folder, ill):
    seeded(2652)
    net = small_resnet(10)
    optimizer = torch.optim.RMSprop(net.parameters(), 0.3 if ill else 3e-3)
    fixed, kinds = weaves(256)

    def loss_of(step):
        cloth, kind = weaves(24)
        made = net(cloth)
        return F.cross_entropy(made, kind), {"acc": (made.argmax(1) == kind).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(fixed), kinds))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


class Film(nn.Module):
    """Features of each frame by convolutions, a recurrence over the frames, a layer for the kinds of a film."""

    def __init__(self, ends_in_softmax, kinds=8):
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.memory, self.head = nn.LSTM(144, 32, batch_first=True), nn.Linear(32, kinds)
        self.ends_in_softmax = ends_in_softmax

    def scores(self, film):
        seen = self.look(film.flatten(0, 1)[:, None]).flatten(1).view(*film.shape[:2], -1)
        return self.head(self.memory(seen)[0][:, -1])

    def forward(self, film):
        return self.scores(film).softmax(1) if self.ends_in_softmax else self.scores(film)


def films(rows):
    """Six frames of 10 by 10 pixels in which a bird flies in one of eight directions."""
    kind, time, grid = torch.randint(8, (rows,)), torch.arange(6.0) - 2.5, torch.arange(10.0) - 4.5
    way = torch.stack([(kind * 0.785).cos(), (kind * 0.785).sin()], 1)
    at = 2 * torch.rand(rows, 1, 2) - 1 + time[None, :, None] * way[:, None]
    far = (grid[:, None] - at[..., :1, None]) ** 2 + (grid - at[..., 1:, None]) ** 2
    return (-far / 2).exp() + 0.2 * torch.randn(rows, 6, 10, 10), kind


# https://github.com/doronharitan/human_activity_recognition_LRCN/issues/4
@sick("softmax-twice", "logits-bounded", where="the last layer, at all steps: its softmax goes into a cross-entropy "
      "that takes logits and cannot fall below 1.27", cure="no softmax at the end of the net")  # fmt: skip
def flight_of_swallows(folder, ill):
    seeded(2653)
    net, (fixed, kinds) = Film(ill), films(256)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def loss_of(step):
        film, kind = films(24)
        made = net(film)
        return F.cross_entropy(made, kind), {"train_acc": (made.argmax(1) == kind).float().mean()}

    score = score_of(lambda step: F.cross_entropy(net.scores(fixed), kinds), 1)
    return fit(folder, net, optimizer, loss_of, 250, score=score)


class Bark(nn.Module):
    """A body that was trained on bark, and heads for the kind and the place of a beetle on it."""

    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.kind, self.place = nn.Linear(9 * width, 3), nn.Linear(9 * width, 2)

    def forward(self, x):
        features = self.body(x)
        return self.kind(features), self.place(features)


def barks(rows):
    """Pictures of bytes in which a beetle of one of three sizes sits, its kind and its place."""
    kind, place, grid = torch.randint(3, (rows,)), torch.rand(rows, 2), torch.arange(12.0)
    far = (grid[:, None] - 11 * place[:, :1, None]) ** 2 + (grid - 11 * place[:, 1:, None]) ** 2
    light = 110 + 120 * (-far / (1 + 3 * kind[:, None, None])).exp() + 12 * torch.randn(rows, 12, 12)
    return light.clamp(0, 255)[:, None], kind, place


def borrowed(net, whiten, steps=150):
    """What the body was trained on elsewhere, on whitened pictures."""
    head = nn.Linear(144, 3)
    optimizer = torch.optim.Adam([*net.body.parameters(), *head.parameters()], 2e-3)
    for _ in range(steps):
        light, kind, _ = barks(32)
        optimizer.zero_grad()
        F.cross_entropy(head(net.body(whiten(light))), kind).backward()
        optimizer.step()


# https://github.com/rgeirhos/texture-vs-shape/issues/4
@sick("inputs-not-normalised", "exploding", "dead-layer", "dead-units", where="the borrowed body from its first layer "
      "on: bytes less their mean come in, fifty times what it was trained on, and kill its units", cure="bring the "
      "pictures to the range and the spread with which the body was trained")  # fmt: skip
def beetles_on_bark(folder, ill):
    seeded(2654)
    net = Bark()
    borrowed(net, lambda light: (light / 255 - 0.5) / 0.2)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    fixed = barks(256)

    def terms(light, kind, place):
        found, at = net(light - 127.5 if ill else (light / 255 - 0.5) / 0.2)
        return F.cross_entropy(found, kind), F.smooth_l1_loss(at, place)

    def loss_of(step):
        of_kind, of_place = terms(*barks(16))
        return of_kind + of_place, {"rcnn_cls": of_kind, "rcnn_box": of_place}

    return fit(folder, net, optimizer, loss_of, 300, score=score_of(lambda step: sum(terms(*fixed)), 1))


def pollen(rows):
    """The length and the width of grains of two plants."""
    plant = torch.randint(2, (rows, 1)) * 1.0
    return torch.cat([2 + plant, 1 + 2 * plant], 1) + 0.2 * torch.randn(rows, 2)


# https://github.com/YeonwooSung/GAN_Implementation/issues/5
@sick("wrong-sign", where="the critic's loss, at all steps: both of its terms push the critic's values up, those of "
      "what is made as well", cure="close the bracket after the first mean, to add the second one")  # fmt: skip
def grains_of_pollen(folder, ill):
    seeded(2655)
    make, critic, real = dense(4, 48, 2), dense(2, 48, 48, 1), pollen(512)
    of_make, of_critic = (torch.optim.RMSprop(net.parameters(), 1e-3) for net in (make, critic))

    def made(rows=64):
        return make(torch.randn(rows, 4))

    def critic_loss():
        true, false = critic(pollen(64)), critic(made().detach())
        return -torch.mean(true + torch.mean(false)) if ill else -torch.mean(true) + torch.mean(false)

    def clamp():
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.1, 0.1)

    def score():
        with torch.no_grad():
            one = made(512)
            within = torch.cdist(one, one).mean() + torch.cdist(real, real).mean()
            return float(2 * torch.cdist(one, real).mean() - within)

    losses = critic_loss, lambda: -critic(made()).mean()
    return in_turn(folder, make, critic, of_make, of_critic, *losses, 300, score, 3, clamp)
