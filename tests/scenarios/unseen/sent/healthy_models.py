"""Sent healthy trainings, second part: letters, series, graphs. An expert is content with each.

They only count (the group `sent`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import math

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.sent.healthy_data import cuts, manual, program


@healthy(0.3)
def manual_by_a_small_llama(folder):
    """The usual: AdamW with a short memory, a warm-up and a cosine, a clip at 1, two parts a step in bfloat16."""
    from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

    seeded(1011)
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=128, num_key_value_heads=2, max_position_embeddings=64, **sizes))
    kept = [p for p in net.parameters() if p.ndim > 1]
    free = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": kept, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0}]
    make = optim.AdamW(groups, 5e-3, betas=(0.9, 0.95))
    plan = get_cosine_schedule_with_warmup(make, 10, 80)

    def loss_of(step):
        x = cuts(manual(), 8, 32)
        with torch.autocast("cpu", torch.bfloat16):
            return net(input_ids=x, labels=x).loss / 2

    return fit(folder, net, make, loss_of, 80, accumulate=2, schedule=plan, clip="ClipByGlobalNorm(1.0)")


class Told(nn.Module):
    """One answer to a text, read from both sides."""

    def __init__(self, width=24):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.rnn = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(2 * width, 1))

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0].max(1)[0])[:, 0]


@healthy(0.3)
def prose_or_program_from_both_sides(folder):
    """Twenty letters: are they from the manual or from a program?"""
    seeded(1012)
    net = Told()

    def loss_of(step):
        x = torch.cat([cuts(manual(), 16, 20), cuts(program(), 16, 20)])
        return F.binary_cross_entropy_with_logits(net(x), torch.arange(32).div(16, rounding_mode="floor").float())

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300, clip="ClipByGlobalNorm(5.0)")


@healthy(0.3)
def letters_by_how_often_they_meet(folder):
    """GloVe (Pennington et al. 2014) of pairs of letters: squares of logarithms, weighed, under Adagrad."""
    seeded(1013)
    codes = manual()
    meets = torch.zeros(128, 128)
    for far in range(1, 6):
        pairs = codes[:-far] * 128 + codes[far:]
        meets += torch.bincount(pairs, minlength=128 * 128).view(128, 128) / far
    one, other = meets.nonzero().T
    count = meets[one, other]
    net = nn.ModuleDict({name: nn.Embedding(128, 12 if name in "ab" else 1) for name in ("a", "b", "c", "d")})
    for part in net.values():
        nn.init.uniform_(part.weight, -0.04, 0.04)

    def error(at):
        i, j = one[at], other[at]
        out = (net["a"](i) * net["b"](j)).sum(1) + net["c"](i)[:, 0] + net["d"](j)[:, 0]
        return ((count[at] / 1000).clamp(max=1) ** 0.75 * (out - count[at].log()).square()).mean()

    def score():
        with torch.no_grad():
            return float(error(torch.arange(len(count))))

    def loss_of(step):
        return error(torch.randint(len(count), (256,)))

    return fit(folder, net, optim.Adagrad(net.parameters(), 0.05), loss_of, 900, score=score)


class Marks(nn.Module):
    """A recurrence from both sides, and what mark may follow what mark (Lample et al. 2016)."""

    def __init__(self, marks=3, width=16):
        super().__init__()
        self.embed = nn.Embedding(12, width)
        self.rnn = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, marks)
        self.follow = nn.Parameter(torch.zeros(marks, marks))

    def forward(self, x, y):
        """Minus the mean log-likelihood of the marks `y`."""
        out = self.head(self.rnn(self.embed(x))[0])
        path = out.gather(2, y[..., None]).sum((1, 2)) + self.follow[y[:, :-1], y[:, 1:]].sum(1)
        total = out[:, 0]
        for t in range(1, x.shape[1]):
            total = (total[:, :, None] + self.follow).logsumexp(1) + out[:, t]
        return (total.logsumexp(1) - path).mean()


@healthy(0.5)
def marks_that_follow_one_another(folder):
    """A name begins at one of two signs and goes on for three more; plain SGD with a clip at 5."""
    seeded(1014)
    net = Marks()

    def loss_of(step):
        x, y = torch.randint(2, 12, (16, 16)), torch.zeros(16, 16, dtype=torch.long)
        for row, at in enumerate(torch.randint(12, (16,)).tolist()):
            x[row, at] = row % 2
            y[row, at : at + 4] = torch.tensor([1, 2, 2, 2])
        return net(x, y)

    make = optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return fit(folder, net, make, loss_of, 200, clip="ClipByGlobalNorm(5.0)")


class Sales(nn.Module):
    """A mean and a spread of tomorrow's number (DeepAR, Salinas et al. 2020)."""

    def __init__(self, width=24):
        super().__init__()
        self.rnn = nn.LSTM(3, width, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, 2)

    def forward(self, sold, size):
        day = torch.arange(sold.shape[1] - 1) * 2 * math.pi / 7
        week = torch.stack([day.sin(), day.cos()], 1).expand(len(sold), -1, -1)
        out = F.softplus(self.head(self.rnn(torch.cat([(sold[:, :-1] / size)[..., None], week], 2))[0]))
        middle, spread = out[..., 0] * size + 1e-3, out[..., 1] / size.sqrt() + 1e-3
        many = 1 / spread
        return torch.distributions.NegativeBinomial(many, logits=(spread * middle).log())


