"""Told healthy trainings, second part: architectures. An expert has nothing to say of any.

They only count (the group `told`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import ALPHABET, batches, classify, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, rings, seeded


@healthy(0.5)
def deep_linear_layers_and_their_plateaus(folder):
    """Five matrices in a row and nothing between them: the loss falls in steps (Saxe et al. 2014)."""
    seeded(821)
    net = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(5)))
    for layer in net:
        nn.init.orthogonal_(layer.weight, 0.6)
    way = torch.randn(8, 8) @ torch.diag(0.5 ** torch.arange(8.0))

    def loss_of(step):
        x = torch.randn(64, 8)
        return F.mse_loss(net(x), x @ way)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05), loss_of, 1000)


class Scaled(nn.Module):
    """A way round two layers, which begin with a share of a millionth (LayerScale, Touvron et al. 2021)."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), dense(width, 2 * width, width, act=nn.GELU)
        self.share = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x):
        return x + self.share * self.inner(self.norm(x))


@healthy(0.3)
def blocks_with_a_share_of_a_millionth(folder):
    seeded(822)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), *(Scaled(48) for _ in range(8)), nn.LayerNorm(48),
                        nn.Linear(48, 10))  # fmt: skip
    return fit(folder, net, optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05), classify(net, batches(48)), 250)


@healthy(0.3)
def pool_of_echoes_that_is_never_trained(folder):
    """A random recurrence at rest (Jaeger 2001); only what reads it learns, to say what was heard three steps ago."""
    seeded(823)
    net = nn.ModuleDict({"pool": nn.RNN(1, 64, batch_first=True).requires_grad_(False), "read": nn.Linear(64, 1)})
    with torch.no_grad():
        weight = net["pool"].weight_hh_l0
        weight.normal_().mul_(0.9 / torch.linalg.eigvals(weight).abs().max())

    def loss_of(step):
        x = torch.rand(16, 30, 1) - 0.5
        return F.mse_loss(net["read"](net["pool"](x)[0])[:, 5:], x[:, 2:-3])

    return fit(folder, net, optim.Adam(net["read"].parameters(), 1e-2), loss_of, 400)


class Settled(nn.Module):
    """Where a layer comes to rest, and one more step of it that carries the gradient (Fung et al. 2022)."""

    def __init__(self, size, width):
        super().__init__()
        self.seen, self.again = nn.Linear(size, width), nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.again.weight, 0.7)

    def forward(self, x):
        seen = self.seen(x)
        with torch.no_grad():
            h = torch.zeros_like(seen)
            for _ in range(20):
                h = (seen + self.again(h)).tanh()
        return (seen + self.again(h)).tanh()


@healthy(0.3)
def layer_that_comes_to_rest(folder):
    seeded(824)
    net, draw = nn.Sequential(Settled(12, 48), nn.Linear(48, 4)), rings(64)

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 400)


class Swings(nn.Module):
    """States that turn and fade, each at a pace of its own (S4D, Gu et al. 2022), as one long convolution."""

    def __init__(self, width, states=8):
        super().__init__()
        self.fade = nn.Parameter(torch.log(0.5 * torch.ones(width, states)))
        self.turn = nn.Parameter(3.14 * torch.arange(states).float().repeat(width, 1))
        self.pace = nn.Parameter(torch.empty(width, 1).uniform_(-6, -2))
        self.out = nn.Parameter(0.05 * torch.randn(width, states, 2))

    def forward(self, x):
        length = x.shape[1]
        rate = torch.complex(-self.fade.exp(), self.turn) * self.pace.exp()
        kernel = (
            (torch.view_as_complex(self.out)[..., None] * (rate[..., None] * torch.arange(length)).exp()).sum(1).real
        )
        spectrum = torch.fft.rfft(x.transpose(1, 2), 2 * length) * torch.fft.rfft(kernel, 2 * length)
        return torch.fft.irfft(spectrum, 2 * length)[..., :length].transpose(1, 2)


@healthy(0.3)
def states_that_turn_and_fade(folder):
    """Which of four signs came first in forty?"""
    seeded(825)
    net = nn.ModuleDict(
        {
            "in": nn.Embedding(4, 32),
            "swings": nn.ModuleList(Swings(32) for _ in range(2)),
            "mix": nn.ModuleList(nn.Linear(32, 32) for _ in range(2)),
            "out": nn.Linear(32, 4),
        }
    )
    fast = [p for name, p in net.named_parameters() if "swings" not in name]

    def loss_of(step):
        x = torch.randint(4, (32, 40))
        h = net["in"](x)
        for swing, mix in zip(net["swings"], net["mix"], strict=True):
            h = h + mix(F.gelu(swing(h)))
        return F.cross_entropy(net["out"](h[:, -1]), x[:, 0])

    make = optim.AdamW([{"params": fast, "lr": 5e-3},
                        {"params": net["swings"].parameters(), "lr": 2e-3, "weight_decay": 0.0}])  # fmt: skip
    return fit(folder, net, make, loss_of, 300)


