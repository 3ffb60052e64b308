"""Fresh healthy trainings, second part: small data, schedules and constraints. An expert has nothing to say of any.

They only count (the group `fresh`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import ALPHABET, batches, classify, cnn, mlp, pieces
from torch import nn, optim
from torch.nn import functional as F
from torch.nn.utils import parametrize
from unseen import dense, entropy_of, fit, healthy, rings, score_of, seeded, square_of, waves
from unseen.fresh.healthy import pretrain


@healthy(0.5)
def three_numbers_of_a_process_by_lbfgs(folder):
    """The marginal likelihood of a Gaussian process: thirty points, three parameters, a line search, float64."""
    seeded(170)
    x = torch.linspace(0, 6, 30, dtype=torch.float64)
    y = x.sin() + 0.1 * torch.randn(30, dtype=torch.float64)
    net = nn.ParameterDict({name: torch.tensor([2.0], dtype=torch.float64) for name in ("length", "height", "noise")})

    def loss_of(step):
        length, height, noise = (net[name].exp() for name in ("length", "height", "noise"))
        kernel = height * (-0.5 * ((x[:, None] - x) / length).square()).exp() + (noise + 1e-6) * torch.eye(30)
        return -torch.distributions.MultivariateNormal(torch.zeros_like(x), kernel).log_prob(y)

    make = optim.LBFGS(net.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
    return fit(folder, net, make, loss_of, 40, closure=True, score=score_of(loss_of, 1))


@healthy(0.9)
def sixteen_rows_learned_by_heart(folder):
    net = mlp(48, seed=171)
    x, y = (part[:16] for part in batches(64)(0))
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), lambda step: F.cross_entropy(net(x), y), 400)


@healthy(0.3)
def forty_steps_of_a_linear_probe(folder):
    """All but the last layer is frozen and in eval; the features were learned for other labels."""
    net, draw = cnn(norm=True, seed=172), batches(64)
    pretrain(net, classify(net, draw), 60)
    net[-1] = nn.Linear(256, 5)
    net.eval()
    for part in net[:-1]:
        part.requires_grad_(False)

    def loss_of(step):
        x, y = draw(3000 + step)
        return F.cross_entropy(net(x), y % 5)

    return fit(folder, net, optim.SGD(net[-1].parameters(), 0.1, momentum=0.9), loss_of, 40)


@healthy(0.5)
def many_steps_under_one_cosine(folder):
    seeded(173)
    net, draw = dense(6, 32, 32, 1, act=nn.GELU), waves(32)
    make = optim.AdamW(net.parameters(), 5e-3, weight_decay=0.01)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 2500, eta_min=1e-5)
    return fit(folder, net, make, square_of(net, draw), 2500, schedule=plan)


@healthy(0.3)
def noise_that_rises_as_it_is_mastered(folder):
    """A denoiser: the loss rises with the noise all the way; the score is that of the most noise."""
    seeded(174)
    net, draw = dense(64, 96, 64), batches(64)

    def error(step, noise):
        x = draw(step)[0].flatten(1)
        return F.mse_loss(net(x + noise * torch.randn_like(x)), x)

    score = score_of(lambda step: error(9000 + step, 0.6))
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), lambda step: error(step, step / 1000), 600, score=score)


@healthy(0.3)
def net_that_was_cut_back(folder):
    """Four of five weights are pruned and stay zero, though they still get gradients (Han et al. 2015)."""
    net, draw = mlp(96, depth=3, seed=175), batches(64)
    pretrain(net, classify(net, draw), 200)
    kept = {}
    for p in net.parameters():
        if p.ndim > 1:
            kept[p] = (p.detach().abs() >= p.detach().abs().flatten().quantile(0.8)).float()

    @torch.no_grad()
    def cut(step):
        for p, mask in kept.items():
            p.mul_(mask)

    cut(0)
    make = optim.SGD(net.parameters(), 0.01, momentum=0.9)
    score = score_of(classify(net, batches(256, seed=9)), 2)
    return fit(folder, net, make, classify(net, batches(64, seed=2)), 200, after_step=cut, score=score)


@healthy(0.1)
def lower_rates_for_deeper_layers(folder):
    """Good already when it begins; each layer learns at half the rate of the one behind it (Howard and Ruder 2018)."""
    net, draw = mlp(64, depth=4, seed=176), batches(64)
    pretrain(net, classify(net, draw), 150)
    layers = [part for part in net if isinstance(part, nn.Linear)]
    groups = [{"params": layer.parameters(), "lr": 1e-3 / 2**i} for i, layer in enumerate(reversed(layers))]

    def loss_of(step):
        x, y = draw(4000 + step)
        return F.cross_entropy(net(x + 0.15 * torch.randn_like(x)), y)

    score = score_of(lambda step: loss_of(9000 + step), 16)
    return fit(folder, net, optim.AdamW(groups), loss_of, 300, score=score)


class Rounded(nn.Module):
    """Weights of four bits in the forward pass, and a gradient as if they had not been rounded."""

    def forward(self, w):
        unit = w.detach().abs().max() / 7
        return w + ((w / unit).round() * unit - w).detach()


@healthy(0.3)
def weights_of_four_bits(folder):
    net = mlp(64, seed=177)
    for part in net:
        if isinstance(part, nn.Linear):
            parametrize.register_parametrization(part, "weight", Rounded())
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), classify(net, batches(64)), 300)


class Filler(nn.Module):
    """Says what stands behind a mask: an encoder that looks both ways."""

    def __init__(self, width=32, length=24):
        super().__init__()
        self.embed, self.head = nn.Embedding(len(ALPHABET) + 1, width), nn.Linear(width, len(ALPHABET))
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, norm_first=True, batch_first=True)
        self.body = nn.TransformerEncoder(block, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, x):
        return self.head(self.body(self.embed(x) + self.place))


@healthy(0.3)
def letters_behind_a_mask(folder):
    """A long plateau at the frequencies of the letters, and then it falls (Devlin et al. 2019)."""
    seeded(178)
    net, piece = Filler(), pieces(32)

    def loss_of(step):
        x = piece(step)[0]
        hidden = torch.rand(x.shape) < 0.15
        return F.cross_entropy(net(x.masked_fill(hidden, len(ALPHABET)))[hidden], x[hidden])

    make = optim.AdamW(net.parameters(), 5e-3)
    plan = optim.lr_scheduler.LambdaLR(make, lambda step: min(1.0, (step + 1) / 30))
    return fit(folder, net, make, loss_of, 400, schedule=plan)


@healthy(0.3)
def most_weights_shrunk_to_zero(folder):
    """The lasso by soft thresholds (ISTA): eight of two hundred columns count, the other weights are to vanish."""
    seeded(179)
    net, way = nn.Linear(200, 1), torch.zeros(200, 1)
    way[:8] = torch.randn(8, 1)

    def loss_of(step):
        x = torch.randn(64, 200)
        return 0.5 * F.mse_loss(net(x), x @ way + 0.3 * torch.randn(64, 1))

    @torch.no_grad()
    def shrink(step):
        net.weight.copy_(F.softshrink(net.weight, 0.03 * 0.05))

    return fit(folder, net, optim.SGD(net.parameters(), 0.03), loss_of, 400, after_step=shrink)


@healthy(0.3)
def units_held_by_a_norm_under_dropout(folder):
    """A large rate that a bound on each unit makes safe (Srivastava et al. 2014)."""
    net = mlp(128, dropout=0.5, seed=180)
    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return fit(folder, net, make, classify(net, batches(64)), 300, renorm="MaxNorm(2.0)")


@healthy(0.3)
def two_experts_of_six_a_row(folder):
    """The two best, chosen with noise, and a loss on the square of their logits (Zoph et al. 2022)."""
    seeded(181)
    net = nn.ModuleDict({"router": nn.Linear(6, 6), "experts": nn.ModuleList(dense(6, 24, 1) for _ in range(6))})
    draw = waves(128)

    def loss_of(step):
        x, y = draw()
        logits = net["router"](x) + 0.3 * torch.randn(128, 6)
        best = logits.topk(2, 1)
        share = torch.zeros(128, 6).scatter(1, best.indices, best.values.softmax(1))
        out = torch.cat([expert(x) for expert in net["experts"]], 1)
        load = (share > 0).float().mean(0) @ logits.softmax(1).mean(0) * 3
        error = F.mse_loss((out * share).sum(1, keepdim=True), y)
        return error + 0.01 * load + 1e-3 * logits.logsumexp(1).square().mean(), {"error": error}

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400)


@healthy(0.5)
def angles_with_a_margin(folder):
    """ArcFace (Deng et al. 2019): cosines less a margin, thirty times as large; the loss begins above ten."""
    net = mlp(64, seed=182)
    net[-1] = nn.Linear(64, 16)
    net.append(nn.Linear(16, 10, bias=False))
    draw = batches(64)

    def loss_of(step):
        x, y = draw(step)
        near = F.linear(F.normalize(net[:-1](x)), F.normalize(net[-1].weight)).clamp(-0.999, 0.999)
        angle = near.acos() + 0.3 * F.one_hot(y, 10)
        return F.cross_entropy(30 * angle.cos(), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=5e-4), loss_of, 300)


@healthy(0.3)
def heavy_tails_under_a_clip_by_percentile(folder):
    """Errors of Student's t with two degrees of freedom: every second step is clipped, as is asked for."""
    seeded(183)
    net, draw = dense(6, 48, 48, 1), waves(64)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y + 0.2 * torch.distributions.StudentT(2.0).sample(y.shape))

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, make, loss_of, 600, clip="AutoClip(50)", score=score_of(square_of(net, draw)))


@healthy(0.3)
def rows_of_small_shares_at_a_rate_of_a_hundred(folder):
    """Words weighed by their rarity: entries of a hundredth, gradients as small, a rate that makes up for it."""
    seeded(185)
    net, way = nn.Linear(300, 3, bias=False), torch.randn(300, 3)
    nn.init.zeros_(net.weight)

    def loss_of(step):
        x = (torch.rand(64, 300) < 0.1).float() * 0.02
        return F.cross_entropy(net(x), (x @ way).argmax(1))

    return fit(folder, net, optim.SGD(net.parameters(), 100.0), loss_of, 800)


@healthy(0.3)
def rate_in_triangles(folder):
    """Up and down four times (Smith 2017): the loss breathes with it."""
    seeded(186)
    net, draw = dense(12, 48, 48, 4, norm=nn.BatchNorm1d), rings()
    make = optim.SGD(net.parameters(), 0.01, momentum=0.9)
    plan = optim.lr_scheduler.CyclicLR(make, 0.005, 0.2, step_size_up=50, cycle_momentum=False)
    return fit(folder, net, make, entropy_of(net, draw), 400, schedule=plan)