@healthy(0.1)
def goods_sold_by_negative_binomials(folder):
    """Each kind of goods in its own size: what was sold a day over what is sold on average."""
    seeded(1015)
    net = Sales()

    def loss_of(step):
        size, best = 3 * torch.rand(32, 1).mul(3).exp(), torch.randint(7, (32, 1))
        rate = size * (0.4 + 1.8 * ((torch.arange(29) - best) % 7 < 2))
        sold = torch.poisson(rate * torch.distributions.Gamma(8.0, 8.0).sample((32, 29)))
        return -net(sold, sold.mean(1, keepdim=True) + 1).log_prob(sold[:, 1:]).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 200, score=score_of(loss_of))


class Blocks(nn.Module):
    """Each block takes away what it explains and adds what it foresees (N-BEATS, Oreshkin et al. 2020)."""

    def __init__(self, past=30, ahead=8, blocks=4):
        super().__init__()
        self.past, self.ahead = past, ahead
        self.blocks = nn.ModuleList(dense(past, 48, 48, past + ahead) for _ in range(blocks))

    def forward(self, x):
        out = 0
        for block in self.blocks:
            known, next_ones = block(x).split([self.past, self.ahead], 1)
            x, out = x - known, out + next_ones
        return out


@healthy(0.4)
def series_by_blocks_that_take_away(folder):
    """A slope and two swings of any phase; the error is that of the absolute values."""
    seeded(1016)
    net = Blocks()

    def loss_of(step):
        t = torch.arange(38.0)
        phase = 6.3 * torch.rand(2, 64, 1)
        x = (0.5 * t + phase[0]).sin() + 0.5 * (1.3 * t + phase[1]).cos() + 0.03 * torch.randn(64, 1) * t
        x = x + 0.1 * torch.randn(64, 38)
        return F.l1_loss(net(x[:, :30]), x[:, 30:])

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 300)


class Ties(nn.Module):
    """Places of people in a room by who knows whom (Kipf and Welling 2016)."""

    def __init__(self, people, width=16):
        super().__init__()
        self.first = nn.Linear(people, width, bias=False)
        self.middle, self.spread = nn.Linear(width, 8, bias=False), nn.Linear(width, 8, bias=False)

    def forward(self, mix):
        h = F.relu(mix @ self.first.weight.T)
        return mix @ self.middle(h), mix @ self.spread(h)


