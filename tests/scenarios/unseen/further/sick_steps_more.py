"""Sick trainings of the group `further`: the step, second part (state, accumulation, modes, checkpoints, scales)."""

from __future__ import annotations

import copy
import math

import torch
from nets import batches, digits
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, score_of, seeded, sick

import gradwatch

# ------------------------------------------------------------------------------------------------------------- tides


class Ahead(nn.Module):
    """Dilated convolutions that look back only."""

    def __init__(self, width=16):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(1 if i == 0 else width, width, 2, dilation=2**i) for i in range(4))
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        h = x[:, None]
        for conv in self.convs:
            new = conv(F.pad(h, (conv.dilation[0], 0))).relu()
            h = new + h if h.shape == new.shape else new
        return self.head(h)[:, 0]


@sick(
    "optimizer-state-lost",
    where="all layers, all steps: each is as long as a first one", cure="make the optimizer once, not in every call",
)  # fmt: skip
def tides_by_dilated_convolutions(folder, ill):
    """Every step begins with RMSprop as it was at first: without its averages."""
    seeded(2026)
    net = Ahead()
    make = optim.RMSprop(net.parameters(), 1e-3)
    fresh, times = copy.deepcopy(make.state_dict()), torch.arange(33.0)

    def loss_of(step):
        turn, start = torch.tensor([0.5059, 0.26, 0.0365]), 6.2832 * torch.rand(32, 3, 1)
        tide = ((turn[:, None] * 3 * times + start).sin() * torch.tensor([1.0, 0.4, 0.6])[:, None]).sum(1)
        seen = tide + 0.02 * torch.randn_like(tide)
        return F.mse_loss(net(seen[:, :-1])[:, 12:], tide[:, 13:])

    def begin(step):
        if ill:
            make.load_state_dict(fresh)

    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of), after_step=begin)


# ------------------------------------------------------------------------------------------------------- spiral arms


class Arms(nn.Module):
    """Where a point was, by where it is and a table of 20 degrees of noise."""

    def __init__(self, width=96):
        super().__init__()
        self.degree, self.body = nn.Embedding(20, width), nn.Linear(2, width)
        self.rest = dense(width, width, width, 2, act=nn.SiLU)

    def forward(self, x, t):
        return self.rest(F.silu(self.body(x) + self.degree(t)))


@sick(
    "accumulation-wiped",
    where="all layers, all steps: of four parts only the last, the noisiest, is left",
    cure="zero_grad() once in front of the four parts",
)  # fmt: skip
def spiral_arms_out_of_noise(folder, ill):
    """A denoiser; each step goes through four ranges of noise, zero_grad() stands in front of each."""
    seeded(2027)
    net = Arms()
    make = optim.AdamW(net.parameters(), 2e-3)

    def part_of(part, batch=64):
        turn = 3 * torch.rand(batch, 1)
        arm = 6.2832 * torch.randint(2, (batch, 1)) / 2
        x = torch.cat([(2 * turn + arm).cos(), (2 * turn + arm).sin()], 1) * turn / 2
        t = 5 * (part % 4) + torch.randint(5, (batch,))
        keep = (1.5708 * (t + 0.5) / 20).cos()[:, None]
        noise = torch.randn_like(x)
        noisy = keep * x + (1 - keep.square()).sqrt() * noise
        return F.mse_loss(net(noisy, t), x)

    def loss_of(part):
        if ill:
            make.zero_grad()
        return part_of(part) / 4

    return fit(folder, net, make, loss_of, 300, score=score_of(part_of), accumulate=4)


# ------------------------------------------------------------------------------------------------- sensors of a mill


class Mill(nn.Module):
    """Sixteen gauges of a mill through three numbers; what comes out is in units of deviations, as what goes in."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16, affine=False)
        self.encoder, self.decoder = dense(16, 48, 3, norm=nn.BatchNorm1d), dense(3, 48, 16, norm=nn.BatchNorm1d)

    def forward(self, x):
        z = self.norm(x)
        return self.decoder(self.encoder(z)), z


@sick(
    "left-in-eval",
    where="norm and the two other batch norms, all steps", cure="net.train() after the trial of the validation",
)  # fmt: skip
def mill_watched_by_sixteen_sensors(folder, ill):
    """An autoencoder whose validation is tried once before the training and calls eval()."""
    seeded(2028)
    net, lift = Mill(), torch.randn(3, 16)
    unit, zero = 10 ** torch.linspace(-1.5, 1.5, 16), 3 * torch.randn(16)

    def draw(rows=64):
        return ((torch.randn(rows, 3) @ lift).tanh() + 0.05 * torch.randn(rows, 16) + zero) * unit

    held = draw(512)

    def score():
        """The share of each gauge's variance that is not explained."""
        was = net.training
        net.eval()
        with torch.no_grad():
            out, _ = net(held)
            back = out * (net.norm.running_var + 1e-5).sqrt() + net.norm.running_mean
            share = ((back - held).square().mean(0) / held.var(0)).clamp(max=10).mean()
        net.train(was and not ill)
        return float(share)

    def loss_of(step):
        out, z = net(draw())
        return F.mse_loss(out, z)

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score)


