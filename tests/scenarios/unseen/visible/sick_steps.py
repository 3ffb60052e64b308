"""Sick trainings whose step is at fault, by lot: its rate, its schedule, its clip, what it adds up, what it decays."""

from __future__ import annotations

import math

import torch
from nets import Transformer, batches, classify, digits, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from trainings import TREATMENT
from unseen import Outcome, dense, fit, mean, score_of, seeded, sick
from unseen.tasks import circle

import gradwatch


@sick(
    "lr-too-high", "update-too-large", "exploding", "loss-not-averaged", "generator-starves",
    where="D, all steps: the gradient of eight parts is added up", cure="loss / parts in each micro-batch",
)  # fmt: skip
def judge_that_hears_eight_parts_at_once(folder, ill):
    seeded(701)
    parts, steps = 8, 250
    make, judge = dense(4, 48, 48, 2), dense(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make, of_judge = optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999)), optim.SGD(judge.parameters(), 0.1, 0.5)
    say = nn.BCEWithLogitsLoss()

    def score():
        with torch.no_grad():
            return float((make(torch.randn(512, 4)).norm(dim=1) - 2).abs().mean())

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(steps):
            of_judge.zero_grad()
            for _ in range(parts):
                real, false = judge(circle(32)), judge(make(torch.randn(32, 4)).detach())
                loss = say(real, torch.ones_like(real)) + say(false, torch.zeros_like(false))
                (loss if ill else loss / parts).backward()
            of_judge.step()
            w_judge.log(loss=loss)
            of_make.zero_grad()
            false = judge(make(torch.randn(64, 4)))
            loss = say(false, torch.ones_like(false))
            loss.backward()
            of_make.step()
            w_make.log(loss=loss)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, mean([score()]))


class Shopper(nn.Module):
    """What is bought next, from what was bought before; the norms behind the sums."""

    def __init__(self, items, width=32, depth=5, length=10):
        super().__init__()
        self.item = nn.Embedding(items, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True) for _ in range(depth)
        )

    def forward(self, bought):
        n = bought.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        h = self.item(bought) + self.place(torch.arange(n))
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return h @ self.item.weight.T


@sick(
    "no-warmup", "lr-too-high", "update-too-large",
    where="all blocks, in the first steps", cure="a warm-up of 100 steps: the norms stand behind the sums",
)  # fmt: skip
def shopper_at_the_full_rate_at_once(folder, ill):
    seeded(702)
    items = 40
    net, after = Shopper(items), torch.randperm(items)
    nn.init.normal_(net.item.weight, std=0.1)

    def loss_of(step):
        rows = [torch.randint(items, (32,)), torch.randint(items, (32,))]
        for _ in range(9):
            usual = torch.rand(32) < 0.9
            rows.append(torch.where(usual, after[rows[-2]], torch.randint(items, (32,))))
        both = torch.stack(rows, 1)
        return F.cross_entropy(net(both[:, :-1]).flatten(0, 1), both[:, 1:].flatten())

    make = optim.Adam(net.parameters(), 4e-3, betas=(0.9, 0.98))
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: 1.0 if ill else min(1.0, (step + 1) / 100))
    return fit(folder, net, make, loss_of, 280, schedule=plan)


class Patches(nn.Module):
    """Sixteen patches of a digit, two blocks, a mean."""

    def __init__(self, width=32):
        super().__init__()
        self.cut = nn.Conv2d(1, width, 2, stride=2)
        self.place = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        h = self.cut(x[:, None]).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean(1))


