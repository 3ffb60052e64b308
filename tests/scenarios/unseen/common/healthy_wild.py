"""Common healthy trainings of the wild kind, first part: sets, routers and attention out of the ordinary.

They only count (the group `common`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import digits
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded


def kept_apart():
    """Of five digits one is for the test: learnt `(x, y)`, kept `(x, y)`, of 64 pixels each."""
    x, y = digits()
    x, kept = x.flatten(1), torch.arange(len(x)) % 5 == 4
    return (x[~kept], y[~kept]), (x[kept], y[kept])


def of_kinds(y, wanted):
    """One of the rows whose label is `wanted`, for each."""
    rows = torch.stack([torch.where(y == i)[0][: int(y.bincount().min())] for i in range(10)])
    return rows[wanted, torch.randint(rows.shape[1], wanted.shape)]


class Bags(nn.Module):
    """Gated attention over the instances of each bag (Ilse et al. 2018); the bags lie one behind another."""

    def __init__(self, wide=48):
        super().__init__()
        self.see = nn.Sequential(nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU())
        self.what, self.gate, self.weigh = nn.Linear(wide, 24), nn.Linear(wide, 24), nn.Linear(24, 1)
        self.head = nn.Linear(wide, 1)

    def forward(self, x, sizes):
        pooled = []
        for seen in self.see(x).split(sizes):
            share = self.weigh(self.what(seen).tanh() * self.gate(seen).sigmoid()).softmax(0)
            pooled.append((share * seen).sum(0))
        return self.head(torch.stack(pooled))[:, 0]


@healthy(0.4)
def whether_a_bag_holds_a_nine(folder):
    """Only the bag has a label; Adam at 1e-3 and a little decay, as in the paper."""
    seeded(4320)
    net, (learnt, kept) = Bags(), kept_apart()

    def loss_on(x, y):
        def loss_of(step):
            sizes = torch.randint(5, 12, (24,)).tolist()
            at = torch.randint(len(x), (sum(sizes),))
            nine = torch.rand(len(sizes)) < 0.5
            named = []
            for its, wanted in zip(at.split(sizes), nine, strict=True):
                others = its[y[its] != 9]
                others = others if len(others) else torch.where(y != 9)[0][:3]
                one = torch.where(y == 9)[0]
                named.append(torch.cat([others, one[torch.randint(len(one), (1,))]]) if wanted else others)
            said = net(x[torch.cat(named)], [len(its) for its in named])
            return F.binary_cross_entropy_with_logits(said, nine.float())

        return loss_of

    make = optim.Adam(net.parameters(), 1e-3, weight_decay=1e-4)
    return fit(folder, net, make, loss_on(*learnt), 500, score=score_of(loss_on(*kept)))


class Chosen(nn.Module):
    """Each expert takes the tokens that it likes best (Zhou et al. 2022), beside a path that all take."""

    def __init__(self, wide, experts=4):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(wide), nn.Linear(wide, experts, bias=False)
        self.experts = nn.ModuleList(dense(wide, 2 * wide, wide, act=nn.GELU) for _ in range(experts))

    def forward(self, x):
        flat = self.norm(x).flatten(0, 1)
        share = self.router(flat).softmax(1)
        much, which = share.topk(2 * len(flat) // len(self.experts), 0)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            out = out.index_add(0, which[:, i], much[:, i, None] * expert(flat[which[:, i]]))
        return x + out.view_as(x)


class OfPatches(nn.Module):
    """Sixteen patches of a digit as tokens, what `blocks` make of them, and the mean over all."""

    def __init__(self, blocks, wide=32):
        super().__init__()
        self.first, self.place = nn.Linear(4, wide), nn.Parameter(0.02 * torch.randn(16, wide))
        self.blocks, self.norm, self.head = nn.Sequential(*blocks), nn.LayerNorm(wide), nn.Linear(wide, 10)

    def forward(self, x):
        x = x.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        return self.head(self.norm(self.blocks(self.first(x) + self.place)).mean(1))


class Looked(nn.Module):
    """`attend(q, k, v)` over two heads."""

    def __init__(self, wide, attend):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(wide), nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.attend = attend

    def forward(self, x):
        rows, long, wide = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, long, 3, 2, wide // 2).permute(2, 0, 3, 1, 4)
        return x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(x.shape))


class Narrow(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.mix = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, 2 * wide), nn.GELU(), nn.Linear(2 * wide, wide))

    def forward(self, x):
        return x + self.mix(x)


def of_digits(folder, net, make, steps, rows=48, label_smoothing=0.0, **options):
    """Learns the digits; the score is the cross-entropy on those that were kept apart."""
    (x, y), kept = kept_apart()

    def loss_of(step):
        at = torch.randint(len(x), (rows,))
        return F.cross_entropy(net(x[at]), y[at], label_smoothing=label_smoothing)

    def score():
        net.eval()
        with torch.no_grad():
            loss = float(F.cross_entropy(net(kept[0]), kept[1]))
        net.train()
        return loss

    return fit(folder, net, make, loss_of, steps, score=score, **options)


def warm(make, rise, steps):
    """A rise of the rate and then a line down to nought."""
    return optim.lr_scheduler.LambdaLR(make, lambda step: min((step + 1) / rise, (steps - step) / (steps - rise)))


@healthy(0.6)
def experts_that_choose_their_tokens(folder):
    """Patches of digits; no loss for the balance is needed; a warm-up and a clip at 1."""
    seeded(4321)

    def plain(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    net = OfPatches([Looked(32, plain), Chosen(32), Looked(32, plain), Chosen(32)])
    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    return of_digits(folder, net, make, 600, schedule=warm(make, 50, 600), clip="ClipByGlobalNorm(1.0)")


class SoftSlots(nn.Module):
    """A soft mixture of experts (Puigcerver et al. 2023): slots take means of tokens, tokens means of slots."""

    def __init__(self, wide, experts=4, each=2):
        super().__init__()
        self.norm, self.slots = nn.LayerNorm(wide), nn.Parameter(F.normalize(torch.randn(wide, experts * each), dim=0))
        self.scale = nn.Parameter(torch.ones(()))
        self.experts = nn.ModuleList(dense(wide, wide, wide, act=nn.GELU) for _ in range(experts))

    def forward(self, x):
        seen = self.norm(x)
        like = F.normalize(seen, dim=2) @ (self.scale * F.normalize(self.slots, dim=0))
        taken = (like.softmax(1).transpose(1, 2) @ seen).chunk(len(self.experts), 1)
        made = torch.cat([expert(its) for expert, its in zip(self.experts, taken, strict=True)], 1)
        return x + like.softmax(2) @ made


@healthy(0.6)
def slots_filled_by_means_of_tokens(folder):
    seeded(4322)
    net = OfPatches([Narrow(32), SoftSlots(32), Narrow(32), SoftSlots(32)])
    make = optim.Adam(net.parameters(), 3e-3)
    return of_digits(folder, net, make, 800, schedule=warm(make, 60, 800))


class Induced(nn.Module):
    """A set looks at a few points that looked at it (Lee et al. 2019)."""

    def __init__(self, wide, points):
        super().__init__()
        self.points = nn.Parameter(nn.init.xavier_uniform_(torch.empty(points, wide)))
        self.at, self.back = (nn.MultiheadAttention(wide, 4, batch_first=True) for _ in range(2))
        self.norms, self.mix = nn.ModuleList(nn.LayerNorm(wide) for _ in range(2)), dense(wide, wide, wide)

    def forward(self, x):
        few = self.points.expand(len(x), -1, -1)
        few = few + self.at(few, x, x)[0]
        x = self.norms[0](x + self.back(x, few, few)[0])
        return self.norms[1](x + self.mix(x))


class OfSets(nn.Module):
    def __init__(self, wide=32):
        super().__init__()
        self.first, self.blocks = nn.Linear(64, wide), nn.Sequential(Induced(wide, 6), Induced(wide, 6))
        self.seed, self.pool = nn.Parameter(torch.randn(1, 1, wide)), nn.MultiheadAttention(wide, 4, batch_first=True)
        self.head = nn.Linear(wide, 1)

    def forward(self, x):
        x = self.blocks(self.first(x))
        return self.head(self.pool(self.seed.expand(len(x), -1, -1), x, x)[0][:, 0])[:, 0]


@healthy(0.4)
def kinds_counted_in_a_set_of_images(folder):
    """How many different digits are among six; a set transformer, its output at a Poisson's logarithm."""
    seeded(4323)
    net, (learnt, kept) = OfSets(), kept_apart()

    def loss_on(x, y):
        def loss_of(step):
            pool = torch.rand(48, 10).argsort(1)[:, :5]
            pool = pool.gather(1, (torch.rand(48, 6) * (1 + torch.randint(5, (48, 1)))).long())
            at = of_kinds(y, pool)
            count = F.one_hot(pool, 10).amax(1).sum(1).float()
            return F.mse_loss(net(x[at]).exp(), count)

        return loss_of

    make = optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, make, loss_on(*learnt), 450, score=score_of(loss_on(*kept)))