# ---------------------------------------------------------------------------------------------------- digits in a few


class Few(nn.Module):
    """A variational autoencoder of the digits."""

    def __init__(self, size=6):
        super().__init__()
        self.encoder, self.decoder = dense(64, 96, 2 * size), dense(size, 96, 64)

    def forward(self, x):
        middle, spread = self.encoder(x).chunk(2, 1)
        code = middle + (0.5 * spread).exp() * torch.randn_like(middle)
        apart = 0.5 * (middle.square() + spread.exp() - spread - 1).sum(1).mean()
        return F.binary_cross_entropy_with_logits(self.decoder(code), x, reduction="sum") / len(x) + apart


@sick(
    "weights-reset", "checkpoint-loaded-over", "no-progress",
    where="all layers, every 50 steps: weights and loss are back where they were at first",
    cure="save where the best is kept; it is loaded once, after the training",
)  # fmt: skip
def digits_in_six_latent_numbers(folder, ill):
    """Every 50 steps the net is validated, and "no better" loads the kept weights: nothing is ever below 0."""
    seeded(2029)
    net, batch = Few(), batches(64, seed=2029)
    held, kept = digits()[0][:256].flatten(1), {"best": 0.0 if ill else math.inf}
    kept["weights"] = copy.deepcopy(net.state_dict())

    def validate(step):
        if step % 50 != 49:
            return
        with torch.no_grad():
            found = float(net(held))
        if found < kept["best"]:
            kept.update(best=found, weights=copy.deepcopy(net.state_dict()))
        else:
            net.load_state_dict(kept["weights"])

    def loss_of(step):
        return net(batch(step)[0].flatten(1))

    def score():
        with torch.no_grad():
            return float(net(held))

    return fit(folder, net, optim.Adamax(net.parameters(), 4e-3), loss_of, 400, score=score, after_step=validate)


# ---------------------------------------------------------------------------------------------------------- keypoints


@sick(
    "gradients-accumulate",
    where="all layers: gradients grow through each epoch of 20 batches", cure="zero_grad() in front of every batch",
)  # fmt: skip
def corner_of_a_paper_on_a_desk(folder, ill):
    """Where a corner is; zero_grad() stands outside of the loop over batches."""
    seeded(2030)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 36, 32), nn.ReLU(), nn.Linear(32, 2),
    )  # fmt: skip
    make, at = optim.SGD(net.parameters(), 0.02, momentum=0.9, nesterov=True), torch.arange(12.0)

    def loss_of(step):
        if ill and step % 20 == 0:
            make.zero_grad()
        corner = 3 + 6 * torch.rand(32, 2)
        right, low = (torch.sigmoid(3 * (at - corner[:, i : i + 1])) for i in (0, 1))
        image = low[:, :, None] * right[:, None] + 0.1 * torch.randn(32, 12, 12)
        return F.mse_loss(net(image[:, None]), corner / 6 - 1)

    return fit(folder, net, make, loss_of, 400, score=score_of(loss_of), zero_grad=not ill)


# ----------------------------------------------------------------------------------------------------------- half moon


@sick(
    "skips-often", "nonfinite",
    where="most steps of both nets: the scaled gradients overflow float16",
    cure="let the scaler find its scale: update() without one",
)  # fmt: skip
def half_moon_by_two_rivals(folder, ill):
    """Two nets at play in half precision, under a scale that is set anew after every step."""
    seeded(2031)
    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make, of_judge = (optim.Adam(m.parameters(), 1e-3, betas=(0.5, 0.99)) for m in (make, judge))
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**23 if ill else 2.0**16) for _ in range(2)]

    def moon(batch=64):
        angle = 3.1416 * torch.rand(batch)
        return torch.stack([2 * angle.cos(), 2 * angle.sin() - 1], 1) + 0.05 * torch.randn(batch, 2)

    def score():
        with torch.no_grad():
            far = torch.cdist(make(torch.randn(512, 4)), moon(512))
            return float(far.amin(1).mean() + far.amin(0).mean())

    def half(loss_of, optimizer, scaler):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(2.0**23 if ill else None)
        return loss

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(300):
            real, fake = moon(), make(torch.randn(64, 4)).detach()

            def told(real=real, fake=fake):
                return F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean()

            w_judge.log(loss=half(told, of_judge, scalers[0]).float())
            w_make.log(loss=half(lambda: F.softplus(-judge(make(torch.randn(64, 4)))).mean(), of_make, scalers[1]))
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())
