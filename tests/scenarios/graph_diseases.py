"""Set-ups that are put together wrongly between the weights and the loss, each beside its healthy twin."""

from itertools import pairwise

import torch
from diseases import dense
from nets import ALPHABET, SEED, batches, mlp, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from trainings import fit


def broadcast(folder, sick=True, steps=200):
    """A column of predictions against a row of targets (the twin: one shape)."""
    net, draw = dense([8, 32, 1]), torch.Generator().manual_seed(SEED[0])

    def loss_of(step):
        x = torch.randn(64, 8, generator=draw)
        y = x[:, 0] * x[:, 1] + x[:, 2]
        out = net(x)
        return ((out if sick else out.squeeze(1)) - y).square().mean()

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps)


def without_activations(folder, sick=True, steps=200):
    """Three layers with nothing between them (the twin: with a ReLU between them)."""
    torch.manual_seed(SEED[0])
    between = nn.Identity if sick else nn.ReLU
    net = nn.Sequential(nn.Linear(8, 32), between(), nn.Linear(32, 32), between(), nn.Linear(32, 1))
    draw = torch.Generator().manual_seed(SEED[0])

    def loss_of(step):
        x = torch.randn(64, 8, generator=draw)
        return F.mse_loss(net(x).squeeze(1), x[:, 0] * x[:, 1] + x[:, 2])

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps)


def gated_over_the_batch(folder, sick=True, steps=200):
    """Gates of four experts that add up to 1 over the batch (the twin: over the experts)."""
    torch.manual_seed(SEED[0])
    router, experts = nn.Linear(64, 4), nn.ModuleList(mlp(16) for _ in range(4))
    net, batch = nn.ModuleDict({"router": router, "experts": experts}), batches()

    def loss_of(step):
        x, y = batch(step)
        gates = router(x.flatten(1)).softmax(0 if sick else 1)
        said = torch.stack([expert(x) for expert in experts], 1)
        return F.cross_entropy((gates[:, :, None] * said).sum(1), y)

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps)


def normed_over_two(folder, sick=True, steps=300):
    """Batch norms in batches of two rows (the twin: of 64)."""
    net, batch = mlp(norm=True), batches(size=2 if sick else 64)

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.05, momentum=0.9), loss_of, steps)


def nine_in_ten_dropped(folder, sick=True, steps=200):
    """A dropout of what was to be kept (the twin: of the rest)."""
    net, batch = mlp(dropout=0.9 if sick else 0.1), batches()

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps)


class Reader(nn.Module):
    """One layer of attention over letters; its heads are split off by a view alone, or by view and transpose."""

    def __init__(self, kinds, sick, width=32, heads=4):
        super().__init__()
        self.sick, self.heads = sick, heads
        self.embed, self.place = nn.Embedding(kinds, width), nn.Parameter(0.1 * torch.randn(64, width))
        self.into, self.out, self.head = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, kinds)

    def split(self, x):
        rows, length, width = x.shape
        if self.sick:
            return x.reshape(rows, self.heads, length, width // self.heads)
        return x.view(rows, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x):
        rows, length = x.shape
        h = self.embed(x) + self.place[:length]
        asked, key, value = map(self.split, self.into(h).chunk(3, -1))
        seen = F.scaled_dot_product_attention(asked, key, value, is_causal=True)
        return self.head(h + self.out(seen.transpose(1, 2).reshape(rows, length, -1)))


def viewed_for_transposed(folder, sick=True, steps=200):
    """Heads by `view(rows, heads, length, size)` (the twin: by a view and a transpose)."""
    torch.manual_seed(SEED[0])
    net = Reader(len(ALPHABET), sick)
    return fit(folder, net, optim.Adam(net.parameters(), 0.01), predict(net, pieces()), steps)


class Hearsay(nn.Module):
    """Layers of a graph network: what each node says is the mean of what its neighbours give out (Kipf & Welling)."""

    def __init__(self, near, sizes):
        super().__init__()
        self.near = near
        self.layers = nn.ModuleList(nn.Linear(*each) for each in pairwise(sizes))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = (self.near @ layer(x)).relu()
        return self.near @ self.layers[-1](x)


def heard_too_often(folder, sick=True, steps=120):
    """A graph network of sixteen layers (the twin: of two)."""
    torch.manual_seed(SEED[0])
    kind = torch.randint(4, (200,))
    linked = (torch.rand(200, 200) < torch.where(kind[:, None] == kind, 0.12, 0.02)).float().triu(1)
    linked = linked + linked.T + torch.eye(200)
    x = 0.7 * torch.randn(4, 16)[kind] + torch.randn(200, 16)
    net = Hearsay(linked / linked.sum(1, keepdim=True), [16, *[32] * (15 if sick else 1), 4])
    return fit(folder, net, optim.Adam(net.parameters(), 0.003), lambda step: F.cross_entropy(net(x), kind), steps)


def not_told_how_much_noise(folder, sick=True, steps=300):
    """A denoiser of points around two centres that is not given the level of the noise (the twin: it is)."""
    torch.manual_seed(SEED[0])
    net = dense([2 if sick else 3, 64, 64, 2])
    levels = torch.logspace(-1.3, 0.3, 10)
    draw = torch.Generator().manual_seed(SEED[0])

    def loss_of(step):
        centre = 2.0 * torch.randint(2, (128, 1), generator=draw) - 1
        level = levels[torch.randint(10, (128,), generator=draw)][:, None]
        noise = torch.randn(128, 2, generator=draw)
        point = centre + 0.05 * torch.randn(128, 2, generator=draw) + level * noise
        return F.mse_loss(net(point if sick else torch.cat([point, level.log()], 1)), noise)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)