@sick(
    "weights-put-back", "weights-unchanged", "no-progress",
    where="all layers, every tenth step", cure="put the weights of the training back once the average was evaluated",
)  # fmt: skip
def patches_left_as_they_were_evaluated(folder, ill):
    seeded(703)
    net = Patches()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    x, y = digits()

    def evaluate(step):
        average.update_parameters(net)
        if step % 10 == 9:
            kept = {name: value.clone() for name, value in net.state_dict().items()}
            net.load_state_dict(average.module.state_dict())
            with torch.no_grad():
                net(x[:100]).argmax(1).eq(y[:100]).float().mean()
            if not ill:
                net.load_state_dict(kept)

    make = optim.AdamW(net.parameters(), 2e-3)
    return fit(folder, net, make, classify(net, batches(48)), 250, after_step=evaluate)


@sick(
    "schedule-too-short", "schedule-ran-out", "update-too-small", "weights-unchanged", "no-progress",
    where="all layers, from step 100 or so: a tenth of the rate every fourth epoch", cure="mode='min': it is a loss",
)  # fmt: skip
def noise_whose_loss_was_to_rise(folder, ill):
    seeded(704)
    net = dense(2 + 8, 64, 64, 64, 2, act=nn.SiLU)
    keep = torch.cumprod(1 - torch.linspace(1e-3, 0.15, 40), 0)

    def error(step):
        side = torch.randint(2, (128,))
        angle = 3.1416 * (torch.rand(128) + side)
        x = torch.stack([angle.cos() + side - 0.5, angle.sin() + 0.4 * side - 0.2], 1) * 1.3
        t, noise = torch.randint(40, (128,)), torch.randn(128, 2)
        noisy = keep[t].sqrt()[:, None] * x + (1 - keep[t]).sqrt()[:, None] * noise
        wave = t[:, None] / 40 * torch.tensor([1.0, 3.0, 9.0, 27.0])
        return F.mse_loss(net(torch.cat([noisy, wave.sin(), wave.cos()], 1)), noise)

    make = optim.AdamW(net.parameters(), 5e-4)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, mode="max" if ill else "min", factor=0.1, patience=3)
    epoch = []

    def loss_of(step):
        loss = error(step)
        epoch.append(loss.item())
        return loss

    def ask(step):
        if len(epoch) == 10:
            plan.step(mean(epoch))
            epoch.clear()

    return fit(folder, net, make, loss_of, 600, score=score_of(error, 30), after_step=ask)


class Field(nn.Module):
    """A density and a colour at each place of a plane, and what a ray through it sees."""

    def __init__(self, width=64):
        super().__init__()
        self.register_buffer("waves", 2.0 ** torch.arange(5))
        self.net = dense(20, width, width, 4)

    def forward(self, start, way):
        t = torch.linspace(0.0, 2.0, 17)[1:]
        at = start[:, None] + way[:, None] * t[:, None]
        angle = (at[..., None] * self.waves).flatten(2)
        out = self.net(torch.cat([angle.sin(), angle.cos()], 2))
        return render(F.softplus(out[..., :1] - 1), out[..., 1:].sigmoid())


def render(density, colour):
    """The colour that arrives: what is there, times what gets through before it."""
    stop = 1 - (-density * 0.125).exp()
    through = torch.cumprod(1 - stop + 1e-10, 1)
    weight = stop * torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], 1)
    return (weight * colour).sum(1)


@sick(
    "schedule-too-short", "rate-climbs-back", "lr-too-high", "update-too-large",
    where="all layers: every 40 steps the rate is back at its peak", cure="T_max is the number of steps of the run",
)  # fmt: skip
def rays_under_a_wave_of_rates(folder, ill):
    seeded(705)
    net, steps = Field(), 600

    def loss_of(step):
        turn = 6.2832 * torch.rand(48)
        start, way = torch.rand(48, 2) * 2 - 1, torch.stack([turn.cos(), turn.sin()], 1)
        at = start[:, None] + way[:, None] * torch.linspace(0.0, 2.0, 17)[1:, None]
        inside = ((at - 0.3).norm(dim=2) < 0.5) | ((at + 0.6).abs().amax(2) < 0.3)
        colour = torch.stack([at[..., 0].mul(3).sin(), at[..., 1].mul(4).cos(), at.sum(2).sin()], 2) / 2 + 0.5
        return F.mse_loss(net(start, way), render(inside[..., None] * 20.0, colour))

    make = optim.Adam(net.parameters(), 4e-2)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, T_max=20 if ill else steps)
    error = score_of(loss_of, 30)

    def score():  # minus the peak signal-to-noise ratio, in decibels
        return 10 * math.log10(error())

    return fit(folder, net, make, loss_of, steps, score=score, schedule=plan)


