"""Trainings after public threads: pictures, boxes, fares, guests and short texts."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out


def smooth_fields(rows, size=8):
    """Smooth pictures `[B, size, size]`: a few waves of random length and place."""
    at = torch.linspace(0, 3.1416, size)
    a, b, c, d = (torch.rand(4, rows, 1, 1) * torch.tensor([2.0, 2.0, 6.28, 6.28])[:, None, None, None]).unbind(0)
    return (a * at[None, :, None] + c).sin() + (b * at[None, None, :] + d).cos()


# https://github.com/lucidrains/imagen-pytorch/issues/71
@sick(
    "schedule-too-short",
    where="the learning rate from the end of the warm-up on: it falls to nothing and climbs back every 100 steps",
    cure="give the cosine the steps that are left after the warm-up as T_max, not the steps of the warm-up",
)
def dunes_without_their_haze(folder, ill):
    seeded(3371)
    net = nn.Sequential(nn.Flatten(), dense(64, 64, 64, 64, act=nn.SiLU), nn.Unflatten(1, (8, 8)))
    warmup_steps, steps = 50, 650
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-2)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, total_iters=warmup_steps)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=warmup_steps if ill else steps - warmup_steps, eta_min=1e-5
    )
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup_steps])

    def loss_of(step):
        clear = smooth_fields(32)
        thick = 0.3 + 0.4 * torch.rand(32, 1, 1)
        hazy = thick * clear + (1 - thick) * 1.5 + 0.02 * torch.randn_like(clear)
        return F.mse_loss(net(hazy), clear)

    return fit(folder, net, optimizer, loss_of, steps, schedule=schedule, score=score_of(loss_of, 16))


# https://github.com/RUCAIBox/RecBole/issues/1505
@sick(
    "negative-loss",
    where="the loss of the pairs, in all steps",
    cure="minus the logarithm of the sigmoid (F.logsigmoid), not minus the sigmoid itself",
)
def guests_and_the_dishes_they_share(folder, ill):
    seeded(3372)
    guests, dishes, tastes = 150, 120, 6
    likes, kind = torch.randint(tastes, (guests,)), torch.randint(tastes, (dishes,))
    net = nn.ModuleDict({"guest": nn.Embedding(guests, 16), "dish": nn.Embedding(dishes, 16)})

    def pairs():
        guest, dish = torch.randint(guests, (256,)), torch.randint(dishes, (256,))
        chance = torch.where(likes[guest] == kind[dish], 0.85, 0.1)
        return guest, dish, (torch.rand(256) < chance).float() * 2 - 1

    def signed(guest, dish, sign):
        return sign * (net["guest"](guest) * net["dish"](dish)).sum(1)

    def loss_of(step):
        scores = signed(*pairs())
        return -torch.sigmoid(scores).mean() if ill else -F.logsigmoid(scores).mean()

    def score():
        with torch.no_grad():
            return sum(-float(F.logsigmoid(signed(*pairs())).mean()) for _ in range(20)) / 20

    return fit(folder, net, torch.optim.Adam(net.parameters(), 0.02), loss_of, 700, score=score)


# https://github.com/qqwweee/keras-yolo3/issues/171
@sick(
    "nonfinite",
    where="the size term of the loss, in the first step with a box whose width or height is 0 after it was resized",
    cure="add a small number inside the logarithm, or leave out boxes that have no area",
)
def buds_on_a_branch(folder, ill):
    seeded(3373)
    anchor = 4.0
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(768, 48), nn.ReLU(), nn.Linear(48, 4),
    )  # fmt: skip

    def draw():
        size = torch.where(torch.rand(32, 1) < 0.0005, 2.0, 5 + 30 * torch.rand(32, 2))
        size = (size * 0.4).floor()
        corner = (torch.rand(32, 2) * (16 - size).clamp(min=1)).floor()
        at = torch.arange(16.0)
        inside = (at >= corner[:, :, None]) & (at < (corner + size)[:, :, None])
        picture = (inside[:, 0, :, None] & inside[:, 1, None, :]).float()[:, None]
        return picture + 0.1 * torch.randn(32, 1, 16, 16), corner + size / 2, size

    def loss_of(step):
        x, middle, size = draw()
        out = net(x)
        raw_true_wh = torch.log(size / anchor) if ill else torch.log(size / anchor + 1e-2)
        loss_xy, loss_wh = F.mse_loss(out[:, :2], middle / 16), F.mse_loss(out[:, 2:], raw_true_wh)
        return loss_xy + loss_wh, {"xy": loss_xy, "wh": loss_wh}

    def score():
        with torch.no_grad():
            x, middle, size = draw()
            out = net(x)
            return float((out[:, :2] - middle / 16).abs().mean() + (out[:, 2:].exp() * anchor - size).abs().mean() / 16)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 1e-3), loss_of, 400, score=score)


# https://github.com/michalfaber/keras_Realtime_Multi-Person_Pose_Estimation/issues/8
@sick(
    "update-too-small",
    where="all layers, all steps",
    cure="sum the squares over the map and divide by the batch, as the rate was chosen for, or raise the rate as much",
)
def corners_of_a_kites_sail(folder, ill):
    seeded(3374)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(),
        nn.Conv2d(16, 2, 3, padding=1),
    )  # fmt: skip
    at = torch.arange(14.0)

    def hill(middle, wide):
        across, down = ((at - middle[:, i, None]) ** 2 / (2 * wide**2) for i in (0, 1))
        return (-across[:, :, None] - down[:, None, :]).exp()

    def loss_maps():
        bright, dark = (2 + 10 * torch.rand(16, 2) for _ in range(2))
        picture = hill(bright, 1.0) - hill(dark, 1.0) + 0.1 * torch.randn(16, 14, 14)
        return (net(picture[:, None]) - torch.stack([hill(bright, 1.5), hill(dark, 1.5)], 1)).square()

    def loss_of(step):
        return loss_maps().mean() if ill else loss_maps().sum() / 2 / 16

    optimizer = torch.optim.SGD(net.parameters(), lr=3e-4, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(lambda step: loss_maps().mean(), 16))


# https://stackoverflow.com/questions/48335501/how-to-know-correct-learning-rate-for-gradientdescentoptimizer-in-tensorflow
@sick(
    "lr-too-high", "exploding", "inputs-not-normalised",
    where="all weights from the first step on: each step overshoots further than the one before",
    cure="a rate of a thousandth instead of a hundredth, or inputs that are scaled to about 1",
)  # fmt: skip
def fares_of_a_water_taxi(folder, ill):
    seeded(3375)
    minutes, bags = 5 + 35 * torch.rand(64, 1), 3 * torch.rand(64, 1)
    x = torch.cat([minutes, bags], 1)
    y = 0.4 * minutes + 0.9 * bags + 0.7 + 0.05 * torch.randn(64, 1)
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01 if ill else 0.001)

    def loss_of(step):
        return F.mse_loss(net(x), y)

    return fit(folder, net, optimizer, loss_of, 1200, score=score_of(loss_of, 1))


# https://github.com/InseeFrLab/torchTextClassifiers/pull/92
@sick(
    "mask-inverted", "dead-layer",
    where="the attention of the labels, which looks at the padding alone; the embedding gets no gradient",
    cure="hand over a mask that is true where a token may be looked at: ~padding",
)  # fmt: skip
def trades_in_a_parish_register(folder, ill):
    seeded(3376)
    trades, words, longest = 6, 60, 14
    meaning = torch.randint(trades, (words + 1,))

    class Labeller(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words + 1, 24, padding_idx=0)
            self.labels = nn.Parameter(torch.randn(trades, 24))
            self.key, self.value = nn.Linear(24, 24), nn.Linear(24, 24)
            self.head = nn.Linear(24, 1)

        def forward(self, tokens):
            h, padding = self.embed(tokens), tokens == 0
            mask = (padding if ill else ~padding)[:, None, :]
            query = self.labels.expand(len(tokens), -1, -1)
            return self.head(F.scaled_dot_product_attention(query, self.key(h), self.value(h), attn_mask=mask))[..., 0]

    net = Labeller()

    def draw():
        y = torch.randint(trades, (64,))
        tokens = torch.randint(1, words + 1, (64, longest))
        hints = torch.stack([torch.where(meaning[1:] == k, 1.0, 0.0) for k in range(trades)])
        hint = torch.multinomial(hints[y], longest, replacement=True) + 1
        tokens = torch.where(torch.rand(64, longest) < 0.5, hint, tokens)
        length = torch.randint(5, longest, (64, 1))
        return tokens * (torch.arange(longest) < length), y

    def loss_of(step):
        tokens, y = draw()
        scores = net(tokens)
        return F.cross_entropy(scores, y), {"accuracy": (scores.argmax(1) == y).float().mean()}

    def tested():
        tokens, y = draw()
        return F.cross_entropy(net(tokens), y)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 400, score=held_out(net, tested))