class Waves(nn.Module):
    """The real part of a transform over tokens and channels, in the place of attention (Lee-Thorp et al. 2021)."""

    def __init__(self, wide):
        super().__init__()
        self.norm = nn.LayerNorm(wide)

    def forward(self, x):
        return x + self.norm(torch.fft.fft2(x, norm="ortho").real)


@healthy(0.6)
def patches_mixed_without_weights(folder):
    seeded(4324)
    net = OfPatches([Waves(32), Narrow(32), Waves(32), Narrow(32)])
    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)
    return of_digits(folder, net, make, 1000, schedule=warm(make, 60, 1000))


@healthy(0.6)
def attention_without_a_softmax(folder):
    """Features that are never negative in its place (Katharopoulos et al. 2020), labels softened by a tenth."""
    seeded(4325)

    def linear(q, k, v):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(2)[..., None])

    net = OfPatches([Looked(32, linear), Narrow(32), Looked(32, linear), Narrow(32)])
    make = optim.RAdam(net.parameters(), 3e-3)
    return of_digits(folder, net, make, 800, label_smoothing=0.1)


@healthy(0.5)
def order_found_by_dividing_rows_and_columns(folder):
    """Eight images of digits are put in order by a doubly stochastic matrix (Mena et al. 2018)."""
    seeded(4326)
    net, (learnt, kept) = dense(64, 64, 8), kept_apart()

    def loss_on(x, y):
        def loss_of(step):
            which = torch.rand(24, 10).argsort(1)[:, :8]
            logs = net(x[of_kinds(y, which)]) / 0.5
            for _ in range(10):
                logs = logs - logs.logsumexp(2, keepdim=True)
                logs = logs - logs.logsumexp(1, keepdim=True)
            truth = F.one_hot(which.argsort(1).argsort(1), 8).float()
            return -(truth * logs).sum(2).mean()

        return loss_of

    make = optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, make, loss_on(*learnt), 600, score=score_of(loss_on(*kept)))