class Asking(nn.Module):
    """Eight rows of its own ask a long input, twice (Perceiver, Jaegle et al. 2021)."""

    def __init__(self, width):
        super().__init__()
        self.rows = nn.Parameter(0.02 * torch.randn(8, width))
        self.ask = nn.MultiheadAttention(width, 4, batch_first=True)
        self.inner, self.norms = dense(width, 2 * width, width), nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x):
        rows = self.rows.expand(len(x), -1, -1)
        for _ in range(2):
            rows = rows + self.ask(self.norms[0](rows), x, x, need_weights=False)[0]
            rows = rows + self.inner(self.norms[1](rows))
        return rows.mean(1)


@healthy(0.3)
def eight_rows_that_ask_sixty_four_pixels(folder):
    seeded(826)
    net = nn.ModuleDict({"pixel": nn.Linear(1, 32), "asking": Asking(32), "name": nn.Linear(32, 10)})
    net.register_parameter("place", nn.Parameter(0.5 * torch.randn(64, 32)))
    draw = batches(48)

    def loss_of(step):
        x, y = draw(step)
        return F.cross_entropy(net["name"](net["asking"](net["pixel"](x.flatten(1)[..., None]) + net.place)), y)

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3), loss_of, 250)


@healthy(0.3)
def pointer_to_the_next_in_size(folder):
    """Points at the numbers of a list from small to large (pointer networks, Vinyals et al. 2015)."""
    seeded(827)
    net = nn.ModuleDict({"read": nn.GRU(1, 32, batch_first=True), "write": nn.GRUCell(1, 32),
                         "key": nn.Linear(32, 32), "ask": nn.Linear(32, 32)})  # fmt: skip

    def loss_of(step):
        x = torch.rand(48, 5, 1)
        order = x[..., 0].argsort(1)
        rows, h = net["read"](x)
        keys, h, last, losses = net["key"](rows), h[0], torch.zeros(48, 1), []
        for i in range(5):
            h = net["write"](last, h)
            losses.append(F.cross_entropy((keys @ net["ask"](h)[..., None])[..., 0], order[:, i]))
            last = x[torch.arange(48), order[:, i]]
        return torch.stack(losses).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_of, 600)


class Bumps(nn.Module):
    """Forty bumps that move and widen (radial basis functions, Broomhead and Lowe 1988)."""

    def __init__(self):
        super().__init__()
        self.centres, self.width = nn.Parameter(2 * torch.rand(40, 2) - 1), nn.Parameter(torch.full((40,), 1.5))
        self.height = nn.Parameter(torch.zeros(40))

    def forward(self, x):
        return (-torch.cdist(x, self.centres).square() * self.width.exp()).exp() @ self.height


@healthy(0.3)
def bumps_that_move_and_widen(folder):
    seeded(828)
    net = Bumps()

    def loss_of(step):
        x = 2 * torch.rand(64, 2) - 1
        return F.mse_loss(net(x), (4 * x[:, 0]).sin() * (3 * x[:, 1]).cos())

    return fit(folder, net, optim.Adam(net.parameters(), 0.02), loss_of, 300)


class Bounded(nn.Module):
    """A causal block whose questions and keys have length 1 (Henry et al. 2020), with its own scale for each head."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.norm, self.three, self.out = nn.RMSNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.scale, self.inner = (
            nn.Parameter(torch.full((heads, 1, 1), 10.0)),
            dense(width, 2 * width, width, act=nn.SiLU),
        )
        self.heads = heads

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.three(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1) * self.scale, F.normalize(k, dim=-1)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        x = x + self.out(h.transpose(1, 2).reshape(b, t, w))
        return x + self.inner(self.norm(x))


@healthy(0.3)
def questions_and_keys_of_length_one(folder):
    """With a small weight on the square of the logits' normaliser (z-loss)."""
    seeded(829)
    net = nn.Sequential(nn.Embedding(len(ALPHABET), 32), Bounded(32), Bounded(32), nn.Linear(32, len(ALPHABET)))
    piece = pieces(16)

    def loss_of(step):
        out = net(piece(step)[0])
        return predict(lambda x: out, piece)(step) + 1e-4 * out.logsumexp(2).square().mean()

    return fit(folder, net, optim.AdamW(net.parameters(), 3e-3, betas=(0.9, 0.95)), loss_of, 180)


class Turns(nn.Module):
    """Fifteen soft turns left or right lead to sixteen leaves (Frosst and Hinton 2017)."""

    def __init__(self, size):
        super().__init__()
        self.turn, self.leaf = nn.Linear(size, 15), nn.Parameter(torch.randn(16, 1))

    def forward(self, x):
        right, reach = self.turn(x).sigmoid(), torch.ones(len(x), 1)
        for depth in range(4):
            here = right[:, 2**depth - 1 : 2 ** (depth + 1) - 1]
            reach = torch.stack([reach * (1 - here), reach * here], 2).flatten(1)
        return reach @ self.leaf


@healthy(0.3)
def turns_to_sixteen_leaves(folder):
    seeded(830)
    net = Turns(2)

    def loss_of(step):
        x = 2 * torch.rand(64, 2) - 1
        return F.mse_loss(net(x)[:, 0], (3 * x[:, 0]).sin() + (x[:, 1] > 0.2).float())

    return fit(folder, net, optim.Adam(net.parameters(), 0.02), loss_of, 600)
