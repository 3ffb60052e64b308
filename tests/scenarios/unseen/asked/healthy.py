"""Asked healthy trainings, first part: optimizers, schedules, precisions. An expert has nothing to say of any.

They only count (the group `asked`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import copy

import torch
from nets import Recurrent, Transformer, batches, classify, cnn, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, healthy, rings, score_of, seeded, square_of, waves
from unseen.asked.sick_losses import painted
from unseen.reported.healthy import Orthogonal, ScheduleFree, Signs
from unseen.reported.sick import pretrain


class Marker(nn.Module):
    """Down, up again, and a way past both (U-Net, Ronneberger et al. 2015)."""

    def __init__(self, seed):
        super().__init__()
        seeded(seed)
        self.first, self.down = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x):
        here = self.first(x).relu()
        return self.last(torch.cat([here, self.up(self.down(here).relu()).relu()], 1))


@healthy(0.3)
def squares_marked_by_signs(folder):
    net = Marker(601)

    def loss_of(step):
        x, mask = painted(24, 0.2)
        return F.binary_cross_entropy_with_logits(net(x), mask)

    make = Signs(net.parameters(), 1e-3, weight_decay=0.1)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 250)
    return fit(folder, net, make, loss_of, 250, schedule=plan)


@healthy(0.3)
def letters_by_orthogonal_steps(folder):
    net = Transformer(48, 2, seed=602)
    make = Orthogonal(net.parameters(), 0.02, momentum=0.95)
    plan = optim.lr_scheduler.LinearLR(make, 1.0, 0.1, 150)
    return fit(folder, net, make, predict(net, pieces(16)), 150, schedule=plan)


@healthy(0.3)
def table_without_a_schedule(folder):
    seeded(603)
    net = dense(8, 64, 64, 1, act=nn.SiLU, norm=nn.LayerNorm)
    way = torch.randn(8, 2)

    def loss_of(step):
        x = torch.randn(64, 8)
        return F.mse_loss(net(x)[:, 0], (x @ way).relu().sum(1) + 0.1 * torch.randn(64))

    return fit(folder, net, ScheduleFree(net.parameters(), 0.05), loss_of, 500)


@healthy(0.3)
def letters_by_adafactor_and_a_clip(folder):
    net = Transformer(32, 2, seed=604, tied=True)
    make = optim.Adafactor(net.parameters(), lr=0.03, weight_decay=0.01)

    def before(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, predict(net, pieces(16)), 150, before_step=before)


@healthy(0.5)
def swing_that_dies_away(folder):
    """Four numbers of a damped swing, from what was seen of it, by 25 steps of L-BFGS."""
    seeded(605)
    net, t = nn.Module(), torch.linspace(0, 6, 120)
    net.numbers = nn.Parameter(torch.tensor([0.7, 0.1, 1.6, 0.0]))
    seen = 1.3 * (-0.3 * t).exp() * (2 * t + 0.4).cos() + 0.02 * torch.randn(120)

    def loss_of(step):
        a, b, c, d = net.numbers
        return F.mse_loss(a * (-b * t).exp() * (c * t + d).cos(), seen)

    make = optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    return fit(folder, net, make, loss_of, 25, closure=True)


@healthy(0.3)
def three_thousand_steps_in_one_cycle(folder):
    seeded(606)
    net = dense(12, 24, 24, 4, act=nn.ELU)
    make = optim.SGD(net.parameters(), 0.01, momentum=0.9, nesterov=True)
    plan = optim.lr_scheduler.OneCycleLR(make, 0.1, total_steps=3001)
    return fit(folder, net, make, entropy_of(net, rings(16)), 3000, schedule=plan)


@healthy(0.3)
def flat_places_looked_for(folder):
    """Each step is that of the gradient a little uphill (SAM, Foret et al. 2021)."""
    net = Recurrent(nn.GRU, 40, seed=607)
    make, loss = optim.AdamW(net.parameters(), 5e-3), predict(net, pieces(16))

    def before(step):
        with torch.no_grad():
            whole = torch.stack([p.grad.norm() for p in net.parameters()]).norm() + 1e-12
            moves = [0.05 * p.grad / whole for p in net.parameters()]
            for p, move in zip(net.parameters(), moves, strict=True):
                p.add_(move)
        make.zero_grad()
        loss(step).backward()
        with torch.no_grad():
            for p, move in zip(net.parameters(), moves, strict=True):
                p.sub_(move)

    return fit(folder, net, make, loss, 150, before_step=before)


@healthy(0.3)
def reader_under_a_scaler_and_a_clip(folder):
    """The clip behind unscale_, as it ought to be."""
    net = Recurrent(nn.LSTM, 48, seed=608)
    make, scaler = optim.Adam(net.parameters(), 5e-3), torch.amp.GradScaler("cpu", init_scale=4096.0)

    def before(step):
        scaler.unscale_(make)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, predict(net, pieces(16)), 150, before_step=before, scaler=scaler)


class Patches(nn.Module):
    """An image as 16 patches, a transformer over them."""

    def __init__(self, seed):
        super().__init__()
        seeded(seed)
        self.patch, self.place = nn.Linear(4, 32), nn.Parameter(0.02 * torch.randn(17, 32))
        self.whole = nn.Parameter(0.02 * torch.randn(1, 1, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = F.unfold(x[:, None], 2, stride=2).transpose(1, 2)
        h = torch.cat([self.whole.expand(len(x), -1, -1), self.patch(x)], 1) + self.place
        return self.head(self.body(h)[:, 0])


@healthy(0.3)
def patches_in_bfloat16(folder):
    net, draw = Patches(609), batches(48)

    def loss_of(step):
        x, y = draw(step)
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(net(x).float(), y, label_smoothing=0.05)

    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / 15, 1 - step / 200))
    return fit(folder, net, make, loss_of, 180, schedule=plan)


@healthy(0.3)
def eight_parts_and_a_clip(folder):
    net, loss = cnn(norm=True, seed=610), batches(8)
    entropy = classify(net, loss)

    def before(step):
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)

    make = optim.AdamW(net.parameters(), 2e-3)
    return fit(folder, net, make, lambda step: entropy(step) / 8, 100, accumulate=8, before_step=before)


@healthy(0.2)  # most of what is left are the tails, which nobody can foretell
def heavy_tails_under_a_z_score(folder):
    """Errors of a t distribution, Huber's loss, and gradients held near to their usual size."""
    seeded(611)
    net, draw = dense(6, 48, 48, 1, act=nn.Tanh), waves(64)
    noise = torch.distributions.StudentT(2.5)

    def loss_of(step):
        x, y = draw()
        return F.huber_loss(net(x), y + 0.2 * noise.sample(y.shape))

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400, clip="ZClip()")


@healthy(0.3)
def twenty_steps_of_tuning(folder):
    net = mlp(64, seed=612)
    draw = batches(64)
    pretrain(net, classify(net, draw), 200, 2e-3)
    net[-1] = nn.Linear(64, 2)

    def loss_of(step):
        x, y = draw(3000 + step)
        return F.cross_entropy(net(x), (y >= 5).long())

    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3), loss_of, 20)


@healthy(0.3)
def mean_of_a_noisy_path(folder):
    """A large constant rate, and the moving average of the weights is what counts."""
    seeded(613)
    net, draw = dense(6, 48, 1, act=nn.GELU), waves(16)
    mean = copy.deepcopy(net).requires_grad_(False)

    def after(step):
        with torch.no_grad():
            for p, q in zip(net.parameters(), mean.parameters(), strict=True):
                q.lerp_(p, 0.02)

    make = optim.RMSprop(net.parameters(), 3e-3)
    score = score_of(square_of(mean, draw), 16)
    return fit(folder, net, make, square_of(net, draw), 500, after_step=after, score=score)
