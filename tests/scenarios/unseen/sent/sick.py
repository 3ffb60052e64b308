"""Sent sick trainings, first part: what the optimizer, the rate, the schedule and the precision do wrong.

Mistakes that people told of in public because their training was unstable or did not learn, taken as a search met them;
a comment names the thread that each was drawn from. They only count (the group `sent`). Whoever writes or changes a
rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import CODES, Transformer, batches, classify, cnn, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, rings, score_of, seeded, sick
from unseen.reported.sick import judged, pretrain, rivals
from unseen.tasks import circle
from unseen.told.sick import Beside

import gradwatch


# "Add gradient clipping to LoRA fine-tuning loop" (one batch corrupts the weights for good),
# github.com/openvla/openvla/pull/334
@sick(
    "spike", "stale-second-moment",
    where="the adapters, step 110: a batch whose images nobody had divided by 255", cure="clip_grad_norm_ at 1",
)  # fmt: skip
def adapters_that_one_batch_throws_off(folder, ill):
    """A net that knows the digits learns in eight directions to know them upside down."""
    seeded(1001)
    body = dense(64, 96, 96, 10, act=nn.GELU)
    pretrain(body, classify(nn.Sequential(nn.Flatten(), body), batches(64)), 150)
    body.requires_grad_(False)
    net = nn.Sequential(nn.Flatten(), *(Beside(part, 2.0) if isinstance(part, nn.Linear) else part for part in body))
    draw = batches(48, seed=9)

    def loss_of(step):
        x, y = draw(step)
        return F.cross_entropy(net(x.flip(1) * (255 if step == 110 else 1)), y)

    def before(step):
        if not ill:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    make = optim.AdamW([p for p in net.parameters() if p.requires_grad], 5e-4)
    return fit(folder, net, make, loss_of, 350, before_step=before, score=score_of(lambda step: loss_of(1000 + step)))


# "Add configurable Adam parameters, set beta2 to 0.95" (fewer loss spikes than with 0.999),
# github.com/AI-Hypercomputer/maxtext/pull/17
@sick(
    "stale-second-moment", "spike", "lr-too-high",
    where="all layers, where the text changes after a calm stretch: a thousand gradients are remembered",
    cure="betas=(0.9, 0.95)",
)  # fmt: skip
def mean_of_a_thousand_squares(folder, ill):
    """Most of the text is one line again and again; in between comes all of it."""
    net, piece = Transformer(32, 2, seed=1002), pieces(16, seed=3)
    line = CODES[:25].repeat(16, 1)

    def loss_of(step):
        x, y = piece(step) if step % 100 >= 90 else (line[:, :-1], line[:, 1:])
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    make = optim.AdamW(net.parameters(), 3e-2, (0.9, 0.999 if ill else 0.95))
    return fit(folder, net, make, loss_of, 400, score=score_of(predict(net, pieces(16, seed=4))))


class ByMeans(optim.Optimizer):
    """Adam, whose corrections of the bias are 1 - beta^t; `twice` takes them from 1 once more."""

    def __init__(self, params, lr, twice):
        super().__init__(params, {"lr": lr})
        self.twice = twice

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["t"] = state.get("t", 0) + 1
                m = state.setdefault("m", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                v = state.setdefault("v", torch.zeros_like(p)).lerp_(p.grad.square(), 0.001)
                first, second = 1 - 0.9 ** state["t"], 1 - 0.999 ** state["t"]
                if self.twice:
                    first, second = 1 - first, 1 - second
                p.addcdiv_(m / first, (v / second).sqrt() + 1e-8, value=-group["lr"])


# "[Bugfix] Fix AdamG instability" (the bias correction has its minus-one twice, and the gradients explode),
# github.com/kozistr/pytorch_optimizer/pull/308
@sick(
    "update-too-large", "lr-too-high", "exploding",
    where="all layers, from a few tens of steps on: each step is a ninth longer than the one before",
    cure="the correction is 1 - beta^t, not beta^t",
)  # fmt: skip
def bias_corrected_the_other_way(folder, ill):
    seeded(1003)
    net, draw = dense(12, 64, 64, 4), rings()

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, ByMeans(net.parameters(), 1e-3, ill), loss_of, 250)


# "optimizer_D.zero_grad() missing?", github.com/Hsintien-Ng/idinvert_pytorch-reproduced/issues/1
@sick(
    "gradients-accumulate",
    where="the judge, all steps: it keeps its own gradients and those of the maker's loss",
    cure="zero_grad of the judge's optimizer before its backward",
)  # fmt: skip
def judge_that_keeps_all_its_gradients(folder, ill) -> Outcome:
    make, judge = rivals(1004)
    of_make, of_judge = (optim.Adam(net.parameters(), 1e-3, (0.5, 0.9)) for net in (make, judge))

    def score():
        with torch.no_grad():
            return float((make(torch.randn(512, 4)).norm(dim=1) - 2).abs().mean())

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(make, of_make)}
    w_judge = gradwatch.watch(judge, of_judge, name="D", **options)
    w_make = gradwatch.watch(make, of_make, name="G", run=w_judge, **options)
    with w_judge, w_make:
        for _ in range(1500):
            made = make(torch.randn(64, 4))
            if not ill:
                of_judge.zero_grad()
            loss = judged(judge)(circle(), made.detach())
            loss.backward()
            of_judge.step()
            w_judge.log(loss=loss)
            of_make.zero_grad()
            loss = F.softplus(-judge(made)).mean()
            loss.backward()
            of_make.step()
            w_make.log(loss=loss)
    return Outcome(gradwatch.open_history(w_judge.dir.parent), first, score())


# "FloatingPointError: Loss became infinite or NaN" (cfg.BASE_LR was set, and cfg.SOLVER.BASE_LR is read),
# github.com/facebookresearch/detectron2/issues/550
@sick(
    "lr-too-high", "exploding", "update-too-large",
    where="all layers, from the first steps: the rate of a batch of hundreds", cure="optimizer.param_groups[0]['lr']",
)  # fmt: skip
def rate_written_where_nobody_reads(folder, ill):
    net, rate = cnn(seed=1005), 0.02
    make = optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
    if ill:
        make.lr = rate
    else:
        make.param_groups[0]["lr"] = rate
    return fit(folder, net, make, classify(net, batches(16)), 250)


# "bigger learning rate leads to reach minimum loss scale", github.com/facebookresearch/fairseq/issues/282
@sick(
    "lr-too-high", "update-too-large", "exploding",
    where="all layers, from the first steps; the scale sinks as the values outgrow float16", cure="a twentieth of it",
)  # fmt: skip
def scale_that_sinks_under_a_high_rate(folder, ill):
    net, piece = Transformer(32, 2, seed=1006), pieces(12)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=50)

    def loss_of(step):
        x, y = piece(step)
        with torch.autocast("cpu", torch.float16):
            out = net(x)
        return F.cross_entropy(out.float().flatten(0, 1), y.flatten())

    return fit(folder, net, optim.Adam(net.parameters(), 0.1 if ill else 5e-3), loss_of, 120, scaler=scaler)


# "Demo training data generates NaN for loss" (train_initial_lr is 1, and it should be 1e-3),
# github.com/PENGLU-WashU/IMC_Denoise/issues/11
@sick(
    "lr-too-high", "update-too-large", "exploding",
    where="all layers, from the first step: Adam at a rate of 1", cure="1e-3",
)  # fmt: skip
def noise_taken_out_at_a_rate_of_one(folder, ill):
    seeded(1007)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(12, 1, 3, padding=1))  # fmt: skip
    draw = batches(16)

    def loss_of(step):
        clean = draw(step)[0][:, None]
        return F.mse_loss(net(clean + 0.3 * torch.randn_like(clean)), clean)

    return fit(folder, net, optim.Adam(net.parameters(), 1.0 if ill else 1e-3), loss_of, 250)


class ByTheirNorm(optim.Optimizer):
    """Gradients that are shorter than usual are made as long as usual (AdaNorm, Dubey et al. 2022), without `eps`."""

    def __init__(self, params, lr, eps):
        super().__init__(params, {"lr": lr})
        self.eps = eps

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state, norm = self.state[p], p.grad.norm()
                usual = state["usual"] = 0.95 * state.get("usual", norm) + 0.05 * norm
                grad = p.grad * (usual / (norm + self.eps)).clamp(min=1)
                m = state.setdefault("m", torch.zeros_like(p)).lerp_(grad, 0.1)
                v = state.setdefault("v", torch.zeros_like(p)).lerp_(p.grad.square(), 0.01)
                p.addcdiv_(m, v.sqrt() + 1e-8, value=-group["lr"])


# "Nan value at loss calculation" (a division by the norm of the gradient, without an epsilon),
# github.com/shivram1987/AdaNorm/issues/1
@sick(
    "nonfinite",
    where="the head for the rare rows, at the first batch that has none: 0 / 0 in the optimizer; then all layers",
    cure="eps in the denominator",
)  # fmt: skip
def gradient_divided_by_its_norm_of_zero(folder, ill):
    seeded(1008)
    net = nn.ModuleDict({"body": dense(12, 48, 48), "often": nn.Linear(48, 4), "seldom": nn.Linear(48, 4)})
    draw = rings(32)

    def loss_of(step):
        x, y = draw()
        rare, h = torch.rand(32, 1) < 0.15, net["body"](x).relu()
        out = torch.where(rare, net["seldom"](h), net["often"](h))
        return F.cross_entropy(out, torch.where(rare[:, 0], 3 - y, y))

    return fit(folder, net, ByTheirNorm(net.parameters(), 2e-3, 0.0 if ill else 1e-8), loss_of, 400)


# "Fix Two Potential Bugs, with Significant Accuracy Improvement" (the magnitude of the rate),
# github.com/jadore801120/attention-is-all-you-need-pytorch/pull/168
@sick(
    "lr-too-high", "update-too-large",
    where="all layers, from the last steps of the warm-up on", cure="a quarter of the factor",
)  # fmt: skip
def warm_up_to_four_times_the_rate(folder, ill):
    net = Transformer(32, 4, seed=1009, pre=False)
    make = optim.Adam(net.parameters(), 2.0 if ill else 0.5, (0.9, 0.98), 1e-9)
    plan = optim.lr_scheduler.LambdaLR(make, lambda s: 32**-0.5 * min((s + 1) ** -0.5, (s + 1) * 20**-1.5))
    return fit(folder, net, make, predict(net, pieces(16)), 200, schedule=plan)


# "LRScheduler.T_max must match TrainingLoop.epochs, and nothing says so" (where it is smaller the rate climbs back up),
# github.com/CodefyUI/CodefyUI/issues/205
@sick(
    "schedule-too-short", "lr-too-high",
    where="all layers, the second half: the rate comes back to what it was at first", cure="T_max of the whole run",
)  # fmt: skip
def rate_that_climbs_back_up(folder, ill):
    net, steps = mlp(seed=1010), 400
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, T_max=steps // 2 if ill else steps)
    return fit(folder, net, make, classify(net, batches(16)), steps, schedule=plan)