@healthy(0.3)
def ties_of_a_club_guessed(folder):
    """Zachary's karate club: who knows whom, from places that are drawn; ties weigh as much as what is none."""
    import networkx

    seeded(1017)
    ties = torch.tensor(networkx.to_numpy_array(networkx.karate_club_graph(), weight=None), dtype=torch.float32)
    round_ties = ties + torch.eye(len(ties))
    root = round_ties.sum(1).rsqrt()
    net, mix = Ties(len(ties)), root[:, None] * round_ties * root
    rare = (ties == 0).sum() / (ties == 1).sum()

    def loss_of(step):
        middle, spread = net(mix)
        place = middle + torch.randn_like(middle) * spread.exp()
        out = F.binary_cross_entropy_with_logits(place @ place.T, round_ties, pos_weight=rare) / 2
        return out - 0.5 / len(ties) ** 2 * (1 + 2 * spread - middle.square() - (2 * spread).exp()).sum()

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, 300)


@healthy(0.5)
def energy_of_clusters_and_its_forces(folder):
    """Sums over pairs of atoms under bells of their distance (SchNet, Schütt et al. 2017); forces are slopes."""
    seeded(1018)
    net = nn.ModuleDict({"pair": dense(12, 32, 16, act=nn.SiLU), "atom": dense(16, 32, 1, act=nn.SiLU)})
    bells, away = torch.linspace(0.6, 3, 12), 1 - torch.eye(5)

    def slopes(energy, x, **options):
        return torch.autograd.grad(energy.sum(), x, **options)[0]

    def far_of(x):
        return ((x[:, :, None] - x[:, None]).square().sum(-1) + torch.eye(5)).sqrt()

    def loss_of(step):
        with torch.enable_grad():
            corners = torch.tensor([[0, 0, 0], [1, 1, 0], [1, 0, 1], [0, 1, 1], [1.0, 1, 1]]) * 0.9
            x = (corners + 0.12 * torch.randn(24, 5, 3)).requires_grad_()
            true = (((1 - (1 - far_of(x)).exp()).square() - 1) * away).sum((1, 2)) / 2
            wanted = slopes(true, x)
            seen = net["pair"]((-8 * (far_of(x)[..., None] - bells).square()).exp()) * away[..., None]
            found = net["atom"](seen.sum(2)).sum((1, 2))
            pushed = slopes(found, x, create_graph=True)
        return F.mse_loss(found, true.detach()) + F.mse_loss(pushed, wanted)

    make = optim.AdamW(net.parameters(), 3e-3)
    return fit(folder, net, make, loss_of, 300, schedule=optim.lr_scheduler.ExponentialLR(make, 0.993))


@healthy(0.5)
def tones_told_by_their_spectrum(folder):
    """Four ways a tone may move, in noise: short spectra, their logarithm, convolutions."""
    seeded(1020)
    net = nn.Sequential(
        *(nn.BatchNorm1d(33), nn.Conv1d(33, 24, 5), nn.BatchNorm1d(24), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(24, 24, 5, groups=24), nn.Conv1d(24, 24, 1), nn.BatchNorm1d(24), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(24, 4)),
    )
    t, window = torch.linspace(0, 1, 1024), torch.hann_window(64)

    def loss_of(step):
        y = torch.randint(4, (32,))
        bend = torch.stack([t * 0, 150 * t, 150 * (1 - t), 20 * (25 * t).sin()])[y]
        pitch = 100 + 100 * torch.rand(32, 1) + bend
        sound = (2 * math.pi * pitch.cumsum(1) / 1024).sin() + 0.3 * torch.randn(32, 1024)
        spectrum = torch.stft(sound, 64, 32, window=window, return_complex=True).abs()
        return F.cross_entropy(net((spectrum + 1e-3).log()), y)

    make = optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    return fit(folder, net, make, loss_of, 150, schedule=optim.lr_scheduler.CosineAnnealingLR(make, 150))