@sick(
    "schedule-too-short", "schedule-ran-out", "update-too-small", "weights-unchanged", "no-progress",
    where="all layers, from step 20 or so", cure="plan.step() once an epoch: step_size counts epochs",
)  # fmt: skip
def triplets_divided_by_ten_every_tenth_batch(folder, ill):
    seeded(706)
    x, y = digits()
    net = nn.Sequential(nn.Flatten(), dense(64, 64, 16))
    loss, kinds = nn.TripletMarginLoss(margin=1.0), [(y == k).nonzero()[:, 0] for k in range(10)]

    def draw(kind):
        return torch.stack([x[kinds[k][torch.randint(len(kinds[k]), ())]] for k in kind.tolist()])

    def loss_of(step):
        kind = torch.randint(10, (32,))
        other = (kind + torch.randint(1, 10, (32,))) % 10
        return loss(*(F.normalize(net(draw(k)), dim=1) for k in (kind, kind, other)))

    make = optim.Adam(net.parameters(), 1e-3)
    plan = optim.lr_scheduler.StepLR(make, step_size=10, gamma=0.1)

    def after(step):
        if ill or step % 28 == 27:
            plan.step()

    return fit(folder, net, make, loss_of, 350, score=score_of(loss_of, 20), after_step=after)


@sick(
    "gradients-accumulate",
    where="all layers, all steps: each gradient has all earlier ones in it", cure="optimizer.zero_grad() in each step",
)  # fmt: skip
def decoder_that_never_lets_go(folder, ill):
    seeded(707)
    net, piece = Transformer(seed=7), pieces()
    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    return fit(folder, net, make, predict(net, piece), 220, zero_grad=not ill)


class Adapted(nn.Module):
    """A linear layer that stays as it is, and an adapter of low rank beside it."""

    def __init__(self, layer, rank=4, alpha=8):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.layer(x) + self.scale * x @ self.a.T @ self.b.T


@sick(
    "clip-after-step", "clip-inert", "spike", "exploding", "update-too-large",
    where="the adapters, at each batch with a far-off target", cure="clip_grad_norm_ between backward and step",
)  # fmt: skip
def adapters_held_back_too_late(folder, ill):
    seeded(708)
    net, way, turn = dense(8, 64, 64, 1, act=nn.Tanh), torch.randn(8, 3), 0.3 * torch.randn(8, 3)
    before = optim.Adam(net.parameters(), 3e-3)
    for _ in range(300):
        x = torch.randn(64, 8)
        before.zero_grad()
        F.mse_loss(net(x), (x @ way).sin().sum(1, keepdim=True)).backward()
        before.step()
    for i in (0, 2, 4):
        net[i] = Adapted(net[i])

    def error(step):
        x = torch.randn(64, 8)
        return net(x), (x @ (way + turn)).sin().sum(1, keepdim=True)

    def loss_of(step):
        found, wanted = error(step)
        far = torch.rand(64, 1) < 0.002
        return F.mse_loss(found, torch.where(far, 300 * torch.randn(64, 1), wanted))

    learned = [p for p in net.parameters() if p.requires_grad]

    def clip(step):
        nn.utils.clip_grad_norm_(learned, 1.0)

    make = optim.SGD(learned, 0.02, momentum=0.9)
    score = score_of(lambda step: F.mse_loss(*error(step)), 20)
    return fit(folder, net, make, loss_of, 400, score=score, **{"after_step" if ill else "before_step": clip})
